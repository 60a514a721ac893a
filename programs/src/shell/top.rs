//! The command `top`: a picture of the machine once a second.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use rt::{ContextListing, CpuInfo, Machine, ProcessInfo, ThreadInfo, print};

use super::look::{name_of, share_name, state_name, system, tinted};
use super::{CommandResult, Shell};
use crate::proof::Failure;
use crate::text::{Bar, Mib, Percent, Seconds, cut, permille};

/// The time between two pictures.
const PERIOD_NS: u64 = 1_000_000_000;
/// The first picture covers a shorter time, so that it appears soon.
const FIRST_NS: u64 = 200_000_000;
/// Lines and columns of the terminal.
const LINES: usize = 24;
const COLUMNS: usize = 80;
/// Lines for CPUs; with more CPUs than that, several share a line.
const CPU_LINES: usize = 8;
/// How many CPUs are shown at most.
const CPUS_MAX: usize = 64;

/// A reading of everything that is shown, at one moment.
struct Sample {
    machine: Machine,
    cpus: Vec<CpuInfo>,
    processes: Vec<ProcessInfo>,
    threads: Vec<ThreadInfo>,
    contexts: Vec<ContextListing>,
}

impl Sample {
    fn take() -> rt::Result<Sample> {
        let system = system()?;
        let cpus = system.cpus()?;
        let machine = system.machine(0)?;
        Ok(Sample {
            machine,
            cpus,
            threads: system.threads()?,
            processes: system.processes()?,
            contexts: system.contexts()?,
        })
    }
}

/// The command `top`.
pub(super) fn top(shell: &mut Shell, arguments: &[String]) -> CommandResult {
    let (mut by_process, mut times) = (false, u64::MAX);
    for word in arguments {
        match word.parse() {
            Ok(0) => return Err(Failure::new("0 pictures are none; `top 5` shows five")),
            Ok(number) => times = number,
            Err(_) if word == "-p" => by_process = true,
            _ => {
                return Err(Failure::new(format_args!("does not know `{word}`; `top`, `top -p`, `top 5`")));
            }
        }
    }
    let mut before = Sample::take()?;
    let mut period_ns = FIRST_NS;
    let mut picture = String::from("\x1b[2J");
    for _ in 0..times {
        if shell.input.listen_for(period_ns)? {
            break;
        }
        let now = Sample::take()?;
        picture.push_str("\x1b[H");
        for line in draw(&before, &now, by_process).iter().take(LINES - 1) {
            // Writing to a string does not fail.
            let _ = write!(picture, "{}\x1b[K\r\n", tinted(cut(line, COLUMNS - 1)));
        }
        picture.push_str("\x1b[J");
        shell.input.write(&picture)?;
        picture.clear();
        (before, period_ns) = (now, PERIOD_NS);
    }
    // The key that ends the command is no part of the next line.
    shell.input.clear();
    print!("\r\x1b[K");
    Ok(())
}

fn draw(before: &Sample, now: &Sample, by_process: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let machine = &now.machine;
    let took_ns = machine.uptime_ns.saturating_sub(before.machine.uptime_ns);
    lines.push(format(format_args!(
        "up {} s  {} processes  {} threads  {} of {} MiB free  any key leaves",
        Seconds(machine.uptime_ns),
        now.processes.len(),
        now.threads.len(),
        Mib(machine.free_frames),
        Mib(machine.frames)
    )));
    draw_cpus(before, now, &mut lines);
    lines.push(String::new());
    let room = (LINES - 2).saturating_sub(lines.len());
    let count = if by_process {
        draw_processes(before, now, took_ns, &mut lines);
        now.processes.len()
    } else {
        draw_threads(before, now, took_ns, &mut lines);
        now.threads.len()
    };
    if count > room {
        lines.truncate(LINES - 2);
        lines.push(format(format_args!("and {} more", count + 1 - room)));
    }
    lines
}

fn format(text: core::fmt::Arguments<'_>) -> String {
    alloc::fmt::format(text)
}

fn draw_cpus(before: &Sample, now: &Sample, lines: &mut Vec<String>) {
    let mut cells = Vec::new();
    let count = now.cpus.len().min(CPUS_MAX);
    let columns = count.div_ceil(CPU_LINES).max(1);
    let width = (COLUMNS - 1) / columns;
    for cpu in now.cpus.iter().take(CPUS_MAX) {
        let old = before.cpus.iter().find(|old| old.id == cpu.id).unwrap_or(cpu);
        let busy = (cpu.busy_ns + cpu.interrupt_ns).saturating_sub(old.busy_ns + old.interrupt_ns);
        let idle = cpu.idle_ns.saturating_sub(old.idle_ns);
        let share = permille(busy, busy + idle);
        let mut cell = format(format_args!("{:3} ", cpu.id));
        // The width that a CPU has in a line decides how much is shown about it.
        let wide = match columns {
            1 => 24,
            2.. => width.saturating_sub(4 + 6),
            0 => 0,
        };
        if wide >= 4 {
            let _ = write!(cell, "{} ", Bar { permille: share, width: wide - 1 });
        }
        if columns == 1 {
            let interrupts = permille(cpu.interrupt_ns.saturating_sub(old.interrupt_ns), busy + idle);
            let switches = cpu.switches.saturating_sub(old.switches);
            let (busy, idle) = (Percent(share.saturating_sub(interrupts)), Percent(1000 - share));
            let interrupts = Percent(interrupts);
            let _ = write!(cell, "{busy:5}% busy {idle:5}% idle {interrupts:5}% intr {switches:6} switches");
        } else {
            let _ = write!(cell, "{:>3}%", (share + 5) / 10);
        }
        cells.push(cell);
    }
    for row in cells.chunks(columns) {
        let mut line = String::new();
        for cell in row {
            let _ = write!(line, "{cell:width$}");
        }
        lines.push(line);
    }
    if now.cpus.len() > CPUS_MAX {
        lines.push(format(format_args!("and {} more CPUs", now.cpus.len() - CPUS_MAX)));
    }
}

