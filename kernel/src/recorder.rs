//! The flight recorder (K-27): the last events of each CPU, the last output, and the state of every CPU when the kernel fails.
//!
//! What is kept and how it is printed is in `kcore::recorder`. The report of a panic reads it here, and `capos` reads it in the memory of a machine
//! that hangs or has reset itself. Recording allocates nothing, takes no lock and is always on.

use crate::arch::entry::Frame;
use crate::arch::percpu::MachineCpu;
use crate::arch::{apic, cpu, phys};
use crate::dispatch::heads::{self, ThreadHead};
use crate::dispatch::percpu::{self, PerCpu};
use crate::irqoff::IrqOffSpan;
use crate::mm::paging;
use crate::time;
use core::cell::UnsafeCell;
use core::fmt::Arguments;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};
pub use kcore::recorder::IN_A_PAUSE;
use kcore::recorder::{CpuState, Entry, Head, MAGIC, Mark, Name, Part, QueueState, Recorder, Ring, VERSION};

/// The least time that the other CPUs get to stop. On a busy host they get more, because [`STOP_LOOKS`] must have passed, too.
const STOP_NS: u64 = 200_000_000;
/// The least number of looks at the other CPUs before they are given up.
const STOP_LOOKS: u32 = 100_000;
/// Events of each CPU that a report shows: with few CPUs, and with many.
const SHOWN: usize = 16;
const SHOWN_OF_MANY: usize = 4;
const MANY_CPUS: usize = 8;
/// Lines of the log that a report shows.
const LOG_LINES: usize = 12;
/// Frames of a stopped CPU's backtrace.
const FRAMES: usize = 12;

/// The recorder, which `capos` finds by this name in the kernel's ELF file.
#[unsafe(no_mangle)]
pub static FLIGHT_RECORDER: Recorder = Recorder::new(Head {
    magic: MAGIC,
    version: VERSION,
    bytes: size_of::<Recorder>() as u64,
    phys_base: phys::PHYS_BASE,
    threads_base: paging::THREADS_BASE,
    thread_bytes: heads::RECORD_BYTES as u64,
    cpu_bytes: size_of::<PerCpu>() as u64,
    keeps_locks: cfg!(debug_assertions) as u64,
    parts: PARTS,
});

const PARTS: [u64; Part::COUNT] = {
    let mut parts = [0; Part::COUNT];
    parts[Part::Ring as usize] = (offset_of!(PerCpu, flight) + offset_of!(Flight, ring)) as u64;
    parts[Part::Current as usize] = offset_of!(PerCpu, current) as u64;
    parts[Part::InInterrupt as usize] = offset_of!(MachineCpu, in_interrupt) as u64;
    parts[Part::Held as usize] = offset_of!(MachineCpu, held) as u64;
    parts[Part::Armed as usize] = offset_of!(MachineCpu, armed_ns) as u64;
    parts[Part::Path as usize] = (offset_of!(MachineCpu, irq_off) + IrqOffSpan::PATH_OFFSET) as u64;
    parts[Part::Asked as usize] = offset_of!(MachineCpu, ipi) as u64;
    parts[Part::ApicId as usize] = offset_of!(MachineCpu, apic_id) as u64;
    parts
};
const _: () = assert!(align_of::<ThreadHead>() as u64 >= kcore::recorder::THREAD_ALIGN);
const _: () = assert!((heads::RECORD_BYTES as u64).is_multiple_of(kcore::recorder::THREAD_ALIGN));

/// The recorder's part of each CPU.
pub struct Flight {
    /// Its last events.
    pub ring: Ring,
    /// Whether the CPU was stopped; then `frame` says where.
    stopped: AtomicBool,
    frame: UnsafeCell<Option<Frame>>,
    /// What the watchdog has seen of the CPU.
    pub watch: crate::watchdog::Watch,
}

impl Flight {
    /// Nothing is recorded yet.
    pub const fn new() -> Flight {
        Flight {
            ring: Ring::new(),
            stopped: AtomicBool::new(false),
            frame: UnsafeCell::new(None),
            watch: crate::watchdog::Watch::new(),
        }
    }

    /// The registers of the CPU when it was stopped.
    fn frame(&self) -> Option<Frame> {
        if !self.stopped.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: written once, before `stopped` was set, by a CPU that does nothing else any more.
        unsafe { *self.frame.get() }
    }
}

/// Adds a CPU to the recorder.
pub fn add_cpu(cpu: &'static PerCpu) {
    FLIGHT_RECORDER.cpus[cpu.id].store(core::ptr::from_ref(cpu) as u64, Ordering::Relaxed);
}

/// Removes a CPU again: it did not start.
pub fn remove_cpu(id: usize) {
    FLIGHT_RECORDER.cpus[id].store(0, Ordering::Relaxed);
}

/// Notes the name of a thread that begins.
pub fn introduce(thread: &ThreadHead) {
    let pid = thread.pid.load(Ordering::Relaxed);
    FLIGHT_RECORDER.introduce(&Name { thread: thread.tid(), pid, name: thread.name.get().0 });
}

/// Records an event of this CPU.
#[inline(always)]
pub fn note(me: &PerCpu, now: u64, mark: Mark) {
    // A ring of fixed size (K-30).
    me.flight.ring.push(now, mark);
}

/// The event that `thread` runs here.
#[inline(always)]
pub fn runs(me: &PerCpu, now: u64, thread: &ThreadHead) {
    note(me, now, Mark::Run { thread: core::ptr::from_ref(thread) as u64 });
}

/// Whether output is kept. Not once the kernel fails: the report must not overwrite the output before it.
static KEEPS: AtomicBool = AtomicBool::new(true);

