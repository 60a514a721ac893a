//! The capOS kernel. `docs/kernel.md` is the map. Start reading here; then `syscall`, `ring` and `ops` for what programs ask, `dispatch` for who
//! runs.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod bootinfo;
mod clock;
mod console;
mod context;
mod counters;
mod deferred_work;
mod dispatch;
mod endpoint;
mod event;
mod hook;
mod image;
mod interrupt;
mod irqoff;
mod lock;
mod log;
mod measure;
mod methods;
mod mm;
mod name;
mod object;
mod ops;
mod panic;
mod park;
mod patience;
mod planted;
mod policy;
mod power;
mod preempt;
mod process;
mod queue;
mod recorder;
mod ring;
mod selftest;
mod session;
mod spawn;
mod syscall;
mod sysinfo;
mod thread;
mod time;
mod timers;
mod tracing;
mod watchdog;

use ::sched::{CpuIds, Policy as _};
use arch::boot::{self, Loader};
use arch::smp::{NewCpu, Start};
use arch::{acpi, apic, features, pit, segments, serial, smp};
use core::sync::atomic::Ordering;
use dispatch::percpu;
use mm::stacks::Stack;
use mm::{frames, paging};
use thread::Thread;

/// The first process; known before there is one, because that one may end on another CPU before whoever made it is told.
const INIT_PID: u32 = 1;

/// The entry from the machine's boot code.
// SAFETY: nothing else has this name; the boot code calls it by name, because it is below all the layers that this file puts together (K-25).
#[unsafe(export_name = "kernel_start")]
extern "C" fn start(info: u32, loader: u32) -> ! {
    start_bsp(info, loader)
}

/// The first Rust code of the boot CPU, on the boot stack.
#[inline(never)]
fn start_bsp(info: u32, loader: u32) -> ! {
    serial::init();
    log::hand_down(recorder::keep);
    pit::mask_pic();
    let loader = if loader == Loader::Pvh as u32 { Loader::Pvh } else { Loader::Multiboot2 };
    let boot = bootinfo::parse(loader, info.into());
    println!("capOS {} boots ({loader:?})", env!("CARGO_PKG_VERSION"));
    #[cfg(feature = "planted-path")]
    println!("built in {}", env!("CARGO_MANIFEST_DIR"));
    if let Some(bug) = boot.options.bug {
        planted::plant(bug);
    }
    dispatch::set_policy(boot.options.policy);
    if boot.options.overload {
        dispatch::take_overload();
    }
    frames::init(&boot.memory);
    boot::guard_stack();
    paging::init(boot.top);
    let idle_stack = Stack::allocate().expect("memory for the first stack");
    // The APIC's own number can be read only when the APIC is on, and the first record is made before that.
    let apic_id = arch::cpu::cpuid(1, 0)[1] >> 24;
    let me = context::leaving::make_cpu(0, apic_id, idle_stack);
    // SAFETY: once, on the boot CPU, with its own record.
    unsafe {
        percpu::install(me);
        segments::fill_idt();
        segments::load(me);
    }
    lock::begin_checks();
    let protection = features::enable();
    println!(
        "cpu: smep={} smap={} umip={} nx=true w^x=true xsave={} avx={}",
        protection.smep,
        protection.smap,
        protection.umip,
        features::HAS_XSAVE.load(Ordering::Relaxed),
        features::HAS_AVX.load(Ordering::Relaxed),
    );
    image::init(boot.module);
    hand_down();
    if boot.options.panic {
        panic!("asked for on the command line");
    }
    start_machine(&boot);
    if boot.options.alloc_fail {
        mm::plant::allow();
    }
    if boot.options.end_lease {
        ring::allow_ending_leases();
    }
    watchdog::begin(boot.options.watchdog, boot.options.plant);
    if let Some(events) = boot.options.trace {
        tracing::begin(events);
    }
    let manifest = image::manifest();
    println!("boot: manifest {} ({})", manifest.name(), manifest.source());
    // Printed before there is a first process, so that it does not stand among the output of programs.
    println!("sched: idle cpu=0 idle_path=cooperative-cpl0");
    dispatch::programs_speak();
    match spawn::boot(&manifest) {
        Ok(init) => assert!(init.pid == INIT_PID, "init is the first process"),
        Err(why) => {
            println!("boot: init does not start: {why}");
            power::off(1)
        }
    }
    dispatch::enter_idle(me)
}

