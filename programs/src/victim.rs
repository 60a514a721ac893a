//! The victim: a program that computes something whose result is known, and the thread that watches it.
//!
//! Proofs that mistreat the kernel run a victim at the same time. Each round the victim reports a number over an endpoint, and the watcher
//! computes the same number by itself. Whatever corrupts the victim's memory, registers, messages or timers from outside makes that number
//! differ.

use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rt::abi::rights;
use rt::clients::{Answer, Child, Endpoint, Factory, ProcessSpawner};
use rt::thread::JoinHandle;
use rt::{Client, caps, println, thread};

use crate::machine::{MS, command};
use crate::proof::{Doing, Failure, Outcome};
use crate::random::Random;
use crate::{ensure, kit};

/// The program's name.
pub const PROGRAM: &str = "victim";
/// Method: a round's number and its result.
pub const REPORT: u16 = 1;
/// Method: the victim found nothing wrong and ends.
pub const DONE: u16 = 2;
/// Method: something is broken inside the victim; the words say what.
pub const BROKEN: u16 = 3;
/// Method: the watcher thread itself shall end.
const QUIT: u16 = 4;

/// Pieces of a round, each computed by a different thread.
pub const PARTS: u64 = 4;
/// Words that a piece is made of.
pub const WORDS: u64 = 128;

/// The words of piece `part` of `round`, in order.
pub fn words(round: u64, part: u64) -> impl Iterator<Item = u64> {
    let mut random = Random::new(round << 8 | part);
    (0..WORDS).map(move |_| random.word())
}

/// Mixes one more word into the sum.
pub fn mix(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The result that `round` must have.
pub fn expected(round: u64) -> u64 {
    (0..PARTS).fold(round, |sum, part| mix(sum, words(round, part).fold(part, mix)))
}

/// A victim at work, and the thread that watches it.
pub struct Watch {
    child: Child,
    endpoint: Arc<Endpoint>,
    is_over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    server: JoinHandle<Result<u64, String>>,
}

impl Watch {
    /// Starts a victim.
    pub fn start() -> Outcome<Watch> {
        Watch::start_as("all")
    }

    /// Starts a victim that needs no new memory once it is at work.
    pub fn start_steady() -> Outcome<Watch> {
        Watch::start_as("steady")
    }

    fn start_as(how: &str) -> Outcome<Watch> {
        let factory: Factory = caps::any().doing("factory")?;
        let endpoint = Arc::new(factory.endpoint().doing("an endpoint for the victim")?);
        let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let server = {
            let (endpoint, is_over, rounds) =
                (Arc::clone(&endpoint), Arc::clone(&is_over), Arc::clone(&rounds));
            thread::Builder::new().spawn(move || serve(&endpoint, &is_over, &rounds)).doing("spawn")?
        };
        let child = command(PROGRAM, PROGRAM)
            .arg(how)
            .grant("report", endpoint.cap(), rights::CALL, 0)
            .spawn(&caps::any::<ProcessSpawner>().doing("process_spawner")?)
            .doing("start the victim")?;
        Ok(Watch { child, endpoint, is_over, rounds, server })
    }

    /// Rounds so far whose result was exact.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Fails unless the victim makes progress: `rounds` more rounds within ten seconds.
    pub fn goes_on(&self, rounds: u64) -> Outcome {
        let goal = self.rounds() + rounds;
        for _ in 0..5000 {
            if self.rounds() >= goal {
                return Ok(());
            }
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            rt::time::sleep(2 * MS).doing("sleep")?;
        }
        Err(Failure::new(format_args!(
            "the victim hangs after {} rounds: {:?}",
            self.rounds(),
            self.child.handle.exit()
        )))
    }

    /// Ends the victim; fails if any of its reports was not exact.
    pub fn finish(self) -> Outcome<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut end = self.child.handle.wait_start().doing("wait for the victim")?;
        let exit = kit::patiently(|ns| end.wait_timeout(ns));
        let ended = exit.is_some();
        self.endpoint.call(QUIT, [0; 2]).doing("end the watcher")?;
        let seen = self.server.join().doing("join the watcher")?;
        let rounds = seen.map_err(Failure)?;
        ensure!(ended, "the victim does not end");
        if let Some(exit) = exit {
            let exit = exit.doing("wait for the victim")?;
            ensure!(exit.is_success(), "the victim ended: {exit}");
        }
        println!("    the victim was exact for {rounds} rounds");
        Ok(rounds)
    }
}

fn serve(endpoint: &Endpoint, is_over: &AtomicBool, rounds: &AtomicU64) -> Result<u64, String> {
    let mut wrong = None;
    loop {
        let call = match endpoint.recv(&mut []) {
            Ok(call) => call,
            Err(error) => return Err(alloc::format!("the watcher cannot receive: {error}")),
        };
        let [round, sum] = call.message.words();
        let next = rounds.load(Ordering::Relaxed);
        match call.method {
            REPORT if round == next && sum == expected(round) => {
                rounds.store(round + 1, Ordering::Relaxed);
            }
            REPORT => {
                wrong = wrong.or(Some(alloc::format!(
                    "the victim says {sum:#x} for round {round}; round {next} is due, and {:#x} for {round}",
                    expected(round)
                )));
            }
            BROKEN => {
                wrong = wrong.or(Some(alloc::format!("the victim is broken inside: {round:#x} {sum:#x}")));
            }
            _ => {}
        }
        if let Some(wrong) = &wrong {
            println!("watcher: {wrong}");
            is_over.store(true, Ordering::Relaxed);
        }
        let stop = is_over.load(Ordering::Relaxed);
        // A victim that no longer exists needs no answer.
        let _ = endpoint.reply(call.token, Answer::Words([u64::from(stop), 0]));
        if call.method == QUIT {
            return wrong.map_or(Ok(rounds.load(Ordering::Relaxed)), Err);
        }
    }
}
