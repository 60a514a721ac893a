//! Lock order: the ranks of `docs/kernel.md`, and the record of those that a CPU holds.
//!
//! Locks are taken by ascending rank, so the set of held ranks is also their order, and one word says it all.
//! Each CPU has its own record and changes it with interrupts off: no atomics.

use core::fmt;

/// The ranks, lowest first. What each lock guards is in `docs/kernel.md`.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// The table of processes.
    Processes = 1,
    /// One process: capabilities, ledger, threads.
    Process = 2,
    /// One address space.
    Space = 3,
    /// One kernel object.
    Object = 4,
    /// One scheduling context: which thread should have its time.
    Context = 5,
    /// One bucket of parked threads.
    Park = 6,
    /// Kernel stacks and thread records.
    Stacks = 7,
    /// The heap.
    Heap = 8,
    /// Physical frames.
    Frames = 9,
    /// The completion side of one ring.
    Ring = 10,
    /// Whether one thread is parked.
    Wait = 11,
    /// One CPU's deadlines.
    Timers = 12,
    /// One CPU's run queue; two may be held, by ascending number.
    Cpu = 13,
    /// The serial port, and other leaves.
    Console = 14,
}

impl Rank {
    /// All of them, lowest first.
    pub const ALL: [Rank; 14] = [
        Rank::Processes,
        Rank::Process,
        Rank::Space,
        Rank::Object,
        Rank::Context,
        Rank::Park,
        Rank::Stacks,
        Rank::Heap,
        Rank::Frames,
        Rank::Ring,
        Rank::Wait,
        Rank::Timers,
        Rank::Cpu,
        Rank::Console,
    ];

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// The bit of a second CPU lock; between the bits of [`Rank::Cpu`] and [`Rank::Console`] there is no room, so it is above all.
const SECOND_CPU: u32 = 1 << 31;

/// From this rank on, nothing may be allocated or printed (K-18).
pub const NO_ALLOC_FROM: Rank = Rank::Ring;

/// A lock was about to be taken out of order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankError {
    /// The rank of the lock that was wanted.
    pub wanted: Rank,
    /// The highest rank that is held.
    pub held: Rank,
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock order: {:?} is wanted while {:?} is held", self.wanted, self.held)
    }
}

impl core::error::Error for RankError {}

/// The ranks that one CPU holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldRanks {
    bits: u32,
}

impl HeldRanks {
    /// None.
    pub const fn new() -> HeldRanks {
        HeldRanks { bits: 0 }
    }

    /// From the word that lies in the memory of a CPU.
    pub const fn from_word(bits: u32) -> HeldRanks {
        HeldRanks { bits }
    }

    /// Notes that a lock of `rank` is taken; call it before waiting for the lock, because a wrong order is wrong even if it is free.
    pub const fn acquire(&mut self, rank: Rank) -> Result<(), RankError> {
        let held = self.bits & !SECOND_CPU;
        if held >> rank as u8 == 0 {
            self.bits |= rank.bit();
            return Ok(());
        }
        Err(RankError { wanted: rank, held: Rank::ALL[held.ilog2() as usize - 1] })
    }

    /// Notes that a second CPU's lock is taken beside one that is held. Two CPUs are always locked in one order: `first` and `second` are their
    /// places in that order.
    pub const fn acquire_second_cpu(&mut self, first: usize, second: usize) -> Result<(), RankError> {
        // Exactly one CPU lock, and nothing above it.
        if self.bits >> Rank::Cpu as u8 != 1 || first >= second {
            return Err(RankError { wanted: Rank::Cpu, held: Rank::Cpu });
        }
        self.bits |= SECOND_CPU;
        Ok(())
    }

    /// Notes a lock that was taken by trying, which cannot deadlock and so may come in any order.
    pub const fn note(&mut self, rank: Rank) {
        if matches!(rank, Rank::Cpu) && self.bits & rank.bit() != 0 {
            self.bits |= SECOND_CPU;
        }
        self.bits |= rank.bit();
    }

    /// Notes that a lock of `rank` is released.
    ///
    /// # Panics
    /// If none is held.
    #[track_caller]
    pub fn release(&mut self, rank: Rank) {
        assert!(self.holds(rank), "lock order: {rank:?} is released, but not held");
        if rank == Rank::Cpu && self.bits & SECOND_CPU != 0 {
            self.bits &= !SECOND_CPU;
        } else {
            self.bits &= !rank.bit();
        }
    }

