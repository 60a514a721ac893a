//! The supervisor: it starts the children of a plan, waits for what happens to them, and restarts, recharges or stops.
//!
//! Invariants:
//! 1. Children are started in the order of the plan and stopped in the opposite order, one after the other.
//! 2. A child's next incarnation begins after the last one has ended, with all that it had.
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
    /// Its task was cancelled.
    Stopped,
}

/// Something happened to a child: see [`Plan::watch`].
#[derive(Clone, Copy, Debug)]
pub struct Notice<'a> {
    /// Its name.
    pub child: &'static str,
    /// Which incarnation it was, counted from 1 over the life of the plan.
    pub incarnation: u64,
    /// When: time since the runtime began, virtual in deterministic mode.
    pub at: Duration,
    /// What happened.
    pub what: What<'a>,
}

/// See [`Notice`].
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// It was started.
    Started,
    /// It was given more budget, for so many times now.
    Recharged(u64),
    /// It has ended.
    Ended(&'a Exit),
    /// Because of it the supervisor gave up: the others are stopped already.
    GaveUp(&'a GaveUp),
}

/// What the supervisor woke up for.
enum Happened {
    Ended(usize),
    Spent(usize),
    Struck(Strike),
    AllOver,
    Stop,
}

/// Why no more is to be done.
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
    /// The link that ended it.
    struck: Option<&'static str>,
    /// Not to be restarted.
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

/// Who runs a plan holds this: from then on its mailboxes take messages. Its end is invariant 3, also when a watcher
/// panics, or the task never ran.
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
    /// Supervises, in the calling task, until every child has ended for good, the task is cancelled, or it gives up. One
    /// run at a time: a second one, meanwhile, would share the mailboxes, and panics.
    ///
    /// The children live on the calling task's budget, and each start costs its right to spawn one:
    /// [`Spawn::children`](crate::Spawn::children). [`Plan::start`] asks for that.
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
            // While it is there, nobody ends an exhausted child but us, and we are woken for each.
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
            // The body ran, or the nursery says why not: the task was unwinding.
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

    /// Waits until there is something to do. The first child in the plan goes first: the same run, the same order.
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
            // One that has ended meanwhile does not wake us any more.
            let sleep = || {
                if handles().any(|handle| !handle.watch(self.cx) || is_spent(handle)) {
                    return Err(Cancelled);
                }
                self.cx.block(Wait::Join, self.at)
            };
            let mut slept = false;
            let order = self.orders.recv_free(self.cx, || {
                // Once: then look at everything again.
                if std::mem::replace(&mut slept, true) { Err(Cancelled) } else { sleep() }
            });
            match order {
                Ok(strike) => return Happened::Struck(strike),
                Err(RecvError::Empty) => {}
                Err(_) => unreachable!("the supervisor holds a sender of its own"),
            }
        }
    }

    /// Starts, in order, those from `first` on that `which` names and that are not over.
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
                // Who is cancelled itself starts nobody, and has not failed.
                let stopped = error == SpawnError::Cancelled;
                Err(if stopped { Done::End(End::Stopped) } else { self.gave_up(child, exit) })
            }
        }
    }

    /// A child has ended by itself.
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

    /// It is not started again in this run: who sends to it learns that.
    fn over(&mut self, child: usize) {
        self.slots[child].over = true;
        self.member(child).mailbox.shut();
    }

    /// A child has no budget left.
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

    /// A link ends a child, if it is still the one that was meant.
    fn struck(&mut self, strike: &Strike) {
        let slot = &mut self.slots[strike.child];
        if let Some(handle) = &slot.handle
            && slot.incarnation == strike.incarnation
        {
            slot.struck = Some(strike.because);
            handle.cancel();
        }
    }

    /// Takes the result of a child that has ended, and tells who is to know.
    fn bury(&mut self, child: usize, stopped: bool) -> Exit {
        let member = self.member(child);
        let slot = &mut self.slots[child];
        let handle = slot.handle.take().expect("it ran");
        let exit = match (Exit::of(handle.join(self.cx)), slot.struck) {
            // What it returns when it is asked to end is its own affair.
            (Exit::Normal | Exit::Cancelled | Exit::Failed(_), Some(because)) => Exit::Linked(because),
            (Exit::Normal | Exit::Cancelled | Exit::Failed(_), None) if stopped => Exit::Stopped,
            (exit, _) => exit,
        };
        member.life.end(&exit);
        self.tell(child, What::Ended(&exit));
        exit
    }

    /// Stops all children after this one, or all, the last first, and waits for each, whatever happens to us meanwhile.
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

/// Is it stopped for want of budget?
fn is_spent(handle: &Handle<'_, ()>) -> bool {
    handle.state() == TaskState::BudgetExhausted
}
