//! The boot manifest: which processes there are, and what each may do.
//!
//! This module gives names to what the bytes hold; `validate` says what is wrong with it.

use abi::{Interface, Overrun, rights};

use crate::bytes::u32_at;
use crate::error::{ErrorKind, ManifestError, Section};
use crate::format::{
    CRITICAL, HEADER_BYTES, MAGIC, RawAllow, RawContext, RawCpus, RawGrant, RawMemory, RawPool, RawPoolGrant,
    RawProcess, RawProfile, RawText, Record, Span, TABLES, TABLES_AT, Text, VERSION, table,
};
use crate::{Name, validate};

/// What a manifest can grant: the word in the manifest, and the interface of the capability.
///
/// `endpoint` and `memory` are followed by a colon and the name of the object; `scheduling_context` may be.
pub const GRANTABLE: [(&str, Interface); 16] = [
    ("console", Interface::Console),
    ("timer", Interface::Timer),
    ("thread_spawner", Interface::ThreadSpawner),
    ("thread_control", Interface::ThreadControl),
    ("process_spawner", Interface::ProcessSpawner),
    ("park", Interface::ParkSpace),
    ("virtual_memory", Interface::VirtualMemory),
    ("system_info", Interface::SystemInfo),
    ("factory", Interface::Factory),
    ("power", Interface::Power),
    ("session", Interface::UserSession),
    ("boot_manifest", Interface::BootManifest),
    ("scheduling_policy", Interface::SchedulingPolicy),
    ("endpoint", Interface::Endpoint),
    ("memory", Interface::MemoryObject),
    ("scheduling_context", Interface::SchedulingContext),
];

/// The interface that a manifest grants under this word.
#[must_use]
pub fn grantable(word: &str) -> Option<Interface> {
    GRANTABLE.iter().find(|(known, _)| *known == word).map(|(_, interface)| *interface)
}

/// The word of an interface in a manifest; `None` when a manifest cannot grant it.
#[must_use]
pub fn capability_name(interface: Interface) -> Option<&'static str> {
    GRANTABLE.iter().find(|(_, known)| *known == interface).map(|(word, _)| *word)
}

/// The latency class of a process or profile.
pub use abi::LatencyClass as Class;

/// A manifest that was checked, whole.
#[derive(Clone, Copy)]
pub struct Manifest<'a> {
    name: &'a str,
    source: &'a str,
    strings: &'a str,
    /// The bytes of each table but the strings.
    tables: [&'a [u8]; TABLES.len() - 1],
}

/// A process that is started at boot.
#[derive(Clone, Copy)]
pub struct Process<'a> {
    /// The line of the source.
    pub line: u32,
    /// Its name; the first is `init`.
    pub name: &'a str,
    /// The program of the boot image that it runs.
    pub program: &'a str,
    /// The session that it belongs to: processes that name the same one share it.
    pub session: Option<&'a str>,
    /// The profile that says how it is scheduled.
    pub profile: Option<&'a str>,
    /// Its threads' weight.
    pub weight: u16,
    /// Its threads' latency class.
    pub class: Class,
    /// Whether the machine powers off, with its status, when it ends.
    pub critical: bool,
    manifest: Manifest<'a>,
    raw: RawProcess,
}

/// A capability that a process is born with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<'a> {
    /// The line of the source.
    pub line: u32,
    /// The name under which the process finds it.
    pub name: &'a str,
    /// What it is.
    pub interface: Interface,
    /// Which endpoint, memory object or context; empty for the others.
    pub object: &'a str,
    /// [`abi::rights`].
    pub rights: u16,
    /// The badge that an endpoint's server sees, 0 for none.
    pub badge: u32,
}

impl Grant<'_> {
    /// Whether it is made for the process that gets it, and so is not passed on by whoever starts it.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        matches!(
            self.interface,
            Interface::ThreadSpawner
                | Interface::ThreadControl
                | Interface::ParkSpace
                | Interface::VirtualMemory
                | Interface::UserSession
        )
    }
    /// Whether it has all of these rights.
    #[must_use]
    pub const fn has(&self, wanted: u16) -> bool {
        self.rights & wanted == wanted
    }
}

/// A memory object that init makes for the processes that are granted `memory:<name>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory<'a> {
    /// The line of the source.
    pub line: u32,
    /// Its name.
    pub name: &'a str,
    /// Its size, a multiple of the page size.
    pub bytes: u64,
}

/// Which CPUs: a bit for each, CPU 0 the lowest of the first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet(pub [u64; 4]);

impl From<RawCpus> for CpuSet {
    fn from(raw: RawCpus) -> CpuSet {
        CpuSet([raw.w0, raw.w1, raw.w2, raw.w3])
    }
}

