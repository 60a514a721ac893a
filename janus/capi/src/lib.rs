//! The C adapter: SPEC-021 [SCHED:3.1.1] to [SCHED:3.7.1] and [SCHED:12.1.1]. It translates calls, and owns what C
//! holds by pointer; it schedules nothing. From `frozen.rs`, cbindgen makes `janus.h`, from `compiler.rs`
//! `janus_compiler.h`, and from `tasks.rs` `janus_task.h`.
//!
//! Every export goes through [`guard::entered`]: no panic unwinds into C, and the runtime never runs with a
//! caller's floating-point modes or on the last bytes of its stack.

pub mod compiler;
pub mod frozen;
mod guard;
mod handles;
pub mod tasks;
