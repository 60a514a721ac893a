//! Proof that processes leave nothing behind: many processes end, by themselves, by faults and by being killed, and the count of free
//! frames is exactly what it was (K-07, K-08).
#![no_std]
#![no_main]

extern crate alloc;

use programs::ensure;
use programs::machine::{Before, MS, command, nap, warm_up};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use rt::abi::{CapId, Op, Sqe, TransportError};
use rt::{Client, ExitReason, ProcessSpawner, SystemInfo, args, caps, println, ring, thread, time, vm};
use schema::messages_capnp::{process_spawner_spawn_params, virtual_memory_map_params};

rt::main!(run);

/// Cycles, if the argument does not say otherwise.
const CYCLES: u64 = 1000;
/// Cycles before the frames are counted; by then the kernel's tables have their final size.
const WARM_UP: u64 = 40;
const SEED: u64 = 7;

fn run() -> i64 {
    match args::args().next() {
        Some("nap") => nap(),
        Some("child") => child(args::args().nth(1).unwrap_or(""), args::number(2, 0).unwrap_or(0)),
        _ => prove("spawn-cycles", || {
            let cycles = args::number(0, CYCLES).doing("the number of cycles is no number")?;
            let mut random = Random::new(SEED);
            warm_up(24, "spawn-cycles", 8)?;
            step("the first cycles, for the kernel's tables", || run_cycles(WARM_UP, &mut random))?;
            let before = Before::take()?;
            println!("    {} frames are free, {} processes are there", before.free, before.processes);
            let start = time::now_ns()?;
            step("processes come and go (K-08)", || run_cycles(cycles, &mut random))?;
            println!("    {cycles} cycles took {} ms", (time::now_ns()? - start) / MS);
            step("what could not be told to the caller is not made (K-21)", untold)?;
            step("not a frame is lost (K-07)", || before.check("after the cycles"))
        }),
    }
}

/// A process or a mapping whose result cannot be delivered: if it were created, nobody would know its number.
fn untold() -> Outcome {
    let mut params = [0; 128];
    let program = args::program();
    let more = schema::words::text(program.len());
    let spawn = |mut params: process_spawner_spawn_params::Builder<'_>| params.set_program(program);
    let length = schema::encode::<process_spawner_spawn_params::Owned>(&mut params, more, spawn)
        .map_err(|_| Failure::new("128 bytes are not enough"))?;
    let spawner: ProcessSpawner = caps::any()?;
    untold_call(&spawner.cap().id(), &params[..length])?;
    let map = |mut params: virtual_memory_map_params::Builder<'_>| params.set_bytes(16 << 20);
    let length = schema::encode::<virtual_memory_map_params::Owned>(&mut params, 0, map)
        .map_err(|_| Failure::new("128 bytes are not enough"))?;
    untold_call(&vm::space()?.cap().id(), &params[..length])
}

/// Calls method 0 of `cap` with a result that has no room, and with one that goes to address 8. The frames are counted later.
fn untold_call(cap: &CapId, params: &[u8]) -> Outcome {
    for (result_len, want) in [(0, TransportError::TooLong), (64, TransportError::BadAddress)] {
        let sqe = Sqe {
            op: Op::Call as u8,
            cap: cap.0,
            addr: params.as_ptr() as u64,
            len: params.len() as u32,
            result_addr: 8,
            result_len,
            ..Sqe::default()
        };
        let before = system_processes()?;
        // SAFETY: the parameters outlive the call, and the kernel cannot write to address 8.
        let status = unsafe { ring::run(sqe) }.status;
        ensure!(status == want as i32, "status {status} instead of {want:?}");
        ensure!(system_processes()? == before, "a process was made all the same");
    }
    Ok(())
}

fn system_processes() -> Outcome<usize> {
    Ok(caps::any::<SystemInfo>()?.processes().doing("processes")?.len())
}

