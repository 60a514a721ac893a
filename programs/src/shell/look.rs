//! Commands that show what the kernel reports about itself.

use alloc::string::String;
use alloc::vec::Vec;

use edit::time::Short;
use rt::abi::{Interface, rights};
use rt::{
    ContextListing, ProcessHandle, ProcessInfo, ProcessState, Result, Spec, SystemInfo, ThreadInfo,
    ThreadState, caps as capabilities, println,
};

use super::commands::none;
use super::{CommandResult, Shell};
use crate::proof::Failure;
use crate::text::{Bar, Colour, Count, Mib, Percent, Seconds, Tinted, cut, permille};

/// The capability by which the kernel is asked.
pub(super) fn system() -> Result<SystemInfo> {
    capabilities::any()
}

/// The name of process `pid`.
pub(super) fn name_of(processes: &[ProcessInfo], pid: u32) -> &str {
    processes.iter().find(|process| process.pid == pid).map_or("?", |process| &process.name)
}

/// The name of a scheduling class.
fn class_name(class: u16) -> &'static str {
    rt::LatencyClass::from_raw(class.into()).map_or("?", rt::LatencyClass::name)
}

/// How a thread is scheduled: the budget that it runs on, or its class if it has none.
pub(super) fn share_name(contexts: &[ContextListing], thread: &ThreadInfo) -> String {
    let mine = |listing: &&ContextListing| listing.holder() == Some((thread.pid, thread.tid));
    match contexts.iter().find(mine) {
        Some(listing) => budget_name(&listing.info.spec),
        None => class_name(thread.class).into(),
    }
}

/// A budget as text, such as `2ms/10ms`.
fn budget_name(spec: &Spec) -> String {
    alloc::format!("{}/{}", Short(spec.budget_ns), Short(spec.period_ns))
}

/// The word for a thread's state.
pub(super) fn state_name(state: ThreadState) -> &'static str {
    match state {
        ThreadState::Starting => "starting",
        ThreadState::Ready => "ready",
        ThreadState::Running => "running",
        ThreadState::Blocked => "waits",
        ThreadState::Exited => "exited",
        ThreadState::Throttled => "throttled",
    }
}

/// A row of a table of threads, in colour if the thread is throttled and not merely waiting for a CPU.
pub(super) fn tinted(row: &str) -> Tinted<&str> {
    let is_throttled = row.contains(" throttled ");
    Tinted { colour: is_throttled.then_some(Colour::Waits), text: row }
}

/// The command `ps`.
pub(super) fn ps(_: &mut Shell, arguments: &[String]) -> CommandResult {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => processes(),
        ["-t"] => threads(),
        [word, ..] => Err(Failure::new(format_args!("does not know `{word}`; `ps` or `ps -t`"))),
    }
}

/// Brings the CPU times up to date: the kernel charges a thread when something happens on its CPU, at the latest when the
/// CPUs are listed.
fn charge(system: &SystemInfo) -> Result<()> {
    system.cpus().map(drop)
}

fn processes() -> CommandResult {
    let system = system()?;
    charge(&system)?;
    println!(
        "{:>5} {:>6} {:24} {:8} {:>4} {:>9} {:>8} {:>4} {:>3}",
        "PID", "PARENT", "NAME", "STATE", "THR", "CPU-s", "KiB", "CAPS", "SES"
    );
    let processes = system.processes()?;
    let is_there = |pid: u32| pid == 0 || processes.iter().any(|process| process.pid == pid);
    for process in &processes {
        let state = match process.state {
            ProcessState::Starting => "starting",
            ProcessState::Running => "running",
            ProcessState::Exiting => "exiting",
            ProcessState::Exited => "exited",
        };
        println!(
            "{:5} {:>6} {:24} {state:8} {:4} {:9} {:8} {:4} {:3}",
            process.pid,
            // A process whose parent is gone belongs to its session alone.
            if is_there(process.parent) { alloc::format!("{}", process.parent) } else { "-".into() },
            process.name,
            process.threads,
            Seconds(process.runtime_ns),
            process.frames * 4,
            process.caps,
            process.session
        );
    }
    Ok(())
}

fn threads() -> CommandResult {
    let system = system()?;
    charge(&system)?;
    let processes = system.processes()?;
    let contexts = system.contexts()?;
    println!(
        "{:>4} {:>4} {:10} {:9} {:>3} {:>4} {:11} {:>7} {:>6} {:>6} {:>5}",
        "PID", "TID", "NAME", "STATE", "CPU", "WGHT", "CLASS/BDGT", "CPU-s", "WAIT-s", "THRT-s", "SWTCH"
    );
    for thread in system.threads()? {
        let row = alloc::format!(
            "{:4} {:4} {:10} {:9} {:3} {:4} {:11} {:7} {:6} {:6} {:5}",
            thread.pid,
            thread.tid,
            cut(name_of(&processes, thread.pid), 10),
            state_name(thread.state),
            thread.cpu,
            thread.weight,
            share_name(&contexts, &thread),
            Seconds(thread.runtime_ns),
            Seconds(thread.runnable_ns),
            Seconds(thread.throttled_ns),
            thread.switches
        );
        println!("{}", tinted(&row));
    }
    Ok(())
}

