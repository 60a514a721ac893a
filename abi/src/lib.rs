//! What the kernel and its programs agree on, byte for byte: system calls, rings, operations, errors, addresses.
//!
//! No code that runs, no allocation, no dependency: both sides compile this crate, and a program that was built against another
//! [`RING_ABI_VERSION`] is told so at its first look at [`RuntimeBootInfo`].
#![no_std]
#![forbid(unsafe_code)]

mod boot;
mod caps;
mod context;
mod error;
mod ops;
mod policy;
mod ring;

pub use boot::*;
pub use caps::*;
pub use context::*;
pub use error::*;
pub use ops::*;
pub use policy::*;
pub use ring::*;
