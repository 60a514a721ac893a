//! Stacks for fibers: reserved in slabs, guarded in batches, reused last-in first-out.
//!
//! This file only hands out memory. It must not know what a task is, switch to a stack, or read or write the contents
//! of one (except to have the kernel drop its pages).
//!
//! One slot, lowest address first:
//!
//! ```text
//!   hard_low        reserve_low              limit                                top
//!   | hard guard    | reserve                | usable                             |
//!   | 4 KiB         | 20 KiB                 | 8 KiB .. 1 MiB, by class           |
//!   | never opened  | guarded until overflow | populated by first touch           |   (`ROOM` times as much)
//!   <------------- one slot; a slab is a row of them, a guard below each ---------->
//! ```
//!
//! Numbered invariants:
//!
//! 1. A slot is reachable from exactly one `Stack` handle, or from the shelf of its class, or from nothing
//!    (retired or dropped handle: leaked until the pool is dropped). `Stack` is neither `Copy` nor `Clone`.
//! 2. A slot that has ever been handed out has its hard guard in place, for ever; its reserve is guarded
//!    whenever it is on a shelf.
//! 3. `Stack::guards` says how the *reserve* of that slot is guarded, so that a process whose later slabs fall back to
//!    `mprotect` still handles its earlier slots correctly.
//! 4. A shelf's free list has room for every slot ever made: giving a stack back never allocates.
//! 5. A slab is unmapped only by dropping the pool; the code that drops it guarantees that no stack is in use.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::{fmt, io};

/// Size of a page; the crate is for x86-64 only.
pub(crate) const PAGE: usize = 4096;
/// Bytes at the bottom of a slot that never become accessible.
pub(crate) const HARD_GUARD: usize = PAGE;
/// The factor by which all sizes but the hard guard's are larger: unoptimised code has frames twice as large, and a
/// sanitizer adds frames of its own and of its allocator, 3 KB a call. What fits into a stack in an optimised build
/// shall fit there too.
pub(crate) const ROOM: usize = if cfg!(sanitized) {
    4
} else if cfg!(unoptimized) {
    2
} else {
    1
};
/// Bytes above the hard guard that are opened once, when a stack overflows.
pub(crate) const RESERVE: usize = 20 * 1024 * ROOM;
/// Bytes at the bottom of the reserve that are opened last: the room that a library call has left to return.
/// `snprintf("%f")` takes 2.6 KB, a first, lazily bound call 3.2 KB.
pub(crate) const LOWER_RESERVE: usize = 8 * 1024 * ROOM;
/// Bytes below the usable part of a slot.
const GUARDED: usize = HARD_GUARD + RESERVE;

const MADV_GUARD_INSTALL: libc::c_int = 102;
const MADV_GUARD_REMOVE: libc::c_int = 103;
const PIDFD_SELF: libc::c_int = -10_000;

/// Slots guarded by one system call. 64 Lean slots are 2 MiB, the reach of one page table; batches of 1,024 cost the
/// same per slot. Populating the top pages along with the guards (MADV_POPULATE_WRITE) was tried and saves nothing.
const BATCH: usize = 64;

/// Mappings that `mprotect` guards leave to the rest of the process.
const SPARE_MAPPINGS: usize = 4096;

/// How much stack a task gets.
///
/// The size is what the task's own frames and everything they call may use. See the documentation of the crate for what
/// common calls need. Sizes are twice those given here in a build without optimisation (level 0), and four times under
/// a sanitizer, where frames are larger by as much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StackClass {
    /// 8 KiB, as in the specification: for lean tasks that call little.
    Lean,
    /// 16 KiB.
    Small,
    /// 64 KiB, the default: three times what a TLS handshake, `getaddrinfo` or a backtrace needs. The untouched part
    /// costs addresses and 111 bytes of page tables, but no memory.
    #[default]
    Medium,
    /// 256 KiB.
    Large,
    /// 1 MiB.
    Huge,
}