/// The ways in which a child ends, and their percentages.
const WAYS: [(&str, u64); 8] = [
    ("exit", 40),
    ("threads", 15),
    ("leave", 10),
    ("map", 10),
    ("spin", 10),
    ("sleep", 7),
    ("start", 5),
    ("divide", 3),
];

fn run_cycles(count: u64, random: &mut Random) -> Outcome {
    let spawner: ProcessSpawner = caps::any().doing("process_spawner")?;
    let mut tally = [0_u64; WAYS.len()];
    for cycle in 0..count {
        let mut left = random.below(100);
        let way = WAYS.iter().position(|(_, often)| {
            let is_this = left < *often;
            left = left.saturating_sub(*often);
            is_this
        });
        let way = way.unwrap_or(0);
        tally[way] += 1;
        let code = random.below(200).cast_signed();
        one_cycle(&spawner, WAYS[way].0, code, random)
            .doing(&alloc::format!("cycle {cycle} ({})", WAYS[way].0))?;
    }
    for ((way, _), count) in WAYS.iter().zip(tally) {
        println!("    {way:8} {count:4}");
    }
    Ok(())
}

fn one_cycle(
    spawner: &ProcessSpawner,
    way: &str,
    code: i64,
    random: &mut Random,
) -> Result<(), alloc::string::String> {
    let text = |error: rt::Error| alloc::format!("{error}");
    let program = if way == "divide" { "fault" } else { "spawn-cycles" };
    let command = command(program, "cycle");
    let command = if way == "divide" {
        command.arg("divide")
    } else {
        command.arg("child").arg(way).arg(&alloc::format!("{code}"))
    };
    let child = command.spawn(spawner).map_err(text)?;
    match way {
        "spin" | "sleep" => {
            time::sleep(random.below(2 * MS)).map_err(text)?;
            child.handle.kill().map_err(text)?;
        }
        // Killed at the very beginning, before it has run.
        "start" => child.handle.kill().map_err(text)?,
        _ => {}
    }
    let exit = child.wait().map_err(text)?;
    let (reason, code) = match way {
        "divide" => (ExitReason::Faulted, None),
        "spin" | "sleep" | "start" => (ExitReason::Killed, None),
        // The exit code is that of whichever thread is the last.
        "leave" => (ExitReason::Exited, None),
        _ => (ExitReason::Exited, Some(code)),
    };
    if exit.reason != reason || code.is_some_and(|code| code != exit.code) {
        return Err(alloc::format!("ended as {exit}, not {reason:?} with {code:?}"));
    }
    let again = child.handle.exit().map_err(text)?;
    if again != Some(exit) {
        return Err(alloc::format!("the exit code reads as {again:?} afterwards"));
    }
    Ok(())
}

fn child(way: &str, code: u64) -> i64 {
    match inside(way) {
        Ok(()) => code.cast_signed(),
        Err(failure) => {
            println!("spawn-cycles child {way}: {}", failure.0);
            -1
        }
    }
}

fn inside(way: &str) -> Outcome {
    match way {
        "threads" => {
            let handles: alloc::vec::Vec<_> =
                (0..3_u64).map(|n| thread::Builder::new().spawn(move || n * 2)).collect();
            for (n, handle) in handles.into_iter().enumerate() {
                let value = handle.doing("spawn")?.join()?;
                ensure!(value == n as u64 * 2, "thread {n} returned {value}");
            }
        }
        // Starts threads that are never joined.
        "leave" => {
            for _ in 0..2 {
                let _ = thread::Builder::new().spawn(|| time::sleep(MS / 10)).doing("spawn")?;
            }
            time::sleep(MS * 3).doing("sleep")?;
        }
        // Maps memory that is never unmapped.
        "map" => {
            let at = vm::map(64 * 4096).doing("map")?;
            // SAFETY: just mapped, this thread's alone.
            unsafe { at.as_ptr().write_volatile(1) };
        }
        "spin" | "start" => loop {
            core::hint::spin_loop();
        },
        "sleep" => time::sleep(3600 * 1000 * MS).doing("sleep")?,
        _ => {}
    }
    Ok(())
}
