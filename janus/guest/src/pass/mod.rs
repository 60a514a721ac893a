//! The pass: a module in, the same module with its charges out.
//!
//! It maps the opcodes of SPEC-021 [SCHED:11.1.1] onto WebAssembly. `Budget_Decrement` is a subtraction from the fuel,
//! `Budget_Check` a look at it and, when it is below zero, a call of the host, which charges the task, lets others run
//! and answers with the next quantum. `Yield`, `Task_Create` and `Task_Join` are imports of the guest's own
//! ([`crate::Grant`]).
//!
//! Whatever comes in is validated first; what goes out is validated too, as not every loop can be written out several times, and
//! again by the engine.

mod body;
mod cost;
mod plan;
mod unroll;

use crate::error::GuestError;
use std::convert::Infallible;
use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{
    BlockType, CodeSection, DataCountSection, DataSection, ElementSection, EntityType, ExportKind,
    ExportSection, Function, FunctionSection, GlobalSection, GlobalType, ImportSection, MemorySection,
    Module, RefType, TableSection, TypeSection, ValType,
};
use wasmparser::{
    ElementItems, FunctionBody, Parser, Payload, TypeRef, ValidPayload, Validator, WasmFeatures,
};

/// The module of imports that only the pass makes.
pub const INTERNAL: &str = "janus:pass";
/// What exports of the pass begin with; no guest has such an export.
pub const RESERVED: &str = "janus:";
/// Where the pass exports the first memory, so that the host finds it.
pub const MEMORY: &str = "janus:memory";
/// The same for the first table.
pub const TABLE: &str = "janus:table";
/// Where it exports what was the start function: it is called like any other, so that it is charged and can be stopped.
pub const START: &str = "janus:start";

/// Bytes that a module may have.
pub const MODULE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a page of memory.
pub const PAGE: u64 = 64 << 10;
/// Bytes that an element of a table is charged with.
pub const ELEMENT: u64 = 16;

/// Bytes that each function, global, segment or the like is counted with, and what has a name.
const RECORD: u64 = 64;
const NAMED: u64 = 128;
/// Values that a function may return, and a block take or give: they are moved where it is entered and left, and to move
/// many costs more than the one operation that a branch is charged with.
pub const VALUES_MAX: usize = 16;

/// An import of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Of which module.
    pub module: String,
    /// Its name there.
    pub name: String,
    /// Is it a function?
    pub function: bool,
}

/// A module after the pass.
#[derive(Clone, Debug)]
pub struct Instrumented {
    /// The new module.
    pub wasm: Vec<u8>,
    /// What the guest itself imports.
    pub imports: Vec<Import>,
    /// Bytes of the memories and tables that it defines, as they are at first.
    pub bytes: u64,
    /// About how many bytes an engine writes down for an instance beside those: for functions, globals, exports, elements.
    pub records: u64,
    /// It has a start function, exported as [`START`].
    pub starts: bool,
    /// It may ask for more memory or larger tables.
    pub grows: bool,
}

/// The WebAssembly that guests may use: what the engine knows, without threads, vectors and 64-bit memories.
#[must_use]
pub fn features() -> WasmFeatures {
    WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::REFERENCE_TYPES
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::BULK_MEMORY_OPT
        | WasmFeatures::CALL_INDIRECT_OVERLONG
        | WasmFeatures::TAIL_CALL
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::FLOATS
        | WasmFeatures::GC_TYPES
}

/// Indices of what the pass adds.
#[derive(Clone, Debug, Default)]
struct Added {
    /// The global with the fuel.
    fuel: u32,
    /// Imported: fuel that is below zero in, fresh fuel out.
    refuel: u32,
    /// The same for the global.
    settle: u32,
    /// Charges as much as its argument says.
    charge: u32,
    /// Instead of `memory.grow`, if growth was granted.
    grow_memory: Option<u32>,
    /// The first of those instead of `table.grow`.
    grow_tables: Option<u32>,
}

