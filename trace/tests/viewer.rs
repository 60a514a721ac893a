//! T-02: independent parsers load what we export, and find in it what we say.
//!
//! `python-env.sh` brings Perfetto's message classes from PyPI and `load_trace.py` does the
//! reading. When they cannot be had the test fails: an export that nobody read is not evidence.

mod foreign;

use std::path::Path;

use foreign::Case;
use trace::{Kind, ThreadInfo, Trace};

/// A tiny scheduler that makes no sense but obeys the reading rules, and uses every kind of event.
fn busy_trace(seed: u64) -> Trace {
    const CPUS: u16 = 4;
    const THREADS: u32 = 9;
    let names = ["plain", "</script>", "quote\"back\\slash", "käse 火", "", "tab\tline\n"];
    let threads = (0..THREADS).map(|n| {
        let name = names.get(n as usize).map_or_else(|| format!("t{n}"), ToString::to_string);
        // Ids with gaps, so that nothing gets away with using the position.
        ThreadInfo { id: n * 3 + 1, name, weight: n + 1, class: "normal".into(), context: None }
    });
    let mut trace =
        Trace { title: "busy".into(), cpus: CPUS, threads: threads.collect(), ..Trace::default() };
    let mut state = seed;
    let mut next = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut on_cpu: Vec<Option<u32>> = vec![None; usize::from(CPUS)];
    let mut waiting: Vec<u32> = trace.threads.iter().map(|info| info.id).collect();
    let mut now_ns = 0;
    for &thread in &waiting {
        trace.push(0, 0, Kind::Spawn { thread });
    }
    for _ in 0..3000 {
        now_ns += next(40_000);
        let cpu = next(u64::from(CPUS)) as u16;
        if let Some(thread) = on_cpu[usize::from(cpu)].take() {
            let leave = [
                Kind::Preempt { thread },
                Kind::Yield { thread },
                Kind::Block { thread },
                Kind::Throttle { thread },
            ];
            trace.push(now_ns, cpu, leave[next(4) as usize]);
            trace.push(now_ns, cpu, if next(3) == 0 { Kind::Idle } else { Kind::System });
            waiting.push(thread);
            continue;
        }
        let thread = waiting.remove(next(waiting.len() as u64) as usize);
        let from = next(u64::from(CPUS)) as u16;
        let remarks = [
            Kind::Wake { thread },
            Kind::Refill { thread },
            Kind::Steal { thread, from },
            Kind::Balance { thread, from },
            Kind::Place { thread, from },
            Kind::Deplete { thread },
            Kind::Fault { thread },
            Kind::Demote { thread },
            Kind::Revoke { thread },
            Kind::Handoff { thread },
            Kind::Ipi { to: from },
            Kind::Weight { thread, weight: 1024 },
            Kind::Class { thread, class: 3 },
            Kind::Stall,
            Kind::LostTick,
            Kind::Keep { thread },
            Kind::Timer,
            Kind::Charge,
            Kind::Forgive { high: 1, low: 2 },
            Kind::Affinity { thread, cpus: 3, part: 0 },
            Kind::Debt { thread, low: 1, high: 0 },
            Kind::Spec { part: 1, context: 2, value: 3 },
            Kind::Admit { context: 2 },
            Kind::Readmit { context: 2 },
            Kind::Retire { context: 2 },
            Kind::Host { context: 2 },
            Kind::Unhost { context: 2 },
            Kind::Bind { thread, context: 2 },
            Kind::Unbind { thread },
            Kind::Lend { thread },
            Kind::Behind { thread },
            Kind::ContextOnly { thread, only: true },
            Kind::Evict { thread, lost: false },
        ];
        trace.push(now_ns, cpu, remarks[next(remarks.len() as u64) as usize]);
        trace.push(now_ns, cpu, Kind::Run { thread });
        on_cpu[usize::from(cpu)] = Some(thread);
    }
    trace.end_ns = now_ns + 1;
    trace
}

#[test]
fn foreign_parsers_read_what_we_wrote() {
    for seed in 1..=3 {
        let trace = busy_trace(seed);
        let used: std::collections::BTreeSet<_> =
            trace.events.iter().map(|event| event.kind.name()).collect();
        // `exit` is the one kind that this trace lacks; the hand-written one below has it.
        assert_eq!(used.len(), Kind::NAMES.len() - 1, "{used:?}");
        let (ok, said) = Case::write(&format!("busy-{seed}"), &trace).load();
        assert!(ok, "{said}");
        assert!(said.contains("load_trace: ok"), "{said}");
    }
}

#[test]
fn small_traces_load_too() {
    let mut trace = Trace { cpus: 1, end_ns: 10, ..Trace::default() };
    let (ok, said) = Case::write("empty", &trace).load();
    assert!(ok, "{said}");
    trace.threads.push(ThreadInfo { name: "only".into(), ..ThreadInfo::default() });
    trace.push(0, 0, Kind::Run { thread: 0 });
    trace.push(10, 0, Kind::Exit { thread: 0 });
    let (ok, said) = Case::write("one", &trace).load();
    assert!(ok, "{said}");
}

/// The reader must be able to refuse, or its acceptance means nothing.
#[test]
fn the_reader_refuses_what_is_wrong() {
    let trace = busy_trace(7);
    let refused = |name: &str, spoil: &dyn Fn(&Case)| {
        let case = Case::write(name, &trace);
        spoil(&case);
        let (ok, said) = case.load();
        assert!(!ok, "{name} was accepted: {said}");
        said
    };
    let edit = |path: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(path).expect("written above");
        change(&mut bytes);
        std::fs::write(path, bytes).expect("target is writable");
    };
    let said = refused("cut", &|case| edit(&case.perfetto, &|bytes| bytes.truncate(bytes.len() - 3)));
    assert!(said.contains("DecodeError"), "{said}");
    let other = Case::write("other", &busy_trace(8));
    let said = refused("swapped-perfetto", &|case| {
        std::fs::copy(&other.perfetto, &case.perfetto).expect("target is writable");
    });
    assert!(said.contains("perfetto: "), "{said}");
    let said = refused("swapped-chrome", &|case| {
        std::fs::copy(&other.chrome, &case.chrome).expect("target is writable");
    });
    assert!(said.contains("chrome: "), "{said}");
    let said = refused("unclosed", &|case| {
        edit(&case.chrome, &|bytes| bytes.truncate(bytes.len() - 2));
    });
    assert!(said.contains("JSONDecodeError"), "{said}");
}
