//! What a neighbour is owed: interrupt time has an owner (S-16), deadlines are noted when they pass, and throttled time is no waiting (S-15).

mod common;

use std::collections::HashSet;

use common::{MS, Random, SECOND, cpu_id};
use sched::*;

fn core() -> Cpu<u32> {
    Cpu::new(cpu_id(0), PolicyKind::Wfq, 0)
}

/// A thread with a context of this CPU.
fn promised(cpu: &mut Cpu<u32>, id: u64, spec: Spec, now: u64) -> Runnable<u32> {
    let mut thread = Runnable::new(ThreadId(id), id as u32);
    let proposal = Proposal::new(ContextId { id, generation: 1 }, spec);
    let context = cpu.admit(proposal, now).unwrap_or_else(|refused| panic!("{refused}"));
    assert!(thread.bind(context).is_ok());
    thread
}

fn banded(budget_ns: u64, period_ns: u64, criticality: u8) -> Spec {
    Spec { criticality, ..Spec::new(budget_ns, period_ns) }
}

/// S-15: the timer is armed for a deadline of a thread that waits behind a higher band, and the miss is noted then, once.
#[test]
fn s_15_a_miss_is_noted_at_the_deadline() {
    let mut cpu = core();
    let high = promised(&mut cpu, 1, banded(4 * MS, 20 * MS, 1), 0);
    let low = promised(&mut cpu, 2, banded(4 * MS, 10 * MS, 0), 0);
    let _ = cpu.enqueue(high, 0).unwrap();
    let _ = cpu.enqueue(low, 0).unwrap();
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    // An interrupt that nobody pays for, and that nobody could have foreseen.
    cpu.interrupt_begin(3 * MS);
    cpu.interrupt_end(9 * MS + MS / 2);
    let decision = cpu.dispatch(9 * MS + MS / 2);
    assert_eq!((decision.run, decision.until_ns), (Some(ThreadId(1)), 10 * MS + 1));
    assert_eq!(cpu.next_missed(10 * MS), None, "not late yet");
    let missed = cpu.next_missed(10 * MS + 1).expect("late");
    assert_eq!((missed.thread, missed.deadline_ns, missed.context.late), (ThreadId(2), 10 * MS, 1));
    assert_eq!(cpu.next_missed(10 * MS + 1), None, "once");
    assert_eq!(cpu.timer(10 * MS + 1), Effect::Rearm { until_ns: 10 * MS + MS / 2 });
    // It runs at last: the same miss is not counted again.
    assert_eq!(cpu.dispatch(10 * MS + MS / 2).run, Some(ThreadId(2)));
    let decision = cpu.dispatch(11 * MS);
    assert!(!decision.noted.has(Noted::LATE));
    assert_eq!(cpu.current_context().map(|context| context.info(11 * MS).late), Some(1));
    assert_eq!(cpu.check(), Ok(()));
}

/// S-15: a thread that runs past its own deadline is told of by the timer, and not when it leaves.
#[test]
fn s_15_a_miss_of_the_running_thread_is_noted_while_it_runs() {
    let mut cpu = core();
    let thread = promised(&mut cpu, 1, banded(4 * MS, 10 * MS, 0), 0);
    let _ = cpu.enqueue(thread, 0).unwrap();
    assert_eq!(cpu.dispatch(0).until_ns, 4 * MS);
    cpu.interrupt_begin(MS);
    cpu.interrupt_end(8 * MS);
    assert_eq!(cpu.dispatch(8 * MS).until_ns, 10 * MS + 1);
    let missed = cpu.next_missed(10 * MS + 1).expect("late");
    assert_eq!((missed.thread, missed.deadline_ns), (ThreadId(1), 10 * MS));
    assert_eq!(cpu.next_missed(10 * MS + 1), None);
    assert!(!cpu.dispatch(11 * MS).noted.has(Noted::LATE), "told already");
}