/// What the callers of a function charge for it.
#[derive(Clone, Copy, Debug, Default)]
struct Prepaid {
    cost: u64,
    /// That is all of it: it touches no fuel.
    whole: bool,
}

/// Bytes of a function that callers pay for. A larger one pays little for its own entry, and planning it twice takes time.
const PREPAID_BYTES: u64 = 512;

/// How much thought charging gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum How {
    #[default]
    Unrolled,
    /// Loops stay as they are: what is left on the stack where a loop turns or is left does not fit every copy of it.
    Straight,
    /// Every instruction is charged by itself.
    Plain,
}

#[derive(Default)]
struct Rewriter<'a> {
    how: How,
    added: Added,
    imported_functions: u32,
    added_imports: u32,
    imported_globals: u32,
    function_types: Vec<u32>,
    /// How many parameters each type has.
    params: Vec<u32>,
    tables: Vec<RefType>,
    memories: u32,
    bodies: Vec<FunctionBody<'a>>,
    /// Of each function of the guest's own: does anything but a call name it? Then it may be called by who does not know
    /// what it costs.
    named: Vec<bool>,
    prepaid: Vec<Prepaid>,
    start: Option<u32>,
    grows: bool,
    out: Sections,
}

#[derive(Default)]
struct Sections {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    tables: TableSection,
    memories: MemorySection,
    globals: GlobalSection,
    exports: ExportSection,
    elements: ElementSection,
    data_count: Option<DataCountSection>,
    code: CodeSection,
    data: DataSection,
}

impl Reencode for Rewriter<'_> {
    type Error = Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, reencode::Error> {
        match function.checked_sub(self.imported_functions) {
            Some(own) => {
                self.named[own as usize] = true;
                Ok(function + self.added_imports)
            }
            None => Ok(function),
        }
    }

    fn global_index(&mut self, global: u32) -> Result<u32, reencode::Error> {
        Ok(global + u32::from(global >= self.imported_globals))
    }
}

/// May a function or a block have so many?
fn few(values: usize) -> Result<(), GuestError> {
    if values <= VALUES_MAX {
        return Ok(());
    }
    let what = "values that a function or block gives or takes";
    Err(GuestError::TooLarge { what, has: values as u64, limit: VALUES_MAX as u64 })
}

/// What was validated is not refused by the encoder; if it is, that is said and nothing runs.
fn refused(error: reencode::Error) -> GuestError {
    GuestError::Malformed { reason: error.to_string(), offset: 0 }
}

/// Runs the pass. Without `growth`, memories and tables stay as large as they begin.
pub fn instrument(wasm: &[u8], growth: bool) -> Result<Instrumented, GuestError> {
    check(wasm)?;
    let done = run(wasm, growth, How::Unrolled)?;
    if validate(&done.wasm).is_ok() { Ok(done) } else { run(wasm, growth, How::Straight) }
}

/// For tests: the same with every instruction charged by itself, right before it runs. Slow, and plain enough to trust.
#[doc(hidden)]
pub fn instrument_plainly(wasm: &[u8], growth: bool) -> Result<Instrumented, GuestError> {
    check(wasm)?;
    run(wasm, growth, How::Plain)
}

/// Is it a module that the pass takes?
fn check(wasm: &[u8]) -> Result<(), GuestError> {
    if wasm.len() as u64 > MODULE_BYTES_MAX {
        let has = wasm.len() as u64;
        return Err(GuestError::TooLarge { what: "bytes", has, limit: MODULE_BYTES_MAX });
    }
    validate(wasm)
}

