//! Threads as the dispatcher knows them: the stage of each thread's life, where it waits or was queued, its stack (K-05, K-17, K-31).
//!
//! Thread records are a table that is never unmapped, so that a stale reference can be looked up and found stale. A record begins with a
//! [`ThreadHead`]; each higher layer puts its own part behind that of the layer below, and the topmost layer makes the record (`process::records`).

use super::percpu;
use crate::arch::fpu;
use crate::arch::mem::hide;
use crate::lock::{Rank, SpinLock};
use crate::mm::paging;
use crate::mm::space::Space;
use crate::name::Name;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use kcore::debt::Debt;
use kcore::generation::ThreadRef;
use kcore::life::{Action, Event, Life, Refused};
use sched::{Blocked, CpuId, Key, Payload, QueueKind, ThreadId, Ticket};

/// The most threads that the machine can have.
pub const MAX_THREADS: u32 = 1 << 16;

/// Holds the thread's entity while it is in no queue. When the thread blocks, this lock is held over the switch, so that a waker finds it off its
/// stack; and every change of its life happens under this lock ([`ThreadHead::turn`]).
pub struct Wait {
    /// The thread's entity, if `Life::is_parked`.
    pub parked: Option<Blocked<SchedRef>>,
}

/// The scheduler's reference to a thread. There is one for each thread of a record, made with the thread and gone with it, and it cannot be copied:
/// so a thread is in one queue, one slot or one hand, and code that holds the reference knows that no queue or slot has the thread (K-17).
pub struct SchedRef(&'static ThreadHead);

impl SchedRef {
    /// The thread that it refers to.
    pub fn head(&self) -> &'static ThreadHead {
        self.0
    }
}

impl Payload for SchedRef {
    #[inline(always)]
    fn queued(&self, ticket: Ticket) {
        let place = &self.0.place;
        place.at.store((ticket.queue as u32) << 16 | ticket.cpu.index() as u32, Ordering::Relaxed);
        place.tag.store(ticket.key.tag, Ordering::Relaxed);
        place.sequence.store(ticket.key.sequence, Ordering::Relaxed);
    }
}

/// Where a thread was queued last: a [`Ticket`], written under that CPU's lock. A reader takes the lock of the CPU that the ticket names, and reads
/// it again under that lock. A mix of two tickets does no harm: a search by it finds no thread, or another one, which is noticed.
struct LastPlace {
    at: AtomicU32,
    tag: AtomicI64,
    sequence: AtomicU64,
}

/// The beginning of a scheduling context's record: the part that can be read without the record's lock, which the dispatcher may not take. Records of
/// contexts are never freed.
#[repr(C)]
pub struct ContextHead {
    /// The number of the context that has the record at present; records are used again.
    pub life: AtomicU64,
    /// Its band of criticality.
    pub band: AtomicU8,
    /// The deferred charge for interrupts that served it: it is charged when a thread is next queued with it (S-16).
    pub debt: Debt,
}

impl ContextHead {
    /// For a record that is free.
    pub const fn new() -> ContextHead {
        ContextHead { life: AtomicU64::new(0), band: AtomicU8::new(0), debt: Debt::new() }
    }
}

/// A thread, as the dispatcher knows it.
#[repr(C)]
pub struct ThreadHead {
    tid: u32,
    /// Which thread has the record, and the stage of its life (K-31). Changed under the *wait* lock, only by [`ThreadHead::turn`]; the step after
    /// which no reference finds the thread is taken under its ring's lock, too.
    life: AtomicU64,
    /// Its process, whose generation is the next field.
    pub pid: AtomicU32,
    /// See `pid`.
    pub process_generation: AtomicU32,
    /// The CPU on which it runs or ran last.
    pub cpu: AtomicU32,
    /// The deferred charge for interrupts that served it.
    pub debt: Debt,
    /// Saved kernel stack pointer; accessed only by the CPU that switches to or from the thread.
    pub rsp: Cell<u64>,
    /// The top of its kernel stack; accessed as `rsp`.
    pub stack_top: Cell<u64>,
    /// Its address space, which the layer that made the thread keeps alive until the thread is reaped; accessed as `rsp`.
    pub space: Cell<*const Space>,
    /// The name of its process, for traces; written before the thread runs.
    pub name: Cell<Name>,
    /// FS base; accessed by the thread itself and by the CPU that switches to it.
    pub fs_base: Cell<u64>,
    /// MXCSR, saved while the thread is switched out in the kernel.
    pub mxcsr: Cell<u32>,
    /// The context that it runs on or has lent, its own or borrowed; null for none. Written under that context's lock.
    context: AtomicPtr<ContextHead>,
    /// The operation along which its context is lent (`ring::Waiter::ticket`), or 0. A thread whose context is lent does not return to user mode.
    /// Written under that context's lock.
    pub lent: AtomicU64,
    /// Whether the context that it runs on is another thread's. Written with `context`.
    pub borrows: AtomicBool,
    place: LastPlace,
    /// See [`Wait`].
    pub wait: SpinLock<Wait>,
}

