//! Nurseries as Rust programs see them: children borrow from the scope that opens them, and cannot outlive it.
//!
//! Soundness rests on the argument of `std::thread::scope`: [`Cx::nursery`] returns only when every child has ended,
//! also when its closure panics; `'scope` is invariant and cannot be named outside, so no child and no handle leaves
//! it.

use crate::alloc::Quiet;
use crate::budget::{Budget, Resource};
use crate::caps::CapSpawn;
use crate::chan::Selected;
use crate::cx::{Cx, TaskId, ensure_stack, make_room_here};
use crate::error::{Cancelled, RechargeError, SpawnError, TaskError};
use crate::job::{self, Fallible, Order, Plain};
use crate::nursery::{Nursery, OnExhausted, Pool, Recharge, Terms};
use crate::runtime::Shared;
use crate::stack::StackClass;
use crate::state::TaskState;
use crate::task::{Naming, Priority, TaskRef, Wait, flag};
use crate::waiter::wake_task;
use crate::worker::{Worker, current_worker};
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

mod arms;

pub use arms::{DrainArm, JoinArm};

/// How often a task polls whether a child of another runtime has ended.
pub(crate) const FOREIGN_LOOK: Duration = Duration::from_micros(200);

/// An open nursery: see [`Cx::nursery`].
///
/// `'scope` is the nursery's own lifetime, `'env` the lifetime of what its children may borrow, as in
/// `std::thread::scope`. Children may spawn siblings: give them the scope by reference.
pub struct Scope<'scope, 'env: 'scope> {
    nursery: Nursery,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// How a nursery is opened: see [`Cx::nursery_with`].
///
/// ```
/// # use janus::{Budget, Config, NurseryOptions, Resource, Runtime, TaskError};
/// // A task with 1,000 operations sets 600 aside for its children; 600 more are not there.
/// let config = Config::new().root_budget(Budget::UNLIMITED.with(Resource::Ops, 1_000));
/// let pool = NurseryOptions::new().pool(Budget { ops: 600, ..Budget::ZERO });
/// let (one, two) = unsafe { Runtime::new(config) }.unwrap().run(|cx| {
///     let mut two = Ok(());
///     let one = cx.nursery_with(pool, |_| { two = cx.nursery_with(pool, |_| Ok(())); Ok(()) });
///     (one, two)
/// }).unwrap();
/// assert!(one.is_ok());
/// assert!(matches!(two, Err(TaskError::Pool(Resource::Ops))));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NurseryOptions {
    pool: Option<Budget>,
    share: Budget,
    recharge: Option<Recharge>,
    on_exhausted: OnExhausted,
    keep_going: bool,
}

impl Default for NurseryOptions {
    fn default() -> NurseryOptions {
        NurseryOptions {
            pool: None,
            share: Budget::CHILD,
            recharge: None,
            on_exhausted: OnExhausted::default(),
            keep_going: false,
        }
    }
}

impl NurseryOptions {
    /// The children live on the opening task's own budget, each with [`Budget::CHILD`] at most.
    #[must_use]
    pub fn new() -> NurseryOptions {
        NurseryOptions::default()
    }

    /// Gives the nursery a pool of its own, taken out of the opening task's budget; what is left goes back at the end.
    #[must_use]
    pub fn pool(mut self, pool: Budget) -> NurseryOptions {
        self.pool = Some(pool);
        self
    }

    /// What a child gets at most, unless it asks for an exact amount.
    #[must_use]
    pub fn share(mut self, share: Budget) -> NurseryOptions {
        self.share = share;
        self
    }

    /// Who recharges children; by default, what the profile says.
    #[must_use]
    pub fn recharge(mut self, recharge: Recharge) -> NurseryOptions {
        self.recharge = Some(recharge);
        self
    }

    /// What happens to children that have spent their budget, unless [`Spawn::on_exhausted`] says otherwise.
    #[must_use]
    pub fn on_exhausted(mut self, rule: OnExhausted) -> NurseryOptions {
        self.on_exhausted = rule;
        self
    }

    /// A failing child ends only itself: siblings and the body go on, and the nursery returns the first failure when
    /// all have ended. For servers whose connections have nothing to do with each other.
    #[must_use]
    pub fn keep_going(mut self) -> NurseryOptions {
        self.keep_going = true;
        self
    }
}

