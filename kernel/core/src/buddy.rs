//! Physical frames: blocks of 2^order frames, aligned to their size, split and joined as buddies.
//!
//! The lists of free blocks run through a slice of [`FrameMeta`], one for each frame, that the caller provides:
//! no allocation, and every operation takes at most one step for each order. It hands out numbers and never touches the memory.
//!
//! Single frames come and go most often, and a freed frame is mostly the next one that is asked for. So the last few of them are set
//! aside as they are ([`Buddy::set_aside`]) and joined with their buddies only when a larger block cannot be had otherwise.

use core::fmt;
use core::ops::Range;

/// Largest order: blocks of 1024 frames, 4 MiB.
pub const ORDER_MAX: usize = 10;

/// Most single frames that are set aside: joining them all is one bounded step.
pub const ASIDE_MAX: usize = 32;

/// "No frame" in a link.
const NONE: u32 = u32::MAX;

/// What a frame is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Never given to the allocator.
    #[default]
    Reserved,
    /// The first frame of a free block of this order.
    Free(u8),
    /// The first frame of a block of this order that is in use.
    Used(u8),
    /// A later frame of a block of either kind.
    Inside,
    /// Free, and set aside.
    Aside,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Reserved => f.write_str("reserved"),
            State::Free(order) => write!(f, "free already, with order {order}"),
            State::Used(order) => write!(f, "in use with order {order}"),
            State::Inside => f.write_str("inside of another block"),
            State::Aside => f.write_str("free already, and set aside"),
        }
    }
}

/// What the allocator knows of one frame. `FrameMeta::default()` is a reserved one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameMeta {
    next: u32,
    prev: u32,
    state: State,
}

/// The allocator of frames `first_frame .. first_frame + meta.len()`.
#[derive(Debug)]
pub struct Buddy<'a> {
    meta: &'a mut [FrameMeta],
    first_frame: u64,
    /// First free block of each order, as an index into `meta`.
    heads: [u32; ORDER_MAX + 1],
    /// Bit n: there are free blocks of order n.
    orders: u32,
    free_frames: u64,
    total_frames: u64,
    /// Free frames that are in no list, as indices into `meta`, and how many there may be.
    aside: [u32; ASIDE_MAX],
    asides: usize,
    asides_max: usize,
}

impl<'a> Buddy<'a> {
    /// An allocator that has nothing yet: all frames are reserved.
    ///
    /// # Panics
    /// If there are more frames than fit in a link (16 TiB).
    pub fn new(meta: &'a mut [FrameMeta], first_frame: u64) -> Buddy<'a> {
        assert!(meta.len() < NONE as usize, "buddy: {} frames do not fit in a link", meta.len());
        meta.fill(FrameMeta::default());
        Buddy {
            meta,
            first_frame,
            heads: [NONE; ORDER_MAX + 1],
            orders: 0,
            free_frames: 0,
            total_frames: 0,
            aside: [0; ASIDE_MAX],
            asides: 0,
            asides_max: 0,
        }
    }

    /// From now on up to `count` single frames that are freed are set aside, [`ASIDE_MAX`] at most.
    pub fn set_aside(&mut self, count: usize) {
        self.asides_max = count.min(ASIDE_MAX);
        if self.asides > self.asides_max {
            self.join_aside();
        }
    }

    /// Gives the frames of `range` to the allocator.
    ///
    /// # Panics
    /// If one of them is not in the slice, or was given before.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (start, last) = (self.index(range.start), self.index(range.end - 1));
        for (frame, meta) in (range.start..).zip(&mut self.meta[start..=last]) {
            assert!(meta.state == State::Reserved, "buddy: frame {frame:#x} was added before");
            meta.state = State::Inside;
        }
        let mut frame = range.start;
        while frame < range.end {
            let aligned = if frame == 0 { ORDER_MAX } else { frame.trailing_zeros() as usize };
            let fits = (range.end - frame).ilog2() as usize;
            let order = aligned.min(fits).min(ORDER_MAX);
            self.join(frame, order);
            frame += 1 << order;
        }
        self.free_frames += range.end - range.start;
        self.total_frames += range.end - range.start;
    }

    /// A block of 2^`order` frames, aligned to its size; nothing if there is none, or the order is above [`ORDER_MAX`].
    #[inline]
    pub fn alloc(&mut self, order: usize) -> Option<u64> {
        if order == 0
            && let Some(index) = self.aside[..self.asides].last().copied()
            && let Some(meta) = self.meta.get_mut(index as usize)
        {
            self.asides -= 1;
            meta.state = State::Used(0);
            self.free_frames -= 1;
            return Some(self.first_frame + u64::from(index));
        }
        self.alloc_block(order)
    }

