//! How janus' tasks sleep, are woken, end and are cancelled, under loom: `wake.rs` and `join.rs` of the runtime themselves,
//! with loom's atomics, and a small model of how a nursery's cancellation meets a child that goes to sleep.
//!
//! Planted flaws show that the models see what they are for: the same scenario must fail.
#![allow(clippy::arc_with_non_send_sync, reason = "loom's cells, which its own threads share")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::thread;

use atomics::Ordering;
use join::{Finished, Join};
use state::{Event, TaskState};
use wake::Word;

#[allow(dead_code)]
#[path = "../../janus/src/join.rs"]
mod join;
#[allow(dead_code)]
#[path = "../../janus/src/state.rs"]
#[allow(unreachable_pub)]
mod state;
/// Loom's atomics.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
}
#[allow(dead_code)]
#[path = "../../janus/src/wake.rs"]
mod wake;

/// The model must fail: a flaw was planted.
#[track_caller]
fn must_fail(model: impl Fn() + Sync + Send + 'static) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let caught = catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    std::panic::set_hook(hook);
    assert!(caught.is_err(), "the model does not see the planted flaw");
}

/// A task, the queue that it is put into, and what it waits for.
struct Sleeper {
    word: Word,
    /// How often it is in the queue.
    queued: AtomicUsize,
    /// What it waits for: written before the wake, read by the task alone after it.
    news: UnsafeCell<u32>,
    said: AtomicUsize,
}

impl Sleeper {
    fn new() -> Arc<Sleeper> {
        let sleeper = Sleeper {
            word: Word::new(),
            queued: AtomicUsize::new(0),
            news: UnsafeCell::new(0),
            said: AtomicUsize::new(0),
        };
        sleeper.word.make_ready();
        sleeper.word.run();
        Arc::new(sleeper)
    }

    fn queue(&self) {
        let before = self.queued.fetch_add(1, Ordering::AcqRel);
        assert_eq!(before, 0, "queued twice");
    }

    fn wake(&self) {
        if self.word.wake() {
            self.queue();
        }
    }

    /// The worker's part of a sleep: true, the task sleeps; false, it was woken meanwhile and goes on.
    fn sleep(&self, event: Event) {
        if !self.word.sleep(event) {
            self.queue();
        }
    }

    /// A worker looks into the queue until the task is there, and runs it.
    fn resume(&self) {
        while self.queued.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        self.queued.fetch_sub(1, Ordering::AcqRel);
        self.word.run();
    }
}

/// One thread gives news and wakes; the task looks, sleeps and looks again. `look_late`: the flaw that the task sleeps
/// without a look before, which only a permit can mend.
fn one_wake(event: Event, permits: bool) {
    let task = Sleeper::new();
    let waker = task.clone();
    let thread = thread::spawn(move || {
        // SAFETY: the task reads only after it has seen `said`.
        waker.news.with_mut(|news| unsafe { *news = 7 });
        waker.said.store(1, Ordering::Release);
        // The flaw: a task that has not gone to sleep yet is not told.
        if permits || matches!(waker.word.state(), TaskState::Blocked | TaskState::BudgetExhausted) {
            waker.wake();
        }
    });
    while task.said.load(Ordering::Acquire) == 0 {
        task.sleep(event);
        task.resume();
    }
    // SAFETY: written before `said`.
    assert_eq!(task.news.with(|news| unsafe { *news }), 7);
    thread.join().unwrap();
    assert_eq!(task.queued.load(Ordering::Acquire), 0, "a running task is in no queue");
}

#[test]
fn no_wake_is_lost_between_the_look_and_the_sleep() {
    loom::model(|| one_wake(Event::Block, true));
    loom::model(|| one_wake(Event::Exhaust, true));
}

#[test]
fn without_permits_a_wake_is_lost() {
    must_fail(|| one_wake(Event::Block, false));
}

