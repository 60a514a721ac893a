//! A process that fuzzes: some threads, each of which writes entries into its own ring, and sometimes into the rings of the others.
//!
//! A thread that fuzzes uses nothing of rt but the system calls, because it corrupts its thread-local data, its capabilities and its
//! indices.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use rt::abi::{
    CQ_ENTRIES, Cqe, Interface, Op, Ring, SQ_ENTRIES, SYS_EXIT, Sqe, TransportError, flags, rights,
};
use rt::thread::JoinHandle;
use rt::{Client, Factory, MemoryObject, Protection, args, caps, ring, syscall, thread, vm};

use super::generate::{ARENA, ARENA_PAGES, Generator, PRINTED, READ_ONLY, World};
use super::{CHILDREN_MAX, COLUMNS, ROWS, STATS_BYTES, STRANGER, Stats, UNKNOWN_OP, column};
use crate::ensure;
use crate::proof::{Doing, Outcome};

const PAGE: usize = 4096;
/// The most threads of one process: each has a page of the arena for its messages.
const THREADS_MAX: usize = 8;
/// With this many operations under way, a thread only cancels some.
const UNDER_WAY_MAX: u64 = 18;
/// A thread that had no entry taken for this many turns is stuck, and ends.
const STUCK_TURNS: u32 = 300;
/// Turns between two updates of the shared counters.
const TURNS_PER_REPORT: u32 = 64;

/// The rings of the threads, for threads that write into each other's.
static RINGS: [AtomicU64; THREADS_MAX] = [const { AtomicU64::new(0) }; THREADS_MAX];

/// The main function of the process: `child <number> <seed> <entries> <threads>`.
pub fn run() -> i64 {
    match fuzz() {
        Ok(()) => 0,
        Err(failure) => {
            rt::println!("fuzz child: {}", failure.0);
            1
        }
    }
}

