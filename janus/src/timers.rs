//! Who is to be woken when. A worker that parks sleeps no longer than until the first of these; one that is busy looks
//! now and then.

use crate::alloc::Quiet;
use crate::waiter::Waiter;
use crate::worker::Worker;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// No timer.
pub(crate) const NEVER: u64 = u64::MAX;

/// Deadline and number: a timer's name.
pub(crate) type Timer = (u64, u64);

/// See the module.
pub(crate) struct Timers {
    armed: Mutex<(BTreeMap<Timer, Waiter>, u64)>,
    /// The first deadline: read without the lock.
    first: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers { armed: Mutex::new((BTreeMap::new(), 0)), first: AtomicU64::new(NEVER) }
    }

    fn lock(&self) -> MutexGuard<'_, (BTreeMap<Timer, Waiter>, u64)> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    fn publish(&self, armed: &BTreeMap<Timer, Waiter>) {
        self.first.store(armed.first_key_value().map_or(NEVER, |((at, _), _)| *at), Ordering::Release);
    }

    /// True beside the name: it is the first of all now.
    pub(crate) fn arm(&self, at_ns: u64, waiter: Waiter) -> (Timer, bool) {
        let _quiet = Quiet::new();
        let mut guard = self.lock();
        let (armed, number) = &mut *guard;
        *number += 1;
        let timer = (at_ns, *number);
        armed.insert(timer, waiter);
        self.publish(armed);
        (timer, armed.first_key_value().is_some_and(|(first, _)| *first == timer))
    }

    pub(crate) fn disarm(&self, timer: Timer) {
        let _quiet = Quiet::new();
        let mut guard = self.lock();
        if guard.0.remove(&timer).is_some() {
            self.publish(&guard.0);
        }
    }

    /// Wakes everybody whose time has come.
    pub(crate) fn fire(&self, now_ns: u64, here: Option<&Worker>) {
        while self.first() <= now_ns {
            let _quiet = Quiet::new();
            let mut guard = self.lock();
            let waiter = match guard.0.first_entry() {
                Some(entry) if entry.key().0 <= now_ns => entry.remove(),
                _ => return,
            };
            self.publish(&guard.0);
            drop(guard);
            waiter.wake(here);
        }
    }
}
