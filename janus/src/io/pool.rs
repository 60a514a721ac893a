//! Threads for calls that can only block: resolving a name, opening a file, starting a process. Their number is
//! limited; more calls wait their turn, and their tasks with them.
//!
//! A call owns what it works with. A task that is cancelled does not wait for its call, unless that is asked for: a
//! call that has begun goes on, and the thread that ran it drops its result. A call that has not begun leaves the queue
//! with its task, so the queue is never longer than the number of waiting tasks, even while all threads are stuck.

use super::{IoError, charge, refused};
use crate::alloc::Quiet;
use crate::budget::Operation;
use crate::cx::{Cx, ensure_stack};
use crate::lock::SpinLock;
use crate::runtime::Shared;
use crate::state::Event;
use crate::task::Wait;
use crate::waiter::{Waiter, Wakeup};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Result as Caught;
use std::time::Duration;

/// How long a thread waits for another call before it ends.
const LINGER: Duration = Duration::from_secs(5);

/// A call, and the address of its slot, which identifies it.
struct Call {
    slot: usize,
    run: Box<dyn FnOnce() + Send>,
}

/// See the module. The threads share its ownership, so that a call which never ends does not delay the end of the
/// runtime.
pub(crate) struct Pool {
    most: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    calls: VecDeque<Call>,
    threads: usize,
    idle: usize,
    /// The runtime is gone.
    closed: bool,
}

impl Pool {
    pub(crate) fn new(most: usize) -> Arc<Pool> {
        Arc::new(Pool { most, state: Mutex::default(), work: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Pool>, call: Call) -> io::Result<()> {
        let mut state = self.lock();
        state.calls.push_back(call);
        if state.idle >= state.calls.len() {
            self.work.notify_one();
        } else if state.threads < self.most {
            let pool = self.clone();
            let started =
                std::thread::Builder::new().name("janus-blocking".into()).spawn(move || pool.serve());
            match started {
                Ok(_) => state.threads += 1,
                // The existing threads will do it.
                Err(_) if state.threads > 0 => {}
                Err(error) => {
                    state.calls.pop_back();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                // It can panic only in the destructor of a call that is not wanted any more.
                crate::panics::contain(call.run);
                state = self.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let (next, timeout) =
                self.work.wait_timeout(state, LINGER).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timeout.timed_out() && state.calls.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }

    /// Takes back a call that has not begun; `None`: a thread has it already.
    fn withdraw(&self, slot: usize) -> Option<Call> {
        let mut state = self.lock();
        let at = state.calls.iter().position(|call| call.slot == slot)?;
        state.calls.remove(at)
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }
}

/// Where a call leaves its result for the task that waits for it.
enum Slot<T> {
    Waiting(Waiter),
    Running(Waiter),
    Done(Caught<T>),
    /// The task was cancelled, or has its result.
    Gone,
}

/// Runs a call that can only block on another thread, and meanwhile blocks the task, but not the worker. It costs one
/// of `syscalls`.
///
/// When the task is cancelled, the result is [`IoError::Cancelled`] at once; a call that has begun goes on, and what it
/// returns is dropped. That is why the call owns everything that it works with. A panic of the call becomes a panic of
/// the task.
///
/// ```
/// # let runtime = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
/// let host = runtime.run(|cx| janus::io::unblock(cx, || std::fs::read_to_string("/etc/hostname"))).unwrap();
/// # drop(host);
/// ```
#[track_caller]
pub fn unblock<T, F>(cx: &Cx, call: F) -> io::Result<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    unblock_as(cx, Operation::FileIo, Location::caller(), Ending::Abandon, call)
}

/// What happens to a call that has begun when its task is cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The call goes on by itself.
    Abandon,
    /// The task waits for the call: it is short, and its effect must not come later.
    Await,
}

/// As [`unblock`], for any row of the cost table.
pub(crate) fn unblock_as<T, F>(
    cx: &Cx,
    cost: Operation,
    at: &'static Location<'static>,
    ending: Ending,
    call: F,
) -> io::Result<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    charge(cx, cost, at)?;
    refused(cx)?;
    ensure_stack(cx.task);
    if cx.is_cancelled() || cx.panicking() {
        return Err(IoError::why(cx).into());
    }
    let slot = {
        let _quiet = Quiet::new();
        let slot = Arc::new(SpinLock::new(Slot::Waiting(cx.waiter())));
        let theirs = slot.clone();
        let run = Box::new(move || deliver(&theirs, call));
        cx.shared().pool.submit(Call { slot: Arc::as_ptr(&slot).addr(), run })?;
        slot
    };
    let mut cancelled = false;
    loop {
        match look(&slot, cancelled, ending) {
            Ok(Some(result)) => return Ok(result.unwrap_or_else(|panic| resume_unwind(panic))),
            Ok(None) => {}
            Err(Gone) => {
                let unwanted = cx.shared().pool.withdraw(Arc::as_ptr(&slot).addr());
                // What the call owned belongs to the user: it is not dropped under the pool's lock.
                drop(unwanted);
                cx.stop_if_doomed();
                return Err(IoError::why(cx).into());
            }
        }
        if cancelled {
            cx.worker().sleep(cx.task, Event::Block, Wait::Io, at);
        } else {
            cancelled = cx.block(Wait::Io, at).is_err();
        }
    }
}

/// The task gave its call up.
struct Gone;

/// The result, if it is there; the error means that the task gives the call up.
fn look<T>(slot: &SpinLock<Slot<T>>, cancelled: bool, ending: Ending) -> Result<Option<Caught<T>>, Gone> {
    let mut slot = slot.lock();
    match &*slot {
        Slot::Waiting(_) if cancelled => {}
        Slot::Running(_) if cancelled && ending == Ending::Abandon => {}
        Slot::Waiting(_) | Slot::Running(_) => return Ok(None),
        Slot::Done(_) | Slot::Gone => {}
    }
    match std::mem::replace(&mut *slot, Slot::Gone) {
        Slot::Done(result) => Ok(Some(result)),
        _ => Err(Gone),
    }
}

/// Runs a call and delivers its result. On a thread of the pool.
fn deliver<T>(slot: &SpinLock<Slot<T>>, call: impl FnOnce() -> T) {
    let begins = {
        let mut slot = slot.lock();
        match *slot {
            Slot::Waiting(waiter) => {
                *slot = Slot::Running(waiter);
                true
            }
            // Cancelled before it began.
            _ => false,
        }
    };
    if !begins {
        return;
    }
    let result = catch_unwind(AssertUnwindSafe(call));
    let mut there = slot.lock();
    match std::mem::replace(&mut *there, Slot::Gone) {
        Slot::Running(waiter) => {
            *there = Slot::Done(result);
            // The task still waits, so its runtime exists until the task is woken.
            let waiter = Wakeup::new(waiter, std::ptr::null::<Shared>());
            drop(there);
            waiter.wake(None);
        }
        _ => {
            drop(there);
            crate::panics::contain(|| drop(result));
        }
    }
}
