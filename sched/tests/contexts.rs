//! Contexts: what is accepted (S-01), what is charged and given back (S-03), what is guaranteed (S-11), and where the time
//! went (S-12).

mod common;

use common::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sched::*;

const POLICIES: [PolicyKind; 2] = [PolicyKind::Wfq, PolicyKind::Eevdf];

/// A seed that does not change from run to run; nothing to remember in files.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    }
}

/// S-01 restated: the one list of what a spec must be.
fn acceptable(spec: &Spec) -> bool {
    let budget = (20_000..=spec.period_ns).contains(&spec.budget_ns);
    let period = spec.period_ns <= 60_000_000_000;
    let deadline = (spec.budget_ns..=spec.period_ns).contains(&spec.relative_deadline_ns);
    let mask = (0..256).any(|cpu| spec.cpu_mask.contains(cpu_id(cpu)));
    budget && period && deadline && mask && spec.criticality < 8 && matches!(spec.max_refills, 2..=8)
}

/// Numbers at and around every limit, and any number.
fn nanoseconds() -> impl Strategy<Value = u64> {
    let limits =
        [0, 1, 19_999, 20_000, 20_001, MS, 10 * MS, 59_999_999_999, 60_000_000_000, 60_000_000_001, u64::MAX];
    prop_oneof![proptest::sample::select(limits.to_vec()), any::<u64>(), 20_000..200_000_000u64]
}

proptest! {
    #![proptest_config(config())]

    /// S-01: any bytes: canonical ones are read bit for bit and written back the same, all others refused by name.
    #[test]
    fn s_01_any_bytes_as_a_mask(bytes in vec(prop_oneof![Just(0u8), any::<u8>()], 0..40)) {
        match CpuMask::from_bytes(&bytes) {
            Ok(mask) => {
                prop_assert!(bytes.len() <= 32 && bytes.last() != Some(&0));
                for cpu in 0..256 {
                    let bit = bytes.get(cpu / 8).is_some_and(|byte| byte >> (cpu % 8) & 1 == 1);
                    prop_assert_eq!(mask.contains(cpu_id(cpu)), bit);
                }
                let mut out = [0xff; 32];
                let len = mask.to_bytes(&mut out);
                prop_assert_eq!(&out[..len], &bytes[..]);
                prop_assert_eq!(mask.is_empty(), bytes.is_empty());
            }
            Err(MaskError::TooLong(len)) => prop_assert!(len == bytes.len() && len > 32),
            Err(MaskError::TrailingZero(len)) => prop_assert!(len == bytes.len() && bytes.ends_with(&[0])),
        }
    }

    /// S-01: any spec is accepted or refused as the list above says, at `validate` and at `admit`; a refusal changes nothing.
    #[test]
    fn s_01_any_spec(
        budget_ns in nanoseconds(),
        period_ns in nanoseconds(),
        relative_deadline_ns in nanoseconds(),
        equal_deadline in any::<bool>(),
        mask in any::<u8>(),
        criticality in 0u8..12,
        max_refills in 0u8..12,
    ) {
        let mut spec = Spec::new(budget_ns, period_ns);
        if !equal_deadline {
            spec.relative_deadline_ns = relative_deadline_ns;
        }
        spec.cpu_mask = CpuMask::from_bytes(&[mask]).unwrap_or(CpuMask::EMPTY);
        (spec.criticality, spec.max_refills) = (criticality, max_refills);
        prop_assert_eq!(spec.validate().is_ok(), acceptable(&spec));
        let mut cpu: Cpu<u32> = Cpu::new(cpu_id(0), PolicyKind::Wfq, 0);
        let fits = acceptable(&spec)
            && mask & 1 == 1
            && u128::from(spec.budget_ns) * 1_000_000 <= u128::from(spec.relative_deadline_ns) * 949_999;
        match cpu.admit(Proposal::new(ContextId { id: 1, generation: 1 }, spec), 0) {
            Ok(context) => {
                prop_assert!(u128::from(spec.budget_ns) * 100 <= u128::from(spec.relative_deadline_ns) * 95);
                prop_assert!(cpu.retire(context, 0).is_ok());
            }
            Err(error) => {
                prop_assert!(!fits);
                prop_assert!(!error.to_string().is_empty());
            }
        }
        prop_assert_eq!(cpu.reserved(), Utilisation::default());
    }
}

fn identity(id: u64) -> ContextId {
    ContextId { id, generation: 1 }
}

