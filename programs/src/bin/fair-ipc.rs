//! Callers and servers under load: pairs that hand the CPU to each other get no more than two threads may, hogs beside them do not starve, and
//! every call is answered within the bound (F-10).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::{Break, Continue};

use programs::ensure;
use programs::fair::{self, Hogs, Kind, Look, Waits};
use programs::kit::MS;
use programs::proof::{Doing, Outcome, prove, step};
use programs::ticks::{self, Scale};
use rt::abi::LatencyClass;
use rt::thread::{Builder, JoinHandle};
use rt::{Endpoint, Factory, caps, println, time};

rt::main!(run);

const HOGS: usize = 4;
const PAIRS: usize = 2;
const WINDOW_NS: u64 = 3_000 * MS;
/// How much CPU time a call takes at the caller and at the server.
const CALLER_NS: u64 = 100_000;
const SERVER_NS: u64 = 50_000;

fn run() -> i64 {
    prove("fair-ipc", || {
        ensure!(rt::boot_info().cpus <= 2, "the bounds of this proof are of one or two CPUs");
        let scale = Scale::measure()?;
        step("calls beside hogs (F-10)", || pairs(scale))
    })
}

/// What a caller measured.
struct Called {
    waits: Waits,
    runtime_ns: u64,
}

type Server = JoinHandle<Outcome<u64>>;
type Caller = JoinHandle<Outcome<Called>>;

fn pair(until_ns: u64, scale: Scale) -> Outcome<(Server, Caller)> {
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let theirs = Arc::clone(&endpoint);
    let serve = move || {
        Kind::class(LatencyClass::IpcServer).take_on()?;
        let before = fair::own_runtime_ns()?;
        let served = theirs.serve(|call| {
            let [first, second] = call.message.words();
            fair::compute(SERVER_NS, scale);
            if call.method == 1 { Continue([first + 1, second]) } else { Break([0; 2]) }
        });
        served.doing("serve")?;
        Ok(fair::own_runtime_ns()? - before)
    };
    let server = Builder::new().stack_bytes(16 * 1024).spawn(serve).doing("start a server")?;
    let call = move || calls(&endpoint, until_ns, scale);
    let caller = Builder::new().stack_bytes(16 * 1024).spawn(call).doing("start a caller")?;
    Ok((server, caller))
}

fn calls(endpoint: &Endpoint, until_ns: u64, scale: Scale) -> Outcome<Called> {
    let before = fair::own_runtime_ns()?;
    let mut waits = Vec::new();
    while time::now_ns().doing("now")? < until_ns {
        fair::compute(CALLER_NS, scale);
        let asked = ticks::now();
        let answer = endpoint.call(1, [waits.len() as u64, 7]).doing("call")?;
        waits.push(scale.to_ns(ticks::now() - asked));
        ensure!(answer == [waits.len() as u64, 7], "the answer is {answer:?}");
    }
    let runtime_ns = fair::own_runtime_ns()? - before;
    endpoint.call(2, [0; 2]).doing("the last call")?;
    Ok(Called { waits: Waits::of(waits), runtime_ns })
}

fn pairs(scale: Scale) -> Outcome {
    let hogs = Hogs::start(&[Kind::PLAIN; HOGS], scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let until_ns = time::now_ns().doing("now")? + WINDOW_NS;
    let pairs = (0..PAIRS).map(|_| pair(until_ns, scale)).collect::<Outcome<Vec<_>>>()?;
    let got = hogs.run_for(WINDOW_NS)?;
    let (mut callers, mut servers, mut waits) = (0, 0, Vec::new());
    for (server, caller) in pairs {
        let called = caller.join().doing("join a caller")??;
        servers += server.join().doing("join a server")??;
        callers += called.runtime_ns;
        println!("    a pair made {} calls", called.waits.len());
        waits.extend_from_slice(called.waits.samples());
    }
    let ran = hogs.stop()?;
    let waits = Waits::of(waits);
    waits.show("a call beside hogs, to its answer");
    // Twice the bound: first the server may wait for a CPU, and then the caller.
    let bound = fair::starvation_bound_ns(&[Kind::PLAIN; HOGS + 2 * PAIRS - 1], Kind::PLAIN);
    ensure!(waits.max() <= 2 * bound, "a call took {} ns, the bound is {} ns", waits.max(), 2 * bound);
    let longest = ran.iter().map(|ran| ran.longest_ns).max().unwrap_or(0);
    println!("    a hog waited {} us at most; bound {} us", longest / 1000, bound / 1000);
    ensure!(longest <= bound, "a hog waited {longest} ns, the bound is {bound} ns");
    for (at, ran) in ran.iter().enumerate() {
        let moves = ran.last.migrations - ran.first.migrations;
        println!("    hog {at}: {} ppm of a CPU, {moves} moves", got.share_ppm(at));
    }
    shares(&got, callers, servers)
}

fn shares(got: &Look, callers: u64, servers: u64) -> Outcome {
    let (cpus, worked) = (u64::from(rt::boot_info().cpus), got.runtime_ns.iter().sum::<u64>());
    // A pair counts as at most two threads and at least one: it cannot get more than two shares, and must get most of one.
    let most = got.at_ns * cpus * 2 * PAIRS as u64 / (HOGS + 2 * PAIRS) as u64;
    let least = got.at_ns * cpus * PAIRS as u64 / (HOGS + 2 * PAIRS) as u64;
    let all = callers + servers;
    ensure!(all <= most + most / 20, "the pairs got {all} ns, two shares each are {most} ns");
    ensure!(all >= least - least / 20, "the pairs got {all} ns, a share each is {least} ns");
    if cpus == 1 {
        fair::say_share("fair-ipc", "hog", fair::ppm(worked, got.at_ns));
        fair::say_share("fair-ipc", "client", fair::ppm(callers, got.at_ns));
        fair::say_share("fair-ipc", "server", fair::ppm(servers, got.at_ns));
    }
    for at in 0..HOGS {
        if cpus == 1 {
            fair::within("CPU time of a hog", got.runtime_ns[at], worked / HOGS as u64, 5)?;
        }
        // Balancing counts runnable threads, and of a pair only one is runnable at a time. So a CPU with more pairs than another is not
        // relieved, and a hog beside them may get a fifth less than if all threads were spread evenly.
        let least = got.at_ns * cpus / (HOGS + 2 * PAIRS) as u64 * 4 / 5;
        ensure!(got.runtime_ns[at] >= least, "hog {at} got {} ns, not even {least} ns", got.runtime_ns[at]);
    }
    Ok(())
}
