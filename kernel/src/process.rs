//! Processes: an address space, a table of capabilities, a ledger, and threads.

pub mod records;

use crate::arch::switch;
use crate::arch::{fpu, segments};
use crate::context::{self, CreateError, Ctx, complete};
use crate::deferred_work;
use crate::dispatch;
use crate::dispatch::percpu;
use crate::endpoint::Endpoint;
use crate::hook::Hook;
use crate::irqoff::{self, Path};
use crate::lock::{Rank, SpinLock};
use crate::mm::frames::FRAME_BYTES;
use crate::mm::space::{Access, Backing, Space, SpaceError};
use crate::mm::stacks::{OffStackToken, STACK_PAGES, Stack};
use crate::mm::{frames, heap};
pub use crate::name::Name;
use crate::object::{Cap, ThreadExit};
use crate::planted::{self, Bug};
use crate::policy::Share;
use crate::preempt::{self, Pacer};
use crate::ring::{self, Completion, Waitable, Waiter, Withdraw};
use crate::session::{Charge, Denied, Session};
use crate::thread::{self, SchedRef, Shared, Thread};
use ::sched::Spec;
use abi::CapId;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use kcore::captable::{CapTable, Reserved};
use kcore::generation::ThreadRef;
use kcore::quota::Kind;
use records::{Body, Owned, Start};

/// Thread records that one process may use.
pub const PROCESS_THREAD_LIMIT: u32 = 1024;
/// Capabilities that one process may hold.
pub const PROCESS_CAP_LIMIT: usize = 4096;
/// Frames that one process may have, page tables included: half of the machine, but at least this many.
const PROCESS_FRAME_LIMIT_MIN: u64 = 4096;
/// Sleeps that one process may have under way.
pub const PROCESS_SLEEP_LIMIT: u32 = 256;
/// Bytes of messages of a process that may be in the kernel at a time: 256 of the longest messages.
pub const PROCESS_MESSAGE_BYTES_LIMIT: u32 = 1 << 20;
/// Bytes that the queues of the endpoints that a process created may have: some forty full ones, or a few places for as many endpoints as it
/// may hold.
const PROCESS_QUEUE_BYTES_LIMIT: u32 = 8 << 20;
/// Processes that the machine may have.
pub const MAX_PROCESSES: usize = 4096;
/// Threads that may wait for the end of one process, and how many of these places are reserved for its parent.
const MAX_WAITERS: usize = 32;
const WAITERS_OF_PARENT: usize = 8;

/// How many capabilities are dropped between two preemption points: the costliest is a context's, some 5,000 instructions.
const PACE_CAPS: u32 = 2;
/// How many slots of a table of capabilities are looked at between two preemption points.
pub const PACE_SLOTS: usize = 512;

/// Frames that a thread costs besides its record: stack and ring.
const THREAD_FRAMES: u64 = STACK_PAGES + 1;

/// What a process uses of the resources that are limited (K-07).
pub struct ResourceLedger {
    records: AtomicU32,
    stack_pages: AtomicU32,
    /// Bytes of messages that the kernel holds.
    message_bytes: AtomicU32,
    /// Bytes of the queues of endpoints that the process created.
    queue_bytes: AtomicU32,
    /// Everything except messages is charged to the session, too.
    session: Arc<Session>,
}

fn take(counter: &AtomicU32, amount: u32, limit: u32) -> bool {
    let take = |used: u32| used.checked_add(amount).filter(|sum| *sum <= limit);
    counter.try_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
}

impl ResourceLedger {
    fn new(session: Arc<Session>) -> ResourceLedger {
        let [records, stack_pages, message_bytes, queue_bytes] = [const { AtomicU32::new(0) }; 4];
        ResourceLedger { records, stack_pages, message_bytes, queue_bytes, session }
    }

    /// The session that the process belongs to.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Takes one more thread record, if the limits of process and session allow it.
    fn take_record(&self) -> Result<(), MakeError> {
        if !take(&self.records, 1, PROCESS_THREAD_LIMIT) {
            return Err(MakeError::Threads);
        }
        self.session.take(Kind::Threads, 1).map_err(|denied| {
            self.records.fetch_sub(1, Ordering::Relaxed);
            MakeError::Quota(denied)
        })
    }

