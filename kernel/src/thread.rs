//! Threads: a table of records that are never unmapped, so that a stale reference can be looked up and found stale (K-05).

use crate::dispatch::percpu;
use crate::lock::{Rank, SpinLock};
use crate::mm::asker::Asker;
use crate::mm::paging;
use crate::mm::space::Space;
use crate::name::Name;
use crate::ring::{RingSide, Waiter};
use abi::Ring;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use kcore::debt::Debt;
use kcore::generation::ThreadRef;
use kcore::life::{Action, Event, Life, Refused};
use kcore::sqlease::SqOwner;
use kcore::timerq::Node;
use sched::{Blocked, CpuId, Key, Payload, QueueKind, ThreadId, Ticket};

/// Operations that a thread can have under way: each has a completion entry reserved.
pub const OPS: usize = abi::CQ_ENTRIES as usize;
/// The timer that is not an operation's: the time limit of `cap_enter`.
pub const TIMEOUT: usize = OPS;
/// Threads that the machine can have.
pub const MAX_THREADS: u32 = 1 << 16;

/// One timer of a thread. The queue of CPU `cpu` owns it while it is queued.
pub struct TimerSlot {
    /// Guarded by that CPU's timer lock.
    pub node: UnsafeCell<Node>,
    /// Which CPU; `u32::MAX` for none.
    pub cpu: AtomicU32,
    /// Which use of the operation's slot it belongs to.
    pub sequence: AtomicU32,
    /// In which of that CPU's queues: see [`crate::time::Class`]. Guarded as `node`.
    pub class: AtomicU8,
    /// It ends a park; otherwise a sleep, or a wait.
    pub is_park: AtomicBool,
}

/// A thread's place among the parked. Guarded by its bucket's lock.
pub struct ParkLink {
    /// What it is parked on.
    pub key: (u64, u64),
    /// Which operation it completes.
    pub waiter: Waiter,
    /// Neighbours (thread numbers; `u32::MAX` for none).
    pub next: u32,
    /// See `next`.
    pub previous: u32,
}

/// Where the thread is while it is in no queue. Its lock is held over the switch away from it, so that whoever wakes it finds it off its stack;
/// and whoever changes its life holds that lock ([`Thread::turn`]).
pub struct Wait {
    /// The thread itself, as the scheduler knows it, if `Life::is_parked`.
    pub parked: Option<Blocked<SchedRef>>,
}

