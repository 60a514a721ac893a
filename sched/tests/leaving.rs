//! S-13: what a context used is held when it goes, and nobody is late by it.

mod common;

use common::*;
use sched::*;

fn cpu() -> Cpu<u32> {
    Cpu::new(CpuId::FIRST, PolicyKind::Wfq, 0)
}

/// Tenths of milliseconds.
fn spec(budget: u64, period: u64) -> Spec {
    Spec::new(budget * MS / 10, period * MS / 10)
}

fn propose(id: u64, spec: Spec) -> Proposal {
    Proposal::new(ContextId { id, generation: 1 }, spec)
}

fn start(cpu: &mut Cpu<u32>, id: u64, spec: Spec, now: u64) {
    let mut thread = Runnable::new(ThreadId(id), id as u32);
    let context = cpu.admit(propose(id, spec), now).unwrap();
    assert!(matches!(thread.bind(context), Ok(None)));
    let _ = cpu.enqueue(thread, now).unwrap();
}

fn reason(refused: Result<Box<Context>, Refused>) -> (Reason, u64) {
    match refused.unwrap_err().why {
        AdmissionError::Refused(witness) => (witness.reason, witness.until_ns),
        other => panic!("{other}"),
    }
}

/// S-13, V26: a share that was used is not to be had before it would have come back; another thread's promise is kept.
#[test]
fn s_13_v26_revoked_and_made_again() {
    let mut cpu = cpu();
    start(&mut cpu, 1, spec(450, 1000), 0);
    start(&mut cpu, 2, spec(500, 1000), 0);
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    let Taken { context, .. } = cpu.take_context(&cpu.find(ThreadId(1)), 45 * MS).unwrap();
    assert!(cpu.retire(context, 45 * MS).is_ok());
    assert_eq!((cpu.contexts(), cpu.leaving()), (1, 1));
    let ask = |cpu: &mut Cpu<u32>, now| cpu.admit(propose(3, spec(45, 100)), now);
    assert_eq!(reason(ask(&mut cpu, 45 * MS)), (Reason::BusyLeaving, 100 * MS));
    assert_eq!(cpu.dispatch(45 * MS).run, Some(ThreadId(2)));
    // 2 has its 50 ms at 95, well before it must; from then on nobody waits for budget.
    let decision = cpu.dispatch(95 * MS);
    assert!(decision.noted.has(Noted::DEPLETED) && !decision.noted.has(Noted::LATE));
    assert_eq!(reason(ask(&mut cpu, 100 * MS - 1)).0, Reason::BusyLeaving);
    assert!(ask(&mut cpu, 100 * MS).is_ok());
    assert_eq!((cpu.contexts(), cpu.leaving()), (2, 0));
    assert_eq!(cpu.check(), Ok(()));
}

/// S-13: what was not used is free at once; of what was used a part, a part.
#[test]
fn s_13_who_used_nothing_leaves_nothing() {
    let mut cpu = cpu();
    for id in 0..1_000 {
        let context = cpu.admit(propose(id, spec(900, 1000)), 0).unwrap();
        assert!(cpu.retire(context, 0).is_ok());
    }
    assert_eq!(cpu.leaving(), 0);
    start(&mut cpu, 1, spec(900, 1000), 0);
    let _ = cpu.dispatch(0);
    let Taken { context, .. } = cpu.take_context(&cpu.find(ThreadId(1)), 10 * MS).unwrap();
    assert!(cpu.retire(context, 10 * MS).is_ok());
    let _ = cpu.dispatch(10 * MS);
    assert_eq!(cpu.taken(10 * MS).ppm(), 100_000, "ten of a hundred were used");
    assert_eq!(reason(cpu.admit(propose(2, spec(900, 1000)), 10 * MS)), (Reason::BusyLeaving, 100 * MS));
    assert!(cpu.admit(propose(2, spec(800, 1000)), 10 * MS).is_ok());
}