    /// Gives one thread record back.
    fn release_record(&self) {
        self.records.fetch_sub(1, Ordering::Relaxed);
        self.session.release(Kind::Threads, 1);
    }

    /// Takes the pages of one more stack and ring.
    fn take_stack(&self) -> Result<(), MakeError> {
        let pages = STACK_PAGES as u32;
        if !take(&self.stack_pages, pages, PROCESS_THREAD_LIMIT * pages) {
            return Err(MakeError::Threads);
        }
        self.session.take(Kind::Memory, THREAD_FRAMES * FRAME_BYTES).map_err(|denied| {
            self.stack_pages.fetch_sub(pages, Ordering::Relaxed);
            MakeError::Quota(denied)
        })
    }

    /// Gives the pages of one stack and ring back.
    pub fn release_stack(&self) {
        self.session.release(Kind::Memory, THREAD_FRAMES * FRAME_BYTES);
        self.stack_pages.fetch_sub(STACK_PAGES as u32, Ordering::Relaxed);
    }
    /// Takes `bytes` more for queues, if the limits of process and session allow it.
    pub fn take_queue(&self, bytes: u32) -> bool {
        if !take(&self.queue_bytes, bytes, PROCESS_QUEUE_BYTES_LIMIT) {
            return false;
        }
        let is_paid = self.session.take(Kind::Memory, bytes.into()).is_ok();
        if !is_paid {
            self.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_paid
    }
    /// Gives `bytes` of queues back.
    pub fn release_queue(&self, bytes: u32) {
        self.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.session.release(Kind::Memory, bytes.into());
    }
}

/// Bytes of a message that are charged to the process that sent it, until this is dropped.
pub struct MessageCharge {
    process: Arc<Process>,
    bytes: u32,
}

impl MessageCharge {
    /// Charges `process`; `None` if too many bytes of its messages are in the kernel.
    pub fn new(process: &Arc<Process>, bytes: u32) -> Option<MessageCharge> {
        take(&process.ledger.message_bytes, bytes, PROCESS_MESSAGE_BYTES_LIMIT)
            .then(|| MessageCharge { process: process.clone(), bytes })
    }
}

impl Drop for MessageCharge {
    fn drop(&mut self) {
        self.process.ledger.message_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A thread record that is charged to a process until this is dropped.
pub struct StackCharge(Arc<Process>);

impl Drop for StackCharge {
    fn drop(&mut self) {
        self.0.ledger.release_record();
    }
}

/// Bytes of a table of `slots` capabilities, for which the session of its process pays.
fn table_bytes(slots: usize) -> u64 {
    CapTable::<Cap>::layout(slots).map_or(0, |layout| heap::block_bytes(&layout))
}

/// Why a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its last thread ended.
    Exited,
    /// Another process killed it.
    Killed,
    /// It did something that a program cannot do.
    Faulted,
}

struct Inner {
    threads: Vec<u32>,
    /// A bitmap of the pages of the ring arena that are used.
    rings: Vec<u64>,
    ended: Option<(i64, Reason)>,
    waiters: Vec<Waiter>,
}

impl Inner {
    /// Removes a thread from the list; the last thread of the list moves to its place.
    fn unlist(&mut self, thread: &Thread) {
        let at = thread.listed_at.load(Ordering::Relaxed) as usize;
        debug_assert!(self.threads.get(at) == Some(&thread.tid()), "a thread is not where it is listed");
        self.threads.swap_remove(at);
        if let Some(moved) = self.threads.get(at).and_then(|tid| thread::get(*tid)) {
            moved.listed_at.store(at as u32, Ordering::Relaxed);
        }
    }
}

/// A process.
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The generation of that number.
    pub generation: u32,
    /// The number of the process that created it.
    pub parent: u32,
    /// What it is called.
    pub name: Name,
    /// Its memory.
    pub space: Space,
    /// Its capabilities.
    pub caps: SpinLock<CapTable<Cap>>,
    /// What the process uses. Objects that outlive the process are charged there, too.
    pub ledger: Arc<ResourceLedger>,
    /// The session that it belongs to.
    pub session: Arc<Session>,
    /// Its place in the session's quota of processes, until it has ended.
    place: SpinLock<Option<Charge>>,
    /// The charge for its record and its ledger, as long as anybody holds the process.
    _record: Charge,
    /// The specification of the context that each of its threads gets.
    template: Option<Spec>,
    /// Moves on when handles of the process are revoked.
    pub epoch: AtomicU64,
    inner: SpinLock<Inner>,
    live_threads: AtomicU32,
    /// The live threads, and those that have ended but whose stacks are not free yet: such a thread may still be on its stack, on another CPU.
    unreaped_threads: AtomicU32,
    /// What its threads must know of the process.
    shared: Shared,
    /// Exit code and reason, as the first to end the process gave them.
    verdict: SpinLock<Option<(i64, Reason)>>,
    /// Nanoseconds that its ended threads ran.
    pub ended_runtime_ns: AtomicU64,
}

struct Table {
    slots: Vec<(u32, Option<Arc<Process>>)>,
}

static TABLE: SpinLock<Table> = SpinLock::new(Rank::Processes, Table { slots: Vec::new() });

/// Is told of every process that ends; set by the code that booted the machine.
static ENDED: Hook<fn(u32, i64)> = Hook::empty();

/// From here on `ended` is told the number and exit code of every process that has ended; at boot.
pub fn hand_down(ended: fn(u32, i64)) {
    ENDED.set(ended);
}

/// The deepest use of any kernel stack so far.
pub static STACK_DEPTH: AtomicU64 = AtomicU64::new(0);

/// Remembers how deep a stack was used.
pub fn note_depth(depth: u64) {
    STACK_DEPTH.fetch_max(depth, Ordering::Relaxed);
}

/// Why a process, a thread or a capability could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MakeError {
    /// The process's thread records are used up.
    Threads,
    /// No frames are left.
    Memory,
    /// The table of processes, or of threads, is full.
    Table,
    /// The capability table is full.
    Caps,
    /// No CPU has the time that the process's template asks for.
    Time,
    /// The quotas of the session do not allow it.
    Quota(Denied),
}