/// The scheduler's hold on a thread. There is one for each life of a record, made with it and taken back with it, and it cannot be copied: so
/// a thread is in one queue, one slot or one hand, and who has it in hand knows that nobody else names it (K-17).
pub struct SchedRef(&'static Thread);

impl SchedRef {
    /// Whose.
    pub fn thread(&self) -> &'static Thread {
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

/// What the threads of a process share, as far as this layer knows it.
pub struct Shared {
    /// The process is on its way out: its threads wait for nothing any more.
    pub is_ending: AtomicBool,
    /// Sleeps that its threads have under way.
    pub sleeps: AtomicU32,
}

impl Shared {
    /// Of a new process.
    pub const fn new() -> Shared {
        Shared { is_ending: AtomicBool::new(false), sleeps: AtomicU32::new(0) }
    }

    /// A sleep is over.
    #[inline(always)]
    pub fn release_sleep(&self) {
        self.sleeps.fetch_sub(1, Ordering::Relaxed);
    }

    /// Is the process on its way out?
    #[inline(always)]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
}

/// Whose thread a new one is. What is named here stays until the thread is reaped.
pub struct Owner {
    /// Its process: number,
    pub pid: u32,
    /// generation,
    pub generation: u32,
    /// name,
    pub name: Name,
    /// memory,
    pub space: *const Space,
    /// and what all threads of it share.
    pub shared: *const Shared,
    /// The top of its kernel stack.
    pub stack_top: u64,
    /// It may not use the memory that is kept for operators.
    pub is_guest: bool,
}

/// One record of the table, as far as this layer knows it: whoever makes records puts more behind it.
#[repr(C)]
pub struct Thread {
    tid: u32,
    /// Who is here, and where in its life (K-31). Changes under the *wait* lock, by [`Thread::turn`] alone; that it is not to be found any more,
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
    /// Next submission; touched by the owner of the lease.
    pub sq_head: Cell<u32>,
    /// It may not use the memory that is kept for operators. Touched by the thread itself only, and before it runs.
    pub is_guest: Cell<bool>,
    /// It has received calls: when it ends, those that it did not answer fail.
    pub served: Cell<bool>,
    /// The context that it runs on or has lent, its own or on loan; null for none. Written under that context's lock.
    context: AtomicPtr<ContextHead>,
    /// Its context is lent along this operation (`loan::ticket`; 0: it is not): it does not return to user mode. Written under that context's
    /// lock.
    pub lent: AtomicU64,
    /// The context that it runs on is another thread's. Written with `context`.
    pub borrows: AtomicBool,
    /// Its place in its process's list of threads; under that list's lock.
    pub listed_at: AtomicU32,
    place: LastPlace,
    /// Who may consume submissions (K-12).
    pub sq: SqOwner,
    /// See [`Wait`].
    pub wait: SpinLock<Wait>,
    /// Completion side of the ring.
    pub ring: SpinLock<RingSide>,
    /// One for each operation, and [`TIMEOUT`].
    pub timers: [TimerSlot; OPS + 1],
    /// Where the call of each operation is at its endpoint, in the queue or among those in flight: a hint, as a late note may be of the record's last
    /// thread.
    pub call_places: [AtomicU32; OPS],
    /// See [`ParkLink`].
    pub park: UnsafeCell<ParkLink>,
    /// Whether that is in a bucket, and for which operation: generation and sequence of its waiter; 0 if it is not. Written under the
    /// bucket's lock, after everything else.
    pub park_ticket: AtomicU64,
    shared: Cell<*const Shared>,
    /// What it ended with, while the record waits to be reaped.
    pub exit_code: Cell<i64>,
}

// SAFETY: cells are touched only as their comments say; everything else is atomic or locked.
unsafe impl Sync for Thread {}

impl Thread {
    /// Record number `tid`, without a thread.
    pub fn new(tid: u32) -> Thread {
        Thread {
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
            mxcsr: Cell::new(crate::arch::fpu::MXCSR_INITIAL),
            sq_head: Cell::new(0),
            is_guest: Cell::new(false),
            served: Cell::new(false),
            context: AtomicPtr::new(core::ptr::null_mut()),
            lent: AtomicU64::new(0),
            borrows: AtomicBool::new(false),
            listed_at: AtomicU32::new(0),
            place: LastPlace { at: AtomicU32::new(0), tag: AtomicI64::new(0), sequence: AtomicU64::new(0) },
            sq: SqOwner::new(),
            wait: SpinLock::new(Rank::Wait, Wait { parked: None }),
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

    /// The record is a new thread's, which is not known to the scheduler yet: its seat there.
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
        assert!(
            self.context().is_none() && self.lent.load(Ordering::Relaxed) == 0,
            "K-31: a record in a context"
        );
        let _ = self.sq.reopen();
        self.ring.lock().open(ring);
        self.must(&mut self.wait.lock(), Event::Reuse);
        self.debt.begin(self.life().generation());
        SchedRef(self)
    }

    /// The thread is gone: the record names nobody's memory any more.
    pub fn leave_owner(&self) {
        self.space.set(core::ptr::null());
        self.shared.set(core::ptr::null());
    }

    /// What it shares with the other threads of its process. For the running thread itself, and for who holds the lock of its ring while that is open.
    #[inline(always)]
    pub fn shared(&self) -> &Shared {
        // SAFETY: whoever made the thread keeps its process until it has closed the ring and ended.
        unsafe { self.shared.get().as_ref() }.expect("a live thread")
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

    /// See [`Thread::context_record`]; under that context's lock. `borrows`: it is another thread's.
    pub fn set_context(&self, context: *const ContextHead, borrows: bool) {
        self.borrows.store(borrows, Ordering::Relaxed);
        self.context.store(context.cast_mut(), Ordering::Release);
    }

    /// [`Thread::set_context`], if it has none: whoever gives it one from outside does so under its *wait* lock, or by this.
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

    /// As [`Thread::turn`], of what cannot be refused.
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

/// Bytes of a whole record: a [`Thread`], and what layers above keep behind it.
pub const RECORD_BYTES: usize = 3392;

/// There is one record more; its number is that of those before.
pub fn add_record(count: u32) {
    COUNT.store(count, Ordering::Release);
}

/// Record number `tid`.
#[inline]
pub fn get(tid: u32) -> Option<&'static Thread> {
    if tid >= COUNT.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: records below the count are initialised, and never unmapped.
    Some(unsafe { &*record(tid) })
}

/// Where record number `tid` is, or will be.
#[inline(always)]
pub fn record(tid: u32) -> *mut Thread {
    (paging::THREADS_BASE + u64::from(tid) * RECORD_BYTES as u64) as *mut Thread
}

/// The thread that runs on this CPU.
#[inline]
pub fn current() -> &'static Thread {
    // SAFETY: records are never unmapped; null only in the idle loop, which does not ask.
    unsafe { percpu::this().current.get().as_ref() }.expect("a thread runs")
}

/// As [`current`], if one does.
#[inline]
pub fn current_or_none() -> Option<&'static Thread> {
    // SAFETY: as in `current`.
    unsafe { percpu::this().current.get().as_ref() }
}

/// On whose behalf the current thread asks for memory.
pub fn asker() -> Option<Asker> {
    let thread = current_or_none()?;
    let debt = crate::time::Payer::of(thread).debt;
    Some(Asker { pid: thread.pid.load(Ordering::Relaxed), is_guest: thread.is_guest.get(), debt })
}

/// What the current thread does for guests until this is dropped: it gets no more memory than they do.
pub struct Behalf(Option<&'static Thread>);

/// See [`Behalf`]; of nobody in particular, if it is for no guests.
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

/// Records that exist, used or not.
pub fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}