/// The command `ctx`.
pub(super) fn contexts(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    let system = system()?;
    charge(&system)?;
    let mut contexts = system.contexts()?;
    // A context without a budget is only the right to create contexts, or the rest of a revoked one.
    contexts.retain(|listing| listing.info.spec.budget_ns > 0);
    if contexts.is_empty() {
        println!("nobody has CPU time of their own; `run --budget 2ms/10ms program` gives some");
        return Ok(());
    }
    let processes = system.processes()?;
    println!(
        "{:6} {:12} {:10} {:8} {:>3} {:>8} {:>8} {:>8} LENT TO",
        "ID.GEN", "THREAD", "BUDGET", "OVERRUN", "CPU", "USED-s", "LEFT", "DEPLETED"
    );
    for ContextListing { info, bound, lent_to } in contexts {
        let number = |thread: Option<(u32, u32)>| match thread {
            Some((pid, tid)) => alloc::format!("{pid}.{tid}"),
            None => String::from("-"),
        };
        let mut thread = number(bound);
        if let Some((pid, _)) = bound {
            thread = alloc::format!("{thread} {}", name_of(&processes, pid));
        }
        println!(
            "{:6} {:12} {:10} {:8} {:3} {:8} {:>8} {:8} {}",
            alloc::format!("{}.{}", info.id, info.generation),
            cut(&thread, 12),
            budget_name(&info.spec),
            info.spec.overrun.name(),
            info.home,
            Seconds(info.consumed_ns),
            alloc::format!("{}", Short(info.remaining_ns)),
            info.depletions,
            number(lent_to)
        );
    }
    Ok(())
}

/// The command `mem`.
pub(super) fn mem(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    let machine = system()?.machine(0)?;
    let used = machine.frames.saturating_sub(machine.free_frames);
    let share = permille(used, machine.frames);
    println!("frames of 4 KiB: {} of {} free", machine.free_frames, machine.frames);
    println!(
        "[{}] {} % used: {} MiB; free: {} MiB",
        Bar { permille: share, width: 40 },
        Percent(share),
        Mib(used),
        Mib(machine.free_frames)
    );
    println!(
        "a thread costs {} bytes of kernel memory, a process {}, a ring {}",
        machine.bytes_per_thread, machine.bytes_per_process, machine.bytes_per_ring
    );
    let (used, mapped) = rt::heap_bytes();
    println!("this shell uses {used} of {mapped} bytes of heap; `ps` shows what each process has");
    Ok(())
}

/// The command `caps`.
pub(super) fn caps(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    println!("{:24} {:17} {:>9}  MAY", "NAME", "INTERFACE", "NUMBER");
    for entry in capabilities::granted() {
        let interface = Interface::from_raw(entry.interface).map_or("?", Interface::name);
        let all = [
            (rights::CALL, "call"),
            (rights::RECV, "recv"),
            (rights::GRANT, "grant"),
            (rights::REVOKE, "revoke"),
            (rights::WRITE, "write"),
        ];
        let held: Vec<&str> =
            all.iter().filter(|(right, _)| entry.rights & right != 0).map(|(_, name)| *name).collect();
        println!(
            "{:24} {interface:17} {:>5}:{:<3}  {}",
            capabilities::name_of(entry),
            entry.cap.index(),
            entry.cap.generation(),
            held.join(" ")
        );
    }
    if let Ok(this) = capabilities::get::<ProcessHandle>("self") {
        let all = this.info()?.caps as usize;
        println!(
            "{} granted at the start, {} made since",
            capabilities::granted().len(),
            all.saturating_sub(capabilities::granted().len())
        );
    }
    Ok(())
}

/// The command `cpus`.
pub(super) fn cpus(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    println!(
        "{:>3} {:>4} {:7} {:>6} {:>6} {:>6} {:>7} {:>10} {:>7} {:>6}",
        "CPU", "APIC", "STATE", "BUSY%", "IDLE%", "INTR%", "NOBODY%", "SWITCHES", "STEALS", "QUEUED"
    );
    for cpu in system()?.cpus()? {
        let whole = cpu.busy_ns + cpu.idle_ns + cpu.interrupt_ns;
        let share = |part| Percent(permille(part, whole));
        println!(
            "{:3} {:4} {:7} {:6} {:6} {:6} {:7} {:10} {:7} {:6}",
            cpu.id,
            cpu.apic_id,
            if cpu.is_online { "online" } else { "offline" },
            share(cpu.busy_ns),
            share(cpu.idle_ns),
            share(cpu.interrupt_ns),
            share(cpu.interrupt_ns - cpu.interrupt_owned_ns),
            cpu.switches,
            cpu.steals,
            cpu.queued
        );
    }
    Ok(())
}

/// The command `counters`.
pub(super) fn counters(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    for counter in system()?.counters()? {
        println!("{:32} {:>12}", counter.name, counter.value);
    }
    Ok(())
}

/// The command `uptime`.
pub(super) fn uptime(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    let machine = system()?.machine(0)?;
    println!(
        "up {} s: {} on {}, policy {}",
        Seconds(machine.uptime_ns),
        machine.kernel_version,
        Count(machine.cpus.into(), "CPU"),
        machine.policy
    );
    println!("clock {}, timer {}, ring ABI {}", machine.clock, machine.timer, machine.ring_abi_version);
    Ok(())
}