impl MakeError {
    /// The text for the caller.
    pub fn message(self) -> &'static str {
        match self {
            MakeError::Threads => "the process's thread records are used up",
            MakeError::Memory => "no memory left for a kernel stack or ring",
            MakeError::Table => "the machine has no record left",
            MakeError::Caps => "the process's capability table is full",
            MakeError::Quota(_) => "a quota of the session is used up",
            MakeError::Time => "no CPU has as much time left as each thread is to have",
        }
    }
}

impl From<SpaceError> for MakeError {
    fn from(error: SpaceError) -> MakeError {
        match error {
            SpaceError::Quota(denied) => MakeError::Quota(denied),
            _ => MakeError::Memory,
        }
    }
}

impl Process {
    /// Makes a process without memory, capabilities or threads, and enters it in the table.
    pub fn new(
        name: Name,
        parent: u32,
        session: Arc<Session>,
        template: Option<Spec>,
    ) -> Result<Arc<Process>, MakeError> {
        let limit = (frames::total() / 2).max(PROCESS_FRAME_LIMIT_MIN);
        let place = Charge::take(&session, Kind::Processes, 1).map_err(MakeError::Quota)?;
        let bytes = heap::arc_bytes::<Process>() + heap::arc_bytes::<ResourceLedger>();
        let record = Charge::take(&session, Kind::Memory, bytes).map_err(MakeError::Quota)?;
        let space = Space::new(limit, session.clone())?;
        let ledger = heap::try_arc(ResourceLedger::new(session.clone())).map_err(|_| MakeError::Memory)?;
        let mut table = TABLE.lock();
        let free = table.slots.iter().position(|(_, process)| process.is_none());
        let at = match free {
            Some(at) => at,
            None if table.slots.len() < MAX_PROCESSES => {
                table.slots.try_reserve(1).map_err(|_| MakeError::Memory)?;
                table.slots.push((0, None));
                table.slots.len() - 1
            }
            None => return Err(MakeError::Table),
        };
        let generation = table.slots[at].0.wrapping_add(1).max(1);
        let process = Process {
            pid: at as u32 + 1,
            generation,
            parent,
            name,
            space,
            caps: SpinLock::new(Rank::Process, CapTable::new(PROCESS_CAP_LIMIT)),
            ledger,
            session,
            place: SpinLock::new(Rank::Object, Some(place)),
            _record: record,
            template,
            epoch: AtomicU64::new(1),
            inner: SpinLock::new(
                Rank::Process,
                Inner { threads: Vec::new(), rings: Vec::new(), ended: None, waiters: Vec::new() },
            ),
            live_threads: AtomicU32::new(0),
            unreaped_threads: AtomicU32::new(0),
            shared: Shared::new(),
            verdict: SpinLock::new(Rank::Object, None),
            ended_runtime_ns: AtomicU64::new(0),
        };
        let made = heap::try_arc(process);
        if let Ok(process) = &made {
            table.slots[at] = (generation, Some(process.clone()));
        }
        // If it could not be made, its parts are dropped without the table's lock.
        drop(table);
        made.map_err(|_| MakeError::Memory)
    }

