//! Modules that were compiled and are ready to run.

use crate::engine::{Code, Core, Engine};
use crate::error::GuestError;
use crate::grant::{Grant, Grants};
use crate::imports::Offer;
use crate::machine::INSTANCE_BYTES;
use crate::pass::{INTERNAL, Import, instrument};
use std::fmt;
use std::sync::Arc;

/// The most nested calls of a guest.
pub const CALLS_MAX: usize = 1_000;
/// The most bytes of the engine's stack that they may use.
pub const STACK_BYTES_MAX: usize = 256 << 10;
/// The most modules that may be linked together.
pub const MODULES_MAX: usize = 64;

/// One module among those that are linked.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) code: Code,
    pub(crate) imports: Vec<Import>,
    pub(crate) bytes: u64,
    /// Bytes that the engine records for an instance, beyond the usual.
    pub(crate) records: u64,
    pub(crate) starts: bool,
}

struct Inner {
    core: Core,
    /// Each module after those that it imports from; the last is the main one.
    parts: Vec<Part>,
    grants: Grants,
}

/// A guest program: one module, or several that are linked. Cheap to clone.
///
/// ```
/// use janus_guest::{Grants, Program};
/// let wasm = wat::parse_str("(module (func (export \"main\") (result i32) i32.const 42))").unwrap();
/// let program = Program::new(&wasm, Grants::NONE).unwrap();
/// let runtime = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
/// let end = runtime.run(|cx| program.call(cx, "main", Default::default())).unwrap().unwrap();
/// // One operation for the instruction, one for the memory of the instance.
/// assert_eq!((end.value, end.used.ops), (Some(42), 2));
/// ```
#[derive(Clone)]
pub struct Program(Arc<Inner>);

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("parts", &self.0.parts).field("grants", &self.0.grants).finish()
    }
}

impl Program {
    /// Takes a module through the pass and compiles it. Everything that it imports must be granted.
    pub fn new(wasm: &[u8], grants: Grants) -> Result<Program, GuestError> {
        Program::link(wasm, &[], grants)
    }

    /// The same with libraries, from which the module and the libraries import by name.
    pub fn link(wasm: &[u8], libraries: &[(&str, &[u8])], grants: Grants) -> Result<Program, GuestError> {
        Program::link_for(Engine::default(), wasm, libraries, grants)
    }

    /// The same for a given engine.
    pub fn link_for(
        engine: Engine,
        wasm: &[u8],
        libraries: &[(&str, &[u8])],
        grants: Grants,
    ) -> Result<Program, GuestError> {
        if libraries.len() >= MODULES_MAX {
            let has = libraries.len() as u64 + 1;
            return Err(GuestError::TooLarge { what: "modules", has, limit: MODULES_MAX as u64 });
        }
        // An engine of its own, because an engine keeps the code of every module that it ever
        // compiled.
        let core = Core::new(engine)?;
        let mut parts = Vec::new();
        for (name, wasm) in libraries {
            if Offer::provides(name) || parts.iter().any(|part: &Part| part.name == *name) {
                return Err(GuestError::Reserved { name: (*name).to_string() });
            }
            parts.push(Part::new(&core, name, wasm, grants)?);
        }
        let main = Part::new(&core, "main module", wasm, grants)?;
        let names: Vec<String> = parts.iter().map(|part| part.name.clone()).collect();
        for part in parts.iter().chain([&main]) {
            part.check_imports(&names, grants)?;
        }
        let mut parts = order(parts)?;
        parts.push(main);
        Ok(Program(Arc::new(Inner { core, parts, grants })))
    }

    pub(crate) fn core(&self) -> &Core {
        &self.0.core
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.0.parts
    }

    pub(crate) fn grants(&self) -> Grants {
        self.0.grants
    }
}

impl Part {
    fn new(core: &Core, name: &str, wasm: &[u8], grants: Grants) -> Result<Part, GuestError> {
        let done = instrument(wasm, grants.has(Grant::Memory))?;
        let code = core.compile(&done.wasm)?;
        Ok(Part {
            name: name.to_string(),
            code,
            imports: done.imports,
            bytes: done.bytes,
            records: done.records.saturating_sub(INSTANCE_BYTES),
            starts: done.starts,
        })
    }