// SAFETY: cells are accessed only as their comments say, by one CPU at a time; everything else is atomic or locked.
unsafe impl Sync for ThreadHead {}

impl ThreadHead {
    /// The head of record number `tid`, which has no thread yet.
    pub fn new(tid: u32) -> ThreadHead {
        ThreadHead {
            tid,
            life: AtomicU64::new(Life::UNUSED.word()),
            pid: AtomicU32::new(0),
            process_generation: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            debt: Debt::new(),
            rsp: Cell::new(0),
            stack_top: Cell::new(0),
            space: Cell::new(core::ptr::null()),
            name: Cell::new(Name([0; _])),
            fs_base: Cell::new(0),
            mxcsr: Cell::new(fpu::MXCSR_INITIAL),
            context: AtomicPtr::new(core::ptr::null_mut()),
            lent: AtomicU64::new(0),
            borrows: AtomicBool::new(false),
            place: LastPlace { at: AtomicU32::new(0), tag: AtomicI64::new(0), sequence: AtomicU64::new(0) },
            wait: SpinLock::new(Rank::Wait, Wait { parked: None }),
        }
    }

    /// Begins the life of a new thread in this record, and makes the scheduler's reference to it.
    pub fn seat(&'static self) -> SchedRef {
        assert!(
            self.context().is_none() && self.lent.load(Ordering::Relaxed) == 0,
            "K-31: a record in a context"
        );
        self.must(&mut self.wait.lock(), Event::Reuse);
        self.debt.begin(self.life().generation());
        SchedRef(self)
    }

    /// The number of the record, and of the thread in it.
    #[inline]
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// The name of this thread in traces: its number, and above it 16 bits of its generation.
    pub fn trace_id(&self) -> u32 {
        const _: () = assert!(MAX_THREADS <= 1 << 16);
        self.tid | self.life().generation() << 16
    }

    /// A reference to the thread that has the record now.
    pub fn reference(&self) -> ThreadRef {
        ThreadRef {
            pid: self.pid.load(Ordering::Relaxed),
            process_generation: self.process_generation.load(Ordering::Relaxed),
            tid: self.tid,
            thread_generation: self.life().live_generation(),
        }
    }

    /// Whether it is the thread that `reference` names. A reference that was taken when the record had no thread (generation 0) names none.
    #[inline]
    pub fn is(&self, reference: &ThreadRef) -> bool {
        self.life().names(reference.thread_generation)
            && self.pid.load(Ordering::Relaxed) == reference.pid
            && self.process_generation.load(Ordering::Relaxed) == reference.process_generation
    }

    /// The context that it runs on or has lent; null for none.
    #[inline(always)]
    pub fn context_record(&self) -> *const ContextHead {
        self.context.load(Ordering::Acquire)
    }

