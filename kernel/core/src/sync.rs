//! The atomics of this crate, in one place, so that a model can bring loom's instead.

pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
