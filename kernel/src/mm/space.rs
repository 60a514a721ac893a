//! One process's memory: its page tables, what is mapped where, and copying to and from it.
//!
//! User memory is reached by walking the tables under the space's lock and using the physical map, never through a user address: a
//! mapping cannot change between the check and the use.

use super::frames::{self, FRAME_BYTES, Frame, SharedFrames};
use super::paging::{self, ADDRESS, NO_EXECUTE, OWNED, PRESENT, USER, WRITABLE};
use super::payer::{Denied, Payer};
use crate::arch::tlb::{self, AtomicMask};
use crate::arch::{cpu, phys};
use crate::lock::{Guard, Rank, SpinLock};
use crate::preempt::{self, Pacer};
use abi::{MMAP_BASE_VADDR, USER_END_VADDR};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::sorted::{Place, Sorted};

/// The most regions that a space can have.
pub const MAX_REGIONS: usize = 8192;
/// Frames that wait for a shootdown before they are freed: those of one piece.
const BATCH: usize = (PIECE_BYTES / FRAME_BYTES) as usize;
/// Bytes that are mapped, unmapped or protected at once, some 700 instructions a page. Between two such pieces the lock is released, and others may
/// run on this CPU.
const PIECE_BYTES: u64 = 16 * FRAME_BYTES;
/// How many regions are looked at before the lock is released and others may run on this CPU.
const PACE_REGIONS: usize = 256;
/// Addresses below are never mapped: null pointers fault.
const USER_START: u64 = 0x1_0000;

/// Why a change to a space was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceError {
    /// The range is empty, not of whole pages, or outside user space.
    BadRange,
    /// Something is mapped there.
    Occupied,
    /// Part of the range is not mapped, or may not be changed.
    NotMapped,
    /// The mapping would be writable and executable at once.
    WriteExecute,
    /// The object may not be mapped writable.
    ReadOnly,
    /// No frames are left, for the machine or for this process.
    OutOfMemory,
    /// Too many regions.
    TooManyRegions,
    /// The quotas of the session do not allow it.
    Quota(Denied),
}

impl SpaceError {
    /// The text for the caller.
    pub fn message(self) -> &'static str {
        match self {
            SpaceError::BadRange => "the range is empty, not of whole pages, or outside user space",
            SpaceError::Occupied => "something is mapped in the range",
            SpaceError::NotMapped => "part of the range is not mapped, or belongs to the program",
            SpaceError::WriteExecute => "memory cannot be writable and executable",
            SpaceError::ReadOnly => "the capability does not allow writing",
            SpaceError::OutOfMemory => "no memory left",
            SpaceError::TooManyRegions => "too many regions",
            SpaceError::Quota(_) => "the session's memory is used up",
        }
    }
}

/// Part of a buffer is not mapped, or does not allow the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAddress;

/// What may be done with a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Stores.
    pub writable: bool,
    /// Instruction fetches.
    pub executable: bool,
}

impl Access {
    /// Loads only.
    pub const READ: Access = Access { writable: false, executable: false };
    /// Loads and stores.
    pub const WRITE: Access = Access { writable: true, executable: false };

    fn bits(self) -> u64 {
        let mut bits = PRESENT | USER;
        if self.writable {
            bits |= WRITABLE;
        }
        if !self.executable {
            bits |= NO_EXECUTE;
        }
        bits
    }
}

enum Kind {
    /// Program, stack, rings, boot information: mapped by the kernel, and not changed by the program.
    Fixed,
    Anonymous,
    Object(Arc<dyn SharedFrames>, u64),
}

impl Kind {
    fn is_of(&self, object: &Arc<dyn SharedFrames>) -> bool {
        matches!(self, Kind::Object(mapped, _) if mapped.id() == object.id())
    }
}

struct Region {
    start: u64,
    end: u64,
    kind: Kind,
}

/// The outcome of a search for free addresses.
enum Room {
    /// There is room here.
    At(u64),
    /// There is none up to here; the search has to go on.
    Beyond(u64),
    /// There is none.
    None,
}

