//! Many things at once: threads that start, stop and move on all CPUs, and revocations under preemption.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rt::{Answer, Fallback, OperationResult as R, Spec, time};

use super::{Hog, Player, Stage, Test};
use crate::contexts::{Lend, burn, new_context_soon};
use crate::ensure;
use crate::kit::{self, MS, Usage};
use crate::proof::{Doing, Outcome};
use crate::random::Random;
use crate::ticks;

/// The tests of this module.
pub const TESTS: [Test; 2] = [("start-stop-move", start_stop_move), ("revoke-preempted", revoke_preempted)];

/// Random starts, stops, binds, moves and ends of threads on all CPUs: each thread goes on when it should, and nothing is left at
/// the end.
fn start_stop_move(stage: &Stage) -> Outcome<String> {
    const STEPS: u64 = 400;
    const THREADS: usize = 5;
    let usage = Usage::settled()?;
    let mut random = Random::new(u64::from(stage.cpus));
    let (mut moves, mut stops, mut ends) = (0u64, 0u64, 0u64);
    let mut crowd: Vec<Hog> = Vec::new();
    let fresh = || -> Outcome<Hog> {
        let hog = Hog::start(stage, 10_000, || Ok(()))?;
        hog.player.go()?;
        Ok(hog)
    };
    // Binds the thread so that it can end wherever it is, and only then tells it to: otherwise it might end before it is bound.
    let dismiss = |mut hog: Hog| -> Outcome {
        if let Some(old) = hog.player.context.take() {
            old.unbind()?.ok()?;
        }
        hog.player.bind(new_context_soon(&Spec::new(MS, 10 * MS))?, Fallback::BestEffort)?;
        hog.stop()
    };
    for _ in 0..THREADS {
        crowd.push(fresh()?);
    }
    for step in 0..STEPS {
        let at = random.below(THREADS as u64) as usize;
        let hog = &mut crowd[at];
        match random.below(8) {
            0..4 => {
                // Moves it to another CPU by another context.
                let cpu = random.below(stage.cpus.into()) as u32;
                if let Some(old) = hog.player.context.take() {
                    old.unbind()?.ok()?;
                }
                let budget = 100_000 + random.below(MS);
                hog.player
                    .bind(new_context_soon(&Spec::new(budget, 10 * MS).cpus([cpu]))?, Fallback::Stop)?;
                moves += 1;
            }
            4..6 => {
                let Some(context) = hog.player.context.take() else { continue };
                context.revoke()?.ok()?;
                // The thread may be in the middle of a turn.
                let before = hog.turns();
                time::sleep(random.below(MS / 2))?;
                let after = hog.turns();
                ensure!(after <= before + 1, "step {step}: {} turns of a stopped thread", after - before);
                stops += 1;
            }
            6 => {
                dismiss(core::mem::replace(hog, fresh()?))?;
                ends += 1;
            }
            _ => time::sleep(random.below(MS))?,
        }
    }
    crowd.into_iter().try_for_each(dismiss)?;
    ensure!(kit::system()?.contexts().doing("contexts")?.is_empty(), "contexts are left");
    usage.comes_back("memory")?;
    Ok(format!("moves={moves} stops={stops} ends={ends}"))
}

/// While contexts are revoked on chains of the greatest possible depth, a more urgent thread of the same CPU is not kept waiting.
fn revoke_preempted(stage: &Stage) -> Outcome<String> {
    const ROUNDS: usize = 40;
    const DEPTH: usize = 8;
    let (over, worst, wakes) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (is_over, late, count, scale) =
        (Arc::clone(&over), Arc::clone(&worst), Arc::clone(&wakes), stage.scale);
    let urgent = Player::start(&stage.spec(20 * MS, 100 * MS, 7), move || {
        let timer = time::timer()?;
        while !is_over.load(Ordering::Relaxed) {
            let asleep = ticks::now();
            timer.sleep(MS / 5)?;
            let took = scale.to_ns(ticks::now() - asleep);
            late.fetch_max(took.saturating_sub(MS / 5), Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let mut servers: Vec<Lend> = Vec::new();
    for _ in 0..DEPTH {
        let next = servers.last().map(|server| Arc::clone(&server.endpoint));
        servers.push(Lend::start(move |_| {
            burn(MS / 50, scale);
            match &next {
                Some(next) => Answer::Words(next.call(1, [0; 2]).map_or([0; 2], |answer| [answer[0] + 1, 0])),
                None => {
                    // Long enough for the revocation to find the whole chain.
                    let _ = time::sleep(MS);
                    Answer::Words([1, 0])
                }
            }
        })?);
    }
    let first = servers.last().map(|server| Arc::clone(&server.endpoint));
    let first = first.ok_or_else(|| crate::proof::Failure::new("no servers"))?;
    stage.enter()?;
    urgent.go()?;
    let mut random = Random::new(11);
    let mut deepest = 0;
    for _ in 0..ROUNDS {
        let talk = Arc::clone(&first);
        let client = Player::start(&stage.part(1), move || {
            let answer = talk.call(1, [0; 2])?;
            ensure!(answer[0] == DEPTH as u64, "answered {answer:?}");
            Ok(())
        })?;
        client.go()?;
        time::sleep(random.below(MS))?;
        let found = client.its()?.info()?;
        deepest = deepest.max(found.value.lent_depth);
        let result = client.its()?.revoke()?.result;
        ensure!(matches!(result, R::Ok | R::StaleGeneration), "revoked: {result:?}");
        client.join()?;
    }
    over.store(true, Ordering::Relaxed);
    urgent.join()?;
    stage.leave()?;
    servers.into_iter().rev().try_for_each(Lend::stop)?;
    let (worst, wakes) = (worst.load(Ordering::Relaxed), wakes.load(Ordering::Relaxed));
    ensure!(deepest == DEPTH as u32, "the deepest chain was {deepest}");
    ensure!(wakes > ROUNDS as u64, "{wakes} wake-ups");
    ensure!(!stage.is_counted || worst < 500_000, "kept waiting for {worst} ns");
    Ok(format!("revocations={ROUNDS} depth={deepest} wakes={wakes} worst_late_ns={worst}"))
}
