//! wasmi. A call that needs its host is suspended by an error that the import returns, and resumed with the
//! answer.

use super::{ARGS_MAX, Pause, Target, Value};
use crate::error::GuestError;
use crate::imports::{Call, Offer};
use crate::pass::{INTERNAL, MEMORY, START, TABLE};
use crate::program::{CALLS_MAX, Part, STACK_BYTES_MAX};
use std::fmt;
use std::ops::Range;
use wasmi::errors::HostError;
use wasmi::{
    Caller, Config, Engine, Error, Extern, ExternType, Func, FuncType, Global, Instance, Memory, Module,
    Mutability, Ref, ResumableCall, ResumableCallHostTrap, Store, Val, ValType,
};

pub(super) fn engine() -> Engine {
    let mut config = Config::default();
    config.wasm_tail_call(true).wasm_extended_const(true).wasm_multi_memory(false);
    config.wasm_custom_page_sizes(false).wasm_wide_arithmetic(false);
    config.set_max_recursion_depth(CALLS_MAX).set_max_stack_height(STACK_BYTES_MAX);
    Engine::new(&config)
}

fn type_of(offer: &Offer) -> FuncType {
    let letters = |letters: &'static str| {
        letters.bytes().map(|letter| if letter == b'l' { ValType::I64 } else { ValType::I32 })
    };
    let (params, results) = offer.types();
    FuncType::new(letters(params), letters(results))
}