/// The part under the lock.
pub struct Tables {
    root: u64,
    regions: Sorted<Region>,
    /// The place that was found last: one mapping searches for the same place several times.
    near: Cell<Place>,
    /// Where the search for free addresses begins. Addresses that were given back come first, because a new one may cost a page table, which stays.
    hint: u64,
    /// Frames of its page tables, except the root.
    tables: Vec<Frame>,
    /// Frames that belong to this space, except page tables.
    owned: u64,
    /// Frames of memory objects that its process created, wherever they are mapped.
    objects: u64,
    /// Whether a memory object is or was mapped here.
    shares: bool,
    /// The most frames that the process may have of all these together.
    limit: u64,
    /// Who pays for the frames, and for how many it has paid.
    payer: Arc<dyn Payer>,
    paid: u64,
    /// How many of the paid frames are for page tables that mappings under way may still need.
    promised: u64,
}

/// An address space.
pub struct Space {
    tables: SpinLock<Tables>,
    /// CPUs that have the space loaded.
    pub resident: AtomicMask,
    /// The root table that its threads load; the kernel's root when the space is about to be destroyed.
    root: AtomicU64,
    id: u64,
}

/// Where the frames of a mapping come from.
pub enum Backing<'a> {
    /// New zeroed frames, owned by the space.
    Zero,
    /// These frames, whose owner outlives the space.
    Borrowed(&'a [Frame]),
    /// Consecutive frames from here, owned by the boot image.
    Image(Frame),
}

/// The most page tables that a mapping may need: those for the pages themselves, one more at each end of the range, and one of each level above.
fn worst_tables(pages: u64) -> u64 {
    pages / 512 + pages / (512 * 512) + 5
}

fn check(start: u64, bytes: u64) -> Result<u64, SpaceError> {
    let end = start.checked_add(bytes).ok_or(SpaceError::BadRange)?;
    let whole = start.is_multiple_of(FRAME_BYTES) && bytes.is_multiple_of(FRAME_BYTES);
    if bytes == 0 || !whole || start < USER_START || end > USER_END_VADDR {
        return Err(SpaceError::BadRange);
    }
    Ok(end)
}

/// A word in a space whose lock is held.
pub struct Word<'a> {
    pointer: *const u32,
    _locked: PhantomData<&'a ()>,
}

impl Word<'_> {
    /// The value that it has now.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        // SAFETY: as in `Space::read`: its page stays while the lock is held. It is aligned, so the load is not torn.
        unsafe { self.pointer.read_volatile() }
    }
}

impl Space {
    /// An empty space that may own `limit` frames, which `payer` pays for.
    pub fn new(limit: u64, payer: Arc<dyn Payer>) -> Result<Space, SpaceError> {
        payer.take_memory(FRAME_BYTES).map_err(SpaceError::Quota)?;
        let Some(Frame(root)) = frames::allocate_zeroed() else {
            payer.release_memory(FRAME_BYTES);
            return Err(SpaceError::OutOfMemory);
        };
        // SAFETY: a new table; the kernel's upper half is shared, and does not change after boot.
        unsafe {
            let kernel = &paging::table(paging::kernel_root())[256..];
            paging::table(root)[256..].copy_from_slice(kernel);
        }
        let tables = Tables {
            root,
            regions: Sorted::new(),
            near: Cell::new(Place::FIRST),
            tables: Vec::new(),
            hint: MMAP_BASE_VADDR,
            owned: 0,
            objects: 0,
            shares: false,
            limit,
            payer,
            paid: 1,
            promised: 0,
        };
        Ok(Space {
            tables: SpinLock::new(Rank::Space, tables),
            resident: AtomicMask::new(),
            root: AtomicU64::new(root),
            id: crate::name::fresh_id(),
        })
    }

    /// The root table.
    #[inline]
    pub fn root(&self) -> u64 {
        self.root.load(Ordering::Relaxed)
    }

    /// From here on threads of the space load the kernel's tables instead. Returns the root that they had.
    pub fn retire(&self) -> u64 {
        self.root.swap(paging::kernel_root(), Ordering::Relaxed)
    }

