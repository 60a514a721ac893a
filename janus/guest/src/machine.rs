//! Runs a guest in a task. The engine runs until the guest needs its host: for fuel, or for an import. Then the call is
//! suspended, the task does what was asked for with its own [`Cx`], and the call is resumed. So nothing of the task is ever
//! inside the engine, and a guest that waits or is out of budget is a task that waits.

use crate::engine::{ARGS_MAX, Pause, Target, Value, Vm};
use crate::error::GuestError;
use crate::family::{Family, MESSAGE_BYTES_MAX, Tally, Used};
use crate::grant::Grant;
use crate::imports::Call;
use crate::pass::{ELEMENT, PAGE};
use crate::program::{Part, Program};
use crate::wasi::Files;
use crate::world::World;
use janus::budget::PART;
use janus::{
    Budget, CapBudget, ChargeError, Cx, Handle, Held, NurseryOptions, Operation, RecvError, Resource, Scope,
    SendError, SpawnError, StackClass, TaskError,
};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that an instance is charged for the engine's own data, beside its memory and tables.
pub const INSTANCE_BYTES: u64 = 64 << 10;
/// The most messages that a channel may hold.
const CAPACITY_MAX: u32 = 1_024;
/// The stack of a guest's task: the engine's calls need some 10 KiB of it, the guest's own calls use the engine's stack.
const STACK: StackClass = StackClass::Medium;

/// The codes that the janus imports return when they fail.
pub(crate) mod code {
    pub(crate) const NO_SUCH: i32 = -1;
    pub(crate) const FAILED: i32 = -2;
    pub(crate) const BUDGET: i32 = -3;
    pub(crate) const CANCELLED: i32 = -4;
    pub(crate) const FAULT: i32 = -5;
    pub(crate) const CLOSED: i32 = -6;
    pub(crate) const TOO_LONG: i32 = -7;
}

/// How a guest is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What it is given.
    pub world: Arc<World>,
    /// What it may recharge itself with in all, if [`Grant::Budget`] was granted.
    pub recharge: Option<Budget>,
    /// Where its use is counted.
    pub tally: Arc<Tally>,
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// What its function returned, if that is one integer.
    pub value: Option<i64>,
    /// The code that it passed to `proc_exit`.
    pub exit: Option<i32>,
    /// What it and its children used.
    pub used: Used,
}

impl Program {
    /// Runs an exported function without parameters in this task, on this task's budget. The task's stack should be at least
    /// [`StackClass::Medium`].
    pub fn call(&self, cx: &Cx, name: &str, options: Options) -> Result<End, GuestError> {
        let Options { world, recharge, tally } = options;
        let family = Arc::new(Family::new(world, tally));
        let recharge = recharge.filter(|_| self.grants().has(Grant::Budget));
        let capability = recharge.and_then(|limit| cx.cap_budget(limit).ok());
        let finish = run(cx, self, Target::Export(name), &family, capability.as_ref())?;
        Ok(End { value: finish.value, exit: finish.exit, used: family.tally.used() })
    }

    /// The same in a child with exactly this budget: when a part of it is used up the child stops, and unless it is recharged
    /// it ends with [`TaskError::BudgetExceeded`].
    pub fn spawn<'scope>(
        &self,
        cx: &Cx,
        nursery: &'scope Scope<'scope, '_>,
        name: &str,
        budget: Budget,
        options: Options,
    ) -> Result<Handle<'scope, Result<End, GuestError>>, SpawnError> {
        let mut task = nursery.task().name("guest").stack(STACK).budget(budget);
        if let Some(capability) = cx.cap_spawn().filter(|_| self.grants().has(Grant::Spawn)) {
            task = task.grant_spawn(capability);
        }
        if options.recharge.is_some() && self.grants().has(Grant::Budget) {
            task = task.grant_budget(cx).map_err(|_| SpawnError::NoCapability)?;
        }
        let (program, name) = (self.clone(), name.to_string());
        task.try_spawn(move |cx| program.call(cx, &name, options))
    }
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, Default)]
struct Finish {
    value: Option<i64>,
    exit: Option<i32>,
}

