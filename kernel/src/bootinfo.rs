//! What the boot loader says, from PVH or Multiboot2, in one structure: memory, the boot image, the command line, ACPI.

use crate::arch::boot::Loader;
use crate::arch::phys;
use crate::planted::{self, Bug};
use abi::BOOT_LINE_BYTES_MAX;
use kcore::bootline;
use sched::Policy;

const MAX_RANGES: usize = 64;
const PAGE: u64 = 4096;
/// Memory below this is not used: firmware data and the start-up code of other CPUs are there.
const LOW_MEMORY: u64 = 1 << 20;

/// Memory that is free at boot, in whole pages.
pub struct MemoryMap {
    ranges: [(u64, u64); MAX_RANGES],
    count: usize,
}

impl MemoryMap {
    /// Free ranges: (start, end).
    pub fn free(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges[..self.count].iter().copied()
    }

    fn add(&mut self, start: u64, end: u64) {
        let (start, end) = (start.next_multiple_of(PAGE).max(LOW_MEMORY), end / PAGE * PAGE);
        // Memory above 512 GiB is outside the physical map.
        let end = end.min(512 << 30);
        if start < end && self.count < MAX_RANGES {
            self.ranges[self.count] = (start, end);
            self.count += 1;
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
        for i in 0..self.count {
            let (from, to) = self.ranges[i];
            if to <= start || end <= from {
                continue;
            }
            self.ranges[i] = (from, start.clamp(from, to));
            if end < to && self.count < MAX_RANGES {
                self.ranges[self.count] = (end.max(from), to);
                self.count += 1;
            }
        }
    }
}

/// What the boot loader says.
pub struct BootInfo {
    /// Free memory.
    pub memory: MemoryMap,
    /// Highest address of memory.
    pub top: u64,
    /// The boot image: (start, bytes).
    pub module: Option<(u64, u64)>,
    /// Boot options.
    pub options: Options,
    /// ACPI's root pointer, if the loader knows it.
    pub rsdp: Option<u64>,
}

/// Boot options: words of the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `pit`: boots as if no local timer could be calibrated.
    pub pit: bool,
    /// `nocalib`: boots as if nothing could be calibrated.
    pub no_calibration: bool,
    /// `maxcpus=n`.
    pub max_cpus: Option<usize>,
    /// `trace=n`: record the last n scheduling events on each CPU; `trace=first:n`: the first ones.
    pub trace: Option<Room>,
    /// `policy=wfq` or `policy=eevdf`.
    pub policy: sched::PolicyKind,
    /// `allocfail`: programs may use SystemInfo.failAllocation.
    pub alloc_fail: bool,
    /// `endlease`: programs may end a ring's lease (`abi::OP_END_LEASE`).
    pub end_lease: bool,
    /// `overload`: contexts are admitted even if they may miss deadlines.
    pub overload: bool,
    /// `turns=n`: in an emulator that runs its CPUs one after the other, none runs for longer than n us at a time.
    pub turns_us: Option<u64>,
    /// `latecpu`: the first of the other CPUs is given up before it can start.
    pub late_cpu: bool,
    /// `panic`: the kernel fails on purpose, for the test of the report.
    pub panic: bool,
    /// `watchdog=n`: how many looks the watchdog waits before it reports; 0 turns it off.
    pub watchdog: Option<u32>,
    /// `hang=...`, `panic=late` or `triplefault`: the kernel fails on purpose while everything runs.
    pub plant: Option<Plant>,
    /// `planted=name`: which bug acts, in a kernel that has planted bugs.
    pub bug: Option<Bug>,
}

impl Options {
    fn parse(line: &[u8]) -> Options {
        let mut options = Options::default();
        let (line, left_out) = bootline::fit(line);
        if left_out > 0 {
            crate::println!(
                "boot: the line of options is longer than {BOOT_LINE_BYTES_MAX} bytes; what follows byte {} is left out",
                line.len()
            );
        }
        for word in bootline::words(line) {
            let word = match word {
                Ok(word) => word,
                Err(bytes) => {
                    crate::println!("boot: option `{}` is not UTF-8 and left out", bytes.escape_ascii());
                    continue;
                }
            };
            match word {
                "pit" => options.pit = true,
                "nocalib" => options.no_calibration = true,
                "panic" => options.panic = true,
                "allocfail" => options.alloc_fail = true,
                "endlease" => options.end_lease = true,
                "overload" => options.overload = true,
                "latecpu" => options.late_cpu = true,
                "panic=late" => options.plant = Some(Plant::Panic),
                "triplefault" => options.plant = Some(Plant::TripleFault),
                _ if options.assign(word).is_some() => {}
                _ => crate::println!(
                    "boot: option `{word}` is not known and left out; known are\n\
                     boot: pit nocalib panic panic=late triplefault allocfail endlease overload latecpu maxcpus=n policy=wfq|eevdf turns=n watchdog=n hang=irqs-off|lock|no-dispatch trace=n trace=first:n (1 to {})",
                    trace::dump::EVENTS_MAX
                ),
            }
        }
        options
    }

    /// Takes an option with a value; `None` if no option has that name, or not that value.
    fn assign(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once('=')?;
        match name {
            "maxcpus" => self.max_cpus = Some(value.parse().ok()?),
            "policy" => {
                let known = [sched::PolicyKind::Wfq, sched::PolicyKind::Eevdf];
                self.policy = known.into_iter().find(|policy| policy.name() == value)?;
            }
            "watchdog" => self.watchdog = Some(value.parse().ok().filter(|looks| *looks <= 1000)?),
            "hang" => self.plant = Some(Plant::named(value)?),
            "planted" if cfg!(feature = "planted") => self.bug = Some(planted::named(value)?),
            "turns" => self.turns_us = Some(value.parse().ok().filter(|us| (1..=1000).contains(us))?),
            "trace" => self.trace = Some(Room::parse(value)?),
            _ => return None,
        }
        Some(())
    }
}

