//! Several CPUs: stealing (F-08), skipping what cannot run (F-09), fairness across CPUs (F-16), masks (S-04).

mod common;

use std::time::Instant;

use common::*;
use sched::*;

const POLICIES: [PolicyKind; 2] = [PolicyKind::Wfq, PolicyKind::Eevdf];

fn thread(id: u64, weight: u16) -> Runnable<u32> {
    let mut thread = Runnable::new(ThreadId(id), id as u32);
    thread.set_weight(weight).unwrap();
    thread
}

fn idle_cpu(number: usize) -> Cpu<u32> {
    Cpu::new(cpu_id(number), PolicyKind::Wfq, 0)
}

/// A CPU with a thread that runs and one that waits, with ids from `first`.
fn busy_cpu(number: usize, first: u64, weight: u16) -> Cpu<u32> {
    let mut cpu = idle_cpu(number);
    for id in [first, first + 1] {
        let _ = cpu.enqueue(thread(id, weight), 0).unwrap();
    }
    let _ = cpu.dispatch(0);
    cpu
}

/// F-08: the thief goes to the CPU whose first thread is most overdue, whatever the order of the summaries.
#[test]
fn f_08_the_most_overdue_candidate_is_stolen() {
    // Finish tags of the waiting threads: 3 ms * 64 / weight after the clock (all at 0); smaller is more overdue.
    let mut cpus = [idle_cpu(0), busy_cpu(1, 10, 64), busy_cpu(2, 20, 256), busy_cpu(3, 30, 128)];
    let overdue: Vec<Option<i64>> = cpus.iter().map(|cpu| cpu.summary().overdue).collect();
    assert_eq!(overdue, [None, Some(-3_000_000), Some(-750_000), Some(-1_500_000)]);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        assert_eq!(most_overdue(cpu_id(0), order.map(|cpu: usize| cpus[cpu].summary())), Some(cpu_id(2)));
    }
    let [thief, _, victim, _] = &mut cpus;
    let MoveOutcome::Moved { thread, effect } = thief.steal_from(victim, 0) else { panic!("nothing taken") };
    assert_eq!((thread, effect), (ThreadId(21), Effect::Dispatch));
    assert_eq!(thief.dispatch(0).run, Some(ThreadId(21)));
    // What is left: cpu3 before cpu1. A thief never names itself.
    let summaries = || cpus.iter().map(Cpu::summary);
    assert_eq!(most_overdue(cpu_id(0), summaries()), Some(cpu_id(3)));
    assert_eq!(most_overdue(cpu_id(3), summaries()), Some(cpu_id(1)));
}

/// F-08: equally overdue threads are taken from the lower CPU, in whatever order the siblings are listed.
#[test]
fn f_08_ties_go_to_the_lower_cpu() {
    let cpus = [idle_cpu(0), busy_cpu(1, 10, 64), busy_cpu(2, 20, 64), busy_cpu(3, 30, 64)];
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
        assert_eq!(most_overdue(cpu_id(0), order.map(|cpu: usize| cpus[cpu].summary())), Some(cpu_id(1)));
    }
    assert_eq!(most_overdue(cpu_id(1), cpus.iter().map(Cpu::summary)), Some(cpu_id(2)));
}

/// F-08, F-03: a weight that was changed in the old queue counts in the tag at the destination, not before.
#[test]
fn f_08_the_tag_is_recomputed_at_the_destination() {
    let (mut thief, mut victim) = (idle_cpu(0), busy_cpu(1, 10, 64));
    let ticket = only_ticket(&victim);
    assert_eq!(ticket.key.tag, 3_000_000);
    assert_eq!(victim.set_queued_weight(&ticket, 128, 0), Ok(true));
    assert_eq!(only_ticket(&victim).key, ticket.key, "F-07: not before the next enqueue");
    let MoveOutcome::Moved { effect: Effect::Dispatch, .. } = thief.steal_from(&mut victim, 0) else {
        panic!()
    };
    // Both clocks are at 0 and the thread has no lag: 3 ms * 64 / 128.
    assert_eq!(only_ticket(&thief).key.tag, 1_500_000);
    assert_eq!((victim.check(), thief.check()), (Ok(()), Ok(())));
}

fn only_ticket(cpu: &Cpu<u32>) -> Ticket {
    let mut tickets = Vec::new();
    cpu.for_each_queued(|ticket, _, _| tickets.push(ticket));
    assert_eq!(tickets.len(), 1);
    tickets[0]
}

