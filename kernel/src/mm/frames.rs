//! Physical frames.

use crate::arch::phys;
use crate::bootinfo::MemoryMap;
use crate::lock::{Rank, SpinLock};
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::buddy::{Buddy, FrameMeta};

/// Bytes of a frame.
pub const FRAME_BYTES: u64 = 4096;

static FRAMES: SpinLock<Option<Buddy<'static>>> = SpinLock::new(Rank::Frames, None);
/// Free frames that are set aside for the next allocations, rather than merged with their neighbours.
const ASIDE: usize = 32;
/// How often unused stacks are given back to find a run of several frames.
const TRIMS: usize = 4;
/// Frames that the allocator manages.
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// How many frames are kept back for operators: guests do not get the last ones. 0 while the machine boots.
static KEPT_BACK: AtomicU64 = AtomicU64::new(0);
/// At least this many are kept back: a shell and a small program need some 300.
const KEPT_BACK_MIN: u64 = 768;
/// Otherwise, one in this many of all frames.
const KEPT_BACK_PART: u64 = 32;

/// From now on the last frames are kept back for operators (K-29).
pub fn keep_back() {
    KEPT_BACK.store((total() / KEPT_BACK_PART).max(KEPT_BACK_MIN), Ordering::Relaxed);
}

/// Whether the current thread may not have the last frames.
#[cold]
fn is_kept_back() -> bool {
    super::asker::current().is_some_and(|asker| asker.is_guest)
}

/// A physical frame's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame(pub u64);

impl Frame {
    /// The pointer by which the kernel reaches it.
    pub fn pointer<T>(self) -> *mut T {
        phys::pointer(self.0)
    }

    /// Fills it with zeros.
    pub fn zero(self) {
        // SAFETY: the caller has just got the frame, or holds the lock of its owner: nobody else uses it.
        unsafe { core::ptr::write_bytes(self.pointer::<u8>(), 0, FRAME_BYTES as usize) }
    }
}

/// Hands the free memory of the map to the allocator. The allocator's own records go to the first region with room for them.
pub fn init(map: &MemoryMap) {
    let end = map.free().map(|(_, end)| end).max().unwrap_or(0);
    let count = (end / FRAME_BYTES) as usize;
    let bytes = (count * size_of::<FrameMeta>()) as u64;
    let home = map.free().find(|(start, end)| end - start >= bytes + FRAME_BYTES);
    let Some((home, _)) = home else { panic!("no region of memory holds {bytes} bytes of frame records") };
    // SAFETY: free memory by the map, which nobody used before, and which is excluded from what is handed out below.
    let meta = unsafe {
        let pointer = phys::pointer::<FrameMeta>(home);
        for i in 0..count {
            pointer.add(i).write(FrameMeta::default());
        }
        core::slice::from_raw_parts_mut(pointer, count)
    };
    let taken_until = home + bytes.next_multiple_of(FRAME_BYTES);
    let mut buddy = Buddy::new(meta, 0);
    for (start, end) in map.free() {
        let start = if start == home { taken_until } else { start };
        if start < end {
            buddy.add(start / FRAME_BYTES..end / FRAME_BYTES);
        }
    }
    TOTAL.store(buddy.free_frames(), Ordering::Relaxed);
    buddy.set_aside(ASIDE);
    *FRAMES.lock() = Some(buddy);
}

/// Allocates a run of 2^`order` frames, with undefined contents.
pub fn allocate_order(order: usize) -> Option<Frame> {
    if super::plant::fails() {
        return None;
    }
    match take(order) {
        None => trim_and_take(order),
        frame => frame,
    }
}

#[inline(always)]
fn take(order: usize) -> Option<Frame> {
    let mut frames = FRAMES.lock();
    let buddy = frames.as_mut()?;
    let kept = KEPT_BACK.load(Ordering::Relaxed);
    if buddy.free_frames() < kept + (1 << order) && is_kept_back() {
        return None;
    }
    buddy.alloc(order).map(|frame| Frame(frame * FRAME_BYTES))
}

/// Memory that is kept only for speed is given back before an allocation fails: a few stacks are enough for one frame; for a longer run some more are
/// tried. The number of tries is bounded, because an allocation must be; the next allocation gives back more.
#[cold]
#[inline(never)]
fn trim_and_take(order: usize) -> Option<Frame> {
    let tries = if order == 0 { 1 } else { TRIMS };
    (0..tries).find_map(|_| if super::stacks::trim() { take(order) } else { None })
}

/// Allocates one frame, with undefined contents.
pub fn allocate() -> Option<Frame> {
    allocate_order(0)
}

/// Allocates one frame of zeros.
pub fn allocate_zeroed() -> Option<Frame> {
    let frame = allocate()?;
    frame.zero();
    Some(frame)
}

/// Frames that several spaces may map: a memory object, as this layer knows it.
pub trait SharedFrames: Send + Sync {
    /// Its frames, which never change.
    fn frames(&self) -> &[Frame];
    /// A number that no other object or space has.
    fn id(&self) -> u64;
}

/// Frees a run.
pub fn free_order(frame: Frame, order: usize) {
    if let Some(buddy) = FRAMES.lock().as_mut() {
        buddy.free(frame.0 / FRAME_BYTES, order);
    }
}

/// Frees a frame.
pub fn free(frame: Frame) {
    free_order(frame, 0);
}

/// How many frames are freed at most under one hold of the lock, because other CPUs wait for it meanwhile.
pub const BATCH: usize = 16;

/// Frees at most [`BATCH`] frames. Taking the lock for each would make CPUs that free memory at the same time wait for each other at every frame
/// (K-26).
pub fn free_all(frames: &[Frame]) {
    debug_assert!(frames.len() <= BATCH);
    if let Some(buddy) = FRAMES.lock().as_mut() {
        frames.iter().for_each(|frame| buddy.free(frame.0 / FRAME_BYTES, 0));
    }
}

/// Frames that nobody uses: free, or kept for speed only.
pub fn free_count() -> u64 {
    let free = FRAMES.lock().as_ref().map_or(0, |buddy| buddy.free_frames());
    free + super::stacks::cached_frames() + super::heap::cached_frames()
}

/// Frames that are used by anything but the heap. The heap's are left out because a single block may hold a whole page.
pub fn used_outside_heap() -> u64 {
    let heap = super::heap::used().0;
    let free = FRAMES.lock().as_ref().map_or(0, |buddy| buddy.free_frames());
    total() - free - super::stacks::cached_frames() - heap
}

/// All frames that the kernel manages.
pub fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}