/// S-03: throttle. Alone on a CPU, a context of 10 ms in 100 ms runs exactly from 0 to 10, 100 to 110, and so on: depletion is
/// enforced to the nanosecond, because the decision says until when.
#[test]
fn s_03_depletion_stops_at_the_budget_and_refills() {
    for policy in POLICIES {
        let mut machine = Machine::new(1, policy);
        let bound = machine.spawn(Plan::hog(64).with(Spec::new(10 * MS, 100 * MS)));
        machine.run_observed(5 * SECOND, |machine| {
            let (periods, into) = (machine.now / (100 * MS), machine.now % (100 * MS));
            assert_eq!(machine.threads[bound].service_ns, periods * 10 * MS + into.min(10 * MS));
        });
        assert_eq!(machine.snapshot(bound).throttles, 50);
        assert_eq!(
            machine.cpus[0].time(),
            CpuTime {
                thread_ns: SECOND / 2,
                idle_ns: 9 * SECOND / 2,
                interrupt_ns: 0,
                interrupt_owned_ns: 0
            }
        );
    }
}

/// S-03: fault. The thread is evicted when its budget is spent, and when it is woken it waits for its refill.
#[test]
fn s_03_fault_evicts_at_the_budget() {
    let mut machine = Machine::new(1, PolicyKind::Wfq);
    machine.spawn(Plan::hog(64));
    let mut spec = Spec::new(10 * MS, 100 * MS);
    spec.overrun = Overrun::Fault;
    let bound = machine.spawn(Plan::hog(64).with(spec));
    machine.run_until(50 * MS);
    assert_eq!(machine.threads[bound].evictions, [EvictionReason::TimeoutFault]);
    assert_eq!(machine.threads[bound].service_ns, 10 * MS);
    let info = machine.threads[bound].blocked.as_ref().unwrap().context().unwrap().info(machine.now);
    assert_eq!((info.consumed_ns, info.depletions, info.ready_at_ns), (10 * MS, 1, 100 * MS));
    machine.wake(bound);
    machine.run_until(99 * MS);
    assert_eq!(machine.threads[bound].service_ns, 10 * MS, "no budget, no time");
    machine.run_until(150 * MS);
    assert_eq!(machine.threads[bound].service_ns, 20 * MS);
}

/// S-03: demote. Beside an equal hog: 10 ms of each 100 as promised, and half of the other 90; at its refill it is promoted, at
/// that very instant, whether it runs or waits.
#[test]
fn s_03_demoted_threads_are_promoted_at_their_refill() {
    for policy in POLICIES {
        let mut machine = Machine::new(1, policy);
        let hog = machine.spawn(Plan::hog(64));
        let mut spec = Spec::new(10 * MS, 100 * MS);
        spec.overrun = Overrun::Demote;
        let bound = machine.spawn(Plan::hog(64).with(spec));
        machine.run_observed(10 * SECOND, |machine| {
            let into = machine.now % (100 * MS);
            if into < 10 * MS {
                assert_eq!(machine.cpus[0].current(), Some(ThreadId(bound as u64)), "at {}", machine.now);
                assert!(machine.cpus[0].current_is_guaranteed());
            } else {
                assert!(!machine.cpus[0].current_is_guaranteed());
            }
        });
        // Each change of tier may cost or gain a slice of lag at the clamp: 3 ms of 100 ms at worst; the average is far better.
        let expected = 5_500 * MS;
        let got = machine.threads[bound].service_ns;
        assert!(got.abs_diff(expected) <= 100 * 3 * MS, "{policy:?}: {got}");
        assert_eq!(got + machine.threads[hog].service_ns, 10 * SECOND);
    }
}

/// The most service in any window that starts at one of the first `windows` events, against `k + 1` budgets in `k` periods.
fn assert_no_amplification(runs: &[(u64, u64)], windows: usize, spec: &Spec) {
    for (first, &(start, before)) in runs.iter().enumerate().take(windows) {
        for &(end, after) in &runs[first..] {
            let periods = (end - start).div_ceil(spec.period_ns);
            let used = after - before;
            assert!(used <= (periods + 1) * spec.budget_ns, "{used} ns in {periods} periods of {spec:?}");
        }
    }
}

