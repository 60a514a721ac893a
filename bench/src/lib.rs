//! Side-by-side benchmarks: what they share ([`report`], [`instructions`]), and the parts of `bench-sched` and of
//! `bench-runtime` ([`runtime`]).
#![forbid(unsafe_code)]

pub mod contest;
pub mod instructions;
pub mod peer;
pub mod report;
pub mod runtime;
