//! What a guest written in Rust can ask of the runtime: `janus.h`, with types. Each import exists only if its right was
//! granted, and a guest imports only what it uses.
#![allow(dead_code)]

use std::ptr;

/// The five parts of a budget, in the order of the specification.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    pub ops: u64,
    pub memory: u64,
    pub spawn_count: u64,
    pub channel_ops: u64,
    pub syscalls: u64,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    NoSuch,
    Failed,
    Budget,
    Cancelled,
    Fault,
    Closed,
    TooLong,
}

/// A child is another instance of the same module, with a memory of its own: it begins with this function and a number.
pub type Entry = extern "C" fn(i64) -> i64;

mod imports {
    #[link(wasm_import_module = "janus")]
    extern "C" {
        #[link_name = "yield"]
        pub fn give_way();
        pub fn spawn(entry: super::Entry, argument: i64, budget: *const super::Budget) -> i32;
        pub fn join(child: i32, result: *mut i64) -> i32;
        pub fn cancel(child: i32) -> i32;
        pub fn budget_left(part: i32) -> u64;
        pub fn budget_recharge(part: i32, amount: u64) -> i32;
        pub fn channel(capacity: u32) -> i32;
        pub fn send(channel: i32, message: *const u8, length: u32) -> i32;
        pub fn receive(channel: i32, buffer: *mut u8, length: u32) -> i32;
        pub fn close(channel: i32) -> i32;
        pub fn sleep(nanoseconds: u64);
    }
}

fn checked(answer: i32) -> Result<i32, Error> {
    Err(match answer {
        0.. => return Ok(answer),
        -1 => Error::NoSuch,
        -3 => Error::Budget,
        -4 => Error::Cancelled,
        -5 => Error::Fault,
        -6 => Error::Closed,
        -7 => Error::TooLong,
        _ => Error::Failed,
    })
}

/// Lets other tasks run.
pub fn give_way() {
    // SAFETY: it takes nothing.
    unsafe { imports::give_way() }
}

/// What is left of a part of the budget, by its index in [`Budget`].
pub fn budget_left(part: i32) -> u64 {
    // SAFETY: it takes numbers.
    unsafe { imports::budget_left(part) }
}

/// Recharges the budget; needs the right `budget`.
pub fn recharge(part: i32, amount: u64) -> Result<(), Error> {
    // SAFETY: it takes numbers.
    checked(unsafe { imports::budget_recharge(part, amount) }).map(drop)
}

/// Sleeps; needs the right `clock`.
pub fn sleep(nanoseconds: u64) {
    // SAFETY: it takes a number.
    unsafe { imports::sleep(nanoseconds) }
}

/// A child; needs the right `spawn`. A child that is not joined is cancelled when its parent ends.
pub struct Child(i32);

impl Child {
    /// Starts a child. Without a budget it gets an eighth of what is left of its parent's, or 1M operations and 16 MiB where
    /// that is less; a budget error means that no child fits into that.
    pub fn spawn(entry: Entry, argument: i64, budget: Option<&Budget>) -> Result<Child, Error> {
        let budget = budget.map_or(ptr::null(), |budget| budget);
        // SAFETY: the budget is null, or lives during the call.
        checked(unsafe { imports::spawn(entry, argument, budget) }).map(Child)
    }

    /// Waits for its end; returns what its function returned.
    pub fn join(self) -> Result<i64, Error> {
        let mut result = 0;
        // SAFETY: the result lives during the call.
        checked(unsafe { imports::join(self.0, &mut result) })?;
        Ok(result)
    }

    pub fn cancel(&self) -> Result<(), Error> {
        // SAFETY: it takes a number.
        checked(unsafe { imports::cancel(self.0) }).map(drop)
    }
}

/// A channel; needs the right `messages`. It is a number that a guest and its children share.
#[derive(Clone, Copy)]
pub struct Channel(pub i32);

impl Channel {
    /// A channel with room for `capacity` messages.
    pub fn new(capacity: u32) -> Result<Channel, Error> {
        // SAFETY: it takes a number.
        checked(unsafe { imports::channel(capacity) }).map(Channel)
    }

    pub fn send(self, message: &[u8]) -> Result<(), Error> {
        // SAFETY: so many bytes are there to be read.
        checked(unsafe { imports::send(self.0, message.as_ptr(), message.len() as u32) }).map(drop)
    }

    /// Waits for a message; returns its length.
    pub fn receive(self, buffer: &mut [u8]) -> Result<usize, Error> {
        // SAFETY: so many bytes are there to be written.
        let answer = unsafe { imports::receive(self.0, buffer.as_mut_ptr(), buffer.len() as u32) };
        checked(answer).map(|length| length as usize)
    }

    /// Allows no more messages: once the remaining ones were received, receivers are told that the channel is closed.
    pub fn close(self) -> Result<(), Error> {
        // SAFETY: it takes a number.
        checked(unsafe { imports::close(self.0) }).map(drop)
    }
}