    /// The process of a thread, if that thread is still there.
    pub fn of_thread(who: &ThreadRef) -> Option<Arc<Process>> {
        // While the ring is open the body is there.
        ring::while_open(who, |thread| thread.body().process.clone())
    }

    /// Removes a process that never ran from the table.
    pub fn abandon(&self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.finish(-1, Reason::Killed);
        drop(self.end());
    }

    /// Whether the process is ending.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.shared.is_ending()
    }

    /// How many rows [`Process::rows`] has.
    pub const ROWS: usize = 5;

    /// What is charged to the process now, by name.
    pub fn rows(&self) -> [(&'static str, u64); Process::ROWS] {
        [
            ("own_thread_records", &self.ledger.records),
            ("own_stack_pages", &self.ledger.stack_pages),
            ("own_sleeps", &self.shared.sleeps),
            ("own_message_bytes", &self.ledger.message_bytes),
            ("own_queue_bytes", &self.ledger.queue_bytes),
        ]
        .map(|(name, used)| (name, u64::from(used.load(Ordering::Relaxed))))
    }

    /// Takes one more sleep for a thread of the process, if the limit allows it.
    pub fn take_sleep(&self) -> bool {
        take(&self.shared.sleeps, 1, PROCESS_SLEEP_LIMIT)
    }

    /// Gives one sleep back.
    pub fn release_sleep(&self) {
        self.shared.release_sleep();
    }

    /// Threads that have not ended.
    pub fn live_threads(&self) -> u32 {
        self.live_threads.load(Ordering::Relaxed)
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<(i64, Reason)> {
        self.inner.lock().ended
    }

    /// The number of its live thread at place `at` of the list.
    pub fn thread_at(&self, at: usize) -> Option<u32> {
        self.inner.lock().threads.get(at).copied()
    }

    /// Reserves a slot in `caps`, which is the table of this process. If the table has to grow, the session is charged for the memory first.
    pub fn reserve_slot(&self, caps: &mut CapTable<Cap>) -> Result<Reserved, MakeError> {
        let Some(slots) = caps.growth() else { return caps.reserve().map_err(|_| MakeError::Caps) };
        let more = table_bytes(slots) - table_bytes(caps.capacity());
        self.session.take(Kind::Memory, more).map_err(MakeError::Quota)?;
        caps.reserve().map_err(|_| {
            self.session.release(Kind::Memory, more);
            MakeError::Caps
        })
    }

    /// As [`Process::reserve_slot`], for a caller that does not hold the table's lock.
    pub fn reserve_cap(&self) -> Result<Reserved, MakeError> {
        self.reserve_slot(&mut self.caps.lock())
    }

    /// Puts a capability into the table; it comes back if there is no room.
    pub fn insert_cap(&self, cap: Cap) -> Result<CapId, (MakeError, Cap)> {
        let mut caps = self.caps.lock();
        match self.reserve_slot(&mut caps) {
            Ok(slot) => Ok(caps.commit(slot, cap)),
            Err(error) => {
                drop(caps);
                Err((error, cap))
            }
        }
    }

    /// Registers a thread of process `pid` that waits for the end of this process; or says how it ended, if it has.
    pub fn wait(
        &self,
        pid: u32,
        register: impl FnOnce() -> Option<Waiter>,
    ) -> Result<Option<(i64, Reason)>, &'static str> {
        let mut inner = self.inner.lock();
        if let Some(ended) = inner.ended {
            return Ok(Some(ended));
        }
        let most = if pid == self.parent { MAX_WAITERS } else { MAX_WAITERS - WAITERS_OF_PARENT };
        if inner.waiters.len() >= most || inner.waiters.try_reserve(1).is_err() {
            return Err("too many wait for this process");
        }
        let waiter = register().ok_or("no operation to spare")?;
        inner.waiters.push(waiter);
        Ok(None)
    }

    /// Makes a thread that begins at `start`, known to the scheduler but not queued yet. Everything is charged before it is made, and
    /// given back on every failure.
    pub fn make_thread(
        self: &Arc<Process>,
        start: Start,
        fs_base: u64,
        ring_address: Option<u64>,
        detached: bool,
    ) -> Result<NewThread, MakeError> {
        self.ledger.take_record()?;
        let charge = StackCharge(self.clone());
        self.ledger.take_stack()?;
        let context = match self.template {
            None => None,
            Some(spec) => match context::create(spec, None, &self.session, self.template()) {
                Ok(ctx) => Some(ctx),
                Err(error) => {
                    self.ledger.release_stack();
                    return Err(match error {
                        CreateError::Memory => MakeError::Memory,
                        CreateError::Quota(denied) => MakeError::Quota(denied),
                        _ => MakeError::Time,
                    });
                }
            },
        };
        let mut made = self.make_charged(start, fs_base, ring_address, detached, charge);
        match (&mut made, context) {
            (_, None) => {}
            (Ok(new), Some(ctx)) => context::furnish(ctx, &mut new.runnable),
            (Err(_), Some(ctx)) => context::abandon(ctx),
        }
        made
    }

    /// The number by which CPUs recognise contexts of this process's template.
    fn template(&self) -> u64 {
        u64::from(self.generation << 16 ^ self.pid)
    }

    fn make_charged(
        self: &Arc<Process>,
        start: Start,
        fs_base: u64,
        ring_address: Option<u64>,
        detached: bool,
        charge: StackCharge,
    ) -> Result<NewThread, MakeError> {
        let Ok(exit) = heap::try_arc(ThreadExit::new(charge, detached)) else {
            self.ledger.release_stack();
            return Err(MakeError::Memory);
        };
        let Some(stack) = Stack::allocate() else {
            self.ledger.release_stack();
            return Err(MakeError::Memory);
        };
        let undo = |stack: Stack, error: MakeError| {
            stack.free_unused();
            self.ledger.release_stack();
            error
        };
        let Some(ring_frame) = frames::allocate_zeroed() else { return Err(undo(stack, MakeError::Memory)) };
        let ring_address = match self.map_ring(ring_address, ring_frame) {
            Ok(address) => address,
            Err(error) => {
                frames::free(ring_frame);
                return Err(undo(stack, error));
            }
        };
        let top = stack.top();
        let body = Body { process: self.clone(), stack, ring_frame, ring_address, exit: exit.clone(), start };
        let seat = match records::claim(body) {
            Ok(seat) => seat,
            Err(body) => {
                self.unmap_ring(ring_address);
                frames::free(ring_frame);
                return Err(undo(body.stack, MakeError::Table));
            }
        };
        let thread = Thread::of(seat.head());
        exit.set_target(thread.reference());
        thread.fs_base.set(fs_base);
        // SAFETY: a new stack that nobody stands on.
        thread.rsp.set(unsafe { switch::prepare(top, thread_begin, u64::from(thread.tid())) });
        let listed = {
            let mut inner = self.inner.lock();
            inner.threads.try_reserve(1).is_ok() && {
                thread.listed_at.store(inner.threads.len() as u32, Ordering::Relaxed);
                inner.threads.push(thread.tid());
                true
            }
        };
        // The memory that the scheduling core allocates for the thread, next.
        let kept = heap::keep(::sched::Runnable::<SchedRef>::LAYOUTS);
        if !listed || kept.is_none() {
            if listed {
                self.inner.lock().unlist(thread);
            }
            ring::close(thread);
            self.unmap_ring(ring_address);
            frames::free(ring_frame);
            records::forget(thread);
            return Err(MakeError::Memory);
        }
        self.live_threads.fetch_add(1, Ordering::AcqRel);
        self.unreaped_threads.fetch_add(1, Ordering::AcqRel);
        let runnable = ::sched::Runnable::new(::sched::ThreadId(u64::from(thread.tid())), seat);
        Ok(NewThread { runnable, exit })
    }

    fn map_ring(&self, wanted: Option<u64>, frame: frames::Frame) -> Result<u64, MakeError> {
        let address = match wanted {
            Some(address) => address,
            None => {
                let mut inner = self.inner.lock();
                let word = inner.rings.iter().position(|word| *word != u64::MAX);
                let word = match word {
                    Some(word) => word,
                    None => {
                        inner.rings.try_reserve(1).map_err(|_| MakeError::Memory)?;
                        inner.rings.push(0);
                        inner.rings.len() - 1
                    }
                };
                let bit = inner.rings[word].trailing_ones();
                inner.rings[word] |= 1 << bit;
                abi::RING_ARENA_VADDR + (word as u64 * 64 + u64::from(bit)) * 4096
            }
        };
        let mapped = self.space.map_fixed(address, 4096, Access::WRITE, Backing::Borrowed(&[frame]));
        if let Err(error) = mapped {
            self.release_ring_slot(address);
            return Err(error.into());
        }
        Ok(address)
    }

    fn release_ring_slot(&self, address: u64) {
        if address >= abi::RING_ARENA_VADDR {
            let at = (address - abi::RING_ARENA_VADDR) / 4096;
            if let Some(word) = self.inner.lock().rings.get_mut(at as usize / 64) {
                *word &= !(1 << (at % 64));
            }
        }
    }

    fn unmap_ring(&self, address: u64) {
        self.space.unmap_fixed(address, 4096);
        self.release_ring_slot(address);
    }

    /// Ends the process: each of its threads ends when it is next about to return to user mode. False if the process was ending already.
    pub fn kill(&self, code: i64, reason: Reason) -> bool {
        // Under the verdict's lock: a thread that sees `is_ending` may be the last one, and then asks for the verdict at once.
        let mut verdict = self.verdict.lock();
        if self.shared.is_ending.swap(true, Ordering::AcqRel) {
            return false;
        }
        *verdict = Some((code, reason));
        drop(verdict);
        // One thread at a time, from the end of the list: waking takes locks that must not be taken under the list's lock. If a thread leaves the
        // list meanwhile, the last one of the list takes its place, which was woken already. New threads see `is_ending` themselves. Others may run
        // between two threads, because there may be a thousand.
        let mut pacer = Pacer::of_wakes();
        let mut at = self.inner.lock().threads.len();
        while at > 0 {
            at -= 1;
            let who = {
                let inner = self.inner.lock();
                inner.threads.get(at).and_then(|tid| thread::get(*tid)).map(|thread| thread.reference())
            };
            let Some(who) = who else { continue };
            context::strip(&who);
            if let Some(thread) = thread::get(who.tid) {
                dispatch::kick(thread);
            }
            pacer.step();
        }
        true
    }

    /// The last thread has ended: frees everything that the process has, in pieces between which others run.
    fn finish(&self, code: i64, reason: Reason) {
        // Capabilities first: servers and peers learn that the process is gone. The new table takes none: a capability that arrived late and named
        // this very process would keep it alive for ever.
        let caps = core::mem::replace(&mut *self.caps.lock(), CapTable::new(0));
        let table = table_bytes(caps.capacity());
        let (mut slots, mut pacer) = (Pacer::of(PACE_SLOTS as u32), Pacer::of(PACE_CAPS));
        for cap in caps.into_objects() {
            slots.step();
            if cap.is_some() {
                drop(cap);
                pacer.step();
            }
        }
        self.session.release(Kind::Memory, table);
        // From here on the last thread runs on the kernel's page tables, also when it continues after a pause.
        dispatch::unload(self.space.retire());
        self.space.destroy();
        let mut table = TABLE.lock();
        let slot = table.slots.get_mut(self.pid as usize - 1);
        let listed =
            slot.and_then(|(generation, process)| process.take_if(|_| *generation == self.generation));
        drop(table);
        drop(listed);
        let place = self.place.lock().take();
        drop(place);
        *self.verdict.lock() = Some((code, reason));
    }

    /// The last thread is off its stack: from now on the process has ended. Returns how, and the threads that wait for that.
    fn end(&self) -> (i64, Reason, Vec<Waiter>) {
        let (code, reason) = self.verdict.lock().unwrap_or((-1, Reason::Killed));
        let mut inner = self.inner.lock();
        inner.ended = Some((code, reason));
        (code, reason, core::mem::take(&mut inner.waiters))
    }
}

