//! The console as programs have it: what they write, and the input that arrives on the serial line. The kernel's own output is in `log`.
//!
//! The interrupt handler puts arriving bytes into a ring. Giving them to a reader needs the reader's memory, and is done after the handler.

use crate::arch::serial;
use crate::context::complete;
use crate::lock::{Rank, SpinLock};
use crate::log;
use crate::process::Process;
use crate::process::records::Owned;
use crate::ring::{self, Completion, Waitable, Waiter};
use crate::thread::Thread;
use abi::{MAX_IO_BYTES, TransportError};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const INPUT_BYTES: usize = 1024;
/// How many reads may wait in all, and of one process, so that no process takes all places.
const MAX_READERS: usize = 64;
const MAX_READERS_OF_PROCESS: usize = 4;

/// Writes bytes of a program.
pub fn write(thread: &Thread, address: u64, length: u32) -> Completion {
    if length as usize > MAX_IO_BYTES {
        return Completion::error(TransportError::TooLong);
    }
    let process = &thread.body().process;
    let mut chunk = [0; 256];
    let mut done = 0;
    while done < length as usize {
        let count = (length as usize - done).min(chunk.len());
        if process.space.read(address.wrapping_add(done as u64), &mut chunk[..count]).is_err() {
            return Completion { value: done as u64, ..Completion::error(TransportError::BadAddress) };
        }
        log::write(&chunk[..count]);
        done += count;
        crate::preempt::point();
    }
    Completion::value(u64::from(length))
}

struct Input {
    bytes: [u8; INPUT_BYTES],
    first: usize,
    count: usize,
}

static INPUT: SpinLock<Input> =
    SpinLock::new(Rank::Console, Input { bytes: [0; INPUT_BYTES], first: 0, count: 0 });
static ARRIVED: AtomicBool = AtomicBool::new(false);
/// Bytes that arrived when the ring was full.
pub static LOST: AtomicU64 = AtomicU64::new(0);

struct Reader {
    waiter: Waiter,
    process: Arc<Process>,
    address: u64,
    length: u32,
}

/// Under this lock the first reader and the bytes for it are brought together, so bytes and a reader never wait for each other. The reader's memory
/// is written under it, hence the rank, below that of spaces.
static READERS: SpinLock<VecDeque<Reader>> = SpinLock::new(Rank::Process, VecDeque::new());

/// Makes room for all readers that there may be.
pub fn init() {
    READERS.lock().reserve(MAX_READERS);
}

/// Takes the bytes that have arrived; called in the interrupt of the serial line.
pub fn interrupt() {
    let mut input = INPUT.lock();
    for _ in 0..64 {
        let Some(byte) = serial::receive() else { break };
        if input.count == INPUT_BYTES {
            LOST.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let at = (input.first + input.count) % INPUT_BYTES;
        input.bytes[at] = byte;
        input.count += 1;
        ARRIVED.store(true, Ordering::Relaxed);
    }
}

fn take(to: &mut [u8]) -> usize {
    let mut input = INPUT.lock();
    let count = to.len().min(input.count);
    for slot in &mut to[..count] {
        *slot = input.bytes[input.first];
        input.first = (input.first + 1) % INPUT_BYTES;
        input.count -= 1;
    }
    count
}

/// Have bytes arrived that no reader was given yet?
#[inline]
pub fn is_input_waiting() -> bool {
    ARRIVED.load(Ordering::Relaxed)
}

/// Gives bytes that have arrived to readers that wait.
#[inline]
pub fn service() {
    if is_input_waiting() {
        serve();
    }
}

#[cold]
fn serve() {
    ARRIVED.swap(false, Ordering::AcqRel);
    loop {
        let mut readers = READERS.lock();
        let Some(first) = readers.front() else { return };
        let Some(completion) = give(&first.process, first.address, first.length) else { return };
        let reader = readers.pop_front();
        drop(readers);
        if let Some(reader) = reader {
            complete::operation(&reader.waiter, &completion, false);
        }
    }
}

/// Gives bytes that have arrived to one reader; `None` if there are none.
fn give(process: &Process, address: u64, length: u32) -> Option<Completion> {
    if INPUT.lock().count == 0 {
        return None;
    }
    let mut chunk = [0; 64];
    // Checked before anything is taken: bytes that this reader cannot receive belong to the next one.
    if process.space.check_writable(address, length.min(64) as usize).is_err() {
        return Some(Completion::error(TransportError::BadAddress));
    }
    let count = take(&mut chunk[..length.min(64) as usize]);
    if count == 0 {
        return None;
    }
    Some(match process.space.write(address, &chunk[..count]) {
        Ok(()) => Completion::value(count as u64),
        Err(_) => Completion::error(TransportError::BadAddress),
    })
}

/// Reads for a program; `None` if it has to wait.
pub fn read(thread: &'static Thread, user_data: u64, address: u64, length: u32) -> Option<Completion> {
    if length == 0 || length as usize > MAX_IO_BYTES {
        return Some(Completion::error(TransportError::TooLong));
    }
    let process = thread.body().process.clone();
    let mut readers = READERS.lock();
    let own = readers.iter().filter(|reader| Arc::ptr_eq(&reader.process, &process)).count();
    if own >= MAX_READERS_OF_PROCESS || readers.len() >= MAX_READERS {
        return Some(Completion::error(TransportError::NoSpace));
    }
    let Some(waiter) = ring::accept(thread, user_data, Waitable::Read) else {
        return Some(Completion::error(TransportError::NoSpace));
    };
    // K-30: `init` made room for all readers that may wait.
    readers.push_back(Reader { waiter, process, address, length });
    drop(readers);
    serve();
    None
}

/// Removes a reader.
pub fn withdraw(waiter: &Waiter) -> bool {
    let mut readers = READERS.lock();
    let found = readers.iter().position(|r| r.waiter.thread == waiter.thread && r.waiter.op == waiter.op);
    let reader = found.and_then(|at| readers.remove(at));
    drop(readers);
    reader.is_some()
}
