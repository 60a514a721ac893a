//! What a capOS program links.
//!
//! A program is one file:
//!
//! ```no_run
//! #![no_std]
//! #![no_main]
//!
//! use rt::{Result, println, thread, time};
//!
//! rt::main!(run);
//!
//! fn run() -> Result<()> {
//!     println!("hello from {}, {} ns after boot", rt::args::program(), time::now_ns()?);
//!     let answer = thread::spawn(|| 6 * 7).join();
//!     println!("a thread says {answer:?}");
//!     Ok(())
//! }
//! ```
//!
//! Everything that a program does beyond computing, it does with a capability: [`caps::get`] finds one that its parent granted by
//! name, and the types in [`clients`] have the methods of each interface. Under them lies the thread's [`ring`]. Errors keep the three
//! planes apart: see [`Error`].
//!
//! What rt does by itself (printing, the heap, threads, locks, the clock) it does with the first granted capability of the
//! interface in question, whatever its name.
#![cfg_attr(not(test), no_std)]
// Tests run on the host, where nothing starts a program.
#![cfg_attr(test, allow(dead_code))]

extern crate alloc as alloc_crate;

pub mod args;
pub mod caps;
pub mod clients;
pub mod error;
pub mod pending;
#[doc(hidden)]
pub mod print;
pub mod ring;
pub mod sync;
pub mod syscall;
pub mod thread;
pub mod time;
pub mod tls;
pub mod vm;

mod alloc;
mod heap;
mod mem;
mod start;

pub use abi;
pub use alloc::heap_bytes;
pub use caps::{Cap, Client};
pub use clients::*;
pub use error::{Error, Result};
pub use pending::Pending;
pub use start::{EXIT_NO_THREAD_DATA, EXIT_PANIC, EXIT_UNSUPPORTED_ABI, ExitCode, boot_info, exit};
pub use tls::Local;
