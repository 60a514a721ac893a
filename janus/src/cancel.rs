//! When a task is asked to end, and by what: scopes with a deadline, shields, and nurseries that failed.
//!
//! A task may have several scopes open, one inside the other:
//!
//! ```text
//!   the task:  asked from outside (its nursery, its handle)     masked by a shield, as long as its grace lasts
//!    '- nursery, failed                                         ends the body that stands in it
//!        '- shield(grace)
//!            '- deadline                                        ends what stands in it
//!                '- the code that runs, and asks
//! ```
//!
//! Invariants:
//! 1. Only the task itself reads or writes its list of scopes; the scopes lie in its frames. Other threads use flags: a
//!    thread that fails a nursery marks the nursery, then the task, then wakes the task.
//! 2. `flag::SCOPED` is set while the list has to be searched: a deadline or a shield is open, or a nursery has failed.
//!    So a task without scopes pays nothing for them.
//! 3. A shield holds off neither the end of a budget (`SPENT`, `OVERDRAWN`) nor that of a family that is given up.

use crate::cx::{Cx, ensure_stack};
use crate::error::TaskError;
use crate::nursery::Nursery;
use crate::task::flag;
use crate::timers::{NEVER, Timer};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a scope is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Asks the code inside it to end at this time.
    Deadline(u64),
    /// Holds off requests from outside of it, for this long after the task has learned of one.
    Shield(u64),
}

/// A deadline or a shield that the task has open. It lies in the frame of the call that opened it.
pub(crate) struct Node {
    kind: Kind,
    outer: *const Node,
    /// The innermost nursery that was open when the scope was opened: nurseries that were opened later are inside of
    /// this scope.
    nursery: *const Nursery,
    /// Of a deadline: it has asked the task to end.
    spoke: Cell<bool>,
    /// Of a shield that holds off a request: when its grace is over, and the timer for that.
    ends: Cell<u64>,
    timer: Cell<Option<Timer>>,
}

/// Where a request to end comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Nobody,
    /// From a scope of the task's own.
    Inside,
    /// From outside: the whole task is to end.
    Outside,
}

/// Leaves the innermost scope, also when the task unwinds.
struct Leave<'a> {
    cx: &'a Cx,
    node: &'a Node,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.cx.task.scopes().set(self.node.outer);
        if let Some(timer) = self.node.timer.take() {
            self.cx.shared().timers.disarm(timer);
        }
        self.cx.look_for_scopes();
    }
}

