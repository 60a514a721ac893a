//! The boot image: programs, manifest, the kernel's own symbols.

use crate::arch::phys;
use crate::lock::{Rank, SpinLock};
use crate::mm::frames::Frame;
use image::{Archive, Manifest, Symbol, Symbols};

/// The boot image. Checked once, at boot; nobody writes to it afterwards.
static ARCHIVE: SpinLock<Option<Archive<'static>>> = SpinLock::new(Rank::Console, None);
static SYMBOLS: SpinLock<Option<Symbols<'static>>> = SpinLock::new(Rank::Console, None);

/// Checks the image that the loader left in memory, and remembers it.
pub fn init(module: Option<(u64, u64)>) {
    let Some((start, bytes)) = module else {
        crate::println!("boot: no boot image; start QEMU with -initrd, or GRUB with module2");
        crate::power::off(1)
    };
    let bytes = phys::bytes(start, bytes as usize).unwrap_or(&[]);
    let archive = match Archive::parse(bytes) {
        Ok(archive) => archive,
        Err(error) => {
            crate::println!("boot: {error}");
            crate::power::off(1)
        }
    };
    *ARCHIVE.lock() = Some(archive);
    let symbols = archive.find("kernel.sym").and_then(|entry| Symbols::parse(entry.data).ok());
    *SYMBOLS.lock() = symbols;
}

/// The archive.
pub fn archive() -> Option<Archive<'static>> {
    *ARCHIVE.lock()
}

/// A program: its bytes, and the frame in which they begin.
pub fn program(name: &str) -> Option<(&'static [u8], Frame)> {
    let entry = archive()?.find(name).filter(|entry| is_program(entry.name))?;
    Some((entry.data, Frame(phys::address(entry.data.as_ptr() as u64))))
}

/// Whether the entry of this name is a program.
pub fn is_program(name: &str) -> bool {
    name != "manifest" && name != "kernel.sym"
}

/// The compiled manifest.
pub fn manifest_bytes() -> &'static [u8] {
    archive().and_then(|archive| archive.find("manifest")).map_or(&[], |entry| entry.data)
}

/// The manifest, checked again; a bad one stops the boot with the line that is wrong (K-19).
pub fn manifest() -> Manifest<'static> {
    let checked = Manifest::parse(manifest_bytes())
        .and_then(|manifest| manifest.check_programs(|name| program(name).is_some()).map(|()| manifest));
    match checked {
        Ok(manifest) => manifest,
        Err(error) => {
            crate::println!("boot: {error}");
            crate::power::off(1)
        }
    }
}

/// The function that `address` lies in.
pub fn symbol(address: u64) -> Option<Symbol<'static>> {
    // Only tries the lock: a panic may come from anywhere.
    SYMBOLS.try_lock()?.as_ref()?.lookup(address)
}