impl Withdraw for Process {
    /// Removes a thread that waits for the end.
    fn withdraw(&self, waiter: &Waiter) -> bool {
        let mut inner = self.inner.lock();
        let found = inner.waiters.iter().position(|w| w.thread == waiter.thread && w.op == waiter.op);
        found.map(|at| inner.waiters.swap_remove(at)).is_some()
    }
}

/// A thread that is made and not yet started.
pub struct NewThread {
    runnable: ::sched::Runnable<SchedRef>,
    /// Tells others how it ends.
    pub exit: Arc<ThreadExit>,
}

impl NewThread {
    /// Lets the thread run, with this share.
    pub fn start(mut self, share: Share) {
        share.give(&mut self.runnable);
        dispatch::start(self.runnable);
    }
}

/// Where every thread starts in the kernel: it goes to user mode.
extern "C" fn thread_begin(_: u64) -> ! {
    dispatch::finish_switch();
    let thread = thread::current();
    let body = thread.body();
    fpu::reset(fpu::MXCSR_INITIAL);
    let mut regs = [0; 15];
    // r15 … rax: RCX = ring, RDX = pid, RSI = tid, RDI = argument, R8 = CapSet.
    regs[12] = body.ring_address;
    regs[11] = u64::from(body.process.pid);
    regs[10] = u64::from(thread.tid());
    regs[9] = body.start.argument;
    regs[7] = abi::CAPSET_VADDR;
    let frame = crate::arch::entry::Frame {
        regs,
        vector: 0,
        error: 0,
        rip: body.start.entry,
        cs: segments::USER_CODE.into(),
        rflags: 0x202,
        rsp: body.start.stack,
        ss: segments::USER_DATA.into(),
    };
    // What was done on this stack for the thread before may have woken another one that goes first, as at the end of every system call.
    dispatch::reschedule();
    if thread.life().has_errands() {
        context::settle_before_user(thread);
    }
    if body.process.is_ending() {
        exit_current(0);
    }
    dispatch::end_irq_off();
    // SAFETY: a frame on our own stack with user selectors; the registers were just reset.
    unsafe { switch::enter_user_at(&frame) }
}