/// S-13, V27: contexts of one line that follow each other have the share of one, here 2 ms in any 20, though there is room for more.
#[test]
fn s_13_v27_a_line_of_contexts_has_the_share_of_one() {
    for (line, most_ns) in [(7, 2 * MS), (0, 20 * MS)] {
        let mut cpu = cpu();
        let (mut now, mut runs) = (0, Vec::new());
        for id in 1..400 {
            if now > 300 * MS {
                break;
            }
            let mut thread = Runnable::new(ThreadId(id), 0);
            match cpu.admit(propose(id, spec(20, 200)).of_template(line), now) {
                Ok(context) => assert!(matches!(thread.bind(context), Ok(None))),
                Err(_) => {
                    now += MS;
                    continue;
                }
            }
            let _ = cpu.enqueue(thread, now).unwrap();
            let mut decision = cpu.dispatch(now);
            while decision.run.is_none() {
                now = decision.until_ns;
                decision = cpu.dispatch(now);
            }
            let end = decision.until_ns.min(now + 2 * MS);
            runs.push((now, end));
            now = end;
            let mut gone = cpu.block(now).unwrap();
            assert!(cpu.retire(gone.unbind().unwrap(), now).is_ok());
            let _ = cpu.dispatch(now);
        }
        for (at, (begin, _)) in runs.iter().enumerate() {
            let end = begin + 20 * MS;
            let inside = runs[at..].iter().map(|(from, to)| (*to).min(end).saturating_sub(*from));
            let sum: u64 = inside.sum();
            assert!(sum <= most_ns, "{sum} ns in 20 ms from {begin} in line {line}: {runs:?}");
        }
        let total: u64 = runs.iter().map(|(from, to)| to - from).sum();
        assert!(total >= 14 * 2 * MS, "and it has that: {total}");
    }
}

/// S-13, V28: a shorter period takes effect when what was used under the old one is back.
#[test]
fn s_13_v28_a_shorter_period_waits() {
    let mut cpu = cpu();
    start(&mut cpu, 1, spec(50, 100), 0);
    start(&mut cpu, 2, spec(45, 100), 0);
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    let Taken { context, .. } = cpu.take_context(&cpu.find(ThreadId(1)), 5 * MS).unwrap();
    let context = cpu.readmit(context, spec(5, 10), 5 * MS).unwrap();
    assert_eq!((context.info(5 * MS).available_ns, context.info(5 * MS).ready_at_ns), (0, 10 * MS));
    assert_eq!(cpu.dispatch(5 * MS).run, Some(ThreadId(2)));
    let decision = cpu.dispatch(95 * MS / 10);
    assert!(decision.noted.has(Noted::DEPLETED) && !decision.noted.has(Noted::LATE));
    assert_eq!(cpu.reserved().ppm(), 950_000);
    assert_eq!(cpu.check(), Ok(()));
}

/// S-13: where only a part was used, the rest may be used up; and no more before the old one's last refill.
#[test]
fn s_13_a_new_period_makes_nothing_before_the_old_refill() {
    let mut ledger = Ledger::new(5 * MS, 10 * MS, 8, 0);
    ledger.charge(4 * MS);
    ledger.reconfigure(MS / 2, MS, 8, 4 * MS);
    let (mut now, mut used) = (4 * MS, 4 * MS);
    while now < 10 * MS {
        let usable = ledger.available_ns(now);
        if usable == 0 {
            now = ledger.ready_at_ns();
            continue;
        }
        ledger.charge(usable);
        (now, used) = (now + usable, used + usable);
    }
    assert!(used <= 5 * MS, "{used} ns of 5 ms until 10 ms");
    assert_eq!(ledger.available_ns(10 * MS), MS / 2);
}

