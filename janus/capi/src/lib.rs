//! The C adapter: SPEC-021 [SCHED:3.1.1] to [SCHED:3.7.1] and [SCHED:12.1.1]. It translates, and owns what C holds by
//! pointer; it schedules nothing. `frozen.rs` is `janus.h`, `compiler.rs` is `janus_compiler.h`, `tasks.rs` is
//! `janus_task.h`, all made by cbindgen.
//!
//! Every export goes through [`guard::entered`]: no panic unwinds into C, and the runtime never runs with a
//! caller's floating-point modes or on the last bytes of its stack.

pub mod compiler;
pub mod frozen;
mod guard;
mod handles;
pub mod tasks;