    /// Whether a lock of `rank` is held.
    pub const fn holds(&self, rank: Rank) -> bool {
        self.bits & rank.bit() != 0
    }

    /// Whether none is held.
    pub const fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Whether a lock is held with which nothing may be allocated or printed.
    pub const fn forbids_alloc(&self) -> bool {
        self.bits >> NO_ALLOC_FROM as u8 != 0
    }

    /// The ranks that are held, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Rank> {
        let held = *self;
        Rank::ALL.into_iter().filter(move |rank| held.holds(*rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascending_ranks_are_taken_and_released_in_any_order() {
        let mut held = HeldRanks::new();
        for rank in Rank::ALL {
            assert_eq!(held.acquire(rank), Ok(()));
        }
        assert!(held.iter().eq(Rank::ALL));
        for rank in [Rank::Process, Rank::Console, Rank::Processes, Rank::Cpu] {
            held.release(rank);
            assert!(!held.holds(rank));
        }
        assert_eq!(held.iter().count(), Rank::ALL.len() - 4);
    }

    /// Every pair: only a higher rank may follow.
    #[test]
    fn descending_and_equal_ranks_are_refused() {
        for first in Rank::ALL {
            for second in Rank::ALL {
                let mut held = HeldRanks::new();
                held.acquire(first).unwrap();
                let legal = second > first;
                let error = RankError { wanted: second, held: first };
                let before = held;
                let result = held.acquire(second);
                assert_eq!(result, if legal { Ok(()) } else { Err(error) });
                assert!(legal || held == before);
            }
        }
    }

    #[test]
    fn two_cpus_in_order_but_not_three() {
        let refused = Err(RankError { wanted: Rank::Cpu, held: Rank::Cpu });
        let mut held = HeldRanks::new();
        assert_eq!(held.acquire_second_cpu(0, 1), refused, "there is no first");
        held.acquire(Rank::Cpu).unwrap();
        assert_eq!(held.acquire_second_cpu(1, 0), refused, "against the order");
        assert_eq!(held.acquire_second_cpu(1, 1), refused, "the same one");
        held.acquire_second_cpu(0, 1).unwrap();
        assert_eq!(held.acquire_second_cpu(0, 1), refused, "a third one");
        assert_eq!(held.acquire(Rank::Cpu), Err(RankError { wanted: Rank::Cpu, held: Rank::Cpu }));
        assert_eq!(held.acquire(Rank::Timers), Err(RankError { wanted: Rank::Timers, held: Rank::Cpu }));
        held.acquire(Rank::Console).unwrap();
        assert_eq!(held.acquire(Rank::Cpu), Err(RankError { wanted: Rank::Cpu, held: Rank::Console }));
        held.release(Rank::Cpu);
        assert!(held.holds(Rank::Cpu));
        held.release(Rank::Cpu);
        assert!(!held.holds(Rank::Cpu) && held.holds(Rank::Console));
        held.release(Rank::Console);
        assert!(held.is_empty());
    }

    #[test]
    fn trying_may_come_in_any_order_but_is_held_all_the_same() {
        let mut held = HeldRanks::new();
        held.acquire(Rank::Heap).unwrap();
        held.note(Rank::Stacks);
        assert!(held.holds(Rank::Stacks) && held.acquire(Rank::Park).is_err());
        held.release(Rank::Stacks);
        held.release(Rank::Heap);
        held.note(Rank::Cpu);
        held.note(Rank::Cpu);
        held.release(Rank::Cpu);
        assert!(held.holds(Rank::Cpu));
    }

    /// K-18.
    #[test]
    fn from_the_ring_lock_on_nothing_is_allocated() {
        for rank in Rank::ALL {
            let mut held = HeldRanks::new();
            held.acquire(rank).unwrap();
            assert_eq!(held.forbids_alloc(), rank >= Rank::Ring, "{rank:?}");
        }
        assert!(!HeldRanks::new().forbids_alloc());
    }

    #[test]
    #[should_panic(expected = "Ring is released, but not held")]
    fn what_is_not_held_is_not_released() {
        HeldRanks::new().release(Rank::Ring);
    }
}
