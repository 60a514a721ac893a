//! The report of a kernel that fails: what happened, where, and the calls that led there.

use crate::arch::{cpu, percpu, phys};
use crate::hook::Hook;
use crate::log;
use crate::mm::paging;
use crate::recorder;
use core::fmt::Arguments;
use core::sync::atomic::{AtomicUsize, Ordering};
use image::Symbol;

/// Frames that a backtrace shows.
const MAX_FRAMES: usize = 24;
/// The CPU that reports.
static PANICKING: AtomicUsize = AtomicUsize::new(NOBODY);
const NOBODY: usize = usize::MAX;
/// The longest part of a function's name that is shown, for lines of 100 columns.
const NAME_WIDTH: usize = 60;

/// Finds the function that contains an address. The boot image, which has the names, is above this layer.
static SYMBOL: Hook<fn(u64) -> Option<Symbol<'static>>> = Hook::empty();

/// From here on reports name functions; at boot.
pub fn hand_down(symbol: fn(u64) -> Option<Symbol<'static>>) {
    SYMBOL.set(symbol);
}

/// Prints a report and stops the machine. `details` prints lines of its own, and returns the frame pointer to begin with.
pub fn report(
    what: Arguments<'_>,
    at: Option<&core::panic::Location<'_>>,
    details: impl FnOnce(&dyn Fn(Arguments<'_>)) -> u64,
    rip: Option<u64>,
) -> ! {
    let me = if percpu::ready() { percpu::this().id } else { 0 };
    match PANICKING.compare_exchange(NOBODY, me, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {}
        // A panic in the report itself: nothing more can be printed than this.
        Err(first) if first == me => {
            log::print_forced(format_args!("\npanic: another panic in this report: {what}\n"));
            crate::power::off_by_panic()
        }
        // A panic on another CPU: one report is enough, and it shows this CPU, too.
        Err(_) => cpu::halt(),
    }
    recorder::freeze();
    let out = |line: Arguments<'_>| log::print_forced(format_args!("panic: {line}\n"));
    log::print_forced(format_args!("\n"));
    if percpu::ready() {
        // If there is a trace, the CPUs that still take interrupts stop between two of its events.
        crate::tracing::stop_others();
        recorder::stop_others();
        out(format_args!("kernel panic on CPU {}: {what}", percpu::this().id));
    } else {
        out(format_args!("kernel panic: {what}"));
    }
    if let Some(at) = at {
        out(format_args!("at {at}"));
    }
    let frame = details(&out);
    backtrace(frame, rip, MAX_FRAMES, &out);
    if percpu::ready() {
        recorder::report(&out);
    }
    out(format_args!("the kernel stops"));
    crate::power::off_by_panic()
}

/// Prints the chain of calls, from `rip` or from the frame pointer `frame` on.
pub fn backtrace(mut frame: u64, rip: Option<u64>, most: usize, out: &dyn Fn(Arguments<'_>)) {
    // A return address may be the first byte after a function that ends with the call: so look up the byte before it.
    let show =
        |n: usize, address: u64, back: u64| match SYMBOL.get().and_then(|symbol| symbol(address - back)) {
            Some(symbol) => {
                let name = symbol.name;
                out(format_args!("  {n:2} {address:#x} {name:.NAME_WIDTH$}+{:#x}", symbol.offset + back))
            }
            None => out(format_args!("  {n:2} {address:#x}")),
        };
    let mut n = 0;
    if let Some(rip) = rip {
        show(n, rip, 0);
        n += 1;
    }
    while n < most && frame >= phys::PHYS_BASE && frame.is_multiple_of(8) {
        // SAFETY: a frame pointer of the kernel's own code; each leads to an older one on the same stack. The checks below stop at anything else.
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
