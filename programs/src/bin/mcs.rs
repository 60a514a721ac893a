//! The behaviours of a mixed-criticality kernel, one test per line (S-10): `mcs NAME...` runs some.
//!
//! Each test is a process of its own, so that a failing test leaves nothing behind: after it there must be no context.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

use programs::contexts::mcs::{self, Stage, chains, ipc, lifetimes};
use programs::ensure;
use programs::kit::{self, MS};
use programs::proof::{Doing, Failure, Outcome, prove};
use rt::{args, println};

rt::main!(run);

/// How long one test may take, in guest time.
const PATIENCE_NS: u64 = 30_000 * MS;

fn run() -> i64 {
    let mut words = args::args();
    match (words.next(), words.next()) {
        (Some("--test"), Some(name)) => i64::from(!holds(name)),
        (Some("--link"), _) => i64::from(chains::link().is_err()),
        (Some("--burner"), _) => i64::from(lifetimes::doomed_burner().is_err()),
        (Some("--caller"), _) => i64::from(ipc::doomed_caller().is_err()),
        _ => prove("mcs", all),
    }
}

fn holds(name: &str) -> bool {
    let run = || {
        let test = mcs::tests().find(|(its, _)| *its == name);
        let (_, test) = test.ok_or_else(|| Failure::new("there is no such test"))?;
        programs::contexts::all_back()?;
        test(&Stage::set()?)
    };
    match run() {
        Ok(figures) if figures.is_empty() => println!("  mcs {name}: ok"),
        Ok(figures) => println!("  mcs {name}: ok {figures}"),
        Err(Failure(why)) => {
            println!("  mcs {name}: FAILED {why}");
            return false;
        }
    }
    true
}

fn all() -> Outcome {
    let wanted: Vec<&str> = args::args().collect();
    let chosen: Vec<&str> =
        if wanted.is_empty() { mcs::tests().map(|(name, _)| name).collect() } else { wanted };
    let (count, mut failed) = (chosen.len(), Vec::new());
    for name in chosen {
        if let Err(Failure(why)) = in_process(name) {
            println!("  mcs {name}: {why}");
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "{} of {count} tests: {failed:?}", failed.len());
    println!("mcs_tests={count}");
    Ok(())
}

/// Runs one test; fails if the test fails or leaves a context behind.
fn in_process(name: &str) -> Outcome {
    let child = kit::again(&["--test", name], &[])?;
    let mut end = child.handle.wait_start().doing("wait")?;
    let Some(exit) = end.wait_timeout(PATIENCE_NS) else {
        child.handle.kill().doing("kill a test that hangs")?;
        return Err(Failure::new("FAILED it hangs"));
    };
    let exit = exit.doing("wait")?;
    ensure!(exit.is_success(), "ended: {exit}");
    kit::wait_until("FAILED the test's contexts go", || {
        Ok(kit::system()?.contexts().doing("contexts")?.is_empty())
    })
}
