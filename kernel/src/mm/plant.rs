//! Allocations that fail on purpose, for the proof that each of them may (K-30). Only a kernel that was booted with `allocfail` accepts requests for
//! that.

use super::asker;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Whether the kernel was booted with `allocfail`.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
/// The process whose allocations are counted; 0 for none.
static PID: AtomicU32 = AtomicU32::new(0);
/// Allocations until one fails; 0 if none is to fail.
static LEFT: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// From now on failures may be requested; at boot.
pub fn allow() {
    IS_ALLOWED.store(true, Ordering::Relaxed);
}

/// The `after`th allocation of process `pid` from now on is to fail; none if `after` is 0. Says how many there were since the last request,
/// and whether one failed. `None` if requests are not allowed.
pub fn arm(pid: u32, after: u64) -> Option<(u64, bool)> {
    if !IS_ALLOWED.load(Ordering::Relaxed) {
        return None;
    }
    let before = (SEEN.swap(0, Ordering::Relaxed), HAS_FAILED.swap(false, Ordering::Relaxed));
    LEFT.store(after, Ordering::Relaxed);
    PID.store(pid, Ordering::Relaxed);
    Some(before)
}

/// Whether this allocation is to fail.
#[inline(always)]
pub fn fails() -> bool {
    PID.load(Ordering::Relaxed) != 0 && counts()
}

#[cold]
fn counts() -> bool {
    if asker::current().is_none_or(|asker| asker.pid != PID.load(Ordering::Relaxed)) {
        return false;
    }
    SEEN.fetch_add(1, Ordering::Relaxed);
    let fails = LEFT.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) == Ok(1);
    if fails {
        HAS_FAILED.store(true, Ordering::Relaxed);
    }
    fails
}
