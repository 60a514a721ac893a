//! The engines that run a module after the pass. An engine runs a guest until the guest needs its host, reports what it needs,
//! and continues with the answer: nothing of the task is ever inside the engine. The choice of engine affects only the time
//! that a guest takes: results and charges come from the pass, and are the same.

mod interpreter;

#[cfg(feature = "wasmtime")]
mod compiler;

use crate::error::GuestError;
use crate::imports::{Call, Offer};
use crate::program::Part;

/// The most parameters of an import.
pub(crate) const ARGS_MAX: usize = 9;

/// What runs guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// wasmi: starts at once, and is small.
    #[cfg_attr(not(feature = "wasmtime"), default)]
    Interpreter,
    /// wasmtime: compiles to machine code first. Available with the feature `wasmtime`, and then the default.
    #[cfg(feature = "wasmtime")]
    #[default]
    Compiler,
}

/// An engine that keeps the code of one program.
pub(crate) enum Core {
    Interpreter(wasmi::Engine),
    #[cfg(feature = "wasmtime")]
    Compiler(wasmtime::Engine),
}

/// A module in the form of its engine.
#[derive(Debug)]
pub(crate) enum Code {
    Interpreter(wasmi::Module),
    #[cfg(feature = "wasmtime")]
    Compiler(wasmtime::Module),
}

impl Core {
    pub(crate) fn new(engine: Engine) -> Result<Core, GuestError> {
        Ok(match engine {
            Engine::Interpreter => Core::Interpreter(interpreter::engine()),
            #[cfg(feature = "wasmtime")]
            Engine::Compiler => Core::Compiler(compiler::engine()?),
        })
    }

    /// Compiles a module that the pass made.
    pub(crate) fn compile(&self, wasm: &[u8]) -> Result<Code, GuestError> {
        let refused = |error: &dyn std::fmt::Display| GuestError::Malformed {
            reason: format!("the engine refuses it: {error}"),
            offset: 0,
        };
        match self {
            Core::Interpreter(engine) => {
                wasmi::Module::new(engine, wasm).map(Code::Interpreter).map_err(|error| refused(&error))
            }
            #[cfg(feature = "wasmtime")]
            Core::Compiler(engine) => {
                wasmtime::Module::new(engine, wasm).map(Code::Compiler).map_err(|error| refused(&error))
            }
        }
    }
}

impl Code {
    fn interpreted(&self) -> Option<&wasmi::Module> {
        match self {
            Code::Interpreter(module) => Some(module),
            #[cfg(feature = "wasmtime")]
            Code::Compiler(_) => None,
        }
    }

    /// Whether the module's import has the type of what is offered.
    pub(crate) fn matches(&self, offer: &Offer) -> bool {
        match self {
            Code::Interpreter(module) => interpreter::matches(module, offer),
            #[cfg(feature = "wasmtime")]
            Code::Compiler(module) => compiler::matches(module, offer),
        }
    }
}

/// An integer that goes to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    I32(i32),
    I64(i64),
}

/// The function that a guest begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// The start function of a module, counted in the order in which the modules were linked.
    Start(usize),
    Export(&'a str),
    /// A function of the first table, with an argument.
    Table(u32, i64),
}

/// Why the engine has stopped.
pub(crate) enum Pause {
    /// The function has returned, possibly an integer.
    Done { value: Option<i64>, left: i64 },
    /// The guest trapped; `left` is the fuel according to the global.
    Trapped { reason: String, left: i64 },
    /// The quantum is used up; the answer is the next one.
    Refuel(i64),
    /// An import was called.
    Asks { call: Call, args: [u64; ARGS_MAX], left: i64 },
}

/// One instance of a program, with the modules that it is linked with.
pub(crate) enum Vm {
    Interpreter(Box<interpreter::Vm>),
    #[cfg(feature = "wasmtime")]
    Compiler(Box<compiler::Vm>),
}

macro_rules! each {
    ($vm:expr, $inner:ident => $do:expr) => {
        match $vm {
            Vm::Interpreter($inner) => $do,
            #[cfg(feature = "wasmtime")]
            Vm::Compiler($inner) => $do,
        }
    };
}

impl Vm {
    pub(crate) fn new(core: &Core, parts: &[Part]) -> Result<Vm, GuestError> {
        Ok(match core {
            Core::Interpreter(engine) => Vm::Interpreter(Box::new(interpreter::Vm::new(engine, parts)?)),
            #[cfg(feature = "wasmtime")]
            Core::Compiler(engine) => Vm::Compiler(Box::new(compiler::Vm::new(engine, parts)?)),
        })
    }

    /// How many start functions there are.
    pub(crate) fn starts(&self) -> usize {
        each!(self, vm => vm.starts())
    }

    /// Begins a call with this much fuel.
    pub(crate) fn call(&mut self, target: Target<'_>, fuel: i64) -> Result<Pause, GuestError> {
        let pause = each!(self, vm => vm.call(target, fuel));
        pause.ok_or_else(|| GuestError::NoEntry {
            name: match target {
                Target::Export(name) => name.to_string(),
                Target::Table(index, _) => format!("table {index}"),
                Target::Start(_) => "start".to_string(),
            },
        })
    }

    /// Continues after a pause that was not the last.
    pub(crate) fn resume(&mut self, answer: Option<Value>, fuel: i64) -> Pause {
        each!(self, vm => vm.resume(answer, fuel))
    }

    /// Whether a child can begin with this function of the first table.
    pub(crate) fn can_enter(&mut self, index: u32) -> bool {
        each!(self, vm => vm.can_enter(index))
    }

    /// A range of the memory of the module that asks, if all of it exists.
    pub(crate) fn bytes(&mut self, at: u64, len: u64) -> Option<Vec<u8>> {
        let from = usize::try_from(at).ok()?;
        let to = usize::try_from(at.checked_add(len)?).ok()?;
        each!(self, vm => vm.bytes(from..to))
    }

    /// Whether all of a range exists.
    pub(crate) fn reaches(&mut self, at: u64, len: u64) -> bool {
        // Reads an empty range at the end, so that nothing is copied.
        at.checked_add(len).is_some_and(|end| self.bytes(end, 0).is_some())
    }

    /// Writes a range, all or nothing.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        usize::try_from(at).is_ok_and(|at| each!(self, vm => vm.write(at, bytes)))
    }
}