/// Hands down what lower layers call of higher ones (K-25), while this is the only CPU: the others read it without a lock.
fn hand_down() {
    mm::asker::hand_down(thread::asker);
    panic::hand_down(image::symbol);
    process::hand_down(boot_process_ended);
    timers::hand_down(park::timed_out);
    dispatch::hand_down(&dispatch::Above {
        complete_bind: |head| context::complete_bind(Thread::of(head)),
        fault: |head| context::faults::fault(Thread::of(head)),
        deliver: |head| context::deliver(Thread::of(head)),
        post: context::notify::post,
        reap: |head, token| process::reap(Thread::of(head), token),
    });
    preempt::hand_down(interrupt::serve_and_yield, interrupt::serve_and_yield_once);
    hook::seal();
}

/// Starts the clock, interrupts and the other CPUs.
fn start_machine(boot: &bootinfo::BootInfo) {
    let rsdp = boot.rsdp.or_else(acpi::search_rsdp);
    let platform = rsdp.and_then(acpi::read).unwrap_or_default();
    let with_apic = apic::exists();
    if with_apic {
        apic::map_registers(paging::map_device);
        apic::init();
    }
    let calibration = clock::calibrate(boot.options.pit, boot.options.no_calibration);
    dispatch::restart();
    event::choose(calibration.apic_hz);
    println!(
        "time: clock by {} ({} kHz), events by {:?} ({} kHz)",
        clock::source(),
        calibration.tsc_hz.unwrap_or(0) / 1000,
        event::source(),
        calibration.apic_hz.unwrap_or(0) / 1000,
    );
    println!("memory: {} MiB, {} frames free", boot.top >> 20, frames::free_count());
    let me = percpu::this();
    me.online.store(true, Ordering::Release);
    event::start(me);
    selftest::run();
    let (in_ns, out_ns) = dispatch::measure_ways();
    println!("interrupts: {in_ns} ns on the way in and {out_ns} ns on the way out are counted with them");
    console::init();
    serial::enable_receive_interrupt();
    route_serial(&platform, with_apic);
    let limit = boot.options.max_cpus.unwrap_or(::sched::MAX_CPUS).max(1);
    let mut ids = platform.cpus;
    if let Some(us) = boot.options.turns_us {
        take_turns(us, &mut ids);
    }
    ids.truncate(limit);
    let started = if with_apic { start_others(&ids, boot.options.late_cpu) } else { 0 };
    let count = percpu::count();
    if boot.options.turns_us.is_some() {
        irqoff::share_clock(count);
        dispatch::share_ways(count);
    }
    dispatch::set_topology(topology(&platform.nodes));
    park::init();
    println!(
        "smp: {count} CPU{} online ({started} started), {}, tsc in step: {}, policy {}",
        plural(count),
        apic::mode(),
        clock::in_step(),
        dispatch::policy().name()
    );
}

/// Starts the other CPUs; at boot (K-30). Says how many have started.
fn start_others(apic_ids: &[u32], is_first_late: bool) -> usize {
    let make = |apic_id: u32| {
        let stack = Stack::allocate()?;
        let stack_top = stack.top();
        let record = context::leaving::make_cpu(percpu::count(), apic_id, stack);
        assert!(boot::is_stack_whole(), "the stack of the boot is too small");
        // The CPU begins on the stack of its idle loop.
        Some(NewCpu { record, stack_top })
    };
    let (root, give_up, run) = (paging::kernel_root(), recorder::remove_cpu, dispatch::idle_loop);
    let start = Start { root, make, give_up, run, is_first_late };
    smp::start_others(apic_ids, alloc::boxed::Box::leak(alloc::boxed::Box::new(start)))
}

