//! Threads as the dispatcher knows them: where each is in its life, where it waits or was queued, what it stands on (K-05, K-17, K-31).
//!
//! Their records are a table that is never unmapped, so that a stale reference can be looked up and found stale. A record begins with a [`ThreadHead`];
//! each layer above puts its own part behind the one below it, and the topmost of them makes the record (`process::records`).

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

/// Threads that the machine can have.
pub const MAX_THREADS: u32 = 1 << 16;

/// Where the thread is while it is in no queue. Its lock is held over the switch away from it, so that whoever wakes it finds it off its stack;
/// and whoever changes its life holds that lock ([`ThreadHead::turn`]).
pub struct Wait {
    /// The thread itself, as the scheduler knows it, if `Life::is_parked`.
    pub parked: Option<Blocked<SchedRef>>,
}

/// The scheduler's hold on a thread. There is one for each life of a record, made with it and taken back with it, and it cannot be copied: so
/// a thread is in one queue, one slot or one hand, and who has it in hand knows that nobody else names it (K-17).
pub struct SchedRef(&'static ThreadHead);

impl SchedRef {
    /// Whose.
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

/// Where a thread was queued last: a [`Ticket`]. Written under that CPU's lock. Who reads it takes the lock of the CPU that it names, and looks
/// again; half of another ticket finds nobody, or somebody who is seen not to be the one.
struct LastPlace {
    at: AtomicU32,
    tag: AtomicI64,
    sequence: AtomicU64,
}

/// The beginning of a scheduling context's record: what may be known of it without its lock, which the dispatcher may not take. Records of contexts
/// are never freed.
#[repr(C)]
pub struct ContextHead {
    /// Which life of the record it is.
    pub life: AtomicU64,
    /// Its band of criticality.
    pub band: AtomicU8,
    /// What interrupts did for it that it has not paid for: it does when a thread is next queued with it (S-16).
    pub debt: Debt,
}

impl ContextHead {
    /// Of a record that is free.
    pub const fn new() -> ContextHead {
        ContextHead { life: AtomicU64::new(0), band: AtomicU8::new(0), debt: Debt::new() }
    }
}

/// A thread, as the dispatcher knows it.
#[repr(C)]
pub struct ThreadHead {
    tid: u32,
    /// Who is here, and where in its life (K-31). Changes under the *wait* lock, by [`ThreadHead::turn`] alone; that it is not to be found any more,
    /// under the ring's lock, too.
    life: AtomicU64,
    /// Its process, and that one's generation.
    pub pid: AtomicU32,
    /// See `pid`.
    pub process_generation: AtomicU32,
    /// Where it runs or ran.
    pub cpu: AtomicU32,
    /// What interrupts did on its behalf, and it has not paid for.
    pub debt: Debt,
    /// Saved kernel stack pointer; touched by the CPU that switches.
    pub rsp: Cell<u64>,
    /// The top of its kernel stack; touched as `rsp`.
    pub stack_top: Cell<u64>,
    /// Its address space, which whoever made the thread keeps until it is reaped; touched as `rsp`.
    pub space: Cell<*const Space>,
    /// What its process is called, for traces; written before it runs.
    pub name: Cell<Name>,
    /// FS base; touched by the thread itself and by the CPU that switches.
    pub fs_base: Cell<u64>,
    /// MXCSR over a wait in a system call.
    pub mxcsr: Cell<u32>,
    /// The context that it runs on or has lent, its own or on loan; null for none. Written under that context's lock.
    context: AtomicPtr<ContextHead>,
    /// Its context is lent along this operation (`ring::Waiter::ticket`; 0: it is not): it does not return to user mode. Written under that context's
    /// lock.
    pub lent: AtomicU64,
    /// The context that it runs on is another thread's. Written with `context`.
    pub borrows: AtomicBool,
    place: LastPlace,
    /// See [`Wait`].
    pub wait: SpinLock<Wait>,
}

// SAFETY: cells are touched only as their comments say; everything else is atomic or locked.
unsafe impl Sync for ThreadHead {}

impl ThreadHead {
    /// Of record number `tid`, without a thread.
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

    /// The record is a new thread's, which is not known to the scheduler yet: its seat there.
    pub fn seat(&'static self) -> SchedRef {
        assert!(
            self.context().is_none() && self.lent.load(Ordering::Relaxed) == 0,
            "K-31: a record in a context"
        );
        self.must(&mut self.wait.lock(), Event::Reuse);
        self.debt.begin(self.life().generation());
        SchedRef(self)
    }

    /// Its number.
    #[inline]
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// What traces call the thread that is here: its number, and above it 16 bits that count who had that number.
    pub fn trace_id(&self) -> u32 {
        const _: () = assert!(MAX_THREADS <= 1 << 16);
        self.tid | self.life().generation() << 16
    }

    /// Names the thread that is here now.
    pub fn reference(&self) -> ThreadRef {
        ThreadRef {
            pid: self.pid.load(Ordering::Relaxed),
            process_generation: self.process_generation.load(Ordering::Relaxed),
            tid: self.tid,
            thread_generation: self.life().live_generation(),
        }
    }

    /// Is it the one that `reference` names? A reference that was taken when the record had no thread (generation 0) names nobody.
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

    /// What the dispatcher may know of that one.
    #[inline(always)]
    pub fn context(&self) -> Option<&'static ContextHead> {
        // SAFETY: records of contexts are never freed.
        unsafe { self.context_record().as_ref() }
    }

    /// See [`ThreadHead::context_record`]; under that context's lock. `borrows`: it is another thread's.
    pub fn set_context(&self, context: *const ContextHead, borrows: bool) {
        self.borrows.store(borrows, Ordering::Relaxed);
        self.context.store(context.cast_mut(), Ordering::Release);
    }

    /// [`ThreadHead::set_context`], if it has none: whoever gives it one from outside does so under its *wait* lock, or by this.
    pub fn claim(&self, context: *const ContextHead, borrows: bool) -> bool {
        let mut wait = self.wait.lock();
        let is_free = self.context().is_none() && self.turn(&mut wait, Event::Bind).is_ok();
        if is_free {
            self.set_context(context, borrows);
        }
        is_free
    }

    /// Where it is in its life, as far as one can see without its *wait* lock.
    #[inline(always)]
    pub fn life(&self) -> Life {
        Life::from_word(self.life.load(Ordering::Acquire))
    }

    /// Something happens in its life: what is to be done about it, while the lock is held? `_wait` is its own.
    #[inline(always)]
    pub fn turn(&self, _wait: &mut Wait, event: Event) -> Result<Action, Refused> {
        let (life, action) = self.life().after(event)?;
        self.life.store(life.word(), Ordering::Release);
        Ok(action)
    }

    /// As [`ThreadHead::turn`], of what cannot be refused.
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

    /// Its context is lent along the operation with this ticket; 0: it is not, any more. Under that context's lock.
    pub fn set_lent(&self, wait: &mut Wait, ticket: u64) {
        self.lent.store(ticket, Ordering::Release);
        self.must(wait, if ticket == 0 { Event::Return } else { Event::Lend });
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Bytes of a whole record: a [`ThreadHead`], and what layers above keep behind it.
pub const RECORD_BYTES: usize = 3392;

/// There is one record more; its number is that of those before.
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
    // SAFETY: records are never unmapped; null only in the idle loop, which does not ask.
    unsafe { percpu::this().current.get().as_ref() }.expect("a thread runs")
}

/// As [`current`], if one does.
#[inline(always)]
pub fn current_or_none() -> Option<&'static ThreadHead> {
    // SAFETY: as in `current`.
    unsafe { percpu::this().current.get().as_ref() }
}

/// Records that exist, used or not.
pub fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}