/// S-15: random contexts in random bands, and interrupts that make them late: whoever waits past a deadline was told of by then, each deadline
/// once, and the timer is never armed for later than the next one.
#[test]
fn s_15_every_miss_is_noted_in_time() {
    let mut misses = 0;
    for seed in 1..=300 {
        let mut random = Random::new(seed);
        let mut cpu = core();
        let mut now = 0;
        for id in 0..random.range(2, 40) {
            let period_ns = random.range(5, 20) * MS;
            let spec = banded(period_ns / random.range(60, 90), period_ns, random.range(0, 7) as u8);
            // Some would make others late by themselves, and are refused.
            let proposal = Proposal::new(ContextId { id, generation: 1 }, spec);
            let Ok(context) = cpu.admit(proposal, now) else { continue };
            let mut thread = Runnable::new(ThreadId(id), id as u32);
            assert!(thread.bind(context).is_ok());
            let _ = cpu.enqueue(thread, now).unwrap();
        }
        let mut told = HashSet::new();
        let _ = cpu.dispatch(now);
        for _ in 0..200 {
            if random.range(0, 3) == 0 {
                cpu.interrupt_begin(now);
                now += random.range(0, 15 * MS);
                cpu.interrupt_end(now);
            }
            now = (now + random.range(1, MS)).min(cpu.until_ns().max(now));
            while let Some(missed) = cpu.next_missed(now) {
                assert!(missed.deadline_ns < now);
                assert!(told.insert((missed.thread, missed.deadline_ns)), "seed {seed}: told twice");
                misses += 1;
            }
            cpu.for_each_queued_context(|ticket, context| {
                let due_ns = context.ledger().ready_at_ns() + context.spec().relative_deadline_ns;
                let is_late = ticket.queue == QueueKind::Guaranteed && due_ns < now;
                assert!(!is_late || context.info(now).late > 0, "seed {seed}: {ticket:?} is late");
            });
            if cpu.timer(now) == Effect::Dispatch {
                let _ = cpu.dispatch(now);
            }
            let until_ns = cpu.until_ns();
            cpu.for_each_queued_context(|ticket, context| {
                let due_ns = context.ledger().ready_at_ns() + context.spec().relative_deadline_ns;
                let is_ahead = ticket.queue == QueueKind::Guaranteed && due_ns >= now;
                assert!(!is_ahead || until_ns <= due_ns + 1, "seed {seed}: {until_ns}, due at {due_ns}");
            });
            assert_eq!(cpu.check(), Ok(()));
        }
    }
    assert!(misses > 1_000, "{misses}");
}

/// S-15: the wait for a refill is no wait for a CPU, while it goes on and afterwards.
#[test]
fn s_15_throttled_time_is_counted_apart() {
    let mut cpu = core();
    let thread = promised(&mut cpu, 1, Spec::new(2 * MS, 10 * MS), 0);
    let _ = cpu.enqueue(thread, 0).unwrap();
    let mut now = 0;
    for _ in 0..20 {
        now = cpu.dispatch(now).until_ns;
    }
    let _ = cpu.dispatch(now);
    assert_eq!(now, 100 * MS);
    let snapshot = cpu.current_snapshot().unwrap();
    assert_eq!((snapshot.runtime_ns, snapshot.throttled_ns), (20 * MS, 80 * MS));
    assert_eq!(snapshot.runnable_accumulated_ns, 0);
    // In the middle of one, and if the timer comes a millisecond late.
    let _ = cpu.dispatch(102 * MS);
    let _ = cpu.timer(105 * MS);
    let mut seen = None;
    cpu.for_each_queued(|ticket, snapshot, _| seen = Some((ticket.queue, snapshot)));
    let (queue, snapshot) = seen.unwrap();
    assert_eq!(
        (queue, snapshot.is_throttled, snapshot.throttled_ns, snapshot.runnable_accumulated_ns),
        (QueueKind::Throttled, true, 83 * MS, 0)
    );
    // The refill has come, and nobody has looked: from there on it waits for the CPU.
    let _ = cpu.refreshed_summary(110 * MS + MS / 2);
    cpu.for_each_queued(|_, snapshot, _| seen = Some((queue, snapshot)));
    let (_, snapshot) = seen.unwrap();
    assert_eq!(
        (snapshot.is_throttled, snapshot.throttled_ns, snapshot.runnable_accumulated_ns),
        (false, 88 * MS, MS / 2)
    );
    let _ = cpu.dispatch(111 * MS);
    let snapshot = cpu.current_snapshot().unwrap();
    assert_eq!(
        (snapshot.is_throttled, snapshot.throttled_ns, snapshot.runnable_accumulated_ns),
        (false, 88 * MS, MS)
    );
}