fn draw_threads(before: &Sample, now: &Sample, took_ns: u64, lines: &mut Vec<String>) {
    let key = |thread: &ThreadInfo| (thread.pid, thread.tid, thread.generation);
    let old: BTreeMap<_, &ThreadInfo> = before.threads.iter().map(|thread| (key(thread), thread)).collect();
    let mut rows: Vec<_> = now
        .threads
        .iter()
        .map(|thread| {
            let old = old.get(&key(thread));
            let ran_ns = thread.runtime_ns.saturating_sub(old.map_or(0, |old| old.runtime_ns));
            let waited_ns = thread.runnable_ns.saturating_sub(old.map_or(0, |old| old.runnable_ns));
            let throttled_ns = thread.throttled_ns.saturating_sub(old.map_or(0, |old| old.throttled_ns));
            let switches = thread.switches.saturating_sub(old.map_or(0, |old| old.switches));
            // Threads are read one after the other, a little after the clock.
            let share = |part_ns: u64| permille(part_ns.min(took_ns), took_ns);
            ([ran_ns, waited_ns, throttled_ns].map(share), switches, thread)
        })
        .collect();
    rows.sort_by_key(|([ran, ..], switches, thread)| (u64::MAX - ran, u64::MAX - switches, key(thread)));
    lines.push(format(format_args!(
        "{:>4} {:>4} {:10} {:9} {:>3} {:>4} {:11} {:>5} {:>5} {:>5} {:>5} {:>3}",
        "PID", "TID", "NAME", "STATE", "CPU", "WGHT", "CLASS/BDGT", "%CPU", "%WAIT", "%THRT", "SWTCH", "MOV"
    )));
    for (shares, switches, thread) in rows.iter().take(LINES) {
        let [ran, waited, throttled] = shares.map(Percent);
        lines.push(format(format_args!(
            "{:4} {:4} {:10} {:9} {:3} {:4} {:11} {ran:5} {waited:5} {throttled:5} {switches:5} {:3}",
            thread.pid,
            thread.tid,
            cut(name_of(&now.processes, thread.pid), 10),
            state_name(thread.state),
            thread.cpu,
            thread.weight,
            share_name(&now.contexts, thread),
            thread.migrations
        )));
    }
}

/// The sums over the threads of a process.
#[derive(Default)]
struct Sum {
    switches: u64,
    migrations: u64,
}

fn sums(sample: &Sample) -> BTreeMap<u32, Sum> {
    let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
    for thread in &sample.threads {
        let sum = sums.entry(thread.pid).or_default();
        sum.switches += thread.switches;
        sum.migrations += thread.migrations;
    }
    sums
}

fn draw_processes(before: &Sample, now: &Sample, took_ns: u64, lines: &mut Vec<String>) {
    let (old_sums, new_sums) = (sums(before), sums(now));
    let mut rows: Vec<_> = now
        .processes
        .iter()
        .map(|process| {
            let is_same = |old: &&ProcessInfo| (old.pid, old.generation) == (process.pid, process.generation);
            let old = before.processes.iter().find(is_same);
            let ran_ns = process.runtime_ns.saturating_sub(old.map_or(0, |old| old.runtime_ns));
            (permille(ran_ns, took_ns), process)
        })
        .collect();
    rows.sort_by_key(|(share, process)| (u64::MAX - share, process.pid));
    lines.push(format(format_args!(
        "{:>5} {:24} {:>7} {:>7} {:>9} {:>8} {:>7} {:>5}",
        "PID", "NAME", "THREADS", "%CPU", "CPU-s", "KiB", "SWITCH", "MOVE"
    )));
    for (share, process) in rows.iter().take(LINES) {
        let new = new_sums.get(&process.pid);
        let old = old_sums.get(&process.pid).map_or(0, |sum| sum.switches);
        lines.push(format(format_args!(
            "{:5} {:24} {:7} {:7} {:9} {:8} {:7} {:5}",
            process.pid,
            process.name,
            process.threads,
            Percent(*share),
            Seconds(process.runtime_ns),
            process.frames * 4,
            new.map_or(0, |sum| sum.switches.saturating_sub(old)),
            new.map_or(0, |sum| sum.migrations)
        )));
    }
}
