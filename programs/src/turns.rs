//! How the emulator shares its time among the machine's CPUs, as seen from inside: a CPU that only reads the clock sees the clock jump while other
//! CPUs run.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use rt::thread::Builder;
use rt::{ThreadControl, caps, time};

use crate::ensure;
use crate::kit::MS;
use crate::proof::{Doing, Outcome};
use crate::ticks;

/// For how many ticks at most each of the other CPUs may run while a CPU stands still.
const TURN_MAX: u64 = 12_000;

/// Ticks of the clock that pass while one CPU executes one instruction and all others are busy: as many as there are CPUs.
///
/// Fails unless all CPUs take short and equal turns, which the emulator does if told to (`--append turns=5`, or less).
pub fn instruction() -> Outcome<u64> {
    let cpus = u64::from(rt::boot_info().cpus);
    for (cpu, Seen { longest, own_permille }) in look()?.into_iter().enumerate() {
        ensure!(
            longest <= (cpus - 1) * TURN_MAX && own_permille * cpus > 950,
            "CPU {cpu} of {cpus} has {own_permille} thousandths of the clock, and stands still for {longest} ticks; \
             is it not a machine that counts, with --append turns=5 or less?"
        );
    }
    Ok(cpus)
}

/// What one CPU saw while all CPUs were busy.
pub struct Seen {
    /// The longest time for which this CPU stood still.
    pub longest: u64,
    /// How many of a thousand ticks were its own.
    pub own_permille: u64,
}

/// Lets all CPUs read the clock for a while at the same time.
pub fn look() -> Outcome<Vec<Seen>> {
    const LOOK_NS: u64 = 20 * MS;
    let until_ns = time::now_ns()? + 5 * MS;
    let mut threads = Vec::new();
    for cpu in 0..rt::boot_info().cpus {
        let seen = Arc::new([const { AtomicU64::new(0) }; 2]);
        let theirs = Arc::clone(&seen);
        let look = move || -> rt::Result<()> {
            caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
            time::sleep(until_ns.saturating_sub(time::now_ns()?))?;
            let start = ticks::now();
            let (mut last, mut longest, mut own) = (start, 0, 0);
            while last - start < LOOK_NS {
                let now = ticks::now();
                // One iteration of the loop takes a few instructions.
                if now - last < 100 {
                    own += now - last;
                } else {
                    longest = longest.max(now - last);
                }
                last = now;
            }
            theirs[0].store(longest, Ordering::Relaxed);
            theirs[1].store(own * 1000 / (last - start), Ordering::Relaxed);
            Ok(())
        };
        threads.push((Builder::new().stack_bytes(16 << 10).spawn(look).doing("spawn")?, seen));
    }
    let mut all = Vec::new();
    for (thread, seen) in threads {
        thread.join()??;
        let [longest, own_permille] = seen.each_ref().map(|value| value.load(Ordering::Relaxed));
        all.push(Seen { longest, own_permille });
    }
    Ok(all)
}
