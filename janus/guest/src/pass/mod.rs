//! The pass: takes a module and returns the same module with its charges.
//!
//! It maps the opcodes of SPEC-021 [SCHED:11.1.1] onto WebAssembly. `Budget_Decrement` is a subtraction from the fuel.
//! `Budget_Check` compares the fuel with zero and, if it is below, calls the host, which charges the task, lets others run and
//! returns the next quantum. `Yield`, `Task_Create` and `Task_Join` are imports of the guest's own ([`crate::Grant`]).
//!
//! The input is validated first. The output is validated, too, because not every loop can be unrolled, and again by the engine.

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

/// The module name of imports that only the pass makes.
pub const INTERNAL: &str = "janus:pass";
/// The prefix of exports that the pass adds; no guest may have such an export.
pub const RESERVED: &str = "janus:";
/// Where the pass exports the first memory, so that the host finds it.
pub const MEMORY: &str = "janus:memory";
/// The same for the first table.
pub const TABLE: &str = "janus:table";
/// Under which name it exports the former start function, which is called like any other, so that it is charged and can be
/// stopped.
pub const START: &str = "janus:start";

/// The most bytes of a module.
pub const MODULE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a page of memory.
pub const PAGE: u64 = 64 << 10;
/// Bytes that an element of a table is charged.
pub const ELEMENT: u64 = 16;

/// Bytes that are counted for each function, global, segment or the like, and for each item with a name.
const RECORD: u64 = 64;
const NAMED: u64 = 128;
/// The most values that a function may return, and a block take or give: they are moved where it is entered and left, and moving
/// many costs more than the one operation that a branch is charged.
pub const VALUES_MAX: usize = 16;

/// An import of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The module that it is imported from.
    pub module: String,
    /// Its name there.
    pub name: String,
    /// Whether it is a function.
    pub function: bool,
}

/// A module after the pass.
#[derive(Clone, Debug)]
pub struct Instrumented {
    /// The new module.
    pub wasm: Vec<u8>,
    /// What the guest itself imports.
    pub imports: Vec<Import>,
    /// Bytes of the memories and tables that it defines, at their initial size.
    pub bytes: u64,
    /// About how many further bytes an engine records for an instance: for functions, globals, exports, elements.
    pub records: u64,
    /// Whether it has a start function, exported as [`START`].
    pub starts: bool,
    /// Whether it may ask for more memory or larger tables.
    pub grows: bool,
}

/// The WebAssembly features that guests may use: what the engine supports, without threads, vectors and 64-bit memories.
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

/// Indices of the items that the pass adds.
#[derive(Clone, Debug, Default)]
struct Added {
    /// The global with the fuel.
    fuel: u32,
    /// Imported function: takes fuel that is below zero, returns fresh fuel.
    refuel: u32,
    /// The same for the global.
    settle: u32,
    /// A function that charges its argument.
    charge: u32,
    /// The replacement for `memory.grow`, if growth was granted.
    grow_memory: Option<u32>,
    /// The first of the replacements for `table.grow`.
    grow_tables: Option<u32>,
}

/// What the callers of a function charge for it.
#[derive(Clone, Copy, Debug, Default)]
struct Prepaid {
    cost: u64,
    /// Whether that is its whole cost, so that it touches no fuel.
    whole: bool,
}

/// The largest function, in bytes, for which callers pay. For a larger one its entry is a small part of its cost, and planning
/// it twice takes time.
const PREPAID_BYTES: u64 = 512;

/// How charges are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum How {
    #[default]
    Unrolled,
    /// Loops are not unrolled: the values on the stack where a loop repeats or is left do not fit every copy of it.
    Straight,
    /// Every instruction is charged separately.
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
    /// For each of the guest's own functions, whether anything but a call names it. Then a caller that does not know its cost
    /// may call it.
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

/// Fails if a function or a block has too many values.
fn few(values: usize) -> Result<(), GuestError> {
    if values <= VALUES_MAX {
        return Ok(());
    }
    let what = "values that a function or block gives or takes";
    Err(GuestError::TooLarge { what, has: values as u64, limit: VALUES_MAX as u64 })
}

/// The encoder does not refuse what was validated; should it do so, that is reported and nothing runs.
fn refused(error: reencode::Error) -> GuestError {
    GuestError::Malformed { reason: error.to_string(), offset: 0 }
}

/// Runs the pass. Without `growth`, memories and tables keep their initial size.
pub fn instrument(wasm: &[u8], growth: bool) -> Result<Instrumented, GuestError> {
    check(wasm)?;
    let done = run(wasm, growth, How::Unrolled)?;
    if validate(&done.wasm).is_ok() { Ok(done) } else { run(wasm, growth, How::Straight) }
}

/// For tests: the same with every instruction charged separately, right before it runs. Slow, and simple enough to trust.
#[doc(hidden)]
pub fn instrument_plainly(wasm: &[u8], growth: bool) -> Result<Instrumented, GuestError> {
    check(wasm)?;
    run(wasm, growth, How::Plain)
}

/// Fails unless it is a module that the pass accepts.
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

/// Fails unless it is a module that guests may be. Bodies are validated one at a time, which bounds the memory for that.
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
    /// Counts what comes before the code, because indices depend on it.
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

    /// Determines the indices of the added items.
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

    /// Copies every section but the code, with shifted indices.
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

    /// Adds the imports, exports and types of the added items.
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

    /// Determines for which functions callers pay. Every section but the code was copied: a function that is not named by now is
    /// named only by calls, because `ref.func` accepts no others.
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

    /// What callers have paid for a call of this function; nothing for an imported one.
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

/// Grows if the host allows it; if growing then fails, the host's permission is given back.
fn grow(added: &Added, table: Option<u32>) -> Function {
    // The parameters are (count), or (element, count).
    let (count, result) = if table.is_some() { (1, 2) } else { (0, 1) };
    let (allocate, release) = (added.refuel + 1, added.refuel + 2);
    // What grows, as a number for the host: 0 is the memory, any other a table.
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
