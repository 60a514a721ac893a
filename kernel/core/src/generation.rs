//! Identity: a number and the generation of its slot (K-05). Code that waits for a thread keeps a [`ThreadRef`], not a pointer.

use core::num::NonZeroU32;

/// How often a slot was used: counts from 1, never 0, so that 0 can mean "no thread".
///
/// It wraps after 2^32 - 1 uses of one slot. A reference with an old generation is dropped when its thread or process ends, long
/// before that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct SlotGeneration(NonZeroU32);

impl Default for SlotGeneration {
    fn default() -> SlotGeneration {
        SlotGeneration::FIRST
    }
}

impl SlotGeneration {
    /// The generation of a slot's first use.
    pub const FIRST: SlotGeneration = SlotGeneration(NonZeroU32::MIN);

    /// The generation with number `raw`; 0 is none.
    pub const fn from_raw(raw: u32) -> Option<SlotGeneration> {
        match NonZeroU32::new(raw) {
            Some(raw) => Some(SlotGeneration(raw)),
            None => None,
        }
    }

    /// Its number, never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The generation of the slot's next use.
    #[must_use]
    pub const fn next(self) -> SlotGeneration {
        match self.0.checked_add(1) {
            Some(next) => SlotGeneration(next),
            None => SlotGeneration::FIRST,
        }
    }

    /// Whether a reference that says `raw` means this use of the slot.
    pub const fn matches(self, raw: u32) -> bool {
        self.get() == raw
    }
}

/// Names one thread for ever: when the thread's slot or its process's slot is used again, this names no thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ThreadRef {
    /// The process's slot.
    pub pid: u32,
    /// Generation of that slot.
    pub process_generation: u32,
    /// The thread's slot.
    pub tid: u32,
    /// Generation of that slot.
    pub thread_generation: u32,
}

impl ThreadRef {
    /// Names no thread.
    pub const NONE: ThreadRef = ThreadRef { pid: 0, process_generation: 0, tid: 0, thread_generation: 0 };

    /// The thread in slot `tid` of the process in slot `pid`.
    pub const fn new(pid: u32, process: SlotGeneration, tid: u32, thread: SlotGeneration) -> ThreadRef {
        ThreadRef { pid, process_generation: process.get(), tid, thread_generation: thread.get() }
    }

    /// Whether it names no thread.
    pub const fn is_none(self) -> bool {
        self.thread_generation == 0
    }

    /// Whether it names the thread that is in its slots now, given their generations.
    pub const fn names(self, process: SlotGeneration, thread: SlotGeneration) -> bool {
        process.matches(self.process_generation) && thread.matches(self.thread_generation)
    }

    /// In two words: process, thread.
    pub const fn to_words(self) -> [u64; 2] {
        [
            (self.process_generation as u64) << 32 | self.pid as u64,
            (self.thread_generation as u64) << 32 | self.tid as u64,
        ]
    }

    /// From the words that [`ThreadRef::to_words`] made.
    pub const fn from_words(words: [u64; 2]) -> ThreadRef {
        ThreadRef {
            pid: words[0] as u32,
            process_generation: (words[0] >> 32) as u32,
            tid: words[1] as u32,
            thread_generation: (words[1] >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with one slot for threads: the smallest thing that can reuse one.
    struct Slots {
        process: SlotGeneration,
        thread: SlotGeneration,
        woken: u32,
    }

    impl Slots {
        fn wake(&mut self, who: ThreadRef) -> bool {
            let found = (who.pid, who.tid) == (7, 3) && who.names(self.process, self.thread);
            self.woken += u32::from(found);
            found
        }

        fn current(&self) -> ThreadRef {
            ThreadRef::new(7, self.process, 3, self.thread)
        }
    }

    /// K-05: a waiter of the thread before is not woken, and its successor is not woken in its place.
    #[test]
    fn a_reused_thread_slot_is_somebody_else() {
        let mut slots = Slots { process: SlotGeneration::FIRST, thread: SlotGeneration::FIRST, woken: 0 };
        let before = slots.current();
        assert!(slots.wake(before));
        slots.thread = slots.thread.next();
        assert!(!slots.wake(before) && slots.wake(slots.current()));
        assert_ne!(before, slots.current());
        assert_eq!(slots.woken, 2);
    }

    #[test]
    fn a_reused_process_slot_is_somebody_else() {
        let mut slots = Slots { process: SlotGeneration::FIRST, thread: SlotGeneration::FIRST, woken: 0 };
        let before = slots.current();
        slots.process = slots.process.next();
        assert!(!slots.wake(before) && slots.wake(slots.current()));
    }

    #[test]
    fn nobody_is_never_anybody() {
        for raw in [1, 2, u32::MAX - 1, u32::MAX] {
            let generation = SlotGeneration::from_raw(raw).unwrap();
            assert!(!ThreadRef::NONE.names(generation, generation));
            assert_ne!(generation.next().get(), 0);
            assert_ne!(generation.next(), generation);
        }
        assert_eq!(SlotGeneration::from_raw(u32::MAX).unwrap().next(), SlotGeneration::FIRST);
        assert_eq!(SlotGeneration::from_raw(0), None);
        assert!(ThreadRef::NONE.is_none());
        assert!(!ThreadRef::new(0, SlotGeneration::FIRST, 0, SlotGeneration::FIRST).is_none());
    }

    #[test]
    fn two_words_hold_it_all() {
        let one = ThreadRef { pid: 1, process_generation: u32::MAX, tid: 0x8000_0000, thread_generation: 4 };
        assert_eq!(ThreadRef::from_words(one.to_words()), one);
        assert_eq!(ThreadRef::from_words([0, 0]), ThreadRef::NONE);
    }
}
