//! Ending the machine's run.

use crate::arch::{cpu, percpu};
use core::sync::atomic::{AtomicBool, Ordering};

/// QEMU's exit device: writing `v` ends QEMU with status `v << 1 | 1`.
const EXIT_PORT: u16 = 0xf4;
/// ACPI's soft-off in QEMU's q35 chipset.
const ACPI_PORT: u16 = 0x604;

/// The status of a kernel that failed, and of nothing else.
const PANICKED: u8 = 15;

/// Somebody has begun to end the run.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Ends the run; status 0 is success, and what is above 14 is 14.
pub fn off(status: u8) -> ! {
    // A machine that was booted to fail ends by that, and not by a program that was quicker than whoever is to notice (K-24, K-27).
    while crate::watchdog::is_to_fail() {
        crate::preempt::point();
        cpu::pause();
    }
    end(status.min(PANICKED - 1))
}

/// Ends the run of a kernel that failed.
pub fn off_by_panic() -> ! {
    end(PANICKED)
}

fn end(status: u8) -> ! {
    // Two CPUs that stop each other would both wait for ever.
    if ENDS.swap(true, Ordering::SeqCst) && status != PANICKED {
        cpu::halt()
    }
    if status != PANICKED {
        crate::dispatch::tell_idle();
    }
    crate::tracing::write_out(status == PANICKED);
    // QEMU 7.2 takes itself apart in the thread of this CPU, while the others run on. Who panics has stopped the others already.
    if status != PANICKED && percpu::ready() {
        crate::recorder::stop_others();
    }
    // The exit device reads as 0, and a port that nobody answers as all ones. It may take a while: QEMU 10 lets this CPU go on meanwhile.
    if cpu::inl(EXIT_PORT) == 0 {
        cpu::outl(EXIT_PORT, 0x10 | u32::from(status));
    } else {
        cpu::outw(ACPI_PORT, 0x2000);
    }
    cpu::halt()
}