/// S-13: with constrained deadlines the set's test says nothing about a change of sets: until nobody has budget to be served, the whole
/// promise of the one that left stays. Here a newcomer that fits by shares and by demand would make 2 late.
#[test]
fn s_13_somebody_who_was_put_off_is_not_put_off_again() {
    let mut cpu = cpu();
    start(&mut cpu, 1, spec(350, 600), 0);
    let mut slow = spec(500, 10_000);
    slow.relative_deadline_ns = 120 * MS;
    start(&mut cpu, 2, slow, 0);
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    assert_eq!(cpu.dispatch(35 * MS).run, Some(ThreadId(2)));
    let Taken { context, .. } = cpu.take_context(&cpu.find(ThreadId(1)), 35 * MS).unwrap();
    assert!(cpu.retire(context, 35 * MS).is_ok());
    let mut urgent = spec(600, 10_000);
    urgent.relative_deadline_ns = 60 * MS;
    // At 60 the one that left has its time back, but 2, which waited for it, has not all of its own.
    assert_eq!(reason(cpu.admit(propose(3, urgent), 60 * MS)).0, Reason::BusyLeaving);
    assert!(!cpu.dispatch(85 * MS).noted.has(Noted::LATE));
    assert!(cpu.admit(propose(3, urgent), 85 * MS).is_ok());
}

/// Admits a context of `spec`, has it run for `used_ns` and retires it; the number of its promise, if that is held.
fn come_and_go(cpu: &mut Cpu<u32>, id: u64, spec: Spec, used_ns: u64, now: &mut u64) -> Option<u64> {
    start(cpu, id, spec, *now);
    assert_eq!(cpu.dispatch(*now).run, Some(ThreadId(id)));
    *now += used_ns;
    let mut gone = cpu.block(*now).unwrap();
    assert!(cpu.retire(gone.unbind().unwrap(), *now).is_ok());
    let departed = cpu.departed();
    let _ = cpu.dispatch(*now);
    assert_eq!(cpu.check(), Ok(()));
    departed
}

/// S-13, K-29: as many may leave as a CPU has places, each for itself; who comes then is told when the first will have left.
#[test]
fn s_13_who_leaves_keeps_its_place_and_no_more() {
    let mut cpu = cpu();
    let mut now = 0;
    let specs = (1..=MAX_PROMISES_PER_CPU as u64).map(|id| Spec::new(MIN_BUDGET_NS * 2, (100 + id) * MS));
    let mut share_ppm = 0.0;
    for (id, spec) in (1..).zip(specs) {
        assert!(come_and_go(&mut cpu, id, spec, MIN_BUDGET_NS, &mut now).is_some());
        share_ppm += MIN_BUDGET_NS as f64 * 1e6 / spec.period_ns as f64;
    }
    assert_eq!((cpu.contexts(), cpu.leaving()), (0, MAX_PROMISES_PER_CPU));
    let taken_ppm = cpu.taken(now).ppm() as f64;
    assert!(taken_ppm <= share_ppm + 1.0, "{taken_ppm} ppm are taken, {share_ppm} were used");
    // There is time enough, and no place: the first one's is back a period after it began.
    let tiny = Spec::new(MIN_BUDGET_NS, 1_000 * MS);
    assert_eq!(reason(cpu.admit(propose(1_000, tiny), now)), (Reason::BusyLeaving, 101 * MS));
    let made = cpu.admit(propose(1_000, tiny), 101 * MS).unwrap();
    assert_eq!((cpu.contexts(), cpu.leaving()), (1, MAX_PROMISES_PER_CPU - 1));
    assert!(cpu.retire(made, 101 * MS).is_ok());
    assert_eq!(cpu.departed(), None, "it used nothing");
    assert_eq!((cpu.taken(SECOND), cpu.leaving()), (Utilisation::default(), 0));
}

/// S-13: another specification needs a place for what was used under the old one.
#[test]
fn s_13_a_change_needs_a_place_for_what_was_used() {
    let mut cpu = cpu();
    let mut now = 0;
    for id in 1..MAX_PROMISES_PER_CPU as u64 {
        come_and_go(&mut cpu, id, Spec::new(MIN_BUDGET_NS * 2, 900 * MS), MIN_BUDGET_NS, &mut now);
    }
    start(&mut cpu, 500, Spec::new(MS, 800 * MS), now);
    let unused = cpu.take_context(&cpu.find(ThreadId(500)), now).unwrap().context;
    let unused = cpu.readmit(unused, Spec::new(MS, 700 * MS), now).expect("nothing was used");
    assert!(!cpu.would_leave(&unused, now) && cpu.departed().is_none());
    assert!(cpu.retire(unused, now).is_ok());
    start(&mut cpu, 501, Spec::new(MS, 800 * MS), now);
    let _ = cpu.dispatch(now);
    now += MS / 2;
    let used = cpu.take_context(&cpu.find(ThreadId(501)), now).unwrap().context;
    assert!(cpu.would_leave(&used, now));
    let (why, used) = cpu.readmit(used, Spec::new(MS, 700 * MS), now).unwrap_err();
    assert!(matches!(why, AdmissionError::Refused(Witness { reason: Reason::BusyLeaving, .. })), "{why}");
    assert_eq!(cpu.check(), Ok(()));
    let used = cpu.readmit(used, Spec::new(MS, 700 * MS), 900 * MS).expect("the first has left");
    assert!(cpu.retire(used, 900 * MS).is_ok());
}

