//! wasmtime. A call runs on a stack of its own, as a future that only this module polls: an import deposits its request
//! and waits; each poll gives it one order, until it has its answer. The calling module's memory can be reached only
//! from inside that call, so reads and writes are orders, too.

use super::{ARGS_MAX, Pause, Target, Value};
use crate::error::GuestError;
use crate::imports::{Call, Offer};
use crate::pass::{INTERNAL, MEMORY, START, TABLE};
use crate::program::{Part, STACK_BYTES_MAX};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use wasmtime::{
    Caller, Config, Engine, Error, Extern, ExternType, Func, FuncType, Global, GlobalType, Instance, Module,
    Mutability, Ref, Store, Trap, Val, ValType,
};

/// How much of that stack the engine needs beside the guest's own calls.
const HOST_STACK_BYTES: usize = 256 << 10;

pub(super) fn engine() -> Result<Engine, GuestError> {
    let mut config = Config::new();
    config.wasm_tail_call(true).wasm_reference_types(true).wasm_simd(false).wasm_relaxed_simd(false);
    config.max_wasm_stack(STACK_BYTES_MAX).async_stack_size(STACK_BYTES_MAX + HOST_STACK_BYTES);
    // Not by signals, because the runtime has its own handler for bad accesses; and memory is exactly as large as it was
    // charged for.
    config.signals_based_traps(false).memory_init_cow(false);
    config.memory_reservation(0).memory_guard_size(0).memory_reservation_for_growth(0);
    Engine::new(&config).map_err(|error| GuestError::Malformed {
        reason: format!("the engine does not start: {error:#}"),
        offset: 0,
    })
}

pub(super) fn matches(module: &Module, offer: &Offer) -> bool {
    let letter = |ty: ValType| match ty {
        ValType::I32 => 'i',
        ValType::I64 => 'l',
        _ => '?',
    };
    let (params, results) = offer.types();
    module.imports().filter(|import| import.module() == offer.module && import.name() == offer.name).all(
        |import| match import.ty() {
            ExternType::Func(ty) => {
                ty.params().map(letter).eq(params.chars()) && ty.results().map(letter).eq(results.chars())
            }
            _ => false,
        },
    )
}

/// An order to the waiting call.
enum Order {
    Read(Range<usize>),
    Write(usize, Vec<u8>),
    CanEnter(u32),
    Answer(Option<Value>, i64),
}

/// A message of the call.
enum Word {
    Asks(Call, [u64; ARGS_MAX], i64),
    Refuel(i64),
    Bytes(Option<Vec<u8>>),
    Yes(bool),
}

/// The exchange between the call and its host; only one of them acts at a time.
#[derive(Default)]
struct Desk {
    order: Option<Order>,
    word: Option<Word>,
}

type Shared = Arc<Mutex<Desk>>;

fn at(desk: &Shared) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state in a store.
struct State {
    desk: Shared,
    fuel: Option<Global>,
    main: Option<Instance>,
}

type Ended = (Store<State>, Result<Vec<Val>, Error>);

enum Phase {
    Idle(Store<State>),
    Running(Pin<Box<dyn Future<Output = Ended> + Send>>),
    /// Only during a change of phase, and after a trap.
    Gone,
}

pub(crate) struct Vm {
    phase: Phase,
    desk: Shared,
    starts: Vec<Func>,
    main: Option<Instance>,
    fuel: Global,
}

fn reason(error: &Error) -> String {
    error.downcast_ref::<Trap>().map_or_else(|| format!("{error:#}"), ToString::to_string)
}

/// Completes a future that waits for nothing but this module.
fn finish<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

