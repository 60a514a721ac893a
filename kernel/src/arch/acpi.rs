//! Reads CPUs and interrupt routing from the ACPI tables: RSDP, RSDT or XSDT, MADT, and SRAT where there is one.

use crate::arch::phys;
use alloc::vec::Vec;

/// What the kernel needs of the tables.
#[derive(Debug, Default)]
pub struct Platform {
    /// APIC numbers of usable CPUs.
    pub cpus: Vec<u32>,
    /// Physical address and first interrupt of the IO APIC.
    pub io_apic: Option<(u64, u32)>,
    /// Memory nodes: (APIC number, node).
    pub nodes: Vec<(u32, u32)>,
    /// (ISA line, global interrupt, flags).
    pub overrides: Vec<(u8, u32, u16)>,
}

/// Larger tables are taken for broken.
const MAX_TABLE_BYTES: u32 = 1 << 20;

fn bytes(address: u64, length: usize) -> Option<&'static [u8]> {
    phys::bytes(address, length)
}

fn word(table: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(table.get(at..at + 4)?.try_into().ok()?))
}

fn long(table: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(table.get(at..at + 8)?.try_into().ok()?))
}

fn sums_to_zero(table: &[u8]) -> bool {
    table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

fn table(address: u64) -> Option<&'static [u8]> {
    let length = word(bytes(address, 8)?, 4)?;
    if !(36..=MAX_TABLE_BYTES).contains(&length) {
        return None;
    }
    bytes(address, length as usize).filter(|table| sums_to_zero(table))
}

/// Finds the root pointer (RSDP) where a BIOS puts it.
pub fn search_rsdp() -> Option<u64> {
    let ebda = u64::from(u16::from_le_bytes(bytes(0x40e, 2)?.try_into().ok()?)) << 4;
    let in_range = |start: u64, end: u64| {
        (start..end).step_by(16).find(|at| {
            bytes(*at, 20).is_some_and(|found| found.starts_with(b"RSD PTR ") && sums_to_zero(found))
        })
    };
    in_range(ebda & !15, (ebda & !15) + 1024).or_else(|| in_range(0xe_0000, 0x10_0000))
}

/// Reads what the kernel needs. `None` if a table is missing or broken; the kernel then runs on one CPU.
pub fn read(rsdp: u64) -> Option<Platform> {
    let root = bytes(rsdp, 20)?;
    if !root.starts_with(b"RSD PTR ") {
        return None;
    }
    let (directory, entry_bytes) = match root[15] {
        2.. => match long(bytes(rsdp, 36)?, 24).filter(|at| *at != 0) {
            Some(xsdt) => (xsdt, 8),
            None => (u64::from(word(root, 16)?), 4),
        },
        _ => (u64::from(word(root, 16)?), 4),
    };
    let entries = &table(directory)?[36..];
    let tables = || {
        entries.chunks_exact(entry_bytes).filter_map(|entry| {
            table(if entry_bytes == 8 { long(entry, 0)? } else { u64::from(word(entry, 0)?) })
        })
    };
    let mut platform = tables().find(|found| found.starts_with(b"APIC")).map(madt)?;
    if let Some(found) = tables().find(|found| found.starts_with(b"SRAT")) {
        platform.nodes = srat(found);
    }
    Some(platform)
}

/// Which CPU is near which memory. At boot (K-30).
fn srat(table: &[u8]) -> Vec<(u32, u32)> {
    const ENABLED: u32 = 1;
    let mut nodes = Vec::new();
    let mut rest = table.get(48..).unwrap_or(&[]);
    while let [kind, length, ..] = *rest {
        let Some(entry) = rest.get(..length as usize).filter(|entry| entry.len() >= 2) else { break };
        rest = &rest[length as usize..];
        let found = match kind {
            0 if entry.len() >= 16 => {
                let node = u32::from_le_bytes([entry[2], entry[9], entry[10], entry[11]]);
                Some((u32::from(entry[3]), node, word(entry, 4)))
            }
            2 if entry.len() >= 24 => match (word(entry, 8), word(entry, 4)) {
                (Some(id), Some(node)) => Some((id, node, word(entry, 12))),
                _ => None,
            },
            _ => None,
        };
        if let Some((id, node, Some(flags))) = found
            && flags & ENABLED != 0
        {
            nodes.push((id, node));
        }
    }
    nodes
}

/// CPUs and interrupt controllers. At boot (K-30).
fn madt(table: &[u8]) -> Platform {
    let mut platform = Platform::default();
    let mut rest = table.get(44..).unwrap_or(&[]);
    while let [kind, length, ..] = *rest {
        let Some(entry) = rest.get(..length as usize).filter(|entry| entry.len() >= 2) else { break };
        rest = &rest[length as usize..];
        match kind {
            0 if entry.len() >= 8 && entry[4] & 3 != 0 => platform.cpus.push(u32::from(entry[3])),
            1 if entry.len() >= 12 && platform.io_apic.is_none() => {
                if let (Some(address), Some(base)) = (word(entry, 4), word(entry, 8)) {
                    platform.io_apic = Some((u64::from(address), base));
                }
            }
            2 if entry.len() >= 10 => {
                if let Some(gsi) = word(entry, 4) {
                    platform.overrides.push((entry[3], gsi, u16::from_le_bytes([entry[8], entry[9]])));
                }
            }
            9 if entry.len() >= 16 => {
                if let (Some(id), Some(flags)) = (word(entry, 4), word(entry, 8))
                    && flags & 3 != 0
                    && !platform.cpus.contains(&id)
                {
                    platform.cpus.push(id);
                }
            }
            _ => {}
        }
    }
    platform
}
