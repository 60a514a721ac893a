//! The part of the kernel that needs no machine: what can be said with numbers and slices is here, where host tests reach it.
//!
//! No `unsafe`, no locks, no clock, no global state: time and memory are arguments. Each module stands by itself:
//! * [`elf`] reads programs.
#![no_std]
#![forbid(unsafe_code)]

pub mod elf;
