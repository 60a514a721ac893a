//! Proof that completions are for a thread, not for its number (K-05): a thread begins to wait and ends; the next one gets its number and
//! begins to wait for something else in the same slot. Then the event for which the first one waited happens. The second thread must not
//! notice.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use programs::ensure;
use programs::machine::{Before, MS, command};
use programs::proof::{Doing, Outcome, prove, step};
use rt::clients::{Answer, Incoming};
use rt::thread::JoinHandle;
use rt::{Endpoint, Error, Factory, ParkSpace, Pending, ProcessSpawner, args, caps, println, thread, time};

rt::main!(run);

/// How often a pair of threads is created until both have the same number.
const TRIES: u32 = 50;
/// How long the second thread is watched.
const WATCH_NS: u64 = 60 * MS;
/// How long an expected call may take, on any host. The planted bug also loses wake-ups: then it takes this long to find the call.
const CALL_NS: u64 = 5_000 * MS;
const ROUNDS: u32 = 10;

fn run() -> i64 {
    if args::args().next() == Some("child") {
        // Runs until its parent calls, or kills it.
        let gate = caps::get::<Endpoint>("gate");
        return i64::from(gate.and_then(|gate| gate.call(1, [0; 2])).is_err());
    }
    prove("stale-completion", || {
        let before = Before::take()?;
        step("an answer to a call of an ended thread (K-05)", || rounds(call))?;
        step("a call for a receiver that has ended (K-05)", || rounds(recv))?;
        step("the end of a process that an ended thread waited for (K-05)", || rounds(process))?;
        step("the end of a thread that an ended thread joined (K-05)", || rounds(join))?;
        step("a sleep of an ended thread (K-05)", || rounds(sleep))?;
        step("a park of an ended thread (K-05)", || rounds(park))?;
        println!("    {} completions found nobody", before.counter("stale_completions")?);
        Ok(())
    })
}

fn rounds(case: fn() -> Outcome) -> Outcome {
    (0..ROUNDS).try_for_each(|_| case())
}

/// Lets a thread begin `first` and end, and another one with the same number begin `second`, which is then watched: returns its result,
/// or `None` if it still waits after [`WATCH_NS`]. While the second thread waits, `event` triggers what the first one waited for.
fn pair<T: Send + 'static>(
    first: impl Fn() -> Result<Pending<T>, Error> + Clone + Send + 'static,
    second: impl Fn() -> Result<Pending<T>, Error> + Clone + Send + 'static,
    event: impl Fn() -> Outcome,
) -> Outcome<Option<Result<T, Error>>> {
    for _ in 0..TRIES {
        let first = first.clone();
        let begin = move || {
            let pending = first();
            let is_begun = pending.is_ok();
            // The buffers stay allocated, and the operation is under way when the thread ends.
            core::mem::forget(pending);
            (thread::id(), is_begun)
        };
        let (number, is_begun) = thread::Builder::new().spawn(begin).doing("spawn the first")?.join()?;
        ensure!(is_begun, "the first thread could not begin to wait");
        let gate = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let (theirs, second) = (Arc::clone(&gate), second.clone());
        let watch = move || {
            theirs.1.store(thread::id(), Ordering::Relaxed);
            let pending = second();
            theirs.0.store(1, Ordering::Release);
            let mut pending = match pending {
                Ok(pending) => pending,
                Err(error) => return (Some(Err(error)), 0),
            };
            let result = pending.wait_timeout(WATCH_NS);
            drop(pending);
            (result, rt::ring::strays())
        };
        let watcher: JoinHandle<_> = thread::Builder::new().spawn(watch).doing("spawn the second")?;
        while gate.0.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        event()?;
        let (result, strays) = watcher.join()?;
        ensure!(strays == 0, "the second thread got {strays} completions that are not its own");
        if gate.1.load(Ordering::Relaxed) == number {
            return Ok(result);
        }
    }
    Err(programs::proof::Failure::new("the number of a thread that ended was not used again"))
}

fn undisturbed<T>(result: Option<Result<T, Error>>, what: &str) -> Outcome {
    match result {
        None => Ok(()),
        Some(Ok(_)) => Err(programs::proof::Failure::new(format_args!("{what}"))),
        Some(Err(error)) => Err(programs::proof::Failure::new(format_args!("{what}: {error}"))),
    }
}

fn endpoint() -> Outcome<Arc<Endpoint>> {
    Ok(Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?))
}

fn receive(endpoint: &Endpoint) -> Outcome<Incoming> {
    let mut pending = endpoint.recv_start(0).doing("receive")?;
    let call = pending.wait_timeout(CALL_NS);
    call.ok_or_else(|| programs::proof::Failure::new("no call comes"))?.doing("receive")
}

