//! The kernel's symbols, for the backtrace of a panic.
//!
//! ```text
//! 0   magic "capOSsym", count u32, bytes of names u32
//! 16  count × (address u64, bytes u32, offset of the name u32), addresses ascending
//!     names, each ended by a NUL
//! ```

use core::fmt;

use crate::bytes::{u32_at, u64_at};

/// The first bytes of the table.
const MAGIC: [u8; 8] = *b"capOSsym";
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;

/// One function of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name, as in the source.
    pub name: &'a str,
    /// Where it begins.
    pub address: u64,
    /// How far the address that was looked up lies behind that.
    pub offset: u64,
}

/// A table of symbols. A lookup reads a few entries; damage costs names, never a panic.
#[derive(Clone, Copy, Debug)]
pub struct Symbols<'a> {
    entries: &'a [u8],
    names: &'a [u8],
}

/// Some bytes are no table of symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolsError;

impl fmt::Display for SymbolsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kernel.sym: not a table of symbols; backtraces will show addresses only")
    }
}

impl core::error::Error for SymbolsError {}

impl<'a> Symbols<'a> {
    /// The table in `bytes`.
    ///
    /// # Errors
    /// When they do not begin with the magic, or are too few.
    pub fn parse(bytes: &'a [u8]) -> Result<Symbols<'a>, SymbolsError> {
        let read = || {
            let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
            let count = u32_at(rest, 0)? as usize;
            let names_len = u32_at(rest, 4)? as usize;
            let (entries, names) =
                bytes.get(HEADER_BYTES..)?.split_at_checked(count.checked_mul(ENTRY_BYTES)?)?;
            (magic == MAGIC).then_some(Symbols { entries, names: names.get(..names_len)? })
        };
        read().ok_or(SymbolsError)
    }

    /// How many symbols there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The function that `address` lies in.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<Symbol<'a>> {
        // The last entry that does not begin behind the address.
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if u64_at(self.entries, middle * ENTRY_BYTES)? <= address {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let at = low.checked_sub(1)? * ENTRY_BYTES;
        let start = u64_at(self.entries, at)?;
        let bytes = u32_at(self.entries, at + 8)?;
        let offset = address.checked_sub(start)?;
        if offset >= u64::from(bytes.max(1)) {
            return None;
        }
        let name = self.names.get(u32_at(self.entries, at + 12)? as usize..)?;
        let len = name.iter().position(|&byte| byte == 0)?;
        Some(Symbol { name: core::str::from_utf8(&name[..len]).ok()?, address: start, offset })
    }
}

/// Writes the table of `symbols` (address, bytes, name; addresses ascending) piece by piece to `sink`.
pub fn write_symbols(symbols: &[(u64, u32, &str)], mut sink: impl FnMut(&[u8])) {
    let names_len: usize = symbols.iter().map(|(_, _, name)| name.len() + 1).sum();
    sink(&MAGIC);
    sink(&(symbols.len() as u32).to_le_bytes());
    sink(&(names_len as u32).to_le_bytes());
    let mut name_at = 0_u32;
    for (address, bytes, name) in symbols {
        sink(&address.to_le_bytes());
        sink(&bytes.to_le_bytes());
        sink(&name_at.to_le_bytes());
        name_at += name.len() as u32 + 1;
    }
    for (_, _, name) in symbols {
        sink(name.as_bytes());
        sink(&[0]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(symbols: &[(u64, u32, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_symbols(symbols, |piece| bytes.extend_from_slice(piece));
        bytes
    }

    #[test]
    fn an_address_finds_its_function() {
        let bytes = table(&[(0x1000, 0x10, "boot"), (0x1010, 0, "label"), (0x2000, 0x100, "kernel::main")]);
        let symbols = Symbols::parse(&bytes).unwrap();
        let name = |address| symbols.lookup(address).map(|symbol| (symbol.name, symbol.offset));
        assert_eq!(name(0xfff), None);
        assert_eq!(name(0x1000), Some(("boot", 0)));
        assert_eq!(name(0x100f), Some(("boot", 15)));
        assert_eq!(name(0x1010), Some(("label", 0)));
        assert_eq!(name(0x1fff), None);
        assert_eq!(name(0x20ff), Some(("kernel::main", 0xff)));
        assert_eq!(name(0x2100), None);
        assert!(Symbols::parse(&bytes[..bytes.len() - 1]).is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_do_not_panic(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            cut in any::<prop::sample::Index>(), address: u64,
        ) {
            let mut bytes = table(&[(0x1000, 0x10, "boot"), (0x2000, 0x100, "kernel::main")]);
            for (at, value) in &flips {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                if let Ok(symbols) = Symbols::parse(bytes) {
                    for address in [address, 0x1008, 0x2000] {
                        let _ = symbols.lookup(address);
                    }
                }
            }
        }
    }
}
