//! Who is to be there, in which order, with what, and what becomes of those that end.

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

/// Restarts that a plan allows unless it says otherwise, and in how long a time.
const RESTARTS: usize = 3;
/// See [`RESTARTS`].
const WINDOW: Duration = Duration::from_secs(5);
/// Messages that wait for an actor unless it says otherwise.
const MAILBOX: usize = 64;

/// Who is restarted with a child that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Nobody else.
    OneForOne,
    /// Everybody: the others are stopped, the last first, and all are started again, the first first.
    OneForAll,
    /// Those that were started after it.
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

    /// When it is started again.
    pub fn restart(mut self, restart: Restart) -> Child {
        self.restart = restart;
        self
    }

    /// How many messages wait for it at most; then who sends waits. At least 1.
    pub fn mailbox(mut self, messages: usize) -> Child {
        self.mailbox = messages;
        self
    }

    /// Exactly this budget, for every incarnation: see [`Spawn::budget`](crate::Spawn::budget).
    pub fn budget(mut self, budget: Budget) -> Child {
        self.budget = Some(budget);
        self
    }

    /// When a part of its budget is spent, the supervisor gives it this out of its own, so many times for an
    /// incarnation. After that, and without this at once, it ends with [`Exit::Budget`](super::Exit::Budget).
    pub fn recharge(mut self, amount: Budget, times: u64) -> Child {
        self.recharge = amount;
        self.recharges = times;
        self
    }

    /// The right to have so many children of its own.
    pub fn children(mut self, count: u64) -> Child {
        self.children = count;
        self
    }

    /// Another stack than the runtime's default.
    pub fn stack(mut self, class: StackClass) -> Child {
        self.stack = Some(class);
        self
    }
}

pub(super) type Failure = Box<dyn Error + Send + Sync>;

type Run<'env> = dyn Fn(&Cx) -> Result<(), Failure> + Send + Sync + 'env;

/// What a child runs, each time anew.
pub(super) enum Body<'env> {
    Lent(Box<Run<'env>>),
    /// It borrows nothing, so that it can be given up without its supervisor.
    Owned(Arc<Run<'static>>),
}

type Watcher<'env> = Box<dyn Fn(&Notice<'_>) + Send + Sync + 'env>;

/// A child as the supervisor knows it.
pub(super) struct Member<'env> {
    pub(super) child: Child,
    pub(super) body: Body<'env>,
    pub(super) life: Arc<Life>,
    /// Of a supervisor: those of its children.
    pub(super) mailbox: Box<dyn Mailbox + Send + Sync + 'env>,
}

/// Children, in the order in which they are started, and what becomes of them: see the [module](super).
pub struct Plan<'env> {
    pub(super) strategy: Strategy,
    pub(super) restarts: usize,
    pub(super) window: Duration,
    pub(super) members: Vec<Member<'env>>,
    pub(super) watcher: Option<Watcher<'env>>,
    pub(super) running: AtomicBool,
}

impl<'env> Plan<'env> {
    /// No children yet; three restarts in five seconds.
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

    /// So many restarts in so long a time at most: with the next one it gives up. Each end that leads to a restart counts
    /// once, however many siblings are restarted with it.
    #[must_use]
    pub fn intensity(mut self, restarts: usize, window: Duration) -> Plan<'env> {
        self.restarts = restarts;
        self.window = window;
        self
    }

    /// Calls this, in the supervisor's task, whenever something happens to a child.
    #[must_use]
    pub fn watch(mut self, watcher: impl Fn(&Notice<'_>) + Send + Sync + 'env) -> Plan<'env> {
        self.watcher = Some(Box::new(watcher));
        self
    }

    /// Adds an actor: `body` is called for every incarnation. It ends by returning. If it borrows from others, its
    /// supervisor among them, they are given up with it should it run over its stack: see
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

    /// The same for one that borrows nothing: whatever becomes of it, a stack overflow too, its supervisor restarts it.
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

    /// A mailbox that takes nothing yet: nobody is there.
    fn inbox<M: Send>(child: &Child) -> (Inbox<M>, Arc<Life>) {
        let life = Life::new(child.name);
        let inbox = Inbox::new(child.mailbox, life.clone());
        inbox.shut();
        (inbox, life)
    }

    /// Adds a supervisor, with children of its own. When it gives up, that is a child's failure like any other.
    pub fn supervisor(&mut self, child: Child, plan: Plan<'env>) {
        let children = if child.children == 0 { UNLIMITED } else { child.children };
        let plan = Arc::new(plan);
        let mailbox: Box<dyn Mailbox + Send + Sync + 'env> = Box::new(plan.clone());
        let body = Body::Lent(Box::new(move |cx| Ok(plan.run(cx).map(drop)?)));
        let life = Life::new(child.name);
        self.members.push(Member { child: child.children(children), body, life, mailbox });
    }

    /// Runs the plan in a task of its own; messages may be sent at once. To cancel the handle stops the tree, the last child first.
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