    fn lock(&self) -> Guard<'_, Tables> {
        self.tables.lock()
    }

    /// Frames that belong to the space, and to memory objects that its process created.
    pub fn owned_frames(&self) -> u64 {
        let tables = self.lock();
        tables.owned + tables.objects
    }

    /// Charges the frames of a memory object, if the limits of the process allow it.
    pub fn charge_object(&self, pages: u64) -> Result<(), SpaceError> {
        let mut tables = self.lock();
        if tables.charged() + pages > tables.limit {
            return Err(SpaceError::OutOfMemory);
        }
        tables.pay(pages)?;
        tables.objects += pages;
        Ok(())
    }

    /// A memory object that was charged is gone, or was not created.
    pub fn release_object(&self, pages: u64) {
        let mut tables = self.lock();
        tables.objects -= pages;
        tables.settle();
    }

    /// Maps a fixed region, which the kernel gives to the process.
    pub fn map_fixed(
        &self,
        start: u64,
        bytes: u64,
        access: Access,
        backing: Backing<'_>,
    ) -> Result<(), SpaceError> {
        self.map(self.lock(), start, bytes, access, backing, Kind::Fixed)
    }

    /// Maps a range piece by piece. Until all of it is there it is a fixed region, which the program cannot change.
    fn map<'a>(
        &'a self,
        mut tables: Guard<'a, Tables>,
        start: u64,
        bytes: u64,
        access: Access,
        backing: Backing<'_>,
        kind: Kind,
    ) -> Result<(), SpaceError> {
        let (end, mut region) = tables.reserve(start, bytes, access, &backing)?;
        let mut at = start;
        let mut promised = worst_tables(bytes / FRAME_BYTES);
        loop {
            let piece_end = end.min(at + PIECE_BYTES);
            let before = tables.tables.len();
            let done = tables.map_pages(start, at, piece_end, access, &backing);
            // A table that was made is no longer promised: other mappings may settle between two pieces, and it must be paid for only once.
            let made = (tables.tables.len() - before) as u64;
            tables.promised -= made;
            promised -= made;
            if done < piece_end {
                tables.promised -= promised;
                self.unmap_reserved(tables, start, done, end, &backing);
                return Err(SpaceError::OutOfMemory);
            }
            at = piece_end;
            if at == end {
                break;
            }
            drop(tables);
            preempt::point();
            tables = self.lock();
            region = tables.search(start);
        }
        tables.promised -= promised;
        tables.settle();
        tables.shares |= matches!(kind, Kind::Object(..));
        if let Some(region) = tables.regions.get_mut(region) {
            region.kind = kind;
        }
        Ok(())
    }

    /// Takes back a range that was reserved but could be mapped only up to `done`.
    fn unmap_reserved<'a>(
        &'a self,
        mut tables: Guard<'a, Tables>,
        start: u64,
        done: u64,
        end: u64,
        backing: &Backing<'_>,
    ) {
        let mut at = start;
        while at < done {
            let piece_end = done.min(at + PIECE_BYTES);
            // Other threads of the process may already have used the mapped part, so TLBs are flushed, too.
            tables.clear(at, piece_end, &self.resident);
            at = piece_end;
            drop(tables);
            preempt::point();
            tables = self.lock();
        }
        if matches!(backing, Backing::Zero) {
            tables.owned -= (end - done) / FRAME_BYTES;
        }
        tables.settle();
        let mut region = tables.search(start);
        tables.regions.remove(&mut region);
    }

    /// Unmaps a fixed region. Frames that the space owned are freed; a borrowed frame stays with its owner.
    pub fn unmap_fixed(&self, start: u64, bytes: u64) {
        let mut tables = self.lock();
        let mut at = tables.search(start);
        if tables.regions.get(at).is_some_and(|r| r.start == start && r.end == start + bytes) {
            tables.clear(start, start + bytes, &self.resident);
            tables.regions.remove(&mut at);
        }
    }

    /// The frame of a fixed page belongs to the space from now on, and is freed with it. For a process that ends: this way no shootdown is needed for
    /// the page.
    pub fn adopt_fixed(&self, address: u64) {
        let tables = self.lock();
        // SAFETY: the space's lock is held.
        if let Some(slot) = unsafe { paging::find(tables.root, address) } {
            debug_assert!(*slot & (PRESENT | OWNED) == PRESENT, "a page of somebody else's");
            *slot |= OWNED;
        }
    }

    /// Maps zeroed memory, at `start`, or where there is room if `start` is 0.
    pub fn map_anonymous(&self, start: u64, bytes: u64, access: Access) -> Result<u64, SpaceError> {
        let (tables, start) = self.choose(start, bytes)?;
        let mapped = self.map(tables, start, bytes, access, Backing::Zero, Kind::Anonymous);
        mapped.map(|()| start).inspect_err(|_| self.lock().begin_at(start))
    }

    /// Maps part of a memory object.
    pub fn map_object(
        &self,
        start: u64,
        object: &Arc<dyn SharedFrames>,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<u64, SpaceError> {
        let all = object.frames();
        let first = (offset / FRAME_BYTES) as usize;
        let count = (bytes / FRAME_BYTES) as usize;
        if !offset.is_multiple_of(FRAME_BYTES) {
            return Err(SpaceError::BadRange);
        }
        let last = first.checked_add(count).ok_or(SpaceError::BadRange)?;
        let part = all.get(first..last).ok_or(SpaceError::BadRange)?;
        let (tables, start) = self.choose(start, bytes)?;
        let kind = Kind::Object(object.clone(), offset);
        let mapped = self.map(tables, start, bytes, access, Backing::Borrowed(part), kind);
        mapped.map(|()| start).inspect_err(|_| self.lock().begin_at(start))
    }

    /// Unmaps pages that `map_anonymous` or `map_object` mapped; with an `object`, only pages of that object. It works piece by piece: if another
    /// thread changes the range meanwhile, or memory is short, part of it may stay mapped.
    pub fn unmap(
        &self,
        start: u64,
        bytes: u64,
        object: Option<&Arc<dyn SharedFrames>>,
    ) -> Result<(), SpaceError> {
        let end = check(start, bytes)?;
        // Whoever has the space may unmap anything in it, because the object's capability may be gone or revoked.
        let is_meant = |kind: &Kind| match object {
            Some(object) => kind.is_of(object),
            None => !matches!(kind, Kind::Fixed),
        };
        let mut dropped = Vec::new();
        let mut tables = self.covered(start, end, is_meant)?;
        tables.begin_at(start);
        let mut at = start;
        loop {
            let piece_end = end.min(at + PIECE_BYTES);
            tables.carve(at, piece_end, &mut dropped)?;
            tables.clear(at, piece_end, &self.resident);
            drop(tables);
            // Objects may be freed here, so the lock must not be held.
            dropped.clear();
            at = piece_end;
            if at == end {
                return Ok(());
            }
            preempt::point();
            tables = self.lock();
            tables.covers(at, end.min(at + PIECE_BYTES), is_meant)?;
        }
    }

    /// Changes access to mapped pages, piece by piece like [`Space::unmap`].
    pub fn protect(
        &self,
        start: u64,
        bytes: u64,
        access: Access,
        object: Option<&Arc<dyn SharedFrames>>,
    ) -> Result<(), SpaceError> {
        let end = check(start, bytes)?;
        if access.writable && access.executable {
            return Err(SpaceError::WriteExecute);
        }
        let is_meant = |kind: &Kind| match object {
            Some(object) => kind.is_of(object),
            None => matches!(kind, Kind::Anonymous),
        };
        let mut tables = self.covered(start, end, is_meant)?;
        let mut at = start;
        loop {
            let piece_end = end.min(at + PIECE_BYTES);
            tables.protect(at, piece_end, access, &self.resident);
            at = piece_end;
            if at == end {
                return Ok(());
            }
            drop(tables);
            preempt::point();
            tables = self.lock();
            tables.covers(at, end.min(at + PIECE_BYTES), is_meant)?;
        }
    }

    /// Locks the tables, if regions for which `is_meant` holds cover the whole range. Others may run while a long range is checked.
    fn covered(
        &self,
        start: u64,
        end: u64,
        is_meant: impl Fn(&Kind) -> bool,
    ) -> Result<Guard<'_, Tables>, SpaceError> {
        let mut at = start;
        loop {
            let tables = self.lock();
            at = tables.covers(at, end, &is_meant)?;
            if at >= end {
                return Ok(tables);
            }
            drop(tables);
            preempt::point();
        }
    }

    /// Where `bytes` are to be mapped: at `start`, or where there is room if `start` is 0; and the tables, locked. Others may run during a long
    /// search.
    #[inline(always)]
    fn choose(&self, start: u64, bytes: u64) -> Result<(Guard<'_, Tables>, u64), SpaceError> {
        let mut tables = self.lock();
        if start != 0 {
            return Ok((tables, start));
        }
        if bytes == 0 || bytes > USER_END_VADDR || !bytes.is_multiple_of(FRAME_BYTES) {
            return Err(SpaceError::BadRange);
        }
        let mut from = tables.hint;
        let mut is_again = false;
        loop {
            match tables.room(from, bytes) {
                Room::At(start) => return Ok((tables, start)),
                Room::None if is_again => return Err(SpaceError::OutOfMemory),
                Room::None => (from, is_again) = (MMAP_BASE_VADDR, true),
                Room::Beyond(at) => {
                    from = at;
                    drop(tables);
                    preempt::point();
                    tables = self.lock();
                }
            }
        }
    }

    /// Copies from user memory.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), BadAddress> {
        let tables = self.lock();
        let mut done = 0;
        while done < to.len() {
            let at = address.checked_add(done as u64).ok_or(BadAddress)?;
            let (pointer, room) = tables.reach(at, false)?;
            let count = room.min(to.len() - done);
            // SAFETY: a mapped page of this space, whose frame cannot be freed while the lock is held. The program may write to it at the same
            // time, but any bytes are valid.
            unsafe { core::ptr::copy_nonoverlapping(pointer, to[done..].as_mut_ptr(), count) };
            done += count;
        }
        Ok(())
    }

    /// Copies to user memory.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), BadAddress> {
        let tables = self.lock();
        tables.write(address, from)
    }

    /// Writes into pages of a new process, whatever access the process itself has to them.
    pub fn fill(&self, address: u64, from: &[u8]) -> Result<(), BadAddress> {
        let tables = self.lock();
        let mut done = 0;
        while done < from.len() {
            let (pointer, room) = tables.reach(address + done as u64, false)?;
            let count = room.min(from.len() - done);
            // SAFETY: a mapped page that the space owns; the process does not run yet.
            unsafe { core::ptr::copy_nonoverlapping(from[done..].as_ptr(), pointer, count) };
            done += count;
        }
        Ok(())
    }

    /// Checks that a range can be written, without writing.
    pub fn check_writable(&self, address: u64, bytes: usize) -> Result<(), BadAddress> {
        let tables = self.lock();
        let mut done = 0;
        while done < bytes {
            let at = address.checked_add(done as u64).ok_or(BadAddress)?;
            done += tables.reach(at, true)?.1;
        }
        Ok(())
    }

    /// Calls `with` with the word at `address` and its key for parking, while the lock is held. The word is read when `with` asks for it: other
    /// threads and processes that share it may change it at any time.
    pub fn with_word<R>(
        &self,
        address: u64,
        with: impl FnOnce(Word<'_>, (u64, u64)) -> R,
    ) -> Result<R, BadAddress> {
        if !address.is_multiple_of(4) {
            return Err(BadAddress);
        }
        let tables = self.lock();
        let (pointer, _) = tables.reach(address, false)?;
        let word = Word { pointer: pointer.cast(), _locked: PhantomData };
        Ok(with(word, tables.key(self.id, address)))
    }

    /// The key for parking on `address`: for private memory the space and the address, for shared memory the object and the offset.
    pub fn key_of(&self, address: u64) -> Result<(u64, u64), BadAddress> {
        if !address.is_multiple_of(4) || address >= USER_END_VADDR {
            return Err(BadAddress);
        }
        Ok(self.lock().key(self.id, address))
    }

    /// Frees everything, in pieces between which others run. No CPU has the space loaded any more.
    pub fn destroy(&self) {
        let mut tables = self.lock();
        let regions = core::mem::take(&mut tables.regions);
        let own_tables = core::mem::take(&mut tables.tables);
        let root = core::mem::replace(&mut tables.root, 0);
        tables.owned = 0;
        tables.settle();
        drop(tables);
        if root == 0 {
            return;
        }
        let mut pacer = Pacer::of_pages();
        let (mut batch, mut count) = ([Frame(0); BATCH], 0);
        for region in regions.into_items() {
            pacer.step();
            // Frames of memory objects have another owner; those of fixed regions may belong to the space or not.
            if matches!(region.kind, Kind::Object(..)) {
                continue;
            }
            for page in (region.start..region.end).step_by(FRAME_BYTES as usize) {
                // SAFETY: no CPU has the space loaded, and nobody can reach its pages through `tables` any more.
                if let Some(slot) = unsafe { paging::find(root, page) }
                    && *slot & OWNED != 0
                {
                    batch[count] = Frame(*slot & ADDRESS);
                    count += 1;
                    if count == BATCH {
                        frames::free_all(&batch);
                        count = 0;
                    }
                }
                pacer.step();
            }
        }
        frames::free_all(&batch[..count]);
        let mut pacer = Pacer::of_batches();
        for some in own_tables.chunks(BATCH) {
            frames::free_all(some);
            pacer.step();
        }
        frames::free(Frame(root));
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Tables {
    /// Frames that count against the limit.
    fn charged(&self) -> u64 {
        self.owned + self.objects + self.tables.len() as u64 + 1
    }

    /// Charges the session for more frames.
    fn pay(&mut self, frames: u64) -> Result<(), SpaceError> {
        self.payer.take_memory(frames * FRAME_BYTES).map_err(SpaceError::Quota)?;
        self.paid += frames;
        Ok(())
    }

    /// Gives back what was paid for frames that are not there, or not any more.
    fn settle(&mut self) {
        let due = if self.root == 0 { self.objects } else { self.charged() + self.promised };
        debug_assert!(due <= self.paid, "{due} frames, of which {} are paid for", self.paid);
        let more = self.paid.saturating_sub(due);
        self.payer.release_memory(more * FRAME_BYTES);
        self.paid -= more;
    }

    /// The place of the first region that ends above `address`.
    fn search(&self, address: u64) -> Place {
        let place = self.regions.search_near(self.near.get(), |region| region.end <= address);
        self.near.set(place);
        place
    }

    fn key(&self, id: u64, address: u64) -> (u64, u64) {
        if !self.shares {
            return (id, address);
        }
        match self.regions.get(self.search(address)) {
            Some(Region { start, kind: Kind::Object(object, offset), .. }) if *start <= address => {
                (object.id(), offset + (address - start))
            }
            _ => (id, address),
        }
    }

    /// Something at `start` was unmapped: its addresses are to be used again, and with them the page tables, which stay until the process ends.
    fn begin_at(&mut self, start: u64) {
        self.hint = self.hint.min(start.saturating_sub(FRAME_BYTES)).max(MMAP_BASE_VADDR);
    }

    /// Looks for free addresses from `from` on, past `PACE_REGIONS` regions at most. A page is left free on both sides, so that overruns fault.
    fn room(&mut self, from: u64, bytes: u64) -> Room {
        let bytes_and_gap = bytes + FRAME_BYTES;
        let mut at = from;
        let mut next = self.search(at);
        for _ in 0..PACE_REGIONS {
            let end = self.regions.get(next).map_or(abi::STACK_TOP_VADDR - (64 << 20), |region| region.start);
            if at + bytes_and_gap + FRAME_BYTES <= end {
                self.hint = at + bytes_and_gap;
                return Room::At(at + FRAME_BYTES);
            }
            let Some(region) = self.regions.get(next) else { return Room::None };
            at = at.max(region.end);
            next = self.regions.next(next);
        }
        Room::Beyond(at)
    }

    /// Takes a free range for a mapping that is about to be made, and charges for it. Returns its end, and its region.
    fn reserve(
        &mut self,
        start: u64,
        bytes: u64,
        access: Access,
        backing: &Backing<'_>,
    ) -> Result<(u64, Place), SpaceError> {
        let end = check(start, bytes)?;
        if access.writable && access.executable {
            return Err(SpaceError::WriteExecute);
        }
        let place = self.search(start);
        if self.regions.get(place).is_some_and(|region| region.start < end) {
            return Err(SpaceError::Occupied);
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(SpaceError::TooManyRegions);
        }
        let pages = bytes / FRAME_BYTES;
        let owned = if matches!(backing, Backing::Zero) { pages } else { 0 };
        let tables = worst_tables(pages);
        if self.charged() + owned + tables > self.limit {
            return Err(SpaceError::OutOfMemory);
        }
        self.pay(owned + tables)?;
        let Ok(at) = self.regions.make_room(place) else {
            self.settle();
            return Err(SpaceError::OutOfMemory);
        };
        self.promised += tables;
        self.owned += owned;
        // K-30: `make_room` made the room for it.
        self.regions.insert(at, Region { start, end, kind: Kind::Fixed });
        Ok((end, at))
    }

    /// Maps the pages from `from` to `to` of a region that begins at `start`. Returns the address up to which memory sufficed.
    fn map_pages(&mut self, start: u64, from: u64, to: u64, access: Access, backing: &Backing<'_>) -> u64 {
        for address in (from..to).step_by(FRAME_BYTES as usize) {
            // Makes room in the list for every table that this page may need.
            let slot = self.tables.try_reserve(3).ok().and_then(|()| {
                let list = &mut self.tables;
                // SAFETY: the space's lock is held.
                unsafe { paging::entry_noting(self.root, address, 0, USER, |table| list.push(table)) }
            });
            let page = (address - start) / FRAME_BYTES;
            let frame = match backing {
                Backing::Zero => frames::allocate_zeroed().map(|frame| frame.0 | OWNED),
                Backing::Borrowed(frames) => Some(frames[page as usize].0),
                Backing::Image(first) => Some(first.0 + page * FRAME_BYTES),
            };
            match (slot, frame) {
                (Some(slot), Some(frame)) => *slot = frame | access.bits(),
                (_, frame) => {
                    if let Some(frame) = frame.filter(|frame| frame & OWNED != 0) {
                        frames::free(Frame(frame & ADDRESS));
                    }
                    return address;
                }
            }
        }
        to
    }

    fn protect(&mut self, start: u64, end: u64, access: Access, resident: &AtomicMask) {
        for page in (start..end).step_by(FRAME_BYTES as usize) {
            // SAFETY: the space's lock is held.
            if let Some(slot) = unsafe { paging::find(self.root, page) } {
                *slot = *slot & (ADDRESS | OWNED) | access.bits();
                cpu::invlpg(page);
            }
        }
        tlb::shootdown(resident, super::asker::debt());
    }

    /// Checks that regions for which `is_meant` holds cover the range. Returns how far it got: it looks at `PACE_REGIONS` regions at most.
    fn covers(&self, start: u64, end: u64, is_meant: impl Fn(&Kind) -> bool) -> Result<u64, SpaceError> {
        let mut at = start;
        for region in self.regions.iter_from(self.search(start)).take(PACE_REGIONS) {
            if region.start > at || !is_meant(&region.kind) {
                return Err(SpaceError::NotMapped);
            }
            at = region.end;
            if at >= end {
                return Ok(at);
            }
        }
        if at == start { Err(SpaceError::NotMapped) } else { Ok(at) }
    }

    /// Takes the range out of the list of regions. The objects of removed regions go to `dropped`, to be dropped without the lock.
    fn carve(&mut self, start: u64, end: u64, dropped: &mut Vec<Kind>) -> Result<(), SpaceError> {
        let mut at = self.search(start);
        let inside = self.regions.iter_from(at).take_while(|region| region.start < end);
        let objects = inside.filter(|region| matches!(region.kind, Kind::Object(..))).count();
        dropped.try_reserve(objects).map_err(|_| SpaceError::OutOfMemory)?;
        // A hole in the middle of a region makes two of it.
        if self.regions.get(at).is_some_and(|region| region.start < start && region.end > end) {
            if self.regions.len() >= MAX_REGIONS {
                return Err(SpaceError::TooManyRegions);
            }
            let behind = self.regions.next(at);
            let place = self.regions.make_room(behind).map_err(|_| SpaceError::OutOfMemory)?;
            // `make_room` may have moved the region.
            let whole = self.search(start);
            let Some(region) = self.regions.get_mut(whole) else { return Err(SpaceError::NotMapped) };
            let kind = match &region.kind {
                Kind::Object(object, offset) => Kind::Object(object.clone(), offset + (end - region.start)),
                Kind::Anonymous => Kind::Anonymous,
                Kind::Fixed => Kind::Fixed,
            };
            let tail = Region { start: end, end: region.end, kind };
            region.end = start;
            self.regions.insert(place, tail);
            return Ok(());
        }
        // Parts of the first and of the last region may stay.
        if let Some(first) = self.regions.get_mut(at).filter(|region| region.start < start) {
            first.end = start;
            at = self.regions.next(at);
        }
        while let Some(region) = self.regions.get_mut(at).filter(|region| region.start < end) {
            if region.end > end {
                if let Kind::Object(_, offset) = &mut region.kind {
                    *offset += end - region.start;
                }
                region.start = end;
                break;
            }
            let gone = self.regions.remove(&mut at).map(|region| region.kind);
            dropped.extend(gone.filter(|kind| matches!(kind, Kind::Object(..))));
        }
        Ok(())
    }

    /// Removes the mappings of a range. Frames that the space owned are freed after every CPU has flushed them from its TLB.
    fn clear(&mut self, start: u64, end: u64, resident: &AtomicMask) {
        let mut batch = [Frame(0); BATCH];
        let mut page = start;
        while page < end {
            let mut count = 0;
            while page < end && count < BATCH {
                // SAFETY: the space's lock is held.
                if let Some(slot) = unsafe { paging::find(self.root, page) } {
                    let entry = core::mem::take(slot);
                    cpu::invlpg(page);
                    if entry & OWNED != 0 {
                        batch[count] = Frame(entry & ADDRESS);
                        count += 1;
                    }
                }
                page += FRAME_BYTES;
            }
            tlb::shootdown(resident, super::asker::debt());
            frames::free_all(&batch[..count]);
            self.owned -= count as u64;
        }
        self.settle();
    }

    /// The pointer by which the kernel reaches user `address`, and how many bytes from there are in the same page.
    #[inline]
    fn reach(&self, address: u64, write: bool) -> Result<(*mut u8, usize), BadAddress> {
        if address >= USER_END_VADDR || self.root == 0 {
            return Err(BadAddress);
        }
        // SAFETY: the space's lock is held.
        let slot = unsafe { paging::find(self.root, address) }.ok_or(BadAddress)?;
        let wanted = PRESENT | USER | if write { WRITABLE } else { 0 };
        if *slot & wanted != wanted {
            return Err(BadAddress);
        }
        let offset = address % FRAME_BYTES;
        Ok((phys::pointer((*slot & ADDRESS) + offset), (FRAME_BYTES - offset) as usize))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BadAddress> {
        let mut done = 0;
        while done < from.len() {
            let at = address.checked_add(done as u64).ok_or(BadAddress)?;
            let (pointer, room) = self.reach(at, true)?;
            let count = room.min(from.len() - done);
            // SAFETY: as in `Space::read`.
            unsafe { core::ptr::copy_nonoverlapping(from[done..].as_ptr(), pointer, count) };
            done += count;
        }
        Ok(())
    }
}
