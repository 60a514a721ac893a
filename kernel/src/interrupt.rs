//! Interrupts and exceptions, as the assembly entry code calls them.

use crate::arch::entry::{
    Frame, VECTOR_IPI, VECTOR_PIC_SPURIOUS, VECTOR_PIT, VECTOR_SERIAL, VECTOR_SPURIOUS, VECTOR_TIMER,
};
use crate::arch::{apic, cpu, pit, smp, tlb};
use crate::dispatch::percpu::{self, PerCpu};
use crate::irqoff::{self, Path};
use crate::mm::stacks;
use crate::preempt;
use crate::process::records::Owned;
use crate::process::{self, Reason};
use crate::thread::Thread;
use crate::time::Bill;
use crate::{console, context, counters, dispatch, measure, recorder, thread, timers, watchdog};
use core::sync::atomic::Ordering;
use kcore::recorder::Mark;

/// The part of an interrupt that must not allocate, print or decode. Returns the record of who is charged for it: the interrupt has not ended yet.
#[inline(always)]
fn handle(
    me: &'static PerCpu,
    vector: usize,
    tsc: u64,
    begins: impl FnOnce(&'static PerCpu, u64) -> (u64, Bill),
    mark: impl FnOnce(u32) -> Mark,
) -> Bill {
    me.in_interrupt.set(true);
    irqoff::begins_at(me, Path::Interrupt(vector as u32), tsc);
    let began = measure::interrupt_begins();
    if vector == VECTOR_PIT {
        // Where ticks are the clock, the time since the last tick is charged to the thread that ran, and not to this interrupt.
        crate::clock::tick(crate::event::PIT_TICK_NS);
    }
    let (now, mut bill) = begins(me, tsc);
    // Of the requests of other CPUs, only the unusual ones are recorded (`unusual_requests`).
    if vector != VECTOR_IPI {
        recorder::note(me, now, mark(vector as u32));
    }
    match vector {
        VECTOR_TIMER => {
            apic::end_of_interrupt();
            timers::event(me, now, &mut bill);
        }
        VECTOR_IPI => {
            apic::end_of_interrupt();
            requests(me, now, &mut bill);
        }
        VECTOR_SERIAL => {
            apic::end_of_interrupt();
            console::interrupt();
        }
        VECTOR_PIT => {
            pit::end_of_interrupt();
            percpu::all()
                .filter(|cpu| cpu.id != me.id)
                .for_each(|cpu| smp::interrupt(cpu, smp::IPI_TICK, None));
            console::interrupt();
            event_otherwise(me, now, &mut bill);
        }
        VECTOR_SPURIOUS | VECTOR_PIC_SPURIOUS => {}
        _ => {
            counters::UNEXPECTED_INTERRUPTS.fetch_add(1, Ordering::Relaxed);
            apic::end_of_interrupt();
        }
    }
    measure::interrupt_ends(began);
    me.in_interrupt.set(false);
    bill
}

fn requests(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    let reasons = me.ipi.swap(0, Ordering::SeqCst);
    bill.is_asked_for(&me.asked_for);
    if reasons & !smp::IPI_RESCHED != 0 {
        unusual_requests(me, reasons, now);
    }
    if reasons & smp::IPI_TICK != 0 {
        event_otherwise(me, now, bill);
    } else if reasons & smp::IPI_RESCHED != 0 {
        dispatch::look_as_asked(me, now, bill);
    }
}

/// Requests of other CPUs besides a look at the run queue.
#[inline(never)]
fn unusual_requests(me: &'static PerCpu, reasons: u32, now: u64) {
    recorder::note(me, now, Mark::Interrupt { vector: VECTOR_IPI as u32 });
    if reasons & smp::IPI_HALT != 0 {
        crate::tracing::note_halt();
        cpu::halt();
    }
    if reasons & smp::IPI_TLB != 0 {
        tlb::poll();
    }
    if reasons & smp::IPI_WATCH != 0 {
        watchdog::asked(me, now);
    }
}

/// An interrupt in user mode, that came when the counter read `tsc`.
// SAFETY: no other symbol has this name. The entry code calls it by name, because it is in a lower layer (K-25).
#[unsafe(export_name = "kernel_interrupt_user")]
pub extern "C" fn from_user(frame: &mut Frame, tsc: u64) {
    let me = percpu::this();
    let vector = frame.vector as usize;
    let now = crate::clock::ns_at(tsc);
    // Who is charged for the interrupt, if it has not ended yet.
    let open = if vector == VECTOR_TIMER && dispatch::may_end_turn(me, now) && !console::is_input_waiting() {
        end_turn(me, tsc, now)
    } else {
        let begins = |me, tsc| dispatch::interrupt_begins(me, tsc, vector == VECTOR_IPI);
        let mut bill = handle(me, vector, tsc, begins, |vector| Mark::Interrupt { vector });
        console::service();
        let others_ran = me.is_attention_asked() && dispatch::reschedule_interrupted(me, &mut bill);
        // If other threads ran, the interrupt ended where the first of them was chosen. Where this thread was chosen again it went on, if there is a
        // thread that is charged for the way back.
        (!others_ran || bill.pays_for_way_back()).then_some(bill)
    };
    let thread = thread::current();
    if thread.life().has_errands() || thread.body().process.is_ending() {
        return after_marks(thread, open);
    }
    dispatch::end_irq_off();
    if let Some(bill) = open {
        // The thread may be on another CPU by now.
        dispatch::interrupt_ends(percpu::this(), bill);
    }
}

/// A timer interrupt for the running thread alone: does what [`handle`] does and what follows it, and takes the CPU's lock only once.
#[inline(always)]
fn end_turn(me: &'static PerCpu, tsc: u64, now: u64) -> Option<Bill> {
    me.in_interrupt.set(true);
    irqoff::begins_at(me, Path::Interrupt(VECTOR_TIMER as u32), tsc);
    let began = measure::interrupt_begins();
    recorder::note(me, now, Mark::Interrupt { vector: VECTOR_TIMER as u32 });
    apic::end_of_interrupt();
    timers::event_of_turn(me, now);
    measure::interrupt_ends(began);
    me.in_interrupt.set(false);
    dispatch::turn_ends(me, now)
}

/// The end of an interrupt of a thread that has to deal with its context before it returns to user mode, or has to end. The thread is charged for
/// that.
#[cold]
#[inline(never)]
fn after_marks(thread: &'static Thread, bill: Option<Bill>) {
    if let Some(mut bill) = bill {
        // Another CPU may have sent the interrupt to make this thread do that: such a kick is charged to the thread that asked for it.
        bill.falls_to_asked();
        dispatch::found_interrupt_ends(percpu::this(), bill);
    }
    if thread.life().has_errands() {
        context::settle_before_user(thread);
    }
    process::exit_if_ending(thread);
    dispatch::end_irq_off();
}

/// An interrupt in the idle loop, which looks for work itself afterwards.
// SAFETY: no other symbol has this name. The entry code calls it by name, because it is in a lower layer (K-25).
#[unsafe(export_name = "kernel_interrupt_idle")]
pub extern "C" fn from_idle(frame: &mut Frame, tsc: u64) {
    let me = percpu::this();
    let mark = |vector| Mark::IdleInterrupt { vector };
    let bill = handle(me, frame.vector as usize, tsc, dispatch::interrupt_is_found, mark);
    console::service();
    dispatch::found_interrupt_ends(me, bill);
    if me.is_attention_asked() {
        // The thread that was woken runs before the next interrupt is taken. If interrupts came one after the other, the idle loop would never get to
        // run it (K-26).
        frame.rflags &= !cpu::FLAG_IF;
    } else {
        dispatch::end_irq_off();
    }
}

/// A timer event that does not come from the CPU's own timer interrupt: not inlined, because it is rare.
#[inline(never)]
fn event_otherwise(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    timers::event(me, now, bill);
}

/// Called by a preemption point (`preempt::point`) that found something to do: serves the interrupts that wait, and lets other threads run, until
/// nothing is left to do. Passed down to `preempt` at boot.
pub fn serve_and_yield() {
    // An idle CPU, which may be here to free an ended thread, has no thread that could yield.
    if percpu::this().current.get().is_null() {
        return;
    }
    loop {
        let me = percpu::this();
        if preempt::is_interrupt_waiting(me) {
            serve_waiting(me);
        }
        irqoff::served(me);
        if !dispatch::reschedule() {
            return;
        }
        // Other threads ran meanwhile, and the last of them may have left at a preemption point, too. So this looks for interrupts again: otherwise,
        // of a thousand threads that end, each would go on where it paused, and all of them together would be one interrupts-off span.
    }
}

/// As [`serve_and_yield`], but does each at most once: for `preempt::point_at_end`.
pub fn serve_and_yield_once() {
    let me = percpu::this();
    if preempt::is_interrupt_waiting(me) {
        serve_waiting(me);
    }
    dispatch::reschedule();
}

#[cold]
#[inline(never)]
fn serve_waiting(me: &'static PerCpu) {
    me.in_interrupt.set(true);
    let (now, mut bill) = dispatch::interrupt_is_found(me, cpu::rdtsc());
    recorder::note(me, now, Mark::Interrupt { vector: recorder::IN_A_PAUSE });
    if me.ipi.load(Ordering::Relaxed) != 0 {
        requests(me, now, &mut bill);
        bill.falls_to_asked();
    }
    if now >= me.armed_ns.load(Ordering::Relaxed) {
        event_otherwise(me, now, &mut bill);
    }
    dispatch::found_interrupt_ends(me, bill);
    me.in_interrupt.set(false);
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

/// The kind of access that caused a page fault.
fn attempt(error: u64) -> &'static str {
    match error {
        e if e & 16 != 0 => "execute",
        e if e & 2 != 0 => "write",
        _ => "read",
    }
}

/// An exception in user mode, which a program caused: its process ends, with a report, and no other process is affected.
// SAFETY: no other symbol has this name. The entry code calls it by name, because it is in a lower layer (K-25).
#[unsafe(export_name = "kernel_exception_user")]
pub extern "C" fn exception_user(frame: &Frame) -> ! {
    let frame = *frame;
    let address = cpu::cr2();
    // An exception does not clear the program's AC flag, with which SMAP is off. The entry code must have cleared it: until the flags of the next
    // thread are loaded nothing else would, neither this thread's end nor a switch nor the idle loop.
    debug_assert!(cpu::flags() & cpu::FLAG_AC == 0, "a program has suspended SMAP");
    irqoff::begins(percpu::this(), Path::Fault);
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

/// An exception in the kernel, which is a bug: reports it and panics.
// SAFETY: no other symbol has this name. The entry code calls it by name, because it is in a lower layer (K-25).
#[unsafe(export_name = "kernel_exception_kernel")]
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
