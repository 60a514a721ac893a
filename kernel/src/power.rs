//! Turning the machine off.

use crate::arch::{cpu, percpu};
use core::sync::atomic::{AtomicBool, Ordering};

/// QEMU's exit device: writing `v` ends QEMU with status `v << 1 | 1`.
const EXIT_PORT: u16 = 0xf4;
/// ACPI's soft-off in QEMU's q35 chipset.
const ACPI_PORT: u16 = 0x604;

/// The status of a kernel that failed; nothing else has it.
const PANICKED: u8 = 15;

/// Whether a CPU has begun to end the run.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Ends the run. Status 0 is success; values above 14 become 14.
pub fn off(status: u8) -> ! {
    // A machine that was booted to fail must end by that failure, and not by a program that ends before the failure is noticed (K-24, K-27).
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
    // If two CPUs ended the run at once, each would stop the other, and both would wait for ever.
    if ENDS.swap(true, Ordering::SeqCst) && status != PANICKED {
        cpu::halt()
    }
    if status != PANICKED {
        crate::dispatch::tell_idle();
    }
    crate::tracing::write_out(status == PANICKED);
    // QEMU 7.2 shuts down in the thread of this CPU, while the other CPUs still run: so they are stopped. A panic has stopped them already.
    if status != PANICKED && percpu::ready() {
        crate::recorder::stop_others();
    }
    // The exit device reads as 0, and a port without a device as all ones. The exit may take a while: QEMU 10 lets this CPU go on meanwhile.
    if cpu::inl(EXIT_PORT) == 0 {
        cpu::outl(EXIT_PORT, 0x10 | u32::from(status));
    } else {
        cpu::outw(ACPI_PORT, 0x2000);
    }
    cpu::halt()
}