/// S-03: no budget amplification through the CPU either: random contexts, sleepers and hogs. In one band EDF delays nobody by a
/// period, so the sporadic server's bound holds in any window: `k + 1` budgets in any `k` periods. A lower band may be held up for
/// longer and then catches up, so across bands the bound holds for windows from the start only: what comes late is not more.
#[test]
fn s_03_no_amplification_on_a_cpu() {
    for seed in 1..=120 {
        let bands = seed % 2;
        let mut random = Random::new(seed);
        let mut machine = Machine::new(1, POLICIES[seed as usize % 2]);
        let mut bound = Vec::new();
        for _ in 0..3 {
            let period_ns = random.range(2 * MS, 50 * MS);
            let mut spec = Spec::new(random.range(MIN_BUDGET_NS, period_ns * 3 / 10), period_ns);
            spec.max_refills = random.range(2, 8) as u8;
            spec.criticality = random.range(0, 2 * bands) as u8;
            let others: Vec<Spec> = bound.iter().map(|(_, spec)| *spec).collect();
            let spec = made_to_fit(spec, &others);
            let life =
                Life::Cycle { run_ns: random.range(10_000, 9 * MS), sleep_ns: random.range(1, 70 * MS) };
            bound.push((machine.spawn(Plan::new(64, life).with(spec)), spec));
        }
        machine.spawn(Plan::hog(64));
        let mut runs = vec![Vec::new(); bound.len()];
        machine.run_observed(SECOND, |machine| {
            for (at, (thread, _)) in bound.iter().enumerate() {
                runs[at].push((machine.now, machine.threads[*thread].service_ns));
            }
        });
        for (runs, (_, spec)) in runs.iter().zip(&bound) {
            let windows = if bands == 0 { runs.len() } else { 1 };
            assert_no_amplification(runs, windows, spec);
        }
    }
}

/// S-03: a context that lay unused is one budget, not many: bound to a running thread a second after its admission, it gives
/// that thread at most two budgets in the first period, as it would have when bound before the start.
#[test]
fn s_03_an_unused_context_saves_nothing_up() {
    for rebind in [false, true] {
        let spec = Spec::new(10 * MS, 100 * MS);
        let mut machine = Machine::new(1, PolicyKind::Wfq);
        let thread = machine.spawn(Plan::hog(64));
        let mut context = machine.cpus[0].admit(Proposal::new(identity(1), spec), 0).unwrap();
        if rebind {
            // It was in use before, and then lay about.
            let effect = machine.cpus[0].bind_current(context, 0).unwrap();
            machine.apply(0, effect);
            machine.run_until(4 * MS);
            let (taken, effect) = machine.cpus[0].unbind_current(machine.now).unwrap();
            machine.apply(0, effect);
            context = taken;
        }
        machine.run_until(SECOND);
        let before = machine.threads[thread].service_ns;
        let effect = machine.cpus[0].bind_current(context, SECOND).unwrap();
        machine.apply(0, effect);
        machine.run_until(SECOND + 100 * MS);
        let used = machine.threads[thread].service_ns - before;
        assert!(used <= 20 * MS, "{used} ns of a budget of 10 ms in one period (used before: {rebind})");
    }
}

/// S-03, S-11: what others do on the CPU does not eat a budget, however few refills the context keeps: beside a thread that wakes
/// every millisecond, 10 ms in 100 ms is 10 ms in 100 ms. Tolerance: a rest below `MIN_BUDGET_NS` waits for the next refill.
#[test]
fn s_03_other_threads_events_cost_no_budget() {
    for max_refills in 2..=MAX_REFILLS as u8 {
        let mut machine = Machine::new(1, PolicyKind::Wfq);
        machine.spawn(Plan::new(64, Life::Cycle { run_ns: 1, sleep_ns: MS + 7 }));
        let mut spec = Spec::new(10 * MS, 100 * MS);
        spec.max_refills = max_refills;
        let bound = machine.spawn(Plan::hog(64).with(spec));
        machine.run_until(10 * SECOND);
        let got = machine.threads[bound].service_ns;
        let loss = 100 * MIN_BUDGET_NS;
        assert!((SECOND - loss..=SECOND).contains(&got), "{max_refills} refills: {got} ns of 1 s");
    }
}