impl Cx {
    /// Runs `body`, in which every wait fails from the time `at` on, which is on the clock of [`Cx::now`]. If `body`
    /// passes that error on, the result is [`TaskError::TimedOut`]; if `body` returns a value all the same, that is the
    /// result.
    ///
    /// Scopes nest: the earliest deadline counts. Nurseries inside are cancelled with their children.
    ///
    /// ```
    /// # use janus::{Config, Runtime, TaskError};
    /// # use std::time::Duration;
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let end = runtime.run(|cx| {
    ///     let soon = cx.now() + Duration::from_millis(1);
    ///     cx.deadline(soon, || Ok(cx.sleep(Duration::from_secs(3600))?))
    /// }).unwrap();
    /// assert!(matches!(end, Err(TaskError::TimedOut)));
    /// ```
    #[track_caller]
    pub fn deadline<R>(
        &self,
        at: Duration,
        body: impl FnOnce() -> Result<R, TaskError>,
    ) -> Result<R, TaskError> {
        let at = u64::try_from(at.as_nanos()).unwrap_or(NEVER).min(NEVER - 1);
        self.deadline_at(at, body)
    }

    /// As [`deadline`](Cx::deadline), `time` from now.
    ///
    /// ```
    /// # use janus::{Config, Runtime, TaskError, channel};
    /// # use std::time::Duration;
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let end = runtime.run(|cx| {
    ///     let (_silent, numbers) = channel::<u32>(0);
    ///     cx.timeout(Duration::from_millis(1), || Ok(numbers.recv(cx)?))
    /// }).unwrap();
    /// assert!(matches!(end, Err(TaskError::TimedOut)));
    /// ```
    #[track_caller]
    pub fn timeout<R>(
        &self,
        time: Duration,
        body: impl FnOnce() -> Result<R, TaskError>,
    ) -> Result<R, TaskError> {
        self.deadline_at(self.until(time), body)
    }

    fn deadline_at<R>(&self, at: u64, body: impl FnOnce() -> Result<R, TaskError>) -> Result<R, TaskError> {
        ensure_stack(self.task);
        let timer = self.arm(at);
        let node = self.node(Kind::Deadline(at), Some(timer));
        let result = self.inside(&node, body);
        match result {
            Err(error) if node.spoke.get() && error.is_cancelled() => Err(TaskError::TimedOut),
            result => result,
        }
    }

    /// Runs `body` to its end although the task is cancelled, or a deadline around it is over: for clean-up that has to
    /// wait, such as a last message or a flush. The shield holds the request to end off for `grace`, counted from when
    /// the task has learned of it, or from here if it has already; after that, waits in `body` fail as they would have
    /// without the shield.
    ///
    /// A deadline or a nursery inside the shield can end `body` earlier. A shield does not hold off the end of a
    /// budget, and while a task unwinds (a panic) nothing waits, shield or not.
    ///
    /// ```
    /// # use janus::{Config, Runtime, channel};
    /// # use std::time::Duration;
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let said = runtime.run(|cx| cx.nursery(|nursery| {
    ///     let (to_us, heard) = channel(0);
    ///     let child = nursery.spawn(move |cx| {
    ///         to_us.send(cx, "hello").unwrap();
    ///         let _ = cx.sleep(Duration::from_secs(3600));
    ///         // Cancelled: every wait would end at once, but this one may take a minute.
    ///         let _ = cx.shield(Duration::from_secs(60), || to_us.send(cx, "bye"));
    ///     });
    ///     let hello = heard.recv(cx)?;
    ///     child.cancel();
    ///     Ok((hello, heard.recv(cx)?))
    /// })).unwrap().unwrap();
    /// assert_eq!(said, ("hello", "bye"));
    /// ```
    #[track_caller]
    pub fn shield<R>(&self, grace: Duration, body: impl FnOnce() -> R) -> R {
        ensure_stack(self.task);
        let grace = u64::try_from(grace.as_nanos()).unwrap_or(NEVER);
        let node = self.node(Kind::Shield(grace), None);
        self.inside(&node, body)
    }

    fn node(&self, kind: Kind, timer: Option<Timer>) -> Node {
        Node {
            kind,
            outer: self.task.scopes().get(),
            nursery: self.task.open.get(),
            spoke: Cell::new(false),
            ends: Cell::new(NEVER),
            timer: Cell::new(timer),
        }
    }

    fn inside<R>(&self, node: &Node, body: impl FnOnce() -> R) -> R {
        self.task.scopes().set(node);
        self.task.set(flag::SCOPED);
        let _leave = Leave { cx: self, node };
        body()
    }

    /// After a scope was left: does the list still have to be searched (invariant 2)?
    pub(crate) fn look_for_scopes(&self) {
        if !self.task.has(flag::SCOPED) {
            return;
        }
        // The flag is cleared first: a thread that fails a nursery marks the nursery before it sets this flag, so
        // either we see the mark or the flag stays.
        self.task.flags.fetch_and(!flag::SCOPED, Ordering::AcqRel);
        let mut nursery = self.task.open.get();
        let mut failed = false;
        // SAFETY: the nurseries that the task has open lie in its frames, or in boxes.
        while let Some(open) = unsafe { nursery.as_ref() } {
            failed |= open.is_failed();
            nursery = open.outer.get();
        }
        if failed || !self.task.scopes().get().is_null() {
            self.task.set(flag::SCOPED);
        }
    }

    /// Decides whether the task must end here, when something may have asked it to. `outside`: the whole task was asked
    /// to end. `except`: a nursery whose failure does not count.
    pub(crate) fn must_end(&self, outside: bool, except: *const Nursery) -> bool {
        let asks = self.who_asks(outside, except);
        if asks == Asks::Outside {
            self.task.set(flag::SAW_CANCEL);
        }
        asks != Asks::Nobody
    }

    fn who_asks(&self, outside: bool, except: *const Nursery) -> Asks {
        let mut now = None;
        let mut now = || *now.get_or_insert_with(|| self.shared().now_ns());
        let mut nursery = self.task.open.get();
        let mut scope = self.task.scopes().get();
        loop {
            // SAFETY: the scopes that the task has open lie in its frames.
            let node = unsafe { scope.as_ref() };
            let end = node.map_or(std::ptr::null(), |node| node.nursery);
            while !std::ptr::eq(nursery, end) {
                // SAFETY: as above, or in boxes.
                let Some(open) = (unsafe { nursery.as_ref() }) else { break };
                if open.is_failed() && !std::ptr::eq(open, except) {
                    return Asks::Inside;
                }
                nursery = open.outer.get();
            }
            let Some(node) = node else { break };
            scope = node.outer;
            match node.kind {
                Kind::Deadline(at) if now() >= at => {
                    node.spoke.set(true);
                    return Asks::Inside;
                }
                Kind::Deadline(_) => {}
                Kind::Shield(grace) => {
                    // Behind the shield is the rest of the list. Here it only matters whether anything there asks.
                    let behind = self.asks_behind(node, outside, except, now());
                    if !behind {
                        return Asks::Nobody;
                    }
                    if node.ends.get() == NEVER {
                        let ends = now().saturating_add(grace).min(NEVER - 1);
                        node.ends.set(ends);
                        node.timer.set(Some(self.arm(ends)));
                    }
                    if now() < node.ends.get() {
                        return Asks::Nobody;
                    }
                }
            }
        }
        if outside { Asks::Outside } else { Asks::Nobody }
    }

    /// Whether anything behind this shield asks, regardless of shields further out.
    fn asks_behind(&self, shield: &Node, outside: bool, except: *const Nursery, now: u64) -> bool {
        let mut nursery = shield.nursery;
        // SAFETY: as in `who_asks`.
        while let Some(open) = unsafe { nursery.as_ref() } {
            if open.is_failed() && !std::ptr::eq(open, except) {
                return true;
            }
            nursery = open.outer.get();
        }
        let mut scope = shield.outer;
        // SAFETY: as above.
        while let Some(node) = unsafe { scope.as_ref() } {
            if matches!(node.kind, Kind::Deadline(at) if now >= at) {
                return true;
            }
            scope = node.outer;
        }
        outside
    }
}
