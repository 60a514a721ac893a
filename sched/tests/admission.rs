//! S-14: the admission test against the vectors of the realtime facts, and against brute force.

use sched::{
    AdmissionError, ContextId, Cpu, CpuId, Demand, LOOKS_PER_PIECE, MAX_EVALUATIONS, Overheads, Proposal,
    Reason, Spec, Successor, Survey, Wfq, Witness, judge_all,
};

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

fn cpu() -> CpuId {
    CpuId::new(0).unwrap()
}

/// Demands `(C, T, D)` of one band, in `unit`s.
fn band(band: u8, unit: u64, sets: &[(u64, u64, u64)]) -> Vec<Demand> {
    let demand = |(at, (c, t, d)): (usize, &(u64, u64, u64))| Demand {
        id: at as u64 + 1 + 100 * u64::from(band),
        budget_ns: c * unit,
        period_ns: t * unit,
        deadline_ns: d * unit,
        band,
        ..Demand::default()
    };
    sets.iter().enumerate().map(demand).collect()
}

fn judge(mut demands: Vec<Demand>, blocked_ns: u64) -> Result<u32, Witness> {
    let verdict = judge_all(&mut demands, blocked_ns, cpu());
    assert_eq!(verdict.is_ok(), brute(&demands, blocked_ns), "{demands:?} {verdict:?}");
    verdict
}

/// Every deadline up to the end of the longest time that the CPU can be busy, one by one.
fn brute(demands: &[Demand], blocked_ns: u64) -> bool {
    // As exactly as 2^-32 can say it, and as many parts more as a CPU can have promises.
    let shares: u128 =
        demands.iter().map(|it| (u128::from(it.budget_ns) << 32).div_ceil(u128::from(it.period_ns))).sum();
    if shares > ((1u128 << 32) * 950_000) / 1_000_000 + 161 {
        return false;
    }
    let sections = demands.iter().map(|it| it.section_ns).max().unwrap_or(0);
    for band in 0..8 {
        let own: Vec<_> = demands.iter().filter(|it| it.band == band).collect();
        let higher: Vec<_> = demands.iter().filter(|it| it.band > band).collect();
        let all = || own.iter().chain(&higher);
        let mut busy = blocked_ns + sections + all().map(|it| it.budget_ns).sum::<u64>();
        loop {
            let next = blocked_ns
                + sections
                + all().map(|it| busy.div_ceil(it.period_ns) * it.budget_ns).sum::<u64>();
            if next == busy {
                break;
            }
            busy = next;
        }
        for it in &own {
            let mut t = it.deadline_ns;
            while t <= busy.max(it.deadline_ns) {
                let calls = higher
                    .iter()
                    .chain(own.iter().filter(|it| it.deadline_ns <= t))
                    .any(|it| it.section_ns > 0);
                let later =
                    demands.iter().filter(|it| it.band < band || (it.band == band && it.deadline_ns > t));
                let section = if calls { later.map(|it| it.section_ns).max().unwrap_or(0) } else { 0 };
                let due: u64 = own
                    .iter()
                    .filter(|it| it.deadline_ns <= t)
                    .map(|it| ((t - it.deadline_ns) / it.period_ns + 1) * it.budget_ns)
                    .sum();
                let fixed = blocked_ns + section + due;
                let mut w = fixed;
                loop {
                    let next =
                        fixed + higher.iter().map(|it| w.div_ceil(it.period_ns) * it.budget_ns).sum::<u64>();
                    if next == w || next > t {
                        w = next;
                        break;
                    }
                    w = next;
                }
                if w > t {
                    return false;
                }
                t += it.period_ns;
            }
        }
    }
    true
}

fn denied(demands: Vec<Demand>, blocked_ns: u64) -> (Reason, u8, u64, u64) {
    let witness = judge(demands, blocked_ns).unwrap_err();
    (witness.reason, witness.band, witness.t_ns / US, witness.demand_ns / US)
}

/// S-14, V1 to V9: one band, one CPU.
#[test]
fn s_14_v1_to_v9_one_band() {
    let set = |sets: &[(u64, u64, u64)]| band(0, MS, sets);
    assert!(judge(set(&[(2, 8, 8), (3, 10, 10), (4, 20, 20)]), 0).is_ok(), "V1");
    let full = judge(set(&[(1, 2, 2), (1, 4, 4), (1, 4, 4)]), 0).unwrap_err();
    assert_eq!((full.reason, full.demand_ns, full.largest), (Reason::Utilisation, 1_000_000, 1), "V2");
    assert_eq!(judge(set(&[(5, 10, 10), (11, 20, 20)]), 0).unwrap_err().reason, Reason::Utilisation, "V3");
    assert!(judge(set(&[(50, 100, 50), (10, 100, 100)]), 0).is_ok(), "V4");
    assert_eq!(denied(set(&[(5, 100, 5), (5, 100, 5)]), 0), (Reason::Demand, 0, 5_000, 10_000), "V5");
    let v6 = set(&[(2, 6, 4), (2, 8, 5), (3, 9, 7)]);
    assert!(judge(v6.clone(), 0).is_ok(), "V6");
    assert_eq!(denied(v6, MS).0, Reason::Demand, "V7");
    assert!(judge(set(&[(3, 10, 5), (3, 12, 8), (4, 20, 14)]), 0).is_ok(), "V8");
    assert_eq!(
        denied(set(&[(3, 10, 5), (3, 12, 7), (4, 20, 9)]), 0),
        (Reason::Demand, 0, 9_000, 10_000),
        "V9"
    );
}