/// Why a call into the engine stopped for good.
pub(crate) enum Stop {
    Exit(i32),
    Error(GuestError),
}

impl From<GuestError> for Stop {
    fn from(error: GuestError) -> Stop {
        Stop::Error(error)
    }
}

impl From<janus::Cancelled> for Stop {
    fn from(_: janus::Cancelled) -> Stop {
        Stop::Error(GuestError::Cancelled)
    }
}

type Child<'scope> = Handle<'scope, Result<i64, GuestError>>;

/// Runs a guest. If it may have children, it runs inside a nursery of its own: children that it did not join end with it.
fn run(
    cx: &Cx,
    program: &Program,
    entry: Target<'_>,
    family: &Arc<Family>,
    capability: Option<&CapBudget>,
) -> Result<Finish, GuestError> {
    if !program.grants().has(Grant::Spawn) {
        return Machine::new(cx, None, program, family, capability)?.run(entry);
    }
    let mut finish = Err(GuestError::Cancelled);
    // The parent asks by a join whether a child failed; here it only matters that all of them have ended.
    let _ = cx.nursery_with(NurseryOptions::new().keep_going(), |scope| {
        finish = Machine::new(cx, Some(scope), program, family, capability)
            .and_then(|mut machine| machine.run(entry));
        if scope.live() > 0 {
            scope.cancel();
        }
        Ok(())
    });
    finish
}

/// One instance, and the task that runs it.
pub(crate) struct Machine<'a, 'scope, 'env> {
    pub(crate) cx: &'a Cx,
    scope: Option<&'scope Scope<'scope, 'env>>,
    pub(crate) program: &'a Program,
    pub(crate) family: &'a Arc<Family>,
    capability: Option<&'a CapBudget>,
    pub(crate) vm: Vm,
    /// The fuel that the task had in hand when the engine last continued.
    granted: i64,
    children: Vec<Option<Child<'scope>>>,
    held: Held<'a>,
    /// Channels that this instance made, and so was charged for: they end with it.
    channels: Vec<usize>,
    pub(crate) files: Files,
}

impl<'a, 'scope, 'env> Machine<'a, 'scope, 'env> {
    fn new(
        cx: &'a Cx,
        scope: Option<&'scope Scope<'scope, 'env>>,
        program: &'a Program,
        family: &'a Arc<Family>,
        capability: Option<&'a CapBudget>,
    ) -> Result<Self, GuestError> {
        let bytes = bytes_of(program);
        // Memory is charged before anything is made.
        let held = match hold(cx, family, bytes) {
            Ok(held) => held,
            Err(ChargeError::Cancelled) => return Err(GuestError::Cancelled),
            Err(_) => return Err(GuestError::NoMemory { bytes }),
        };
        // What the engine records for each module beyond the usual; the usual is in the cost of every instance.
        let ops = program.parts().iter().map(|part| part.records >> 6).sum();
        if cx.charge_ops(ops).is_err() {
            family.tally.memory_back(bytes);
            return Err(GuestError::Cancelled);
        }
        family.tally.ops(ops);
        let vm = Vm::new(program.core(), program.parts()).inspect_err(|_| family.tally.memory_back(bytes))?;
        Ok(Machine {
            cx,
            scope,
            program,
            family,
            capability,
            vm,
            granted: 0,
            children: Vec::new(),
            held,
            channels: Vec::new(),
            files: Files::new(),
        })
    }

    /// Charges memory that lives as long as the instance.
    fn hold(&mut self, bytes: u64) -> Result<(), ChargeError> {
        self.held.absorb(hold(self.cx, self.family, bytes)?);
        Ok(())
    }

