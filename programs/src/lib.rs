//! What the programs share: how a proof reports, and random numbers that a seed decides.
#![no_std]

extern crate alloc;

pub mod kit;
pub mod proof;
pub mod random;
pub mod rawring;
