//! A task: SPEC-021 [SCHED:5.1.1] "Task Structure", and the slabs that tasks live in.
//!
//! Invariants:
//! 1. The memory of a task stays a task until its runtime is gone ("type-stable"): a late wake finds a task there, if
//!    perhaps another one, and costs it one look (see `wake.rs`). That is why a [`TaskRef`] may be copied freely.
//! 2. Fields of the type `Cell` belong to whoever owns the task at the moment: its maker until it is queued, then the
//!    worker that picked it, then itself. A queue hands the ownership over. Everybody else reads atomics only.
//! 3. `payload` holds the closure until the task first runs, then its list of scopes (`cancel.rs`), then its result; `vtable`
//!    knows the types.
//!
//! This file does not schedule.

use crate::account::Account;
use crate::alloc::Quiet;
use crate::budget::{Budget, Resource, UNLIMITED, put};
use crate::cancel::Node;
use crate::context::Context;
use crate::cx::UNFUELLED;
use crate::error::TaskError;
use crate::join::Join;
use crate::names::{Name, Slot};
use crate::nursery::{Nursery, OnExhausted};
use crate::runtime::Shared;
use crate::stack::{Stack, StackClass};
use crate::wake::Word;
use crate::worker::Worker;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};

/// Bytes of closure or result that need no memory of their own.
pub(crate) const INLINE: usize = 48;

/// A scheduling hint [SCHED:5.1.1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Priority {
    /// Runs when nothing else is ready, and every so often nevertheless.
    Low = 0,
    /// What everybody has.
    #[default]
    Normal = 1,
    /// Runs before the others of its worker.
    High = 2,
}

impl Priority {
    pub(crate) fn from_bits(bits: u8) -> Priority {
        match bits {
            0 => Priority::Low,
            2 => Priority::High,
            _ => Priority::Normal,
        }
    }
}

/// What a task waits for, as a dump says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wait {
    /// Nothing, or only its turn.
    None = 0,
    /// A child's end.
    Join = 1,
    /// All children of a nursery.
    Nursery = 2,
    /// Room in a channel.
    Send = 3,
    /// A message.
    Recv = 4,
    /// The first of several.
    Select = 5,
    /// A time.
    Sleep = 6,
    /// Its budget.
    Recharge = 7,
    /// The kernel: a socket, a file, a child process.
    Io = 8,
    /// A lock, or another of [`sync`](crate::sync).
    Lock = 9,
}

impl Wait {
    /// Every reason, by number.
    pub(crate) const ALL: [Wait; 10] = [
        Wait::None,
        Wait::Join,
        Wait::Nursery,
        Wait::Send,
        Wait::Recv,
        Wait::Select,
        Wait::Sleep,
        Wait::Recharge,
        Wait::Io,
        Wait::Lock,
    ];

    /// Does it go on by itself, without anybody of its nursery?
    pub(crate) fn is_outside(bits: u8) -> bool {
        bits == Wait::Sleep as u8 || bits == Wait::Io as u8
    }
}

/// The types behind a task's payload.
pub(crate) struct Vtable {
    /// Runs the closure and leaves result or outcome. On the task's own stack.
    pub(crate) run: unsafe fn(TaskRef),
    /// Drops a closure that never ran.
    pub(crate) drop_closure: unsafe fn(TaskRef),
    /// Drops a result that nobody wanted.
    pub(crate) drop_value: unsafe fn(TaskRef),
}

/// How a task ended. `Value`: the payload holds its result.
#[derive(Debug)]
pub(crate) enum Outcome {
    Pending,
    Value,
    /// There was a result, and nobody wanted it.
    Gone,
    Cancelled,
    StackOverflow,
    WorkerPanic,
    Budget(Resource),
    Error(Box<TaskError>),
    /// It was given up with its family: nobody learns of it but the parent of the whole.
    Lost,
}

/// What [`Task::draw_all`] found.
pub(crate) enum Drawn {
    All,
    /// Nothing was taken, and nothing need be.
    Infinite,
    /// Nothing was taken: only so much is there.
    Short(u64),
}

