//! What the programs share: how a proof reports its result, seeded random numbers, a victim to watch, a view of the whole machine,
//! threads that compete for CPUs and the work that they do, pictures in text, the steps of the tour, and the shell.
#![no_std]

extern crate alloc;

pub mod contexts;
pub mod fair;
pub mod fuzz;
pub mod kit;
pub mod machine;
pub mod mark;
pub mod neighbour;
pub mod proof;
pub mod quotas;
pub mod random;
pub mod rawring;
pub mod scale;
pub mod shell;
pub mod siege;
pub mod storms;
pub mod text;
pub mod ticks;
pub mod timeline;
pub mod tour;
pub mod turns;
pub mod victim;
pub mod workload;