/// Ends the current thread.
pub fn exit_current(code: i64) -> ! {
    irqoff::begins(percpu::this(), Path::End);
    let thread = thread::current();
    let body = thread.body();
    let process = body.process.clone();
    thread.sq.invalidate();
    // Before the last look for contexts and before any preemption point: a thread that ends must not be stopped for want of a context.
    dispatch::exit(|| process.is_ending());
    // The thread in this CPU's handoff place may have a context that another CPU looks for, while this thread waits for that CPU.
    dispatch::settle_handoff();
    withdraw_all(thread);
    if thread.served.get() {
        fail_unanswered(&process, &thread.reference());
    }
    deferred_work::tend(thread);
    // The last preemption point before the thread gives up its page tables and its record: when a thousand threads end, interrupts are served
    // before each.
    preempt::point();
    context::thread_ends(thread);
    crate::timers::cancel_timer(thread, thread::TIMEOUT);
    // From here on completions for this thread are stale.
    ring::close(thread);
    // The page tables are freed with the last thread, and as soon as this one is not counted any more that may be another one, on another CPU. They
    // are left before the ring is unmapped, so that CPUs whose threads end at the same time need not wait for each other's TLBs.
    dispatch::leave_space();
    if process.is_ending() {
        // All threads end, and the address space with them: a shootdown for each single ring would be a waste.
        process.space.adopt_fixed(body.ring_address);
    } else {
        process.unmap_ring(body.ring_address);
        frames::free(body.ring_frame);
    }
    process.inner.lock().unlist(thread);
    let last = process.live_threads.fetch_sub(1, Ordering::AcqRel) == 1;
    thread.exit_code.set(code);
    if last {
        process.shared.is_ending.store(true, Ordering::Release);
        let (code, reason) = process.verdict.lock().take().unwrap_or((code, Reason::Exited));
        process.finish(code, reason);
        deferred_work::tend(thread);
    }
    drop(process);
    dispatch::end()
}

