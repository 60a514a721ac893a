//! The idle loop of a CPU.

use super::moves::steal;
use super::{IDLE, end_irq_off, enqueue_on, leave};
use crate::arch::cpu;
use crate::dispatch::heads::SchedRef;
use crate::dispatch::percpu::{self, PerCpu};
use crate::time;
use crate::tracing::{self, Why};
use ::sched::Runnable;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The CPU that was idle first.
static IDLE_CPU: AtomicUsize = AtomicUsize::new(NOBODY);
static IDLE_TOLD: AtomicBool = AtomicBool::new(false);
static PROGRAMS_SPEAK: AtomicBool = AtomicBool::new(false);
const NOBODY: usize = usize::MAX;

/// K-16: notes that the steady-state idle loop was reached. It is printed at once while no program uses the console, and at power-off otherwise.
fn note_idle(cpu: usize) {
    if IDLE_CPU.load(Ordering::Relaxed) == NOBODY
        && IDLE_CPU.compare_exchange(NOBODY, cpu, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        && !PROGRAMS_SPEAK.load(Ordering::Relaxed)
    {
        tell_idle();
    }
}

/// From here on programs use the console, so the line of [`tell_idle`] waits for power-off.
pub fn programs_speak() {
    PROGRAMS_SPEAK.store(true, Ordering::Relaxed);
}

/// Prints which CPU was idle first, once.
pub fn tell_idle() {
    let cpu = IDLE_CPU.load(Ordering::Relaxed);
    if cpu != NOBODY && !IDLE_TOLD.swap(true, Ordering::Relaxed) {
        crate::println!("sched: idle cpu={cpu} idle_path=cpl0-dispatch");
    }
}

/// Runs threads as they come, and waits for interrupts while there are none. Never returns, never blocks.
pub extern "C" fn idle_loop(_: u64) -> ! {
    let me = percpu::this();
    loop {
        if crate::watchdog::forbids_dispatch() {
            me.dispatch.idle.store(true, Ordering::Relaxed);
            cpu::wait_for_interrupt();
            continue;
        }
        if let Some(next) = me.dispatch.handoff.take() {
            run_woken(me, next);
            continue;
        }
        let mut queue = me.dispatch.queue.lock();
        let mut until_ns = u64::MAX;
        if !queue.stays_idle() {
            let now = time::now_ns();
            let decision = queue.dispatch(now);
            // If no thread can run, this is when the next refill comes.
            until_ns = decision.until_ns;
            tracing::decided(me, None, Why::Idle, &decision, now);
            if decision.run.is_some() {
                me.mark_dispatch(true);
                unmark_idle(me);
                // As in `run_woken`.
                end_irq_off();
                leave(me, queue, decision, now);
                continue;
            }
        }
        drop(queue);
        // This CPU is marked as idle before it tries to steal. A thread that was queued on a busy neighbour before the mark was seen is found by
        // `steal`, which looks at the neighbours afterwards; and a CPU that queues a thread here interrupts this one.
        if !me.dispatch.idle.swap(true, Ordering::Relaxed) {
            // The mask has a fixed size, so this allocates nothing (K-30).
            IDLE.insert(me.id);
        }
        if steal(me) {
            continue;
        }
        if until_ns != u64::MAX {
            time::arm(me, until_ns, time::now_ns());
        }
        note_idle(me.id);
        end_irq_off();
        cpu::wait_for_interrupt();
    }
}

/// Runs the thread that has woken this idle CPU, or queues it if it is not the only one.
#[inline(always)]
fn run_woken(me: &'static PerCpu, next: Runnable<SchedRef>) {
    let mut queue = me.dispatch.queue.lock();
    // The thread is charged from the end of the interrupt that woke the CPU, which has done nothing else since then.
    let now = queue.at_ns();
    if tracing::on() && queue.runs_at_once(&next) {
        tracing::arrives(me, &next, now);
    }
    match queue.run_at_once(next, now) {
        Ok(decision) => {
            tracing::decided(me, None, Why::Idle, &decision, now);
            me.counters.queue_depth_max.raise(1);
            me.mark_dispatch(true);
            unmark_idle(me);
            // The interrupts-off span can end here. The thread returns to user mode soon, or begins a span of its own (`irqoff::begins`).
            end_irq_off();
            leave(me, queue, decision, now);
        }
        Err(next) => {
            drop(queue);
            enqueue_on(me, me, next);
        }
    }
}

fn unmark_idle(me: &'static PerCpu) {
    if me.dispatch.idle.swap(false, Ordering::Relaxed) {
        IDLE.remove(me.id);
        crate::watchdog::somebody_runs(me);
    }
}
