//! Threads as programs have them: with a ring, timers and a place among the parked threads. The part that the dispatcher knows is `dispatch::heads`.

pub use crate::dispatch::heads::{ContextHead, MAX_THREADS, RECORD_BYTES, SchedRef, Wait, count};

use crate::dispatch::heads::{self, ThreadHead};
use crate::lock::{Rank, SpinLock};
use crate::mm::asker::Asker;
use crate::mm::space::Space;
use crate::name::Name;
use crate::ring::{RingSide, Waiter};
use abi::Ring;
use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use kcore::generation::ThreadRef;
use kcore::sqlease::SqOwner;
use kcore::timerq::Node;

/// Operations that a thread can have under way: each has a completion entry reserved.
pub const OPS: usize = abi::CQ_ENTRIES as usize;
/// The one timer that belongs to no operation: the time limit of `cap_enter`.
pub const TIMEOUT: usize = OPS;
/// One timer of a thread. While it is queued, it belongs to the timer queue of CPU `cpu`.
pub struct TimerSlot {
    /// Guarded by that CPU's timer lock.
    pub node: UnsafeCell<Node>,
    /// The CPU in whose queue the timer is; `u32::MAX` for none.
    pub cpu: AtomicU32,
    /// The use of the operation's slot that the timer was set for.
    pub sequence: AtomicU32,
    /// The queue of that CPU that the timer is in: see [`crate::time::Class`]. Guarded as `node`.
    pub class: AtomicU8,
    /// Whether the timer ends a park; otherwise it ends a sleep or a wait.
    pub is_park: AtomicBool,
}

/// A thread's place among the parked threads. Guarded by the lock of its bucket.
pub struct ParkLink {
    /// The key of the word that the thread is parked on.
    pub key: (u64, u64),
    /// The operation that unparking completes.
    pub waiter: Waiter,
    /// Neighbours (thread numbers; `u32::MAX` for none).
    pub next: u32,
    /// See `next`.
    pub previous: u32,
}

/// What the threads of a process share, as far as this layer knows it.
pub struct Shared {
    /// Whether the process is ending: then its threads wait for nothing any more.
    pub is_ending: AtomicBool,
    /// Sleeps that the threads of the process have under way.
    pub sleeps: AtomicU32,
}

impl Shared {
    /// The shared part of a new process.
    pub const fn new() -> Shared {
        Shared { is_ending: AtomicBool::new(false), sleeps: AtomicU32::new(0) }
    }

