//! What can be wrong with a manifest, and where.

use core::fmt;

use abi::{MAX_ARGS_BYTES, MAX_NAME_BYTES, Overrun, rights};

use crate::{Class, GRANTABLE, Name, limits};

/// The kind of entry that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The file as a whole.
    File,
    /// A `[[process]]`.
    Process,
    /// A `[[memory]]`.
    Memory,
    /// A `[[pool]]`.
    Pool,
    /// A `[[pool_grant]]`.
    PoolGrant,
    /// The `[minter]`.
    Minter,
    /// A `[[profile]]`.
    Profile,
    /// A `[[context]]`.
    Context,
}

impl Section {
    /// Its word in the manifest; empty for the file.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Section::File => "",
            Section::Process => "process",
            Section::Memory => "memory",
            Section::Pool => "pool",
            Section::PoolGrant => "pool_grant",
            Section::Minter => "minter",
            Section::Profile => "profile",
            Section::Context => "context",
        }
    }
}

/// One thing that is wrong with a manifest. Shown as `manifest: smoke.toml:12: process "x": what is wrong`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// The file, empty when it is not known.
    pub file: Name,
    /// The line in it, 0 when it is the whole.
    pub line: u32,
    /// The kind of entry.
    pub section: Section,
    /// The entry's name, empty when it has none.
    pub entry: Name,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields: each is named in the text that `Display` gives
