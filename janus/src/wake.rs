//! The word by which a task sleeps and is woken, without a lost wake-up and without being queued twice.
//!
//! One word holds the task's state and one bit, `NOTIFIED`, a permit: every wake sets it, and the wake that sets it on
//! a sleeping task has the right, and the duty, to put the task into a queue. A task that is woken while it still runs
//! finds the permit when it goes to sleep, and does not sleep.
//!
//! Invariants, which `models/tests/janus_wake_loom.rs` checks under loom:
//! 1. A task is in at most one queue. Only [`Word::wake`] returning true, or a [`Word::sleep`] that returns false, puts
//!    a sleeping task there.
//! 2. [`Word::sleep`] runs *after* the task's registers are saved: no worker can resume a context that is not complete
//!    yet.
//! 3. What was written before [`Word::wake`] is seen after [`Word::run`]. So a wait is a loop: look, sleep, look again;
//!    a permit that was left behind costs one look and nothing else.
//!
//! This file must not know what a queue is.

use crate::atomics::{AtomicU32, Ordering};
use crate::state::{Event, TaskState};

const NOTIFIED: u32 = 8;
const STATE: u32 = 7;

/// See the module.
pub(crate) struct Word(AtomicU32);

/// Debug builds check every move against the table of `state.rs`.
#[inline]
fn move_to(from: u32, event: Event) -> u32 {
    let next = TaskState::from_bits(from & STATE).after(event);
    debug_assert!(next.is_some(), "no {event:?} from {:?}", TaskState::from_bits(from & STATE));
    next.map_or(from, |state| state as u32)
}

impl Word {
    /// The word of a task that does not exist yet.
    pub(crate) fn new() -> Word {
        Word(AtomicU32::new(TaskState::Completed as u32))
    }

    /// A new task is ready, with no permit.
    #[inline]
    pub(crate) fn make_ready(&self) {
        debug_assert!(self.state().is_final());
        self.0.store(TaskState::Ready as u32, Ordering::Release);
    }

    /// A worker has picked the task. The permit is used up, except that a task which only yielded keeps it.
    #[inline]
    pub(crate) fn run(&self) {
        // A yield leaves the word alone (invariant 1 needs no mark, as the yielding task itself is requeued), which
        // saves an atomic exchange on the way out and on the way in.
        if self.0.load(Ordering::Relaxed) & STATE == TaskState::Running as u32 {
            return;
        }
        let old = self.0.swap(TaskState::Running as u32, Ordering::AcqRel);
        let woken = match old & STATE {
            s if s == TaskState::Blocked as u32 => move_to(old, Event::Wake),
            s if s == TaskState::BudgetExhausted as u32 => move_to(old, Event::Recharge),
            s => s,
        };
        move_to(woken, Event::Schedule);
    }

    /// The task's context is saved and it sleeps from now on, in the state that `event` leads to. False: it was woken
    /// meanwhile, and the caller puts it into a queue.
    #[inline]
    pub(crate) fn sleep(&self, event: Event) -> bool {
        let asleep = move_to(TaskState::Running as u32, event);
        match self.0.compare_exchange(TaskState::Running as u32, asleep, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => true,
            Err(found) => {
                debug_assert_eq!(found, TaskState::Running as u32 | NOTIFIED);
                // The permit is used up; the task will look again.
                self.0.swap(TaskState::Running as u32, Ordering::AcqRel);
                false
            }
        }
    }

    /// Leaves a permit. True: the task slept, and the caller puts it into a queue.
    #[inline]
    #[must_use]
    pub(crate) fn wake(&self) -> bool {
        let old = self.0.fetch_or(NOTIFIED, Ordering::AcqRel);
        old == TaskState::Blocked as u32 || old == TaskState::BudgetExhausted as u32
    }

    /// As `wake`, for a caller that must read something that belongs to the sleeper (a `Cell` of its task): only the
    /// wake that has the right to queue the task may look. Other wakes may be late: the task runs, or is another one by
    /// now.
    #[inline]
    #[must_use]
    pub(crate) fn wake_to<R>(&self, look: impl FnOnce() -> R) -> Option<R> {
        self.wake().then(look)
    }

    /// The task has ended, as `event` says. A task ends while it runs, or (cancelled) before it ever ran.
    #[inline]
    pub(crate) fn end(&self, event: Event) {
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(move_to(old, event), Ordering::Release);
    }

    /// The state that a dump shows: a woken task that waits in a queue is ready. (A task that yielded shows as running
    /// here; the dump learns from the workers which tasks really run.)
    pub(crate) fn state(&self) -> TaskState {
        let word = self.0.load(Ordering::Acquire);
        let state = TaskState::from_bits(word & STATE);
        match state {
            TaskState::Blocked | TaskState::BudgetExhausted if word & NOTIFIED != 0 => TaskState::Ready,
            other => other,
        }
    }
}
