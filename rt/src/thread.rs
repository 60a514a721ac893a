//! Threads: a closure, a stack with an unmapped page below it, thread-local data, and a handle to join.

use alloc_crate::boxed::Box;
use alloc_crate::sync::Arc;
use alloc_crate::vec::Vec;
use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::Ring;

use crate::caps;
use crate::clients::{ThreadHandle, ThreadSpawner};
use crate::error::{Error, Result};
use crate::heap::PAGE;
use crate::start::boot_info;
use crate::sync::Mutex;
use crate::tls::{self, Tcb, Template};
use crate::vm;

/// Bytes of a thread's stack unless [`Builder::stack_bytes`] says otherwise.
pub const STACK_BYTES: usize = 64 * 1024;

/// Stacks that are kept for the next thread of the same size.
const CACHED_MAX: usize = 8;

/// Starts a thread that runs `f`.
///
/// # Panics
/// If the kernel refuses: [`Builder::spawn`] returns that as an error.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Builder::new().spawn(f) {
        Ok(handle) => handle,
        Err(error) => panic!("cannot start a thread: {error}"),
    }
}

/// The calling thread's id.
pub fn id() -> u32 {
    tls::current().tid.get()
}

/// Gives the CPU to others that want it.
pub fn yield_now() {
    // A hint to the other hardware thread of the core, in case no thread waits for this CPU; an emulator that counts instructions
    // runs its other CPUs meanwhile.
    core::hint::spin_loop();
    crate::sync::yield_now();
}

/// How a thread is to be created.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    stack_bytes: usize,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// A builder for a stack of [`STACK_BYTES`].
    pub fn new() -> Builder {
        Builder { stack_bytes: STACK_BYTES }
    }

    /// At least this much stack.
    pub fn stack_bytes(self, bytes: usize) -> Builder {
        Builder { stack_bytes: bytes }
    }

    /// Starts a thread that runs `f`.
    pub fn spawn<T: Send + 'static>(self, f: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
        sweep();
        let spawner: ThreadSpawner = caps::any()?;
        let packet = Arc::new(Packet { is_finished: AtomicBool::new(false), result: UnsafeCell::new(None) });
        let theirs = Arc::clone(&packet);
        let run = move || {
            let result = f();
            // SAFETY: no thread reads the result before `is_finished` is set.
            unsafe { *theirs.result.get() = Some(result) };
            theirs.is_finished.store(true, Ordering::Release);
        };
        let region = Region::take(self.stack_bytes)?;
        // SAFETY: the region is new or its last thread has ended.
        let (stack_top, tcb) = unsafe { region.prepare() };
        let start = Box::into_raw(Box::new(Start { run: Box::new(run) }));
        // SAFETY: `entry` expects exactly this: a `Start` of its own, a stack, and the control block at FS.
        let made =
            unsafe { spawner.create(entry as *const () as u64, stack_top, start as u64, tcb as u64, 0) };
        match made {
            Ok(handle) => Ok(JoinHandle { thread: Some(Thread { handle, region }), packet }),
            Err(error) => {
                // SAFETY: no thread took it.
                drop(unsafe { Box::from_raw(start) });
                region.give_back();
                Err(error)
            }
        }
    }
}

/// What a new thread gets from its creator.
struct Start {
    run: Box<dyn FnOnce() + Send>,
}

/// Where a thread leaves its result.
struct Packet<T> {
    /// Set by the thread when the result is there and it only has to end.
    is_finished: AtomicBool,
    result: UnsafeCell<Option<T>>,
}

// SAFETY: the thread writes before `is_finished` is set, the joiner reads after it saw that.
unsafe impl<T: Send> Sync for Packet<T> {}

/// The first instruction of a thread: `RDI` its [`Start`], `RSI` thread id, `RCX` ring.
#[unsafe(naked)]
unsafe extern "C" fn entry() -> ! {
    naked_asm!("xor ebp, ebp", "mov rdx, rcx", "call {begin}", "ud2", begin = sym begin)
}

unsafe extern "C" fn begin(start: *mut Start, tid: u32, ring: *const Ring) -> ! {
    let tcb = tls::current();
    tcb.tid.set(tid);
    tcb.client.set_ring(ring);
    {
        // SAFETY: from `Box::into_raw`, for this thread alone.
        let start = unsafe { Box::from_raw(start) };
        (start.run)();
    }
    exit(0)
}

/// Ends the calling thread with `code` after dropping its [`crate::Local`]s. A thread that joins it gets [`JoinError::Ended`].
///
/// In the first thread this is not the end of the program: that is [`crate::exit`], or the return of `main`.
pub fn exit(code: i64) -> ! {
    tls::drop_locals();
    crate::syscall::exit_thread(code)
}

/// A running thread and where it runs.
struct Thread {
    handle: ThreadHandle,
    region: Region,
}

/// The right to wait for a thread and take what it returned. If it is dropped, the thread runs on by itself.
pub struct JoinHandle<T> {
    thread: Option<Thread>,
    packet: Arc<Packet<T>>,
}