/// An emulator that counts instructions runs its CPUs one after the other, each until the next timer of the machine. With a timer that fires often,
/// and that nobody listens to, no CPU runs for long while the others stand still. Only every second CPU is used, so that each runs after one that
/// has nothing to do: QEMU 7.2 gives all the time up to a timer to one CPU, and the next one gets nothing.
fn take_turns(us: u64, ids: &mut alloc::vec::Vec<u32>) {
    pit::speaker_on();
    let mut is_odd = true;
    ids.retain(|_| {
        is_odd = !is_odd;
        !is_odd
    });
    println!("smp: CPUs take turns of {us} us; every second one is left alone");
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Which CPUs share cores, caches and memory. CPUID of the boot CPU says what the bits of an APIC number mean, ACPI's SRAT which memory is near. At
/// boot (K-30).
fn topology(nodes: &[(u32, u32)]) -> ::sched::Topology {
    let shifts = kcore::topology::shifts(arch::cpu::cpuid);
    let place = |with_nodes: bool| -> alloc::vec::Vec<CpuIds> {
        let place_of = |cpu: &percpu::PerCpu| {
            let id = cpu.apic_id;
            let near = nodes.iter().find(|(known, _)| with_nodes && *known == id);
            CpuIds {
                // Without SRAT all CPUs have the same memory.
                node: near.map_or(0, |(_, node)| *node),
                cache: id >> shifts.cache,
                core: id >> shifts.core,
            }
        };
        percpu::all().map(place_of).collect()
    };
    let mut ids = place(true);
    let found = ::sched::Topology::new(&ids).or_else(|error| {
        println!("topology: SRAT and CPUID contradict each other ({error}); SRAT is left out");
        ids = place(false);
        ::sched::Topology::new(&ids)
    });
    let count = percpu::count();
    let found = found.unwrap_or_else(|error| {
        println!("topology: CPUID contradicts itself ({error}); taken as {count} cores with one cache");
        ::sched::Topology::flat(count).expect("there are CPUs, and not too many")
    });
    let groups = |key: fn(&CpuIds) -> u32| {
        (0..ids.len()).filter(|at| ids[..*at].iter().all(|before| key(before) != key(&ids[*at]))).count()
    };
    let (cores, caches) = (groups(|ids| ids.core), groups(|ids| ids.cache));
    let memories = groups(|ids| ids.node);
    println!(
        "topology: {count} CPU{}, {cores} core{}, {caches} cache{}, {memories} memory node{}, by CPUID leaf {:#x}{}",
        plural(count),
        plural(cores),
        plural(caches),
        plural(memories),
        shifts.leaf,
        if nodes.is_empty() { "" } else { " and SRAT" },
    );
    found
}

/// Routes the interrupt of serial input to the boot CPU: by the IO APIC, if there is one and the local timers work. Otherwise the line is polled.
fn route_serial(platform: &acpi::Platform, with_apic: bool) {
    const LINE: u8 = 4;
    let Some((io_apic, base)) =
        platform.io_apic.filter(|_| with_apic && event::source() == event::Source::Apic)
    else {
        // The PIT's tick polls the serial line.
        return;
    };
    let found = platform.overrides.iter().find(|(line, ..)| *line == LINE);
    let (gsi, flags) = found.map_or((u32::from(LINE), 0), |(_, gsi, flags)| (*gsi, *flags));
    let (low, level) = (flags & 3 == 3, flags >> 2 & 3 == 3);
    let registers = paging::map_device(io_apic, apic::REGISTER_BYTES);
    let target = percpu::this().apic_id;
    // SAFETY: ACPI says that an IO APIC is there.
    unsafe { apic::route(registers, base, gsi, arch::entry::VECTOR_SERIAL, target, level, low) };
}

/// A process has ended. If it is `init`, the run is over.
fn boot_process_ended(pid: u32, code: i64) {
    if pid == INIT_PID {
        println!("boot: init ended with {code}; powering off");
        power::off(u8::try_from(code).unwrap_or(1));
    }
}
