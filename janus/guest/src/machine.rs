//! Runs a guest in a task. The engine runs until the guest needs its host: fuel, or an import. Then the call is suspended,
//! the task does what was asked for with its own [`Cx`], and the call is resumed. So nothing of the task is ever inside
//! the engine, and a guest that waits or is out of budget is a task that waits.

use crate::error::GuestError;
use crate::family::{Family, MESSAGE_BYTES_MAX, Tally, Used};
use crate::grant::Grant;
use crate::imports::{Call, Offer};
use crate::pass::{ELEMENT, INTERNAL, MEMORY, PAGE, START, TABLE};
use crate::program::{Part, Program};
use crate::wasi::Files;
use crate::world::World;
use janus::{
    Budget, CapBudget, ChargeError, Cx, Handle, Held, NurseryOptions, Operation, RecvError, Resource, Scope,
    SendError, SpawnError, StackClass, TaskError,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wasmi::errors::HostError;
use wasmi::{
    Caller, Error, Extern, ExternType, Func, Global, Instance, Memory, Module, Mutability, Ref,
    ResumableCall, Store, Val, ValType,
};

/// Bytes that an instance is charged with beside its memory and tables: the engine's own.
pub const INSTANCE_BYTES: u64 = 64 << 10;
/// Messages that a channel may hold.
const CAPACITY_MAX: u32 = 1_024;
/// Imports have at most so many parameters.
const ARGS_MAX: usize = 9;
/// The stack of a guest's task: the engine's calls need some 10 KiB of it, the guest's own are on the engine's.
const STACK: StackClass = StackClass::Medium;

/// What the janus imports answer when they fail.
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
    /// What it said with `proc_exit`.
    pub exit: Option<i32>,
    /// What it and its children used.
    pub used: Used,
}

/// What a guest begins with.
enum Entry<'a> {
    Export(&'a str),
    /// A function of the first table, with an argument.
    Table(u32, i64),
}

impl Program {
    /// Runs an exported function without parameters in this task, on this task's budget. The task's stack should be
    /// [`StackClass::Medium`] at least.
    pub fn call(&self, cx: &Cx, name: &str, options: Options) -> Result<End, GuestError> {
        let Options { world, recharge, tally } = options;
        let family = Arc::new(Family::new(world, tally));
        let recharge = recharge.filter(|_| self.grants().has(Grant::Budget));
        let capability = recharge.and_then(|limit| cx.cap_budget(limit).ok());
        let finish = run(cx, self, &Entry::Export(name), &family, capability.as_ref())?;
        Ok(End { value: finish.value, exit: finish.exit, used: family.tally.used() })
    }

    /// The same in a child with exactly this budget: when a part of it is spent the child stops, and if nobody recharges it,
    /// ends with [`TaskError::BudgetExceeded`].
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
        task.spawn(move |cx| program.call(cx, &name, options))
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

/// A guest that may have children runs inside a nursery of its own. Children that it did not join end with it.
fn run(
    cx: &Cx,
    program: &Program,
    entry: &Entry<'_>,
    family: &Arc<Family>,
    capability: Option<&CapBudget>,
) -> Result<Finish, GuestError> {
    if !program.grants().has(Grant::Spawn) {
        return Machine::new(cx, None, program, family, capability)?.run(entry);
    }
    let mut finish = Err(GuestError::Cancelled);
    // Whether a child failed is for its parent to ask, by a join; here only that all of them have ended.
    let _ = cx.nursery_with(NurseryOptions::new(), |scope| {
        finish = Machine::new(cx, Some(scope), program, family, capability)
            .and_then(|mut machine| machine.run(entry));
        if scope.live() > 0 {
            scope.cancel();
        }
    });
    finish
}

/// One instance, and the task that runs it.
pub(crate) struct Machine<'a, 'scope, 'env> {
    pub(crate) cx: &'a Cx,
    scope: Option<&'scope Scope<'scope, 'env>>,
    program: &'a Program,
    pub(crate) family: &'a Arc<Family>,
    capability: Option<&'a CapBudget>,
    pub(crate) store: Store<()>,
    fuel: Global,
    /// What was in hand when the engine was last let go.
    granted: i64,
    main: Option<Instance>,
    starts: Vec<Func>,
    children: Vec<Option<Child<'scope>>>,
    held: Vec<(u64, Held<'a>)>,
    pub(crate) files: Files,
}

/// What a suspended call asks of its host.
#[derive(Debug)]
struct Request {
    call: Call,
    args: [u64; ARGS_MAX],
    memory: Option<Memory>,
}

#[derive(Debug)]
struct Refuel(i64);

impl HostError for Request {}
impl HostError for Refuel {}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guest calls {:?}", self.call)
    }
}