    fn run(&mut self, entry: Target<'_>) -> Result<Finish, GuestError> {
        self.renew();
        let finish = self.enter(entry);
        match finish {
            Ok(value) => Ok(Finish { value, exit: None }),
            Err(Stop::Exit(code)) => Ok(Finish { value: None, exit: Some(code) }),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    fn enter(&mut self, entry: Target<'_>) -> Result<Option<i64>, Stop> {
        for start in 0..self.vm.starts() {
            self.invoke(Target::Start(start))?;
        }
        self.invoke(entry)
    }

    /// Calls into the engine and serves the guest until it has finished.
    fn invoke(&mut self, target: Target<'_>) -> Result<Option<i64>, Stop> {
        let mut pause = self.vm.call(target, self.granted)?;
        loop {
            let answer = match pause {
                Pause::Done { value, left } => {
                    self.pay(left)?;
                    return Ok(value);
                }
                Pause::Trapped { reason, left } => return Err(self.trapped(reason, left)),
                Pause::Refuel(left) => {
                    self.pay(left)?;
                    self.renew();
                    Some(Value::I64(self.granted))
                }
                Pause::Asks { call, args, left } => {
                    self.pay(left)?;
                    let answer = self.answer(call, &args)?;
                    self.renew();
                    answer
                }
            };
            pause = self.vm.resume(answer, self.granted);
        }
    }

    /// A guest that traps is charged the rest of its quantum, because what it ran of it may have been in a local of a frame
    /// that is gone; and also what it ran beyond, as far as that is known.
    fn trapped(&mut self, reason: String, left: i64) -> Stop {
        let rest = self.granted.max(self.granted - left).max(0) as u64;
        self.granted = 0;
        if self.cx.charge_ops(rest).is_ok() {
            self.family.tally.ops(rest);
        }
        Stop::Error(GuestError::Trap { reason })
    }

    /// Gives the guest the fuel that the task has in hand.
    fn renew(&mut self) {
        self.granted = self.cx.ops_in_hand() as i64;
    }

    /// Charges what ran since the last time; may block here until the task is recharged.
    fn pay(&mut self, left: i64) -> Result<(), Stop> {
        let used = (self.granted - left).max(0) as u64;
        self.granted = left;
        self.cx.charge_ops(used)?;
        self.family.tally.ops(used);
        Ok(())
    }

    fn answer(&mut self, call: Call, args: &[u64; ARGS_MAX]) -> Result<Option<Value>, Stop> {
        let int = |value: i32| Ok(Some(Value::I32(value)));
        match call {
            Call::Allocate => self.allocate(args[0], args[1]).and_then(int),
            Call::Release => {
                self.release(args[0], args[1]);
                Ok(None)
            }
            Call::Yield => {
                self.cx.yield_now()?;
                Ok(None)
            }
            Call::SchedYield => {
                self.cx.yield_now()?;
                int(0)
            }
            Call::TaskCreate => self.create(args[0] as u32, args[1] as i64, args[2]).and_then(int),
            Call::TaskJoin => self.join(args[0], args[1]).and_then(int),
            Call::TaskCancel => int(match self.children.get(args[0] as usize) {
                Some(Some(child)) => {
                    child.cancel();
                    0
                }
                _ => code::NO_SUCH,
            }),
            Call::BudgetLeft => {
                let resource = Resource::ALL.get(args[0] as usize);
                let left = resource.map_or(u64::MAX, |&resource| self.cx.budget().get(resource));
                Ok(Some(Value::I64(left as i64)))
            }
            Call::BudgetRecharge => int(self.recharge(args[0], args[1])),
            Call::ChannelMake => self.channel(args[0] as u32).and_then(int),
            Call::ChannelSend => self.send(args).and_then(int),
            Call::ChannelReceive => self.receive(args).and_then(int),
            Call::ChannelClose => int(if self.family.close(args[0] as usize) { 0 } else { code::NO_SUCH }),
            Call::Sleep => {
                self.cx.sleep(Duration::from_nanos(args[0]))?;
                Ok(None)
            }
            Call::Exit => Err(Stop::Exit(args[0] as i32)),
            _ => self.wasi(call, args).and_then(int),
        }
    }

    /// Whether the guest may grow by so many pages or elements: 1 if so.
    fn allocate(&mut self, what: u64, count: u64) -> Result<i32, Stop> {
        let bytes = count * if what == 0 { PAGE } else { ELEMENT };
        match self.hold(bytes) {
            Ok(()) => {}
            Err(ChargeError::Cancelled) => return Err(GuestError::Cancelled.into()),
            Err(_) => return Ok(0),
        }
        // The host fills it with zeros, which is charged, too.
        self.work(bytes)?;
        Ok(1)
    }

    /// Gives back what it was allowed and could not use.
    fn release(&mut self, what: u64, count: u64) {
        self.let_go(count * if what == 0 { PAGE } else { ELEMENT });
    }

    fn let_go(&mut self, bytes: u64) {
        self.held.release(bytes);
        self.family.tally.memory_back(bytes);
    }

    /// Charges the host's own work on so many bytes, like a bulk operation of the guest.
    pub(crate) fn work(&mut self, bytes: u64) -> Result<(), Stop> {
        let ops = bytes >> 6;
        self.cx.charge_ops(ops)?;
        self.family.tally.ops(ops);
        Ok(())
    }

    fn create(&mut self, function: u32, arg: i64, budget: u64) -> Result<i32, Stop> {
        let Some(scope) = self.scope else { return Ok(code::FAILED) };
        if !self.vm.can_enter(function) {
            return Ok(code::NO_SUCH);
        }
        let mut task = scope.task().name("guest").stack(STACK);
        let mut children = 0;
        if budget != 0 {
            let Some(budget) = self.budget_at(budget) else { return Ok(code::FAULT) };
            children = budget.spawn_count;
            task = task.budget(budget);
        } else if self.cx.budget().memory.div_ceil(PART) < bytes_of(self.program) {
            // The child's share would not hold its instance: the parent is told now, and not when it joins.
            self.family.tally.memory_refused();
            return Ok(code::BUDGET);
        }
        if let Some(capability) = self.cx.cap_spawn().filter(|_| children > 0) {
            task = task.grant_spawn(capability).children(children);
        }
        let (program, family) = (self.program.clone(), self.family.clone());
        let child = task.try_spawn(move |cx| {
            let finish = run(cx, &program, Target::Table(function, arg), &family, None)?;
            Ok(finish.value.unwrap_or_else(|| i64::from(finish.exit.unwrap_or(0))))
        });
        match child {
            Ok(child) => {
                self.family.tally.spawned();
                self.family.tally.ops(1);
                self.children.push(Some(child));
                Ok(self.children.len() as i32 - 1)
            }
            Err(SpawnError::Cancelled) => Err(GuestError::Cancelled.into()),
            Err(SpawnError::NoCapability) => Ok(code::FAILED),
            Err(_) => {
                self.family.tally.spawn_refused();
                Ok(code::BUDGET)
            }
        }
    }

    fn join(&mut self, child: u64, result: u64) -> Result<i32, Stop> {
        let Some(child) = self.children.get_mut(child as usize).and_then(Option::take) else {
            return Ok(code::NO_SUCH);
        };
        match child.join(self.cx) {
            Ok(Ok(value)) if result == 0 || self.vm.write(result, &value.to_le_bytes()) => Ok(0),
            Ok(Ok(_)) => Ok(code::FAULT),
            Err(TaskError::BudgetExceeded(_)) => Ok(code::BUDGET),
            Err(TaskError::Cancelled) if self.cx.is_cancelled() => Err(GuestError::Cancelled.into()),
            Ok(Err(GuestError::Cancelled)) | Err(TaskError::Cancelled) => Ok(code::CANCELLED),
            Ok(Err(GuestError::NoMemory { .. })) => Ok(code::BUDGET),
            Ok(Err(_)) | Err(_) => Ok(code::FAILED),
        }
    }

    fn budget_at(&mut self, at: u64) -> Option<Budget> {
        let bytes = self.vm.bytes(at, 40)?;
        let mut budget = Budget::ZERO;
        for (resource, bytes) in Resource::ALL.into_iter().zip(bytes.chunks_exact(8)) {
            *budget.get_mut(resource) = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        Some(budget)
    }

    fn recharge(&mut self, resource: u64, amount: u64) -> i32 {
        let (Some(capability), Some(&resource)) = (self.capability, Resource::ALL.get(resource as usize))
        else {
            return code::NO_SUCH;
        };
        match self.cx.recharge(capability, &Budget::ZERO.with(resource, amount)) {
            Ok(()) => 0,
            Err(_) => code::BUDGET,
        }
    }

    /// Makes a channel and charges its maker for the room.
    fn channel(&mut self, capacity: u32) -> Result<i32, Stop> {
        if capacity > CAPACITY_MAX {
            return Ok(code::TOO_LONG);
        }
        let bytes = u64::from(capacity + 1) * MESSAGE_BYTES_MAX;
        match self.hold(bytes) {
            Ok(()) => {}
            Err(ChargeError::Cancelled) => return Err(GuestError::Cancelled.into()),
            Err(_) => return Ok(code::BUDGET),
        }
        let Some(channel) = self.family.make(capacity as usize) else {
            self.let_go(bytes);
            return Ok(code::BUDGET);
        };
        self.channels.push(channel);
        Ok(channel as i32)
    }

    fn send(&mut self, args: &[u64; ARGS_MAX]) -> Result<i32, Stop> {
        if args[2] > MESSAGE_BYTES_MAX {
            return Ok(code::TOO_LONG);
        }
        let Some(to) = self.family.sender(args[0] as usize) else { return Ok(code::CLOSED) };
        let Some(message) = self.vm.bytes(args[1], args[2]) else {
            return Ok(code::FAULT);
        };
        self.work(args[2])?;
        let sent = to.send(self.cx, message);
        if let Err(SendError::Cancelled(_)) = sent {
            return Err(GuestError::Cancelled.into());
        }
        self.told();
        Ok(if sent.is_ok() { 0 } else { code::CLOSED })
    }

    fn receive(&mut self, args: &[u64; ARGS_MAX]) -> Result<i32, Stop> {
        if !self.vm.reaches(args[1], args[2]) {
            return Ok(code::FAULT);
        }
        let Some(from) = self.family.receiver(args[0] as usize) else { return Ok(code::NO_SUCH) };
        let message = from.recv(self.cx);
        if message == Err(RecvError::Cancelled) {
            return Err(GuestError::Cancelled.into());
        }
        self.told();
        match message {
            Ok(message) if message.len() as u64 > args[2] => Ok(code::TOO_LONG),
            Ok(message) => {
                self.work(message.len() as u64)?;
                let written = self.vm.write(args[1], &message);
                Ok(if written { message.len() as i32 } else { code::FAULT })
            }
            Err(_) => Ok(code::CLOSED),
        }
    }

    /// Counts a channel operation, which has charged itself.
    fn told(&self) {
        self.family.tally.message();
        self.family.tally.ops(1);
    }

    /// Charges one operation on a file, by the table of costs.
    pub(crate) fn io(&mut self) -> Result<(), Stop> {
        match self.cx.charge(Operation::FileIo) {
            Ok(()) => {}
            Err(_) => return Err(GuestError::Cancelled.into()),
        }
        self.family.tally.io();
        self.family.tally.ops(1);
        Ok(())
    }
}

impl Drop for Machine<'_, '_, '_> {
    fn drop(&mut self) {
        for &channel in &self.channels {
            self.family.end(channel);
        }
        self.family.tally.memory_back(self.held.bytes());
    }
}

/// Bytes that an instance needs at the start.
fn bytes_of(program: &Program) -> u64 {
    let sum = |sum: u64, part: &Part| sum.saturating_add(part.bytes).saturating_add(part.records);
    program.parts().iter().fold(INSTANCE_BYTES, sum)
}

/// Charges memory that is held as long as the returned value lives.
fn hold<'a>(cx: &'a Cx, family: &Family, bytes: u64) -> Result<Held<'a>, ChargeError> {
    let charged = cx.hold_memory(bytes).inspect_err(|error| {
        if *error == ChargeError::MemoryBudgetExhausted {
            family.tally.memory_refused();
        }
    })?;
    family.tally.memory(bytes);
    family.tally.ops(1);
    Ok(charged)
}
