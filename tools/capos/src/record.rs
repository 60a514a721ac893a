//! The flight record of a machine that hangs or has reset itself (K-27): what its memory and its registers tell about its last
//! moments.
//!
//! The kernel's ELF file tells where the record is, `kcore::recorder` how to read it. QEMU reads memory and registers.

use std::collections::BTreeMap;
use std::path::Path;

use image::Symbols;
use kcore::rank::HeldRanks;
use kcore::recorder::{CpuState, Entry, Head, Part, QueueState, RING_WORDS, Recorder, Ring, SYMBOL};
use object::{Object, ObjectSymbol};
use serde_json::json;
use std::sync::atomic::Ordering;

use crate::Problem;
use crate::monitor::Monitor;
use crate::place::cannot;
use crate::symbols;

/// The image lies this much above where it is loaded: `kernel/kernel.ld`.
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// How many events of each CPU are shown with few CPUs, and with many.
const SHOWN: usize = 24;
const SHOWN_OF_MANY: usize = 6;
const MANY_CPUS: usize = 8;
/// How many lines of the log are shown.
const LOG_LINES: usize = 20;
/// The most bytes of a stack that are read.
const STACK_BYTES: u64 = 8192;
/// Frames of a backtrace.
const FRAMES: usize = 16;
/// What every line begins with.
pub const PREFIX: &str = "record: ";

/// Stops the machine, and returns lines about what it did last; none if the kernel has no recorder.
///
/// # Errors
/// When QEMU does not answer, or there is no record in its memory.
pub fn take(monitor: &mut Monitor, kernel: &Path) -> Result<Vec<String>, Problem> {
    let elf = std::fs::read(kernel).map_err(|error| cannot("read", kernel, &error))?;
    let Some((address, bytes)) = place(&elf) else { return Ok(Vec::new()) };
    let names = symbols::table(&elf)?;
    let symbols = Symbols::parse(&names).ok();
    monitor.ask("stop", &json!({}))?;
    let memory = physical(monitor, address.wrapping_sub(KERNEL_BASE), bytes)?;
    let record = Recorder::from_bytes(&memory).map_err(|error| Problem(error.to_string()))?;
    let registers = registers(&monitor.say("info registers -a")?);
    let mut cpus = Vec::new();
    for address in record.cpus.iter().map(|cpu| cpu.load(Ordering::Relaxed)).filter(|address| *address != 0) {
        let at = address.wrapping_sub(record.head.phys_base);
        let memory = physical(monitor, at, record.head.cpu_bytes)?;
        let mut cpu = Cpu::new(&record, &memory)?;
        if let Some(found) = registers.get(&cpu.apic_id) {
            cpu.registers = Some(*found);
            cpu.stack = stack(monitor, cpu.apic_id, found.rsp);
        }
        cpus.push(cpu);
    }
    Ok(show(&record, &cpus, symbols.as_ref()))
}

/// Where the kernel has its record, and how long it is.
fn place(elf: &[u8]) -> Option<(u64, u64)> {
    let file = object::File::parse(elf).ok()?;
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(SYMBOL))?;
    Some((symbol.address(), symbol.size()))
}

fn saved(monitor: &mut Monitor, command: &str, mut arguments: serde_json::Value) -> Result<Vec<u8>, Problem> {
    let file = monitor.folder().join("memory");
    arguments["filename"] = json!(file.to_string_lossy());
    monitor.ask(command, &arguments)?;
    let bytes = std::fs::read(&file).map_err(|error| cannot("read the memory in", &file, &error));
    let _ = std::fs::remove_file(&file);
    bytes
}

/// Memory by its physical address.
fn physical(monitor: &mut Monitor, address: u64, bytes: u64) -> Result<Vec<u8>, Problem> {
    saved(monitor, "pmemsave", json!({"val": address, "size": bytes}))
}

/// The words above the stack pointer, as far as they are mapped.
fn stack(monitor: &mut Monitor, cpu: u32, rsp: u64) -> Vec<u64> {
    let sizes = std::iter::successors(Some(STACK_BYTES), |size| (*size > 64).then_some(*size / 2));
    for size in sizes {
        // QEMU's numbers are signed here.
        let asked = json!({"val": rsp as i64, "size": size, "cpu-index": cpu});
        if let Ok(bytes) = saved(monitor, "memsave", asked) {
            return words(&bytes);
        }
    }
    Vec::new()
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect()
}