/// S-16: whoever is served by interrupts pays: with a budget out of it, otherwise by its place among the others.
#[test]
fn s_16_the_served_thread_pays() {
    let mut cpu = core();
    let thread = promised(&mut cpu, 1, Spec::new(2 * MS, 10 * MS), 0);
    let _ = cpu.enqueue(thread, 0).unwrap();
    let _ = cpu.dispatch(0);
    cpu.pay(MS + MS / 2, MS / 4);
    let context = cpu.current_context().unwrap();
    assert_eq!((context.ledger().available_ns(MS / 4), context.info(0).consumed_ns), (MS / 4, 7 * MS / 4));
    assert_eq!(cpu.current_snapshot().map(|s| (s.runtime_ns, s.served_ns)), Some((MS / 4, 3 * MS / 2)));
    // More than there is: the rest is taken from what comes.
    cpu.pay(MS, MS / 4);
    assert_eq!(cpu.current_context().unwrap().ledger().available_ns(10 * MS), 5 * MS / 4);
    assert!(cpu.dispatch(MS / 4).noted.has(Noted::DEPLETED));
    assert_eq!(cpu.current(), None, "throttled");

    // Two hogs of equal weight: of one of them interrupts take as much as it runs, and it pays with a third of what it would have had.
    let mut cpu = core();
    for id in 0..2 {
        let _ = cpu.enqueue(Runnable::new(ThreadId(id), id as u32), 0).unwrap();
    }
    let mut now = 0;
    while now < 3 * SECOND {
        now = cpu.dispatch(now).until_ns;
        if cpu.current() == Some(ThreadId(0)) {
            let ran_ns = 1_000_000;
            cpu.interrupt_begin(now);
            now += ran_ns;
            cpu.note_service(ran_ns, ran_ns, now);
            cpu.interrupt_end(now);
            cpu.pay(ran_ns, now);
        }
        assert_eq!(cpu.check(), Ok(()));
    }
    let mut shares = Vec::new();
    cpu.for_each_queued(|_, snapshot, _| shares.push(snapshot));
    shares.extend(cpu.current_snapshot());
    let all = |snapshot: &Snapshot| snapshot.runtime_ns + snapshot.served_ns;
    assert!(all(&shares[0]).abs_diff(all(&shares[1])) <= 2 * SLICE_NS, "{shares:?}");
    assert_eq!(cpu.time().interrupt_owned_ns, cpu.time().interrupt_ns);
}

/// S-16: an interrupt that comes for a refill is known before it begins, and names whom it has served: throttled or demoted, whether it runs at once or not.
#[test]
fn s_16_a_refill_names_whom_its_interrupt_serves() {
    let mut cpu = core();
    let neighbour = promised(&mut cpu, 1, Spec::new(50 * MS, 100 * MS), 0);
    let soon = promised(&mut cpu, 2, Spec::new(MS, 10 * MS), 0);
    for thread in [neighbour, soon] {
        let _ = cpu.enqueue(thread, 0).unwrap();
    }
    assert!(!cpu.is_refill_due(10 * MS), "nobody is dry yet");
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(2)));
    assert_eq!(cpu.dispatch(MS).run, Some(ThreadId(1)), "the first is throttled");
    assert_eq!((cpu.is_refill_due(10 * MS - 1), cpu.is_refill_due(10 * MS)), (false, true));
    assert_eq!(cpu.timer(10 * MS), Effect::Dispatch);
    assert_eq!(cpu.take_refilled(), Some(ThreadId(2)));
    assert_eq!(cpu.take_refilled(), None, "told once");
    assert!(!cpu.is_refill_due(10 * MS), "it has come");
    assert_eq!(cpu.dispatch(10 * MS).run, Some(ThreadId(2)));

    // One that is demoted waits among the others, or runs: then the refill changes nothing that anybody else would have to be interrupted for.
    for is_running in [false, true] {
        let mut cpu = core();
        let spec = Spec { overrun: Overrun::Demote, ..Spec::new(MS, 100 * MS) };
        let demoted = promised(&mut cpu, 1, spec, 0);
        for thread in [demoted, Runnable::new(ThreadId(2), 2)] {
            let _ = cpu.enqueue(thread, 0).unwrap();
        }
        let wanted = Some(ThreadId(if is_running { 1 } else { 2 }));
        let mut now = MS;
        assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
        let mut run = cpu.dispatch(now).run;
        while run != wanted {
            now += SLICE_NS;
            run = cpu.dispatch(now).run;
        }
        assert!(now < 90 * MS && cpu.is_refill_due(100 * MS));
        let _ = cpu.timer(100 * MS);
        assert_eq!(cpu.take_refilled(), (!is_running).then_some(ThreadId(1)));
        assert_eq!(cpu.check(), Ok(()));
    }
}

/// S-16: what interrupts did for a context while its thread did not run it pays before it is queued: without budget nobody is interrupted for it.
#[test]
fn s_16_a_context_pays_before_it_preempts() {
    let mut cpu = core();
    let neighbour = promised(&mut cpu, 1, Spec::new(50 * MS, 100 * MS), 0);
    let _ = cpu.enqueue(neighbour, 0).unwrap();
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    let mut urgent = promised(&mut cpu, 2, banded(MS, 20 * MS, 7), 0);
    urgent.pay(MS / 4, MS);
    assert_eq!(cpu.enqueue(urgent, MS).unwrap(), Effect::Dispatch, "some is left");
    assert_eq!(cpu.dispatch(MS).run, Some(ThreadId(2)));
    assert_eq!(cpu.current_context().map(|context| context.ledger().available_ns(MS)), Some(3 * MS / 4));
    let mut urgent = cpu.block(MS).unwrap();
    assert_eq!(cpu.dispatch(MS).run, Some(ThreadId(1)));
    urgent.pay(MS, MS);
    let served_ns = urgent.snapshot().served_ns;
    assert_eq!(
        (served_ns, urgent.context().map(|it| it.info(MS).consumed_ns)),
        (5 * MS / 4, Some(5 * MS / 4))
    );
    let effect = cpu.enqueue(urgent.wake().unwrap(), MS).unwrap();
    assert!(matches!(effect, Effect::Rearm { .. }), "throttled: {effect:?}");
    assert_eq!(cpu.dispatch(2 * MS).run, Some(ThreadId(1)));
    assert_eq!(cpu.check(), Ok(()));
}

