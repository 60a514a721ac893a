//! How long a CPU waits for another one with interrupts off before it reports that something is wrong (K-27).

use crate::arch::percpu;
use crate::clock;
use core::fmt::Arguments;
use core::sync::atomic::{AtomicU32, Ordering};

/// The time in which the watchdog looks at every CPU once.
pub const ROUND_NS: u64 = 2_000_000_000;

/// After this many rounds in vain something is wrong; 0: never.
static LIMIT: AtomicU32 = AtomicU32::new(0);

/// Sets the number of rounds after which something is wrong; 0: never.
pub fn set_limit(rounds: u32) {
    LIMIT.store(rounds, Ordering::Relaxed);
}

/// The number of rounds after which something is wrong; 0: never.
pub fn limit() -> u32 {
    LIMIT.load(Ordering::Relaxed)
}

/// Counts how long this CPU has waited for another, with interrupts off.
pub struct Patience {
    looks: u32,
    since_ns: u64,
}

impl Patience {
    /// Begins to count.
    #[inline(always)]
    pub const fn new() -> Patience {
        Patience { looks: 0, since_ns: 0 }
    }

    /// Counts one more look, and says whether this CPU has waited too long. Both the number of looks and the time must say so: the host may stop
    /// the other CPU, but hardly for as long as this CPU takes for so many looks.
    #[inline(always)]
    pub fn is_over(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(LOOKS_A_ROUND) && self.is_over_now()
    }

    #[cold]
    #[inline(never)]
    fn is_over_now(&mut self) -> bool {
        let (limit, now) = (LIMIT.load(Ordering::Relaxed), clock::now_ns());
        if self.since_ns == 0 {
            self.since_ns = now;
        }
        let limit_ns = u64::from(limit) * ROUND_NS;
        limit != 0 && self.looks >= LOOKS_A_ROUND * limit && now - self.since_ns > limit_ns
    }
}

/// How many looks there are between two readings of the clock.
const LOOKS_A_ROUND: u32 = 1 << 18;

/// Fails, because this CPU has waited too long.
#[cold]
#[inline(never)]
pub fn cannot_go_on(what: Arguments<'_>) -> ! {
    panic!("watchdog: CPU {} {what} in vain", percpu::this().id);
}
