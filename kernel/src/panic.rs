//! When the kernel fails: who, where, and how it got there.

use crate::arch::{cpu, percpu, smp};
use crate::console;
use crate::mm::paging;
use core::fmt::Arguments;
use core::sync::atomic::{AtomicBool, Ordering};

/// Frames that a backtrace shows.
const MAX_FRAMES: usize = 24;
static PANICKING: AtomicBool = AtomicBool::new(false);

/// Prints a report and stops the machine. `details` prints lines of its own and gives the frame pointer to begin with.
pub fn report(
    what: Arguments<'_>,
    at: Option<&core::panic::Location<'_>>,
    details: impl FnOnce(&dyn Fn(Arguments<'_>)) -> u64,
    rip: Option<u64>,
) -> ! {
    if PANICKING.swap(true, Ordering::SeqCst) {
        // A panic in the report, or on another CPU: one is enough.
        cpu::halt();
    }
    let out = |line: Arguments<'_>| console::print_forced(format_args!("panic: {line}\n"));
    console::print_forced(format_args!("\n"));
    if percpu::ready() {
        smp::halt_others();
        out(format_args!("kernel panic on CPU {}: {what}", percpu::this().id));
    } else {
        out(format_args!("kernel panic: {what}"));
    }
    if let Some(at) = at {
        out(format_args!("at {at}"));
    }
    let frame = details(&out);
    backtrace(frame, rip, &out);
    out(format_args!("the kernel stops"));
    crate::power::off_by_panic()
}

fn backtrace(mut frame: u64, rip: Option<u64>, out: &dyn Fn(Arguments<'_>)) {
    // A return address may be the first byte after a function that ends with the call: look one byte before it.
    let show = |n: usize, address: u64, back: u64| match crate::image::symbol(address - back) {
        Some(symbol) => out(format_args!("  {n:2} {address:#x} {}+{:#x}", symbol.name, symbol.offset + back)),
        None => out(format_args!("  {n:2} {address:#x}")),
    };
    let mut n = 0;
    if let Some(rip) = rip {
        show(n, rip, 0);
        n += 1;
    }
    while n < MAX_FRAMES && frame >= paging::PHYS_BASE && frame.is_multiple_of(8) {
        // SAFETY: a frame pointer of our own code; each leads to an older one on the same stack. The check below stops at anything else.
        let [next, address] = unsafe { *(frame as *const [u64; 2]) };
        if !paging::is_text(address) {
            break;
        }
        show(n, address, 1);
        n += 1;
        if next <= frame || next - frame > 64 * 1024 {
            break;
        }
        frame = next;
    }
}

#[panic_handler]
fn panicked(info: &core::panic::PanicInfo<'_>) -> ! {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    report(format_args!("{}", info.message()), info.location(), |_| frame, None)
}
