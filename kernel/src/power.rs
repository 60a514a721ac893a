//! Ending the machine's run.

use crate::arch::cpu;

/// QEMU's exit device: writing `v` ends QEMU with status `v << 1 | 1`.
const EXIT_PORT: u16 = 0xf4;
/// ACPI's soft-off in QEMU's q35 chipset.
const ACPI_PORT: u16 = 0x604;

/// The status of a kernel that failed, and of nothing else.
const PANICKED: u8 = 15;

/// Ends the run; status 0 is success, and what is above 14 is 14.
pub fn off(status: u8) -> ! {
    end(status.min(PANICKED - 1))
}

/// Ends the run of a kernel that failed.
pub fn off_by_panic() -> ! {
    end(PANICKED)
}

fn end(status: u8) -> ! {
    if status != PANICKED {
        crate::process::tell_idle();
    }
    crate::tracing::write_out(status == PANICKED);
    cpu::outl(EXIT_PORT, 0x10 | u32::from(status));
    cpu::outw(ACPI_PORT, 0x2000);
    cpu::halt()
}