impl CpuSet {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let words = self.0;
        (0..256).filter(move |cpu: &u32| words[*cpu as usize / 64] >> (cpu % 64) & 1 == 1)
    }
}

/// CPUs that leases are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool<'a> {
    /// The line of the source.
    pub line: u32,
    /// Its name.
    pub name: &'a str,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Budget and period in ns of what may be reserved on each of its CPUs.
    pub reservation: Option<(u64, u64)>,
    /// The most leases at a time.
    pub max_leases: Option<u32>,
    /// The most leases of one account at a time.
    pub max_leases_per_account: Option<u32>,
}

/// The right of an account to leases of a pool, made at boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolGrant<'a> {
    /// The line of the source.
    pub line: u32,
    /// Its name.
    pub name: &'a str,
    /// The pool.
    pub pool: &'a str,
    /// The account, never 0.
    pub account: u64,
}

/// A pool grant that the minter may make later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinterAllow<'a> {
    /// The line of the source.
    pub line: u32,
    /// The pool.
    pub pool: &'a str,
    /// The account, never 0.
    pub account: u64,
}

/// How something is scheduled, under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile<'a> {
    /// The line of the source.
    pub line: u32,
    /// Its name.
    pub name: &'a str,
    /// Weight.
    pub weight: u16,
    /// Latency class.
    pub class: Class,
    /// Budget and period in ns of each thread.
    pub reservation: Option<(u64, u64)>,
}

/// CPU time that init makes for the processes that are granted `scheduling_context:<name>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context<'a> {
    /// The line of the source.
    pub line: u32,
    /// Its name.
    pub name: &'a str,
    /// So much CPU time
    pub budget_ns: u64,
    /// in every period,
    pub period_ns: u64,
    /// within this time of becoming usable, if not within the period,
    pub deadline_ns: Option<u64>,
    /// on one of these CPUs.
    pub cpus: CpuSet,
    /// What happens when the budget is spent.
    pub overrun: Overrun,
    /// Its band: higher ones run first.
    pub criticality: u8,
    /// Pieces that the budget may be split into, if there is a bound.
    pub refills: Option<u8>,
    /// The endpoint that is told of a timeout, and the badge that its server sees; 0 for none.
    pub timeout: Option<(&'a str, u32)>,
}

fn damaged(what: &'static str) -> ManifestError {
    ManifestError::new(Section::File, ErrorKind::Damaged { what })
}