/// A victim with `pinned` threads that may only run there, one behind them all that may run on cpu0 too, and (as many as
/// admission takes) throttled ones.
fn crowded(pinned: u64, throttled: u64, policy: PolicyKind) -> Cpu<u32> {
    let mut victim = Cpu::new(cpu_id(1), policy, 0);
    for id in 0..throttled {
        let identity = ContextId { id, generation: 1 };
        let context = victim.admit(Proposal::new(identity, Spec::new(20_000, 20_000_000)), 0).unwrap();
        let mut poor = thread(1_000_000 + id, 64);
        assert!(matches!(poor.bind(context), Ok(None)));
        let _ = victim.enqueue(poor, 0).unwrap();
    }
    // Spends every budget, so that all of them wait for their refill.
    for turn in 1..=throttled {
        let _ = victim.dispatch((turn - 1) * 20_000);
    }
    let start = throttled * 20_000;
    let _ = victim.dispatch(start);
    assert_eq!(victim.queued(), throttled as usize);
    for id in 0..pinned {
        let mut stuck = thread(id, 1024);
        stuck.set_allowed(CpuMask::only(cpu_id(1))).unwrap();
        let _ = victim.enqueue(stuck, start).unwrap();
    }
    let mut free = thread(999_999, 1);
    free.set_allowed(CpuMask::first_n(2)).unwrap();
    let _ = victim.enqueue(free, start).unwrap();
    victim
}

/// F-09: among 10,000 threads that may not leave and 128 that are throttled, the one thread that may run is found, by the thief
/// and by the owner, although its tag puts it last.
#[test]
fn f_09_nobody_is_hidden_by_threads_that_cannot_run() {
    for policy in POLICIES {
        let mut victim = crowded(10_000, 128, policy);
        let now = 128 * 20_000;
        assert_eq!(most_overdue(cpu_id(0), [victim.summary()]), Some(cpu_id(1)));
        assert_eq!(most_overdue(cpu_id(2), [victim.summary()]), None, "nobody here may run on cpu2");
        let mut stranger = Cpu::new(cpu_id(2), policy, 0);
        assert_eq!(stranger.steal_from(&mut victim, now), MoveOutcome::Nothing);
        let mut thief = Cpu::new(cpu_id(0), policy, 0);
        let MoveOutcome::Moved { thread, .. } = thief.steal_from(&mut victim, now) else { panic!("hidden") };
        assert_eq!(thread, ThreadId(999_999));
        assert_eq!(thief.steal_from(&mut victim, now), MoveOutcome::Nothing);
        // The owner picks a pinned one, not a throttled one.
        assert!(victim.dispatch(now).run.is_some_and(|id| id.0 < 10_000));
        assert_eq!((victim.check(), thief.check()), (Ok(()), Ok(())));
    }
}

/// F-09: skipping costs no more with 100 times as many threads to skip. The search is one descent of a tree of expected depth
/// `2 ln n`, so from 500 to 50,000 threads it may double (ln 50,000 / ln 500 = 1.74) and suffer from caches; a scan would grow a
/// hundredfold. 25 separates the two whatever the machine; the minimum of many tries is compared, so that
/// interruptions do not count. No absolute times.
#[test]
fn f_09_skipping_does_not_grow_with_the_crowd() {
    let fastest = |pinned: u64| {
        let mut victim = crowded(pinned, 0, PolicyKind::Wfq);
        let mut thief = idle_cpu(0);
        let mut stranger = idle_cpu(2);
        let mut least = u128::MAX;
        for _ in 0..400 {
            let begin = Instant::now();
            let MoveOutcome::Moved { .. } = thief.steal_from(&mut victim, 0) else { panic!("hidden") };
            assert_eq!(stranger.steal_from(&mut victim, 0), MoveOutcome::Nothing);
            least = least.min(begin.elapsed().as_nanos());
            let ticket = only_ticket(&thief);
            let _ = victim.enqueue(thief.remove(&ticket, 0).unwrap(), 0).unwrap();
        }
        least.max(1)
    };
    let (few, many) = (fastest(500), fastest(50_000));
    assert!(many < 25 * few, "{few} ns among 500, {many} ns among 50,000");
}

