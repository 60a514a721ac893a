//! The supervisor: it starts the children of a plan, waits for events, and restarts, recharges or stops children.
//!
//! Invariants:
//! 1. Children are started in the order of the plan and stopped in the opposite order, one after the other.
//! 2. A child's next incarnation begins after the last one has ended and dropped everything that it had.
//! 3. When a run ends no child is left, and every mailbox is shut.

use super::exit::{Exit, GaveUp};
use super::life::Strike;
use super::plan::{Body, Member, Plan, Restart, Strategy};
use crate::chan::{Receiver, RecvError, Sender, channel};
use crate::cx::{Cx, ensure_stack};
use crate::error::{Cancelled, SpawnError};
use crate::scope::{Handle, NurseryOptions, Scope};
use crate::state::{Event, TaskState};
use crate::task::Wait;
use std::collections::VecDeque;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How a plan ended, if it did not give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every child has ended for good.
    Finished,
    /// The task that ran the plan was cancelled.
    Stopped,
}

/// Something happened to a child: see [`Plan::watch`].
#[derive(Clone, Copy, Debug)]
pub struct Notice<'a> {
    /// The child's name.
    pub child: &'static str,
    /// Which incarnation it was, counted from 1 over the life of the plan.
    pub incarnation: u64,
    /// When it happened: time since the runtime began, virtual in deterministic mode.
    pub at: Duration,
    /// What happened.
    pub what: What<'a>,
}

/// See [`Notice`].
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// The child was started.
    Started,
    /// The child was given more budget; the number is how many times so far.
    Recharged(u64),
    /// The child has ended.
    Ended(&'a Exit),
    /// Because of this child the supervisor gave up: the others are stopped already.
    GaveUp(&'a GaveUp),
}

/// What the supervisor was woken for.
enum Happened {
    Ended(usize),
    Spent(usize),
    Struck(Strike),
    AllOver,
    Stop,
}

/// Why the supervision ends.
enum Done {
    End(End),
    GaveUp(usize, GaveUp),
}

/// A child, as it runs.
#[derive(Default)]
struct Slot<'scope> {
    handle: Option<Handle<'scope, ()>>,
    incarnation: u64,
    recharged: u64,
    /// The name of the linked actor whose failure ended this child.
    struck: Option<&'static str>,
    /// The child is not to be restarted.
    over: bool,
}

struct Run<'run, 'scope, 'env: 'scope, 'plan> {
    cx: &'run Cx,
    scope: &'scope Scope<'scope, 'env>,
    plan: &'env Plan<'plan>,
    slots: Vec<Slot<'scope>>,
    orders: Receiver<Strike>,
    to_us: Sender<Strike>,
    restarts: VecDeque<Duration>,
    at: &'static Location<'static>,
}

/// Held by the task that runs a plan: from then on the plan's mailboxes take messages. Dropping it establishes
/// invariant 3, also when a watcher panics, or the task never ran.
pub(super) struct Claim<'a, 'plan>(&'a Plan<'plan>);

impl Drop for Claim<'_, '_> {
    fn drop(&mut self) {
        for member in &self.0.members {
            member.life.end(&Exit::Stopped);
            member.mailbox.shut();
        }
        self.0.running.store(false, Ordering::Release);
    }
}

impl<'env> Plan<'env> {
    /// Supervises, in the calling task, until every child has ended for good, the task is cancelled, or the supervisor
    /// gives up. Only one run at a time is allowed: a second one would share the mailboxes, and panics.
    ///
    /// The children live on the calling task's budget, and each start uses up one of the children that the task may
    /// have: [`Spawn::children`](crate::Spawn::children). [`Plan::start`] asks for that right.
    #[track_caller]
    pub fn run(&self, cx: &Cx) -> Result<End, GaveUp> {
        self.run_claimed(cx, self.claim(), Location::caller())
    }

    pub(super) fn claim(&self) -> Claim<'_, 'env> {
        assert!(!self.running.swap(true, Ordering::AcqRel), "this plan is running already");
        for member in &self.members {
            member.mailbox.reopen();
        }
        Claim(self)
    }

