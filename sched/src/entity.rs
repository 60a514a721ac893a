//! A thread as the core sees it, and the move-only values that own one.

use alloc::boxed::Box;
use core::alloc::Layout;
use core::fmt;

use crate::account::Account;
use crate::fair::Fair;
use crate::node::Node;
use crate::{Context, CpuId, CpuMask, LatencyClass, Snapshot, Weight, WeightError};

/// The caller's name for a thread; unique among the threads that are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u64);

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The place of a thread in a queue: by tag, and first come first served among equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Virtual finish time, absolute deadline with band, or refill time, by the kind of queue.
    pub tag: i64,
    /// The order of arrival at this CPU; it makes keys unique.
    pub sequence: u64,
}

/// Which queue of a CPU holds a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// Has budget: earliest deadline first.
    Guaranteed,
    /// Best effort, may run on any CPU.
    Open,
    /// Best effort, may run on some CPUs only.
    Restricted,
    /// Out of budget until a refill.
    Throttled,
    /// Next to run, by direct handoff.
    Direct,
}

impl QueueKind {
    /// Whether threads in it are counted by the virtual clock.
    pub(crate) const fn is_fair(self) -> bool {
        matches!(self, QueueKind::Open | QueueKind::Restricted | QueueKind::Direct)
    }
}

/// Where a queued thread is: what `Cpu::remove` needs to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The thread.
    pub thread: ThreadId,
    /// The CPU that has it in a queue.
    pub cpu: CpuId,
    /// The queue of that CPU.
    pub queue: QueueKind,
    /// Its place in that queue.
    pub key: Key,
}

/// What the caller attaches to a thread. A kernel keeps a reference to its own record here.
pub trait Payload {
    /// The thread was put into a queue, or moved to another. Called under the CPU's lock; must be short.
    fn queued(&self, _ticket: Ticket) {}
}

impl Payload for () {}
impl Payload for u32 {}
impl Payload for u64 {}
impl Payload for usize {}
impl Payload for &'static str {}

pub(crate) type Link<T> = Option<Box<Entity<T>>>;

/// How a thread came to the next queue it enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// Never ran.
    New,
    /// Comes from sleep or from another tier.
    Join,
    /// Waited for a CPU all the time, and was taken by another one.
    Moved,
}

/// One thread. The fields that every event touches come first, together.
#[repr(C)]
pub(crate) struct Entity<T> {
    pub(crate) key: Key,
    /// A node that the thread brings along for the tree of its next queue.
    pub(crate) spare: Option<Box<Node<T>>>,
    /// What is left of its slice.
    pub(crate) quantum_ns: u64,
    pub(crate) context: Option<Box<Context>>,
    pub(crate) id: ThreadId,
    pub(crate) entrance: Entrance,
    /// Whether it stops without a context, instead of falling back to best effort.
    pub(crate) context_only: bool,
    /// Whether its budget is used up and it runs in the fair tier until the next refill.
    pub(crate) demoted: bool,
    /// Whether `allowed` is `CpuMask::ALL` and it needs no context: cached, because every enqueue asks.
    pub(crate) anywhere: bool,
    pub(crate) last_cpu: Option<CpuId>,
    pub(crate) fair: Fair,
    pub(crate) account: Account,
    pub(crate) payload: T,
    /// Where it may run; `CpuMask::ALL` means anywhere.
    pub(crate) allowed: CpuMask,
}