pub enum ErrorKind {
    /// The bytes do not begin with the magic.
    NotAManifest,
    /// Another version of the format.
    Version { found: u32 },
    /// The bytes contradict themselves.
    Damaged { what: &'static str },
    /// More entries than a manifest takes.
    TooMany { what: &'static str, max: u32 },
    /// A name is empty, too long, or has other letters than names have.
    BadName { key: &'static str, found: Name },
    /// The same name, or the same pair, twice.
    Twice { what: &'static str, name: Name, first_line: u32 },
    /// The first process is not `init`.
    InitNotFirst,
    /// `init` has something that only others can have.
    NotForInit { what: &'static str },
    /// A capability that is not one.
    UnknownCapability { name: Name },
    /// `endpoint` or `memory` without a name, or something else than a context with one.
    BadObject { cap: &'static str, wanted: bool },
    /// A right that is not one.
    UnknownRight { name: Name },
    /// No rights at all.
    NoRights { grant: Name },
    /// A right that this capability does not have.
    RightNotHere { right: &'static str, cap: &'static str },
    /// A badge on something else than an endpoint.
    BadgeNotHere { cap: &'static str },
    /// An endpoint that no process receives from.
    NoReceiver { endpoint: Name },
    /// A reference to a `[[memory]]` that is not there.
    UnknownMemory { name: Name },
    /// A reference to a `[[pool]]` that is not there.
    UnknownPool { name: Name },
    /// A reference to a `[[profile]]` that is not there.
    UnknownProfile { name: Name },
    /// A reference to a process that is not there, or not before this one.
    NotEarlier { name: Name },
    /// A program that is not in the image.
    UnknownProgram { name: Name },
    /// A reference to a `[[context]]` that is not there.
    UnknownContext { name: Name },
    /// An overrun policy that is not one.
    UnknownOverrun { name: Name },
    /// `fault` without an endpoint, or the other way round.
    Timeout { is_fault: bool },
    /// A class that is not one.
    UnknownClass { name: Name },
    /// `init` must hold a capability to do what the manifest asks.
    InitLacks { cap: &'static str, why: &'static str },
    /// Init's `band` is too low for what it is to make or to pass on.
    InitBand { why: &'static str },
    /// A context is to create above its own band.
    BandAbove { name: Name, criticality: u8 },
    /// A number outside its range.
    OutOfRange { key: &'static str, found: i64, min: u64, max: u64 },
    /// A size that is not a multiple of the page size.
    NotPages { found: u64 },
    /// More time than there is.
    BudgetAbovePeriod { budget_ns: u64, period_ns: u64 },
    /// A deadline before the budget can be used, or after the period.
    DeadlineOutOfRange { deadline_ns: u64, budget_ns: u64, period_ns: u64 },
    /// More of a CPU than is promised to anybody.
    TooMuchOfACpu { budget_ns: u64, window_ns: u64 },
    /// A budget without a period, or the other way round.
    HalfReservation { missing: &'static str },
    /// A pool without a CPU.
    NoCpu,
    /// Arguments that do not fit in the page that holds them.
    ArgsTooLong { found: u64 },
    /// An argument with a NUL in it.
    ArgHasNul,
    /// A profile beside a weight or class of the process's own.
    ProfileAnd { key: &'static str },
}

/// The words of the rights, in the order of their bits.
pub(crate) const RIGHTS: [(&str, u16); 5] = [
    ("call", rights::CALL),
    ("recv", rights::RECV),
    ("grant", rights::GRANT),
    ("revoke", rights::REVOKE),
    ("write", rights::WRITE),
];

/// The right with this word.
#[must_use]
pub fn right(word: &str) -> Option<u16> {
    RIGHTS.iter().find(|(known, _)| *known == word).map(|(_, bit)| *bit)
}

impl ManifestError {
    /// An error that does not know its place yet.
    #[must_use]
    pub fn new(section: Section, kind: ErrorKind) -> ManifestError {
        ManifestError { file: Name::default(), line: 0, section, entry: Name::default(), kind }
    }
    /// The same at `line`.
    #[must_use]
    pub fn at(self, line: u32) -> ManifestError {
        ManifestError { line, ..self }
    }
    /// The same, of the entry `name`.
    #[must_use]
    pub fn of(self, name: &str) -> ManifestError {
        ManifestError { entry: Name::new(name), ..self }
    }
    /// The same, in `file`.
    #[must_use]
    pub fn in_file(self, file: &str) -> ManifestError {
        ManifestError { file: Name::new(file), ..self }
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("manifest: ")?;
        match (self.file.is_empty(), self.line) {
            (true, 0) => {}
            (true, line) => write!(f, "line {line}: ")?,
            (false, 0) => write!(f, "{}: ", self.file)?,
            (false, line) => write!(f, "{}:{line}: ", self.file)?,
        }
        match (self.section, self.entry.is_empty()) {
            (Section::File, _) => {}
            (section, true) => write!(f, "{}: ", section.word())?,
            (section, false) => write!(f, "{} \"{}\": ", section.word(), self.entry)?,
        }
        self.kind.fmt(f)
    }
}

impl core::error::Error for ManifestError {}

fn list<'a>(f: &mut fmt::Formatter<'_>, words: impl Iterator<Item = &'a str>) -> fmt::Result {
    for (at, word) in words.enumerate() {
        write!(f, "{}{word}", if at == 0 { "" } else { ", " })?;
    }
    Ok(())
}

fn nobody(f: &mut fmt::Formatter<'_>, section: &str, name: Name, advice: &str) -> fmt::Result {
    write!(f, "no [[{section}]] has the name \"{name}\"; {advice}")
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ErrorKind as K;
        match *self {
            K::NotAManifest => {
                f.write_str("these bytes are no compiled manifest; make the image with `capos image`")
            }
            K::Version { found } => write!(
                f,
                "format version {found} is not the {} of this kernel; build image and kernel from the same sources",
                crate::format::VERSION
            ),
            K::Damaged { what } => {
                write!(f, "the compiled manifest is damaged: {what}; make the image again")
            }
            K::TooMany { what, max } => write!(f, "too many {what}; at most {max} fit"),
            K::BadName { key, found } => write!(
                f,
                "{key} \"{found}\": a name is 1 to {MAX_NAME_BYTES} of the letters a-z, A-Z, 0-9, '-', '_' and '.'"
            ),
            K::Twice { what, name, first_line } => {
                write!(f, "{what} \"{name}\" is in line {first_line} already; take one out or rename it")
            }
            K::InitNotFirst => f.write_str(
                "the first process must be \"init\": the kernel starts it, and it starts the others",
            ),
            K::NotForInit { what } => {
                write!(f, "{what} is not for init, which is there before everything else")
            }
            K::UnknownCapability { name } => {
                write!(f, "unknown capability \"{name}\"; known are ")?;
                list(f, GRANTABLE.iter().map(|(word, _)| *word))
            }
            K::BadObject { cap, wanted: true } => {
                write!(f, "\"{cap}\" needs the name of what is granted: write \"{cap}:name\"")
            }
            K::BadObject { cap, wanted: false } => {
                write!(f, "\"{cap}\" is one of a kind: write \"{cap}\" alone")
            }
            K::UnknownRight { name } => {
                write!(f, "unknown right \"{name}\"; known are ")?;
                list(f, RIGHTS.iter().map(|(word, _)| *word))
            }
            K::NoRights { grant } => {
                write!(
                    f,
                    "grant \"{grant}\" has no rights; name one, or leave `rights` out for the usual ones"
                )
            }
            K::RightNotHere { right, cap } => {
                write!(f, "right \"{right}\" means nothing for \"{cap}\"; take it out")
            }
            K::BadgeNotHere { cap } => {
                write!(f, "only an endpoint that is called has a badge, \"{cap}\" here has none; take it out")
            }
            K::NoReceiver { endpoint } => write!(
                f,
                "nobody receives from \"endpoint:{endpoint}\"; grant it to its server with rights = [\"recv\"]"
            ),
            K::UnknownMemory { name } => nobody(f, "memory", name, "add it, with its bytes"),
            K::UnknownPool { name } => nobody(f, "pool", name, "add it or mend the name"),
            K::UnknownProfile { name } => nobody(f, "profile", name, "add it or mend the name"),
            K::NotEarlier { name } => write!(
                f,
                "`after` names \"{name}\", which is no process before this one (and after init); mend it or move it"
            ),
            K::UnknownProgram { name } => {
                write!(f, "program \"{name}\" is not in the image; mend the name, or add it to programs/")
            }
            K::UnknownContext { name } => {
                nobody(f, "context", name, "add it, with its budget_ns and period_ns")
            }
            K::UnknownOverrun { name } => {
                write!(f, "unknown overrun \"{name}\"; known are ")?;
                list(f, Overrun::ALL.iter().map(|overrun| overrun.name()))
            }
            K::Timeout { is_fault } => f.write_str(if is_fault {
                "overrun \"fault\" needs `timeout`, the name of the endpoint that is told"
            } else {
                "`timeout` and `badge` are for overrun \"fault\"; take them out or say so"
            }),
            K::UnknownClass { name } => {
                write!(f, "unknown class \"{name}\"; known are ")?;
                list(f, Class::ALL.iter().map(|class| class.name()))
            }
            K::InitLacks { cap, why } => write!(f, "init must be granted \"{cap}\" to {why}"),
            K::InitBand { why } => write!(f, "init's \"scheduling_context\" needs a higher `band` to {why}"),
            K::BandAbove { name, criticality } => write!(
                f,
                "context \"{name}\" has criticality {criticality} and creates up to that band; lower `band`"
            ),
            K::OutOfRange { key, found, min, max } => write!(f, "{key} = {found} is outside {min} to {max}"),
            K::NotPages { found } => {
                write!(f, "bytes = {found} is not a multiple of the page size, {}", abi::PAGE_BYTES)
            }
            K::BudgetAbovePeriod { budget_ns, period_ns } => {
                write!(f, "budget_ns = {budget_ns} is more time than period_ns = {period_ns} has")
            }
            K::DeadlineOutOfRange { deadline_ns, budget_ns, period_ns } => write!(
                f,
                "deadline_ns = {deadline_ns} is outside budget_ns = {budget_ns} to period_ns = {period_ns}"
            ),
            K::TooMuchOfACpu { budget_ns, window_ns } => write!(
                f,
                "{budget_ns} ns within {window_ns} ns is more than the {} % of a CPU that can be promised",
                limits::PROMISED_PERCENT
            ),
            K::HalfReservation { missing } => {
                write!(f, "{missing} is missing; give budget_ns and period_ns, or neither")
            }
            K::NoCpu => f.write_str("no CPU in `cpus`; name at least one"),
            K::ArgsTooLong { found } => {
                write!(f, "the arguments take {found} bytes with their NULs; {MAX_ARGS_BYTES} fit")
            }
            K::ArgHasNul => f.write_str("an argument has a NUL in it, where it would end"),
            K::ProfileAnd { key } => {
                write!(f, "`profile` and `{key}` at once; the profile says it, take one out")
            }
        }
    }
}