    pub(super) fn run_claimed(
        &self,
        cx: &Cx,
        _claim: Claim<'_, '_>,
        at: &'static Location<'static>,
    ) -> Result<End, GaveUp> {
        let mut done = None;
        let nursery = cx.nursery_with(NurseryOptions::new().keep_going(), |scope| {
            // While this exists, only we end an exhausted child, and we are woken for each.
            let _recharger = scope.supervisor();
            let (to_us, orders) = channel(self.members.len().max(1));
            let slots = self.members.iter().map(|_| Slot::default()).collect();
            let restarts = VecDeque::with_capacity(self.restarts.min(1024));
            let mut run = Run { cx, scope, plan: self, slots, orders, to_us, restarts, at };
            done = Some(run.supervise());
            Ok(())
        });
        match done {
            Some(Done::End(end)) => Ok(end),
            Some(Done::GaveUp(_, gave_up)) => Err(gave_up),
            // The body did not run, and the nursery says why: the task was unwinding.
            None => {
                debug_assert!(nursery.is_err());
                Ok(End::Stopped)
            }
        }
    }
}

impl<'env, 'plan> Run<'_, '_, 'env, 'plan> {
    fn member(&self, child: usize) -> &'env Member<'plan> {
        &self.plan.members[child]
    }

    fn tell(&self, child: usize, what: What<'_>) {
        if let Some(watcher) = &self.plan.watcher {
            let (incarnation, at) = (self.slots[child].incarnation, self.cx.now());
            watcher(&Notice { child: self.member(child).child.name, incarnation, at, what });
        }
    }

    fn supervise(&mut self) -> Done {
        let mut step = self.start_from(0, |_| true);
        loop {
            step = match step {
                Ok(()) => match self.next() {
                    Happened::Ended(child) => self.ended(child),
                    Happened::Spent(child) => {
                        self.spent(child);
                        Ok(())
                    }
                    Happened::Struck(strike) => {
                        self.struck(&strike);
                        Ok(())
                    }
                    Happened::AllOver => Err(Done::End(End::Finished)),
                    Happened::Stop => Err(Done::End(End::Stopped)),
                },
                Err(done) => {
                    self.stop_after(None);
                    if let Done::GaveUp(child, gave_up) = &done {
                        self.tell(*child, What::GaveUp(gave_up));
                    }
                    return done;
                }
            };
        }
    }

    /// Waits until there is something to do. Children are looked at in the order of the plan, so that a run can be
    /// repeated.
    fn next(&mut self) -> Happened {
        ensure_stack(self.cx.task);
        loop {
            let find = |is: fn(&Handle<'_, ()>) -> bool| {
                self.slots.iter().position(|slot| slot.handle.as_ref().is_some_and(is))
            };
            if self.cx.is_cancelled() {
                return Happened::Stop;
            }
            if let Some(child) = find(|handle| handle.is_finished()) {
                return Happened::Ended(child);
            }
            if let Some(child) = find(is_spent) {
                return Happened::Spent(child);
            }
            if self.slots.iter().all(|slot| slot.over) {
                return Happened::AllOver;
            }
            let handles = || self.slots.iter().filter_map(|slot| slot.handle.as_ref());
            // A child that has ended meanwhile does not wake us any more.
            let sleep = || {
                if handles().any(|handle| !handle.watch(self.cx) || is_spent(handle)) {
                    return Err(Cancelled);
                }
                self.cx.block(Wait::Join, self.at)
            };
            let mut slept = false;
            let order = self.orders.recv_free(self.cx, || {
                // Sleep once, then look at everything again.
                if std::mem::replace(&mut slept, true) { Err(Cancelled) } else { sleep() }
            });
            match order {
                Ok(strike) => return Happened::Struck(strike),
                Err(RecvError::Empty) => {}
                Err(_) => unreachable!("the supervisor holds a sender of its own"),
            }
        }
    }

