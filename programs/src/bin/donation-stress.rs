//! Loans across CPUs, thousands of them, while contexts are revoked and servers and clients are killed in the middle (S-06, S-07).
//!
//! Clients are bound to contexts of one CPU each; servers begin on other CPUs, in a process of their own that is killed repeatedly. Nothing
//! may be lost: every call is answered or fails with a named error, no context stays lent, and the kernel's memory comes back.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::contexts::{copy, new_context, new_context_soon, own_cpu};
use programs::ensure;
use programs::kit::{self, MS, Patience, Usage};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use rt::abi::{Exception, TransportError, rights};
use rt::sync::Mutex;
use rt::{
    Answer, Client, Endpoint, Error, Factory, Fallback, SchedulingContext, Spec, ThreadControl, args, caps,
    println, thread, time,
};

rt::main!(run);

/// How many calls must have been answered by a server from another CPU (on one CPU: answered), unless the first argument says otherwise; the
/// second is the seed.
const ROUNDS: u64 = 10_000;
const CLIENTS: usize = 3;
const SERVERS: usize = 3;

fn run() -> i64 {
    match args::args().next() {
        Some("server") => serve_all(),
        Some("client") => doomed_client(),
        _ => prove("donation-stress", || {
            let rounds = args::number(0, ROUNDS).doing("the number of rounds is no number")?;
            let seed = args::number(1, 1).doing("the seed is no number")?;
            let before = Usage::settled()?;
            step("loans, revocations and kills (S-06, S-07)", || storm(rounds, seed))?;
            step("nothing is left of it", || {
                ensure!(kit::system()?.contexts().doing("contexts")?.is_empty(), "contexts are left");
                before.comes_back("memory")
            })
        }),
    }
}

/// The body of a server. On every second round it returns to the CPU where it began before it waits for the next call, so that the loan moves
/// it to another CPU; on the others it waits where the last loan left it, which is the fast path. It answers with the CPU that it works on and
/// the one that it waited on.
fn serve(endpoint: &Endpoint, next: Option<&Endpoint>, first: u32) -> Outcome {
    let control: ThreadControl = caps::any()?;
    let cpus = rt::boot_info().cpus.min(8);
    let all = [0xff >> (8 - cpus)];
    let go_home = || {
        control.set_affinity(&[1 << (first % cpus)]).doing("begin elsewhere")?;
        control.set_affinity(&all).doing("go anywhere")
    };
    loop {
        go_home()?;
        let mut was = own_cpu();
        let mut call = endpoint.recv(&mut []).doing("receive")?;
        for is_last in [false, true] {
            let now = own_cpu();
            let [deeper, _] = call.message.words();
            if let Some(next) = next.filter(|_| deeper > 0) {
                // Lends along another call; if the server of that call is killed, so is this one.
                let _ = next.call(1, [0; 2]);
            }
            let answer = Answer::Words([u64::from(now), u64::from(core::mem::replace(&mut was, now))]);
            if is_last {
                endpoint.reply(call.token, answer).doing("answer")?;
                break;
            }
            call = endpoint.reply_recv(call.token, answer, &mut []).doing("answer and receive")?;
        }
    }
}

