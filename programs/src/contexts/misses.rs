//! Steps about deadlines that pass and time that is not available (S-15): of the proof `deadline-misses`, whose kernel promises more than it can
//! keep, and of `scheduling-context`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rt::{Fallback, NotificationKind as Kind, Spec, SystemInfo, ThreadState, caps, time};

use super::{burn, copy, new_context_soon};
use crate::kit::{MS, wait_until};
use crate::proof::{Doing, Failure, Outcome};
use crate::ticks::{self, Scale};
use crate::{ensure, markers};

const ROUNDS: u64 = 3;
const ROUND_NS: u64 = 150 * MS;
/// The deadline of the thread that is late.
const DEADLINE_NS: u64 = 5 * MS;

/// Sleeps until `at_ns`.
fn sleep_until(at_ns: u64) -> Outcome {
    Ok(time::sleep(at_ns.saturating_sub(time::now_ns()?))?)
}

/// A thread wakes up at the beginning of each round with `work_ns` to do within its deadline, while a thread of a higher band, which started before,
/// has the CPU for another `ahead_ns`. An observer that waits for notifications on `observer_cpu` learns of each miss when the deadline passes, not
/// only when the thread has run (S-15).
pub fn missed(scale: Scale, [work_ns, ahead_ns]: [u64; 2], observer_cpu: u32) -> Outcome {
    let late = new_context_soon(&Spec::new(DEADLINE_NS, ROUND_NS).deadline(DEADLINE_NS).cpus([0]))?;
    let first = new_context_soon(&Spec::new(50 * MS, ROUND_NS).deadline(50 * MS).criticality(3).cpus([0]))?;
    let prompt = new_context_soon(&Spec::new(MS, 20 * MS).criticality(7).cpus([observer_cpu]))?;
    let seen = copy(&late)?;
    let start_ns = time::now_ns()? + ROUND_NS / 2;
    let (begun, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (tells_begun, tells_done) = (Arc::clone(&begun), Arc::clone(&done));
    let ahead = rt::thread::spawn(move || -> Outcome {
        first.bind(Fallback::BestEffort)?.ok()?;
        for round in 0..ROUNDS {
            sleep_until(start_ns + round * ROUND_NS - MS)?;
            burn(MS + ahead_ns, scale);
        }
        first.unbind()?.ok()?;
        first.revoke()?.ok()?;
        Ok(())
    });
    let loser = rt::thread::spawn(move || -> Outcome<u32> {
        late.bind(Fallback::BestEffort)?.ok()?;
        for round in 0..ROUNDS {
            sleep_until(start_ns + round * ROUND_NS)?;
            tells_begun.fetch_add(1, Ordering::Release);
            burn(work_ns, scale);
            tells_done.fetch_add(1, Ordering::Release);
        }
        late.unbind()?.ok()?;
        Ok(rt::thread::id())
    });
    prompt.bind(Fallback::BestEffort)?.ok()?;
    let mut holders = [0; ROUNDS as usize];
    let mut latest_ns = 0;
    for (round, holder) in (0..).zip(&mut holders) {
        seen.wait_notification()?;
        let now = time::now_ns()?;
        let progress = [&begun, &done].map(|count| count.load(Ordering::Acquire));
        let news = seen.drain()?.ok()?;
        let cell = news.get(Kind::DeadlineOrTimeout).copied();
        let cell = cell.ok_or_else(|| Failure::new(format_args!("no deadline has passed: {news:?}")))?;
        *holder = cell.holder_tid;
        let woke_ns = start_ns + round * ROUND_NS;
        let due_ns = woke_ns + DEADLINE_NS;
        ensure!(
            (cell.coalesced, cell.sequence) == (1, round + 1) && cell.next_ns >= due_ns,
            "not of this round: {cell:?}, due at {due_ns}"
        );
        ensure!(now > cell.next_ns, "noted before the deadline: {cell:?} at {now}");
        if !ticks::is_counted() {
            continue;
        }
        // Where instructions are counted, at a nanosecond each, nothing comes in between; where time is counted, the host may be away. The emulator
        // runs several CPUs one at a time, and the others' turns are in the clock: there the check is only that the miss is noted before the thread
        // has done its work.
        if rt::boot_info().cpus > 1 {
            ensure!(progress[1] == round, "noted when it has done {} of {round} rounds", progress[1]);
            continue;
        }
        let begins = round + u64::from(ahead_ns < DEADLINE_NS);
        ensure!(
            progress == [begins, round],
            "noted when it has begun and done {progress:?} of {round} rounds"
        );
        let (wake_ns, note_ns) = (cell.next_ns - due_ns, now - cell.next_ns);
        ensure!(wake_ns < MS / 5, "woken {wake_ns} ns late");
        latest_ns = latest_ns.max(note_ns);
        ensure!(note_ns < MS / 10, "noted {note_ns} ns after the deadline");
    }
    prompt.unbind()?.ok()?;
    ahead.join()??;
    let tid = loser.join()??;
    ensure!(holders == [tid; ROUNDS as usize], "noted of {holders:?}, and it was {tid}");
    let again = seen.drain()?.ok()?;
    ensure!(again.get(Kind::DeadlineOrTimeout).is_none(), "noted once more when it ran: {again:?}");
    markers!("deadline_noted_in_time=ok deadline_note_delay_ns={latest_ns}");
    prompt.revoke()?.ok()?;
    seen.revoke()?.ok()?;
    Ok(())
}

/// A thread whose budget is used up is `throttled`, and its wait for the refill does not count as a wait for a CPU (S-15).
pub fn throttled(scale: Scale) -> Outcome {
    const PERIODS: u64 = 8;
    let system = caps::any::<SystemInfo>().doing("system_info")?;
    let own = new_context_soon(&Spec::new(2 * MS, 40 * MS))?;
    let (tid, is_over) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicBool::new(false)));
    let (its_tid, over) = (Arc::clone(&tid), Arc::clone(&is_over));
    let hog = rt::thread::spawn(move || -> Outcome {
        own.bind(Fallback::BestEffort)?.ok()?;
        its_tid.store(u64::from(rt::thread::id()), Ordering::Release);
        while !over.load(Ordering::Relaxed) {
            burn(MS / 4, scale);
        }
        own.unbind()?.ok()?;
        Ok(())
    });
    wait_until("a hog with a budget starts", || Ok(tid.load(Ordering::Acquire) != u64::MAX))?;
    let tid = tid.load(Ordering::Acquire) as u32;
    let look = || -> Outcome<_> {
        let all = system.threads()?;
        let mine = all.into_iter().find(|thread| thread.tid == tid);
        let now = time::now_ns()?;
        Ok((now, mine.ok_or_else(|| Failure::new(format_args!("thread {tid} is not listed")))?))
    };
    let (start, first) = look()?;
    let (mut throttled, mut ready) = (0, 0);
    for _ in 0..4 * PERIODS {
        // A sleep that is not in step with the period.
        time::sleep(11 * MS)?;
        match look()?.1.state {
            ThreadState::Throttled => throttled += 1,
            ThreadState::Ready => ready += 1,
            _ => {}
        }
    }
    let (end, last) = look()?;
    is_over.store(true, Ordering::Relaxed);
    hog.join()??;
    let wall = end - start;
    let (ran, waited) = (last.runtime_ns - first.runtime_ns, last.runnable_ns - first.runnable_ns);
    let dry = last.throttled_ns - first.throttled_ns;
    ensure!(
        throttled > 3 * PERIODS && ready <= PERIODS / 2,
        "throttled {throttled} times, ready {ready} times"
    );
    ensure!(dry >= wall * 85 / 100, "waited {dry} ns of {wall} for refills, ran for {ran}");
    ensure!(ran + waited + dry <= wall + MS, "{ran} + {waited} + {dry} ns in {wall}");
    // Where instructions are counted, the host takes no time: the thread runs when the refill comes.
    ensure!(!ticks::is_counted() || waited <= wall / 100, "waited {waited} ns of {wall} for a CPU");
    markers!("throttled_state=ok throttled_waits_for_cpu_ns={waited} throttled_ns={dry}");
    Ok(())
}
