//! How a worker's thread sleeps and is woken: by parking or, when it has I/O under way, in the kernel's queue of
//! completions.
//!
//! One word says whether it sleeps, and keeps a wake-up that came before the sleep. A thread that wakes the worker
//! rings the bell that the I/O driver watches, if there is one; otherwise it unparks the worker's thread.

use crate::worker::Worker;
use std::os::fd::RawFd;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// The worker was woken, and has not noticed yet.
const RUNG: u32 = 2;

/// There is no bell.
const NONE: RawFd = -1;

/// How long a spare that stands in for a stuck worker sleeps before it looks at that worker's I/O again, if there is
/// any. Each task that it finds there is the spare's from then on, so this delay is paid once per task.
const COVER: Duration = Duration::from_micros(200);

pub(crate) struct Rest {
    state: AtomicU32,
    /// The event descriptor that the worker's I/O driver watches.
    bell: AtomicI32,
}

impl Rest {
    pub(super) fn new() -> Rest {
        Rest { state: AtomicU32::new(AWAKE), bell: AtomicI32::new(NONE) }
    }

    /// From the next sleep on, the worker is woken by this bell. Called by the worker itself.
    pub(crate) fn hang_bell(&self, bell: RawFd) {
        self.bell.store(bell, Ordering::Release);
    }
}

impl Worker {
    /// Sleeps until woken, for `timeout` at most, perhaps shorter. On the thread's own stack.
    pub(crate) fn rest(&self, timeout: Option<Duration>) {
        let state = &self.rest.state;
        if state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_err() {
            state.store(AWAKE, Ordering::Release);
            return;
        }
        let timeout =
            if self.io.covers_io(self) { Some(timeout.map_or(COVER, |t| t.min(COVER))) } else { timeout };
        if !self.io.wait(self, timeout) {
            match timeout {
                None => std::thread::park(),
                Some(timeout) => std::thread::park_timeout(timeout),
            }
        }
        state.swap(AWAKE, Ordering::AcqRel);
        if self.io.covers() {
            self.io.stand_in(self);
        }
    }

    /// Ends the worker's sleep, or its next one.
    pub(crate) fn unpark(&self) {
        if self.rest.state.swap(RUNG, Ordering::AcqRel) != ASLEEP {
            return;
        }
        // The bell was written before the worker fell asleep.
        match self.rest.bell.load(Ordering::Acquire) {
            NONE => {
                if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
                    thread.unpark();
                }
            }
            bell => crate::io::sys::ring(bell),
        }
    }
}