impl Vm {
    pub(super) fn new(engine: &Engine, parts: &[Part]) -> Result<Vm, GuestError> {
        let desk = Shared::default();
        let mut store = Store::new(engine, State { desk: desk.clone(), fuel: None, main: None });
        let failed = |error: Error, name: &str| match error.downcast_ref::<Trap>() {
            Some(trap) => GuestError::Trap { reason: trap.to_string() },
            None => GuestError::WrongType { import: format!("{name}: {error:#}") },
        };
        let ty = GlobalType::new(ValType::I64, Mutability::Var);
        let fuel = Global::new(&mut store, ty, Val::I64(0)).map_err(|error| failed(error, "fuel"))?;
        store.data_mut().fuel = Some(fuel);
        let mut starts = Vec::new();
        let mut instances: Vec<(&str, Instance)> = Vec::new();
        for part in parts {
            let super::Code::Compiler(module) = &part.code else { continue };
            let imports = imports(&mut store, module, &instances, fuel)?;
            let instance = finish(Instance::new_async(&mut store, module, &imports));
            let instance = instance.unwrap_or_else(|| Err(Error::msg("it waits for its host")));
            let instance = instance.map_err(|error| failed(error, &part.name))?;
            if part.starts {
                starts.extend(instance.get_func(&mut store, START));
            }
            instances.push((&part.name, instance));
        }
        let main = instances.last().map(|(_, instance)| *instance);
        store.data_mut().main = main;
        Ok(Vm { phase: Phase::Idle(store), desk, starts, main, fuel })
    }

    pub(super) fn starts(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn call(&mut self, target: Target<'_>, fuel: i64) -> Option<Pause> {
        let Phase::Idle(mut store) = std::mem::replace(&mut self.phase, Phase::Gone) else { return None };
        let found = match target {
            Target::Start(index) => self.starts.get(index).map(|func| (*func, Vec::new())),
            Target::Export(name) => {
                self.main.and_then(|main| main.get_func(&mut store, name)).map(|func| (func, Vec::new()))
            }
            Target::Table(index, arg) => {
                entry_of(&mut store, self.main, index).map(|func| (func, vec![Val::I64(arg)]))
            }
        };
        let found = found.filter(|(func, args)| func.ty(&store).params().len() == args.len());
        let Some((func, args)) = found else {
            self.phase = Phase::Idle(store);
            return None;
        };
        // Cannot fail: the fuel is a mutable global of this type.
        let _ = self.fuel.set(&mut store, Val::I64(fuel));
        let mut results = vec![Val::I32(0); func.ty(&store).results().len()];
        self.phase = Phase::Running(Box::pin(async move {
            let ended = func.call_async(&mut store, &args, &mut results).await;
            (store, ended.map(|()| results))
        }));
        Some(self.pause())
    }

    pub(super) fn resume(&mut self, answer: Option<Value>, fuel: i64) -> Pause {
        at(&self.desk).order = Some(Order::Answer(answer, fuel));
        self.pause()
    }

    /// Lets the call continue until it sends a message, or is over.
    fn poll(&mut self) -> Option<Result<Word, Pause>> {
        let Phase::Running(call) = &mut self.phase else { return None };
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => at(&self.desk).word.take().map(Ok),
            Poll::Ready((mut store, Err(error))) => {
                self.phase = Phase::Gone;
                let left = self.fuel.get(&mut store).i64().unwrap_or_default();
                Some(Err(Pause::Trapped { reason: reason(&error), left }))
            }
            Poll::Ready((mut store, Ok(results))) => {
                let value = match results[..] {
                    [Val::I32(value)] => Some(i64::from(value)),
                    [Val::I64(value)] => Some(value),
                    _ => None,
                };
                let left = self.fuel.get(&mut store).i64().unwrap_or_default();
                self.phase = Phase::Idle(store);
                Some(Err(Pause::Done { value, left }))
            }
        }
    }

    fn pause(&mut self) -> Pause {
        match self.poll() {
            Some(Ok(Word::Asks(call, args, left))) => Pause::Asks { call, args, left },
            Some(Ok(Word::Refuel(left))) => Pause::Refuel(left),
            Some(Err(pause)) => pause,
            Some(Ok(_)) | None => {
                Pause::Trapped { reason: "the engine waits for nothing".to_string(), left: 0 }
            }
        }
    }

    /// Gives the waiting call an order.
    fn order(&mut self, order: Order) -> Option<Word> {
        at(&self.desk).order = Some(order);
        self.poll()?.ok()
    }

    pub(super) fn can_enter(&mut self, index: u32) -> bool {
        matches!(self.order(Order::CanEnter(index)), Some(Word::Yes(true)))
    }

    pub(super) fn bytes(&mut self, range: Range<usize>) -> Option<Vec<u8>> {
        match self.order(Order::Read(range)) {
            Some(Word::Bytes(bytes)) => bytes,
            _ => None,
        }
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        matches!(self.order(Order::Write(at, bytes.to_vec())), Some(Word::Yes(true)))
    }
}