/// The main function of the process of servers, which runs until it is killed.
fn serve_all() -> i64 {
    let (Ok(first), Ok(second)) = (caps::get::<Endpoint>("served"), caps::get::<Endpoint>("deeper")) else {
        return 1;
    };
    let (first, second) = (Arc::new(first), Arc::new(second));
    let threads: Vec<_> = (0..2 * SERVERS as u32)
        .map(|at| {
            let (first, second) = (Arc::clone(&first), Arc::clone(&second));
            thread::spawn(move || {
                if at % 2 == 0 { serve(&first, Some(&second), at) } else { serve(&second, None, at) }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| {
        let _ = thread.join();
    });
    0
}

/// The main function of a process with one client, which runs until it is killed.
fn doomed_client() -> i64 {
    let calls = || -> Outcome {
        let endpoint: Endpoint = caps::get("served")?;
        // The time that earlier clients used is held until it would be back (S-13).
        let own = new_context_soon(&Spec::new(MS, 10 * MS))?;
        own.bind(Fallback::BestEffort)?.ok()?;
        loop {
            let _ = endpoint.call(1, [1, 0]);
        }
    };
    i64::from(calls().is_err())
}

#[derive(Default)]
struct Tally {
    answered: AtomicU64,
    across: AtomicU64,
    failed: AtomicU64,
    rebound: AtomicU64,
    is_over: AtomicBool,
}

/// Whether an error is one that a call may end with: the server is gone, its endpoint is overloaded, or the loan would form a cycle or go too
/// deep.
fn is_expected(error: &Error) -> bool {
    matches!(error, Error::Exception { kind: Exception::Disconnected | Exception::Overloaded, .. })
        || matches!(error.transport(), Some(TransportError::LoanCycle | TransportError::LoanTooDeep))
}

fn client(
    endpoint: &Endpoint,
    number: usize,
    shared: &Mutex<Vec<Option<SchedulingContext>>>,
    tally: &Tally,
) -> Outcome {
    let cpu = number as u32 % rt::boot_info().cpus;
    let spec = Spec::new(4 * MS, 10 * MS).cpus([cpu]);
    let mut random = Random::new(number as u64 + 77);
    let mut own: Option<SchedulingContext> = None;
    while !tally.is_over.load(Ordering::Relaxed) {
        if own.as_ref().is_none_or(|own| own.info().is_ok_and(|info| info.result != rt::OperationResult::Ok))
        {
            own = None;
            let Ok(new) = new_context(&spec) else {
                time::sleep(MS)?;
                continue;
            };
            new.bind(Fallback::BestEffort)?.ok()?;
            shared.lock()[number] = Some(copy(&new)?);
            own = Some(new);
            tally.rebound.fetch_add(1, Ordering::Relaxed);
        }
        match endpoint.call(1, [random.below(3), 0]) {
            Ok([on, before]) => {
                tally.answered.fetch_add(1, Ordering::Relaxed);
                if on != before {
                    tally.across.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) if is_expected(&error) => {
                tally.failed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return Err(Failure::new(format_args!("client {number}: {error}"))),
        }
        if let Some(own) = &own {
            let info = own.info()?;
            ensure!(info.value.lent_depth == 0, "client {number} runs while its context is lent: {info:?}");
        }
    }
    Ok(())
}

fn storm(rounds: u64, seed: u64) -> Outcome {
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let deeper = caps::any::<Factory>()?.endpoint().doing("make an endpoint")?;
    let tally = Arc::new(Tally::default());
    let shared = Arc::new(Mutex::new(Vec::new()));
    (0..CLIENTS).for_each(|_| shared.lock().push(None));
    let loans = kit::counter("loans")?;
    let mut random = Random::new(seed);
    let start_server = || {
        let served = [("served", endpoint.cap(), rights::ALL, 0), ("deeper", deeper.cap(), rights::ALL, 0)];
        kit::again(&["server"], &served)
    };
    let mut server = start_server()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (endpoint, shared, tally) = (Arc::clone(&endpoint), Arc::clone(&shared), Arc::clone(&tally));
            thread::spawn(move || client(&endpoint, number, &shared, &tally))
        })
        .collect();
    let (mut patience, mut last) = (Patience::default(), 0);
    let (mut revoked, mut killed) = (0u64, 0u64);
    let counted = if rt::boot_info().cpus == 1 { &tally.answered } else { &tally.across };
    while counted.load(Ordering::Relaxed) < rounds || revoked <= 10 || killed <= 10 {
        let now = counted.load(Ordering::Relaxed);
        if now != last {
            (last, patience) = (now, Patience::default());
        }
        ensure!(patience.is_left(), "{now} rounds, and then no more");
        time::sleep(1 + random.below(MS))?;
        match random.below(10) {
            0 => {
                server.handle.kill().doing("kill the server")?;
                server.wait().doing("wait for the server")?;
                server = start_server()?;
                killed += 1;
            }
            1 => {
                let doomed = kit::again(&["client"], &[("served", endpoint.cap(), rights::CALL, 0)])?;
                time::sleep(random.below(5 * MS))?;
                doomed.handle.kill().doing("kill a client")?;
                doomed.wait().doing("wait for a client")?;
                killed += 1;
            }
            2..7 => {
                let victim = shared.lock()[random.below(CLIENTS as u64) as usize].take();
                if let Some(victim) = victim {
                    victim.revoke()?.ok().doing("revoke")?;
                    revoked += 1;
                }
            }
            _ => {}
        }
    }
    tally.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join()??;
    }
    server.handle.kill().doing("kill the server")?;
    server.wait().doing("wait for the server")?;
    shared.lock().clear();
    let (answered, across) = (tally.answered.load(Ordering::Relaxed), tally.across.load(Ordering::Relaxed));
    let lent = kit::counter("loans")? - loans;
    println!(
        "    {answered} calls answered, {across} of them by a server that came from another CPU; {} failed; {lent} loans, {revoked} \
         revocations, {killed} kills, {} contexts",
        tally.failed.load(Ordering::Relaxed),
        tally.rebound.load(Ordering::Relaxed)
    );
    ensure!(lent * 2 > answered, "{lent} loans in {answered} calls");
    Ok(())
}