impl<'a> Manifest<'a> {
    /// Checks a compiled manifest: that its bytes hang together, and then everything that [`validate`] checks.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line in the source.
    pub fn parse(bytes: &'a [u8]) -> Result<Manifest<'a>, ManifestError> {
        let manifest = Self::read(bytes)?;
        validate(&manifest).map_err(|error| error.in_file(manifest.source))?;
        Ok(manifest)
    }

    fn read(bytes: &'a [u8]) -> Result<Manifest<'a>, ManifestError> {
        if bytes.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(ManifestError::new(Section::File, ErrorKind::NotAManifest));
        }
        let short = || damaged("it is cut short");
        let version = u32_at(bytes, 8).ok_or_else(short)?;
        if version != VERSION {
            return Err(ManifestError::new(Section::File, ErrorKind::Version { found: version }));
        }
        let length = u32_at(bytes, 12).ok_or_else(short)? as usize;
        let bytes = bytes.get(..length).filter(|all| all.len() >= HEADER_BYTES).ok_or_else(short)?;
        let mut tables: [&'a [u8]; TABLES.len()] = [&[]; TABLES.len()];
        for (number, (_, record_bytes)) in TABLES.iter().enumerate() {
            let span = Span::read(&bytes[TABLES_AT + number * 8..]).ok_or_else(short)?;
            let wanted = (span.count as usize).checked_mul(*record_bytes);
            let place = bytes.get(span.first as usize..);
            tables[number] = place
                .zip(wanted)
                .and_then(|(rest, wanted)| rest.get(..wanted))
                .ok_or_else(|| damaged("a table is not in it"))?;
        }
        let strings =
            core::str::from_utf8(tables[table::STRINGS]).map_err(|_| damaged("its text is not UTF-8"))?;
        let mut records: [&'a [u8]; TABLES.len() - 1] = [&[]; TABLES.len() - 1];
        records.copy_from_slice(&tables[..table::STRINGS]);
        let mut manifest = Manifest { name: "", source: "", strings, tables: records };
        let header_text = |at: usize| {
            let text = Text::read(&bytes[at..]).and_then(|text| piece(strings, text));
            text.ok_or_else(|| damaged("a text is not in it"))
        };
        manifest.name = header_text(16)?;
        manifest.source = header_text(24)?;
        manifest.check_texts().map_err(|error| error.in_file(manifest.source))?;
        Ok(manifest)
    }

    /// Every text is a piece of the strings, and every span lies in its table; from here on none is missing.
    fn check_texts(&self) -> Result<(), ManifestError> {
        let good = |text: Text| piece(self.strings, text).is_some();
        let spans = |raw: &RawProcess| {
            self.holds(table::ARGS, raw.args)
                && self.holds(table::GRANTS, raw.grants)
                && self.holds(table::AFTER, raw.after)
        };
        let all = self.rows::<RawProcess>(table::PROCESS).all(|raw| {
            good(raw.name) && good(raw.program) && good(raw.session) && good(raw.profile) && spans(&raw)
        }) && self.rows::<RawText>(table::ARGS).all(|raw| good(raw.text))
            && self.rows::<RawGrant>(table::GRANTS).all(|raw| good(raw.name) && good(raw.object))
            && self.rows::<RawText>(table::AFTER).all(|raw| good(raw.text))
            && self.rows::<RawMemory>(table::MEMORY).all(|raw| good(raw.name))
            && self.rows::<RawPool>(table::POOL).all(|raw| good(raw.name))
            && self.rows::<RawPoolGrant>(table::POOL_GRANT).all(|raw| good(raw.name) && good(raw.pool))
            && self.rows::<RawAllow>(table::MINTER).all(|raw| good(raw.pool))
            && self.rows::<RawProfile>(table::PROFILE).all(|raw| good(raw.name))
            && self.rows::<RawContext>(table::CONTEXT).all(|raw| good(raw.name) && good(raw.timeout));
        if all { Ok(()) } else { Err(damaged("a text or a list is not in it")) }
    }

    fn holds(&self, number: usize, span: Span) -> bool {
        let count = self.count(number) as u32;
        span.first.checked_add(span.count).is_some_and(|end| end <= count)
    }

    pub(crate) fn count(&self, number: usize) -> usize {
        self.tables[number].len() / TABLES[number].1
    }

    /// The records of a table, as they are in the bytes.
    pub(crate) fn rows<R: Record + 'a>(&self, number: usize) -> impl Iterator<Item = R> + Clone + use<'a, R> {
        self.tables[number].chunks_exact(R::BYTES).filter_map(R::read)
    }

    pub(crate) fn part<R: Record + 'a>(
        &self,
        number: usize,
        span: Span,
    ) -> impl Iterator<Item = R> + Clone + use<'a, R> {
        self.rows::<R>(number).skip(span.first as usize).take(span.count as usize)
    }

    pub(crate) fn text(&self, text: Text) -> &'a str {
        piece(self.strings, text).unwrap_or("")
    }