/// One that has gone, as the test remembers it.
struct Gone {
    session: usize,
    number: u64,
    share: f64,
    whole: f64,
    until_ns: u64,
}

/// S-13, K-29: contexts of unlike periods come, run and go, those of three sessions among each other. What a CPU holds for all of them, and what it
/// holds for those of each session, is never more than what they used and do not have back, and never less.
#[test]
fn k_29_what_leaving_denies_is_what_was_used() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut cpu = cpu();
        let (mut now, mut gone) = (0, Vec::<Gone>::new());
        for id in 1..400 {
            let period_ns = random.range(1, 60_000) * MS / random.range(1, 60);
            let budget_ns = random.range(MIN_BUDGET_NS, (period_ns / 20).clamp(MIN_BUDGET_NS, 20 * MS));
            let period_ns = period_ns.max(20 * budget_ns);
            let spec = Spec::new(budget_ns, period_ns);
            let share = |used_ns: u64| used_ns as f64 / period_ns as f64;
            match cpu.admit(propose(id, spec), now) {
                Err(why) => {
                    assert_eq!(reason(Err(why)).0, Reason::BusyLeaving);
                    refused += 1;
                    now += random.range(1, 2_000) * MS;
                }
                Ok(context) => {
                    let mut thread = Runnable::new(ThreadId(id), 0);
                    assert!(matches!(thread.bind(context), Ok(None)));
                    let _ = cpu.enqueue(thread, now).unwrap();
                    let _ = cpu.dispatch(now);
                    let used_ns = random.range(0, budget_ns);
                    let until_ns = now + period_ns;
                    now += used_ns;
                    let mut left = cpu.block(now).unwrap();
                    assert!(cpu.retire(left.unbind().unwrap(), now).is_ok());
                    let departed = cpu.departed();
                    let _ = cpu.dispatch(now);
                    assert_eq!(departed.is_some(), used_ns > 0);
                    if let Some(number) = departed {
                        let (session, whole) = (random.range(0, 2) as usize, share(budget_ns));
                        gone.push(Gone { session, number, share: share(used_ns), whole, until_ns });
                    }
                    now += random.range(0, 3) * MS;
                }
            }
            cpu.shed(now);
            gone.retain(|it| it.until_ns > now);
            assert_eq!(cpu.leaving(), gone.len(), "each for itself, until its time is back");
            let (mut of_session, mut used) = ([0.0; 3], [0.0; 3]);
            for it in &gone {
                let held = cpu.held(it.number).expect("its time is not back");
                of_session[it.session] += held.budget_ns as f64 / held.period_ns as f64;
                used[it.session] += it.share;
                assert!(held.budget_ns as f64 / held.period_ns as f64 <= it.whole);
            }
            // To the rounding of shares.
            for (held, used) in of_session.iter().zip(used) {
                assert!((held - used).abs() < 1e-9, "seed {seed}: {held} is held, {used} was used");
            }
            let taken = cpu.taken(now).ppm() as f64 / 1e6;
            assert!((taken - used.iter().sum::<f64>()).abs() < 1e-5, "seed {seed}: {taken} is taken");
            assert_eq!(cpu.check(), Ok(()));
        }
        now += 61 * SECOND;
        assert_eq!((cpu.taken(now), cpu.leaving()), (Utilisation::default(), 0), "all is back in a minute");
        assert!(gone.iter().all(|it| cpu.held(it.number).is_none()));
    }
    assert!(refused > 0, "nobody was ever refused a place");
}

