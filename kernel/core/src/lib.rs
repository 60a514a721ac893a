//! The part of the kernel that needs no machine: what can be said with numbers and slices is here, where host tests reach it.
//!
//! No `unsafe`, no locks, no global state: time and memory are arguments. Each module stands by itself:
//! * [`bootline`] reads boot options;
//! * [`elf`] reads programs;
//! * [`buddy`] hands out physical frames;
//! * [`timerq`] keeps deadlines;
//! * [`callq`] is the order of calls at an endpoint;
//! * [`captable`] holds a process's capabilities;
//! * [`sqlease`] says who consumes a submission queue;
//! * [`clock`] makes nanoseconds of the time-stamp counter;
//! * [`debt`] is what a thread owes for interrupts;
//! * [`quota`] counts what sessions use, and [`stakes`] what is left of contexts that have gone;
//! * [`rank`] is the order of locks;
//! * [`recorder`] is what is left of the last moments when the kernel fails;
//! * [`generation`] is identity;
//! * [`loans`] is who should have a context's time;
//! * [`life`] is what a thread can do, and what can be done to it;
//! * [`topology`] reads which CPUs share what;
//! * [`watch`] says what is wrong with a CPU that shows no sign of life.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bootline;
pub mod buddy;
pub mod callq;
pub mod captable;
pub mod clock;
pub mod debt;
pub mod elf;
pub mod generation;
pub mod life;
pub mod loans;
pub mod quota;
pub mod rank;
pub mod recorder;
pub mod request;
pub mod sorted;
pub mod sqlease;
pub mod stakes;
mod sync;
pub mod timerq;
pub mod topology;
pub mod watch;