    fn optional(&self, text: Text) -> Option<&'a str> {
        Some(self.text(text)).filter(|text| !text.is_empty())
    }

    /// Its `name`.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The name of the file that it was compiled from.
    #[must_use]
    pub fn source(&self) -> &'a str {
        self.source
    }

    /// The processes in the order in which they are started; the first is `init`.
    pub fn processes(&self) -> impl Iterator<Item = Process<'a>> + Clone + use<'a> {
        let manifest = *self;
        self.rows::<RawProcess>(table::PROCESS).map(move |raw| Process {
            line: raw.line,
            name: manifest.text(raw.name),
            program: manifest.text(raw.program),
            session: manifest.optional(raw.session),
            profile: manifest.optional(raw.profile),
            weight: raw.weight as u16,
            class: Class::from_raw(raw.class).unwrap_or_default(),
            critical: raw.flags & CRITICAL != 0,
            manifest,
            raw,
        })
    }

    /// The process with this name.
    #[must_use]
    pub fn process(&self, name: &str) -> Option<Process<'a>> {
        self.processes().find(|process| process.name == name)
    }

    /// The memory objects.
    pub fn memories(&self) -> impl Iterator<Item = Memory<'a>> + Clone + use<'a> {
        let manifest = *self;
        self.rows::<RawMemory>(table::MEMORY).map(move |raw| Memory {
            line: raw.line,
            name: manifest.text(raw.name),
            bytes: raw.bytes,
        })
    }

    /// The pools.
    pub fn pools(&self) -> impl Iterator<Item = Pool<'a>> + Clone + use<'a> {
        let manifest = *self;
        let bound = |bound: u64| u32::try_from(bound).ok().filter(|&bound| bound > 0);
        self.rows::<RawPool>(table::POOL).map(move |raw| Pool {
            line: raw.line,
            name: manifest.text(raw.name),
            cpus: raw.cpus.into(),
            reservation: reservation(raw.budget_ns, raw.period_ns),
            max_leases: bound(raw.max_leases),
            max_leases_per_account: bound(raw.max_leases_per_account),
        })
    }

    /// The pool grants that are made at boot.
    pub fn pool_grants(&self) -> impl Iterator<Item = PoolGrant<'a>> + Clone + use<'a> {
        let manifest = *self;
        self.rows::<RawPoolGrant>(table::POOL_GRANT).map(move |raw| PoolGrant {
            line: raw.line,
            name: manifest.text(raw.name),
            pool: manifest.text(raw.pool),
            account: raw.account,
        })
    }

    /// The pairs that the minter may make grants for.
    pub fn minter_allow(&self) -> impl Iterator<Item = MinterAllow<'a>> + Clone + use<'a> {
        let manifest = *self;
        self.rows::<RawAllow>(table::MINTER).map(move |raw| MinterAllow {
            line: raw.line,
            pool: manifest.text(raw.pool),
            account: raw.account,
        })
    }

    /// The profiles.
    pub fn profiles(&self) -> impl Iterator<Item = Profile<'a>> + Clone + use<'a> {
        let manifest = *self;
        self.rows::<RawProfile>(table::PROFILE).map(move |raw| Profile {
            line: raw.line,
            name: manifest.text(raw.name),
            weight: raw.weight as u16,
            class: Class::from_raw(raw.class).unwrap_or_default(),
            reservation: reservation(raw.budget_ns, raw.period_ns),
        })
    }

    /// The scheduling contexts.
    pub fn contexts(&self) -> impl Iterator<Item = Context<'a>> + Clone + use<'a> {
        let manifest = *self;
        self.rows::<RawContext>(table::CONTEXT).map(move |raw| Context {
            line: raw.line,
            name: manifest.text(raw.name),
            budget_ns: raw.budget_ns,
            period_ns: raw.period_ns,
            deadline_ns: (raw.deadline_ns != 0).then_some(raw.deadline_ns),
            cpus: raw.cpus.into(),
            overrun: Overrun::from_raw(raw.overrun).unwrap_or_default(),
            criticality: raw.criticality as u8,
            refills: (raw.refills != 0).then_some(raw.refills as u8),
            timeout: manifest.optional(raw.timeout).map(|endpoint| (endpoint, raw.badge as u32)),
        })
    }

    /// Checks that every program that a process runs is there.
    ///
    /// # Errors
    /// The first that is not, with the line of its process.
    pub fn check_programs(&self, mut is_there: impl FnMut(&str) -> bool) -> Result<(), ManifestError> {
        match self.processes().find(|process| !is_there(process.program)) {
            None => Ok(()),
            Some(process) => {
                let kind = ErrorKind::UnknownProgram { name: Name::new(process.program) };
                let error = ManifestError::new(Section::Process, kind);
                Err(error.at(process.line).of(process.name).in_file(self.source))
            }
        }
    }
}

impl core::fmt::Debug for Manifest<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Manifest")
            .field("name", &self.name)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl<'a> Process<'a> {
    /// Its arguments, without the program's name.
    pub fn args(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let manifest = self.manifest;
        manifest.part::<RawText>(table::ARGS, self.raw.args).map(move |raw| manifest.text(raw.text))
    }

    /// What it is granted.
    pub fn grants(&self) -> impl Iterator<Item = Grant<'a>> + Clone + use<'a> {
        let manifest = self.manifest;
        manifest.part::<RawGrant>(table::GRANTS, self.raw.grants).filter_map(move |raw| {
            Some(Grant {
                line: raw.line,
                name: manifest.text(raw.name),
                interface: u16::try_from(raw.interface).ok().and_then(Interface::from_raw)?,
                object: manifest.text(raw.object),
                rights: raw.rights as u16 & rights::KNOWN,
                badge: raw.badge as u32,
            })
        })
    }

    /// The processes that must have ended before it is started; all of them stand before it.
    pub fn after(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let manifest = self.manifest;
        manifest.part::<RawText>(table::AFTER, self.raw.after).map(move |raw| manifest.text(raw.text))
    }

    /// Weight and latency class of its first thread: its own, or its profile's.
    #[must_use]
    pub fn share(&self) -> (u16, Class) {
        self.chosen().map_or((self.weight, self.class), |profile| (profile.weight, profile.class))
    }

    /// Budget and period in ns that each of its threads has, by its profile.
    #[must_use]
    pub fn template(&self) -> Option<(u64, u64)> {
        self.chosen()?.reservation
    }

    fn chosen(&self) -> Option<Profile<'a>> {
        let name = self.profile?;
        self.manifest.profiles().find(|known| known.name == name)
    }

    pub(crate) fn raw(&self) -> RawProcess {
        self.raw
    }
}

fn reservation(budget_ns: u64, period_ns: u64) -> Option<(u64, u64)> {
    (budget_ns != 0 || period_ns != 0).then_some((budget_ns, period_ns))
}

fn piece(strings: &str, text: Text) -> Option<&str> {
    let start = text.at as usize;
    strings.get(start..start.checked_add(text.len as usize)?)
}
