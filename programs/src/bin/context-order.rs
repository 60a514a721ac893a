//! Kernel and simulator run the threads of a scenario in the same order: budgets, deadlines, bands, loans, revocations (S-06).
//!
//! The scenarios are the simulator's own files. What is printed, `order <scenario> <cpu> <thread>...`, is compared by `capos`, and a difference
//! fails the run.
#![no_std]
#![no_main]

use programs::contexts::play::play;
use programs::contexts::script::Script;
use programs::ensure;
use programs::proof::prove;
use programs::ticks::{self, Scale};

rt::main!(run);

macro_rules! scenarios {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../sim/scenarios/", $name, ".scn")))),*]
    };
}

/// Scenarios for one CPU are played on a machine with one CPU, those for two on a machine with two.
const SCENARIOS: [(&str, &str); 19] = scenarios![
    "ctx-one" "ctx-two" "ctx-three" "ctx-hog" "ctx-band" "ctx-edf" "ctx-throttle" "ctx-demote"
    "ctx-lend" "ctx-nest" "ctx-dry" "ctx-answer" "ctx-clients" "ctx-revoke" "ctx-fault" "ctx-release"
    "ctx-across" "ctx-hogs" "ctx-host"
];

fn run() -> i64 {
    prove("context-order", || {
        ensure!(ticks::is_counted(), "an order is exact by counted instructions only: ICOUNT=1");
        let scale = Scale::measure()?;
        let mut played = 0;
        for (name, text) in SCENARIOS {
            let script = Script::read(name, text)?;
            if script.cpus == rt::boot_info().cpus {
                play(script, scale)?;
                played += 1;
            }
        }
        ensure!(played > 0, "there are scenarios for 1 and for 2 CPUs");
        Ok(())
    })
}