/// S-14, V10 and V11: the set of SchedCAT's tests, and one more.
#[test]
fn s_14_v10_v11_a_mixed_set() {
    let mut set = vec![
        (6000, 31000, 18000),
        (2000, 9800, 9000),
        (1000, 17000, 12000),
        (90, 4200, 3000),
        (8, 96, 78),
        (2, 12, 12),
        (10, 280, 120),
        (26, 660, 160),
    ];
    let evaluations = judge(band(0, 10 * US, &set), 0).expect("V10");
    assert!(evaluations <= 20, "{evaluations}");
    set.push((10, 100, 15));
    let (reason, _, t_us, _) = denied(band(0, 10 * US, &set), 0);
    assert_eq!(reason, Reason::Demand, "V11");
    assert!(t_us > 0);
}

/// S-14, V12 to V14: what higher bands take.
#[test]
fn s_14_v12_to_v14_bands() {
    let both = |high: Vec<Demand>, low: Vec<Demand>| [high, low].concat();
    let v12 = both(band(7, MS, &[(50, 100, 100)]), band(0, MS, &[(4, 10, 10)]));
    let witness = judge(v12, 0).unwrap_err();
    assert_eq!((witness.reason, witness.band, witness.largest), (Reason::LowerBandLate, 0, 701), "V12");
    assert!(witness.demand_ns > witness.t_ns && witness.supply_ns == witness.t_ns, "{witness}");
    assert!(judge(band(0, MS, &[(50, 100, 100), (4, 10, 10)]), 0).is_ok(), "V12 in one band");
    let v13 = both(band(1, MS, &[(2, 10, 10)]), band(0, MS, &[(10, 50, 50), (5, 40, 40)]));
    assert!(judge(v13, 0).is_ok(), "V13");
    let v14 = both(band(1, MS, &[(5, 10, 10)]), band(0, MS, &[(5, 20, 11)]));
    assert!(judge(v14, 0).is_ok(), "V14: adding up would deny");
}

/// S-14, V15: a section that somebody more urgent waits for.
#[test]
fn s_14_v15_sections() {
    let with = |section: u64| {
        let mut set = band(0, MS, &[(2, 10, 5), (6, 20, 20)]);
        (set[0].section_ns, set[1].section_ns) = (1, section * MS);
        judge(set, 0)
    };
    assert!(with(2).is_ok());
    assert_eq!(with(4).unwrap_err().reason, Reason::Demand);
}

