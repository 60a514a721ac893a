//! The host tool of capOS, as a library: manifests become bytes, programs become boot images, images are booted in QEMU.
//!
//! A run goes through the modules in this order: [`guest`] builds kernel and programs, [`package`] makes the boot image from them and a
//! compiled [`manifest`], [`qemu`] boots it with a time limit, and [`proof`] judges its output. If the machine hangs or has reset itself,
//! [`record`] reports, through [`monitor`], what it did last. [`twin`] compares shares of CPUs with the simulator's. A trace that the machine
//! wrote is kept and exported by [`capture`] and checked by [`replay`]. [`debug`] starts gdb on a machine.

pub mod bench;
pub mod capture;
pub mod cpio;
pub mod debug;
pub mod elsewhere;
pub mod guest;
pub mod iso;
pub mod linux;
pub mod manifest;
pub mod monitor;
pub mod options;
pub mod package;
pub mod patience;
pub mod picture;
pub mod place;
pub mod proof;
pub mod qemu;
pub mod record;
pub mod replay;
mod scene;
pub mod screen;
pub mod script;
pub mod suite;
pub mod symbols;
pub mod terminal;
pub mod twin;

/// What went wrong, in words for the person at the terminal: what it was, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(pub String);

impl Problem {
    /// A problem with this text.
    pub fn new(text: impl Into<String>) -> Problem {
        Problem(text.into())
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Problem {}

impl From<manifest::CompileError> for Problem {
    fn from(error: manifest::CompileError) -> Problem {
        Problem(error.to_string())
    }
}