impl StackClass {
    /// All classes, smallest first.
    pub const ALL: [StackClass; 5] =
        [StackClass::Lean, StackClass::Small, StackClass::Medium, StackClass::Large, StackClass::Huge];

    /// The class that SPEC-021 [SCHED:5.3.2] gives to every task: `Config::new().stack(StackClass::SPECIFIED)`.
    pub const SPECIFIED: StackClass = StackClass::Lean;

    /// Usable bytes of a stack of this class.
    pub const fn bytes(self) -> usize {
        let kib = match self {
            StackClass::Lean => 8,
            StackClass::Small => 16,
            StackClass::Medium => 64,
            StackClass::Large => 256,
            StackClass::Huge => 1024,
        };
        kib * 1024 * ROOM
    }

    /// The smallest class with at least `bytes` usable bytes (in an optimised build), or `None` if no class is that
    /// large.
    pub const fn for_bytes(bytes: usize) -> Option<StackClass> {
        let mut i = 0;
        while i < Self::ALL.len() {
            if bytes <= Self::ALL[i].bytes() / ROOM {
                return Some(Self::ALL[i]);
            }
            i += 1;
        }
        None
    }

    const fn slot(self) -> usize {
        GUARDED + self.bytes()
    }

    /// Slots of a pool's first slab; each further slab has twice as many, up to `most_slots`.
    const fn first_slots(self) -> usize {
        match self {
            StackClass::Lean | StackClass::Small => 64,
            StackClass::Medium => 16,
            StackClass::Large => 8,
            StackClass::Huge => 4,
        }
    }

    const fn most_slots(self) -> usize {
        match self {
            StackClass::Lean | StackClass::Small => 1024,
            StackClass::Medium => 256,
            StackClass::Large => 128,
            StackClass::Huge => 64,
        }
    }
}

/// How stacks are guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum GuardKind {
    /// Guard markers in the page tables (`MADV_GUARD_INSTALL`, Linux 6.13): no mapping per stack.
    Marker = 0,
    /// `mprotect(PROT_NONE)`: two mappings per stack, so `vm.max_map_count` bounds the number of stacks.
    Protect = 1,
}