fn run(wasm: &[u8], growth: bool, how: How) -> Result<Instrumented, GuestError> {
    let mut result = Instrumented {
        wasm: Vec::new(),
        imports: Vec::new(),
        bytes: 0,
        records: 0,
        starts: false,
        grows: false,
    };
    let mut rewriter = Rewriter { how, ..Rewriter::default() };
    rewriter.survey(wasm, &mut result)?;
    rewriter.plan_additions(growth);
    rewriter.copy(wasm)?;
    rewriter.add(growth)?;
    rewriter.prepay()?;
    rewriter.code()?;
    result.starts = rewriter.start.is_some();
    result.grows = rewriter.grows;
    result.wasm = rewriter.out.finish();
    Ok(result)
}

/// Is it a module that guests may be? Bodies are validated one at a time, which bounds what that needs.
fn validate(wasm: &[u8]) -> Result<(), GuestError> {
    let mut validator = Validator::new_with_features(features());
    let mut buffers = wasmparser::FuncValidatorAllocations::default();
    for payload in Parser::new(0).parse_all(wasm) {
        if let ValidPayload::Func(function, body) = validator.payload(&payload?)? {
            let mut function = function.into_validator(buffers);
            function.validate(&body)?;
            buffers = function.into_allocations();
        }
    }
    Ok(())
}

