//! TLB shootdowns: making other CPUs forget translations that have changed (K-02).
//!
//! Each CPU has two counters: flushes that were requested of it, and flushes that it has done. A CPU that unmaps or protects memory increments the
//! first counter of every CPU that has the address space loaded, interrupts that CPU, and waits until its second counter has caught up. A request
//! that comes while another is answered is a higher number, so it cannot be lost. Nothing is freed before the wait is over, so there is no queue to
//! overflow.
//!
//! The waiting CPU has interrupts off, as have others in the kernel. So every loop that spins answers requests ([`poll`]).

use super::percpu::{self, MachineCpu};
use super::{cpu, smp};
use crate::planted::{self, Bug};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use kcore::debt::Debt;
use sched::{CpuId, CpuMask, MAX_CPUS};

/// A set of CPUs that other CPUs may change at any time.
pub struct AtomicMask([AtomicU64; MAX_CPUS / 64]);

impl AtomicMask {
    /// The empty set.
    pub const fn new() -> AtomicMask {
        AtomicMask([const { AtomicU64::new(0) }; MAX_CPUS / 64])
    }
    /// Adds a CPU.
    #[inline]
    pub fn insert(&self, cpu: usize) {
        self.0[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::SeqCst);
    }
    /// Removes a CPU.
    #[inline]
    pub fn remove(&self, cpu: usize) {
        self.0[cpu / 64].fetch_and(!(1 << (cpu % 64)), Ordering::SeqCst);
    }
    /// Whether the CPU is in the set.
    #[inline]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / 64].load(Ordering::SeqCst) & 1 << (cpu % 64) != 0
    }
    /// A copy of the set; only each word of it is consistent.
    pub fn snapshot(&self) -> CpuMask {
        CpuMask::from_words(core::array::from_fn(|i| self.0[i].load(Ordering::SeqCst)))
    }
    /// Whether no CPU is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }
    fn any_but(&self, cpu: usize) -> bool {
        self.0.iter().enumerate().any(|(i, word)| {
            let mine = if cpu / 64 == i { 1 << (cpu % 64) } else { 0 };
            word.load(Ordering::SeqCst) & !mine != 0
        })
    }
}

/// Answers the flush requests to this CPU.
#[inline]
pub fn poll() {
    answer(percpu::this());
}

#[inline]
fn answer(me: &MachineCpu) {
    let asked = me.tlb_asked.load(Ordering::SeqCst);
    if me.tlb_done.load(Ordering::Relaxed) != asked {
        // Always flushes everything: kernel mappings change too rarely for a separate path.
        cpu::flush_tlb_global();
        me.tlb_done.store(asked, Ordering::SeqCst);
    }
}

/// When this returns, every CPU in `resident` has flushed the translations of the space; this CPU itself is left out.
pub fn shootdown(resident: &AtomicMask, payer: Option<&'static Debt>) {
    // The page tables were written before this look at `resident`; a CPU that loads the space later reads the new tables.
    fence(Ordering::SeqCst);
    if !resident.any_but(percpu::this().id) || planted::is(Bug::TlbNoIpi) {
        return;
    }
    flush_others(|cpu| resident.contains(cpu), payer);
}

/// When this returns, every other CPU has flushed its whole TLB.
pub fn shootdown_all(payer: Option<&'static Debt>) {
    fence(Ordering::SeqCst);
    flush_others(|_| true, payer);
}

fn flush_others(wanted: impl Fn(usize) -> bool, payer: Option<&'static Debt>) {
    let me = percpu::this();
    me.counters.tlb_shootdowns.bump();
    let others = || percpu::all().filter(|cpu| cpu.id != me.id && cpu.online.load(Ordering::Acquire));
    let mut targets = CpuMask::EMPTY;
    for cpu in others().filter(|cpu| wanted(cpu.id)) {
        cpu.tlb_asked.fetch_add(1, Ordering::SeqCst);
        smp::interrupt(cpu, smp::IPI_TLB, payer);
        // A mask, of fixed size (K-30).
        targets.insert(CpuId::new(cpu.id).expect("a CPU number"));
    }
    for cpu in targets.iter().filter_map(|cpu| percpu::get(cpu.index())) {
        let asked = cpu.tlb_asked.load(Ordering::SeqCst);
        let mut patience = crate::patience::Patience::new();
        while cpu.tlb_done.load(Ordering::SeqCst) < asked {
            cpu::pause();
            answer(me);
            if patience.is_over() {
                crate::patience::cannot_go_on(format_args!("waits for CPU {} to flush its TLB", cpu.id));
            }
        }
    }
}