impl<T> Entity<T> {
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            weight: self.fair.weight(),
            class: self.fair.class(),
            runtime_ns: self.account.runtime_ns,
            virtual_runtime_ns: self.account.virtual_runtime_ns,
            voluntary_blocks: self.account.voluntary_blocks,
            preemptions: self.account.preemptions,
            runnable_accumulated_ns: self.account.runnable_ns,
            throttled_ns: self.account.throttled_ns,
            served_ns: self.account.served_ns,
            migrations: self.account.migrations,
            throttles: self.account.throttles,
            is_throttled: false,
        }
    }

    #[inline(always)]
    pub(crate) fn may_run_on(&self, cpu: CpuId) -> bool {
        match &self.context {
            Some(context) => context.home() == cpu && self.is_allowed_on(cpu),
            None => self.anywhere || (!self.context_only && self.allowed.contains(cpu)),
        }
    }

    /// Whether its mask allows `cpu`: with a context that runs there, it could run there.
    #[inline]
    pub(crate) fn is_allowed_on(&self, cpu: CpuId) -> bool {
        self.anywhere || self.allowed.contains(cpu)
    }

    /// The CPUs that its mask allows; with a context, only the context's home. Empty if it needs a context and has none.
    pub(crate) fn effective_mask(&self) -> CpuMask {
        match &self.context {
            Some(context) => self.allowed.and(&CpuMask::only(context.home())),
            None if self.context_only => CpuMask::EMPTY,
            None => self.allowed,
        }
    }

    pub(crate) fn remember_anywhere(&mut self) {
        self.anywhere = self.allowed == CpuMask::ALL && !self.context_only;
    }
}

/// Bytes that the core allocates for a thread whose attachment is a word or less.
pub const THREAD_BYTES: usize = size_of::<Entity<u64>>() + size_of::<Node<u64>>();

/// The sole owner of a thread that waits for something.
#[must_use = "dropping it destroys the thread"]
pub struct Blocked<T>(pub(crate) Box<Entity<T>>);

/// The sole owner of a thread that can run and is in no queue.
#[must_use = "dropping it destroys the thread; enqueue it"]
pub struct Runnable<T>(pub(crate) Box<Entity<T>>);

impl<T> Runnable<T> {
    /// What [`Runnable::new`] allocates, for callers that reserve the memory beforehand.
    pub const LAYOUTS: [Layout; 2] = [Layout::new::<Node<T>>(), Layout::new::<Entity<T>>()];

    /// Creates a thread. All memory that queues need for it is allocated here; nothing later allocates.
    pub fn new(id: ThreadId, payload: T) -> Runnable<T> {
        Runnable(Box::new(Entity {
            key: Key { tag: 0, sequence: 0 },
            spare: Some(Node::spare()),
            quantum_ns: 0,
            fair: Fair::new(Weight::DEFAULT, LatencyClass::Normal),
            account: Account::default(),
            entrance: Entrance::New,
            context_only: false,
            demoted: false,
            anywhere: true,
            context: None,
            last_cpu: None,
            id,
            allowed: CpuMask::ALL,
            payload,
        }))
    }

    /// Starts the thread with a debt: how far its creator is ahead of its share ([`crate::Cpu::current_debt_ns`]). Otherwise a chain of
    /// threads, each of which creates the next and ends, would never be behind for what it ran. Only before the thread is first queued.
    pub fn owe(&mut self, real_ns: u64) {
        self.0.fair.owe(real_ns);
    }

    /// Blocks the thread again, without having run.
    pub fn park(self) -> Blocked<T> {
        Blocked(self.0)
    }
}

impl<T> Blocked<T> {
    /// Ends the thread; returns what the caller attached, its counters, and the context that it still had.
    pub fn dismantle(self) -> (T, Snapshot, Option<Box<Context>>) {
        let entity = *self.0;
        let snapshot = entity.snapshot();
        (entity.payload, snapshot, entity.context)
    }

    /// Whether it can run as it is: `false` if it runs on contexts only and has none.
    #[inline]
    pub fn is_runnable(&self) -> bool {
        !self.0.context_only || self.0.context.is_some()
    }

    /// Makes the thread runnable. One that runs on contexts only and has none is given back.
    #[inline]
    pub fn wake(self) -> Result<Runnable<T>, Blocked<T>> {
        if self.is_runnable() { Ok(Runnable(self.0)) } else { Err(self) }
    }

    /// Makes the thread runnable even without a context that it needs, for [`crate::Cpu::block_lending`], which lends it one. Without
    /// one, no CPU takes a thread that runs on contexts only.
    pub fn wake_to_borrow(self) -> Runnable<T> {
        Runnable(self.0)
    }
}

