//! What the proofs of scheduling contexts share: contexts, work of a given length, servers without CPU time of their own.

pub mod bands;
pub mod lives;
pub mod loans;
pub mod mcs;
pub mod misses;
pub mod play;
pub mod queues;
pub mod rooms;
pub mod script;
pub mod watch;

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use rt::sync::Mutex;
use rt::thread::{Builder, JoinHandle};
use rt::{
    Answer, Client, Endpoint, Factory, Incoming, SchedulingContext, Spec, ThreadControl, caps, println,
    thread,
};

use crate::fair;
use crate::kit::{self, MS};
use crate::proof::{Doing, Failure, Outcome};
use crate::ticks::Scale;

/// The method that ends a server of [`Lend`], or of a scenario.
const STOP: u16 = 0xff;

/// Names of the markers that were printed.
static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Prints a line of markers, `name=value`, and remembers their names.
pub fn print_markers(line: core::fmt::Arguments<'_>) {
    let line = alloc::format!("{line}");
    println!("{line}");
    let names = line.split_whitespace().filter_map(|word| word.split_once('='));
    PRINTED.lock().extend(names.map(|(name, _)| name.to_owned()));
}

/// [`print_markers`] for a formatted line.
#[macro_export]
macro_rules! markers {
    ($($line:tt)*) => { $crate::contexts::print_markers(::core::format_args!($($line)*)) };
}

/// Fails unless each of `names` was printed.
pub fn all_printed(names: &[&str]) -> Outcome {
    let printed = PRINTED.lock();
    let missing = names.iter().find(|name| !printed.iter().any(|one| one == *name));
    missing.map_or(Ok(()), |name| Err(Failure::new(format_args!("the marker {name} is missing"))))
}

/// The context from which this process may create others.
pub fn context() -> Outcome<SchedulingContext> {
    caps::any().doing("scheduling_context")
}

/// Waits until the time used by dropped contexts of this proof is back (S-13): one of their periods, and some more.
pub fn all_back() -> Outcome {
    Ok(rt::time::sleep(250 * kit::MS)?)
}

/// Specifications of `count` contexts that fill `permille` of a CPU, in two bands and with incommensurable periods, so that the admission test
/// has much to examine.
pub fn crowd(count: u64, seed: u64, permille: u64) -> Vec<Spec> {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let spec = |index: u64| {
        let period_ns = (24 + random(50)) * MS + random(MS);
        // Minus what the kernel adds for its own overhead.
        let budget_ns = period_ns * permille / 1000 / count - 12_000;
        Spec::new(budget_ns, period_ns).criticality((index % 2) as u8).cpus([0])
    };
    (0..count).map(spec).collect()
}

/// Creates a context.
pub fn new_context(spec: &Spec) -> Outcome<SchedulingContext> {
    context()?.create(spec)?.context().doing("create a context")
}

/// As [`new_context`]; while that is refused, waits for the time used by contexts that are gone to come back (S-13).
pub fn new_context_soon(spec: &Spec) -> Outcome<SchedulingContext> {
    for _ in 0..50 {
        if let Ok(made) = new_context(spec) {
            return Ok(made);
        }
        rt::time::sleep(spec.period_ns / 2)?;
    }
    new_context(spec)
}

/// Another capability to the same context.
pub fn copy(context: &SchedulingContext) -> Outcome<SchedulingContext> {
    use rt::abi::rights;
    let band = context.info().map_or(0, |info| info.value.spec.criticality);
    let all = rights::ALL & !rights::RECV | rights::up_to_band(band);
    Ok(SchedulingContext::of(context.cap().copy(all, 0).doing("copy")?))
}

/// Computes for this much CPU time.
pub fn burn(ns: u64, scale: Scale) {
    fair::compute(ns, scale);
}

/// A server in a thread of its own, without a context, and the endpoint to call it by.
pub struct Lend {
    /// The endpoint at which the server is called.
    pub endpoint: Arc<Endpoint>,
    /// The server's thread.
    pub server: JoinHandle<Outcome>,
    /// The number of the server's thread.
    pub tid: u32,
}

impl Lend {
    /// Starts a server that answers what `serve` returns, and waits until it waits for calls.
    pub fn start(serve: impl FnMut(&Incoming) -> Answer<'static> + Send + 'static) -> Outcome<Lend> {
        Lend::start_on(None, serve)
    }

    /// As [`Lend::start`], pinned to `cpu`.
    pub fn start_on(
        cpu: Option<u8>,
        serve: impl FnMut(&Incoming) -> Answer<'static> + Send + 'static,
    ) -> Outcome<Lend> {
        let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
        let theirs = Arc::clone(&endpoint);
        let mut serve = serve;
        let tid = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&tid);
        let server = Builder::new()
            .spawn(move || {
                if let Some(cpu) = cpu {
                    caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
                }
                told.store(thread::id(), Ordering::Relaxed);
                let mut call = theirs.recv(&mut [])?;
                while call.method != STOP {
                    let answer = serve(&call);
                    call = theirs.reply_recv(call.token, answer, &mut [])?;
                }
                theirs.reply(call.token, Answer::Words([0; 2]))?;
                Ok(())
            })
            .doing("start a server")?;
        kit::wait_until("a server starts", || Ok(tid.load(Ordering::Relaxed) != 0))?;
        let tid = tid.load(Ordering::Relaxed);
        kit::wait_blocked(tid)?;
        Ok(Lend { endpoint, server, tid })
    }

    /// Ends the server.
    pub fn stop(self) -> Outcome {
        self.endpoint.call(STOP, [0; 2]).doing("stop a server")?;
        self.server.join().doing("join a server")?
    }
}

/// The CPU that the calling thread runs on.
pub fn cpu_now() -> Outcome<u32> {
    let threads = kit::system()?.threads().doing("threads")?;
    let (pid, tid) = (rt::boot_info().pid, thread::id());
    let mine = threads.iter().find(|listed| (listed.pid, listed.tid) == (pid, tid));
    mine.map(|listed| listed.cpu).ok_or_else(|| Failure::new("the calling thread is not listed"))
}

/// The CPU that the calling thread runs on, read without a system call: this emulator numbers APIC IDs like CPUs.
pub fn own_cpu() -> u32 {
    core::arch::x86_64::__cpuid(1).ebx >> 24
}
