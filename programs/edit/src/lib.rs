//! The shell's line editor: bytes of a terminal in, VT100 sequences out, and finished lines; the words and times in them, and what Tab completes.
//!
//! It owns no terminal and no clock, so host tests type into it and look at the screen that its output makes.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod complete;
mod editor;
mod history;
mod keys;
#[cfg(test)]
mod screen;
pub mod time;
mod words;

pub use editor::{Editor, Event, LINE_MAX};
pub use history::History;
pub use keys::{Key, Keys};
pub use words::words;