/// Keeps a byte of output. The caller holds the console's lock.
#[inline]
pub fn keep(byte: u8) {
    if KEEPS.load(Ordering::Relaxed) {
        FLIGHT_RECORDER.log.push(byte);
    }
}

/// Set when the kernel fails: a CPU that takes a non-maskable interrupt from now on stops for good. The entry's assembly reads it.
// SAFETY: nothing else has this name; the entry's assembly is below this layer (K-25).
#[unsafe(export_name = "kernel_stopping")]
pub static STOPPING: AtomicBool = AtomicBool::new(false);

/// Stops a CPU for good, in a non-maskable interrupt at any instruction, and leaves its registers for the report. It uses neither locks nor GS.
// SAFETY: as above.
#[unsafe(export_name = "kernel_stopped")]
pub extern "C" fn stopped(frame: &Frame, cpu: &'static PerCpu) -> ! {
    // SAFETY: nobody reads it before `stopped` is set, and a CPU stops only once: another NMI waits until this one returns, which it does not.
    unsafe { *cpu.flight.frame.get() = Some(*frame) };
    cpu.flight.stopped.store(true, Ordering::Release);
    cpu::halt()
}

/// Stops all other CPUs, whatever they do, and waits until they have.
pub fn stop_others() {
    STOPPING.store(true, Ordering::SeqCst);
    let me = percpu::this();
    let others = || percpu::all().filter(|cpu| cpu.id != me.id && cpu.online.load(Ordering::Acquire));
    others().for_each(|cpu| apic::send_nmi(cpu.apic_id));
    let (before, mut looks) = (time::now_ns(), 0);
    while others().any(|cpu| !cpu.flight.stopped.load(Ordering::Acquire)) {
        looks += 1;
        if looks > STOP_LOOKS && time::now_ns() - before > STOP_NS {
            break;
        }
        cpu::pause();
    }
}

/// The state of a CPU, from its record.
fn state(cpu: &PerCpu, now: u64) -> CpuState {
    // SAFETY: records of threads are never unmapped.
    let thread = unsafe { cpu.current.get().as_ref() };
    let armed_ns = cpu.armed_ns.load(core::sync::atomic::Ordering::Relaxed);
    CpuState {
        thread: thread.map(|thread| FLIGHT_RECORDER.name(thread.tid())),
        in_interrupt: cpu.in_interrupt.get(),
        held: cfg!(debug_assertions).then(|| cpu.held.ranks()),
        timer_ns: (armed_ns != u64::MAX).then(|| armed_ns.wrapping_sub(now) as i64),
        entry: Entry(cpu.irq_off.path()),
        asked: cpu.ipi.load(Ordering::Relaxed),
        queue: cpu
            .dispatch
            .queue
            .try_lock()
            .map_or(QueueState::Locked, |queue| QueueState::Waiting(queue.waiting())),
    }
}

struct Details(CpuState);

impl core::fmt::Display for Details {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.details(f)
    }
}

/// From here on output belongs to the report, and is not kept.
pub fn freeze() {
    KEEPS.store(false, Ordering::Relaxed);
}

/// Prints what is recorded. The other CPUs have stopped, or cannot be stopped.
pub fn report(out: &dyn Fn(Arguments<'_>)) {
    let (me, now) = (percpu::this(), time::now_ns());
    let shown = if percpu::count() > MANY_CPUS { SHOWN_OF_MANY } else { SHOWN };
    for cpu in percpu::all() {
        let state = state(cpu, now);
        out(format_args!("CPU {}: {state}", cpu.id));
        out(format_args!("  {}", Details(state)));
        match cpu.flight.frame() {
            _ if cpu.id == me.id => {}
            None => out(format_args!("  does not answer: no registers")),
            Some(frame) => show_frame(&frame, out),
        }
        for (time_ns, mark) in cpu.flight.ring.last(shown) {
            let ago_ns = now.saturating_sub(time_ns);
            out(format_args!("  {ago_ns:>13} ns ago: {}", FLIGHT_RECORDER.show(mark)));
        }
    }
    out(format_args!("the last lines of the log:"));
    let mut line = Line { bytes: [0; 90], used: 0 };
    FLIGHT_RECORDER.log.tail(LOG_LINES, |byte| {
        if byte == b'\n' || line.used == line.bytes.len() {
            line.print(out);
        }
        if byte != b'\n' {
            line.bytes[line.used] = if byte.is_ascii_graphic() { byte } else { b' ' };
            line.used += 1;
        }
    });
    line.print(out);
}

struct Line {
    bytes: [u8; 90],
    used: usize,
}

impl Line {
    fn print(&mut self, out: &dyn Fn(Arguments<'_>)) {
        if self.used > 0 {
            out(format_args!("| {}", core::str::from_utf8(&self.bytes[..self.used]).unwrap_or("")));
        }
        self.used = 0;
    }
}

fn show_frame(frame: &Frame, out: &dyn Fn(Arguments<'_>)) {
    let Frame { rip, rsp, rflags, .. } = frame;
    let off = if rflags & cpu::FLAG_IF == 0 { "off" } else { "on" };
    if frame.cs & 3 != 0 {
        return out(format_args!("  in user mode: rip {rip:#x} rsp {rsp:#x} rflags {rflags:#x}"));
    }
    out(format_args!("  rip {rip:#x} rsp {rsp:#x} rflags {rflags:#x}, interrupts {off}"));
    crate::panic::backtrace(frame.regs[8], Some(*rip), FRAMES, &|line| out(format_args!("  {line}")));
}
