//! The atomics of the lock-free parts, in one place: the models put loom's in their stead (`models/tests/janus_*.rs`).

pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
