//! Plans: which children there are, in which order, with what resources, and what happens when one ends.

use super::actor::{Address, Inbox, Mailbox};
use super::life::Life;
use super::supervise::{End, Notice};
use crate::budget::{Budget, UNLIMITED};
use crate::cx::Cx;
use crate::scope::{Handle, Scope};
use crate::stack::StackClass;
use std::error::Error;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How many restarts a plan allows by default, and within what time.
const RESTARTS: usize = 3;
/// See [`RESTARTS`].
const WINDOW: Duration = Duration::from_secs(5);
/// How many messages may wait for an actor by default.
const MAILBOX: usize = 64;

/// Which children are restarted with a child that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// No other child.
    OneForOne,
    /// All: the others are stopped, the last one first, and all are started again, in the order of the plan.
    OneForAll,
    /// The children that were started after it.
    RestForOne,
}

/// When a child that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Always.
    Permanent,
    /// When it ended [abnormally](super::Exit::is_abnormal).
    Transient,
    /// Never, not even with its siblings.
    Temporary,
}

/// What a child is given: see [`Plan::actor`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a child is started by the plan that it is given to"]
pub struct Child {
    pub(super) name: &'static str,
    pub(super) restart: Restart,
    pub(super) mailbox: usize,
    pub(super) budget: Option<Budget>,
    pub(super) recharge: Budget,
    pub(super) recharges: u64,
    pub(super) children: u64,
    pub(super) stack: Option<StackClass>,
}

impl Child {
    /// A permanent child with a mailbox for 64 messages and a share of its supervisor's budget.
    pub fn new(name: &'static str) -> Child {
        Child {
            name,
            restart: Restart::Permanent,
            mailbox: MAILBOX,
            budget: None,
            recharge: Budget::ZERO,
            recharges: 0,
            children: 0,
            stack: None,
        }
    }

    /// When the child is started again.
    pub fn restart(mut self, restart: Restart) -> Child {
        self.restart = restart;
        self
    }

    /// How many messages wait for the child at most; when the mailbox is full, senders wait. At least 1.
    pub fn mailbox(mut self, messages: usize) -> Child {
        self.mailbox = messages;
        self
    }

    /// Exactly this budget, for every incarnation: see [`Spawn::budget`](crate::Spawn::budget).
    pub fn budget(mut self, budget: Budget) -> Child {
        self.budget = Some(budget);
        self
    }

    /// When a part of the child's budget is spent, the supervisor gives it `amount` out of its own, up to `times` times
    /// per incarnation. After that, or at once without this setting, the child ends with
    /// [`Exit::Budget`](super::Exit::Budget).
    pub fn recharge(mut self, amount: Budget, times: u64) -> Child {
        self.recharge = amount;
        self.recharges = times;
        self
    }

    /// The right to have `count` children of its own.
    pub fn children(mut self, count: u64) -> Child {
        self.children = count;
        self
    }

    /// Another stack size than the runtime's default.
    pub fn stack(mut self, class: StackClass) -> Child {
        self.stack = Some(class);
        self
    }
}

pub(super) type Failure = Box<dyn Error + Send + Sync>;

type Run<'env> = dyn Fn(&Cx) -> Result<(), Failure> + Send + Sync + 'env;

/// What every incarnation of a child runs.
pub(super) enum Body<'env> {
    Lent(Box<Run<'env>>),
    /// It borrows nothing, so that the child can be given up without its supervisor.
    Owned(Arc<Run<'static>>),
}

type Watcher<'env> = Box<dyn Fn(&Notice<'_>) + Send + Sync + 'env>;

/// A child as the supervisor knows it.
pub(super) struct Member<'env> {
    pub(super) child: Child,
    pub(super) body: Body<'env>,
    pub(super) life: Arc<Life>,
    /// For a supervisor: the mailboxes of its children.
    pub(super) mailbox: Box<dyn Mailbox + Send + Sync + 'env>,
}

/// The children, in the order in which they are started, and the rules for restarting them: see the [module](super).
pub struct Plan<'env> {
    pub(super) strategy: Strategy,
    pub(super) restarts: usize,
    pub(super) window: Duration,
    pub(super) members: Vec<Member<'env>>,
    pub(super) watcher: Option<Watcher<'env>>,
    pub(super) running: AtomicBool,
}