/// What can be read and changed of a thread that is in no queue.
macro_rules! in_hand {
    ($owner:ident) => {
        impl<T> $owner<T> {
            /// The caller's name for the thread.
            pub fn id(&self) -> ThreadId {
                self.0.id
            }

            /// What the caller attached.
            pub fn payload(&self) -> &T {
                &self.0.payload
            }

            /// Its counters and knobs.
            pub fn snapshot(&self) -> Snapshot {
                self.0.snapshot()
            }

            /// The CPU that it ran on last.
            pub fn last_cpu(&self) -> Option<CpuId> {
                self.0.last_cpu
            }

            /// Where it may run, by its own mask and its context.
            pub fn allowed(&self) -> CpuMask {
                self.0.effective_mask()
            }

            /// Where it may run by its own mask alone.
            pub fn mask(&self) -> CpuMask {
                self.0.allowed
            }

            /// Whether it stops without a context.
            pub fn is_context_only(&self) -> bool {
                self.0.context_only
            }

            /// As `allowed().contains(cpu)`.
            #[inline]
            pub fn may_run_on(&self, cpu: CpuId) -> bool {
                self.0.may_run_on(cpu)
            }

            /// Whether it could run on `cpu` with a context that runs there.
            #[inline]
            pub fn could_run_on(&self, cpu: CpuId) -> bool {
                self.0.is_allowed_on(cpu)
            }

            /// Sets the weight; takes effect when it is next queued (F-07).
            pub fn set_weight(&mut self, weight: u16) -> Result<(), WeightError> {
                self.0.fair.set_weight_off_cpu(Weight::new(weight)?);
                Ok(())
            }

            /// Sets the latency class; takes effect when it is next queued.
            pub fn set_class(&mut self, class: LatencyClass) {
                self.0.fair.set_class(class);
            }

            /// Restricts it to these CPUs. Refused, and nothing changes, if that leaves it nowhere to run: the empty set, or one
            /// without its context's home.
            pub fn set_allowed(&mut self, cpus: CpuMask) -> Result<(), EmptyMask> {
                let home = self.0.context.as_ref().map(|context| context.home());
                if cpus.is_empty() || home.is_some_and(|home| !cpus.contains(home)) {
                    return Err(EmptyMask);
                }
                self.0.allowed = cpus;
                self.0.remember_anywhere();
                Ok(())
            }

            /// Makes it stop, rather than fall back to best effort, whenever it has no context. While it has none, no CPU takes it.
            pub fn set_context_only(&mut self, context_only: bool) {
                self.0.context_only = context_only;
                self.0.remember_anywhere();
            }

            /// Gives it a context and returns the one that it had. A context whose home is not among the CPUs where the thread may run
            /// is refused and given back.
            pub fn bind(&mut self, context: Box<Context>) -> Result<Option<Box<Context>>, Box<Context>> {
                if !self.0.allowed.contains(context.home()) {
                    return Err(context);
                }
                Ok(self.0.context.replace(context))
            }

            /// Takes its context away.
            pub fn unbind(&mut self) -> Option<Box<Context>> {
                self.0.context.take()
            }

            /// Charges its context for interrupts that served the thread while it did not run, so it may be queued without budget.
            pub fn pay(&mut self, owed_ns: u64, now: u64) {
                self.0.account.served_ns += owed_ns;
                if let Some(context) = &mut self.0.context {
                    context.pay(owed_ns, now);
                }
            }

            /// Its context.
            pub fn context(&self) -> Option<&Context> {
                self.0.context.as_deref()
            }
        }

        impl<T> fmt::Debug for $owner<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($owner), "({})"), self.0.id)
            }
        }
    };
}
in_hand!(Blocked);
in_hand!(Runnable);

/// A CPU set was refused: a thread must be able to run somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyMask;

impl fmt::Display for EmptyMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the CPU mask leaves the thread nowhere to run")
    }
}

impl core::error::Error for EmptyMask {}