    fn check_imports(&self, libraries: &[String], grants: Grants) -> Result<(), GuestError> {
        for import in &self.imports {
            if libraries.contains(&import.module) {
                continue;
            }
            let name = format!("{}.{}", import.module, import.name);
            let Some(offer) = Offer::find(&import.module, &import.name).filter(|_| import.function) else {
                return Err(GuestError::UnknownImport { import: name });
            };
            if let Some(grant) = offer.grant.filter(|&grant| !grants.has(grant)) {
                return Err(GuestError::NotGranted { import: name, grant });
            }
            if !self.code.matches(offer) {
                return Err(GuestError::WrongType { import: name });
            }
        }
        Ok(())
    }
}

impl Offer {
    /// Whether the host provides the module of this name.
    fn provides(module: &str) -> bool {
        module.starts_with(INTERNAL) || crate::imports::OFFERS.iter().any(|offer| offer.module == module)
    }
}

/// Sorts the libraries: each after those that it imports from.
fn order(mut parts: Vec<Part>) -> Result<Vec<Part>, GuestError> {
    let mut done: Vec<Part> = Vec::new();
    while !parts.is_empty() {
        let waits = |part: &Part, parts: &[Part]| {
            part.imports.iter().find_map(|import| parts.iter().position(|other| other.name == import.module))
        };
        match parts.iter().position(|part| waits(part, &parts).is_none()) {
            Some(free) => done.push(parts.swap_remove(free)),
            None => {
                // Each remaining module waits for another one: following them finds the cycle.
                let mut path = vec![0];
                while let Some(next) = waits(&parts[path[path.len() - 1]], &parts) {
                    let seen = path.iter().position(|&at| at == next);
                    path.push(next);
                    if let Some(first) = seen {
                        path.drain(..first);
                        break;
                    }
                }
                return Err(GuestError::Cycle {
                    modules: path.iter().map(|&at| parts[at].name.clone()).collect(),
                });
            }
        }
    }
    Ok(done)
}

/// An import, or an equivalent instruction, and what is needed to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// It needs no right.
    Free(String),
    /// It needs this right.
    Granted(String, Grant),
    /// The host has no such import: another module must provide it.
    Linked(String),
    /// It would be the host's, but the host does not have it.
    Unknown(String),
}

/// The name of growth among the needs.
const GROWTH: &str = "memory.grow";

impl Need {
    /// Whether this is the growth of memories or tables.
    #[must_use]
    pub fn is_growth(&self) -> bool {
        matches!(self, Need::Granted(name, Grant::Memory) if name == GROWTH)
    }
}

/// The functions that a module exports.
pub fn functions(wasm: &[u8]) -> Result<Vec<String>, GuestError> {
    let mut names = Vec::new();
    for payload in wasmparser::Parser::new(0).parse_all(wasm) {
        if let wasmparser::Payload::ExportSection(exports) = payload? {
            for export in exports {
                let export = export?;
                if export.kind == wasmparser::ExternalKind::Func {
                    names.push(export.name.to_string());
                }
            }
        }
    }
    Ok(names)
}

/// What a module imports, without running it.
pub fn needs(wasm: &[u8]) -> Result<Vec<Need>, GuestError> {
    let done = instrument(wasm, true)?;
    let need = |import: &Import| {
        let name = format!("{}.{}", import.module, import.name);
        match Offer::find(&import.module, &import.name).map(|offer| offer.grant) {
            Some(Some(grant)) => Need::Granted(name, grant),
            Some(None) => Need::Free(name),
            None if Offer::provides(&import.module) => Need::Unknown(name),
            None => Need::Linked(name),
        }
    };
    let mut needs: Vec<Need> = done.imports.iter().map(need).collect();
    if done.grows {
        needs.push(Need::Granted(GROWTH.to_string(), Grant::Memory));
    }
    Ok(needs)
}