fn read<T: Copy>(address: u64) -> T {
    // SAFETY: addresses from the boot loader's own structures, inside the physical map.
    unsafe { phys::pointer::<T>(address).read_unaligned() }
}

fn text(address: u64) -> &'static [u8] {
    if address == 0 {
        return &[];
    }
    // One byte more than is used, so that the caller sees that the line is too long.
    let most = BOOT_LINE_BYTES_MAX as u64 + 1;
    let length = (0..most).find(|i| read::<u8>(address + i) == 0).unwrap_or(most);
    phys::bytes(address, length as usize).unwrap_or(&[])
}

/// Reads what `loader` left at `address`.
pub fn parse(loader: Loader, address: u64) -> BootInfo {
    let memory = MemoryMap { ranges: [(0, 0); MAX_RANGES], count: 0 };
    let mut info = BootInfo { memory, top: 0, module: None, options: Options::default(), rsdp: None };
    match loader {
        Loader::Pvh => pvh(&mut info, address),
        Loader::Multiboot2 => multiboot2(&mut info, address),
    }
    info.top = info.memory.free().map(|(_, end)| end).max().unwrap_or(0);
    info.memory.remove(LOW_MEMORY, phys::image_end());
    if let Some((start, bytes)) = info.module {
        info.memory.remove(start, start + bytes);
    }
    info
}

fn pvh(info: &mut BootInfo, at: u64) {
    assert_eq!(read::<u32>(at), 0x336e_c578, "the loader's structure is not PVH's");
    let (modules, module_list) = (read::<u32>(at + 12), read::<u64>(at + 16));
    let (map, entries) = (read::<u64>(at + 40), read::<u32>(at + 48));
    info.options = Options::parse(text(read(at + 24)));
    info.rsdp = Some(read::<u64>(at + 32)).filter(|rsdp| *rsdp != 0);
    for i in 0..u64::from(entries.min(MAX_RANGES as u32)) {
        let (start, bytes, kind) =
            (read::<u64>(map + i * 24), read::<u64>(map + i * 24 + 8), read::<u32>(map + i * 24 + 16));
        if kind == 1 {
            info.memory.add(start, start.saturating_add(bytes));
        }
    }
    if modules > 0 {
        info.module = Some((read(module_list), read(module_list + 8)));
    }
}

fn multiboot2(info: &mut BootInfo, at: u64) {
    let total = u64::from(read::<u32>(at));
    let mut tag = at + 8;
    while tag + 8 <= at + total {
        let (kind, size) = (read::<u32>(tag), u64::from(read::<u32>(tag + 4)));
        match kind {
            0 => break,
            1 => info.options = Options::parse(text(tag + 8)),
            3 if info.module.is_none() => {
                let (start, end) = (u64::from(read::<u32>(tag + 8)), u64::from(read::<u32>(tag + 12)));
                info.module = Some((start, end - start));
            }
            6 => {
                let entry_bytes = u64::from(read::<u32>(tag + 8)).max(24);
                let mut entry = tag + 16;
                while entry + entry_bytes <= tag + size {
                    if read::<u32>(entry + 16) == 1 {
                        let start = read::<u64>(entry);
                        info.memory.add(start, start.saturating_add(read(entry + 8)));
                    }
                    entry += entry_bytes;
                }
            }
            14 | 15 => info.rsdp = Some(rsdp_copy(tag + 8, size - 8)),
            _ => {}
        }
        tag += size.max(8).next_multiple_of(8);
    }
    // GRUB's structure lies somewhere in free memory. It is not needed any more, except for what was copied.
}

/// Copies ACPI's root pointer: the loader's copy lies in memory that will be used otherwise, and low memory will not.
fn rsdp_copy(from: u64, bytes: u64) -> u64 {
    const TO: u64 = 0x7000;
    for i in 0..bytes.min(64) {
        let byte: u8 = read(from + i);
        // SAFETY: low memory that nothing else uses.
        unsafe { phys::pointer::<u8>(TO + i).write_volatile(byte) };
    }
    TO
}

/// Which events of a trace are kept on each CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// How many events.
    pub capacity: usize,
    /// Whether the first ones are kept, and not the last.
    pub keeps_first: bool,
}

impl Room {
    /// From the value of the boot option `trace`: `n`, or `first:n`.
    pub fn parse(value: &str) -> Option<Room> {
        let (keeps_first, number) = match value.strip_prefix("first:") {
            Some(number) => (true, number),
            None => (false, value),
        };
        let capacity = number.parse().ok().filter(|events| (1..=trace::dump::EVENTS_MAX).contains(events))?;
        Some(Room { capacity, keeps_first })
    }
}

/// A failure on purpose, for the tests of the report and of `capos`.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// `hang=irqs-off`: the last CPU loops in an interrupt handler.
    IrqsOff = 1,
    /// `hang=lock`: the same, while it holds the lock of its run queue.
    Lock = 2,
    /// `hang=no-dispatch`: idle CPUs run no thread.
    NoDispatch = 3,
    /// `triplefault`: an exception without a handler table.
    TripleFault = 4,
    /// `panic=late`: a panic while everything runs.
    Panic = 5,
}

impl Plant {
    /// The failure with this name as a value of `hang`.
    pub fn named(name: &str) -> Option<Plant> {
        match name {
            "irqs-off" => Some(Plant::IrqsOff),
            "lock" => Some(Plant::Lock),
            "no-dispatch" => Some(Plant::NoDispatch),
            _ => None,
        }
    }
}