/// S-11, S-15: a yield is a new wish. Its deadline counts from then on, whoever is as urgent goes first, and best effort does not.
#[test]
fn s_15_a_yield_asks_anew() {
    for policy in POLICIES {
        let mut cpu = Cpu::<u32>::new(cpu_id(0), policy, 0);
        let bound = |id: u64, spec: Spec, cpu: &mut Cpu<u32>| {
            let mut thread = Runnable::new(ThreadId(id), id as u32);
            let context = cpu.admit(Proposal::new(ContextId { id, generation: 1 }, spec), 0).unwrap();
            assert!(thread.bind(context).is_ok());
            let _ = cpu.enqueue(thread, 0).unwrap();
        };
        bound(1, Spec::new(2 * MS, 10 * MS), &mut cpu);
        bound(2, Spec::new(2 * MS, 12 * MS), &mut cpu);
        let _ = cpu.enqueue(Runnable::new(ThreadId(3), 3), 0).unwrap();
        assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
        // Its deadline would be 11 ms from now on, the other one's is 12: it goes on, with its deadline of 10.
        let stays = cpu.yield_now(MS);
        assert_eq!((stays.run, stays.switched, stays.until_ns), (Some(ThreadId(1)), false, 2 * MS));
        let ready_ns = |cpu: &Cpu<u32>| cpu.current_context().map(|it| it.ledger().ready_at_ns());
        assert_eq!(ready_ns(&cpu), Some(0));
        assert_eq!(cpu.yield_now(2 * MS - MS / 4).run, Some(ThreadId(1)));
        assert_eq!(cpu.yield_now(2 * MS).run, Some(ThreadId(2)), "dry: it waits for its refill");
        assert_eq!(cpu.dispatch(4 * MS).run, Some(ThreadId(3)));
        assert_eq!(cpu.check(), Ok(()));
    }
    // Two that are alike take turns.
    let mut cpu = Cpu::<u32>::new(cpu_id(0), PolicyKind::Wfq, 0);
    for id in 1..=2 {
        let mut thread = Runnable::new(ThreadId(id), id as u32);
        let spec = Spec::new(4 * MS, 10 * MS);
        let context = cpu.admit(Proposal::new(ContextId { id, generation: 1 }, spec), 0).unwrap();
        assert!(thread.bind(context).is_ok());
        let _ = cpu.enqueue(thread, 0).unwrap();
    }
    let mut order = vec![cpu.dispatch(0).run.unwrap().0];
    for turn in 1..6 {
        order.push(cpu.yield_now(turn * MS / 2).run.unwrap().0);
        let mut left_ns = None;
        cpu.for_each_queued_context(|_, context| left_ns = Some(context.ledger().ready_at_ns()));
        assert_eq!(left_ns, Some(turn * MS / 2), "what it has left counts from its yield on");
        assert_eq!(cpu.check(), Ok(()));
    }
    assert_eq!(order, [1, 2, 1, 2, 1, 2]);
}

/// S-15: who lets others go first and wants its budget after all is not late by that, and makes nobody late. If the second one had its whole budget
/// first, the first one would come back at 21 ms with a deadline that has passed, and the third one would be late.
#[test]
fn s_15_a_yield_makes_nobody_late() {
    let mut cpu = Cpu::<u32>::new(cpu_id(0), PolicyKind::Wfq, 0);
    let spec =
        |budget, deadline| Spec { relative_deadline_ns: deadline * MS, ..Spec::new(budget * MS, 100 * MS) };
    let bound = |id: u64, spec: Spec, cpu: &mut Cpu<u32>, now: u64| {
        let mut thread = Runnable::new(ThreadId(id), id as u32);
        let context = cpu.admit(Proposal::new(ContextId { id, generation: 1 }, spec), now).unwrap();
        assert!(thread.bind(context).is_ok());
        let _ = cpu.enqueue(thread, now).unwrap();
    };
    bound(1, spec(10, 20), &mut cpu, 0);
    bound(2, spec(20, 60), &mut cpu, 0);
    let _ = cpu.dispatch(0);
    let mut now = cpu.yield_now(MS).until_ns;
    let mut comes = true;
    while now < 90 * MS {
        assert_eq!(cpu.next_missed(now), None, "at {now}");
        if comes && now >= 21 * MS {
            comes = false;
            bound(3, spec(5, 12), &mut cpu, now);
        }
        now = cpu.dispatch(now).until_ns.min(if comes { 21 * MS } else { FOREVER });
    }
    assert!(!comes);
    assert_eq!(cpu.check(), Ok(()));
}