/// Why there is nothing to take from a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JoinError {
    /// The thread ended without a result, with this exit code: it panicked ([`crate::EXIT_PANIC`]) or called `exit`.
    Ended(i64),
    /// The kernel refused to join.
    Refused(Error),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Ended(code) => write!(f, "the thread ended without a result, with code {code}"),
            JoinError::Refused(error) => write!(f, "cannot join: {error}"),
        }
    }
}

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended and returns what its closure returned.
    pub fn join(mut self) -> core::result::Result<T, JoinError> {
        let Some(Thread { handle, region }) = self.thread.take() else { return Err(JoinError::Ended(0)) };
        let code = handle.join().map_err(JoinError::Refused)?;
        region.give_back();
        if !self.packet.is_finished.load(Ordering::Acquire) {
            return Err(JoinError::Ended(code));
        }
        // SAFETY: the thread has ended, and set the flag after it wrote.
        unsafe { (*self.packet.result.get()).take() }.ok_or(JoinError::Ended(code))
    }

    /// Whether its result is there. It may not have ended yet.
    pub fn is_finished(&self) -> bool {
        self.packet.is_finished.load(Ordering::Acquire)
    }

    /// The kernel's handle.
    pub fn handle(&self) -> Option<&ThreadHandle> {
        self.thread.as_ref().map(|thread| &thread.handle)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A thread cannot free its own stack, so the handle is kept until it has ended.
        let mut detached = DETACHED.lock();
        if detached.try_reserve(1).is_ok() {
            detached.push(thread);
        }
    }
}

/// Threads whose handle was dropped before they were joined.
static DETACHED: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

/// How many detached threads a spawn looks at, so that its cost is bounded.
const SWEPT_MAX: usize = 4;

/// Frees what some detached threads that have ended left behind.
fn sweep() {
    let mut detached = DETACHED.lock();
    for _ in 0..SWEPT_MAX.min(detached.len()) {
        let thread = detached.swap_remove(0);
        match thread.handle.exit_code() {
            Ok(Some(_)) => thread.region.give_back(),
            _ => detached.push(thread),
        }
    }
}

/// One mapping for a thread: an unmapped page, the stack, the thread-local data.
struct Region {
    /// Lowest mapped address.
    base: usize,
    /// Mapped bytes.
    bytes: usize,
}

static CACHE: Mutex<[Option<Region>; CACHED_MAX]> = Mutex::new([const { None }; CACHED_MAX]);

impl Region {
    /// A region with `stack_bytes` of stack: one that was used before, or a new one.
    fn take(stack_bytes: usize) -> Result<Region> {
        let bytes = (stack_bytes + Template::of(boot_info()).block_bytes()).next_multiple_of(PAGE);
        let cached = CACHE
            .lock()
            .iter_mut()
            .find(|slot| slot.as_ref().is_some_and(|region| region.bytes == bytes))
            .and_then(Option::take);
        match cached {
            Some(region) => Ok(region),
            None => Region::map(bytes),
        }
    }

    fn map(bytes: usize) -> Result<Region> {
        let whole = vm::map(bytes + PAGE)?.as_ptr() as usize;
        let region = Region { base: whole + PAGE, bytes };
        // SAFETY: mapped just now, used by no thread. The unmapped page turns a stack that is too small into a fault instead of a
        // riddle.
        match unsafe { vm::unmap(whole as u64, PAGE) } {
            Ok(()) => Ok(region),
            Err(error) => {
                region.unmap();
                Err(error)
            }
        }
    }

    /// Fills in the thread-local data; returns the top of the stack and the control block.
    ///
    /// # Safety
    /// No thread runs there.
    unsafe fn prepare(&self) -> (u64, *mut Tcb) {
        let template = Template::of(boot_info());
        let block = (self.base + self.bytes - template.block_bytes()) & !63;
        // SAFETY: inside the region; its alignment is taken into account by `block_bytes`, except for what `& !63` moves it down,
        // which is stack. The ring is told to the thread when it starts.
        unsafe {
            let tcb = template.fill(block as *mut u8);
            Tcb::put(tcb, 0, core::ptr::null());
            (block as u64, tcb)
        }
    }

    /// Keeps it for the next thread, or unmaps it.
    fn give_back(self) {
        let mut cache = CACHE.lock();
        match cache.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(self),
            None => {
                drop(cache);
                self.unmap();
            }
        }
    }

    fn unmap(self) {
        // SAFETY: no thread runs there. If the kernel refuses, it stays mapped and unused.
        let _ = unsafe { vm::unmap(self.base as u64, self.bytes) };
    }
}

/// Unmaps the stacks that are kept for later threads, and frees what ended detached threads left.
pub fn trim() {
    sweep();
    for slot in CACHE.lock().iter_mut() {
        if let Some(region) = slot.take() {
            region.unmap();
        }
    }
}