/// Two wakers at once: the task is queued once a sleep, and sees both.
fn two_wakes(guarded: bool) {
    let task = Sleeper::new();
    let threads = [0; 2].map(|_| {
        let task = task.clone();
        thread::spawn(move || {
            task.said.fetch_add(1, Ordering::AcqRel);
            if guarded {
                task.wake();
            } else {
                // The flaw: whoever finds it asleep queues it, permit or not.
                let asleep = task.word.state() == TaskState::Blocked;
                let _ = task.word.wake();
                if asleep {
                    task.queue();
                }
            }
        })
    });
    task.sleep(Event::Block);
    if guarded {
        while task.said.load(Ordering::Acquire) < 2 {
            task.resume();
            if task.said.load(Ordering::Acquire) < 2 {
                task.sleep(Event::Block);
            }
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(task.queued.load(Ordering::Acquire) <= 1);
}

#[test]
fn two_wakers_queue_it_once() {
    // Bounded: all executions with at most three preemptions.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| two_wakes(true));
}

#[test]
fn without_the_permits_answer_it_is_queued_twice() {
    must_fail(|| two_wakes(false));
}

#[test]
fn a_wake_of_a_task_that_yields_leaves_a_permit_and_queues_nothing() {
    loom::model(|| {
        let task = Sleeper::new();
        let waker = task.clone();
        let thread = thread::spawn(move || waker.wake());
        // A yield: the task itself is queued, its word stays; then it is run again.
        task.queue();
        task.resume();
        // The permit is left for the sleep, or the wake comes after it: in both cases the task goes on.
        task.sleep(Event::Block);
        task.resume();
        thread.join().unwrap();
        assert_eq!(task.queued.load(Ordering::Acquire), 0);
    });
}

/// A task's result, and who frees it.
struct Ended {
    join: Join,
    result: UnsafeCell<u32>,
    freed: AtomicUsize,
    told: AtomicBool,
}

impl Ended {
    fn new() -> Arc<Ended> {
        let ended = Ended {
            join: Join::new(),
            result: UnsafeCell::new(0),
            freed: AtomicUsize::new(0),
            told: AtomicBool::new(false),
        };
        ended.join.reset(true);
        Arc::new(ended)
    }

    fn free(&self) {
        // SAFETY: whoever frees it is alone: loom objects if not.
        self.result.with_mut(|result| unsafe { *result = 0 });
        assert_eq!(self.freed.fetch_add(1, Ordering::AcqRel), 0, "freed twice");
    }

    fn finish(&self) {
        // SAFETY: the task is its own until it finishes.
        self.result.with_mut(|result| unsafe { *result = 9 });
        match self.join.finish() {
            Finished::Kept => {}
            Finished::Unwanted => self.free(),
            Finished::Awaited(waiter) => {
                assert_eq!(waiter, 64);
                self.told.store(true, Ordering::Release);
            }
        }
    }

    fn take(&self) {
        assert!(self.join.is_done());
        // SAFETY: the task has ended, and this is its handle.
        assert_eq!(self.result.with(|result| unsafe { *result }), 9);
        self.free();
    }
}

#[test]
fn an_end_and_a_dropped_handle_free_the_task_once() {
    loom::model(|| {
        let task = Ended::new();
        let child = task.clone();
        let thread = thread::spawn(move || child.finish());
        if task.join.detach() {
            task.free();
        }
        thread.join().unwrap();
        assert_eq!(task.freed.load(Ordering::Acquire), 1);
    });
}

#[test]
fn who_does_not_heed_the_answers_frees_it_twice() {
    must_fail(|| {
        let task = Ended::new();
        let child = task.clone();
        let thread = thread::spawn(move || child.finish());
        // The flaw: the handle asks first, and then lets go without a look at the answer.
        let done = task.join.is_done();
        let _ = task.join.detach();
        if done {
            task.free();
        }
        thread.join().unwrap();
        assert_eq!(task.freed.load(Ordering::Acquire), 1);
    });
}

#[test]
fn a_joiner_is_told_and_takes_the_result() {
    loom::model(|| {
        let task = Ended::new();
        let child = task.clone();
        let thread = thread::spawn(move || child.finish());
        while !task.join.is_done() {
            if task.join.wait(64) {
                while !task.told.load(Ordering::Acquire) {
                    thread::yield_now();
                }
            }
        }
        task.take();
        thread.join().unwrap();
        assert_eq!(task.freed.load(Ordering::Acquire), 1);
    });
}

#[test]
fn a_joiner_that_gives_up_leaves_one_who_frees() {
    loom::model(|| {
        let task = Ended::new();
        let child = task.clone();
        let thread = thread::spawn(move || child.finish());
        let _ = task.join.wait(64);
        // It was cancelled: the handle is dropped.
        if task.join.detach() {
            task.free();
        }
        thread.join().unwrap();
        assert_eq!(task.freed.load(Ordering::Acquire), 1);
    });
}

/// A joiner whose time is over: the child's word still names it, while it runs on, writes what is its own (its home, when
/// it is another task by now and is equipped anew) and sleeps for something else. `looks` is what the ended child does.
fn stale_joiner(looks: impl Fn(&Sleeper) -> Option<u32>) {
    let (joiner, child) = (Sleeper::new(), Arc::new(Join::new()));
    assert!(child.wait(64));
    let (late, ends) = (joiner.clone(), child.clone());
    let thread = thread::spawn(move || {
        // SAFETY: it runs, and its home is its own.
        late.news.with_mut(|home| unsafe { *home = 5 });
        late.sleep(Event::Block);
    });
    if ends.finish() == Finished::Awaited(64)
        && let Some(home) = looks(&joiner)
    {
        assert_eq!(home, 5, "it slept, so it had a home");
    }
    thread.join().unwrap();
}

#[test]
fn a_stale_joiner_is_looked_at_by_who_may_queue_it_only() {
    loom::model(|| {
        stale_joiner(|joiner| {
            // SAFETY: `wake_to` calls it only if the joiner sleeps and is ours to queue.
            joiner.word.wake_to(|| joiner.news.with(|home| unsafe { *home }))
        });
    });
}

#[test]
fn who_looks_at_a_stale_joiner_before_it_wakes_it_races() {
    must_fail(|| {
        stale_joiner(|joiner| {
            // SAFETY: none: that is the flaw.
            let home = joiner.news.with(|home| unsafe { *home });
            joiner.word.wake().then_some(home)
        });
    });
}

/// Of `nursery.rs`: the flag of the nursery, the list of children that may sleep, under the lock, and the child's flag.
struct Family {
    cancelled: AtomicBool,
    listed: Mutex<bool>,
    asked: AtomicBool,
    child: Arc<Sleeper>,
}

impl Family {
    /// `Nursery::cancel`.
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        let listed = self.listed.lock().unwrap();
        if *listed {
            self.asked.store(true, Ordering::Release);
            self.child.wake();
        }
    }

    /// `Nursery::list`; `looks`: for the cancellation, under the lock.
    fn list(&self, looks: bool) {
        let mut listed = self.listed.lock().unwrap();
        *listed = true;
        if looks && self.cancelled.load(Ordering::Acquire) {
            self.asked.store(true, Ordering::Release);
            assert!(!self.child.word.wake(), "it runs");
        }
    }

    /// `Cx::is_cancelled`.
    fn is_cancelled(&self) -> bool {
        self.asked.load(Ordering::Acquire) || self.cancelled.load(Ordering::Acquire)
    }
}

/// The child waits for what never comes: only the cancellation can end it.
fn cancellation(looks: bool) {
    let family = Arc::new(Family {
        cancelled: AtomicBool::new(false),
        listed: Mutex::new(false),
        asked: AtomicBool::new(false),
        child: Sleeper::new(),
    });
    let parent = family.clone();
    let thread = thread::spawn(move || parent.cancel());
    let mut first = true;
    while !family.is_cancelled() {
        if std::mem::take(&mut first) {
            family.list(looks);
        }
        family.child.sleep(Event::Block);
        family.child.resume();
    }
    thread.join().unwrap();
}

#[test]
fn a_child_that_goes_to_sleep_for_the_first_time_is_found_by_the_cancellation() {
    loom::model(|| cancellation(true));
}

#[test]
fn a_child_that_lists_itself_without_a_look_is_lost() {
    must_fail(|| cancellation(false));
}