/// S-14: what was judged before something else was promised is not promised; what left meanwhile does not matter.
#[test]
fn s_14_a_verdict_is_good_until_the_next_promise() {
    let mut cpu = cpu();
    let other = cpu.admit(propose(1, spec(100, 1000)), 0).unwrap();
    let mut survey = Survey::default();
    cpu.survey(Successor::OfNobody, 0, &mut survey);
    let verdict = survey.judge(&spec(800, 1000)).unwrap();
    assert!(cpu.retire(other, 0).is_ok());
    let context = cpu.admit_judged(propose(2, spec(800, 1000)), &verdict, 0).unwrap();
    let refused = cpu.admit_judged(propose(3, spec(800, 1000)), &verdict, 0).unwrap_err();
    assert_eq!(refused.why, AdmissionError::Stale);
    assert!(cpu.retire(context, 0).is_ok());
    // Nor is another specification, or on another CPU.
    cpu.survey(Successor::OfNobody, 0, &mut survey);
    let verdict = survey.judge(&spec(800, 1000)).unwrap();
    assert_eq!(
        cpu.admit_judged(propose(3, spec(801, 1000)), &verdict, 0).unwrap_err().why,
        AdmissionError::Stale
    );
    let mut second = Cpu::<u32>::new(CpuId::new(1).unwrap(), PolicyKind::Wfq, 0);
    assert_eq!(
        second.admit_judged(propose(3, spec(800, 1000)), &verdict, 0).unwrap_err().why,
        AdmissionError::Stale
    );
}

/// S-14, V17 to V19: homes are chosen one by one, the freest first.
#[test]
fn s_14_v17_to_v19_several_cpus() {
    let place = |specs: &[Spec]| {
        let mut cpus = [0, 1].map(|at| Cpu::<u32>::new(CpuId::new(at).unwrap(), PolicyKind::Wfq, 0));
        specs.iter().zip(1..).all(|(spec, id)| {
            cpus.sort_by_key(|cpu| (cpu.reserved(), cpu.id().index()));
            let mut left = Some(propose(id, *spec));
            cpus.iter_mut().any(|cpu| match cpu.admit(left.take().unwrap(), 0) {
                Ok(_) => true,
                Err(refused) => {
                    left = Some(refused.proposal);
                    false
                }
            })
        })
    };
    assert!(place(&[spec(90, 100), spec(20, 90), spec(20, 90)]), "V17");
    assert!(!place(&[spec(60, 100); 3]), "V18");
    assert!(!place(&[spec(40, 100), spec(40, 100), spec(60, 100)]), "V19: one by one");
    assert!(place(&[spec(60, 100), spec(40, 100), spec(40, 100)]), "V19: as a whole, the largest first");
}

/// S-13: another specification in the place of the old one waits, too, until nobody has budget to be served whom the old one put off.
#[test]
fn s_13_a_change_does_not_put_anybody_off_again() {
    let mut cpu = cpu();
    start(&mut cpu, 1, spec(350, 600), 0);
    let mut slow = spec(500, 10_000);
    slow.relative_deadline_ns = 120 * MS;
    start(&mut cpu, 2, slow, 0);
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    assert_eq!(cpu.dispatch(35 * MS).run, Some(ThreadId(2)));
    let Taken { context, .. } = cpu.take_context(&cpu.find(ThreadId(1)), 35 * MS).unwrap();
    let mut urgent = spec(600, 10_000);
    urgent.relative_deadline_ns = 60 * MS;
    let (why, context) = cpu.readmit(context, urgent, 60 * MS).unwrap_err();
    assert!(
        matches!(why, AdmissionError::Refused(Witness { reason: Reason::BusyLeaving, largest: 1, .. })),
        "{why}"
    );
    assert!(!cpu.dispatch(85 * MS).noted.has(Noted::LATE));
    let context = cpu.readmit(context, urgent, 85 * MS).unwrap();
    assert!(cpu.retire(context, 85 * MS).is_ok());
}
