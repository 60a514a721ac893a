//! The word by which a task sleeps and is woken, without a lost wake-up and without being queued twice.
//!
//! One word holds the task's state and one bit, `NOTIFIED`, a permit: whoever wakes the task sets it, and the wake that
//! sets it on a task that sleeps owns the right, and the duty, to put the task into a queue. A task that is woken while
//! it still runs finds the permit when it goes to sleep, and does not.
//!
//! Invariants, which `models/tests/janus_wake_loom.rs` checks under loom:
//! 1. A task is in at most one queue. Only [`Word::wake`] returning true, or a [`Word::sleep`] that returns false, puts
//!    a sleeping task there.
//! 2. [`Word::sleep`] runs *after* the task's registers are saved: nobody can resume a context that is not there yet.
//! 3. What was written before [`Word::wake`] is seen after [`Word::run`]. So a wait is a loop: look, sleep, look again;
//!    a permit that was left behind costs one look and nothing else.
//!
//! This file may not know what a queue is.

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
    /// Of a task that does not exist yet.
    pub(crate) fn new() -> Word {
        Word(AtomicU32::new(TaskState::Completed as u32))
    }

    /// A new task is ready, with no permit.
    #[inline]
    pub(crate) fn make_ready(&self) {
        debug_assert!(self.state().is_final());
        self.0.store(TaskState::Ready as u32, Ordering::Release);
    }

    /// A worker has picked it. The permit is used up, except that a task which only yielded keeps it.
    #[inline]
    pub(crate) fn run(&self) {
        // A yield leaves the word alone (invariant 1 needs no mark: the yielder itself requeues), which saves an
        // atomic exchange on the way out and on the way in.
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

    /// The task's context is saved and it sleeps from now on, in `state`; or false: it was woken meanwhile, and the
    /// caller puts it into a queue.
    #[inline]
    pub(crate) fn sleep(&self, event: Event) -> bool {
        let asleep = move_to(TaskState::Running as u32, event);
        match self.0.compare_exchange(TaskState::Running as u32, asleep, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => true,
            Err(found) => {
                debug_assert_eq!(found, TaskState::Running as u32 | NOTIFIED);
                // Used up; the task will look again.
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

    /// The same for who needs to know something that belongs to the sleeper (a `Cell` of its task): only the wake that has
    /// the right to queue it may look. Others may be late: the task runs, or is another one by now.
    #[inline]
    #[must_use]
    pub(crate) fn wake_to<R>(&self, look: impl FnOnce() -> R) -> Option<R> {
        self.wake().then(look)
    }

    /// The task has ended, as `event` says. A task ends while it runs, or (cancelled) before it ever did.
    #[inline]
    pub(crate) fn end(&self, event: Event) {
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(move_to(old, event), Ordering::Release);
    }

    /// What a dump shows: a woken task that waits in a queue is ready. (A yielded one shows as running here; the dump
    /// knows from the workers who really runs.)
    pub(crate) fn state(&self) -> TaskState {
        let word = self.0.load(Ordering::Acquire);
        let state = TaskState::from_bits(word & STATE);
        match state {
            TaskState::Blocked | TaskState::BudgetExhausted if word & NOTIFIED != 0 => TaskState::Ready,
            other => other,
        }
    }
}