/// S-14, V16: what the machine takes for itself counts.
#[test]
fn s_14_v16_overheads() {
    let set = |overheads: Overheads| {
        (1..=20).map(|id| overheads.demand(id, &Spec::new(47 * US, MS))).collect::<Vec<_>>()
    };
    assert!(judge(set(Overheads::NONE), 0).is_ok());
    let some = Overheads { overshoot_ns: 2_600, ..Overheads::NONE };
    let witness = judge(set(some), 0).unwrap_err();
    assert_eq!((witness.reason, witness.demand_ns), (Reason::Utilisation, 992_000));
    let all = Overheads {
        blocked_ns: 7,
        switch_ns: 10,
        timer_ns: 5,
        overshoot_ns: 3,
        latency_ns: 20,
        interrupt_ppm: 100_000,
        ..Overheads::NONE
    };
    let mut spec = Spec::new(900, 10_000);
    spec.max_refills = 2;
    let demand = all.demand(1, &spec);
    // (900 + 4 * 10) / 0.9 + 10 + 3, one piece more than the first.
    assert_eq!((demand.budget_ns, demand.period_ns, demand.deadline_ns), (1_058, 9_980, 9_980));
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// S-14: thousands of random sets, with bands, sections and blocking: the verdict is that of brute force (asserted in `judge`).
#[test]
fn s_14_random_sets_agree_with_brute_force() {
    let mut random = Random(0x5eed);
    let (mut admitted, mut refused) = (0, 0);
    for round in 0..6_000 {
        let count = 1 + random.below(7);
        let bands = 1 + random.below(3);
        let demands = (0..count)
            .map(|id| {
                let period_ns = 4 + random.below(56);
                let budget_ns = 1 + random.below((period_ns * 5 / 4 / count).max(1));
                let budget_ns = budget_ns.min(period_ns);
                let deadline_ns = budget_ns + random.below(period_ns - budget_ns + 1);
                let section_ns = if round % 4 == 0 { random.below(3) } else { 0 };
                let band = random.below(bands) as u8;
                Demand { id, budget_ns, period_ns, deadline_ns, section_ns, band, leaving: false }
            })
            .collect();
        match judge(demands, random.below(3) * u64::from(round % 3 == 0)) {
            Ok(evaluations) => {
                assert!(evaluations < MAX_EVALUATIONS);
                admitted += 1;
            }
            Err(witness) => {
                assert_ne!(witness.reason, Reason::AnalysisLimit);
                refused += 1;
            }
        }
    }
    assert!(admitted > 1_000 && refused > 1_000, "{admitted} admitted, {refused} refused");
}

/// S-14: full CPUs are judged within the limit; and one that is not is refused by name.
#[test]
fn s_14_evaluations_are_bounded() {
    let mut random = Random(0xadd);
    let mut most = 0;
    for round in 0..300 {
        let count = 8 + random.below(120);
        let mut demands: Vec<Demand> = (0..count)
            .map(|id| {
                let period_ns = MS + random.below(100 * MS);
                let budget_ns = period_ns * 94 / 100 / count;
                let deadline_ns = period_ns / 2 + random.below(period_ns / 2);
                let band = (round % 3 * random.below(4)) as u8;
                let budget_ns = if round % 3 == 0 { budget_ns } else { budget_ns / 3 };
                Demand { id, budget_ns, period_ns, deadline_ns, band, ..Demand::default() }
            })
            .collect();
        if let Ok(evaluations) = judge_all(&mut demands, 0, cpu()) {
            most = most.max(evaluations);
        }
    }
    assert!(most > 0 && most <= MAX_EVALUATIONS, "{most}");
}

/// S-14: budgets of more than 2^32 ns count as what they are. Shifted carelessly, ten seconds were two percent of a minute, and no stretch was
/// looked at.
#[test]
fn s_14_long_budgets_are_not_cut() {
    let long = |count: usize| band(0, MS, &[(10_000, 60_000, 10_500), (10_000, 60_000, 10_500)][..count]);
    assert!(judge(long(1), 0).is_ok());
    let witness = judge(long(2), 0).unwrap_err();
    assert_eq!((witness.reason, witness.t_ns, witness.demand_ns), (Reason::Demand, 10_500 * MS, 20_000 * MS));
    // And those of a higher band, for who waits below.
    let mut below = band(1, MS, &[(30_000, 60_000, 60_000)]);
    below.extend(band(0, MS, &[(10_000, 60_000, 30_000)]));
    let witness = judge(below.clone(), 0).unwrap_err();
    assert_eq!((witness.reason, witness.demand_ns), (Reason::LowerBandLate, 40_000 * MS));
    below[1].deadline_ns = 45_000 * MS;
    assert!(judge(below, 0).is_ok());
}

/// S-14, K-26: a test that looks at many contexts pauses, and gives up where it may not go on; a short one does neither.
#[test]
fn s_14_long_tests_pause() {
    // As `programs::contexts::crowd`: of 60,000 such sets, the one with most evaluations.
    let mut state = 3420_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let specs: Vec<Spec> = (0..128)
        .map(|at: u64| {
            let period_ns = (24 + random(50)) * MS + random(MS);
            let mut spec = Spec::new(period_ns * 949 / 1000 / 128 - 12_000, period_ns);
            spec.criticality = (at % 2) as u8;
            spec
        })
        .collect();
    let spec = |at: u64| specs[at as usize];
    let mut queue = Cpu::<(), Wfq>::new(cpu(), Wfq, 0);
    queue.set_overheads(Overheads::KERNEL);
    let mut survey = Survey::default();
    let mut held = Vec::new();
    for at in 0..127 {
        queue.survey(Successor::OfNobody, 0, &mut survey);
        let mut pauses = 0;
        let mut pause = || {
            pauses += 1;
            true
        };
        let verdict = survey.judge_in_pieces(&spec(at), &mut pause).unwrap();
        // So many looks at so many contexts. A piece ends before the evaluation that would make it too long: it lacks one evaluation's looks at the most.
        let contexts = at as u32 + 1;
        let looks = (verdict.evaluations + 8) * contexts;
        assert!(pauses <= looks / (LOOKS_PER_PIECE - contexts) + 1, "{pauses} pauses of {looks} looks");
        assert!(at > 10 || pauses == 0, "a short test pauses");
        let proposal = Proposal::new(ContextId { id: at + 1, generation: 1 }, spec(at));
        held.push(queue.admit_judged(proposal, &verdict, 0).unwrap());
    }
    queue.survey(Successor::OfNobody, 0, &mut survey);
    let mut pauses = 0;
    let evaluations = survey.judge_in_pieces(&spec(127), &mut || {
        pauses += 1;
        true
    });
    let evaluations = evaluations.unwrap().evaluations;
    assert_eq!(evaluations, 230);
    assert!(
        pauses >= evaluations * 64 / LOOKS_PER_PIECE && pauses > 1,
        "{pauses} pauses, {evaluations} evaluations"
    );
    queue.survey(Successor::OfNobody, 0, &mut survey);
    let given_up = survey.judge_in_pieces(&spec(127), &mut || false).unwrap_err();
    assert!(
        matches!(given_up, AdmissionError::Refused(Witness { reason: Reason::AnalysisLimit, .. })),
        "{given_up}"
    );
}
