//! Compiles a manifest: from TOML to the bytes that the kernel reads.
//!
//! This module checks the form (unknown keys, values of the wrong type, unknown words); the meaning of the entries is checked by
//! [`image::validate`], the same code that checks it again at boot.

use std::fmt;
use std::ops::Range;

use abi::Overrun;
use image::format::{
    CRITICAL, HEADER_BYTES, MAGIC, RawAllow, RawContext, RawCpus, RawGrant, RawMemory, RawPool, RawPoolGrant,
    RawProcess, RawProfile, RawText, Record, Span, TABLES, Text, VERSION, table,
};
use image::{Class, ErrorKind, Manifest, ManifestError, Name, Section, grantable, limits, right};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Why a manifest was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// It is not TOML.
    Syntax {
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// What the parser says.
        message: String,
    },
    /// It is TOML, but not of the form of a manifest.
    Form {
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// What is wrong.
        problem: FormError,
    },
    /// It has the right form, but its meaning is invalid; the kernel would report the same.
    Sense(ManifestError),
}

/// What is wrong with the form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormError {
    /// An unknown key.
    UnknownKey {
        /// The table it stands in.
        table: String,
        /// The key.
        key: String,
        /// The keys that the table may have.
        known: &'static [&'static str],
    },
    /// A required key is missing.
    MissingKey {
        /// The table.
        table: String,
        /// The key.
        key: &'static str,
    },
    /// Another type of value.
    WrongType {
        /// The key, or the list that the value is an item of.
        key: String,
        /// What should be there.
        wanted: &'static str,
        /// What is there.
        found: &'static str,
    },
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormError::UnknownKey { table, key, known } => {
                write!(f, "{table}: unknown key \"{key}\"; known are {}", known.join(", "))
            }
            FormError::MissingKey { table, key } => write!(f, "{table}: `{key}` is missing; add it"),
            FormError::WrongType { key, wanted, found } => {
                write!(f, "{key}: {found} where {wanted} should be")
            }
        }
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompileError::Syntax { file, line, message } => write!(f, "manifest: {file}:{line}: {message}"),
            CompileError::Form { file, line, problem } => write!(f, "manifest: {file}:{line}: {problem}"),
            CompileError::Sense(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CompileError {}

impl CompileError {
    /// The line that is wrong; 0 when it is the file as a whole.
    #[must_use]
    pub fn line(&self) -> u32 {
        match self {
            CompileError::Syntax { line, .. } | CompileError::Form { line, .. } => *line,
            CompileError::Sense(error) => error.line,
        }
    }
}

/// Compiles `source`, the text of `file` (whose name stands in errors, here and at boot).
///
/// # Errors
/// The first thing that is wrong, with its line.
pub fn compile(file: &str, source: &str) -> Result<Vec<u8>, CompileError> {
    compile_with(file, source, &[])
}

/// As [`compile`]; `args`, if there are any, replace the arguments of the last process, which is a proof's own.
///
/// # Errors
/// The first thing that is wrong, with its line.
pub fn compile_with(file: &str, source: &str, args: &[String]) -> Result<Vec<u8>, CompileError> {
    let lines = Lines::new(file, source);
    let root = DeTable::parse(source).map_err(|error| CompileError::Syntax {
        file: file.to_owned(),
        line: lines.line(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut compiler = Compiler { lines, out: Output::default() };
    let name = compiler.file(root.get_ref())?;
    compiler.out.tell_last(args);
    let bytes = compiler.out.finish(&name, file);
    Manifest::parse(&bytes).map_err(CompileError::Sense)?;
    Ok(bytes)
}

/// From a place in the source to its line.
struct Lines {
    file: String,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl Lines {
    fn new(file: &str, source: &str) -> Lines {
        let breaks = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Lines { file: file.to_owned(), starts: std::iter::once(0).chain(breaks).collect() }
    }
    fn line(&self, offset: usize) -> u32 {
        self.starts.partition_point(|start| *start <= offset) as u32
    }
}

/// The tables of the output as they grow.
#[derive(Default)]
struct Output {
    processes: Vec<RawProcess>,
    args: Vec<RawText>,
    grants: Vec<RawGrant>,
    after: Vec<RawText>,
    memories: Vec<RawMemory>,
    pools: Vec<RawPool>,
    pool_grants: Vec<RawPoolGrant>,
    minter: Vec<RawAllow>,
    profiles: Vec<RawProfile>,
    contexts: Vec<RawContext>,
    strings: String,
}

impl Output {
    fn text(&mut self, text: &str) -> Text {
        let at = self.strings.find(text).unwrap_or_else(|| {
            self.strings.push_str(text);
            self.strings.len() - text.len()
        });
        Text { at: at as u32, len: text.len() as u32 }
    }

    /// Replaces the arguments of the last process by these, if there are any.
    fn tell_last(&mut self, args: &[String]) {
        let line = self.processes.last().map_or(0, |process| process.line);
        let words: Vec<RawText> = args.iter().map(|arg| RawText { line, text: self.text(arg) }).collect();
        if let Some(last) = self.processes.last_mut().filter(|_| !words.is_empty()) {
            last.args = append(&mut self.args, words);
        }
    }

    fn finish(mut self, name: &str, source: &str) -> Vec<u8> {
        let (name, source) = (self.text(name), self.text(source));
        let mut tables: [(usize, Vec<u8>); TABLES.len()] = Default::default();
        tables[table::PROCESS] = rows(&self.processes);
        tables[table::ARGS] = rows(&self.args);
        tables[table::GRANTS] = rows(&self.grants);
        tables[table::AFTER] = rows(&self.after);
        tables[table::MEMORY] = rows(&self.memories);
        tables[table::POOL] = rows(&self.pools);
        tables[table::POOL_GRANT] = rows(&self.pool_grants);
        tables[table::MINTER] = rows(&self.minter);
        tables[table::PROFILE] = rows(&self.profiles);
        tables[table::CONTEXT] = rows(&self.contexts);
        tables[table::STRINGS] = (self.strings.len(), self.strings.into_bytes());
        let length = HEADER_BYTES + tables.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let mut all = MAGIC.to_vec();
        let mut sink = |piece: &[u8]| all.extend_from_slice(piece);
        VERSION.write(&mut sink);
        (length as u32).write(&mut sink);
        name.write(&mut sink);
        source.write(&mut sink);
        let mut at = HEADER_BYTES;
        for (count, bytes) in &tables {
            Span { first: at as u32, count: *count as u32 }.write(&mut sink);
            at += bytes.len();
        }
        for (_, bytes) in &tables {
            sink(bytes);
        }
        all
    }
}

fn rows<R: Record>(records: &[R]) -> (usize, Vec<u8>) {
    let mut bytes = Vec::with_capacity(records.len() * R::BYTES);
    for record in records {
        record.write(&mut |piece| bytes.extend_from_slice(piece));
    }
    (records.len(), bytes)
}

const FILE_KEYS: &[&str] =
    &["name", "process", "memory", "pool", "pool_grant", "minter", "profile", "context"];
const PROCESS_KEYS: &[&str] =
    &["name", "program", "args", "grants", "session", "critical", "after", "weight", "class", "profile"];
const GRANT_KEYS: &[&str] = &["cap", "name", "rights", "badge", "band"];
const MEMORY_KEYS: &[&str] = &["name", "bytes"];
const POOL_KEYS: &[&str] =
    &["name", "cpus", "budget_ns", "period_ns", "max_leases", "max_leases_per_account"];
const POOL_GRANT_KEYS: &[&str] = &["name", "pool", "account"];
const MINTER_KEYS: &[&str] = &["allow"];
const ALLOW_KEYS: &[&str] = &["pool", "account"];
const PROFILE_KEYS: &[&str] = &["name", "weight", "class", "budget_ns", "period_ns"];

const CONTEXT_KEYS: &[&str] = &[
    "name",
    "budget_ns",
    "period_ns",
    "deadline_ns",
    "cpus",
    "overrun",
    "criticality",
    "refills",
    "timeout",
    "badge",
];

type Value<'i> = Spanned<DeValue<'i>>;

/// A table of the source that is being read: its place, and its name in errors.
struct Entry<'t, 'i> {
    section: Section,
    table: &'t DeTable<'i>,
    span: Range<usize>,
    title: String,
    name: String,
}

struct Compiler {
    lines: Lines,
    out: Output,
}

impl Compiler {
    fn form<T>(&self, span: &Range<usize>, problem: FormError) -> Result<T, CompileError> {
        Err(CompileError::Form { file: self.lines.file.clone(), line: self.lines.line(span.start), problem })
    }

    /// An error that the kernel would report in the same words.
    fn sense<T>(
        &self,
        entry: &Entry<'_, '_>,
        span: &Range<usize>,
        kind: ErrorKind,
    ) -> Result<T, CompileError> {
        let error = ManifestError::new(entry.section, kind).of(&entry.name);
        Err(CompileError::Sense(error.at(self.lines.line(span.start)).in_file(&self.lines.file)))
    }

    fn wrong<T>(&self, key: &str, wanted: &'static str, value: &Value<'_>) -> Result<T, CompileError> {
        let found = type_of(value.get_ref());
        self.form(&value.span(), FormError::WrongType { key: key.to_owned(), wanted, found })
    }

    /// The whole file; returns its name.
    fn file(&mut self, root: &DeTable<'_>) -> Result<String, CompileError> {
        let whole = Entry {
            section: Section::File,
            table: root,
            span: 0..0,
            title: "the manifest".to_owned(),
            name: String::new(),
        };
        self.known_keys(&whole, FILE_KEYS)?;
        let name = self.required(&whole, "name")?;
        for entry in self.entries(root, Section::Process, PROCESS_KEYS)? {
            self.process(&entry)?;
        }
        for entry in self.entries(root, Section::Memory, MEMORY_KEYS)? {
            let bytes = self.required_number(&entry, "bytes", limits::MEMORY_BYTES)?;
            let (line, name) = self.head(&entry)?;
            self.out.memories.push(RawMemory { line, name, bytes });
        }
        for entry in self.entries(root, Section::Pool, POOL_KEYS)? {
            self.pool(&entry)?;
        }
        for entry in self.entries(root, Section::PoolGrant, POOL_GRANT_KEYS)? {
            let pool = self.required(&entry, "pool")?;
            let account = self.required_number(&entry, "account", limits::ACCOUNT)?;
            let (line, name) = self.head(&entry)?;
            let pool = self.out.text(&pool);
            self.out.pool_grants.push(RawPoolGrant { line, name, pool, account });
        }
        for entry in self.entries(root, Section::Profile, PROFILE_KEYS)? {
            self.profile(&entry)?;
        }
        for entry in self.entries(root, Section::Context, CONTEXT_KEYS)? {
            self.context(&entry)?;
        }
        self.minter(root)?;
        Ok(name)
    }

    fn known_keys(&self, entry: &Entry<'_, '_>, known: &'static [&'static str]) -> Result<(), CompileError> {
        let mut unknown: Vec<_> =
            entry.table.keys().filter(|key| !known.contains(&&**key.get_ref())).collect();
        unknown.sort_by_key(|key| key.span().start);
        let Some(key) = unknown.first() else { return Ok(()) };
        let (table, key_text) = (entry.title.clone(), key.get_ref().to_string());
        self.form(&key.span(), FormError::UnknownKey { table, key: key_text, known })
    }

    /// The tables under `[[word]]`, with their keys checked.
    fn entries<'t, 'i>(
        &self,
        root: &'t DeTable<'i>,
        section: Section,
        known: &'static [&'static str],
    ) -> Result<Vec<Entry<'t, 'i>>, CompileError> {
        let word = section.word();
        let Some(value) = root.get(word) else { return Ok(Vec::new()) };
        let DeValue::Array(items) = value.get_ref() else {
            return self.wrong(word, "a list of tables ([[…]])", value);
        };
        let mut found = Vec::new();
        for item in items.iter() {
            found.push(self.entry(section, word, item, known)?);
        }
        Ok(found)
    }

    fn entry<'t, 'i>(
        &self,
        section: Section,
        word: &str,
        item: &'t Value<'i>,
        known: &'static [&'static str],
    ) -> Result<Entry<'t, 'i>, CompileError> {
        let DeValue::Table(table) = item.get_ref() else { return self.wrong(word, "a table", item) };
        let name = table.get("name").and_then(|name| name.get_ref().as_str()).unwrap_or("").to_owned();
        let title = if name.is_empty() { word.to_owned() } else { format!("{word} \"{name}\"") };
        let entry = Entry { section, table, span: item.span(), title, name };
        self.known_keys(&entry, known)?;
        Ok(entry)
    }

    /// Line and name of an entry.
    fn head(&mut self, entry: &Entry<'_, '_>) -> Result<(u32, Text), CompileError> {
        let name = self.required(entry, "name")?;
        Ok((self.lines.line(entry.span.start), self.out.text(&name)))
    }

    fn string(&self, entry: &Entry<'_, '_>, key: &str) -> Result<Option<String>, CompileError> {
        let Some(value) = entry.table.get(key) else { return Ok(None) };
        match value.get_ref() {
            // An empty text would read as a missing one.
            DeValue::String(text) if text.is_empty() => {
                let key = FILE_KEYS
                    .iter()
                    .chain(PROCESS_KEYS)
                    .chain(GRANT_KEYS)
                    .chain(ALLOW_KEYS)
                    .chain(CONTEXT_KEYS)
                    .find(|k| **k == key);
                let kind = ErrorKind::BadName { key: key.unwrap_or(&"name"), found: Name::default() };
                self.sense(entry, &value.span(), kind)
            }
            DeValue::String(text) => Ok(Some(text.to_string())),
            _ => self.wrong(&format!("{}: {key}", entry.title), "a text", value),
        }
    }

    fn required(&self, entry: &Entry<'_, '_>, key: &'static str) -> Result<String, CompileError> {
        match self.string(entry, key)? {
            Some(text) => Ok(text),
            None => self.form(&entry.span, FormError::MissingKey { table: entry.title.clone(), key }),
        }
    }

    fn number(
        &self,
        entry: &Entry<'_, '_>,
        key: &'static str,
        range: (u64, u64),
    ) -> Result<Option<u64>, CompileError> {
        let Some(value) = entry.table.get(key) else { return Ok(None) };
        self.integer(entry, key, value, range).map(Some)
    }

    fn integer(
        &self,
        entry: &Entry<'_, '_>,
        key: &'static str,
        value: &Value<'_>,
        (min, max): (u64, u64),
    ) -> Result<u64, CompileError> {
        let DeValue::Integer(digits) = value.get_ref() else {
            return self.wrong(&format!("{}: {key}", entry.title), "a whole number", value);
        };
        let sign = if digits.as_str().starts_with('-') { i64::MIN } else { i64::MAX };
        let found = i64::from_str_radix(digits.as_str(), digits.radix()).unwrap_or(sign);
        match u64::try_from(found) {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => self.sense(entry, &value.span(), ErrorKind::OutOfRange { key, found, min, max }),
        }
    }

    fn required_number(
        &self,
        entry: &Entry<'_, '_>,
        key: &'static str,
        range: (u64, u64),
    ) -> Result<u64, CompileError> {
        match self.number(entry, key, range)? {
            Some(number) => Ok(number),
            None => self.form(&entry.span, FormError::MissingKey { table: entry.title.clone(), key }),
        }
    }

    fn items<'t, 'i>(&self, entry: &Entry<'t, 'i>, key: &str) -> Result<&'t [Value<'i>], CompileError> {
        match entry.table.get(key) {
            None => Ok(&[]),
            Some(value) => match value.get_ref() {
                DeValue::Array(items) => Ok(items),
                _ => self.wrong(&format!("{}: {key}", entry.title), "a list", value),
            },
        }
    }

    /// A list of texts, each with its line.
    fn texts(&mut self, entry: &Entry<'_, '_>, key: &str) -> Result<Vec<RawText>, CompileError> {
        let mut found = Vec::new();
        for item in self.items(entry, key)? {
            let DeValue::String(text) = item.get_ref() else {
                return self.wrong(&format!("{}: {key}", entry.title), "a text", item);
            };
            found.push(RawText { line: self.lines.line(item.span().start), text: self.out.text(text) });
        }
        Ok(found)
    }

    /// The value in `all` whose word is under `key`, if the key is there; `unknown` makes the error if none has that word.
    fn word<T: Copy>(
        &self,
        entry: &Entry<'_, '_>,
        key: &str,
        all: &[T],
        name: fn(T) -> &'static str,
        unknown: fn(Name) -> ErrorKind,
    ) -> Result<Option<T>, CompileError> {
        let Some(word) = self.string(entry, key)? else { return Ok(None) };
        match all.iter().find(|known| name(**known) == word) {
            Some(known) => Ok(Some(*known)),
            None => {
                let span = entry.table.get(key).map_or(entry.span.clone(), Spanned::span);
                self.sense(entry, &span, unknown(Name::new(&word)))
            }
        }
    }

    fn class(&self, entry: &Entry<'_, '_>) -> Result<Option<Class>, CompileError> {
        self.word(entry, "class", &Class::ALL, Class::name, |name| ErrorKind::UnknownClass { name })
    }

    fn flag(&self, entry: &Entry<'_, '_>, key: &str) -> Result<bool, CompileError> {
        match entry.table.get(key) {
            None => Ok(false),
            Some(value) => match value.get_ref() {
                DeValue::Boolean(flag) => Ok(*flag),
                _ => self.wrong(&format!("{}: {key}", entry.title), "true or false", value),
            },
        }
    }

    fn process(&mut self, entry: &Entry<'_, '_>) -> Result<(), CompileError> {
        let (line, name) = self.head(entry)?;
        let program = self.required(entry, "program")?;
        let session = self.string(entry, "session")?.unwrap_or_default();
        let profile = self.string(entry, "profile")?.unwrap_or_default();
        for key in ["weight", "class"] {
            if !profile.is_empty()
                && let Some(value) = entry.table.get(key)
            {
                return self.sense(entry, &value.span(), ErrorKind::ProfileAnd { key });
            }
        }
        let weight = self.number(entry, "weight", limits::WEIGHT)?;
        let class = self.class(entry)?.unwrap_or_default();
        let critical = self.flag(entry, "critical")?;
        let args = self.texts(entry, "args")?;
        let after = self.texts(entry, "after")?;
        let mut grants = Vec::new();
        for item in self.items(entry, "grants")? {
            grants.push(self.grant(entry, item)?);
        }
        let raw = RawProcess {
            line,
            name,
            program: self.out.text(&program),
            session: self.out.text(&session),
            profile: self.out.text(&profile),
            args: append(&mut self.out.args, args),
            grants: append(&mut self.out.grants, grants),
            after: append(&mut self.out.after, after),
            weight: weight.map_or(limits::DEFAULT_WEIGHT, |weight| weight as u32),
            class: class as u32,
            flags: if critical { CRITICAL } else { 0 },
        };
        self.out.processes.push(raw);
        Ok(())
    }

    fn grant(&mut self, process: &Entry<'_, '_>, item: &Value<'_>) -> Result<RawGrant, CompileError> {
        let line = self.lines.line(item.span().start);
        let empty = DeTable::default();
        let (word, table) = match item.get_ref() {
            DeValue::String(word) => (word.to_string(), &empty),
            DeValue::Table(table) => (String::new(), table),
            _ => return self.wrong(&format!("{}: grants", process.title), "a text or a table", item),
        };
        let title = format!("{}: grants", process.title);
        let entry =
            Entry { section: Section::Process, table, span: item.span(), title, name: process.name.clone() };
        self.known_keys(&entry, GRANT_KEYS)?;
        let word = if word.is_empty() && !std::ptr::eq(table, &empty) {
            self.required(&entry, "cap")?
        } else {
            word
        };
        let span = table.get("cap").map_or(item.span(), Spanned::span);
        let (cap, object) =
            word.split_once(':').map_or((word.as_str(), None), |(cap, name)| (cap, Some(name)));
        let Some(interface) = grantable(cap) else {
            return self.sense(&entry, &span, ErrorKind::UnknownCapability { name: Name::new(cap) });
        };
        let object = object.unwrap_or("");
        let name = self.string(&entry, "name")?;
        let name = name.as_deref().unwrap_or(if object.is_empty() { cap } else { object });
        let badge = self.number(&entry, "badge", limits::BADGE)?.unwrap_or(0);
        let mut rights = abi::rights::CALL | abi::rights::GRANT;
        if interface == abi::Interface::SchedulingContext {
            // Without this right, a context can only be looked at.
            rights |= abi::rights::WRITE;
        }
        if table.contains_key("rights") {
            rights = 0;
            for item in self.items(&entry, "rights")? {
                let DeValue::String(word) = item.get_ref() else {
                    return self.wrong(&format!("{}: rights", entry.title), "a text", item);
                };
                let Some(bit) = right(word) else {
                    return self.sense(
                        &entry,
                        &item.span(),
                        ErrorKind::UnknownRight { name: Name::new(word) },
                    );
                };
                rights |= bit;
            }
        }
        let band = self.number(&entry, "band", limits::CRITICALITY)?.unwrap_or(0);
        rights |= abi::rights::up_to_band(band as u8);
        Ok(RawGrant {
            line,
            interface: interface as u32,
            rights: rights.into(),
            badge,
            name: self.out.text(name),
            object: self.out.text(object),
        })
    }

    fn cpus(&self, entry: &Entry<'_, '_>) -> Result<RawCpus, CompileError> {
        let mut cpus = [0_u64; 4];
        for item in self.items(entry, "cpus")? {
            let cpu = self.integer(entry, "cpus", item, limits::CPU)? as usize;
            let (word, bit) = (cpu / 64, 1 << (cpu % 64));
            if cpus[word] & bit != 0 {
                let (name, first_line) = (Name::new(&cpu.to_string()), self.lines.line(entry.span.start));
                return self.sense(entry, &item.span(), ErrorKind::Twice { what: "CPU", name, first_line });
            }
            cpus[word] |= bit;
        }
        let [w0, w1, w2, w3] = cpus;
        Ok(RawCpus { w0, w1, w2, w3 })
    }

    fn pool(&mut self, entry: &Entry<'_, '_>) -> Result<(), CompileError> {
        let raw = RawPool {
            cpus: self.cpus(entry)?,
            budget_ns: self.number(entry, "budget_ns", limits::BUDGET_NS)?.unwrap_or(0),
            period_ns: self.number(entry, "period_ns", limits::PERIOD_NS)?.unwrap_or(0),
            max_leases: self.number(entry, "max_leases", limits::LEASES)?.unwrap_or(0),
            max_leases_per_account: self
                .number(entry, "max_leases_per_account", limits::LEASES)?
                .unwrap_or(0),
            ..RawPool::default()
        };
        let (line, name) = self.head(entry)?;
        self.out.pools.push(RawPool { line, name, ..raw });
        Ok(())
    }

    fn context(&mut self, entry: &Entry<'_, '_>) -> Result<(), CompileError> {
        let any = RawCpus { w0: u64::MAX, w1: u64::MAX, w2: u64::MAX, w3: u64::MAX };
        let overrun = self.word(entry, "overrun", &Overrun::ALL, Overrun::name, |name| {
            ErrorKind::UnknownOverrun { name }
        })?;
        let timeout = self.string(entry, "timeout")?.unwrap_or_default();
        let raw = RawContext {
            budget_ns: self.required_number(entry, "budget_ns", limits::BUDGET_NS)?,
            period_ns: self.required_number(entry, "period_ns", limits::PERIOD_NS)?,
            deadline_ns: self.number(entry, "deadline_ns", limits::PERIOD_NS)?.unwrap_or(0),
            cpus: if entry.table.contains_key("cpus") { self.cpus(entry)? } else { any },
            overrun: overrun.unwrap_or_default() as u32,
            criticality: self.number(entry, "criticality", limits::CRITICALITY)?.unwrap_or(0) as u32,
            refills: self.number(entry, "refills", limits::REFILLS)?.unwrap_or(0) as u32,
            badge: self.number(entry, "badge", limits::BADGE)?.unwrap_or(0),
            ..RawContext::default()
        };
        let (line, name) = self.head(entry)?;
        let timeout = self.out.text(&timeout);
        self.out.contexts.push(RawContext { line, name, timeout, ..raw });
        Ok(())
    }

    fn profile(&mut self, entry: &Entry<'_, '_>) -> Result<(), CompileError> {
        let weight = self.number(entry, "weight", limits::WEIGHT)?;
        let raw = RawProfile {
            weight: weight.map_or(limits::DEFAULT_WEIGHT, |weight| weight as u32),
            class: self.class(entry)?.unwrap_or_default() as u32,
            budget_ns: self.number(entry, "budget_ns", limits::BUDGET_NS)?.unwrap_or(0),
            period_ns: self.number(entry, "period_ns", limits::PERIOD_NS)?.unwrap_or(0),
            ..RawProfile::default()
        };
        let (line, name) = self.head(entry)?;
        self.out.profiles.push(RawProfile { line, name, ..raw });
        Ok(())
    }

    fn minter(&mut self, root: &DeTable<'_>) -> Result<(), CompileError> {
        let Some(value) = root.get("minter") else { return Ok(()) };
        let minter = self.entry(Section::Minter, "minter", value, MINTER_KEYS)?;
        for item in self.items(&minter, "allow")? {
            let allow = self.entry(Section::Minter, "minter: allow", item, ALLOW_KEYS)?;
            let pool = self.required(&allow, "pool")?;
            let account = self.required_number(&allow, "account", limits::ACCOUNT)?;
            let (line, pool) = (self.lines.line(item.span().start), self.out.text(&pool));
            self.out.minter.push(RawAllow { line, pool, account });
        }
        Ok(())
    }
}

fn append<R>(table: &mut Vec<R>, rows: Vec<R>) -> Span {
    let span = Span { first: table.len() as u32, count: rows.len() as u32 };
    table.extend(rows);
    span
}

fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