    /// One sleep of the process has ended.
    #[inline(always)]
    pub fn release_sleep(&self) {
        self.sleeps.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the process is ending.
    #[inline(always)]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
}

/// The process that a new thread belongs to. What the pointers name stays until the thread is reaped.
pub struct Owner {
    /// The process: its number,
    pub pid: u32,
    /// generation,
    pub generation: u32,
    /// name,
    pub name: Name,
    /// memory,
    pub space: *const Space,
    /// and what all its threads share.
    pub shared: *const Shared,
    /// The top of the new thread's kernel stack.
    pub stack_top: u64,
    /// Whether the thread is a guest's: it may not use the memory that is kept for operators.
    pub is_guest: bool,
}

/// One record of the thread table, as far as this layer knows it. It begins with the dispatcher's part; the layer that makes records puts more
/// behind it.
#[repr(C)]
pub struct Thread {
    head: ThreadHead,
    /// The next submission to take; touched by the holder of the lease only.
    pub sq_head: Cell<u32>,
    /// Whether the thread may not use the memory that is kept for operators. Touched by the thread itself only, and before it runs.
    pub is_guest: Cell<bool>,
    /// Whether the thread has received calls: when it ends, the calls that it did not answer fail.
    pub served: Cell<bool>,
    /// Its place in its process's list of threads; under that list's lock.
    pub listed_at: AtomicU32,
    /// Decides who may consume submissions (K-12).
    pub sq: SqOwner,
    /// Completion side of the ring.
    pub ring: SpinLock<RingSide>,
    /// One timer for each operation, and the one at [`TIMEOUT`].
    pub timers: [TimerSlot; OPS + 1],
    /// Where the call of each operation is at its endpoint: in the queue, or among the calls in flight. Only a hint, because a late write may be about
    /// the thread that had this record before.
    pub call_places: [AtomicU32; OPS],
    /// See [`ParkLink`].
    pub park: UnsafeCell<ParkLink>,
    /// Whether `park` is in a bucket, and for which operation: generation and sequence of its waiter, or 0 if it is in none. Written under the
    /// bucket's lock, after everything else.
    pub park_ticket: AtomicU64,
    shared: Cell<*const Shared>,
    /// The code that the thread ended with, while the record waits to be reaped.
    pub exit_code: Cell<i64>,
}

// SAFETY: cells are touched only as their comments say; everything else is atomic or locked.
unsafe impl Sync for Thread {}

impl Deref for Thread {
    type Target = ThreadHead;
    #[inline(always)]
    fn deref(&self) -> &ThreadHead {
        &self.head
    }
}

impl Thread {
    /// The thread whose part for the dispatcher is `head`.
    #[inline(always)]
    pub fn of(head: &'static ThreadHead) -> &'static Thread {
        // SAFETY: every record begins with a thread, which begins with its head, and is never unmapped.
        unsafe { &*core::ptr::from_ref(head).cast() }
    }

    /// Record number `tid`, not used by a thread yet.
    pub fn new(tid: u32) -> Thread {
        Thread {
            head: ThreadHead::new(tid),
            sq_head: Cell::new(0),
            is_guest: Cell::new(false),
            served: Cell::new(false),
            listed_at: AtomicU32::new(0),
            sq: SqOwner::new(),
            ring: SpinLock::new(Rank::Ring, RingSide::closed()),
            timers: [const {
                TimerSlot {
                    node: UnsafeCell::new(Node::IDLE),
                    cpu: AtomicU32::new(u32::MAX),
                    sequence: AtomicU32::new(0),
                    class: AtomicU8::new(0),
                    is_park: AtomicBool::new(false),
                }
            }; OPS + 1],
            call_places: [const { AtomicU32::new(0) }; OPS],
            park: UnsafeCell::new(ParkLink {
                key: (0, 0),
                waiter: Waiter { thread: ThreadRef::NONE, op: 0, sequence: 0 },
                next: u32::MAX,
                previous: u32::MAX,
            }),
            park_ticket: AtomicU64::new(0),
            shared: Cell::new(core::ptr::null()),
            exit_code: Cell::new(0),
        }
    }

    /// Sets the record up for a new thread, which the scheduler does not know yet, and hands out the scheduler's reference to it.
    pub fn begin(&'static self, owner: &Owner, ring: *mut Ring) -> SchedRef {
        self.pid.store(owner.pid, Ordering::Relaxed);
        self.process_generation.store(owner.generation, Ordering::Relaxed);
        self.name.set(owner.name);
        self.space.set(owner.space);
        self.shared.set(owner.shared);
        self.stack_top.set(owner.stack_top);
        self.mxcsr.set(crate::arch::fpu::MXCSR_INITIAL);
        self.sq_head.set(0);
        self.is_guest.set(owner.is_guest);
        self.served.set(false);
        let _ = self.sq.reopen();
        self.ring.lock().open(ring);
        self.seat()
    }

    /// The thread is gone: the record no longer names the memory of a process.
    pub fn leave_owner(&self) {
        self.space.set(core::ptr::null());
        self.shared.set(core::ptr::null());
    }

    /// What the thread shares with the other threads of its process. Only for the running thread itself, and for a caller that holds the lock of the
    /// thread's ring while the ring is open.
    #[inline(always)]
    pub fn shared(&self) -> &Shared {
        // SAFETY: whoever made the thread keeps its process until the thread has closed its ring and ended.
        unsafe { self.shared.get().as_ref() }.expect("a live thread")
    }
}

/// Record number `tid`.
#[inline(always)]
pub fn get(tid: u32) -> Option<&'static Thread> {
    heads::get(tid).map(Thread::of)
}

/// The thread that runs on this CPU.
#[inline(always)]
pub fn current() -> &'static Thread {
    Thread::of(heads::current())
}

/// As [`current`]; `None` if no thread runs on this CPU.
#[inline(always)]
pub fn current_or_none() -> Option<&'static Thread> {
    heads::current_or_none().map(Thread::of)
}

/// On whose behalf the current thread asks for memory; `None` if no thread runs.
pub fn asker() -> Option<Asker> {
    let thread = current_or_none()?;
    let debt = crate::time::Payer::of(thread).debt;
    Some(Asker { pid: thread.pid.load(Ordering::Relaxed), is_guest: thread.is_guest.get(), debt })
}

/// While this value lives the current thread works for guests, and gets no more memory than guests do.
pub struct Behalf(Option<&'static Thread>);

/// See [`Behalf`]. Changes nothing if `guests` is false, or if the current thread is a guest's already.
pub fn on_behalf_of(guests: bool) -> Behalf {
    let other = current_or_none().filter(|thread| guests && !thread.is_guest.get());
    if let Some(thread) = other {
        thread.is_guest.set(true);
    }
    Behalf(other)
}

impl Drop for Behalf {
    fn drop(&mut self) {
        if let Some(thread) = self.0 {
            thread.is_guest.set(false);
        }
    }
}