/// Why no stack could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum StackError {
    /// The kernel refused address space for a slab.
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The system's error number.
        errno: i32,
    },
    /// Guards need mappings of their own here, and the process has as many as `vm.max_map_count` allows.
    TooManyMappings {
        /// Stacks the pool has made so far, of all classes.
        stacks: u64,
    },
    /// A guard could not be installed for another reason.
    Guard {
        /// The system's error number.
        errno: i32,
    },
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            StackError::NoMemory { bytes, errno } => {
                write!(f, "no memory for {bytes} bytes of stacks: {}", io::Error::from_raw_os_error(errno))
            }
            StackError::TooManyMappings { stacks } => write!(
                f,
                "no more stacks than {stacks}: guarding them by mprotect has used up vm.max_map_count"
            ),
            StackError::Guard { errno } => {
                write!(f, "could not guard a stack: {}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for StackError {}

/// A part of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// The part next to the usable stack, opened first.
    Upper,
    /// The part next to the hard guard, opened when the upper part is used up.
    Lower,
}

/// A stack: the only handle to its slot. Dropping it leaks the slot until the pool is dropped.
#[derive(Debug)]
#[must_use = "a dropped handle leaks its slot: give it back to its pool"]
pub(crate) struct Stack {
    top: NonNull<u8>,
    class: StackClass,
    guards: GuardKind,
}

const _: () = assert!(size_of::<Stack>() == 16 && size_of::<Option<Stack>>() == 16);

// SAFETY: a handle is an address; the memory belongs to the holder of the handle (invariant 1).
unsafe impl Send for Stack {}
// SAFETY: shared access only reads the handle's fields, or changes the protection of the slot's own reserve.
unsafe impl Sync for Stack {}

impl Stack {
    /// One past the highest usable byte; 4096-byte aligned.
    #[inline]
    pub(crate) fn top(&self) -> *mut u8 {
        self.top.as_ptr()
    }

    /// Lowest usable address while the reserve is closed.
    #[inline]
    pub(crate) fn limit(&self) -> *mut u8 {
        self.top().wrapping_sub(self.class.bytes())
    }

    /// Lowest address of the reserve, which is the lowest usable one while the reserve is open.
    #[inline]
    pub(crate) fn reserve_low(&self) -> *mut u8 {
        self.limit().wrapping_sub(RESERVE)
    }

    /// Lowest address of the slot and of its hard guard.
    #[inline]
    pub(crate) fn hard_low(&self) -> *mut u8 {
        self.reserve_low().wrapping_sub(HARD_GUARD)
    }

    /// The class of the stack.
    #[inline]
    pub(crate) fn class(&self) -> StackClass {
        self.class
    }

    /// Lowest address of the upper reserve.
    #[inline]
    pub(crate) fn upper_low(&self) -> *mut u8 {
        self.reserve_low().wrapping_add(LOWER_RESERVE)
    }

    /// Makes a part of the reserve accessible. Async-signal-safe: one system call (`errno` may change).
    pub(crate) fn open_reserve(&self, part: Reserve) -> io::Result<()> {
        let (low, len) = match part {
            Reserve::Upper => (self.upper_low().cast::<libc::c_void>(), RESERVE - LOWER_RESERVE),
            Reserve::Lower => (self.reserve_low().cast::<libc::c_void>(), LOWER_RESERVE),
        };
        // SAFETY: the range is in this slot's reserve, which holds nothing while it is closed.
        let r = unsafe {
            match self.guards {
                GuardKind::Marker => libc::madvise(low, len, MADV_GUARD_REMOVE),
                GuardKind::Protect => libc::mprotect(low, len, libc::PROT_READ | libc::PROT_WRITE),
            }
        };
        if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Guards the lower part of the reserve again, which must be unused. If that fails, it stays open.
    pub(crate) fn close_lower(&self) {
        let low = self.reserve_low().cast::<libc::c_void>();
        // SAFETY: the range is in this slot's reserve, and the caller guarantees that nothing uses it.
        unsafe {
            match self.guards {
                GuardKind::Marker => libc::madvise(low, LOWER_RESERVE, MADV_GUARD_INSTALL),
                GuardKind::Protect => libc::mprotect(low, LOWER_RESERVE, libc::PROT_NONE),
            }
        };
    }

    /// Guards the reserve again and drops its pages. Nothing may use the stack any more. Async-signal-safe: at most
    /// three system calls (`errno` may change). On failure the reserve is as it was, and the stack must be retired, not
    /// given back (`StackPool::recycle` does so).
    pub(crate) fn close_reserve(&mut self) -> io::Result<()> {
        let low = self.reserve_low().cast::<libc::c_void>();
        // SAFETY: the range is this slot's reserve, and the caller guarantees that nothing uses it any more.
        unsafe {
            // Memory that was locked meanwhile (mlockall) takes no markers: then it is guarded by `mprotect` instead.
            if self.guards == GuardKind::Marker && libc::madvise(low, RESERVE, MADV_GUARD_INSTALL) == 0 {
                return Ok(());
            }
            libc::madvise(low, RESERVE, libc::MADV_DONTNEED);
            if libc::mprotect(low, RESERVE, libc::PROT_NONE) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        self.guards = GuardKind::Protect;
        Ok(())
    }
}

/// A row of slots that are mapped together.
struct Slab {
    base: NonNull<u8>,
    slots: usize,
}

// SAFETY: a slab is a range of addresses; only its pool maps and unmaps it.
unsafe impl Send for Slab {}

/// The stacks of one class.
struct Shelf {
    class: StackClass,
    /// Stacks that were given back, the one most likely in the cache last.
    free: Vec<Stack>,
    slabs: Vec<Slab>,
    /// In the newest slab: how many slots were handed out at least once, and how many have their guards.
    used: usize,
    guarded: usize,
    /// Slots mapped in all slabs.
    mapped: usize,
    /// How the slots between `used` and `guarded` are guarded.
    fresh_guards: GuardKind,
}

/// Counts of a pool, all classes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackCounts {
    /// Slots handed out at least once.
    pub(crate) made: u64,
    /// Stacks that were handed out before and are now on a shelf.
    pub(crate) free: u64,
    /// Stacks that are never used again (`retire`).
    pub(crate) abandoned: u64,
}

#[repr(align(128))]
struct Apart<T>(T);

/// All stacks of a runtime.
pub(crate) struct StackPool {
    shelves: [Apart<Mutex<Shelf>>; 5],
    /// A `GuardKind`; goes from `Marker` to `Protect` at most once.
    kind: AtomicU8,
    /// Slots guarded by `mprotect`, and how many there may be (0: not looked up yet).
    protected: AtomicUsize,
    most_protected: AtomicUsize,
    made: AtomicU64,
    abandoned: AtomicU64,
}

impl StackPool {
    /// A pool without stacks. `force_fallback` guards by `mprotect` even where markers are available.
    pub(crate) fn new(force_fallback: bool) -> StackPool {
        let kind = if force_fallback { GuardKind::Protect } else { GuardKind::Marker };
        let shelf = |class| {
            Apart(Mutex::new(Shelf {
                class,
                free: Vec::new(),
                slabs: Vec::new(),
                used: 0,
                guarded: 0,
                mapped: 0,
                fresh_guards: kind,
            }))
        };
        StackPool {
            shelves: StackClass::ALL.map(shelf),
            kind: AtomicU8::new(kind as u8),
            protected: AtomicUsize::new(0),
            most_protected: AtomicUsize::new(0),
            made: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        }
    }

    /// How new stacks are guarded. Certain only once a stack has been made.
    pub(crate) fn guards(&self) -> GuardKind {
        if self.kind.load(Ordering::Relaxed) == GuardKind::Marker as u8 {
            GuardKind::Marker
        } else {
            GuardKind::Protect
        }
    }

    /// A stack of `class`: the one given back last if there is one, otherwise a fresh one. It may call the kernel and
    /// the allocator under the lock of the shelf. So a caller must not be on a stack of this pool, which it might
    /// overflow there.
    pub(crate) fn take(&self, class: StackClass) -> Result<Stack, StackError> {
        let mut shelf = self.shelf(class);
        match shelf.free.pop() {
            Some(stack) => Ok(stack),
            None => self.fresh(&mut shelf),
        }
    }

    /// As `take`, for any caller: it calls neither. `None`: there is no stack at hand, and only `take` makes more.
    pub(crate) fn take_made(&self, class: StackClass) -> Option<Stack> {
        let mut shelf = self.shelf(class);
        let stack = shelf.free.pop();
        if stack.is_none() && shelf.used < shelf.guarded { Some(self.hand_out(&mut shelf)) } else { stack }
    }

    /// Takes a stack back. Its reserve must be closed and nothing may use it any more.
    pub(crate) fn give(&self, stack: Stack) {
        self.shelf(stack.class).free.push(stack);
    }

    /// Takes many stacks back under as few locks as their order allows; the last one is the next to be taken.
    pub(crate) fn give_many(&self, stacks: impl Iterator<Item = Stack>) {
        let mut held: Option<MutexGuard<'_, Shelf>> = None;
        for stack in stacks {
            match &mut held {
                Some(shelf) if shelf.class == stack.class => shelf.free.push(stack),
                _ => {
                    drop(held.take());
                    let mut shelf = self.shelf(stack.class);
                    shelf.free.push(stack);
                    held = Some(shelf);
                }
            }
        }
    }

    /// Takes back a stack whose reserve was opened and whose frames nothing refers to any more: closes the
    /// reserve, or retires the stack if that fails.
    pub(crate) fn recycle(&self, mut stack: Stack) {
        match stack.close_reserve() {
            Ok(()) => self.give(stack),
            Err(_) => self.retire(stack),
        }
    }

    /// Never uses the stack again, and leaves its contents alone until the pool is dropped: for a stack that
    /// was abandoned with frames in it that others may still refer to.
    pub(crate) fn retire(&self, stack: Stack) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        let _leaked = stack;
    }

    /// The counts, each read at about the same moment.
    pub(crate) fn counts(&self) -> StackCounts {
        StackCounts {
            made: self.made.load(Ordering::Relaxed),
            free: StackClass::ALL.iter().map(|&class| self.shelf(class).free.len() as u64).sum(),
            abandoned: self.abandoned.load(Ordering::Relaxed),
        }
    }

    fn shelf(&self, class: StackClass) -> MutexGuard<'_, Shelf> {
        // A shelf is consistent after every statement, so a panic of a lock holder is no reason to stop.
        self.shelves[class as usize].0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The next slot of the newest slab, with a new batch of guards or a new slab if necessary.
    fn fresh(&self, shelf: &mut Shelf) -> Result<Stack, StackError> {
        let class = shelf.class;
        if shelf.used == shelf.slabs.last().map_or(0, |slab| slab.slots) {
            shelf.add_slab()?;
        }
        let slab = shelf.slabs.last().expect("a slab was just ensured");
        let (base, slots) = (slab.base, slab.slots);
        if shelf.used == shelf.guarded {
            let n = BATCH.min(slots - shelf.guarded);
            let from = base.as_ptr().wrapping_add(shelf.guarded * class.slot());
            let (done, kind) = self.guard_batch(from, class.slot(), n)?;
            shelf.fresh_guards = kind;
            shelf.guarded += done;
        }
        Ok(self.hand_out(shelf))
    }

    /// The next slot of the newest slab, which must have its guards already.
    fn hand_out(&self, shelf: &mut Shelf) -> Stack {
        debug_assert!(shelf.used < shelf.guarded);
        let class = shelf.class;
        let slab = shelf.slabs.last().expect("a guarded slot is in a slab");
        let top = slab.base.as_ptr().wrapping_add((shelf.used + 1) * class.slot());
        shelf.used += 1;
        self.made.fetch_add(1, Ordering::Relaxed);
        let top = NonNull::new(top).expect("inside a mapping");
        Stack { top, class, guards: shelf.fresh_guards }
    }

    /// Guards `n` slots from `from` on; returns how many were done (at least one) and how.
    fn guard_batch(&self, from: *mut u8, slot: usize, n: usize) -> Result<(usize, GuardKind), StackError> {
        if self.guards() == GuardKind::Marker {
            match install_markers(from, slot, n) {
                Ok(()) => return Ok((n, GuardKind::Marker)),
                Err(libc::EINVAL) => self.kind.store(GuardKind::Protect as u8, Ordering::Relaxed),
                Err(errno) => return Err(StackError::Guard { errno }),
            }
        }
        let room = self.protect_room(n);
        if room == 0 {
            return Err(StackError::TooManyMappings { stacks: self.made.load(Ordering::Relaxed) });
        }
        for i in 0..room {
            let low = from.wrapping_add(i * slot).cast();
            // SAFETY: the range is the guarded part of a slot that nothing uses yet.
            if unsafe { libc::mprotect(low, GUARDED, libc::PROT_NONE) } != 0 {
                return match errno() {
                    _ if i > 0 => Ok((i, GuardKind::Protect)),
                    libc::ENOMEM => {
                        Err(StackError::TooManyMappings { stacks: self.made.load(Ordering::Relaxed) })
                    }
                    errno => Err(StackError::Guard { errno }),
                };
            }
        }
        Ok((room, GuardKind::Protect))
    }

    /// How many of `n` more slots may be protected, at two mappings each, so that the rest of the process keeps
    /// `SPARE_MAPPINGS`: without any, `malloc` fails as well. Counts those slots as protected.
    fn protect_room(&self, n: usize) -> usize {
        let mut most = self.most_protected.load(Ordering::Relaxed);
        if most == 0 {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
            let mappings = text.trim().parse().unwrap_or(65_530_usize);
            most = (mappings.saturating_sub(SPARE_MAPPINGS) / 2).max(1);
            self.most_protected.store(most, Ordering::Relaxed);
        }
        let before = self.protected.fetch_add(n, Ordering::Relaxed);
        let room = most.saturating_sub(before).min(n);
        self.protected.fetch_sub(n - room, Ordering::Relaxed);
        room
    }
}

impl Drop for StackPool {
    /// Unmaps every slab. No stack of the pool may be running, suspended or referred to any more; a runtime
    /// drops its pool after its last worker.
    fn drop(&mut self) {
        for shelf in &mut self.shelves {
            let shelf = shelf.0.get_mut().unwrap_or_else(|poison| poison.into_inner());
            shelf.free.clear();
            for slab in shelf.slabs.drain(..) {
                // SAFETY: the slab was mapped with this length, and the owner guarantees invariant 5.
                unsafe { libc::munmap(slab.base.as_ptr().cast(), slab.slots * shelf.class.slot()) };
            }
        }
    }
}

impl Shelf {
    /// Maps a slab, and makes room for its slots in the free list (invariant 4).
    fn add_slab(&mut self) -> Result<(), StackError> {
        let slots = match self.slabs.last() {
            None => self.class.first_slots(),
            Some(last) => (last.slots * 2).min(self.class.most_slots()),
        };
        let bytes = slots * self.class.slot();
        let (read_write, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
        );
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read_write, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(StackError::NoMemory { bytes, errno: errno() });
        }
        // SAFETY: advice about the mapping just made; if it fails (EINVAL: no huge pages here) nothing is lost.
        unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
        self.mapped += slots;
        self.free.reserve(self.mapped - self.free.len());
        let base = NonNull::new(base.cast()).expect("a mapping is not at zero");
        self.slabs.push(Slab { base, slots });
        (self.used, self.guarded) = (0, 0);
        Ok(())
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Gives `advice` on the `len` bytes at `from`, `from + slot`, ... by one system call on the process itself.
/// Returns the number of ranges done.
fn advise_many(from: *mut u8, slot: usize, len: usize, n: usize, advice: libc::c_int) -> usize {
    let mut ranges = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: len }; BATCH];
    let n = n.min(BATCH);
    for (i, range) in ranges[..n].iter_mut().enumerate() {
        range.iov_base = from.wrapping_add(i * slot).cast();
    }
    let advise = |fd: libc::c_int| {
        // SAFETY: the ranges are parts of slots that nothing uses yet, and the vector outlives the call.
        unsafe { libc::syscall(libc::SYS_process_madvise, fd, ranges.as_ptr(), n, advice, 0) }
    };
    let mut done = advise(PIDFD_SELF);
    if done < 0 && errno() == libc::EBADF {
        // Before Linux 6.15. Opened anew each time: a descriptor that was kept would, after a fork, name the parent.
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as libc::c_int;
        if fd >= 0 {
            done = advise(fd);
            // SAFETY: the descriptor was opened just now and nothing else uses it.
            unsafe { libc::close(fd) };
        }
    }
    usize::try_from(done).map_or(0, |bytes| bytes / len)
}

/// Installs guard markers in the lower part of `n` slots, or returns why not. Idempotent.
fn install_markers(from: *mut u8, slot: usize, n: usize) -> Result<(), i32> {
    let done = advise_many(from, slot, GUARDED, n, MADV_GUARD_INSTALL);
    for i in done..n {
        let low = from.wrapping_add(i * slot).cast();
        loop {
            // SAFETY: the range is the guarded part of a slot that nothing uses yet.
            if unsafe { libc::madvise(low, GUARDED, MADV_GUARD_INSTALL) } == 0 {
                break;
            }
            match errno() {
                libc::EINTR | libc::EAGAIN => {}
                errno => return Err(errno),
            }
        }
    }
    Ok(())
}