/// The registers of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Registers {
    rip: u64,
    rsp: u64,
    rbp: u64,
    rflags: u64,
    cr2: u64,
    /// The privilege level.
    cpl: u64,
    is_halted: bool,
}

/// The registers of each CPU, parsed from QEMU's output of `info registers -a`.
fn registers(text: &str) -> BTreeMap<u32, Registers> {
    let mut found = BTreeMap::new();
    for section in text.split("CPU#").skip(1) {
        let digits = section.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(section.len());
        let Ok(number) = section[..digits].parse() else { continue };
        let value = |name: &str| {
            let after = section.split_once(&format!("{name}=")).map_or("0", |(_, rest)| rest);
            let end = after.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(after.len());
            u64::from_str_radix(&after[..end], 16).unwrap_or(0)
        };
        found.insert(
            number,
            Registers {
                rip: value("RIP"),
                rsp: value("RSP"),
                rbp: value("RBP"),
                rflags: value("RFL"),
                cr2: value("CR2"),
                cpl: value("CPL"),
                is_halted: value("HLT") == 1,
            },
        );
    }
    found
}

/// What memory tells about a CPU.
struct Cpu {
    apic_id: u32,
    ring: Ring,
    current: Option<u64>,
    in_interrupt: bool,
    held: u32,
    armed_ns: u64,
    path: u32,
    asked: u32,
    registers: Option<Registers>,
    stack: Vec<u64>,
}

