//! The part of the kernel that needs no machine: what can be said with numbers and slices is here, where host tests reach it.
//!
//! No `unsafe`, no locks, no global state: time and memory are arguments. Each module stands by itself:
//! * [`bootline`] reads boot options;
//! * [`elf`] reads programs;
//! * [`buddy`] hands out physical frames;
//! * [`timerq`] keeps deadlines;
//! * [`captable`] holds a process's capabilities; the only module that allocates;
//! * [`sqlease`] says who consumes a submission queue;
//! * [`clock`] makes nanoseconds of the time-stamp counter;
//! * [`rank`] is the order of locks;
//! * [`generation`] is identity;
//! * [`topology`] reads which CPUs share what.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bootline;
pub mod buddy;
pub mod captable;
pub mod clock;
pub mod elf;
pub mod generation;
pub mod rank;
pub mod sqlease;
mod sync;
pub mod timerq;
pub mod topology;
