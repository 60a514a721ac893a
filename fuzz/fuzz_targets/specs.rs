//! Any numbers as context specs (S-01, S-11): `validate` agrees with the list below, `admit` keeps its bound and gives back what
//! it promised, and an admitted ledger conserves its budget under any use (S-03).
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sched::*;

#[derive(Arbitrary, Debug)]
struct Input {
    specs: Vec<(u64, u64, u64, [u8; 2], u8, u8)>,
    uses: Vec<(u32, u32)>,
}

fn acceptable(spec: &Spec) -> bool {
    (20_000..=spec.period_ns).contains(&spec.budget_ns)
        && spec.period_ns <= 60_000_000_000
        && (spec.budget_ns..=spec.period_ns).contains(&spec.relative_deadline_ns)
        && spec.cpu_mask.count() > 0
        && spec.criticality < 8
        && matches!(spec.max_refills, 2..=8)
}

fuzz_target!(|input: Input| {
    let mut cpu: Cpu<u32> = Cpu::new(CpuId::new(0).unwrap(), PolicyKind::Wfq, 0);
    let mut held = Vec::new();
    for (id, (budget, period, deadline, mask, criticality, max_refills)) in
        input.specs.into_iter().enumerate()
    {
        let mut spec = Spec::new(budget % (1 << 37), period % (1 << 37));
        if deadline != 0 {
            spec.relative_deadline_ns = deadline;
        }
        spec.cpu_mask = CpuMask::from_bytes(&mask).unwrap_or(CpuMask::ALL);
        (spec.criticality, spec.max_refills) = (criticality % 16, max_refills % 16);
        assert_eq!(spec.validate().is_ok(), acceptable(&spec), "{spec:?}");
        let before = cpu.reserved();
        match cpu.admit(Proposal::new(ContextId { id: id as u64, generation: 1 }, spec), 0) {
            Ok(context) => held.push(context),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(cpu.reserved(), before, "a refusal changes nothing");
            }
        }
        assert!(cpu.reserved() <= Utilisation::BOUND);
    }
    for context in held {
        let mut ledger = context.ledger().clone();
        let mut now = 0;
        for &(slept, used) in &input.uses {
            now += u64::from(slept);
            ledger.activate(now);
            ledger.charge(u64::from(used));
            assert_eq!(ledger.total_ns(), context.spec().budget_ns, "I4");
            assert!(ledger.refills().is_sorted_by_key(|refill| refill.time_ns));
            now += u64::from(used);
        }
        assert!(cpu.retire(context, 0).is_ok());
    }
    assert_eq!(cpu.reserved(), Utilisation::default());
});
