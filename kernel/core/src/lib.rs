//! The part of the kernel that needs no machine: what can be said with numbers and slices is here, where host tests reach it.
//!
//! No `unsafe`, no locks, no clock, no global state: time and memory are arguments. Each module stands by itself:
//! * [`elf`] reads programs;
//! * [`buddy`] hands out physical frames;
//! * [`timerq`] keeps deadlines.
#![no_std]
#![forbid(unsafe_code)]

pub mod buddy;
pub mod elf;
pub mod timerq;
