//! The kernel's functions, by address, for its backtraces.

use std::collections::BTreeMap;

use object::{Object, ObjectSection, ObjectSymbol, SectionKind};

use crate::Problem;

/// The table for `kernel.sym` out of the kernel's ELF file.
///
/// # Errors
/// When it is no ELF file, or has no symbols.
pub fn table(elf: &[u8]) -> Result<Vec<u8>, Problem> {
    let file =
        object::File::parse(elf).map_err(|error| Problem(format!("the kernel is no ELF file: {error}")))?;
    let code: Vec<(u64, u64)> = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .map(|section| (section.address(), section.address().saturating_add(section.size())))
        .collect();
    let mut found: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for symbol in file.symbols() {
        let address = symbol.address();
        let Ok(name) = symbol.name() else { continue };
        let in_code = code.iter().any(|(start, end)| (*start..*end).contains(&address));
        if !in_code || name.is_empty() || name.starts_with(".L") {
            continue;
        }
        // Of two names for one address, the one with the larger size is kept.
        let size = symbol.size();
        if found.get(&address).is_none_or(|(known, _)| *known < size) {
            found.insert(address, (size, format!("{:#}", rustc_demangle::demangle(name))));
        }
    }
    if found.is_empty() {
        return Err(Problem::new("the kernel has no symbols; its profile must not strip them"));
    }
    let addresses: Vec<u64> = found.keys().copied().collect();
    let mut symbols = Vec::new();
    for (index, (address, (size, name))) in found.iter().enumerate() {
        let section_end =
            code.iter().find(|(start, end)| (*start..*end).contains(address)).map_or(0, |(_, end)| *end);
        let next = addresses.get(index + 1).copied().unwrap_or(u64::MAX).min(section_end);
        // Symbols from assembly have no size: they extend to the next symbol.
        let size = if *size == 0 { next - address } else { *size };
        symbols.push((*address, u32::try_from(size).unwrap_or(u32::MAX), name.as_str()));
    }
    let mut bytes = Vec::new();
    image::write_symbols(&symbols, |piece| bytes.extend_from_slice(piece));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use image::Symbols;

    use super::*;

    #[test]
    fn what_is_no_elf_file_is_refused() {
        assert!(table(b"#!/bin/sh").unwrap_err().to_string().contains("no ELF file"));
    }

    #[test]
    fn functions_of_a_real_binary_are_found() {
        let elf = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let bytes = table(&elf).unwrap();
        let symbols = Symbols::parse(&bytes).unwrap();
        assert!(symbols.len() > 100);
        let file = object::File::parse(&*elf).unwrap();
        let name = |symbol: &object::Symbol<'_, '_>| {
            format!("{:#}", rustc_demangle::demangle(symbol.name().unwrap()))
        };
        let wanted = "capos::symbols::table";
        let symbol = file.symbols().find(|symbol| name(symbol) == wanted).unwrap();
        let found = symbols.lookup(symbol.address() + 5).unwrap();
        assert_eq!((found.name, found.offset), (wanted, 5));
    }
}
