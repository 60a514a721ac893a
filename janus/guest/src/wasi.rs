//! WASI preview 1, as far as a program needs it to read its arguments, its input and the files that it was given, and to
//! write its output. Every function of it exists, so that a program that merely links one runs; the unsupported ones
//! return an error number.

pub(crate) mod errno;
mod files;
mod poll;
mod transfer;

pub(crate) use files::Files;

use crate::imports::Call;
use crate::machine::{Machine, Stop};
use crate::world::World;
use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most random bytes at a time.
const RANDOM_MAX: u64 = 4 << 10;

fn locked<T, R>(lock: &Mutex<T>, act: impl FnOnce(&mut T) -> R) -> R {
    act(&mut lock.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The number and the total size of strings, as `args_get` and `environ_get` want them.
fn sizes(strings: &[String]) -> (u32, u32) {
    (strings.len() as u32, strings.iter().map(|s| s.len() as u32 + 1).sum())
}

/// The four bytes of a number in a guest's memory.
fn word(bytes: &[u8]) -> u64 {
    u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

impl Machine<'_, '_, '_> {
    /// Serves a call of WASI. An error number is for the guest to handle; only a cancelled task stops.
    pub(crate) fn wasi(&mut self, call: Call, args: &[u64]) -> Result<i32, Stop> {
        match call {
            Call::ArgsGet => self.strings(|world| &world.args, args),
            Call::EnvironGet => self.strings(|world| &world.env, args),
            Call::ArgsSizes | Call::EnvironSizes => {
                let World { args: arguments, env, .. } = &*self.family.world;
                let (count, bytes) = sizes(if call == Call::ArgsSizes { arguments } else { env });
                Ok(self.two(args, count, bytes))
            }
            Call::ClockRes => Ok(self.put(args[1], &1u64.to_le_bytes())),
            Call::ClockTime => Ok(match self.clock(args[0]) {
                Some(began) => self.put(args[2], &((began + self.cx.now()).as_nanos() as u64).to_le_bytes()),
                None => errno::INVAL,
            }),
            Call::Poll => self.poll(args),
            Call::Random => self.random(args),
            Call::Raise => Ok(errno::NOSYS),
            Call::FdRead => self.read(args, None),
            Call::FdReadAt => self.read(args, Some(args[3])),
            Call::FdWrite => self.write_out(args, None),
            Call::FdWriteAt => self.write_out(args, Some(args[3])),
            Call::FdSync => self.sync(args[0]),
            Call::FdReadDir => self.list(args),
            Call::PathOpen => self.open(args),
            Call::Refuse(error) => {
                self.io()?;
                Ok(error)
            }
            _ => {
                self.io()?;
                Ok(self.look(call, args))
            }
        }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> i32 {
        if self.vm.write(at, bytes) { errno::SUCCESS } else { errno::FAULT }
    }

    fn two(&mut self, args: &[u64], first: u32, second: u32) -> i32 {
        match self.put(args[0], &first.to_le_bytes()) {
            errno::SUCCESS => self.put(args[1], &second.to_le_bytes()),
            error => error,
        }
    }

    fn strings(&mut self, which: fn(&World) -> &Vec<String>, args: &[u64]) -> Result<i32, Stop> {
        let (mut pointer, mut at) = (args[0], args[1]);
        let family = self.family.clone();
        let strings = which(&family.world);
        self.work(u64::from(sizes(strings).1))?;
        for string in strings {
            let text = [string.as_bytes(), b"\0"].concat();
            let here = (at as u32).to_le_bytes();
            if !self.vm.write(pointer, &here) || !self.vm.write(at, &text) {
                return Ok(errno::FAULT);
            }
            pointer += 4;
            at += text.len() as u64;
        }
        Ok(errno::SUCCESS)
    }

    /// What a clock showed when the runtime began.
    fn clock(&self, id: u64) -> Option<Duration> {
        match id {
            0 => Some(self.family.world.epoch),
            1 => Some(Duration::ZERO),
            _ => None,
        }
    }

    fn random(&mut self, args: &[u64]) -> Result<i32, Stop> {
        let len = args[1];
        if len > RANDOM_MAX {
            return Ok(errno::INVAL);
        }
        self.work(len)?;
        let mut bytes = vec![0; len as usize];
        match self.family.world.seed {
            Some(seed) => {
                for chunk in bytes.chunks_mut(8) {
                    self.files.random = self.files.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
                    let word = scramble(seed ^ self.files.random).to_le_bytes();
                    chunk.copy_from_slice(&word[..chunk.len()]);
                }
            }
            None => {
                self.io()?;
                if File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).is_err() {
                    return Ok(errno::IO);
                }
            }
        }
        Ok(self.put(args[0], &bytes))
    }
}

/// The output function of splitmix64.
fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