/// Withdraws what the current thread has under way. If another CPU is busy with an operation (it copies a message, or wakes the thread), that is
/// waited for: after the thread has ended its memory and its record may serve others, and nobody may write to them on its behalf.
fn withdraw_all(thread: &Thread) {
    while let Some((waiter, on)) = ring::any_pending(thread) {
        let in_object = !matches!(on, Waitable::Sleep | Waitable::Park(_) | Waitable::Read);
        if planted::is(Bug::NoGenerationCheck) && in_object {
            // A kernel that relied on the generation check alone would leave its waiters in the objects.
            ring::forget(thread, &waiter);
        } else if crate::object::withdraw(&waiter, &on) {
            if let Some(ctx) = Ctx::of(thread) {
                context::loan::settle_slowly(ctx, &waiter);
            }
            ring::forget(thread, &waiter);
            // Finding it in a long queue may have taken long.
            preempt::point();
        } else {
            // Bounded: the other CPU is in the kernel, which does not preempt itself, and this one holds nothing that it could wait for. But the
            // other CPU's path may be long, so interrupts are served here meanwhile (K-26).
            crate::arch::cpu::pause();
            preempt::point();
        }
    }
}

/// Calls that `server` received and did not answer fail, even if other threads serve the endpoint. Each endpoint is searched once, however many
/// capabilities name it, and others may run between two.
fn fail_unanswered(process: &Process, server: &ThreadRef) {
    let search = crate::name::fresh_id();
    let mut from = 0;
    loop {
        let caps = process.caps.lock();
        let next = caps.iter_between(from, from + PACE_SLOTS).find_map(|(id, cap)| {
            let is_new = |endpoint: &&Arc<Endpoint>| endpoint.search.load(Ordering::Relaxed) != search;
            Some((id, cap.served().filter(is_new)?.clone()))
        });
        let slots = caps.slots();
        drop(caps);
        match next {
            Some((id, endpoint)) => {
                endpoint.search.store(search, Ordering::Relaxed);
                endpoint.server_ended(server);
                from = usize::from(id.index()) + 1;
            }
            None => from += PACE_SLOTS,
        }
        preempt::point();
        if from >= slots {
            return;
        }
    }
}

