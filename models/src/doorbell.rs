//! The lock-free piece: who is idle, who was rung, and who has more than it can run.
//!
//! Two races are decided here, and `tests/doorbell_loom.rs` explores both:
//! * **Ring or halt.** A waker queues a thread under the target's lock and then rings. The target clears its bell *before*
//!   it looks at its queue, so a ring that it has not seen is still there when it wants to halt.
//! * **Spare work or idle.** A CPU with a thread too many writes its offer and then reads who is idle; a CPU that
//!   found nothing announces that it is idle and then reads the offers. With a fence between each write and read, at least
//!   one of them sees the other (Dekker): work does not wait beside a sleeping CPU.

use sched::{CpuId, CpuMask};

use crate::Flaw;
use crate::sync::{Backend, Word};

/// The most CPUs that one word of bits can stand for. A kernel with more uses more words.
pub const MAX_CPUS: usize = 64;

/// The shared words of all CPUs.
#[derive(Debug)]
pub struct Doorbell<B: Backend> {
    /// CPUs that have nothing to run and were not called since. Set by the CPU, cleared by it or by who calls it.
    idle: B::Word,
    /// CPUs that were rung and have not answered: the pending inter-processor interrupts.
    pending: B::Word,
    /// For each CPU: who could take a thread from it that it will not run at once. Written under that CPU's lock.
    offers: Vec<B::Word>,
    flaw: Option<Flaw>,
}

fn bit(cpu: CpuId) -> u64 {
    debug_assert!(cpu.index() < MAX_CPUS);
    1 << cpu.index()
}

/// The low word of a mask.
pub fn bits_of(mask: CpuMask) -> u64 {
    mask.iter().filter(|cpu| cpu.index() < MAX_CPUS).fold(0, |bits, cpu| bits | bit(cpu))
}

/// The CPUs whose bits are set.
pub fn mask_of(mut bits: u64) -> CpuMask {
    let mut mask = CpuMask::EMPTY;
    while bits != 0 {
        if let Some(cpu) = CpuId::new(bits.trailing_zeros() as usize) {
            mask.insert(cpu);
        }
        bits &= bits - 1;
    }
    mask
}

impl<B: Backend> Doorbell<B> {
    /// For `cpus` CPUs, none idle, none rung.
    pub fn new(cpus: usize, flaw: Option<Flaw>) -> Doorbell<B> {
        assert!(cpus <= MAX_CPUS, "{cpus} CPUs; the glue has one word of {MAX_CPUS} bits");
        let offers = (0..cpus).map(|_| B::Word::new()).collect();
        Doorbell { idle: B::Word::new(), pending: B::Word::new(), offers, flaw }
    }

    /// CPUs that announced themselves idle.
    pub fn idle(&self) -> u64 {
        self.idle.load()
    }

    /// CPUs that were rung and have not answered.
    pub fn pending(&self) -> u64 {
        self.pending.load()
    }

    /// Was this CPU rung?
    pub fn is_rung(&self, cpu: CpuId) -> bool {
        self.pending() & bit(cpu) != 0
    }

    /// Who could take something from `cpu`.
    pub fn offer(&self, cpu: CpuId) -> u64 {
        self.offers[cpu.index()].load()
    }

    /// CPUs that offer something to `cpu`.
    pub fn offers_to(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> {
        let offering = (0..self.offers.len()).filter(move |from| self.offers[*from].load() & bit(cpu) != 0);
        offering.filter_map(CpuId::new).filter(move |from| *from != cpu)
    }

    /// Says who could take something from `cpu`. Under that CPU's lock.
    pub fn publish_offer(&self, cpu: CpuId, takers: u64) {
        self.offers[cpu.index()].store(takers & !bit(cpu));
    }

    /// Makes `cpu` look at its queue. An interrupt has to be sent only if this answers true.
    pub fn ring(&self, cpu: CpuId) -> bool {
        self.pending.set(bit(cpu)) & bit(cpu) == 0
    }

    /// `cpu` was rung and is going to look. The bit is cleared before the look: a ring after it is not lost.
    pub fn answer(&self, cpu: CpuId) {
        self.withdraw(cpu);
        self.pending.clear(bit(cpu));
    }

    /// `cpu` found nothing to run. [`Self::may_halt`] must follow.
    pub fn announce_idle(&self, cpu: CpuId) {
        self.idle.set(bit(cpu));
    }

    /// `cpu` is busy again.
    pub fn withdraw(&self, cpu: CpuId) {
        self.idle.clear(bit(cpu));
    }

    /// The second look of a CPU that announced itself idle.
    pub fn may_halt(&self, cpu: CpuId) -> bool {
        if self.flaw == Some(Flaw::NoRecheck) {
            return !self.is_rung(cpu);
        }
        if self.flaw != Some(Flaw::NoFence) {
            B::fence();
        }
        !self.is_rung(cpu) && self.offers_to(cpu).next().is_none()
    }

    /// Calls one idle CPU for each CPU that offers work. To be called after a lock was released under which an offer may have been
    /// made, and by a CPU that was called itself and has work of its own now: calls are passed on, not swallowed.
    ///
    /// Whoever clears the idle bit of a CPU rings it. So two callers never settle for the same helper.
    pub fn call_help(&self) {
        if self.flaw != Some(Flaw::NoFence) {
            B::fence();
        }
        let mut idle = self.idle();
        for offer in &self.offers {
            if idle == 0 {
                return;
            }
            let mut helpers = idle & offer.load();
            while helpers != 0 {
                let helper = helpers & helpers.wrapping_neg();
                idle &= !helper;
                helpers &= !helper;
                if self.idle.clear(helper) & helper != 0 {
                    self.pending.set(helper);
                    break;
                }
            }
        }
    }
}
