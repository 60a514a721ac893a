//! What runs a module after the pass. An engine runs a guest until it needs its host, says what it needs, and goes on with the
//! answer: nothing of the task is ever inside it. Which one it is can be seen by nothing but the time that it takes: results
//! and charges are the pass's, and the same.

mod interpreter;

#[cfg(feature = "wasmtime")]
mod compiler;

use crate::error::GuestError;
use crate::imports::{Call, Offer};
use crate::program::Part;

/// Imports have at most so many parameters.
pub(crate) const ARGS_MAX: usize = 9;

/// What runs guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// wasmi: starts at once, and is small.
    #[cfg_attr(not(feature = "wasmtime"), default)]
    Interpreter,
    /// wasmtime: compiles to machine code first. With the feature `wasmtime`, and then by default.
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

/// A module as its engine has it.
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

    /// Takes a module that the pass made.
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

    /// Does its import have the type of what is offered?
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

/// Which function a guest begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// The start function of a module, in the order in which they were linked.
    Start(usize),
    Export(&'a str),
    /// A function of the first table, with an argument.
    Table(u32, i64),
}

/// Why the engine does not go on.
pub(crate) enum Pause {
    /// The function has returned, perhaps an integer.
    Done { value: Option<i64>, left: i64 },
    /// It trapped; what is left is what the global says.
    Trapped { reason: String, left: i64 },
    /// The quantum is over; the answer is the next one.
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

    /// Begins a call, with so much fuel.
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

    /// Goes on after a pause that was not the last.
    pub(crate) fn resume(&mut self, answer: Option<Value>, fuel: i64) -> Pause {
        each!(self, vm => vm.resume(answer, fuel))
    }

    /// Can a child begin with this function of the first table?
    pub(crate) fn can_enter(&mut self, index: u32) -> bool {
        each!(self, vm => vm.can_enter(index))
    }

    /// A piece of the memory of the module that asks, if it is all there.
    pub(crate) fn bytes(&mut self, at: u64, len: u64) -> Option<Vec<u8>> {
        let from = usize::try_from(at).ok()?;
        let to = usize::try_from(at.checked_add(len)?).ok()?;
        each!(self, vm => vm.bytes(from..to))
    }

    /// Is it all there?
    pub(crate) fn reaches(&mut self, at: u64, len: u64) -> bool {
        // An empty piece at its end: nothing is copied.
        at.checked_add(len).is_some_and(|end| self.bytes(end, 0).is_some())
    }

    /// Writes there, all or nothing.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        usize::try_from(at).is_ok_and(|at| each!(self, vm => vm.write(at, bytes)))
    }
}
