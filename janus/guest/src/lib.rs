//! WebAssembly modules as untrusted tasks.
//!
//! A [`Program`] is a module that went through the [`pass`]: its instructions are counted exactly, and it can import only what
//! it was [granted](Grants). It runs as a task of a [`janus`] runtime, on that task's budget: a guest that loops for ever uses
//! up its own operations, one that asks for memory or children gets what its budget has, and its neighbours do not notice.
//! With a seed, a run can be repeated.
//!
//! ```
//! use janus::{Budget, Config, NurseryOptions, Recharge, Resource, Runtime, TaskError};
//! use janus_guest::{Grants, Options, Program};
//!
//! let wasm = wat::parse_str("(module (func (export \"main\") (loop br 0)))").unwrap();
//! let endless = Program::new(&wasm, Grants::NONE).unwrap();
//! let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
//! let end = runtime.run(|cx| {
//!     let mut end = None;
//!     let _ = cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |nursery| {
//!         let budget = Budget { ops: 10_000, memory: 1 << 20, ..Budget::ZERO };
//!         end = Some(endless.spawn(cx, nursery, "main", budget, Options::default()).unwrap().join(cx));
//!         Ok(())
//!     });
//!     end
//! });
//! assert!(matches!(end, Ok(Some(Err(TaskError::BudgetExceeded(Resource::Ops))))));
//! ```
//! `docs/janus-guests.md` is the design; `janus/cli` is the tool.
#![forbid(unsafe_code)]

pub mod amount;
mod engine;
mod error;
mod family;
mod grant;
mod imports;
mod machine;
pub mod pass;
mod program;
mod wasi;
mod world;

pub use engine::Engine;
pub use error::GuestError;
pub use family::{MESSAGE_BYTES_MAX, Tally, Used};
pub use grant::{Grant, Grants};
#[doc(hidden)]
pub use imports::offers;
pub use machine::{End, INSTANCE_BYTES, Options};
pub use program::{CALLS_MAX, MODULES_MAX, Need, Program, STACK_BYTES_MAX, functions, needs};
pub use world::{Given, Input, Kept, Output, World};