fn fuzz() -> Outcome {
    let number = |at: usize| args::number(at, 0).doing("an argument is no number");
    let (child, seed, entries) = (number(1)? as usize, number(2)?, number(3)?);
    let threads = (number(4)? as usize).clamp(1, THREADS_MAX);
    ensure!(child < CHILDREN_MAX, "there is no child {child}");
    let stats: MemoryObject = caps::get("stats")?;
    let at = stats.map(None, 0, STATS_BYTES, true).doing("map the numbers")?;
    // SAFETY: mapped for as long as the process lives; only atomics, and every pattern of bits is a number.
    let stats: &'static Stats = unsafe { &*(at as *const Stats) };
    let world: &'static World = Box::leak(Box::new(prepare()?));
    let mut running: Vec<JoinHandle<()>> = Vec::new();
    let mut next = seed;
    let start = stats.entries[child].load(Ordering::Relaxed);
    // Threads end when they are stuck, or because an entry ended them; others take their place.
    while stats.entries[child].load(Ordering::Relaxed) - start < entries {
        running.retain(|thread| !thread.is_finished() && !has_ended(thread));
        while running.len() < threads {
            let Some(place) = (0..threads).find(|place| RINGS[*place].load(Ordering::Relaxed) == 0) else {
                break;
            };
            next += 1;
            let seed = next.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let limit = (entries / threads as u64).max(64);
            RINGS[place].store(1, Ordering::Relaxed);
            let work = move || Fuzzer::new(place, child, seed, stats, world).run(limit);
            match thread::Builder::new().stack_bytes(48 << 10).spawn(work) {
                Ok(thread) => running.push(thread),
                // Something that is needed to create a thread is corrupted; the next process has it again.
                Err(_) => return Ok(()),
            }
        }
        if rt::time::sleep(2_000_000).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether a thread has ended, also without returning from its function.
fn has_ended(thread: &JoinHandle<()>) -> bool {
    thread.handle().is_none_or(|handle| !matches!(handle.exit_code(), Ok(None)))
}

/// Prepares the memory, capabilities and messages to fuzz with.
fn prepare() -> Outcome<World> {
    let space = vm::space()?;
    let map = |at: u64, bytes: usize| space.map(Some(at), bytes, Protection::READ_WRITE).doing("map");
    map(ARENA, ARENA_PAGES as usize * PAGE)?;
    map(READ_ONLY, PAGE)?;
    map(PRINTED, PAGE)?;
    // SAFETY: just mapped.
    unsafe {
        core::slice::from_raw_parts_mut(PRINTED as *mut u8, PAGE).fill(b'.');
        space.protect(READ_ONLY, PAGE, Protection::READ).doing("protect")?;
    }
    let mut world = World::new(end_at_once as *const () as u64);
    for entry in caps::granted() {
        let is_spared = matches!(caps::name_of(entry), "stats" | "self");
        if let Some(interface) = Interface::from_raw(entry.interface).filter(|_| !is_spared) {
            world.know(entry.cap, interface);
        }
    }
    let factory: Factory = caps::any()?;
    for _ in 0..3 {
        world.know(factory.endpoint().doing("an endpoint")?.into_cap().into_id(), Interface::Endpoint);
        let object = factory.memory_object(4 * PAGE as u64).doing("a memory object")?;
        world.know(object.into_cap().into_id(), Interface::MemoryObject);
    }
    world.know(factory.session("fuzz").doing("a session")?.into_cap().into_id(), Interface::UserSession);
    for context in super::contexts::prepare()? {
        world.know(context, Interface::SchedulingContext);
    }
    // An endpoint whose server is gone, and a capability that was revoked.
    let server = factory.endpoint().doing("an endpoint")?;
    world.dead_end = server.caller(3).doing("a copy")?.into_cap().into_id().0;
    drop(server);
    let object = factory.memory_object(PAGE as u64).doing("a memory object")?;
    world.revoked = object.cap().copy(rights::CALL | rights::GRANT, 0).doing("a copy")?.into_id().0;
    object.cap().revoke().doing("revoke")?;
    world.know(object.into_cap().into_id(), Interface::MemoryObject);
    Ok(world)
}

/// The entry point of threads that the fuzzer creates: ends at once.
#[unsafe(naked)]
unsafe extern "C" fn end_at_once() -> ! {
    naked_asm!("mov eax, {exit}", "xor edi, edi", "syscall", "ud2", exit = const SYS_EXIT)
}

/// One thread that fuzzes.
struct Fuzzer {
    place: usize,
    child: usize,
    stats: &'static Stats,
    ring: *mut Ring,
    generator: Generator<'static>,
    /// The entry that the kernel will take next, as far as this thread knows; then the completion that it will read next.
    sq_head: u32,
    cq_head: u32,
    /// Entries whose completion has not arrived.
    under_way: u64,
    counts: [[u16; COLUMNS]; ROWS],
    entries: u64,
}

impl Fuzzer {
    fn new(place: usize, child: usize, seed: u64, stats: &'static Stats, world: &'static World) -> Fuzzer {
        let ring = ring::raw().cast_mut();
        RINGS[place].store(ring as u64, Ordering::Relaxed);
        let page = ARENA + (place as u64 + 2) * PAGE as u64;
        Fuzzer {
            place,
            child,
            stats,
            ring,
            generator: Generator::new(seed, world, page, ring as u64),
            sq_head: 0,
            cq_head: 0,
            under_way: 0,
            counts: [[0; COLUMNS]; ROWS],
            entries: 0,
        }
    }

    fn run(mut self, limit: u64) {
        // rt has used the ring before: it may have made calls to set this thread up.
        // SAFETY: the thread's own ring.
        unsafe {
            self.sq_head = (*self.ring).sq_head.load(Ordering::Acquire);
            self.cq_head = (*self.ring).cq_tail.load(Ordering::Acquire);
        }
        let (mut done, mut stuck, mut turns) = (0, 0, 0);
        while done < limit && stuck < STUCK_TURNS {
            let taken = self.turn();
            done += taken;
            stuck = if taken == 0 { stuck + 1 } else { 0 };
            turns += 1;
            if turns == TURNS_PER_REPORT {
                turns = 0;
                self.report();
            }
        }
        self.report();
        RINGS[self.place].store(0, Ordering::Relaxed);
        syscall::exit_thread(0)
    }

    /// Writes some entries, has the kernel take them, and reads completions. Returns how many were taken.
    fn turn(&mut self) -> u64 {
        let count = 1 + self.generator.random.below(28) as u32;
        let mut tail = self.sq_head;
        for _ in 0..count {
            let sqe = self.entry();
            self.put(tail, sqe);
            tail = tail.wrapping_add(1);
        }
        let odd = self.generator.random.below(512);
        match odd {
            0 => self.spoil_indices(tail),
            1 => self.spoil_others(),
            2..=6 => self.strange_system_call(),
            _ => {}
        }
        self.enter(tail);
        let taken = self.taken(tail);
        self.read_completions();
        taken
    }

    fn entry(&mut self) -> Sqe {
        let is_full = self.under_way >= UNDER_WAY_MAX;
        let sqe = if is_full { self.generator.withdrawal() } else { self.generator.next_entry() };
        // Quiet entries mostly have no completion, so this is only a guess.
        self.under_way += u64::from(sqe.flags & flags::QUIET == 0);
        sqe
    }

    /// Writes an entry and the message that belongs to it, each in its own place.
    fn put(&mut self, tail: u32, mut sqe: Sqe) {
        let message = &self.generator.message;
        let page = self.generator.page();
        let at = page + u64::from(tail) * size_of_val(message) as u64 % PAGE as u64;
        if sqe.addr == page {
            sqe.addr = at;
        }
        // SAFETY: this thread's page of the arena, and its own ring.
        unsafe {
            core::ptr::copy_nonoverlapping(message.as_ptr(), at as *mut u64, self.generator.message_len);
            (&raw mut (*self.ring).sq[(tail % SQ_ENTRIES) as usize]).write_volatile(sqe);
        }
    }

    fn enter(&mut self, tail: u32) {
        let random = &mut self.generator.random;
        let (min, timeout) = match random.below(160_000) {
            // Another thread may wake it, or the supervisor kills the process.
            0 => (32, u64::MAX),
            1..=6000 => (random.below(4), random.below(200_000)),
            6001..=8000 => (random.word(), random.below(50_000)),
            _ => (0, 0),
        };
        // SAFETY: the thread's own ring. What entries do to memory is confined to memory that this process is meant to corrupt.
        unsafe {
            (*self.ring).cq_head.store(self.cq_head, Ordering::Release);
            (*self.ring).sq_tail.store(tail, Ordering::Release);
            syscall::cap_enter(min, timeout);
        }
    }

    /// How many entries the kernel took, by the kernel's index in the page, if no thread has overwritten that.
    fn taken(&mut self, tail: u32) -> u64 {
        // SAFETY: the thread's own ring.
        let head = unsafe { (*self.ring).sq_head.load(Ordering::Acquire) };
        let taken = head.wrapping_sub(self.sq_head);
        if taken <= tail.wrapping_sub(self.sq_head) {
            self.sq_head = head;
            self.entries += u64::from(taken);
            // Entries that were not taken are written anew.
            self.under_way -= u64::from(tail.wrapping_sub(head)).min(self.under_way);
            return taken.into();
        }
        0
    }

    fn read_completions(&mut self) {
        // SAFETY: the thread's own ring.
        let tail = unsafe { (*self.ring).cq_tail.load(Ordering::Acquire) };
        if tail.wrapping_sub(self.cq_head) > CQ_ENTRIES {
            return;
        }
        while self.cq_head != tail {
            // SAFETY: the thread's own ring.
            let cqe: Cqe =
                unsafe { (&raw const (*self.ring).cq[(self.cq_head % CQ_ENTRIES) as usize]).read_volatile() };
            self.cq_head = self.cq_head.wrapping_add(1);
            self.under_way = self.under_way.saturating_sub(1);
            let row = match Generator::op_of(cqe.user_data) {
                Some(op) => op,
                None if cqe.user_data == 0xf0ff => UNKNOWN_OP,
                None => STRANGER,
            };
            let count = &mut self.counts[row][column(cqe.status)];
            *count = count.saturating_add(1);
            if row == Op::Recv as usize && cqe.status == 0 {
                self.generator.remember_token(cqe.value);
            }
            if cqe.cap != 0 {
                let old = self.generator.remember(cqe.cap);
                if old != 0 {
                    self.release(old);
                }
            }
        }
        if self.generator.random.below(256) == 0 {
            self.under_way /= 2;
        }
    }

    /// Releases a capability that was remembered for long enough.
    fn release(&mut self, cap: u32) {
        let sqe = self.generator.release_of(cap);
        self.generator.message_len = 0;
        self.put(self.sq_head, sqe);
        let tail = self.sq_head.wrapping_add(1);
        // SAFETY: the thread's own ring; the entry names no memory.
        unsafe {
            (*self.ring).cq_head.store(self.cq_head, Ordering::Release);
            (*self.ring).sq_tail.store(tail, Ordering::Release);
            syscall::cap_enter(0, 0);
        }
        self.taken(tail);
    }

    /// Stores impossible indices: the kernel must refuse them, and go on when they are correct again.
    fn spoil_indices(&mut self, tail: u32) {
        let word = self.generator.random.word() as u32;
        // SAFETY: the thread's own ring. Entries that are taken a second time were harmless the first time.
        unsafe {
            match self.generator.random.below(4) {
                0 => {
                    let wrong = self.sq_head.wrapping_add(SQ_ENTRIES + 1 + word % 1000);
                    (*self.ring).sq_tail.store(wrong, Ordering::Release);
                    (*self.ring).cq_head.store(self.cq_head, Ordering::Release);
                    let result = syscall::cap_enter(0, 0);
                    self.stats.nonsense.fetch_add(1, Ordering::Relaxed);
                    let refused = u64::from(result == TransportError::BadMessage as i64);
                    self.stats.nonsense_refused.fetch_add(refused, Ordering::Relaxed);
                }
                1 => {
                    // Claims to have read completions before they were written.
                    (*self.ring).cq_head.store(word, Ordering::Release);
                    (*self.ring).sq_tail.store(tail, Ordering::Release);
                    syscall::cap_enter(word as u64 % 3, 10_000);
                    self.taken(tail);
                }
                2 => (*self.ring).sq_head.store(word, Ordering::Release),
                _ => (*self.ring).cq_tail.store(word, Ordering::Release),
            }
        }
    }

    /// Writes into the ring of another thread, while the kernel may be reading it.
    fn spoil_others(&mut self) {
        let other = self.generator.random.below(THREADS_MAX as u64) as usize;
        let ring = RINGS[other].load(Ordering::Relaxed);
        if ring < PAGE as u64 || other == self.place {
            return;
        }
        let (at, word) = (self.generator.random.below(1024), self.generator.random.word() as u32);
        // The tail is left alone: entries behind it may be anything, including a WRITE of anything.
        if at > 0 {
            // SAFETY: rings stay mapped while their thread lives; if it has just ended, this process faults and is restarted.
            unsafe { ((ring + 4 * at) as *mut u32).write_volatile(word) };
        }
    }

    fn strange_system_call(&mut self) {
        let random = &mut self.generator.random;
        let number = match random.below(4) {
            0 => random.word(),
            1 => 2 + random.below(600),
            2 => u64::MAX - random.below(64),
            _ => 2 << random.below(62),
        };
        let (first, second) = (random.word(), random.word());
        // SAFETY: the number does not exist; the queue is as it was.
        let result = unsafe { syscall::raw(number.max(2), first, second) };
        self.stats.syscalls.fetch_add(1, Ordering::Relaxed);
        let refused = u64::from(result == TransportError::UnknownSyscall as i64);
        self.stats.refused.fetch_add(refused, Ordering::Relaxed);
        if self.generator.random.below(4000) == 0 {
            RINGS[self.place].store(0, Ordering::Relaxed);
            syscall::exit_thread(5);
        }
    }

    fn report(&mut self) {
        self.stats.entries[self.child].fetch_add(core::mem::take(&mut self.entries), Ordering::Relaxed);
        for (row, sums) in self.counts.iter_mut().zip(&self.stats.outcomes) {
            for (count, sum) in row.iter_mut().zip(sums) {
                if *count != 0 {
                    sum.fetch_add(core::mem::take(count).into(), Ordering::Relaxed);
                }
            }
        }
    }
}