impl<'env> Plan<'env> {
    /// A plan without children that allows three restarts in five seconds.
    #[must_use]
    pub fn new(strategy: Strategy) -> Plan<'env> {
        Plan {
            strategy,
            restarts: RESTARTS,
            window: WINDOW,
            members: Vec::new(),
            watcher: None,
            running: AtomicBool::new(false),
        }
    }

    /// Allows at most `restarts` restarts within `window`: with the next one the supervisor gives up. Each end that
    /// leads to a restart counts once, however many siblings are restarted with it.
    #[must_use]
    pub fn intensity(mut self, restarts: usize, window: Duration) -> Plan<'env> {
        self.restarts = restarts;
        self.window = window;
        self
    }

    /// Calls this function, in the supervisor's task, whenever something happens to a child.
    #[must_use]
    pub fn watch(mut self, watcher: impl Fn(&Notice<'_>) + Send + Sync + 'env) -> Plan<'env> {
        self.watcher = Some(Box::new(watcher));
        self
    }

    /// Adds an actor: `body` is called for every incarnation, which ends when it returns. If `body` borrows from other
    /// tasks, its supervisor among them, they are given up with it should it run over its stack: see
    /// [`Spawn::owned`](crate::Spawn::owned), and [`Plan::owned_actor`].
    pub fn actor<M, E, F>(&mut self, child: Child, body: F) -> Address<M>
    where
        M: Send + 'env,
        E: Into<Box<dyn Error + Send + Sync>>,
        F: Fn(&Cx, &Inbox<M>) -> Result<(), E> + Send + Sync + 'env,
    {
        let (inbox, life) = Self::inbox(&child);
        let (mailbox, address) = (Box::new(inbox.clone()), inbox.address());
        let body = Body::Lent(Box::new(move |cx| body(cx, &inbox).map_err(Into::into)));
        self.members.push(Member { child, body, life, mailbox });
        address
    }

    /// As [`actor`](Plan::actor), for an actor that borrows nothing: whatever happens to it, even a stack overflow, its
    /// supervisor restarts it.
    pub fn owned_actor<M, E, F>(&mut self, child: Child, body: F) -> Address<M>
    where
        M: Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
        F: Fn(&Cx, &Inbox<M>) -> Result<(), E> + Send + Sync + 'static,
    {
        let (inbox, life) = Self::inbox(&child);
        let (mailbox, address) = (Box::new(inbox.clone()), inbox.address());
        let body = Body::Owned(Arc::new(move |cx| body(cx, &inbox).map_err(Into::into)));
        self.members.push(Member { child, body, life, mailbox });
        address
    }

    /// A mailbox that takes nothing yet, because the actor does not run.
    fn inbox<M: Send>(child: &Child) -> (Inbox<M>, Arc<Life>) {
        let life = Life::new(child.name);
        let inbox = Inbox::new(child.mailbox, life.clone());
        inbox.shut();
        (inbox, life)
    }

    /// Adds a supervisor with children of its own. If it gives up, that is a child's failure like any other.
    pub fn supervisor(&mut self, child: Child, plan: Plan<'env>) {
        let children = if child.children == 0 { UNLIMITED } else { child.children };
        let plan = Arc::new(plan);
        let mailbox: Box<dyn Mailbox + Send + Sync + 'env> = Box::new(plan.clone());
        let body = Body::Lent(Box::new(move |cx| Ok(plan.run(cx).map(drop)?)));
        let life = Life::new(child.name);
        self.members.push(Member { child: child.children(children), body, life, mailbox });
    }

    /// Runs the plan in a task of its own; messages may be sent at once. Cancelling the handle stops the tree, the last
    /// child first.
    #[track_caller]
    pub fn start<'scope>(&'env self, cx: &Cx, nursery: &'scope Scope<'scope, '_>) -> Handle<'scope, End>
    where
        'env: 'scope,
    {
        let mut task = nursery.task().name("supervisor").children(UNLIMITED);
        if let Some(capability) = cx.cap_spawn() {
            task = task.grant_spawn(capability);
        }
        let (claim, at) = (self.claim(), Location::caller());
        task.spawn_try(move |cx| self.run_claimed(cx, claim, at))
    }
}

impl Mailbox for Arc<Plan<'_>> {
    fn shut(&self) {
        self.members.iter().for_each(|member| member.mailbox.shut());
    }

    fn reopen(&self) {
        self.members.iter().for_each(|member| member.mailbox.reopen());
    }
}

impl fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.members.iter().map(|member| member.child.name).collect();
        f.debug_struct("Plan").field("strategy", &self.strategy).field("children", &names).finish()
    }
}