/// Bits of [`Task::flags`].
pub(crate) mod flag {
    /// Asked to end.
    pub(crate) const CANCEL: u16 = 1;
    /// Its family is given up: it stops at its next check or wait, and never goes on (see `family.rs`).
    pub(crate) const DOOMED: u16 = 2;
    /// In its nursery's list of children.
    pub(crate) const LISTED: u16 = 4;
    /// Allocated beyond its memory budget.
    pub(crate) const OVERDRAWN: u16 = 8;
    /// Exhausted with nobody to recharge it: it is to end with that error.
    pub(crate) const SPENT: u16 = 16;
    /// Holds a `CapSpawn`.
    pub(crate) const MAY_SPAWN: u16 = 32;
    /// Holds a `CapBudget`.
    pub(crate) const MAY_RECHARGE: u16 = 64;
    /// Its budget was asked for exactly: no pool adds to it by itself.
    pub(crate) const FIXED: u16 = 256;
    /// Lives on a budget that was asked for exactly, its own or that of a task above it: it makes itself no more unless
    /// that was granted.
    pub(crate) const BOUND: u16 = 512;
    /// Has seen that it was cancelled.
    pub(crate) const SAW_CANCEL: u16 = 128;
    /// Was spawned with nothing borrowed: it can be given up without its parent.
    pub(crate) const OWNED: u16 = 1024;
    /// Of a doomed family: memory was the cause, and not the stack.
    pub(crate) const BY_MEMORY: u16 = 2048;
    /// Its frames are abandoned; what runs now waits for its children.
    pub(crate) const BURIED: u16 = 4096;
    /// A call of the C adapter found too little stack for itself: the task has overflowed when it returns.
    pub(crate) const SHORT: u16 = 8192;
    /// It has scopes that have to be looked at (see `cancel.rs`).
    pub(crate) const SCOPED: u16 = 16384;
}

/// In [`Task::name`]: it is a slot's address.
const BUILT: u64 = 1 << 63;
/// In [`Task::name`]: where the address is.
const ADDRESS: u64 = (1 << 48) - 1;

/// A name for a task that is about to be.
#[derive(Clone, Copy)]
pub(crate) enum Naming {
    Static(&'static str),
    Built(NonNull<Slot>),
}

/// A task's nursery. Its own, but for the watchdog, which reads it of a task that may end meanwhile, and does not follow it.
#[derive(Debug, Default)]
pub(crate) struct Link(AtomicPtr<Nursery>);

impl Link {
    #[inline]
    pub(crate) fn get(&self) -> *const Nursery {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, nursery: *const Nursery) {
        self.0.store(nursery.cast_mut(), Ordering::Relaxed);
    }
}

/// See the module.
#[repr(C, align(64))]
pub(crate) struct Task {
    pub(crate) context: UnsafeCell<Context>,
    pub(crate) word: Word,
    pub(crate) flags: AtomicU16,
    /// Ran over its stack; set by the signal handler.
    pub(crate) overflowed: AtomicBool,
    /// In how many sections it is whose allocations are not charged.
    pub(crate) quiet: Cell<u8>,
    // The second line: what running and switching touch.
    pub(crate) fuel: Cell<i64>,
    pub(crate) worker: Cell<*const Worker>,
    /// A check with the stack pointer below this has too little stack left.
    pub(crate) floor: Cell<usize>,
    pub(crate) next: Cell<Option<TaskRef>>,
    pub(crate) stack: UnsafeCell<Option<Stack>>,
    pub(crate) id: AtomicU64,
    pub(crate) nursery: Link,
    pub(crate) vtable: Cell<Option<&'static Vtable>>,
    // The third: budget.
    pub(crate) join: Join,
    pub(crate) ops: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) spawns: AtomicU64,
    pub(crate) channel: AtomicU64,
    pub(crate) syscalls: AtomicU64,
    pub(crate) channel_fuel: Cell<u16>,
    pub(crate) home: Cell<u16>,
    pub(crate) waits_for: AtomicU8,
    pub(crate) class: Cell<StackClass>,
    pub(crate) priority: AtomicU8,
    /// The component that ran out last (low half), and what is to become of the task then (high half).
    exhaustion: AtomicU8,
    pub(crate) outcome: UnsafeCell<Outcome>,
    // The fourth: what a dump shows, and the list of siblings.
    pub(crate) spawned_at: AtomicPtr<Location<'static>>,
    pub(crate) waits_at: AtomicPtr<Location<'static>>,
    /// A `&'static str`: its length in the upper 16 bits, its address below; or, with `BUILT`, the address of a slot.
    name: AtomicU64,
    pub(crate) siblings: Cell<(Option<TaskRef>, Option<TaskRef>)>,
    /// The runtime that it belongs to, from the making of its slab to the end.
    pub(crate) shared: *const Shared,
    /// The innermost nursery that the task has open; the others hang on it.
    pub(crate) open: Cell<*const Nursery>,
    /// Where its blocks are credited; made at the first.
    pub(crate) account: AtomicPtr<Account>,
    pub(crate) payload: UnsafeCell<MaybeUninit<[u64; INLINE / 8]>>,
}