    /// The head of that context's record: what the dispatcher may read.
    #[inline(always)]
    pub fn context(&self) -> Option<&'static ContextHead> {
        // SAFETY: records of contexts are never freed.
        unsafe { self.context_record().as_ref() }
    }

    /// Sets [`ThreadHead::context_record`], under that context's lock; `borrows` says that the context is another thread's.
    pub fn set_context(&self, context: *const ContextHead, borrows: bool) {
        self.borrows.store(borrows, Ordering::Relaxed);
        self.context.store(context.cast_mut(), Ordering::Release);
    }

    /// [`ThreadHead::set_context`] if the thread has no context and is not about to end. A context is given to another thread under that thread's
    /// *wait* lock, or with this function.
    pub fn claim(&self, context: *const ContextHead, borrows: bool) -> bool {
        let mut wait = self.wait.lock();
        let is_free = self.context().is_none() && self.turn(&mut wait, Event::Bind).is_ok();
        if is_free {
            self.set_context(context, borrows);
        }
        is_free
    }

    /// The state of its life. Unless the caller holds the *wait* lock, it may have changed already.
    #[inline(always)]
    pub fn life(&self) -> Life {
        Life::from_word(self.life.load(Ordering::Acquire))
    }

    /// Applies an event to its life, and returns what the caller has to do before it releases the lock. `_wait` shows that the thread's own *wait*
    /// lock is held.
    #[inline(always)]
    pub fn turn(&self, _wait: &mut Wait, event: Event) -> Result<Action, Refused> {
        let (life, action) = self.life().after(event)?;
        self.life.store(life.word(), Ordering::Release);
        Ok(action)
    }

    /// As [`ThreadHead::turn`], for an event that cannot be refused.
    #[inline(always)]
    pub fn must(&self, wait: &mut Wait, event: Event) -> Action {
        match self.turn(wait, event) {
            Ok(action) => action,
            Err(refused) => self.cannot(event, refused),
        }
    }

    #[cold]
    #[inline(never)]
    fn cannot(&self, event: Event, refused: Refused) -> ! {
        panic!("K-31: {event:?} of thread {} in {:?}: {refused:?}", self.tid, self.life());
    }

    /// Where it was queued last.
    #[inline]
    pub fn ticket(&self) -> Ticket {
        const QUEUES: [QueueKind; 5] = [
            QueueKind::Guaranteed,
            QueueKind::Open,
            QueueKind::Restricted,
            QueueKind::Throttled,
            QueueKind::Direct,
        ];
        let at = self.place.at.load(Ordering::Relaxed);
        Ticket {
            thread: ThreadId(u64::from(self.tid)),
            cpu: CpuId::new((at & 0xffff) as usize).expect("a CPU number"),
            queue: QUEUES[(at >> 16) as usize % QUEUES.len()],
            key: Key {
                tag: self.place.tag.load(Ordering::Relaxed),
                sequence: self.place.sequence.load(Ordering::Relaxed),
            },
        }
    }

    /// Notes that its context is lent along the operation with this ticket, or no longer lent (0). Called under that context's lock.
    pub fn set_lent(&self, wait: &mut Wait, ticket: u64) {
        self.lent.store(ticket, Ordering::Release);
        self.must(wait, if ticket == 0 { Event::Return } else { Event::Lend });
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Bytes of a whole record: a [`ThreadHead`], and what higher layers keep behind it.
pub const RECORD_BYTES: usize = 3392;

/// Sets the number of records, after one more was initialised.
pub fn add_record(count: u32) {
    COUNT.store(count, Ordering::Release);
}

/// Record number `tid`.
#[inline]
pub fn get(tid: u32) -> Option<&'static ThreadHead> {
    if tid >= COUNT.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: records below the count are initialised, and never unmapped.
    Some(unsafe { &*(hide(record(tid) as u64) as *const ThreadHead) })
}

/// Where record number `tid` is, or will be.
#[inline(always)]
pub fn record(tid: u32) -> *mut ThreadHead {
    (paging::THREADS_BASE + u64::from(tid) * RECORD_BYTES as u64) as *mut ThreadHead
}

/// The thread that runs on this CPU.
#[inline(always)]
pub fn current() -> &'static ThreadHead {
    // SAFETY: records are never unmapped. The pointer is null only in the idle loop, which does not call this; then `expect` panics.
    unsafe { percpu::this().current.get().as_ref() }.expect("a thread runs")
}

/// As [`current`]; `None` in the idle loop.
#[inline(always)]
pub fn current_or_none() -> Option<&'static ThreadHead> {
    // SAFETY: as in `current`.
    unsafe { percpu::this().current.get().as_ref() }
}

/// The number of records that exist, used or not.
pub fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}