impl<'a> Rewriter<'a> {
    /// Counts what comes before the code: indices depend on it.
    fn survey(&mut self, wasm: &'a [u8], result: &mut Instrumented) -> Result<(), GuestError> {
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(types) => {
                    for ty in types.into_iter_err_on_gc_types() {
                        let ty = ty?;
                        few(ty.results().len())?;
                        self.params.push(ty.params().len() as u32);
                    }
                }
                Payload::ImportSection(imports) => {
                    result.records += u64::from(imports.count()) * NAMED;
                    for import in imports.into_imports() {
                        self.survey_import(&import?, result)?;
                    }
                }
                Payload::FunctionSection(functions) => {
                    result.records += u64::from(functions.count()) * RECORD;
                    for ty in functions {
                        self.function_types.push(ty?);
                    }
                }
                Payload::GlobalSection(globals) => result.records += u64::from(globals.count()) * RECORD,
                Payload::ExportSection(exports) => result.records += u64::from(exports.count()) * NAMED,
                Payload::DataSection(data) => result.records += u64::from(data.count()) * RECORD,
                Payload::ElementSection(elements) => {
                    for element in elements {
                        let count = match element?.items {
                            ElementItems::Functions(items) => items.count(),
                            ElementItems::Expressions(_, items) => items.count(),
                        };
                        result.records += RECORD + u64::from(count) * ELEMENT;
                    }
                }
                Payload::TableSection(tables) => {
                    for table in tables {
                        let ty = table?.ty;
                        result.bytes = result.bytes.saturating_add(ty.initial.saturating_mul(ELEMENT));
                        let element = self.ref_type(ty.element_type).map_err(refused)?;
                        self.tables.push(element);
                    }
                }
                Payload::MemorySection(memories) => {
                    for memory in memories {
                        result.bytes = result.bytes.saturating_add(memory?.initial.saturating_mul(PAGE));
                        self.memories += 1;
                    }
                }
                Payload::StartSection { func, .. } => self.start = Some(func),
                Payload::CodeSectionEntry(body) => self.bodies.push(body),
                _ => {}
            }
        }
        self.named = vec![false; self.function_types.len()];
        Ok(())
    }

    fn survey_import(
        &mut self,
        import: &wasmparser::Import<'_>,
        result: &mut Instrumented,
    ) -> Result<(), GuestError> {
        if import.module.starts_with(RESERVED) {
            return Err(GuestError::Reserved { name: import.module.to_string() });
        }
        match import.ty {
            TypeRef::Func(_) | TypeRef::FuncExact(_) => self.imported_functions += 1,
            TypeRef::Global(_) => self.imported_globals += 1,
            TypeRef::Table(ty) => {
                let element = self.ref_type(ty.element_type).map_err(refused)?;
                self.tables.push(element);
            }
            TypeRef::Memory(_) => self.memories += 1,
            TypeRef::Tag(_) => {}
        }
        result.imports.push(Import {
            module: import.module.to_string(),
            name: import.name.to_string(),
            function: matches!(import.ty, TypeRef::Func(_)),
        });
        Ok(())
    }

    /// Which indices what is added will have.
    fn plan_additions(&mut self, growth: bool) {
        self.added_imports = if growth { 3 } else { 1 };
        let own = self.imported_functions + self.added_imports + self.function_types.len() as u32;
        let grows = growth && self.memories > 0;
        self.added = Added {
            fuel: self.imported_globals,
            refuel: self.imported_functions,
            settle: own,
            charge: own + 1,
            grow_memory: grows.then_some(own + 2),
            grow_tables: growth.then_some(own + 2 + u32::from(grows)),
        };
    }

    /// Copies every section but the code, with indices moved.
    fn copy(&mut self, wasm: &'a [u8]) -> Result<(), GuestError> {
        let mut out = std::mem::take(&mut self.out);
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(s) => self.parse_type_section(&mut out.types, s),
                Payload::ImportSection(s) => self.parse_import_section(&mut out.imports, s),
                Payload::FunctionSection(s) => self.parse_function_section(&mut out.functions, s),
                Payload::TableSection(s) => self.parse_table_section(&mut out.tables, s),
                Payload::MemorySection(s) => self.parse_memory_section(&mut out.memories, s),
                Payload::GlobalSection(s) => self.parse_global_section(&mut out.globals, s),
                Payload::ExportSection(s) => {
                    for export in s.clone() {
                        let name = export?.name;
                        if name.starts_with(RESERVED) {
                            return Err(GuestError::Reserved { name: name.to_string() });
                        }
                    }
                    self.parse_export_section(&mut out.exports, s)
                }
                Payload::ElementSection(s) => self.parse_element_section(&mut out.elements, s),
                Payload::DataCountSection { count, .. } => {
                    out.data_count = Some(DataCountSection { count });
                    Ok(())
                }
                Payload::DataSection(s) => self.parse_data_section(&mut out.data, s),
                _ => Ok(()),
            }
            .map_err(refused)?;
        }
        self.out = out;
        Ok(())
    }

    fn ty(&mut self, params: &[ValType], results: &[ValType]) -> u32 {
        let index = self.out.types.len();
        self.out.types.ty().function(params.iter().copied(), results.iter().copied());
        index
    }

    /// Imports, exports and types of what is added.
    fn add(&mut self, growth: bool) -> Result<(), GuestError> {
        use ValType::{I32, I64};
        let refuel = self.ty(&[I64], &[I64]);
        self.out.imports.import(INTERNAL, "refuel", EntityType::Function(refuel));
        if growth {
            let ask = self.ty(&[I32, I32], &[I32]);
            let give = self.ty(&[I32, I32], &[]);
            self.out.imports.import(INTERNAL, "allocate", EntityType::Function(ask));
            self.out.imports.import(INTERNAL, "release", EntityType::Function(give));
        }
        let fuel = GlobalType { val_type: I64, mutable: true, shared: false };
        self.out.imports.import(INTERNAL, "fuel", EntityType::Global(fuel));
        let settle = self.ty(&[], &[]);
        let charge = self.ty(&[I64], &[]);
        self.out.functions.function(settle).function(charge);
        if self.added.grow_memory.is_some() {
            let grow = self.ty(&[I32], &[I32]);
            self.out.functions.function(grow);
        }
        if self.added.grow_tables.is_some() {
            for table in self.tables.clone() {
                let grow = self.ty(&[ValType::Ref(table), I32], &[I32]);
                self.out.functions.function(grow);
            }
        }
        if self.memories > 0 {
            self.out.exports.export(MEMORY, ExportKind::Memory, 0);
        }
        if !self.tables.is_empty() {
            self.out.exports.export(TABLE, ExportKind::Table, 0);
        }
        if let Some(start) = self.start {
            let start = self.function_index(start).map_err(refused)?;
            self.out.exports.export(START, ExportKind::Func, start);
        }
        Ok(())
    }

    /// Which functions their callers pay for. Every section but the code was copied: what is not named by now, only calls
    /// name, as `ref.func` takes none but those.
    fn prepay(&mut self) -> Result<(), GuestError> {
        self.prepaid = vec![Prepaid::default(); self.bodies.len()];
        if self.how == How::Plain {
            return Ok(());
        }
        for (index, body) in self.bodies.clone().iter().enumerate() {
            let range = body.range();
            if !self.named[index] && range.end - range.start <= PREPAID_BYTES {
                self.prepaid[index] = body::prepaid(self, body)?;
            }
        }
        Ok(())
    }

    /// What is paid for a call of this function; nothing for one that is imported.
    fn prepaid(&self, function: u32) -> Prepaid {
        let own = function.checked_sub(self.imported_functions);
        own.and_then(|own| self.prepaid.get(own as usize)).copied().unwrap_or_default()
    }

    fn code(&mut self) -> Result<(), GuestError> {
        for (index, body) in std::mem::take(&mut self.bodies).iter().enumerate() {
            let ty = self.function_types[index] as usize;
            let params = self.params[ty];
            let function = body::rewrite(self, params, body, self.prepaid[index])?;
            self.out.code.function(&function);
        }
        let added = self.added.clone();
        self.out.code.function(&settle(&added)).function(&charge(&added));
        if added.grow_memory.is_some() {
            self.out.code.function(&grow(&added, None));
        }
        if added.grow_tables.is_some() {
            for table in 0..self.tables.len() as u32 {
                self.out.code.function(&grow(&added, Some(table)));
            }
        }
        Ok(())
    }
}