const _: () = assert!(size_of::<Task>() <= 320);

/// A task that exists, or existed (invariant 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TaskRef(NonNull<Task>);

// SAFETY: invariants 1 and 2.
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

impl std::ops::Deref for TaskRef {
    type Target = Task;

    fn deref(&self) -> &Task {
        // SAFETY: invariant 1.
        unsafe { self.0.as_ref() }
    }
}

impl TaskRef {
    pub(crate) fn as_ptr(self) -> NonNull<Task> {
        self.0
    }

    /// # Safety
    /// The pointer came from [`TaskRef::as_ptr`] and the runtime is still there.
    pub(crate) unsafe fn from_ptr(pointer: NonNull<Task>) -> TaskRef {
        TaskRef(pointer)
    }
}

impl Task {
    fn new(shared: *const Shared) -> Task {
        Task {
            context: UnsafeCell::new(Context::default()),
            word: Word::new(),
            flags: AtomicU16::new(0),
            overflowed: AtomicBool::new(false),
            quiet: Cell::new(0),
            fuel: Cell::new(0),
            worker: Cell::new(ptr::null()),
            floor: Cell::new(0),
            next: Cell::new(None),
            stack: UnsafeCell::new(None),
            id: AtomicU64::new(0),
            nursery: Link::default(),
            vtable: Cell::new(None),
            join: Join::new(),
            ops: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            spawns: AtomicU64::new(0),
            channel: AtomicU64::new(0),
            syscalls: AtomicU64::new(0),
            channel_fuel: Cell::new(0),
            waits_for: AtomicU8::new(0),
            home: Cell::new(u16::MAX),
            class: Cell::new(StackClass::Lean),
            priority: AtomicU8::new(1),
            exhaustion: AtomicU8::new(0),
            outcome: UnsafeCell::new(Outcome::Pending),
            spawned_at: AtomicPtr::new(ptr::null_mut()),
            waits_at: AtomicPtr::new(ptr::null_mut()),
            name: AtomicU64::new(0),
            siblings: Cell::new((None, None)),
            shared,
            open: Cell::new(ptr::null()),
            account: AtomicPtr::new(ptr::null_mut()),
            payload: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The innermost deadline or shield that the task has open. Only while its closure runs, and only for itself: then nothing
    /// else is in the payload (invariant 3).
    #[inline]
    pub(crate) fn scopes(&self) -> &Cell<*const Node> {
        const { assert!(size_of::<*const Node>() <= INLINE && align_of::<*const Node>() <= 8) };
        // SAFETY: the payload has room for it, and whoever runs the closure wrote it first; only the task itself looks.
        unsafe { &*self.payload.get().cast::<Cell<*const Node>>() }
    }

    /// Has it a stack, that is, did it run before?
    #[inline]
    pub(crate) fn started(&self) -> bool {
        // SAFETY: the caller owns the task (invariant 2) or it is suspended.
        unsafe { (*self.stack.get()).is_some() }
    }

    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    pub(crate) fn set(&self, flag: u16) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
    }

    /// The memory of one component.
    pub(crate) fn meter(&self, resource: Resource) -> &AtomicU64 {
        match resource {
            Resource::Ops => &self.ops,
            Resource::Memory => &self.memory,
            Resource::Spawn => &self.spawns,
            Resource::Channel => &self.channel,
            Resource::Syscalls => &self.syscalls,
        }
    }

    /// Sets the whole budget of a new task.
    #[inline]
    pub(crate) fn set_budget(&self, budget: &Budget) {
        for resource in Resource::ALL {
            self.meter(resource).store(budget.get(resource), Ordering::Relaxed);
        }
        self.fuel.set(UNFUELLED);
        self.channel_fuel.set(0);
    }

    /// Takes up to `most` of a component; answers how much.
    #[inline]
    pub(crate) fn draw(&self, resource: Resource, most: u64) -> u64 {
        let meter = self.meter(resource);
        let mut here = meter.load(Ordering::Acquire);
        loop {
            if here == UNLIMITED {
                return most;
            }
            let amount = here.min(most);
            match meter.compare_exchange_weak(here, here - amount, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return amount,
                Err(found) => here = found,
            }
        }
    }

    /// Takes `amount` of a component, or nothing.
    #[inline]
    pub(crate) fn draw_all(&self, resource: Resource, amount: u64) -> Drawn {
        let meter = self.meter(resource);
        let mut here = meter.load(Ordering::Acquire);
        loop {
            match here {
                UNLIMITED => return Drawn::Infinite,
                here if here < amount => return Drawn::Short(here),
                _ => {}
            }
            match meter.compare_exchange_weak(here, here - amount, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Drawn::All,
                Err(found) => here = found,
            }
        }
    }

    /// Puts some of a component back, or more in.
    pub(crate) fn fill(&self, resource: Resource, amount: u64) {
        let meter = self.meter(resource);
        let mut here = meter.load(Ordering::Acquire);
        loop {
            let next = put(here, amount);
            match meter.compare_exchange_weak(here, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(found) => here = found,
            }
        }
    }

    /// What is left; exact when the task itself asks.
    pub(crate) fn budget(&self) -> Budget {
        let mut left = Budget::ZERO;
        for resource in Resource::ALL {
            *left.get_mut(resource) = self.meter(resource).load(Ordering::Acquire);
        }
        left
    }

    /// What the task itself holds of its quantum, beside [`Task::budget`].
    pub(crate) fn in_hand(&self) -> Budget {
        Budget {
            ops: self.fuel.get().max(0) as u64,
            channel_ops: u64::from(self.channel_fuel.get()),
            ..Budget::ZERO
        }
    }

    /// What becomes of it when its budget is spent. Before it is queued.
    #[inline]
    pub(crate) fn set_rule(&self, rule: OnExhausted) {
        self.exhaustion.store((rule as u8) << 4, Ordering::Relaxed);
    }

    pub(crate) fn rule(&self) -> OnExhausted {
        match self.exhaustion.load(Ordering::Relaxed) >> 4 {
            1 => OnExhausted::Wait,
            2 => OnExhausted::End,
            _ => OnExhausted::EndIfStuck,
        }
    }

    /// This component ran out. Only the task itself says so.
    pub(crate) fn note_spent(&self, resource: Resource) {
        let rule = self.exhaustion.load(Ordering::Relaxed) & 0xF0;
        self.exhaustion.store(rule | resource as u8, Ordering::Relaxed);
    }

    /// The part of its budget for which it is told to end, if it is.
    pub(crate) fn ended_by(&self) -> Option<Resource> {
        match self.flags.load(Ordering::Acquire) {
            flags if flags & flag::OVERDRAWN != 0 => Some(Resource::Memory),
            flags if flags & flag::SPENT != 0 => {
                Some(Resource::ALL[usize::from(self.exhaustion.load(Ordering::Relaxed) & 0xF)])
            }
            _ => None,
        }
    }

    /// A name that is longer than 32 KiB, or does not lie where programs do, is none. What was built for the last task that lay
    /// here is given back.
    #[inline]
    pub(crate) fn set_name(&self, name: Option<Naming>) {
        if self.name.load(Ordering::Relaxed) & BUILT != 0 {
            self.give_name_back();
        }
        let pack = |name: Naming| match name {
            Naming::Static(name) => {
                let address = name.as_ptr().expose_provenance() as u64;
                (name.len() < 1 << 15 && address < 1 << 48).then_some((name.len() as u64) << 48 | address)
            }
            Naming::Built(slot) => {
                let address = slot.as_ptr().expose_provenance() as u64;
                (address < 1 << 48).then_some(BUILT | address)
            }
        };
        self.name.store(name.and_then(pack).unwrap_or(0), Ordering::Relaxed);
    }

    #[cold]
    fn give_name_back(&self) {
        let address = self.name.load(Ordering::Relaxed) & ADDRESS;
        let slot = ptr::with_exposed_provenance_mut::<Slot>(address as usize);
        if let Some(slot) = NonNull::new(slot) {
            // SAFETY: the runtime outlives its tasks.
            unsafe { &*self.shared }.names.give(slot);
        }
    }

    /// The name, if the task is the one with this id.
    pub(crate) fn name(&self, id: u64) -> Option<Name> {
        let packed = self.name.load(Ordering::Acquire);
        if packed == 0 {
            return None;
        }
        let address = (packed & ADDRESS) as usize;
        let name = if packed & BUILT != 0 {
            // SAFETY: slots stay as long as the runtime, and are read word by word.
            unsafe { &*ptr::with_exposed_provenance::<Slot>(address) }.read()
        } else {
            let bytes = ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: only `&'static str`s are stored, whole.
            Name::fixed(unsafe {
                std::str::from_utf8_unchecked(std::slice::from_raw_parts(bytes, (packed >> 48) as usize))
            })
        };
        // Read before this: if the task is still that one, so was the name.
        (self.id.load(Ordering::Acquire) == id).then_some(name)
    }

    pub(crate) fn location(pointer: &AtomicPtr<Location<'static>>) -> Option<&'static Location<'static>> {
        // SAFETY: only `&'static Location`s are stored.
        unsafe { pointer.load(Ordering::Acquire).as_ref() }
    }
}

/// How many tasks a slab holds.
const SLAB: usize = 256;
/// How many tasks move between a worker and the common pool at a time.
const BATCH: usize = 64;
const _: () = assert!(SLAB.is_multiple_of(BATCH), "a slab is whole batches");

/// A list of tasks through `next`, first in first out. It owns them.
#[derive(Default)]
pub(crate) struct TaskList {
    head: Option<TaskRef>,
    tail: Option<TaskRef>,
    count: usize,
}

impl TaskList {
    pub(crate) const fn new() -> TaskList {
        TaskList { head: None, tail: None, count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn push_back(&mut self, task: TaskRef) {
        task.next.set(None);
        match self.tail {
            Some(tail) => tail.next.set(Some(task)),
            None => self.head = Some(task),
        }
        self.tail = Some(task);
        self.count += 1;
    }

    pub(crate) fn push_front(&mut self, task: TaskRef) {
        task.next.set(self.head);
        self.head = Some(task);
        if self.tail.is_none() {
            self.tail = Some(task);
        }
        self.count += 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<TaskRef> {
        let task = self.head?;
        self.head = task.next.get();
        if self.head.is_none() {
            self.tail = None;
        }
        self.count -= 1;
        Some(task)
    }
}

/// Where tasks come from: slabs that live as long as the runtime, common batches of free tasks, and two batches a worker.
///
/// Batches change hands whole, so that it costs the same however many tasks are in one, and nobody touches a task that
/// another CPU has in its cache before it uses that task.
pub(crate) struct TaskPool {
    common: Mutex<Common>,
    made: AtomicUsize,
}

struct Common {
    shared: *const Shared,
    /// Of `BATCH` tasks each; `grow` makes room for all that there can be.
    batches: Vec<TaskList>,
    /// Fewer than `BATCH`, of threads that have no cache.
    singles: TaskList,
    slabs: Vec<NonNull<Task>>,
}

// SAFETY: the pointers are to tasks (invariant 1), under the lock.
unsafe impl Send for Common {}

/// A worker's own free tasks: the batch in use, and perhaps a full one, so that who takes and gives by turns at the edge of a
/// batch does not go to the pool each time.
pub(crate) struct TaskCache {
    current: TaskList,
    full: TaskList,
}

impl TaskCache {
    pub(crate) const fn new() -> TaskCache {
        TaskCache { current: TaskList::new(), full: TaskList::new() }
    }

    #[inline]
    pub(crate) fn take(&mut self, pool: &TaskPool) -> TaskRef {
        match self.current.pop_front() {
            Some(task) => task,
            None => self.take_from_next(pool),
        }
    }

    #[cold]
    fn take_from_next(&mut self, pool: &TaskPool) -> TaskRef {
        self.current = std::mem::take(&mut self.full);
        if self.current.len() == 0 {
            self.current = pool.lock().batch(pool);
        }
        self.current.pop_front().expect("a batch is not empty")
    }

    #[inline]
    pub(crate) fn give(&mut self, task: TaskRef, pool: &TaskPool) {
        if self.current.len() == BATCH {
            self.put_aside(pool);
        }
        // The last freed is the next used: it is still in the cache.
        self.current.push_front(task);
    }

    #[cold]
    fn put_aside(&mut self, pool: &TaskPool) {
        let before = std::mem::replace(&mut self.full, std::mem::take(&mut self.current));
        if before.len() > 0 {
            pool.lock().keep(before);
        }
    }
}

impl Common {
    fn keep(&mut self, batch: TaskList) {
        debug_assert!(batch.len() == BATCH && self.batches.len() < self.batches.capacity());
        self.batches.push(batch);
    }

    /// A batch of free tasks, new ones if there are none.
    fn batch(&mut self, pool: &TaskPool) -> TaskList {
        if self.batches.is_empty() && self.singles.len() == 0 {
            pool.grow(self);
        }
        self.batches.pop().unwrap_or_else(|| std::mem::take(&mut self.singles))
    }
}

impl TaskPool {
    pub(crate) fn new() -> TaskPool {
        let common =
            Common { shared: ptr::null(), batches: Vec::new(), singles: TaskList::new(), slabs: Vec::new() };
        TaskPool { common: Mutex::new(common), made: AtomicUsize::new(0) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Common> {
        // Nothing that could panic runs under this lock.
        self.common.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Tells the pool whose it is, before the first task is made.
    pub(crate) fn belongs_to(&self, shared: *const Shared) {
        self.lock().shared = shared;
    }

    /// How many tasks there is memory for.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// For threads that have no cache.
    pub(crate) fn take(&self) -> TaskRef {
        let mut common = self.lock();
        if common.singles.len() == 0 {
            common.singles = common.batch(self);
        }
        common.singles.pop_front().expect("a batch is not empty")
    }

    /// For threads that have no cache.
    pub(crate) fn give(&self, task: TaskRef) {
        let mut common = self.lock();
        if common.singles.len() == BATCH {
            let full = std::mem::take(&mut common.singles);
            common.keep(full);
        }
        common.singles.push_front(task);
    }

    fn layout() -> Layout {
        Layout::array::<Task>(SLAB).expect("a slab is small")
    }

    fn grow(&self, common: &mut Common) {
        let _quiet = Quiet::new();
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(Self::layout()) };
        let Some(slab) = NonNull::new(memory.cast::<Task>()) else { handle_alloc_error(Self::layout()) };
        common.slabs.push(slab);
        let batches = common.slabs.len() * (SLAB / BATCH);
        common.batches.reserve_exact(batches.next_power_of_two() - common.batches.len());
        for first in (0..SLAB).step_by(BATCH) {
            let mut batch = TaskList::new();
            for index in first..first + BATCH {
                // SAFETY: inside the slab, and written before anybody reads it.
                let task = unsafe {
                    let task = slab.add(index);
                    task.write(Task::new(common.shared));
                    TaskRef(task)
                };
                batch.push_back(task);
            }
            common.keep(batch);
        }
        self.made.fetch_add(SLAB, Ordering::Relaxed);
    }

    /// Calls `look` for every task that there ever was memory for, dead or alive.
    pub(crate) fn for_each(&self, mut look: impl FnMut(TaskRef)) {
        let slabs = {
            let _quiet = Quiet::new();
            self.lock().slabs.clone()
        };
        for slab in slabs {
            for index in 0..SLAB {
                // SAFETY: inside the slab.
                look(TaskRef(unsafe { slab.add(index) }));
            }
        }
    }
}

impl Drop for TaskPool {
    fn drop(&mut self) {
        let common = self.common.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for slab in common.slabs.drain(..) {
            // SAFETY: the runtime is gone, and with it every task; a task needs no drop when it is free.
            unsafe { dealloc(slab.as_ptr().cast(), Self::layout()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Tasks that one worker takes and another gives back go round: nobody has one that somebody else has, none is lost, and
    /// a thread without a cache takes its part.
    #[test]
    fn free_tasks_go_round_and_none_is_lost() {
        let pool = TaskPool::new();
        let (mut taker, mut giver) = (TaskCache::new(), TaskCache::new());
        for round in 0..50 {
            let mut taken: Vec<TaskRef> = (0..3 * BATCH + 7).map(|_| taker.take(&pool)).collect();
            taken.extend((0..BATCH + 5).map(|_| pool.take()));
            let distinct: HashSet<_> = taken.iter().map(|task| task.as_ptr()).collect();
            assert_eq!(distinct.len(), taken.len(), "round {round}: a task is one taker's alone");
            // What is free is in the hands of two workers, two batches each, and of the pool.
            assert!(pool.made() <= taken.len() + 4 * BATCH + SLAB, "round {round}: {} made", pool.made());
            for (index, task) in taken.into_iter().enumerate() {
                if index % 3 == 0 { pool.give(task) } else { giver.give(task, &pool) }
            }
            assert!(giver.current.len() <= BATCH && giver.full.len() <= BATCH);
        }
        let common = pool.lock();
        let lists = [&taker.current, &taker.full, &giver.current, &giver.full, &common.singles];
        let free = lists.iter().map(|list| list.len()).sum::<usize>();
        assert_eq!(free + common.batches.len() * BATCH, pool.made(), "all are free again");
    }

    /// Who takes one and gives one, at the edge of a batch, does not go to the pool each time.
    #[test]
    fn the_edge_of_a_batch_is_not_a_way_to_the_pool() {
        let pool = TaskPool::new();
        let mut cache = TaskCache::new();
        let held: Vec<TaskRef> = (0..3 * BATCH).map(|_| cache.take(&pool)).collect();
        let (one, others) = held.split_last().expect("there are some");
        for task in &others[..BATCH] {
            cache.give(*task, &pool);
        }
        let before = pool.lock().batches.len();
        for _ in 0..3 {
            cache.give(*one, &pool);
            assert_eq!(pool.lock().batches.len(), before, "a full batch stays at hand");
            assert_eq!(cache.take(&pool).as_ptr(), one.as_ptr(), "the last freed is the next used");
            let next = cache.take(&pool);
            assert_eq!(pool.lock().batches.len(), before);
            cache.give(next, &pool);
        }
    }
}