impl fmt::Display for Refuel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the guest's quantum is over")
    }
}

fn trap(error: &Error) -> GuestError {
    GuestError::Trap { reason: error.to_string() }
}

impl<'a, 'scope, 'env> Machine<'a, 'scope, 'env> {
    fn new(
        cx: &'a Cx,
        scope: Option<&'scope Scope<'scope, 'env>>,
        program: &'a Program,
        family: &'a Arc<Family>,
        capability: Option<&'a CapBudget>,
    ) -> Result<Self, GuestError> {
        let bytes = program.parts().iter().fold(INSTANCE_BYTES, |sum, part| sum.saturating_add(part.bytes));
        let mut store = Store::new(program.engine(), ());
        let fuel = Global::new(&mut store, Val::I64(0), Mutability::Var);
        let mut machine = Machine {
            cx,
            scope,
            program,
            family,
            capability,
            store,
            fuel,
            granted: 0,
            main: None,
            starts: Vec::new(),
            children: Vec::new(),
            held: Vec::new(),
            files: Files::new(),
        };
        match machine.hold(bytes) {
            Ok(()) => {}
            Err(ChargeError::Cancelled) => return Err(GuestError::Cancelled),
            Err(_) => return Err(GuestError::NoMemory { bytes }),
        }
        machine.link()?;
        Ok(machine)
    }

    /// Charges memory that lives as long as the instance.
    fn hold(&mut self, bytes: u64) -> Result<(), ChargeError> {
        let held = self.cx.hold_memory(bytes).inspect_err(|error| {
            if *error == ChargeError::MemoryBudgetExhausted {
                self.family.tally.memory_refused();
            }
        })?;
        self.held.push((bytes, held));
        self.family.tally.memory(bytes);
        self.family.tally.ops(1);
        Ok(())
    }

    fn link(&mut self) -> Result<(), GuestError> {
        let mut instances: Vec<(&str, Instance)> = Vec::new();
        for part in self.program.parts() {
            let imports = self.imports(part, &instances)?;
            let instance =
                Instance::new(&mut self.store, &part.module, &imports).map_err(|error| {
                    match error.as_trap_code() {
                        Some(_) => trap(&error),
                        None => GuestError::WrongType { import: format!("{}: {error}", part.name) },
                    }
                })?;
            if part.starts {
                self.starts.extend(instance.get_func(&self.store, START));
            }
            instances.push((&part.name, instance));
        }
        self.main = instances.last().map(|(_, instance)| *instance);
        Ok(())
    }

    fn imports(&mut self, part: &Part, instances: &[(&str, Instance)]) -> Result<Vec<Extern>, GuestError> {
        let mut found = Vec::new();
        for import in part.module.imports() {
            let name = || format!("{}.{}", import.module(), import.name());
            let library = instances.iter().find(|(name, _)| *name == import.module());
            found.push(match (import.module(), import.name()) {
                (INTERNAL, "fuel") => Extern::Global(self.fuel),
                (INTERNAL, "refuel") => {
                    Extern::Func(Func::wrap(&mut self.store, |fuel: i64| -> Result<i64, Error> {
                        Err(Error::host(Refuel(fuel)))
                    }))
                }
                (INTERNAL, "allocate") => self.host(import.ty(), Call::Allocate),
                (INTERNAL, _) => self.host(import.ty(), Call::Release),
                (module, field) => match library {
                    Some((_, instance)) => instance
                        .get_export(&self.store, field)
                        .ok_or_else(|| GuestError::UnknownImport { import: name() })?,
                    None => {
                        let offer = Offer::find(module, field)
                            .ok_or_else(|| GuestError::UnknownImport { import: name() })?;
                        self.host(import.ty(), offer.call)
                    }
                },
            });
        }
        Ok(found)
    }

