//! The part of the kernel that needs no machine: logic on numbers and slices, where host tests reach it.
//!
//! No `unsafe`, no locks, no global state: time and memory are arguments. Each module stands by itself:
//! * [`bootline`] reads boot options;
//! * [`elf`] reads programs;
//! * [`buddy`] hands out physical frames;
//! * [`timerq`] keeps deadlines;
//! * [`callq`] is the order of calls at an endpoint;
//! * [`captable`] holds a process's capabilities;
//! * [`request`] decodes the entries of a ring, and [`sqlease`] says which consumer may take them from a submission queue;
//! * [`sorted`] is a sorted list whose steps are bounded;
//! * [`clock`] makes nanoseconds of the time-stamp counter;
//! * [`debt`] keeps a thread's deferred charge for interrupts;
//! * [`quota`] counts what sessions use, and [`stakes`] what contexts that have gone still hold;
//! * [`rank`] is the order of locks;
//! * [`recorder`] keeps the last moments for the case that the kernel fails;
//! * [`generation`] tells apart the successive uses of one number;
//! * [`leases`] says which CPUs are lent to whom;
//! * [`loans`] says which thread should have a context's time;
//! * [`life`] says what a thread can do in each stage of its life, and what can be done to it;
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
pub mod leases;
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