/// The function at an index of the first table, if a child can begin with it.
fn entry_of(mut store: impl wasmtime::AsContextMut, main: Option<Instance>, index: u32) -> Option<Func> {
    let table = main?.get_table(&mut store, TABLE)?;
    let Some(Ref::Func(Some(func))) = table.get(&mut store, u64::from(index)) else { return None };
    let ty = func.ty(&store);
    let mut integers = ty.params().chain(ty.results());
    let fits = ty.params().len() == 1 && ty.results().len() == 1;
    (fits && integers.all(|ty| matches!(ty, ValType::I64))).then_some(func)
}

fn imports(
    store: &mut Store<State>,
    module: &Module,
    instances: &[(&str, Instance)],
    fuel: Global,
) -> Result<Vec<Extern>, GuestError> {
    let mut found = Vec::new();
    for import in module.imports() {
        let unknown =
            || GuestError::UnknownImport { import: format!("{}.{}", import.module(), import.name()) };
        let library = instances.iter().find(|(name, _)| *name == import.module());
        found.push(match (import.module(), import.name(), import.ty()) {
            (INTERNAL, "fuel", _) => Extern::Global(fuel),
            (INTERNAL, "refuel", ExternType::Func(ty)) => host(store, ty, None),
            (INTERNAL, "allocate", ExternType::Func(ty)) => host(store, ty, Some(Call::Allocate)),
            (INTERNAL, _, ExternType::Func(ty)) => host(store, ty, Some(Call::Release)),
            (module, field, ty) => match (library, ty) {
                (Some((_, instance)), _) => instance.get_export(&mut *store, field).ok_or_else(unknown)?,
                (None, ExternType::Func(ty)) => {
                    let offer = Offer::find(module, field).ok_or_else(unknown)?;
                    host(store, ty, Some(offer.call))
                }
                (None, _) => return Err(unknown()),
            },
        });
    }
    Ok(found)
}

/// An import that waits for its answer; without a `call` it is the import for fuel.
fn host(store: &mut Store<State>, ty: FuncType, call: Option<Call>) -> Extern {
    Extern::Func(Func::new_async(store, ty, move |mut caller, params, results| {
        let mut args = [0; ARGS_MAX];
        for (arg, param) in args.iter_mut().zip(params) {
            *arg = match param {
                Val::I32(value) => u64::from(*value as u32),
                Val::I64(value) => *value as u64,
                _ => 0,
            };
        }
        Box::new(async move {
            let desk = caller.data().desk.clone();
            let fuel = caller.data().fuel;
            let left = fuel.and_then(|fuel| fuel.get(&mut caller).i64()).unwrap_or_default();
            at(&desk).word = Some(match call {
                Some(call) => Word::Asks(call, args, left),
                None => Word::Refuel(args[0] as i64),
            });
            loop {
                let order = std::future::poll_fn(|_| match at(&desk).order.take() {
                    Some(order) => Poll::Ready(order),
                    None => Poll::Pending,
                });
                let word = match order.await {
                    Order::Answer(answer, granted) => {
                        if let Some(fuel) = fuel {
                            fuel.set(&mut caller, Val::I64(granted))?;
                        }
                        if let (Some(result), Some(answer)) = (results.first_mut(), answer) {
                            *result = match answer {
                                Value::I32(value) => Val::I32(value),
                                Value::I64(value) => Val::I64(value),
                            };
                        }
                        return Ok(());
                    }
                    Order::CanEnter(index) => {
                        let main = caller.data().main;
                        Word::Yes(entry_of(&mut caller, main, index).is_some())
                    }
                    Order::Read(range) => {
                        Word::Bytes(memory(&mut caller, |memory| memory.get(range).map(<[u8]>::to_vec)))
                    }
                    Order::Write(from, bytes) => Word::Yes(
                        memory(&mut caller, |memory| {
                            let to = from.checked_add(bytes.len())?;
                            memory.get_mut(from..to)?.copy_from_slice(&bytes);
                            Some(())
                        })
                        .is_some(),
                    ),
                };
                at(&desk).word = Some(word);
            }
        })
    }))
}

/// Accesses the memory of the module that calls.
fn memory<T>(caller: &mut Caller<'_, State>, look: impl FnOnce(&mut [u8]) -> Option<T>) -> Option<T> {
    let memory = caller.get_export(MEMORY)?.into_memory()?;
    look(memory.data_mut(caller))
}