    /// Starts, in order, the children from `first` on that `which` selects and that are not over.
    fn start_from(&mut self, first: usize, which: impl Fn(usize) -> bool) -> Result<(), Done> {
        for child in first..self.slots.len() {
            if !self.slots[child].over && self.slots[child].handle.is_none() && which(child) {
                self.start(child)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, child: usize) -> Result<(), Done> {
        let member = self.member(child);
        let terms = &member.child;
        let incarnation = member.life.begin(self.to_us.clone(), child);
        let mut task = self.scope.task().name(terms.name).children(terms.children);
        if let Some(budget) = terms.budget {
            task = task.budget(budget);
        }
        if let Some(stack) = terms.stack {
            task = task.stack(stack);
        }
        if terms.children > 0
            && let Some(capability) = self.cx.cap_spawn()
        {
            task = task.grant_spawn(capability);
        }
        let started = match &member.body {
            Body::Lent(body) => task.try_spawn_try(move |cx| body(cx)),
            Body::Owned(body) => {
                let body = body.clone();
                task.owned().try_spawn_try(move |cx| body(cx))
            }
        };
        match started {
            Ok(handle) => {
                self.slots[child] = Slot { handle: Some(handle), incarnation, ..Slot::default() };
                self.tell(child, What::Started);
                Ok(())
            }
            Err(error) => {
                let exit = Exit::NotStarted(error);
                member.life.end(&exit);
                // A supervisor that is itself cancelled starts no child, and has not failed.
                let stopped = error == SpawnError::Cancelled;
                Err(if stopped { Done::End(End::Stopped) } else { self.gave_up(child, exit) })
            }
        }
    }

    /// Handles a child that has ended by itself.
    fn ended(&mut self, child: usize) -> Result<(), Done> {
        let exit = self.bury(child, false);
        let again = match self.member(child).child.restart {
            Restart::Permanent => true,
            Restart::Transient => exit.is_abnormal(),
            Restart::Temporary => false,
        };
        if !again {
            self.over(child);
            return Ok(());
        }
        let now = self.cx.now();
        while self.restarts.front().is_some_and(|&then| now.saturating_sub(then) > self.plan.window) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= self.plan.restarts {
            return Err(self.gave_up(child, exit));
        }
        self.restarts.push_back(now);
        match self.plan.strategy {
            Strategy::OneForOne => self.start(child),
            Strategy::OneForAll => {
                self.stop_after(None);
                self.start_from(0, |_| true)
            }
            Strategy::RestForOne => {
                self.stop_after(Some(child));
                self.start_from(child, |_| true)
            }
        }
    }

    fn gave_up(&self, child: usize, exit: Exit) -> Done {
        let Plan { restarts, window, .. } = *self.plan;
        Done::GaveUp(child, GaveUp { child: self.member(child).child.name, exit, restarts, window })
    }

    /// Marks a child that is not started again in this run: tasks that send to it learn that.
    fn over(&mut self, child: usize) {
        self.slots[child].over = true;
        self.member(child).mailbox.shut();
    }

    /// Handles a child that has no budget left.
    fn spent(&mut self, child: usize) {
        let terms = &self.member(child).child;
        let slot = &mut self.slots[child];
        let Some(handle) = &slot.handle else { return };
        if slot.recharged < terms.recharges && handle.recharge(&terms.recharge).is_ok() {
            slot.recharged += 1;
            let times = slot.recharged;
            self.tell(child, What::Recharged(times));
        } else {
            handle.give_up();
        }
    }

    /// Ends a child because of a link, if it is still the incarnation that was meant.
    fn struck(&mut self, strike: &Strike) {
        let slot = &mut self.slots[strike.child];
        if let Some(handle) = &slot.handle
            && slot.incarnation == strike.incarnation
        {
            slot.struck = Some(strike.because);
            handle.cancel();
        }
    }

    /// Takes the result of a child that has ended, and tells its watchers and links.
    fn bury(&mut self, child: usize, stopped: bool) -> Exit {
        let member = self.member(child);
        let slot = &mut self.slots[child];
        let handle = slot.handle.take().expect("it ran");
        let exit = match (Exit::of(handle.join(self.cx)), slot.struck) {
            // What the child returned after it was asked to end does not matter.
            (Exit::Normal | Exit::Cancelled | Exit::Failed(_), Some(because)) => Exit::Linked(because),
            (Exit::Normal | Exit::Cancelled | Exit::Failed(_), None) if stopped => Exit::Stopped,
            (exit, _) => exit,
        };
        member.life.end(&exit);
        self.tell(child, What::Ended(&exit));
        exit
    }

    /// Stops all children after `first`, or all, the last one first, and waits for each, even if we are cancelled
    /// meanwhile.
    fn stop_after(&mut self, first: Option<usize>) {
        ensure_stack(self.cx.task);
        for child in (first.map_or(0, |first| first + 1)..self.slots.len()).rev() {
            let Some(handle) = &self.slots[child].handle else { continue };
            handle.cancel();
            while handle.watch(self.cx) {
                self.cx.stop_if_doomed();
                self.cx.worker().sleep(self.cx.task, Event::Block, Wait::Join, self.at);
            }
            self.bury(child, true);
            if self.member(child).child.restart == Restart::Temporary {
                self.over(child);
            }
        }
    }
}

/// Whether the child is stopped for want of budget.
fn is_spent(handle: &Handle<'_, ()>) -> bool {
    handle.state() == TaskState::BudgetExhausted
}