/// `fuel = refuel(fuel)`
fn settle(added: &Added) -> Function {
    let mut f = Function::new([]);
    f.instructions().global_get(added.fuel).call(added.refuel).global_set(added.fuel).end();
    f
}

/// `fuel -= n; if fuel < 0 { settle }`
fn charge(added: &Added) -> Function {
    let mut f = Function::new([]);
    let mut out = f.instructions();
    out.global_get(added.fuel).local_get(0).i64_sub().global_set(added.fuel);
    out.global_get(added.fuel).i64_const(0).i64_lt_s().if_(BlockType::Empty).call(added.settle).end().end();
    f
}

/// Grows if the host allows it; if it then does not work, the host takes its permission back.
fn grow(added: &Added, table: Option<u32>) -> Function {
    // The parameters are (count), or (element, count).
    let (count, result) = if table.is_some() { (1, 2) } else { (0, 1) };
    let (allocate, release) = (added.refuel + 1, added.refuel + 2);
    // What grows, for the host: 0 is the memory, else a table.
    let what = table.map_or(0, |table| table as i32 + 1);
    let mut f = Function::new([(1, ValType::I32)]);
    let mut out = f.instructions();
    out.i32_const(what).local_get(count).call(allocate).if_(BlockType::Result(ValType::I32));
    match table {
        Some(table) => out.local_get(0).local_get(1).table_grow(table),
        None => out.local_get(0).memory_grow(0),
    };
    out.local_tee(result).i32_const(-1).i32_eq().if_(BlockType::Empty);
    out.i32_const(what).local_get(count).call(release).end();
    out.local_get(result).else_().i32_const(-1).end().end();
    f
}

impl Sections {
    fn finish(self) -> Vec<u8> {
        let mut module = Module::new();
        module.section(&self.types).section(&self.imports).section(&self.functions);
        module.section(&self.tables).section(&self.memories).section(&self.globals).section(&self.exports);
        module.section(&self.elements);
        if let Some(count) = &self.data_count {
            module.section(count);
        }
        module.section(&self.code).section(&self.data);
        module.finish()
    }
}