    fn alloc_block(&mut self, order: usize) -> Option<u64> {
        if order > ORDER_MAX {
            return None;
        }
        let mut found = (self.orders & (u32::MAX << order)).trailing_zeros() as usize;
        if found > ORDER_MAX && self.asides > 0 {
            self.join_aside();
            found = (self.orders & (u32::MAX << order)).trailing_zeros() as usize;
        }
        if found > ORDER_MAX {
            return None;
        }
        let index = self.heads[found];
        self.unlink(index, found);
        // The upper halves go back, so that low memory is used first.
        for half in (order..found).rev() {
            self.link(index + (1 << half), half);
        }
        self.meta[index as usize].state = State::Used(order as u8);
        self.free_frames -= 1 << order;
        Some(self.first_frame + u64::from(index))
    }

    /// Takes back the block that [`Buddy::alloc`] gave.
    ///
    /// # Panics
    /// If `frame` is not the start of a block of this order that is in use.
    #[inline]
    pub fn free(&mut self, frame: u64, order: usize) {
        let index = self.index(frame);
        let state = self.meta[index].state;
        if state != State::Used(order as u8) || order > ORDER_MAX {
            not_in_use(frame, order, state);
        }
        self.free_frames += 1 << order;
        if order == 0
            && self.asides < self.asides_max
            && let Some(place) = self.aside.get_mut(self.asides)
        {
            *place = index as u32;
            self.asides += 1;
            self.meta[index].state = State::Aside;
            return;
        }
        self.meta[index].state = State::Inside;
        self.join(frame, order);
    }

    /// Joins what was set aside with its buddies.
    #[cold]
    fn join_aside(&mut self) {
        while let Some(asides) = self.asides.checked_sub(1) {
            self.asides = asides;
            let index = self.aside[asides];
            self.meta[index as usize].state = State::Inside;
            self.join(self.first_frame + u64::from(index), 0);
        }
    }

    /// Frames that are free.
    pub fn free_frames(&self) -> u64 {
        self.free_frames
    }

    /// Frames that were added, free or not.
    pub fn total_frames(&self) -> u64 {
        self.total_frames
    }

    /// Free blocks of each order, without what is set aside; for reports and tests: it walks the lists.
    pub fn free_blocks(&self) -> [u64; ORDER_MAX + 1] {
        self.heads.map(|head| {
            let mut count = 0;
            let mut at = head;
            while at != NONE {
                count += 1;
                at = self.meta[at as usize].next;
            }
            count
        })
    }

    /// Makes the block free, joined with its buddy as long as that is free too.
    fn join(&mut self, mut frame: u64, mut order: usize) {
        while order < ORDER_MAX {
            let buddy = frame ^ (1 << order);
            let Some(index) = buddy.checked_sub(self.first_frame).filter(|at| *at < self.meta.len() as u64)
            else {
                break;
            };
            if self.meta[index as usize].state != State::Free(order as u8) {
                break;
            }
            self.unlink(index as u32, order);
            frame = frame.min(buddy);
            order += 1;
        }
        self.link((frame - self.first_frame) as u32, order);
    }

    fn link(&mut self, index: u32, order: usize) {
        let next = self.heads[order];
        self.meta[index as usize] = FrameMeta { next, prev: NONE, state: State::Free(order as u8) };
        if next != NONE {
            self.meta[next as usize].prev = index;
        }
        self.heads[order] = index;
        self.orders |= 1 << order;
    }

    fn unlink(&mut self, index: u32, order: usize) {
        let meta = &mut self.meta[index as usize];
        meta.state = State::Inside;
        let (next, prev) = (meta.next, meta.prev);
        if next != NONE {
            self.meta[next as usize].prev = prev;
        }
        if prev != NONE {
            self.meta[prev as usize].next = next;
        } else {
            self.heads[order] = next;
            if next == NONE {
                self.orders &= !(1 << order);
            }
        }
    }

    fn index(&self, frame: u64) -> usize {
        let index = frame.wrapping_sub(self.first_frame);
        assert!(
            index < self.meta.len() as u64,
            "buddy: frame {frame:#x} is not one of {:#x}..{:#x}",
            self.first_frame,
            self.first_frame + self.meta.len() as u64
        );
        index as usize
    }
}

#[cold]
#[inline(never)]
fn not_in_use(frame: u64, order: usize, state: State) -> ! {
    panic!("buddy: frame {frame:#x} is freed with order {order}, but it is {state}");
}