impl Cx {
    /// Opens a nursery, runs `body`, and returns when every child that was spawned in it has ended.
    ///
    /// The nursery fails with the first failure: that of a child (a panic, a spent budget, an `Err` of a
    /// [`spawn_try`](Scope::spawn_try)), a spawn that was refused, or the body's own `Err`. A failure cancels the other
    /// children, and ends the body's waits with [`Cancelled`]; [`NurseryOptions::keep_going`] lets them go on. A child
    /// that was asked to end has not failed. A panic of `body` cancels the children and continues when they have ended.
    /// A task that is unwinding gets [`TaskError::Cancelled`] at once, as it may not wait.
    ///
    /// ```
    /// # use janus::{Config, Runtime, TaskError, channel};
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let end: Result<u32, TaskError> = runtime.run(|cx| cx.nursery(|nursery| {
    ///     let (_silent, numbers) = channel::<u32>(0);
    ///     let patient = numbers.clone();
    ///     nursery.spawn(move |cx| patient.recv(cx));
    ///     nursery.spawn_try(|_cx| "seven".parse::<u32>());
    ///     // Both waits end: nobody is left alone with a sibling's failure.
    ///     Ok(numbers.recv(cx)?)
    /// })).unwrap();
    /// assert_eq!(end.unwrap_err().to_string(), "the task failed: invalid digit found in string");
    /// ```
    #[track_caller]
    pub fn nursery<'env, R, F>(&self, body: F) -> Result<R, TaskError>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, TaskError>,
    {
        self.nursery_with(NurseryOptions::new(), body)
    }

    /// As [`nursery`](Cx::nursery), with a pool, shares or other rules.
    #[track_caller]
    pub fn nursery_with<'env, R, F>(&self, options: NurseryOptions, body: F) -> Result<R, TaskError>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, TaskError>,
    {
        let at = Location::caller();
        let task = self.task;
        ensure_stack(task);
        if self.panicking() {
            return Err(TaskError::Cancelled);
        }
        if let Some(pool) = options.pool {
            self.take_pool(&pool).map_err(TaskError::Pool)?;
        }
        let terms = Terms {
            pool: options.pool.map_or(Pool::Of(task), Pool::Own),
            share: options.share,
            recharge: options.recharge.unwrap_or(self.shared().config.recharge()),
            on_exhausted: options.on_exhausted,
            cancel_on_error: !options.keep_going,
        };
        let scope = Scope {
            nursery: Nursery::new(task.shared, self.waiter(), &terms),
            scope: PhantomData,
            env: PhantomData,
        };
        scope.nursery.outer.set(task.open.replace(&raw const scope.nursery));
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        self.end_body(&scope.nursery, &result);
        scope.nursery.close();
        self.wait_for_children(&scope.nursery, at);
        task.open.set(scope.nursery.outer.get());
        self.look_for_scopes();
        if options.pool.is_some() {
            self.give_pool(&scope.nursery.end_pool());
        }
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        match scope.nursery.take_error() {
            Some(error) => Err(error),
            None if scope.nursery.is_cancelled() => Err(TaskError::Cancelled),
            None => result,
        }
    }

    /// A body that panicked or failed cancels the children.
    #[inline]
    fn end_body<R>(&self, nursery: &Nursery, result: &std::thread::Result<Result<R, TaskError>>) {
        let error = match result {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        if let Some(error) = error
            && !error.is_cancelled()
        {
            // Only the first error counts: a child may have failed before.
            drop(nursery.keep_error(error.clone()));
        }
        if error.is_none() || nursery.cancel_on_error {
            nursery.cancel(Some(self.worker()));
        }
    }

    /// Takes all of the pool out of the task's budget, or nothing.
    fn take_pool(&self, pool: &Budget) -> Result<(), Resource> {
        for (index, resource) in Resource::ALL.into_iter().enumerate() {
            let wanted = pool.get(resource);
            let taken = self.task.draw(resource, wanted);
            if taken < wanted {
                self.task.fill(resource, taken);
                for earlier in &Resource::ALL[..index] {
                    self.task.fill(*earlier, pool.get(*earlier));
                }
                return Err(resource);
            }
        }
        Ok(())
    }

    pub(crate) fn give_pool(&self, left: &Budget) {
        for resource in Resource::ALL {
            match left.get(resource) {
                0 => {}
                left => self.task.fill(resource, left),
            }
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a child. Its closure gets the child's own [`Cx`] and may borrow whatever outlives the nursery.
    ///
    /// There is no error to check: a refused spawn ([`SpawnError`]: a budget, a capability, no memory) is a failure of
    /// the nursery, like that of a child, and also the handle's result. In `:service` no spawn is refused to a task
    /// whose right to [spawn children](Spawn::children) is not spent, as long as there is memory. A caller that can
    /// handle a refusal uses [`try_spawn`](Scope::try_spawn).
    #[track_caller]
    #[inline]
    pub fn spawn<T, F>(&'scope self, body: F) -> Handle<'scope, T>
    where
        F: FnOnce(&Cx) -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.task().spawn(body)
    }

    /// Starts a child that may fail: its `Err` is the child's failure, and the nursery's if it is the first. Whoever
    /// joins the handle gets the error too. [`Cancelled`], passed on with `?`, becomes [`TaskError::Cancelled`] and not
    /// a failure of its own.
    #[track_caller]
    pub fn spawn_try<T, E, F>(&'scope self, body: F) -> Handle<'scope, T>
    where
        F: FnOnce(&Cx) -> Result<T, E> + Send + 'scope,
        T: Send + 'scope,
        E: Into<Box<dyn Error + Send + Sync>> + 'scope,
    {
        self.task().spawn_try(body)
    }

    /// As [`spawn`](Scope::spawn), for a caller that can handle a refusal: after one, nothing has changed, and the
    /// nursery has not failed.
    #[track_caller]
    #[inline]
    pub fn try_spawn<T, F>(&'scope self, body: F) -> Result<Handle<'scope, T>, SpawnError>
    where
        F: FnOnce(&Cx) -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.task().try_spawn(body)
    }

    /// Prepares a child with a budget, a name, a stack or capabilities of its own.
    #[track_caller]
    #[inline]
    pub fn task(&'scope self) -> Spawn<'scope, 'scope> {
        // SAFETY: the runtime outlives its nurseries.
        let shared = unsafe { &*self.nursery.shared };
        let order = Order::new(shared, Location::caller());
        Spawn { nursery: &self.nursery, order, life: PhantomData }
    }

    /// Starts a child that borrows nothing, so that it can fail alone: see [`Spawn::owned`].
    #[track_caller]
    #[inline]
    pub fn spawn_owned<T, F>(&'scope self, body: F) -> Handle<'scope, T>
    where
        F: FnOnce(&Cx) -> T + Send + 'static,
        T: Send + 'static,
    {
        self.task().owned().spawn(body)
    }

    /// Asks every child to end, present and future ones; those that wait are woken. The body goes on, and may wait for
    /// them.
    pub fn cancel(&self) {
        make_room_here();
        self.nursery.cancel(current_worker());
    }

    /// Waits until every child has ended, for `time` at most; true if all have. For a graceful end: take no more work,
    /// `drain`, and then [`cancel`](Scope::cancel) the children that are still there.
    #[track_caller]
    pub fn drain(&self, cx: &Cx, time: Duration) -> Result<bool, Cancelled> {
        Ok(cx.select(&mut [&mut self.arm()], Some(time))? == Selected::Arm(0))
    }

    /// An arm of a [`Cx::select`] that is ready when no child is left.
    #[must_use]
    pub fn arm(&self) -> DrainArm<'_> {
        DrainArm(&self.nursery)
    }

    /// Whether the nursery was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.nursery.is_cancelled()
    }

    /// How many children have not ended.
    #[must_use]
    pub fn live(&self) -> usize {
        self.nursery.live()
    }

    /// What is left in the pool for children.
    #[must_use]
    pub fn pool(&self) -> Budget {
        make_room_here();
        self.nursery.pool()
    }

    /// Creates a supervisor, which may recharge this nursery's children out of its pool: give it to a child. While
    /// there is a supervisor, an exhausted child is waited for.
    #[must_use]
    pub fn supervisor(&'scope self) -> Supervisor<'scope> {
        self.nursery.supervisors.fetch_add(1, Ordering::AcqRel);
        Supervisor { nursery: &self.nursery }
    }
}

/// Recharges the children of a nursery: see [`Scope::supervisor`].
///
/// ```
/// # use janus::*;
/// # use std::time::Duration;
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let manual = NurseryOptions::new().recharge(Recharge::Manual);
/// let rounds = runtime.run(|cx| cx.nursery_with(manual, |nursery| {
///     let fifty = Budget { ops: 50, ..Budget::ZERO };
///     let worker = nursery.task().budget(fifty).spawn(|cx| (0..100).filter(|_| cx.check().is_ok()).count());
///     let supervisor = nursery.supervisor();
///     nursery.spawn(move |cx| {
///         while supervisor.exhausted().is_empty() && cx.sleep(Duration::from_micros(50)).is_ok() {}
///         supervisor.exhausted().into_iter().all(|child| supervisor.recharge(child, &fifty).is_ok())
///     });
///     worker.join(cx)
/// })).unwrap().unwrap();
/// assert_eq!(rounds, 100);
/// ```
pub struct Supervisor<'scope> {
    nursery: &'scope Nursery,
}

impl Supervisor<'_> {
    /// The children that are stopped because a part of their budget is spent.
    #[must_use]
    pub fn exhausted(&self) -> Vec<TaskId> {
        make_room_here();
        // A charged allocation might wait for the nursery's lock, which is held below.
        let _quiet = Quiet::new();
        let mut found = Vec::new();
        self.nursery.for_each_listed(|child| {
            if child.word.state() == TaskState::BudgetExhausted {
                found.push(TaskId(child.id.load(Ordering::Relaxed)));
            }
        });
        found
    }

    /// Gives a stopped child more budget.
    pub fn recharge(&self, child: TaskId, amount: &Budget) -> Result<(), RechargeError> {
        make_room_here();
        self.nursery.recharge_listed(child, amount, current_worker())
    }
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        make_room_here();
        if self.nursery.supervisors.fetch_sub(1, Ordering::AcqRel) == 1 && self.nursery.is_starving() {
            self.nursery.starve(current_worker(), None, 0);
        }
    }
}

/// A child that is being prepared: see [`Scope::task`].
///
/// ```
/// # use janus::{Config, Priority, Runtime, StackClass};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let text = runtime.run(|cx| cx.nursery(|nursery| {
///     let child = nursery.task().name("printer").stack(StackClass::Medium).priority(Priority::High);
///     child.spawn(|cx| format!("task {}", cx.id())).join(cx)
/// })).unwrap().unwrap();
/// assert!(text.starts_with("task #"));
/// ```
#[must_use = "nothing is spawned until `spawn`"]
pub struct Spawn<'scope, 'life> {
    nursery: &'scope Nursery,
    order: Order,
    /// The lifetime of what the child borrows. Invariant, so that a child that must own everything cannot become one
    /// that may borrow.
    life: PhantomData<fn(&'life ()) -> &'life ()>,
}

impl<'scope, 'life> Spawn<'scope, 'life> {
    /// The child borrows nothing: its closure and its result own what they use. Then it can fail alone.
    ///
    /// A task that runs over its stack, or allocates beyond its memory reserve, cannot be unwound: what it was changing
    /// stays half changed. Every task that lent it something is given up with it, up to the nearest task that was
    /// spawned as owned, whose parent gets the error. If there is no such task, the process ends.
    ///
    /// ```
    /// # use janus::{Config, Runtime, TaskError};
    /// fn deep(n: u64) -> u64 {
    ///     if n == u64::MAX { 0 } else { std::hint::black_box(deep(n + 1)) + 1 }
    /// }
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let end = runtime.run(|cx| cx.nursery(|nursery| {
    ///     nursery.task().owned().spawn(|_cx| deep(0)).join(cx)
    /// }));
    /// assert!(matches!(end, Ok(Err(TaskError::StackOverflow))));
    /// ```
    pub fn owned(mut self) -> Spawn<'scope, 'static> {
        self.order.flags |= flag::OWNED;
        Spawn { nursery: self.nursery, order: self.order, life: PhantomData }
    }

    /// Exactly this budget, or no child. It is also the limit: no pool adds to it, whatever the profile, and when a
    /// part is spent the child stops until its parent or a supervisor recharges it. Without this, a child is recharged
    /// as long as the pool has something, which is for ever where the root's budget is infinite.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.order.budget = Some(budget);
        self
    }

    /// What happens to the child when a part of its budget is spent.
    ///
    /// ```
    /// # use janus::{Budget, Config, OnExhausted, Resource, Runtime, TaskError};
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let end = runtime.run(|cx| cx.nursery(|nursery| {
    ///     let ten = Budget { ops: 10, ..Budget::ZERO };
    ///     let child = nursery.task().budget(ten).on_exhausted(OnExhausted::End);
    ///     child.spawn_try(|cx| -> Result<(), TaskError> { loop { cx.check()? } }).join(cx)
    /// })).unwrap();
    /// assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Ops))));
    /// ```
    pub fn on_exhausted(mut self, rule: OnExhausted) -> Self {
        self.order.on_exhausted = Some(rule);
        self
    }

    /// The right to have `count` children of its own.
    pub fn children(mut self, count: u64) -> Self {
        self.order.children = count;
        self
    }

    /// A name for dumps and for the watchdog: a static text, or a `String` built for this task, of which 56 bytes are
    /// kept.
    ///
    /// ```
    /// # use janus::{Config, Runtime};
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// runtime.run(|cx| cx.nursery(|nursery| {
    ///     for room in 0..3 {
    ///         nursery.task().name(format!("keeper of room {room}")).spawn(|_cx| ());
    ///     }
    ///     Ok(())
    /// })).unwrap().unwrap();
    /// ```
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.forget_name();
        self.order.name = Some(match name.into() {
            Cow::Borrowed(name) => Naming::Static(name),
            Cow::Owned(name) => Naming::Built(self.shared().names.take(&name)),
        });
        self
    }

    /// Returns the name's slot: no task will use it.
    #[cold]
    fn forget_name(&mut self) {
        if let Some(Naming::Built(slot)) = self.order.name.take() {
            self.shared().names.give(slot);
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the runtime outlives its nurseries.
        unsafe { &*self.nursery.shared }
    }

    /// Another stack size than the runtime's default.
    pub fn stack(mut self, class: StackClass) -> Self {
        self.order.stack = class;
        self
    }

    /// A hint to the scheduler about how soon the child is to run.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.order.priority = priority;
        self
    }

    /// Passes on the right to spawn.
    pub fn grant_spawn(mut self, _capability: CapSpawn) -> Self {
        self.order.flags |= flag::MAY_SPAWN;
        self
    }

    /// Passes on the right to make [`CapBudget`](crate::CapBudget)s, if the caller has it itself.
    pub fn grant_budget(mut self, cx: &Cx) -> Result<Self, RechargeError> {
        if !cx.may(flag::MAY_RECHARGE) {
            return Err(RechargeError::NoCapability);
        }
        self.order.flags |= flag::MAY_RECHARGE;
        Ok(self)
    }

    /// Starts the child: see [`Scope::spawn`].
    #[inline]
    pub fn spawn<T, F>(self, body: F) -> Handle<'scope, T>
    where
        F: FnOnce(&Cx) -> T + Send + 'life,
        T: Send + 'life,
    {
        let nursery = self.nursery;
        Handle::or_refused(self.try_spawn(body), nursery)
    }

    /// Starts the child if nothing refuses it: see [`Scope::try_spawn`].
    #[inline]
    pub fn try_spawn<T, F>(self, body: F) -> Result<Handle<'scope, T>, SpawnError>
    where
        F: FnOnce(&Cx) -> T + Send + 'life,
        T: Send + 'life,
    {
        self.start(move |here, order, nursery| {
            job::spawn_as::<Plain<T>, _>(nursery, here, order, move |cx: &Cx| Plain(body(cx)))
        })
    }

    /// Starts a child that may fail: see [`Scope::spawn_try`].
    pub fn spawn_try<T, E, F>(self, body: F) -> Handle<'scope, T>
    where
        F: FnOnce(&Cx) -> Result<T, E> + Send + 'life,
        T: Send + 'life,
        E: Into<Box<dyn Error + Send + Sync>> + 'life,
    {
        let nursery = self.nursery;
        Handle::or_refused(self.try_spawn_try(body), nursery)
    }

    /// As `spawn_try`, but returns a refusal instead of failing the nursery.
    pub(crate) fn try_spawn_try<T, E, F>(self, body: F) -> Result<Handle<'scope, T>, SpawnError>
    where
        F: FnOnce(&Cx) -> Result<T, E> + Send + 'life,
        T: Send + 'life,
        E: Into<Box<dyn Error + Send + Sync>> + 'life,
    {
        self.start(move |here, order, nursery| {
            job::spawn_as::<Fallible<T, E>, _>(nursery, here, order, move |cx: &Cx| Fallible(body(cx)))
        })
    }

    #[inline]
    fn start<T>(
        mut self,
        spawn: impl FnOnce(Option<&Worker>, Order, &Nursery) -> Result<TaskRef, SpawnError>,
    ) -> Result<Handle<'scope, T>, SpawnError> {
        let started = self.start_as(spawn);
        if started.is_err() {
            self.forget_name();
        }
        started
    }

    #[inline]
    fn start_as<T>(
        &self,
        spawn: impl FnOnce(Option<&Worker>, Order, &Nursery) -> Result<TaskRef, SpawnError>,
    ) -> Result<Handle<'scope, T>, SpawnError> {
        let Some(spawner) = current_worker().and_then(Worker::task) else {
            return Err(SpawnError::NurseryNotActive);
        };
        ensure_stack(spawner);
        let cx = Cx::of(spawner);
        if !cx.may(flag::MAY_SPAWN) {
            return Err(SpawnError::NoCapability);
        }
        // One operation is charged to the spawner; the child itself is charged to the pool.
        if cx.check().is_err() {
            return Err(SpawnError::Cancelled);
        }
        // The check may have moved us to another worker.
        let task = spawn(Some(cx.worker()), self.order, self.nursery)?;
        Ok(Handle { task: Ok(task), nursery: self.nursery, value: PhantomData })
    }
}

/// A child's result, for its parent: see [`Scope::spawn`]. Dropping the handle leaves the child to its nursery: the
/// result is discarded, a failure is not.
pub struct Handle<'scope, T> {
    /// The error says why there is no child.
    task: Result<TaskRef, SpawnError>,
    nursery: &'scope Nursery,
    value: PhantomData<(&'scope (), T)>,
}

// SAFETY: a handle gives its holder a T, and nothing else of the task.
unsafe impl<T: Send> Send for Handle<'_, T> {}
// SAFETY: a shared handle gives nobody a T.
unsafe impl<T: Send> Sync for Handle<'_, T> {}

impl<'scope, T> Handle<'scope, T> {
    /// A handle for a started child, or for a refused one: the nursery learns of the refusal here, so that it is not
    /// lost with the handle.
    #[inline]
    fn or_refused(started: Result<Self, SpawnError>, nursery: &'scope Nursery) -> Self {
        started.unwrap_or_else(|error| {
            make_room_here();
            nursery.refuse(error, current_worker());
            Handle { task: Err(error), nursery, value: PhantomData }
        })
    }

    /// Why there is no child, if there is none.
    #[must_use]
    pub fn refused(&self) -> Option<SpawnError> {
        self.task.err()
    }

    /// Waits for the child's end and takes its result. If the caller is cancelled meanwhile, the answer is `Cancelled`, and
    /// the child goes on until its nursery ends it.
    #[track_caller]
    pub fn join(self, cx: &Cx) -> Result<T, TaskError> {
        match self.wait(cx, u64::MAX, Location::caller()) {
            Ok(_) => self.take(cx),
            Err(Cancelled) => Err(TaskError::Cancelled),
        }
    }

    /// As [`join`](Handle::join), for `timeout` at most: then the handle comes back as the error.
    ///
    /// ```
    /// # use janus::{Config, Runtime, TaskError};
    /// # use std::time::Duration;
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let end = runtime.run(|cx| cx.nursery(|nursery| {
    ///     let sleeper = nursery.spawn(|cx| cx.sleep(Duration::from_secs(3600)).is_err());
    ///     let sleeper = sleeper.join_timeout(cx, Duration::from_millis(1)).expect_err("it sleeps");
    ///     sleeper.cancel();
    ///     Ok(sleeper.join(cx))
    /// })).unwrap().unwrap();
    /// assert!(matches!(end, Ok(true)));
    /// ```
    #[track_caller]
    pub fn join_timeout(self, cx: &Cx, timeout: Duration) -> Result<Result<T, TaskError>, Self> {
        let at = Location::caller();
        let until = cx.until(timeout);
        ensure_stack(cx.task);
        let timer = cx.arm(until);
        let ended = self.wait(cx, until, at);
        cx.shared().timers.disarm(timer);
        match ended {
            Ok(true) => Ok(self.take(cx)),
            Ok(false) => Err(self),
            Err(Cancelled) => Ok(Err(TaskError::Cancelled)),
        }
    }

    /// Waits until the child has ended (true), or until the time `until`, for which the caller has armed a timer
    /// (false). A failure of the child's own nursery does not end the wait directly: it ends the child.
    fn wait(&self, cx: &Cx, until: u64, at: &'static Location<'static>) -> Result<bool, Cancelled> {
        ensure_stack(cx.task);
        let Ok(task) = self.task else { return Ok(true) };
        let late = || until != u64::MAX && cx.shared().now_ns() >= until;
        if !std::ptr::eq(cx.task.shared, self.nursery.shared) {
            // The waiting task, and its whole runtime, may be gone when a child of another runtime wakes it: so it
            // polls.
            while !task.join.is_done() {
                if late() {
                    return Ok(false);
                }
                cx.sleep(FOREIGN_LOOK)?;
            }
        }
        while !task.join.is_done() {
            if late() {
                return Ok(false);
            }
            if task.join.wait(cx.waiter().bits()) {
                // A task that waits for a child that cannot go on learns of it, as a task that waits for all children
                // does. Where the pool is infinite, only a child with an exact budget can stop for good.
                let expects = !self.nursery.never_starves();
                if expects {
                    self.nursery.expect_one(cx.waiter(), Some(cx.worker()));
                }
                let end = cx.block_but(self.nursery, Wait::Join, at);
                if expects {
                    self.nursery.expect_none(cx.waiter());
                }
                if end.is_err() {
                    cx.stop_if_doomed();
                }
                end?;
            }
        }
        Ok(true)
    }

    /// The result of a child that has ended.
    fn take(self, cx: &Cx) -> Result<T, TaskError> {
        let task = self.task?;
        std::mem::forget(self);
        // SAFETY: the task has ended, and this was its handle.
        let result = unsafe { job::take_result(task) };
        job::free(task, Some(cx.worker()));
        result
    }

    /// An arm of a [`Cx::select`] that is ready when the child has ended: then [`join`](Handle::join) does not wait.
    #[must_use]
    pub fn arm(&self) -> JoinArm<'_, T> {
        JoinArm(self)
    }

    /// Has the child ended?
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.is_err() || self.task.is_ok_and(|task| task.join.is_done())
    }

    /// The child's number; 0 if the spawn was refused.
    #[must_use]
    pub fn id(&self) -> TaskId {
        TaskId(self.task.map_or(0, |task| task.id.load(Ordering::Relaxed)))
    }

    /// The child's state; `Failed` if the spawn was refused.
    #[must_use]
    pub fn state(&self) -> TaskState {
        self.task.map_or(TaskState::Failed, |task| task.word.state())
    }

    /// What is left of the child's budget, without what it has drawn and not spent.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.task.map_or(Budget::ZERO, |task| task.budget())
    }

    /// Asks this child to end; if it waits, it is woken.
    pub fn cancel(&self) {
        make_room_here();
        if let (Ok(task), false) = (self.task, self.is_finished()) {
            task.set(flag::CANCEL);
            wake_task(task, current_worker());
        }
    }

    /// Ends a child that is stopped for want of budget, as if nobody were left to recharge it.
    pub(crate) fn give_up(&self) {
        if let Ok(task) = self.task {
            task.set(flag::SPENT);
            wake_task(task, current_worker());
        }
    }

    /// Has the caller woken once, when the child ends; false: it has ended already.
    pub(crate) fn watch(&self, cx: &Cx) -> bool {
        self.task.is_ok_and(|task| task.join.wait(cx.waiter().bits()))
    }

    /// Gives the child more budget, out of the nursery's pool.
    pub fn recharge(&self, amount: &Budget) -> Result<(), RechargeError> {
        make_room_here();
        match self.task {
            Ok(task) if !self.is_finished() => {
                self.nursery.recharge(task, amount, current_worker()).map_err(RechargeError::Exhausted)
            }
            _ => Err(RechargeError::Ended),
        }
    }
}

impl<T> Drop for Handle<'_, T> {
    fn drop(&mut self) {
        let Ok(task) = self.task else { return };
        make_room_here();
        if task.join.detach() {
            // SAFETY: the task has ended, and this was its handle.
            unsafe { job::discard(task, current_worker()) };
        }
    }
}

impl<T> fmt::Debug for Handle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("task", &self.id()).field("state", &self.state()).finish()
    }
}