/// S-04: a thread is refused by every CPU that its mask or its context's home exclude, and comes back as it was.
#[test]
fn s_04_masks_hold_at_placement_and_steal() {
    for mask in 1u8..16 {
        let allowed = CpuMask::from_bytes(&[mask]).unwrap();
        let mut cpus: Vec<Cpu<u32>> = (0..4).map(idle_cpu).collect();
        for cpu in 0..4 {
            let mut restricted = thread(7, 64);
            restricted.set_allowed(allowed).unwrap();
            match cpus[cpu].enqueue(restricted, 0) {
                Ok(_) => assert!(mask >> cpu & 1 == 1),
                Err(Misplaced(thread)) => {
                    assert!(mask >> cpu & 1 == 0);
                    assert_eq!((thread.id(), thread.allowed()), (ThreadId(7), allowed));
                    assert_eq!(cpus[cpu].queued(), 0);
                    continue;
                }
            }
            let ticket = only_ticket(&cpus[cpu]);
            for thief in (0..4).filter(|thief| *thief != cpu) {
                let [own, other] = cpus.get_disjoint_mut([thief, cpu]).unwrap();
                let may = mask >> thief & 1 == 1;
                assert_eq!(most_overdue(cpu_id(thief), [other.summary()]).is_some(), may);
                match own.steal_from(other, 0) {
                    MoveOutcome::Moved { .. } => {
                        assert!(may, "cpu{thief} took a thread of mask {mask:#b}");
                        let back = only_ticket(own);
                        let thread = own.remove(&back, 0).unwrap();
                        let _ = other.enqueue(thread, 0).unwrap();
                    }
                    MoveOutcome::Nothing => assert!(!may),
                }
            }
            let ticket = Ticket { key: only_ticket(&cpus[cpu]).key, ..ticket };
            let _ = cpus[cpu].remove(&ticket, 0).unwrap();
        }
    }
}

/// S-04: a thread with a context runs where the promise was made and nowhere else, its mask notwithstanding.
#[test]
fn s_04_a_context_binds_its_thread_to_its_home() {
    let (mut home, mut other) = (idle_cpu(0), idle_cpu(1));
    let context =
        home.admit(Proposal::new(ContextId { id: 1, generation: 1 }, Spec::new(MS, 10 * MS)), 0).unwrap();
    let mut bound = thread(1, 64);
    assert!(matches!(bound.bind(context), Ok(None)));
    let Err(Misplaced(bound)) = other.enqueue(bound, 0) else { panic!("ran away from its promise") };
    let _ = home.enqueue(bound, 0).unwrap();
    assert_eq!(other.steal_from(&mut home, 0), MoveOutcome::Nothing);
}

/// Shares of one CPU that each thread got in the second half of `span`, when the start has worn off.
fn shares(machine: &mut Machine, span: u64) -> Vec<f64> {
    let start = machine.now;
    machine.run_until(start + span / 2);
    let before: Vec<u64> = machine.threads.iter().map(|thread| thread.service_ns).collect();
    machine.run_until(start + span);
    let gained = machine.threads.iter().zip(before).map(|(thread, before)| thread.service_ns - before);
    gained.map(|gained| gained as f64 / (span / 2) as f64).collect()
}

/// F-16: the tolerance of the requirement (5 % of a CPU's worth, taken relative to the share, which is stricter).
fn assert_shares(policy: PolicyKind, name: &str, found: &[f64], expected: &[f64]) {
    for (found_one, expected_one) in found.iter().zip(expected) {
        let error = (found_one - expected_one).abs() / expected_one;
        assert!(error <= 0.05, "{policy:?} {name}: {found:.3?}, expected {expected:.3?}");
    }
}

/// F-16: however they start, 3 equal hogs on 2 CPUs get two thirds each, 5 on 4 four fifths.
#[test]
fn f_16_equal_hogs_get_equal_shares() {
    for policy in POLICIES {
        for (hogs, cpus) in [(3, 2), (5, 4), (7, 3), (4, 4), (9, 4)] {
            for crowd_on_one in [false, true] {
                let mut machine = Machine::new(cpus, policy);
                for hog in 0..hogs {
                    machine.spawn(Plan::hog(64).on(if crowd_on_one { 0 } else { hog % cpus }));
                }
                let expected = vec![cpus as f64 / hogs as f64; hogs];
                let name = format!("{hogs} on {cpus}");
                assert_shares(policy, &name, &shares(&mut machine, 20 * SECOND), &expected);
            }
        }
    }
}