/// The server has the first call when its thread ends, and answers it while the second thread waits for another answer.
fn call() -> Outcome {
    const FIRST: u64 = 0x1111;
    const SECOND: u64 = 0x2222;
    let server = endpoint()?;
    for _ in 0..TRIES {
        let theirs = Arc::clone(&server);
        let begin = move || {
            let pending = theirs.call_start(1, [FIRST, 0]);
            let is_begun = pending.is_ok();
            core::mem::forget(pending);
            // The thread waits until the server has the call: the answer must find a call in flight.
            let seen = theirs.call(2, [0; 2]);
            (thread::id(), is_begun && seen.is_ok())
        };
        let first = thread::Builder::new().spawn(begin).doing("spawn the first")?;
        let one = receive(&server)?;
        ensure!(one.message.words()[0] == FIRST, "another call came: {one:?}");
        let sync = receive(&server)?;
        server.reply(sync.token, Answer::Words([0; 2])).doing("answer")?;
        let (number, is_begun) = first.join()?;
        ensure!(is_begun, "the first thread could not call");
        let theirs = Arc::clone(&server);
        let second = move || (thread::id(), theirs.call(1, [SECOND, 0]), rt::ring::strays());
        let second = thread::Builder::new().spawn(second).doing("spawn the second")?;
        let two = receive(&server)?;
        ensure!(two.message.words()[0] == SECOND, "another call came: {two:?}");
        let late = server.reply(one.token, Answer::Words([FIRST, FIRST]));
        let answered = server.reply(two.token, Answer::Words([SECOND, SECOND]));
        let (same, result, strays) = second.join()?;
        let words = result.doing("the second call")?;
        ensure!(
            words == [SECOND; 2],
            "the second thread was told {words:x?}, the answer to the call of an ended thread"
        );
        ensure!(strays == 0, "the second thread got {strays} completions that are not its own");
        ensure!(late.is_err(), "a call of an ended thread was answered");
        answered.doing("answer the second call")?;
        if same == number {
            return Ok(());
        }
    }
    Err(programs::proof::Failure::new("the number of a thread that ended was not used again"))
}

fn recv() -> Outcome {
    let (first, second) = (endpoint()?, endpoint()?);
    let (one, two, caller) = (Arc::clone(&first), Arc::clone(&second), Arc::clone(&first));
    let event = || {
        // Nobody receives the call; it is cancelled again.
        drop(caller.call_start(7, [7; 2]).doing("call")?);
        Ok(())
    };
    let result = pair(move || one.recv_start(0), move || two.recv_start(0), event)?;
    undisturbed(result, "the second thread received a call on an endpoint of the first")
}

fn process() -> Outcome {
    let gate = endpoint()?;
    let spawner: ProcessSpawner = caps::any()?;
    let start = || {
        use rt::Client;
        let rights = rt::abi::rights::CALL;
        let command = command("stale-completion", "waiting").arg("child");
        command.grant("gate", gate.cap(), rights, 0).spawn(&spawner).doing("start a child").map(Arc::new)
    };
    let (first, second) = (start()?, start()?);
    let (one, two) = (Arc::clone(&first), Arc::clone(&second));
    let event = || {
        // The second time the process has already ended.
        let _ = first.handle.kill();
        Ok(())
    };
    let result = pair(move || one.handle.wait_start(), move || two.handle.wait_start(), event)?;
    second.handle.kill().doing("kill")?;
    undisturbed(result, "the second thread was told of the end of a process for which the first waited")
}

fn join() -> Outcome {
    // Two threads that wait until they are let go, and two that join them.
    let let_go = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let (one, two) = (Arc::clone(&let_go), Arc::clone(&let_go));
    let wait = |word: &AtomicU32| {
        while word.load(Ordering::Acquire) == 0 {
            let _ = time::sleep(MS / 4);
        }
    };
    let first = Arc::new(thread::Builder::new().spawn(move || wait(&one.0)).doing("spawn")?);
    let second = Arc::new(thread::Builder::new().spawn(move || wait(&two.1)).doing("spawn")?);
    let begin = |target: &Arc<JoinHandle<()>>| {
        let target = Arc::clone(target);
        move || target.handle().ok_or(Error::BadReply).and_then(|handle| handle.join_start())
    };
    let event = || {
        let_go.0.store(1, Ordering::Release);
        Ok(())
    };
    let result = pair(begin(&first), begin(&second), event);
    let_go.0.store(1, Ordering::Release);
    let_go.1.store(1, Ordering::Release);
    undisturbed(result?, "the second thread was told of the end of a thread that the first joined")
}

fn sleep() -> Outcome {
    let first = || time::timer()?.sleep_start(20 * MS);
    let second = || time::timer()?.sleep_start(3600 * 1000 * MS);
    let result = pair(first, second, || Ok(()))?;
    undisturbed(result, "the second thread was woken from a sleep of the first")
}

fn park() -> Outcome {
    // PARK has no `Pending`: the second thread parks with a time limit of its own and looks at what it is told.
    static WORDS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
    let space: ParkSpace = caps::any()?;
    for _ in 0..TRIES {
        let begin = || {
            let space: ParkSpace = caps::any()?;
            // The park times out just when the thread ends.
            space.park(&WORDS[0], 0, MS / 2)?;
            Ok::<_, Error>(thread::id())
        };
        let number = thread::Builder::new().spawn(begin).doing("spawn")?.join()?.doing("park")?;
        let watch = || {
            let space: ParkSpace = caps::any()?;
            Ok::<_, Error>((thread::id(), space.park(&WORDS[1], 0, WATCH_NS / 3)?))
        };
        let second = thread::Builder::new().spawn(watch).doing("spawn")?;
        let woken = space.unpark(&WORDS[0], 1).doing("unpark")?;
        let (same, parked) = second.join()?.doing("park")?;
        ensure!(woken == 0, "{woken} threads were parked where nobody is");
        ensure!(parked == rt::Parked::TimedOut, "the second thread's park ended as {parked:?}");
        if same == number {
            return Ok(());
        }
    }
    Err(programs::proof::Failure::new("the number of a thread that ended was not used again"))
}
