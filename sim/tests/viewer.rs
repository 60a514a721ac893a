//! T-02: the simulator's traces are loaded by parsers that are not ours, and say what the core counted.

#[path = "../../trace/tests/foreign/mod.rs"]
mod foreign;

use foreign::Case;
use sim::engine::{Engine, Options};
use sim::fuzz::workload;
use sim::scenario::Scenario;

/// Every kind of thing that scenarios do, and a few fuzzed workloads with faults.
#[test]
fn t_02_simulated_traces_load_elsewhere() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    for name in ["overrun", "servers", "wake-storm", "faults", "revoke", "three-on-two", "fork-join"] {
        let text = std::fs::read_to_string(folder.join(name).with_extension("scn")).unwrap();
        let scenario = Scenario::parse(name, &text).unwrap();
        load(name, &scenario, Options::of(&scenario));
    }
    for seed in [3, 19, 117, 1319] {
        let (scenario, mut options) = workload(seed);
        options.record = true;
        load(&format!("fuzz-{seed}"), &scenario, options);
    }
}

fn load(name: &str, scenario: &Scenario, options: Options) {
    let outcome = Engine::new(scenario, options).unwrap().run().unwrap();
    let trace = outcome.trace.unwrap();
    trace.check().unwrap_or_else(|error| panic!("{name}: {error}"));
    let (ok, said) = Case::write(name, &trace).load();
    assert!(ok && said.contains("load_trace: ok"), "{name}: {said}");
    // The pictures and the core agree on where the time went.
    let mut run_ns = vec![0; outcome.threads.len()];
    for run in trace.runs() {
        if let Some(thread) = run.thread {
            run_ns[thread as usize] += run.duration_ns();
        }
    }
    for (thread, run_ns) in outcome.threads.iter().zip(run_ns) {
        assert_eq!(thread.snapshot.runtime_ns, run_ns, "{name}: run time of {}", thread.name);
    }
}