    /// An import that suspends the call with what it asks for. Its type was compared when the program was made.
    fn host(&mut self, ty: &ExternType, call: Call) -> Extern {
        let Some(ty) = ty.func() else { return Extern::Global(self.fuel) };
        Extern::Func(Func::new(
            &mut self.store,
            ty.clone(),
            move |caller: Caller<'_, ()>, params, _results| {
                let mut args = [0; ARGS_MAX];
                for (arg, param) in args.iter_mut().zip(params) {
                    *arg = match param {
                        Val::I32(value) => u64::from(*value as u32),
                        Val::I64(value) => *value as u64,
                        _ => 0,
                    };
                }
                let memory = caller.get_export(MEMORY).and_then(Extern::into_memory);
                Err(Error::host(Request { call, args, memory }))
            },
        ))
    }

    fn run(&mut self, entry: &Entry<'_>) -> Result<Finish, GuestError> {
        self.renew();
        let finish = self.enter(entry);
        match finish {
            Ok(value) => Ok(Finish { value, exit: None }),
            Err(Stop::Exit(code)) => Ok(Finish { value: None, exit: Some(code) }),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    fn enter(&mut self, entry: &Entry<'_>) -> Result<Option<i64>, Stop> {
        for start in std::mem::take(&mut self.starts) {
            self.invoke(start, &[])?;
        }
        let main = self.main;
        match *entry {
            Entry::Export(name) => {
                let func = main.and_then(|main| main.get_func(&self.store, name));
                let func = func.filter(|func| func.ty(&self.store).params().is_empty());
                let func = func.ok_or_else(|| GuestError::NoEntry { name: name.to_string() })?;
                self.invoke(func, &[])
            }
            Entry::Table(index, arg) => {
                let func = self
                    .entry_of(index)
                    .ok_or_else(|| GuestError::NoEntry { name: format!("table {index}") })?;
                self.invoke(func, &[Val::I64(arg)])
            }
        }
    }

    /// The function at an index of the first table, if a child can begin with it.
    fn entry_of(&self, index: u32) -> Option<Func> {
        let table = self.main?.get_table(&self.store, TABLE)?;
        let Ref::Func(func) = table.get(&self.store, u64::from(index))? else { return None };
        let func = *func.val()?;
        let ty = func.ty(&self.store);
        (ty.params() == [ValType::I64] && ty.results() == [ValType::I64]).then_some(func)
    }

    /// Calls into the engine and serves the guest until it is done.
    fn invoke(&mut self, func: Func, args: &[Val]) -> Result<Option<i64>, Stop> {
        let ty = func.ty(&self.store);
        let mut results: Vec<Val> = ty.results().iter().map(|&ty| Val::default_for_ty(ty)).collect();
        let mut call =
            func.call_resumable(&mut self.store, args, &mut results).map_err(|e| self.trapped(&e))?;
        loop {
            match call {
                ResumableCall::Finished => break,
                ResumableCall::HostTrap(waiting) => {
                    let answer = self.serve(waiting.host_error())?;
                    call = waiting
                        .resume(&mut self.store, answer.as_slice(), &mut results)
                        .map_err(|e| self.trapped(&e))?;
                }
                ResumableCall::OutOfFuel(_) => {
                    return Err(GuestError::Trap { reason: "the engine's own metering is off".into() }.into());
                }
            }
        }
        self.settle()?;
        Ok(match results[..] {
            [Val::I32(value)] => Some(i64::from(value)),
            [Val::I64(value)] => Some(value),
            _ => None,
        })
    }

    /// Who traps pays the rest of its quantum: what it ran of it may be in a local of a frame that is gone.
    fn trapped(&mut self, error: &Error) -> Stop {
        let rest = self.granted.max(0) as u64;
        self.granted = 0;
        if self.cx.charge_ops(rest).is_ok() {
            self.family.tally.ops(rest);
        }
        Stop::Error(trap(error))
    }

    /// Lets the guest run what the task has in hand.
    fn renew(&mut self) {
        self.granted = self.cx.ops_in_hand() as i64;
        // It is a mutable global of this type.
        let _ = self.fuel.set(&mut self.store, Val::I64(self.granted));
    }

    /// Charges what ran since the last time; may stop here until the task is recharged.
    fn settle(&mut self) -> Result<(), Stop> {
        let Val::I64(left) = self.fuel.get(&self.store) else { return Ok(()) };
        self.pay(left)
    }

    fn pay(&mut self, left: i64) -> Result<(), Stop> {
        let used = (self.granted - left).max(0) as u64;
        self.granted = left;
        self.cx.charge_ops(used)?;
        self.family.tally.ops(used);
        Ok(())
    }

    fn serve(&mut self, error: &Error) -> Result<Answer, Stop> {
        if let Some(Refuel(left)) = error.downcast_ref() {
            self.pay(*left)?;
            self.renew();
            return Ok(Answer::one(Val::I64(self.granted)));
        }
        let Some(request) = error.downcast_ref::<Request>() else {
            return Err(GuestError::Trap { reason: error.to_string() }.into());
        };
        self.settle()?;
        let answer = self.answer(request.call, &request.args, request.memory)?;
        self.renew();
        Ok(answer)
    }

    fn answer(&mut self, call: Call, args: &[u64; ARGS_MAX], memory: Option<Memory>) -> Result<Answer, Stop> {
        let int = |value: i32| Ok(Answer::one(Val::I32(value)));
        match call {
            Call::Allocate => self.allocate(args[0], args[1]).and_then(int),
            Call::Release => {
                self.release(args[0], args[1]);
                Ok(Answer::none())
            }
            Call::Yield => {
                self.cx.yield_now()?;
                Ok(Answer::none())
            }
            Call::SchedYield => {
                self.cx.yield_now()?;
                int(0)
            }
            Call::TaskCreate => self.create(args[0] as u32, args[1] as i64, args[2], memory).and_then(int),
            Call::TaskJoin => self.join(args[0], args[1], memory).and_then(int),
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
                Ok(Answer::one(Val::I64(left as i64)))
            }
            Call::BudgetRecharge => int(self.recharge(args[0], args[1])),
            Call::ChannelMake => self.channel(args[0] as u32).and_then(int),
            Call::ChannelSend => self.send(args, memory).and_then(int),
            Call::ChannelReceive => self.receive(args, memory).and_then(int),
            Call::ChannelClose => int(if self.family.close(args[0] as usize) { 0 } else { code::NO_SUCH }),
            Call::Sleep => {
                self.cx.sleep(Duration::from_nanos(args[0]))?;
                Ok(Answer::none())
            }
            Call::Exit => Err(Stop::Exit(args[0] as i32)),
            _ => self.wasi(call, args, memory).and_then(int),
        }
    }

    /// 1: it may grow by so many pages, or elements.
    fn allocate(&mut self, what: u64, count: u64) -> Result<i32, Stop> {
        let bytes = count * if what == 0 { PAGE } else { ELEMENT };
        match self.hold(bytes) {
            Ok(()) => {}
            Err(ChargeError::Cancelled) => return Err(GuestError::Cancelled.into()),
            Err(_) => return Ok(0),
        }
        // Somebody fills it with zeros.
        self.work(bytes)?;
        Ok(1)
    }

    fn release(&mut self, what: u64, count: u64) {
        let bytes = count * if what == 0 { PAGE } else { ELEMENT };
        if let Some(at) = self.held.iter().rposition(|(held, _)| *held == bytes) {
            drop(self.held.swap_remove(at));
            self.family.tally.memory_back(bytes);
        }
    }

    /// Charges the host's own work on so many bytes, as a bulk operation of the guest would be.
    pub(crate) fn work(&mut self, bytes: u64) -> Result<(), Stop> {
        let ops = bytes >> 6;
        self.cx.charge_ops(ops)?;
        self.family.tally.ops(ops);
        Ok(())
    }

    fn create(&mut self, function: u32, arg: i64, budget: u64, memory: Option<Memory>) -> Result<i32, Stop> {
        let Some(scope) = self.scope else { return Ok(code::FAILED) };
        if self.entry_of(function).is_none() {
            return Ok(code::NO_SUCH);
        }
        let mut task = scope.task().name("guest").stack(STACK);
        let mut children = 0;
        if budget != 0 {
            let Some(budget) = self.budget_at(memory, budget) else { return Ok(code::FAULT) };
            children = budget.spawn_count;
            task = task.budget(budget);
        }
        if let Some(capability) = self.cx.cap_spawn().filter(|_| children > 0) {
            task = task.grant_spawn(capability).children(children);
        }
        let (program, family) = (self.program.clone(), self.family.clone());
        let child = task.spawn(move |cx| {
            let finish = run(cx, &program, &Entry::Table(function, arg), &family, None)?;
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

    fn join(&mut self, child: u64, result: u64, memory: Option<Memory>) -> Result<i32, Stop> {
        let Some(child) = self.children.get_mut(child as usize).and_then(Option::take) else {
            return Ok(code::NO_SUCH);
        };
        match child.join(self.cx) {
            Ok(Ok(value)) if result == 0 || self.write(memory, result, &value.to_le_bytes()) => Ok(0),
            Ok(Ok(_)) => Ok(code::FAULT),
            Err(TaskError::BudgetExceeded(_)) => Ok(code::BUDGET),
            Err(TaskError::Cancelled) if self.cx.is_cancelled() => Err(GuestError::Cancelled.into()),
            Ok(Err(GuestError::Cancelled)) | Err(TaskError::Cancelled) => Ok(code::CANCELLED),
            Ok(Err(GuestError::NoMemory { .. })) => Ok(code::BUDGET),
            Ok(Err(_)) | Err(_) => Ok(code::FAILED),
        }
    }

    fn budget_at(&self, memory: Option<Memory>, at: u64) -> Option<Budget> {
        let bytes = self.bytes(memory, at, 40)?;
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

    /// Who makes a channel pays for its room.
    fn channel(&mut self, capacity: u32) -> Result<i32, Stop> {
        if capacity > CAPACITY_MAX {
            return Ok(code::TOO_LONG);
        }
        match self.hold(u64::from(capacity + 1) * MESSAGE_BYTES_MAX) {
            Ok(()) => {}
            Err(ChargeError::Cancelled) => return Err(GuestError::Cancelled.into()),
            Err(_) => return Ok(code::BUDGET),
        }
        Ok(self.family.make(capacity as usize).map_or(code::BUDGET, |channel| channel as i32))
    }

    fn send(&mut self, args: &[u64; ARGS_MAX], memory: Option<Memory>) -> Result<i32, Stop> {
        if args[2] > MESSAGE_BYTES_MAX {
            return Ok(code::TOO_LONG);
        }
        let Some(to) = self.family.sender(args[0] as usize) else { return Ok(code::CLOSED) };
        let Some(message) = self.bytes(memory, args[1], args[2]).map(<[u8]>::to_vec) else {
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

    fn receive(&mut self, args: &[u64; ARGS_MAX], memory: Option<Memory>) -> Result<i32, Stop> {
        if self.bytes(memory, args[1], args[2]).is_none() {
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
                let written = self.write(memory, args[1], &message);
                Ok(if written { message.len() as i32 } else { code::FAULT })
            }
            Err(_) => Ok(code::CLOSED),
        }
    }

    /// A channel operation charged itself; here it is only counted.
    fn told(&self) {
        self.family.tally.message();
        self.family.tally.ops(1);
    }

    /// One operation on a file, of the table of costs.
    pub(crate) fn io(&mut self) -> Result<(), Stop> {
        match self.cx.charge(Operation::FileIo) {
            Ok(()) => {}
            Err(_) => return Err(GuestError::Cancelled.into()),
        }
        self.family.tally.io();
        self.family.tally.ops(1);
        Ok(())
    }

    /// A piece of the guest's memory, if it is all there.
    pub(crate) fn bytes(&self, memory: Option<Memory>, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len)?;
        memory?.data(&self.store).get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
    }

    pub(crate) fn write(&mut self, memory: Option<Memory>, at: u64, bytes: &[u8]) -> bool {
        let Some(memory) = memory else { return false };
        let Ok(at) = usize::try_from(at) else { return false };
        memory.write(&mut self.store, at, bytes).is_ok()
    }
}

impl Drop for Machine<'_, '_, '_> {
    fn drop(&mut self) {
        let bytes = self.held.iter().map(|(bytes, _)| bytes).sum();
        self.family.tally.memory_back(bytes);
    }
}

/// What an import returns: nothing, or one value.
struct Answer(Option<Val>);

impl Answer {
    fn none() -> Answer {
        Answer(None)
    }

    fn one(value: Val) -> Answer {
        Answer(Some(value))
    }

    fn as_slice(&self) -> &[Val] {
        self.0.as_slice()
    }
}

/// Does an import of the module have the type of what is offered?
pub(crate) fn matches(module: &Module, offer: &Offer) -> bool {
    module
        .imports()
        .filter(|import| import.module() == offer.module && import.name() == offer.name)
        .all(|import| import.ty().func() == Some(&offer.ty()))
}