/// F-16: shares do not depend on when whom a balance step happens to find waiting. When moves lost what a slice cannot hold, threads that were
/// moved more often than others fell behind, up to 3 % here and 5 % in the kernel, another one in every image.
#[test]
fn f_16_no_phase_has_a_loser() {
    for policy in POLICIES {
        for seed in 1..=40 {
            let mut random = Random::new(seed);
            let mut machine = Machine::new(4, policy);
            for hog in 0..5 {
                machine.spawn(Plan::hog(64).on(hog % 4));
                let pause = random.range(1, 3 * MS);
                machine.run_until(machine.now + pause);
            }
            let found = shares(&mut machine, 8 * SECOND);
            let worst = found.iter().map(|share| (share - 0.8).abs() / 0.8).fold(0.0, f64::max);
            assert!(worst <= 0.01, "{policy:?}, seed {seed}: {found:.4?}");
            // F-02: what moves do to positions does not show in what is counted.
            for (number, hog) in machine.threads.iter().enumerate() {
                assert_eq!(machine.snapshot(number).virtual_runtime_ns, hog.service_ns, "{policy:?}");
            }
        }
    }
}

/// F-16: weights 2:1:1 on 2 CPUs: 100 %, 50 %, 50 % (the heavy one needs a CPU of its own); 3:2:1 on 2 is 100, 67, 33.
#[test]
fn f_16_weighted_hogs_get_their_shares() {
    for policy in POLICIES {
        let cases: [(&[u16], &[f64]); 3] = [
            (&[128, 64, 64], &[1.0, 0.5, 0.5]),
            (&[192, 128, 64], &[1.0, 2.0 / 3.0, 1.0 / 3.0]),
            (&[128, 128, 64, 64, 64], &[4.0 / 7.0, 4.0 / 7.0, 2.0 / 7.0, 2.0 / 7.0, 2.0 / 7.0]),
        ];
        for (weights, expected) in cases {
            for first in 0..weights.len() {
                let mut machine = Machine::new(2, policy);
                for (number, weight) in weights.iter().enumerate() {
                    machine.spawn(Plan::hog(*weight).on((first + number) % 2));
                }
                assert_shares(policy, &format!("{weights:?}"), &shares(&mut machine, 20 * SECOND), expected);
            }
        }
    }
}

/// F-16: balancing is bounded: at most one move a CPU and period, and a balanced system is left alone.
#[test]
fn f_16_balancing_is_bounded_and_comes_to_rest() {
    for policy in POLICIES {
        let mut machine = Machine::new(4, policy);
        for hog in 0..8 {
            machine.spawn(Plan::hog(64).on(hog % 4));
        }
        machine.run_until(10 * SECOND);
        assert_eq!((machine.steals, machine.balances), (0, 0), "{policy:?}: two each, nothing to do");
        let mut machine = Machine::new(4, policy);
        for _ in 0..9 {
            machine.spawn(Plan::hog(64).on(0));
        }
        machine.run_until(10 * SECOND);
        assert!(machine.balances <= 4 * 10 * SECOND / BALANCE_PERIOD_NS);
    }
}

/// F-08: of a free thread and one that may run on some CPUs only, the thief takes the more overdue one, whichever that is, and the one
/// that came first among equals.
#[test]
fn f_08_restricted_threads_are_stolen_in_their_turn() {
    for (free, restricted, first) in [(64, 128, 3), (128, 64, 2), (64, 64, 2)] {
        let mut victim = idle_cpu(0);
        let mut bound = thread(3, restricted);
        bound.set_allowed(CpuMask::first_n(2)).unwrap();
        for thread in [thread(1, 64), thread(2, free), bound] {
            let _ = victim.enqueue(thread, 0).unwrap();
            if victim.current().is_none() {
                let _ = victim.dispatch(0);
            }
        }
        let mut thief = idle_cpu(1);
        match thief.steal_from(&mut victim, 0) {
            MoveOutcome::Moved { thread, .. } => {
                assert_eq!(thread, ThreadId(first), "weights {free}, {restricted}")
            }
            MoveOutcome::Nothing => panic!("two threads waited"),
        }
        assert_eq!((thief.check(), victim.check()), (Ok(()), Ok(())));
    }
}
