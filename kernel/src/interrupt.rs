//! Interrupts and exceptions, after the assembly.

use crate::arch::entry::{
    Frame, VECTOR_IPI, VECTOR_PIC_SPURIOUS, VECTOR_PIT, VECTOR_SERIAL, VECTOR_SPURIOUS, VECTOR_TIMER,
};
use crate::arch::percpu::{self, PerCpu};
use crate::arch::{apic, cpu, pit, smp};
use crate::mm::{stacks, tlb};
use crate::process::{self, Reason};
use crate::{console, sched, thread, time};
use core::sync::atomic::{AtomicU64, Ordering};

/// Interrupts that nobody expected.
pub static UNEXPECTED: AtomicU64 = AtomicU64::new(0);

/// The part that must not allocate, print or decode.
fn handle(me: &'static PerCpu, vector: usize) {
    me.in_interrupt.set(true);
    match vector {
        VECTOR_TIMER => {
            apic::end_of_interrupt();
            time::event(me);
        }
        VECTOR_IPI => {
            apic::end_of_interrupt();
            requests(me);
        }
        VECTOR_SERIAL => {
            apic::end_of_interrupt();
            console::interrupt();
        }
        VECTOR_PIT => {
            pit::end_of_interrupt();
            crate::clock::tick(crate::event::PIT_TICK_NS);
            percpu::all().filter(|cpu| cpu.id != me.id).for_each(|cpu| smp::interrupt(cpu, smp::IPI_TICK));
            console::interrupt();
            time::event(me);
        }
        VECTOR_SPURIOUS | VECTOR_PIC_SPURIOUS => {}
        _ => {
            UNEXPECTED.fetch_add(1, Ordering::Relaxed);
            apic::end_of_interrupt();
        }
    }
    me.in_interrupt.set(false);
}

fn requests(me: &'static PerCpu) {
    let reasons = me.ipi.swap(0, Ordering::SeqCst);
    if reasons & smp::IPI_HALT != 0 {
        cpu::halt();
    }
    if reasons & smp::IPI_TLB != 0 {
        tlb::poll();
    }
    if reasons & smp::IPI_TICK != 0 {
        time::event(me);
    } else if reasons & smp::IPI_RESCHED != 0 {
        sched::look(me);
    }
}

/// An interrupt in user mode.
pub extern "C" fn from_user(frame: &mut Frame) {
    let me = percpu::this();
    handle(me, frame.vector as usize);
    console::service();
    sched::preempt_if_needed();
    process::exit_if_ending();
}

/// An interrupt in the idle loop, which looks for work itself.
pub extern "C" fn from_idle(frame: &mut Frame) {
    handle(percpu::this(), frame.vector as usize);
    console::service();
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
    let thread = thread::current();
    let process = thread.body().process.clone();
    let name = NAMES[frame.vector as usize & 31];
    let who = (process.name, process.pid, thread.tid());
    if process.kill(-i64::from(frame.vector as u32) - 128, Reason::Faulted) {
        let (name_of, pid, tid) = (who.0, who.1, who.2);
        if frame.vector == 14 {
            let present = if frame.error & 1 != 0 { "not allowed" } else { "not mapped" };
            crate::println!(
                "fault: process {pid} ({}) thread {tid}: {name}: cannot {} {address:#x} ({present}) at {:#x}, stack {:#x}",
                name_of.as_str(),
                attempt(frame.error),
                frame.rip,
                frame.rsp,
            );
        } else {
            crate::println!(
                "fault: process {pid} ({}) thread {tid}: {name} (error {:#x}) at {:#x}, stack {:#x}",
                name_of.as_str(),
                frame.error,
                frame.rip,
                frame.rsp,
            );
        }
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