pub(super) fn matches(module: &Module, offer: &Offer) -> bool {
    module
        .imports()
        .filter(|import| import.module() == offer.module && import.name() == offer.name)
        .all(|import| import.ty().func() == Some(&type_of(offer)))
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

pub(crate) struct Vm {
    store: Store<()>,
    fuel: Global,
    main: Option<Instance>,
    starts: Vec<Func>,
    /// The memory of the module that asks.
    memory: Option<Memory>,
    waiting: Option<ResumableCallHostTrap>,
    results: Vec<Val>,
}

impl Vm {
    pub(super) fn new(engine: &Engine, parts: &[Part]) -> Result<Vm, GuestError> {
        let mut store = Store::new(engine, ());
        let fuel = Global::new(&mut store, Val::I64(0), Mutability::Var);
        let mut vm = Vm {
            store,
            fuel,
            main: None,
            starts: Vec::new(),
            memory: None,
            waiting: None,
            results: Vec::new(),
        };
        let mut instances: Vec<(&str, Instance)> = Vec::new();
        for part in parts {
            let Some(module) = part.code.interpreted() else { continue };
            let imports = vm.imports(module, &instances)?;
            let instance = Instance::new(&mut vm.store, module, &imports).map_err(|error| {
                match error.as_trap_code() {
                    Some(_) => GuestError::Trap { reason: error.to_string() },
                    None => GuestError::WrongType { import: format!("{}: {error}", part.name) },
                }
            })?;
            if part.starts {
                vm.starts.extend(instance.get_func(&vm.store, START));
            }
            instances.push((&part.name, instance));
        }
        vm.main = instances.last().map(|(_, instance)| *instance);
        Ok(vm)
    }

    fn imports(
        &mut self,
        module: &Module,
        instances: &[(&str, Instance)],
    ) -> Result<Vec<Extern>, GuestError> {
        let mut found = Vec::new();
        for import in module.imports() {
            let unknown =
                || GuestError::UnknownImport { import: format!("{}.{}", import.module(), import.name()) };
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
                    Some((_, instance)) => instance.get_export(&self.store, field).ok_or_else(unknown)?,
                    None => {
                        let offer = Offer::find(module, field).ok_or_else(unknown)?;
                        self.host(import.ty(), offer.call)
                    }
                },
            });
        }
        Ok(found)
    }

    /// An import that suspends the call with its request. Its type was compared when the program was made.
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

    pub(super) fn starts(&self) -> usize {
        self.starts.len()
    }

    fn left(&self) -> i64 {
        match self.fuel.get(&self.store) {
            Val::I64(left) => left,
            _ => 0,
        }
    }

    fn trapped(&self, reason: impl fmt::Display) -> Pause {
        Pause::Trapped { reason: reason.to_string(), left: self.left() }
    }

    fn set_fuel(&mut self, fuel: i64) {
        // Cannot fail: the fuel is a mutable global of this type.
        let _ = self.fuel.set(&mut self.store, Val::I64(fuel));
    }

    /// Begins a call; `None` if there is no such function.
    pub(super) fn call(&mut self, target: Target<'_>, fuel: i64) -> Option<Pause> {
        let (func, args) = match target {
            Target::Start(index) => (*self.starts.get(index)?, Vec::new()),
            Target::Export(name) => (self.main?.get_func(&self.store, name)?, Vec::new()),
            Target::Table(index, arg) => (self.entry_of(index)?, vec![Val::I64(arg)]),
        };
        let ty = func.ty(&self.store);
        if ty.params().len() != args.len() {
            return None;
        }
        self.set_fuel(fuel);
        self.results = ty.results().iter().map(|&ty| Val::default_for_ty(ty)).collect();
        let mut results = std::mem::take(&mut self.results);
        let call = func.call_resumable(&mut self.store, &args, &mut results);
        self.results = results;
        Some(self.pause(call))
    }

    pub(super) fn resume(&mut self, answer: Option<Value>, fuel: i64) -> Pause {
        let Some(waiting) = self.waiting.take() else { return self.trapped("nothing waits") };
        self.set_fuel(fuel);
        let answer = answer.map(|answer| match answer {
            Value::I32(value) => Val::I32(value),
            Value::I64(value) => Val::I64(value),
        });
        let mut results = std::mem::take(&mut self.results);
        let call = waiting.resume(&mut self.store, answer.as_slice(), &mut results);
        self.results = results;
        self.pause(call)
    }

    fn pause(&mut self, call: Result<ResumableCall, Error>) -> Pause {
        let waiting = match call {
            Err(error) => return self.trapped(error),
            Ok(ResumableCall::Finished) => {
                let value = match self.results[..] {
                    [Val::I32(value)] => Some(i64::from(value)),
                    [Val::I64(value)] => Some(value),
                    _ => None,
                };
                return Pause::Done { value, left: self.left() };
            }
            Ok(ResumableCall::OutOfFuel(_)) => {
                return self.trapped("the engine's own metering is off");
            }
            Ok(ResumableCall::HostTrap(waiting)) => waiting,
        };
        let error = waiting.host_error();
        let pause = match (error.downcast_ref::<Refuel>(), error.downcast_ref::<Request>()) {
            (Some(Refuel(left)), _) => Pause::Refuel(*left),
            (None, Some(request)) => {
                self.memory = request.memory;
                Pause::Asks { call: request.call, args: request.args, left: self.left() }
            }
            (None, None) => self.trapped(error),
        };
        self.waiting = Some(waiting);
        pause
    }

    /// The function at an index of the first table, if a child can begin with it.
    fn entry_of(&self, index: u32) -> Option<Func> {
        let table = self.main?.get_table(&self.store, TABLE)?;
        let Ref::Func(func) = table.get(&self.store, u64::from(index))? else { return None };
        let func = *func.val()?;
        let ty = func.ty(&self.store);
        (ty.params() == [ValType::I64] && ty.results() == [ValType::I64]).then_some(func)
    }

    pub(super) fn can_enter(&mut self, index: u32) -> bool {
        self.entry_of(index).is_some()
    }

    pub(super) fn bytes(&mut self, range: Range<usize>) -> Option<Vec<u8>> {
        self.memory?.data(&self.store).get(range).map(<[u8]>::to_vec)
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.memory.is_some_and(|memory| memory.write(&mut self.store, at, bytes).is_ok())
    }
}
