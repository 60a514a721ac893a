//! The atomics of the lock-free parts, in one place, so that the models can replace them by loom's
//! (`models/tests/janus_*.rs`).

pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