/// Frees the stack and the record of an ended thread; with the last thread, tells that the process has ended.
pub fn reap(thread: &'static Thread, token: OffStackToken) {
    let Some(process) = records::release(thread, token) else { return };
    // The last thread to be reaped need not be the last one that ended. The end is told when everything is free.
    if process.unreaped_threads.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    let (code, reason, waiters) = process.end();
    let pid = process.pid;
    // Dropped first, so that everything is free when the waiting threads hear of it.
    drop(process);
    for waiter in waiters {
        let completion = Completion { w: [code as u64, reason as u64], ..Completion::OK };
        complete::operation(&waiter, &completion, false);
    }
    if let Some(ended) = ENDED.get() {
        ended(pid, code);
    }
}

/// Ends the current thread if its process is ending: for every path that returns to user mode.
#[inline(always)]
pub fn exit_if_ending(thread: &Thread) {
    if thread.body().process.is_ending() {
        exit_current(0);
    }
}

/// Process number `pid`.
pub fn get(pid: u32) -> Option<Arc<Process>> {
    let table = TABLE.lock();
    table.slots.get((pid as usize).checked_sub(1)?)?.1.clone()
}

/// All processes, in order of their numbers, from slot `from`; `visit` says whether to go on.
pub fn each(from: usize, mut visit: impl FnMut(usize, Arc<Process>) -> bool) {
    let mut at = from;
    loop {
        let next = {
            let table = TABLE.lock();
            table.slots.iter().enumerate().skip(at).find_map(|(i, (_, p))| p.clone().map(|p| (i, p)))
        };
        let Some((i, process)) = next else { return };
        if !visit(i, process) {
            return;
        }
        at = i + 1;
    }
}
