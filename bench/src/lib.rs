//! Side-by-side benchmarks: what they share ([`report`], [`instructions`]), and the parts of `bench-sched` and of
//! `bench-runtime` ([`runtime`]) and `bench-io` ([`io`]).
#![deny(unsafe_code)]

pub mod contest;
pub mod instructions;
pub mod io;
pub mod peer;
pub mod report;
pub mod runtime;
