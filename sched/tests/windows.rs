//! Short windows (F-17): what a thread gets in any 100 ms, and how long its first wake-up takes beside those that it has just made.

mod common;

use common::*;
use sched::*;

const POLICIES: [PolicyKind; 2] = [PolicyKind::Wfq, PolicyKind::Eevdf];
const WINDOW_NS: u64 = 100 * MS;
/// The worst of windows depends on what is left of it after whole rounds of nine: a slice more or less of either, here.
const WINDOWS_NS: [u64; 3] = [WINDOW_NS, 96 * MS, 102 * MS];

/// When one of two hogs ran, `[from, to)`, in order.
fn turns_of(policy: PolicyKind, weights: [u16; 2], hog: usize, end: u64) -> Vec<(u64, u64)> {
    let mut machine = Machine::new(1, policy);
    for weight in weights {
        machine.spawn(Plan::hog(weight));
    }
    let (mut turns, mut last, mut served) = (Vec::new(), 0, 0);
    machine.run_observed(end, |machine| {
        let now_served = machine.threads[hog].service_ns;
        if now_served > served {
            turns.push((last, machine.now));
        }
        (last, served) = (machine.now, now_served);
    });
    turns
}

/// Of `turns`, what lies within a window.
fn within(turns: &[(u64, u64)], from: u64, to: u64) -> u64 {
    turns.iter().map(|&(begin, end)| end.min(to).saturating_sub(begin.max(from))).sum()
}

fn edges(turns: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    turns.iter().flat_map(|&(begin, end)| [begin, end])
}

/// F-17: two hogs of weights 2:1 for 3 s. The service of a window is a broken line in its beginning, so its extremes are at windows that begin or end
/// where a turn does: those are all looked at. The lighter one has a slice of each three, so a window is off by two thirds of a slice at most:
/// 2 points of 100 ms. Linux 6.12 is off by 2.67 in the same emulator (`docs/benchmarks.md`).
#[test]
fn f_17_any_window_of_100_ms_is_within_two_thirds_of_a_slice() {
    let bound = SLICE_NS * 2 / 3 + 1_000;
    assert!(bound * 100 < WINDOW_NS * 267 / 100, "no worse than Linux");
    for policy in POLICIES {
        let turns = turns_of(policy, [128, 64], 1, 3 * SECOND);
        assert!(turns.len() > 100, "{policy:?}: {} turns", turns.len());
        let mut worst = 0;
        for (edge, window) in edges(&turns).flat_map(|edge| WINDOWS_NS.map(|window| (edge, window))) {
            for from in [edge, edge.saturating_sub(window)] {
                if from + window <= 3 * SECOND {
                    worst = worst.max(within(&turns, from, from + window).abs_diff(window / 3));
                }
            }
        }
        assert!(worst <= bound, "{policy:?}: a window is off by {worst} ns");
        assert!(worst > bound / 2, "{policy:?}: {worst} ns of {bound}: the bound says nothing");
    }
}

/// A thread makes `hogs` of its own weight, goes on for `more_ns`, and sleeps for `sleep_ns`: how long it waits for the CPU then. It has run for
/// some time before, so nobody's request begins or ends where the hogs come in.
fn first_wake_up(policy: PolicyKind, hogs: u64, more_ns: u64, sleep_ns: u64) -> u64 {
    let mut cpu: Cpu<u32> = Cpu::new(cpu_id(0), policy, 0);
    let _ = cpu.enqueue(Runnable::new(ThreadId(0), 0), 0).unwrap();
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(0)));
    let mut now = 7 * SLICE_NS;
    let _ = cpu.timer(now);
    for id in 1..=hogs {
        let debt_ns = cpu.current_debt_ns(now);
        let mut hog = Runnable::new(ThreadId(id), id as u32);
        hog.owe(debt_ns);
        assert!(!matches!(cpu.enqueue(hog, now).unwrap(), Effect::Dispatch), "a new thread is no better");
    }
    now += more_ns;
    let sleeper = cpu.block(now).unwrap();
    let mut until = cpu.dispatch(now).until_ns;
    let awake = now + sleep_ns;
    while until <= awake {
        now = until;
        let _ = cpu.timer(now);
        until = cpu.dispatch(now).until_ns;
    }
    let mut effect = cpu.enqueue(sleeper.wake().unwrap(), awake).unwrap();
    now = awake;
    loop {
        if matches!(effect, Effect::Dispatch) {
            let _ = cpu.dispatch(now);
        }
        assert_eq!(cpu.check(), Ok(()));
        if cpu.current() == Some(ThreadId(0)) {
            return now - awake;
        }
        now = cpu.until_ns();
        effect = cpu.timer(now);
    }
}

/// F-17: who made a hog and sleeps has the same tag when it wakes as the hog was picked under, and the hog has run since: it need not wait for the
/// hog's slice to end. Neither if it went on for a moment before it slept and stands that much further: once the hog has run longer than that is worth.
#[test]
fn f_17_equal_tags_at_a_first_wake_up_cost_no_slice() {
    for policy in POLICIES {
        for sleep_ns in [SLICE_NS / 100, SLICE_NS / 3, SLICE_NS * 9 / 10] {
            assert_eq!(first_wake_up(policy, 1, 0, sleep_ns), 0, "{policy:?}: equal, asleep for {sleep_ns}");
        }
        assert_eq!(first_wake_up(policy, 1, 20_000, MS), 0, "{policy:?}: nearly equal");
    }
}

/// F-17: beside four, those that have not run at all have asked before: three slices, not four.
#[test]
fn f_17_a_first_wake_up_waits_for_those_that_have_not_run() {
    for policy in POLICIES {
        for more_ns in [0, 20_000] {
            let wait = first_wake_up(policy, 4, more_ns, MS);
            assert!(wait <= 3 * SLICE_NS, "{policy:?}, {more_ns} ns further: {wait} ns");
        }
    }
}
