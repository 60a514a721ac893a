//! The CPU's own clock, read without a system call: for programs that watch what happens to themselves.

use crate::proof::{Doing, Outcome};
use crate::{ensure, workload};
use rt::time;

/// Reads the clock, which is the same on all CPUs.
pub fn now() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The ratio of ticks to nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    ticks: u64,
    ns: u64,
}

impl Scale {
    /// Measures the ratio over a few milliseconds of sleep.
    pub fn measure() -> Outcome<Scale> {
        let (ns, ticks) = (time::now_ns().doing("now")?, now());
        time::sleep(5_000_000).doing("sleep")?;
        let scale = Scale { ns: time::now_ns().doing("now")? - ns, ticks: now() - ticks };
        ensure!(scale.ticks > 0 && scale.ns > 0, "the clock stands still: {scale:?}");
        Ok(scale)
    }

    /// Ticks as nanoseconds.
    pub fn to_ns(self, ticks: u64) -> u64 {
        (u128::from(ticks) * u128::from(self.ns) / u128::from(self.ticks)) as u64
    }
}

/// Nanoseconds per instruction on a machine that counts instructions, measured by timing a loop of known length.
pub fn instruction_ns(scale: Scale) -> u64 {
    // Short enough that one of several passes fits within one turn of its CPU, where the emulator lets CPUs take turns.
    const TURNS: u64 = 500;
    let mut least = u64::MAX;
    for _ in 0..64 {
        let before = now();
        // SAFETY: counts a register down, two instructions a turn.
        unsafe {
            core::arch::asm!("2:", "dec {turns}", "jnz 2b", turns = inout(reg) TURNS => _, options(nomem, nostack))
        };
        least = least.min(now() - before);
    }
    // Reading the clock takes a few instructions more; rounding absorbs them.
    ((scale.to_ns(least) + TURNS) / (2 * TURNS)).max(1)
}

/// Whether the machine counts instructions instead of time: then the same loop takes exactly the same number of ticks every time.
pub fn is_counted() -> bool {
    let mut samples = [0u64; 15];
    for sample in &mut samples {
        let before = now();
        core::hint::black_box(workload::spin(20_000, before));
        *sample = now() - before;
    }
    samples.sort_unstable();
    let median = samples[samples.len() / 2];
    samples.iter().filter(|sample| **sample == median).count() > samples.len() / 2
}