/// S-11: a context gets its budget beside any crowd: 10 ms in 100 ms beside 40 hogs of `MAX_WEIGHT`, 60 in 100 beside four, within
/// 1 % (the requirement's) over 10 s, on 1, 2 and 4 CPUs.
#[test]
fn s_11_a_context_is_a_guarantee() {
    for policy in POLICIES {
        for cpus in [1, 2, 4] {
            for (budget_ms, hogs) in [(10, 40), (60, 4)] {
                let mut machine = Machine::new(cpus, policy);
                for hog in 0..hogs {
                    machine.spawn(Plan::hog(MAX_WEIGHT).on(hog % cpus));
                }
                let home = cpus - 1;
                let spec = Spec::new(budget_ms * MS, 100 * MS);
                let bound = machine.spawn(Plan::hog(1).on(home).with(spec));
                machine.run_until(10 * SECOND);
                let (got, expected) = (machine.threads[bound].service_ns, budget_ms * SECOND / 10);
                assert!(
                    got.abs_diff(expected) <= expected / 100,
                    "{policy:?} {cpus} CPUs: {got} of {expected}"
                );
            }
        }
    }
}

/// S-11: EDF within a band. Random sets in one band, as much as admission takes: every one has had `k` budgets at the end of its
/// `k`-th period, which on one CPU only EDF achieves for every such set. Tolerance: rests below `MIN_BUDGET_NS` are
/// postponed, once a period at most.
#[test]
fn s_11_edf_meets_every_deadline_within_a_band() {
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let mut machine = Machine::new(1, POLICIES[seed as usize % 2]);
        machine.spawn(Plan::hog(1024));
        let mut free = 949;
        let mut bound = Vec::new();
        while free >= 30 {
            let (permille, period_ns) = (random.range(30, free.min(500)), random.range(2, 60) * MS);
            free -= permille;
            let spec = Spec::new(period_ns * permille / 1_000, period_ns);
            bound.push((machine.spawn(Plan::hog(64).with(spec)), spec));
        }
        machine.run_observed(2 * SECOND, |machine| {
            for (thread, spec) in &bound {
                let periods = machine.now / spec.period_ns;
                let got = machine.threads[*thread].service_ns;
                assert!(
                    got >= periods * (spec.budget_ns - MIN_BUDGET_NS),
                    "seed {seed} at {}: {spec:?}",
                    machine.now
                );
                assert!(got <= (periods + 1) * spec.budget_ns);
            }
        });
    }
}

/// S-11: EDF with sleepers. Budgets are split into pieces that are usable, and due, at different times; the demand of all pieces in
/// any window is within the admitted 94 %, so EDF never lets one wait beyond the deadline that it was queued under.
#[test]
fn s_11_edf_meets_the_deadlines_of_sleepers() {
    for seed in 1..=400 {
        let mut random = Random::new(seed);
        let mut machine = Machine::new(1, POLICIES[seed as usize % 2]);
        machine.spawn(Plan::hog(1024));
        let mut free = 949;
        while free >= 60 {
            let (permille, period_ns) = (random.range(60, free.min(400)), random.range(2, 60) * MS);
            free -= permille;
            let budget_ns = period_ns * permille / 1_000;
            let life = Life::Cycle {
                run_ns: random.range(budget_ns / 5, 2 * budget_ns),
                sleep_ns: random.range(1, period_ns),
            };
            machine.spawn(Plan::new(64, life).with(Spec::new(budget_ns, period_ns)));
        }
        machine.run_observed(SECOND, |machine| {
            machine.cpus[0].for_each_queued(|ticket, _, _| {
                if ticket.queue == QueueKind::Guaranteed {
                    let due = ticket.key.tag as u64 % (1 << 60); // above that is the band
                    assert!(machine.now <= due, "seed {seed} at {}: {ticket:?}", machine.now);
                }
            });
        });
    }
}

/// S-11: higher bands first, whatever the deadlines; within a band the earlier deadline, newcomers included.
#[test]
fn s_11_bands_before_deadlines() {
    let mut cpu: Cpu<u32> = Cpu::new(cpu_id(0), PolicyKind::Wfq, 0);
    let mut bound = |id: u64, criticality: u8, deadline_ms: u64, now: u64| {
        let mut spec = Spec::new(MS, deadline_ms * MS);
        spec.criticality = criticality;
        let mut thread = Runnable::new(ThreadId(id), id as u32);
        let context = cpu.admit(Proposal::new(identity(id), spec), now).unwrap();
        assert!(matches!(thread.bind(context), Ok(None)));
        cpu.enqueue(thread, now).unwrap()
    };
    assert_eq!(bound(1, 0, 20, 0), Effect::Dispatch);
    assert_eq!(bound(2, 0, 10, 0), Effect::Dispatch);
    assert_eq!(bound(3, 7, 900, 0), Effect::Dispatch);
    let _ = bound(4, 7, 800, 0);
    let order: Vec<u64> = (0..4u64).map(|turn| cpu.dispatch(turn * MS).run.unwrap().0).collect();
    assert_eq!(order, [4, 3, 2, 1], "each ran 1 ms, its whole budget");
    assert_eq!(cpu.check(), Ok(()));
}

