//! The boot image: an [`Archive`] of programs, the boot [`Manifest`], and the kernel's [`Symbols`].
//!
//! The host tool writes these bytes and the kernel reads them, with the same code: [`Manifest::parse`] refuses at boot exactly
//! what `capos image` refuses at build time, and names the line of the source that is wrong. Everything here borrows from the
//! bytes that it is given; nothing allocates, and no bytes make it panic.
//!
//! There is no `std` feature: cargo would switch it on for the kernel too whenever both are built by one command. What needs
//! the standard library (the compiler from TOML) is in `tools/capos`.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod archive;
mod bytes;
mod error;
pub mod format;
mod manifest;
mod name;
mod symbols;
mod validate;

pub use archive::{Archive, ArchiveError, Entry, write_archive};
pub use error::{ErrorKind, ManifestError, Section, right};
pub use manifest::{
    Class, Context, CpuSet, GRANTABLE, Grant, Manifest, Memory, MinterAllow, Pool, PoolGrant, Process,
    Profile, capability_name, grantable,
};
pub use name::Name;
pub use symbols::{Symbol, Symbols, SymbolsError, write_symbols};
pub use validate::{limits, validate};