/// S-16: a storm of sleeps by a thread of the highest band, whose interrupts cost as much as it does itself, beside a neighbour with half of the
/// CPU. It runs out of budget, and the neighbour has all that it was promised.
#[test]
fn s_16_a_storm_of_sleeps_costs_its_maker() {
    const TURN_NS: u64 = 20_000;
    let mut cpu = core();
    let storm = promised(&mut cpu, 1, banded(44 * MS, 100 * MS, 7), 0);
    let neighbour = promised(&mut cpu, 2, Spec::new(50 * MS, 100 * MS), 0);
    let _ = cpu.enqueue(storm, 0).unwrap();
    let _ = cpu.enqueue(neighbour, 0).unwrap();
    let (mut now, mut owed_ns, mut served_ns) = (0, 0, 0);
    let mut asleep = None;
    let mut decision = cpu.dispatch(now);
    let mut ran = [0; 3];
    while now < 10 * SECOND {
        let until_ns = decision.until_ns.max(now + 1);
        let turn_ns = TURN_NS.min(until_ns - now);
        ran[cpu.current().map_or(0, |thread| thread.0 as usize)] += turn_ns;
        now += turn_ns;
        if cpu.current() == Some(ThreadId(1)) {
            // It has set its timers, and waits.
            cpu.pay(std::mem::take(&mut owed_ns), now);
            asleep = cpu.block(now);
        } else if let Some(blocked) = asleep.take() {
            cpu.interrupt_begin(now);
            now += TURN_NS;
            (owed_ns, served_ns) = (owed_ns + TURN_NS, served_ns + TURN_NS);
            cpu.note_service(TURN_NS, 0, now);
            let _ = cpu.enqueue(blocked.wake().unwrap(), now).unwrap();
            cpu.interrupt_end(now);
        }
        decision = cpu.dispatch(now);
        assert_eq!(cpu.check(), Ok(()));
    }
    let [_, storm_ns, neighbour_ns] = ran;
    assert!(neighbour_ns >= 4_950 * MS, "the neighbour had {neighbour_ns} ns");
    assert!(
        storm_ns + served_ns <= 4_450 * MS,
        "the storm had {storm_ns} ns, and {served_ns} ns of interrupts"
    );
    assert!(served_ns > 1_000 * MS, "{served_ns} ns");
}

/// S-16: whatever comes when, others have of promised time no more than the burst and its rate; of other time, as much as they like.
#[test]
fn s_16_promised_time_is_lost_at_a_rate() {
    for seed in 1..=100 {
        let mut random = Random::new(seed);
        let mut cpu = core();
        let _ = cpu.enqueue(Runnable::new(ThreadId(9), 9), 0).unwrap();
        let _ = cpu.dispatch(0);
        assert_eq!(cpu.service_left_ns(0), u64::MAX);
        let thread = promised(&mut cpu, 1, Spec::new(9 * MS, 10 * MS), 0);
        let _ = cpu.enqueue(thread, 0).unwrap();
        let (mut now, mut taken_ns) = (0, 0);
        for _ in 0..500 {
            now += random.range(0, 2 * MS);
            let _ = cpu.dispatch(now);
            if !cpu.is_promised() {
                assert_eq!(cpu.service_left_ns(now), u64::MAX);
                continue;
            }
            let left_ns = cpu.service_left_ns(now);
            let wanted_ns = random.range(0, 40_000);
            if left_ns > 0 {
                cpu.note_service(wanted_ns, wanted_ns, now);
                taken_ns += wanted_ns;
            } else {
                let again_ns = cpu.service_again_ns(now);
                assert!(again_ns > now);
                now = again_ns;
                assert!(cpu.service_left_ns(now) >= SERVICE_BURST_NS / 2);
            }
            // The last one may have taken longer than was left.
            let most_ns = SERVICE_BURST_NS + 40_000 + now / SERVICE_DIVISOR;
            assert!(taken_ns <= most_ns, "seed {seed}: {taken_ns} ns of {most_ns}");
        }
        assert!(taken_ns > SERVICE_BURST_NS);
    }
}