impl Cpu {
    fn new(record: &Recorder, memory: &[u8]) -> Result<Cpu, Problem> {
        let short = || Problem::new("the record of a CPU is cut off");
        let Head { parts, .. } = record.head;
        let bytes = |part: Part, count: usize| {
            let at = parts[part as usize] as usize;
            memory.get(at..at.saturating_add(count)).ok_or_else(short)
        };
        let number = |part: Part, count: usize| -> Result<u64, Problem> {
            Ok(bytes(part, count)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        };
        let ring = Ring::from_words(&words(bytes(Part::Ring, RING_WORDS * 8)?)).ok_or_else(short)?;
        Ok(Cpu {
            apic_id: number(Part::ApicId, 4)? as u32,
            ring,
            current: Some(number(Part::Current, 8)?).filter(|address| *address != 0),
            in_interrupt: number(Part::InInterrupt, 1)? != 0,
            held: number(Part::Held, 4)? as u32,
            armed_ns: number(Part::Armed, 8)?,
            path: number(Part::Path, 4)? as u32,
            asked: number(Part::Asked, 4)? as u32,
            registers: None,
            stack: Vec::new(),
        })
    }

    fn state(&self, record: &Recorder, now_ns: u64) -> CpuState {
        CpuState {
            thread: self.current.map(|address| record.name(record.head.thread(address))),
            in_interrupt: self.in_interrupt,
            held: (record.head.keeps_locks == 1).then(|| HeldRanks::from_word(self.held)),
            timer_ns: (self.armed_ns != u64::MAX).then(|| self.armed_ns.wrapping_sub(now_ns) as i64),
            entry: Entry(self.path),
            asked: self.asked,
            queue: QueueState::Unknown,
        }
    }

    /// The call chain, by the frame pointers on the stack.
    fn calls(&self) -> Vec<u64> {
        let Some(Registers { rip, rsp, rbp, cpl: 0, .. }) = self.registers else { return Vec::new() };
        let mut calls = vec![rip];
        let mut frame = rbp;
        while calls.len() < FRAMES && frame >= rsp && frame.is_multiple_of(8) {
            let at = ((frame - rsp) / 8) as usize;
            let (Some(next), Some(address)) = (self.stack.get(at), self.stack.get(at + 1)) else { break };
            if *address < KERNEL_BASE {
                break;
            }
            // A return address may be the first byte after a function that ends with the call.
            calls.push(address - 1);
            if *next <= frame {
                break;
            }
            frame = *next;
        }
        calls
    }
}

/// The record in lines.
fn show(record: &Recorder, cpus: &[Cpu], symbols: Option<&Symbols<'_>>) -> Vec<String> {
    let last = |cpu: &Cpu| cpu.ring.last(1).next().map_or(0, |(time_ns, _)| time_ns);
    let now_ns = cpus.iter().map(last).max().unwrap_or(0);
    let shown = if cpus.len() > MANY_CPUS { SHOWN_OF_MANY } else { SHOWN };
    let mut lines = vec![format!(
        "what the memory of the machine says; times count back from the last event, {now_ns} ns after boot"
    )];
    for (number, cpu) in cpus.iter().enumerate() {
        let state = cpu.state(record, now_ns);
        lines.push(format!("CPU {number}: {state}"));
        let mut details = String::from("  ");
        let _ = state.details(&mut details);
        lines.push(details);
        if let Some(Registers { rip, rsp, rflags, cr2, cpl, is_halted, .. }) = cpu.registers {
            let mode = if cpl == 0 { "kernel" } else { "user" };
            let halted = if is_halted { ", halted" } else { "" };
            lines.push(format!(
                "  {mode} mode: rip {rip:#x} rsp {rsp:#x} rflags {rflags:#x} cr2 {cr2:#x}{halted}"
            ));
        }
        for (level, address) in cpu.calls().into_iter().enumerate() {
            let name = symbols.and_then(|symbols| symbols.lookup(address));
            let name = name.map_or(String::new(), |name| format!("{:.60}+{:#x}", name.name, name.offset));
            lines.push(format!("    {level:2} {address:#x} {name}"));
        }
        for (time_ns, mark) in cpu.ring.last(shown) {
            let ago_ns = now_ns.saturating_sub(time_ns);
            lines.push(format!("  {ago_ns:>13} ns ago: {}", record.show(mark)));
        }
    }
    lines.push("the last lines of the log:".to_owned());
    let mut log = Vec::new();
    record.log.tail(LOG_LINES, |byte| log.push(byte));
    lines.extend(String::from_utf8_lossy(&log).lines().map(|line| format!("| {}", line.trim_end())));
    lines.into_iter().map(|line| format!("{PREFIX}{line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_27_registers_are_found_in_what_qemu_says() {
        let text = "\r\nCPU#0\r\nRAX=0000000000000001 RBX=00 RCX=00\r\n\
            RSI=00 RDI=00 RBP=ffff808000007f10 RSP=ffff808000007f00\r\n\
            RIP=ffffffff80123456 RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1\r\n\
            CR0=80010033 CR2=0000000000000008 CR3=0000000000001000 CR4=00000020\r\n\
            \r\nCPU#12\r\nRAX=0 RBP=5 RSP=7ffe0 \r\nRIP=0000000000401000 RFL=00000202 [-------] CPL=3 II=0 HLT=0\r\n";
        let found = registers(text);
        let kernel = Registers {
            rip: 0xffff_ffff_8012_3456,
            rsp: 0xffff_8080_0000_7f00,
            rbp: 0xffff_8080_0000_7f10,
            rflags: 0x246,
            cr2: 8,
            cpl: 0,
            is_halted: true,
        };
        assert_eq!(found.get(&0), Some(&kernel));
        assert_eq!(
            found.get(&12).map(|found| (found.rip, found.cpl, found.is_halted)),
            Some((0x40_1000, 3, false))
        );
        assert_eq!(found.len(), 2);
        assert_eq!(registers("nothing of the kind"), BTreeMap::new());
    }

    fn cpu(registers: Registers, stack: Vec<u64>) -> Cpu {
        Cpu {
            apic_id: 0,
            ring: Ring::new(),
            current: None,
            in_interrupt: false,
            held: 0,
            armed_ns: u64::MAX,
            path: 0,
            asked: 0,
            registers: Some(registers),
            stack,
        }
    }

    #[test]
    fn k_27_calls_are_found_on_the_stack_and_end_where_it_does() {
        let text = KERNEL_BASE + 0x1000;
        let rsp = 0xffff_8080_0000_0000;
        let registers = Registers { rip: text, rsp, rbp: rsp + 8, ..Registers::default() };
        // A word, a frame that leads to the one three words on, one that leads nowhere.
        let stack = vec![7, rsp + 32, text + 0x10, 9, 0, text + 0x20];
        assert_eq!(cpu(registers, stack.clone()).calls(), [text, text + 0xf, text + 0x1f]);
        let looped = vec![7, rsp + 8, text + 0x10];
        assert_eq!(
            cpu(registers, looped).calls(),
            [text, text + 0xf],
            "a frame that leads to itself ends it"
        );
        let user = Registers { cpl: 3, ..registers };
        assert!(cpu(user, stack.clone()).calls().is_empty());
        let below = Registers { rbp: 8, ..registers };
        assert_eq!(cpu(below, stack).calls(), [text]);
    }

    #[test]
    fn k_27_a_file_without_a_recorder_has_no_place() {
        assert_eq!(place(&std::fs::read(std::env::current_exe().unwrap()).unwrap()), None);
        assert_eq!(place(b"#!/bin/sh"), None);
    }
}
