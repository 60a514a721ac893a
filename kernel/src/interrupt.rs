//! Interrupts and exceptions, after the assembly.

use crate::arch::entry::{
    Frame, VECTOR_IPI, VECTOR_PIC_SPURIOUS, VECTOR_PIT, VECTOR_SERIAL, VECTOR_SPURIOUS, VECTOR_TIMER,
};
use crate::arch::percpu::{self, PerCpu};
use crate::arch::{apic, cpu, pit, smp};
use crate::mm::{stacks, tlb};
use crate::process::{self, Reason};
use crate::{console, context, measure, sched, thread, time};
use core::sync::atomic::{AtomicU64, Ordering};

/// Interrupts that nobody expected.
pub static UNEXPECTED: AtomicU64 = AtomicU64::new(0);

/// The part that must not allocate, print or decode.
fn handle(me: &'static PerCpu, vector: usize) {
    me.in_interrupt.set(true);
    let began = measure::interrupt_begins();
    if vector == VECTOR_PIT {
        // Where ticks are the clock, what has passed since the last one is whoever ran, and not this interrupt.
        crate::clock::tick(crate::event::PIT_TICK_NS);
    }
    let now = sched::interrupt_begins(me);
    match vector {
        VECTOR_TIMER => {
            apic::end_of_interrupt();
            time::event(me, now);
        }
        VECTOR_IPI => {
            apic::end_of_interrupt();
            requests(me, now);
        }
        VECTOR_SERIAL => {
            apic::end_of_interrupt();
            console::interrupt();
        }
        VECTOR_PIT => {
            pit::end_of_interrupt();
            percpu::all().filter(|cpu| cpu.id != me.id).for_each(|cpu| smp::interrupt(cpu, smp::IPI_TICK));
            console::interrupt();
            time::event(me, now);
        }
        VECTOR_SPURIOUS | VECTOR_PIC_SPURIOUS => {}
        _ => {
            UNEXPECTED.fetch_add(1, Ordering::Relaxed);
            apic::end_of_interrupt();
        }
    }
    sched::interrupt_ends(me);
    measure::interrupt_ends(began);
    me.in_interrupt.set(false);
}

fn requests(me: &'static PerCpu, now: u64) {
    let reasons = me.ipi.swap(0, Ordering::SeqCst);
    if reasons & smp::IPI_HALT != 0 {
        crate::tracing::note_halt();
        cpu::halt();
    }
    if reasons & smp::IPI_TLB != 0 {
        tlb::poll();
    }
    if reasons & smp::IPI_TICK != 0 {
        time::event(me, now);
    } else if reasons & smp::IPI_RESCHED != 0 {
        sched::look_for_woken(me, || now);
    }
}

/// An interrupt in user mode.
pub extern "C" fn from_user(frame: &mut Frame) {
    let me = percpu::this();
    handle(me, frame.vector as usize);
    console::service();
    sched::attend();
    let thread = thread::current();
    if thread.marks.load(Ordering::Relaxed) != 0 {
        context::see_to(thread);
    }
    process::exit_if_ending(thread);
}

/// An interrupt in the idle loop, which looks for work itself.
pub extern "C" fn from_idle(frame: &mut Frame) {
    handle(percpu::this(), frame.vector as usize);
    console::service();
}

/// A pause in a long path of the current thread, which holds no lock: does what the interrupts that wait would do, and lets others run. The
/// kernel does not preempt itself; without this a program could keep timers, wake-ups and everybody else on its CPU waiting for seconds.
pub fn breathe() {
    let me = percpu::this();
    debug_assert!(!me.held.any(), "pausing with a lock held");
    // At boot there is nobody else.
    if me.current.get().is_null() {
        return;
    }
    me.in_interrupt.set(true);
    // The time of this is the thread's: it chose a long path.
    let now = time::now_ns();
    if me.ipi.load(Ordering::Relaxed) != 0 {
        requests(me, now);
    }
    if now >= me.armed_ns.get() {
        time::event(me, now);
    }
    me.in_interrupt.set(false);
    sched::attend();
}

const NAMES: [&str; 32] = [
    "divide error",
    "debug trap",
    "NMI",
    "breakpoint",
    "overflow",
    "bound range",
    "invalid instruction",
    "no FPU",
    "double fault",
    "coprocessor overrun",
    "invalid TSS",
    "segment not present",
    "stack segment fault",
    "general protection fault",
    "page fault",
    "reserved",
    "x87 error",
    "misaligned access",
    "machine check",
    "SIMD error",
    "virtualisation fault",
    "control protection fault",
    "exception 22",
    "exception 23",
    "exception 24",
    "exception 25",
    "exception 26",
    "exception 27",
    "exception 28",
    "exception 29",
    "exception 30",
    "exception 31",
];

/// What a page fault tried.
fn attempt(error: u64) -> &'static str {
    match error {
        e if e & 16 != 0 => "execute",
        e if e & 2 != 0 => "write",
        _ => "read",
    }
}

/// A program did something that a program cannot do: its process ends, with a report, and nobody else notices.
pub extern "C" fn exception_user(frame: &Frame) -> ! {
    let frame = *frame;
    let address = cpu::cr2();
    // The hardware leaves the program's AC as it was, and nothing between here and the next thread's own flags would clear it: not this
    // thread's end, not a switch, not the idle loop.
    debug_assert!(cpu::flags() & cpu::FLAG_AC == 0, "a program has suspended SMAP");
    let thread = thread::current();
    let process = thread.body().process.clone();
    let name = NAMES[frame.vector as usize & 31];
    let who = (process.name, process.pid, thread.tid());
    if process.kill(-i64::from(frame.vector as u32) - 128, Reason::Faulted) {
        let (name_of, pid, tid) = (who.0, who.1, who.2);
        if frame.vector == 14 {
            let present = if frame.error & 1 != 0 { "not allowed" } else { "not mapped" };
            crate::println!(
                "fault: process {pid} ({}) thread {tid}: {name}\n\
                 fault: cannot {} {address:#x} ({present})",
                name_of.as_str(),
                attempt(frame.error),
            );
        } else {
            crate::println!(
                "fault: process {pid} ({}) thread {tid}: {name} (error {:#x})",
                name_of.as_str(),
                frame.error,
            );
        }
        crate::println!("fault: at {:#x}, stack {:#x}", frame.rip, frame.rsp);
        crate::println!("fault: process {pid} ({}) ends; nobody else is touched", name_of.as_str());
    }
    drop(process);
    process::exit_current(0)
}

/// The kernel failed.
pub extern "C" fn exception_kernel(frame: &Frame) -> ! {
    let name = NAMES[frame.vector as usize & 31];
    let address = cpu::cr2();
    let overflow = if matches!(frame.vector, 8 | 14) { stacks::guard_hit(address) } else { None };
    crate::panic::report(
        format_args!("{name} in the kernel, error {:#x}, address {address:#x}", frame.error),
        None,
        |out| {
            if let Some(stack) = overflow {
                out(format_args!("kernel stack {stack} is used up"));
            }
            out(format_args!("rip {:#x} rsp {:#x} rflags {:#x}", frame.rip, frame.rsp, frame.rflags));
            frame.regs[8]
        },
        Some(frame.rip),
    )
}