/// S-11: admission takes what fits and refuses what does not, and a refusal changes nothing; what is given back can be had again.
#[test]
fn s_11_admission_refuses_beyond_the_bound() {
    let mut cpu: Cpu<u32> = Cpu::new(cpu_id(0), PolicyKind::Wfq, 0);
    let mut held: Vec<_> = (0..9)
        .map(|id| cpu.admit(Proposal::new(identity(id), Spec::new(10 * MS, 100 * MS)), 0).unwrap())
        .collect();
    let before = cpu.reserved();
    for budget_ns in [6 * MS, 10 * MS, 100 * MS] {
        let refused = cpu
            .admit(Proposal::new(identity(99), Spec::new(budget_ns, 100 * MS)), 0)
            .map_err(|refused| refused.why);
        assert!(matches!(refused, Err(AdmissionError::Refused(_))), "{refused:?}");
        assert_eq!(cpu.reserved(), before);
        assert_eq!(cpu.check(), Ok(()));
    }
    assert!(cpu.retire(held.pop().unwrap(), 0).is_ok());
    assert!(cpu.admit(Proposal::new(identity(99), Spec::new(10 * MS, 100 * MS)), 0).is_ok());
}

/// S-11: best effort keeps its reserve. Contexts that use all that admission gives leave a hog 5 % of every long window: 10 s minus
/// at most one extra budget of each context (1.9 s of budgets can straddle the end).
#[test]
fn s_11_best_effort_keeps_its_reserve() {
    for policy in POLICIES {
        let mut machine = Machine::new(1, policy);
        let hog = machine.spawn(Plan::hog(1));
        for period_ms in [20, 50, 70, 110, 130] {
            machine.spawn(Plan::hog(1024).with(Spec::new(period_ms * MS * 189 / 1_000, period_ms * MS)));
        }
        machine.run_until(10 * SECOND);
        let got = machine.threads[hog].service_ns;
        let straddle = (20 + 50 + 70 + 110 + 130) * MS * 189 / 1_000;
        assert!(got + straddle >= SECOND / 2, "{policy:?}: {got} ns of 10 s");
    }
}

/// S-12: thread + idle + interrupt time = wall time, each by its own stopwatch, under random events at random times.
#[test]
fn s_12_every_interval_has_one_target() {
    for seed in 1..=200 {
        let mut random = Random::new(seed);
        let mut cpu: Cpu<u32> = Cpu::new(cpu_id(0), POLICIES[seed as usize % 2], 1_000);
        let mut watch = CpuTime::default();
        let (mut now, mut in_interrupt, mut hands) = (1_000, false, Vec::new());
        for id in 0..400 {
            let elapsed = random.range(0, 12 * MS);
            now += elapsed;
            match (in_interrupt, cpu.current()) {
                (true, _) => watch.interrupt_ns += elapsed,
                (false, Some(_)) => watch.thread_ns += elapsed,
                (false, None) => watch.idle_ns += elapsed,
            }
            match random.next() % 7 {
                0 => {
                    let _ = cpu.enqueue(Runnable::new(ThreadId(id), id as u32), now).unwrap();
                }
                1 => hands.extend(cpu.block(now)),
                2 => drop(cpu.dispatch(now)),
                3 => drop(cpu.yield_now(now)),
                4 => {
                    cpu.interrupt_begin(now);
                    in_interrupt = true;
                }
                5 => {
                    cpu.interrupt_end(now);
                    in_interrupt = false;
                }
                _ => {
                    let _ = cpu.timer(now);
                    let _ = cpu.timer(now - elapsed); // a clock that goes back charges nothing
                }
            }
            assert_eq!(cpu.time(), watch, "seed {seed}");
            assert_eq!(cpu.time().total_ns(), now - 1_000);
            assert_eq!(cpu.check(), Ok(()));
        }
    }
}
