//! What a manifest must be. The host tool and the kernel both call [`validate`].

use core::fmt::Write;

use abi::{CAPSET_MAX, Interface, MAX_ARGS_BYTES, MAX_NAME_BYTES, Overrun, PAGE_BYTES, rights};

use crate::error::{ErrorKind, ManifestError, RIGHTS, Section};
use crate::format::{RawContext, RawGrant, RawPool, RawProcess, RawProfile, RawText, table};
use crate::manifest::{Class, CpuSet, Manifest, Process, capability_name};
use crate::{Grant, Name};

/// The bounds of what a manifest may say. They bound every loop here, too.
pub mod limits {
    /// Weights that the scheduler takes.
    pub const WEIGHT: (u64, u64) = (1, 1024);
    /// The weight of a process that says none.
    pub const DEFAULT_WEIGHT: u32 = 64;
    /// Budgets that the scheduler takes, in ns; the period bounds them further.
    pub const BUDGET_NS: (u64, u64) = (20_000, PERIOD_NS.1);
    /// Periods that the scheduler takes, in ns.
    pub const PERIOD_NS: (u64, u64) = (20_000, 60_000_000_000);
    /// What a CPU promises to contexts, in per cent; the rest is kept for everybody else.
    pub const PROMISED_PERCENT: u64 = 95;
    /// And so many parts of 2^32 more, as the core allows: each of its promises is rounded up by less than one.
    pub(crate) const PROMISED_PARTS_MORE: u128 = 160;
    /// Bands of contexts.
    pub const CRITICALITY: (u64, u64) = (0, 7);
    /// Pieces that a budget may be split into.
    pub const REFILLS: (u64, u64) = (2, 8);
    /// Numbers of CPUs.
    pub const CPU: (u64, u64) = (0, 255);
    /// Badges: 0 is none.
    pub const BADGE: (u64, u64) = (1, u32::MAX as u64);
    /// Accounts: 0 is nobody's.
    pub const ACCOUNT: (u64, u64) = (1, i64::MAX as u64);
    /// Bounds on leases.
    pub const LEASES: (u64, u64) = (1, 65_535);
    /// Bytes of a memory object.
    pub const MEMORY_BYTES: (u64, u64) = (4096, 1 << 30);
    /// Processes.
    pub const PROCESSES: usize = 128;
    /// Memory objects, pools, pool grants, minter's pairs, profiles and contexts: of each.
    pub const ENTRIES: usize = 128;
    /// Processes that one process waits for.
    pub const AFTER: usize = 16;
    /// Arguments of one process.
    pub const ARGS: usize = 64;
}

type Checked = Result<(), ManifestError>;

/// Checks everything that a manifest says, and everything that it says about itself.
///
/// # Errors
/// The first thing that is wrong, with its line (the file's name is added by [`Manifest::parse`]).
pub fn validate(manifest: &Manifest<'_>) -> Checked {
    check_counts(manifest)?;
    if !is_name(manifest.name()) {
        let kind = ErrorKind::BadName { key: "name", found: Name::new(manifest.name()) };
        return Err(ManifestError::new(Section::File, kind).at(1));
    }
    check_memories(manifest)?;
    check_profiles(manifest)?;
    check_contexts(manifest)?;
    check_pools(manifest)?;
    check_processes(manifest)?;
    check_receivers(manifest)?;
    check_init(manifest)
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

/// Where an entry is; makes its errors.
#[derive(Clone, Copy)]
struct Place<'a> {
    section: Section,
    line: u32,
    entry: &'a str,
}

impl Place<'_> {
    fn error(self, kind: ErrorKind) -> ManifestError {
        ManifestError::new(self.section, kind).at(self.line).of(self.entry)
    }
    fn fails<T>(self, kind: ErrorKind) -> Result<T, ManifestError> {
        Err(self.error(kind))
    }
    fn at(self, line: u32) -> Self {
        Place { line, ..self }
    }
    fn name(self, key: &'static str, name: &str) -> Checked {
        if is_name(name) { Ok(()) } else { self.fails(ErrorKind::BadName { key, found: Name::new(name) }) }
    }
    fn number(self, key: &'static str, found: u64, (min, max): (u64, u64)) -> Checked {
        if (min..=max).contains(&found) {
            Ok(())
        } else {
            self.fails(ErrorKind::OutOfRange {
                key,
                found: i64::try_from(found).unwrap_or(i64::MAX),
                min,
                max,
            })
        }
    }
    fn class(self, class: u32) -> Checked {
        if Class::from_raw(class).is_some() {
            return Ok(());
        }
        let mut name = Name::default();
        let _ = write!(name, "number {class}");
        self.fails(ErrorKind::UnknownClass { name })
    }
    fn reservation(self, budget_ns: u64, period_ns: u64) -> Checked {
        match (budget_ns, period_ns) {
            (0, 0) => Ok(()),
            (0, _) => self.fails(ErrorKind::HalfReservation { missing: "budget_ns" }),
            (_, 0) => self.fails(ErrorKind::HalfReservation { missing: "period_ns" }),
            _ => {
                self.number("budget_ns", budget_ns, limits::BUDGET_NS)?;
                self.number("period_ns", period_ns, limits::PERIOD_NS)?;
                if budget_ns > period_ns {
                    self.fails(ErrorKind::BudgetAbovePeriod { budget_ns, period_ns })
                } else {
                    Ok(())
                }
            }
        }
    }
    /// A CPU can promise that much within that time: the rule of the scheduling core.
    fn promise(self, budget_ns: u64, window_ns: u64) -> Checked {
        let asked = (u128::from(budget_ns) << 32).div_ceil(u128::from(window_ns));
        let promised =
            (u128::from(limits::PROMISED_PERCENT) << 32).div_ceil(100) + limits::PROMISED_PARTS_MORE;
        if asked > promised { self.fails(ErrorKind::TooMuchOfACpu { budget_ns, window_ns }) } else { Ok(()) }
    }
    /// No entry of `before` has this entry's name.
    fn first<'b>(self, mut before: impl Iterator<Item = (u32, &'b str)>) -> Checked {
        match before.find(|(_, name)| *name == self.entry) {
            None => Ok(()),
            Some((first_line, _)) => self.fails(ErrorKind::Twice {
                what: self.section.word(),
                name: Name::new(self.entry),
                first_line,
            }),
        }
    }
}

fn check_counts(manifest: &Manifest<'_>) -> Checked {
    let bounds = [
        (table::PROCESS, "processes", limits::PROCESSES),
        (table::ARGS, "arguments", limits::PROCESSES * limits::ARGS),
        (table::GRANTS, "grants", limits::PROCESSES * CAPSET_MAX),
        (table::AFTER, "names in `after`", limits::PROCESSES * limits::AFTER),
        (table::MEMORY, "memory objects", limits::ENTRIES),
        (table::POOL, "pools", limits::ENTRIES),
        (table::POOL_GRANT, "pool grants", limits::ENTRIES),
        (table::MINTER, "pairs in the minter's `allow`", limits::ENTRIES),
        (table::PROFILE, "profiles", limits::ENTRIES),
        (table::CONTEXT, "contexts", limits::ENTRIES),
    ];
    for (number, what, max) in bounds {
        if manifest.count(number) > max {
            return Err(ManifestError::new(Section::File, ErrorKind::TooMany { what, max: max as u32 }));
        }
    }
    Ok(())
}

fn check_memories(manifest: &Manifest<'_>) -> Checked {
    for (index, memory) in manifest.memories().enumerate() {
        let place = Place { section: Section::Memory, line: memory.line, entry: memory.name };
        place.name("name", memory.name)?;
        place.first(manifest.memories().take(index).map(|other| (other.line, other.name)))?;
        place.number("bytes", memory.bytes, limits::MEMORY_BYTES)?;
        if !memory.bytes.is_multiple_of(PAGE_BYTES) {
            return place.fails(ErrorKind::NotPages { found: memory.bytes });
        }
    }
    Ok(())
}

fn check_profiles(manifest: &Manifest<'_>) -> Checked {
    for (index, raw) in manifest.rows::<RawProfile>(table::PROFILE).enumerate() {
        let place = Place { section: Section::Profile, line: raw.line, entry: manifest.text(raw.name) };
        place.name("name", place.entry)?;
        place.first(manifest.profiles().take(index).map(|other| (other.line, other.name)))?;
        place.number("weight", raw.weight.into(), limits::WEIGHT)?;
        place.class(raw.class)?;
        place.reservation(raw.budget_ns, raw.period_ns)?;
        if raw.period_ns != 0 {
            place.promise(raw.budget_ns, raw.period_ns)?;
        }
    }
    Ok(())
}

fn check_contexts(manifest: &Manifest<'_>) -> Checked {
    for (index, raw) in manifest.rows::<RawContext>(table::CONTEXT).enumerate() {
        let place = Place { section: Section::Context, line: raw.line, entry: manifest.text(raw.name) };
        place.name("name", place.entry)?;
        place.first(manifest.contexts().take(index).map(|other| (other.line, other.name)))?;
        let RawContext { budget_ns, period_ns, deadline_ns, .. } = raw;
        place.number("budget_ns", budget_ns, limits::BUDGET_NS)?;
        place.reservation(budget_ns, period_ns)?;
        let window_ns = if deadline_ns == 0 { period_ns } else { deadline_ns };
        if !(budget_ns..=period_ns).contains(&window_ns) {
            return place.fails(ErrorKind::DeadlineOutOfRange { deadline_ns, budget_ns, period_ns });
        }
        place.promise(budget_ns, window_ns)?;
        if CpuSet::from(raw.cpus).is_empty() {
            return place.fails(ErrorKind::NoCpu);
        }
        place.number("criticality", raw.criticality.into(), limits::CRITICALITY)?;
        if raw.refills != 0 {
            place.number("refills", raw.refills.into(), limits::REFILLS)?;
        }
        check_timeout(manifest, place, &raw)?;
    }
    Ok(())
}

/// Whoever is told of timeouts is there with `fault`, and only then.
fn check_timeout(manifest: &Manifest<'_>, place: Place<'_>, raw: &RawContext) -> Checked {
    let Some(overrun) = Overrun::from_raw(raw.overrun) else {
        let mut name = Name::default();
        let _ = write!(name, "number {}", raw.overrun);
        return place.fails(ErrorKind::UnknownOverrun { name });
    };
    let endpoint = manifest.text(raw.timeout);
    if overrun != Overrun::Fault {
        let is_silent = endpoint.is_empty() && raw.badge == 0;
        return if is_silent { Ok(()) } else { place.fails(ErrorKind::Timeout { is_fault: false }) };
    }
    if endpoint.is_empty() {
        return place.fails(ErrorKind::Timeout { is_fault: true });
    }
    place.name("timeout", endpoint)?;
    place.number("badge", raw.badge, (0, limits::BADGE.1))?;
    check_receiver(manifest, place, endpoint)
}

fn check_pools(manifest: &Manifest<'_>) -> Checked {
    for (index, raw) in manifest.rows::<RawPool>(table::POOL).enumerate() {
        let place = Place { section: Section::Pool, line: raw.line, entry: manifest.text(raw.name) };
        place.name("name", place.entry)?;
        place.first(manifest.pools().take(index).map(|other| (other.line, other.name)))?;
        if CpuSet::from(raw.cpus).is_empty() {
            return place.fails(ErrorKind::NoCpu);
        }
        place.reservation(raw.budget_ns, raw.period_ns)?;
        place.number("max_leases", raw.max_leases, (0, limits::LEASES.1))?;
        place.number("max_leases_per_account", raw.max_leases_per_account, (0, limits::LEASES.1))?;
    }
    for (index, grant) in manifest.pool_grants().enumerate() {
        let place = Place { section: Section::PoolGrant, line: grant.line, entry: grant.name };
        place.name("name", grant.name)?;
        place.first(manifest.pool_grants().take(index).map(|other| (other.line, other.name)))?;
        check_pair(manifest, place, grant.pool, grant.account)?;
        let same = |line, pool, account| (pool == grant.pool && account == grant.account).then_some(line);
        let mut before = manifest.pool_grants().take(index);
        if let Some(first_line) = before.find_map(|other| same(other.line, other.pool, other.account)) {
            return place.fails(twice_pair(grant.pool, grant.account, first_line));
        }
    }
    for (index, allow) in manifest.minter_allow().enumerate() {
        let place = Place { section: Section::Minter, line: allow.line, entry: "" };
        check_pair(manifest, place, allow.pool, allow.account)?;
        let mut before = manifest.minter_allow().take(index);
        if let Some(other) = before.find(|other| other.pool == allow.pool && other.account == allow.account) {
            return place.fails(twice_pair(allow.pool, allow.account, other.line));
        }
    }
    Ok(())
}

fn check_pair(manifest: &Manifest<'_>, place: Place<'_>, pool: &str, account: u64) -> Checked {
    place.number("account", account, limits::ACCOUNT)?;
    if manifest.pools().any(|known| known.name == pool) {
        Ok(())
    } else {
        place.fails(ErrorKind::UnknownPool { name: Name::new(pool) })
    }
}

fn twice_pair(pool: &str, account: u64, first_line: u32) -> ErrorKind {
    let mut name = Name::default();
    let _ = write!(name, "{account}/{pool}");
    ErrorKind::Twice { what: "account/pool", name, first_line }
}

fn check_processes(manifest: &Manifest<'_>) -> Checked {
    if manifest.count(table::PROCESS) == 0 {
        return Err(ManifestError::new(Section::File, ErrorKind::InitNotFirst));
    }
    for (index, process) in manifest.processes().enumerate() {
        let place = Place { section: Section::Process, line: process.line, entry: process.name };
        let raw = process.raw();
        place.name("name", process.name)?;
        if index == 0 && process.name != "init" {
            return place.fails(ErrorKind::InitNotFirst);
        }
        place.first(manifest.processes().take(index).map(|other| (other.line, other.name)))?;
        place.name("program", process.program)?;
        if let Some(session) = process.session {
            place.name("session", session)?;
        }
        if let Some(profile) = process.profile
            && !manifest.profiles().any(|known| known.name == profile)
        {
            return place.fails(ErrorKind::UnknownProfile { name: Name::new(profile) });
        }
        if index == 0 && process.template().is_some() {
            return place.fails(ErrorKind::NotForInit { what: "a profile with a budget" });
        }
        place.number("weight", raw.weight.into(), limits::WEIGHT)?;
        place.class(raw.class)?;
        if raw.flags & !crate::format::CRITICAL != 0 {
            return place.fails(ErrorKind::Damaged { what: "a flag that does not exist" });
        }
        check_args(manifest, place, &raw)?;
        check_after(manifest, place, &raw, index)?;
        check_grants(manifest, place, &raw, index == 0)?;
    }
    Ok(())
}

fn too_many(place: Place<'_>, what: &'static str, found: u32, max: usize) -> Checked {
    if found as usize > max { place.fails(ErrorKind::TooMany { what, max: max as u32 }) } else { Ok(()) }
}

fn check_args(manifest: &Manifest<'_>, place: Place<'_>, raw: &RawProcess) -> Checked {
    too_many(place, "arguments", raw.args.count, limits::ARGS)?;
    let mut bytes = 0_u64;
    for arg in manifest.part::<RawText>(table::ARGS, raw.args) {
        let text = manifest.text(arg.text);
        bytes += text.len() as u64 + 1;
        if text.contains('\0') {
            return place.at(arg.line).fails(ErrorKind::ArgHasNul);
        }
        if bytes > MAX_ARGS_BYTES as u64 {
            return place.at(arg.line).fails(ErrorKind::ArgsTooLong { found: bytes });
        }
    }
    Ok(())
}

fn check_after(manifest: &Manifest<'_>, place: Place<'_>, raw: &RawProcess, index: usize) -> Checked {
    too_many(place, "names in `after`", raw.after.count, limits::AFTER)?;
    for (number, after) in manifest.part::<RawText>(table::AFTER, raw.after).enumerate() {
        let place = place.at(after.line);
        let name = manifest.text(after.text);
        if index == 0 {
            return place.fails(ErrorKind::NotForInit { what: "`after`" });
        }
        // Only earlier ones: so there are no circles, and the order of the file is an order to start in.
        if !manifest.processes().take(index).skip(1).any(|process| process.name == name) {
            return place.fails(ErrorKind::NotEarlier { name: Name::new(name) });
        }
        let mut before = manifest.part::<RawText>(table::AFTER, raw.after).take(number);
        if let Some(other) = before.find(|other| manifest.text(other.text) == name) {
            let name = Name::new(name);
            return place.fails(ErrorKind::Twice { what: "`after`", name, first_line: other.line });
        }
    }
    Ok(())
}

fn check_grants(manifest: &Manifest<'_>, place: Place<'_>, raw: &RawProcess, is_init: bool) -> Checked {
    too_many(place, "grants", raw.grants.count, CAPSET_MAX)?;
    for (number, grant) in manifest.part::<RawGrant>(table::GRANTS, raw.grants).enumerate() {
        let place = place.at(grant.line);
        check_grant(manifest, place, &grant, is_init)?;
        let name = manifest.text(grant.name);
        let mut before = manifest.part::<RawGrant>(table::GRANTS, raw.grants).take(number);
        if let Some(other) = before.find(|other| manifest.text(other.name) == name) {
            let name = Name::new(name);
            return place.fails(ErrorKind::Twice { what: "grant", name, first_line: other.line });
        }
    }
    Ok(())
}

fn check_grant(manifest: &Manifest<'_>, place: Place<'_>, grant: &RawGrant, is_init: bool) -> Checked {
    let interface = u16::try_from(grant.interface).ok().and_then(Interface::from_raw);
    let Some((interface, cap)) =
        interface.and_then(|interface| Some((interface, capability_name(interface)?)))
    else {
        let mut name = Name::default();
        let _ = write!(name, "interface {}", grant.interface);
        return place.fails(ErrorKind::UnknownCapability { name });
    };
    let (name, object) = (manifest.text(grant.name), manifest.text(grant.object));
    let wanted = matches!(interface, Interface::Endpoint | Interface::MemoryObject);
    if wanted == object.is_empty() && interface != Interface::SchedulingContext {
        return place.fails(ErrorKind::BadObject { cap, wanted });
    }
    if !object.is_empty() {
        place.name(cap, object)?;
        if is_init {
            let what = match interface {
                Interface::Endpoint => "an endpoint",
                Interface::MemoryObject => "a memory object",
                _ => "a context with time",
            };
            return place.fails(ErrorKind::NotForInit { what });
        }
    }
    place.name("the grant's name", name)?;
    if interface == Interface::MemoryObject && !manifest.memories().any(|memory| memory.name == object) {
        return place.fails(ErrorKind::UnknownMemory { name: Name::new(object) });
    }
    let is_context = interface == Interface::SchedulingContext && !object.is_empty();
    if is_context && !manifest.contexts().any(|context| context.name == object) {
        return place.fails(ErrorKind::UnknownContext { name: Name::new(object) });
    }
    check_rights(place, grant, interface, cap, name)?;
    let own = manifest.contexts().find(|context| is_context && context.name == object);
    if let Some(own) =
        own.filter(|own| grant.rights & u32::from(rights::BANDS & !rights::up_to_band(own.criticality)) != 0)
    {
        return place.fails(ErrorKind::BandAbove { name: Name::new(object), criticality: own.criticality });
    }
    if grant.badge != 0 {
        let is_called = interface == Interface::Endpoint && grant.rights & u32::from(rights::CALL) != 0;
        if !is_called {
            return place.fails(ErrorKind::BadgeNotHere { cap });
        }
        place.number("badge", grant.badge, limits::BADGE)?;
    }
    Ok(())
}

fn check_rights(
    place: Place<'_>,
    grant: &RawGrant,
    interface: Interface,
    cap: &'static str,
    name: &str,
) -> Checked {
    if grant.rights == 0 {
        return place.fails(ErrorKind::NoRights { grant: Name::new(name) });
    }
    if grant.rights & !u32::from(rights::KNOWN) != 0 {
        let mut name = Name::default();
        let _ = write!(name, "bits {:#x}", grant.rights);
        return place.fails(ErrorKind::UnknownRight { name });
    }
    let received: &[Interface] = &[Interface::Endpoint, Interface::Console];
    let written: &[Interface] = &[Interface::MemoryObject, Interface::SchedulingContext];
    let only = [
        (rights::RECV, received),
        (rights::WRITE, written),
        (rights::BANDS, &[Interface::SchedulingContext]),
    ];
    for (bit, owners) in only {
        if grant.rights & u32::from(bit) != 0 && !owners.contains(&interface) {
            let right = RIGHTS.iter().find(|(_, known)| *known == bit).map_or("band", |(word, _)| word);
            return place.fails(ErrorKind::RightNotHere { right, cap });
        }
    }
    Ok(())
}

/// All grants of all processes.
fn grants<'a>(manifest: &Manifest<'a>) -> impl Iterator<Item = (Process<'a>, Grant<'a>)> + use<'a> {
    manifest.processes().flat_map(|process| process.grants().map(move |grant| (process, grant)))
}

/// Somebody receives from every endpoint.
fn check_receivers(manifest: &Manifest<'_>) -> Checked {
    for (process, grant) in grants(manifest).filter(|(_, grant)| grant.interface == Interface::Endpoint) {
        let place = Place { section: Section::Process, line: grant.line, entry: process.name };
        check_receiver(manifest, place, grant.object)?;
    }
    Ok(())
}

fn check_receiver(manifest: &Manifest<'_>, place: Place<'_>, endpoint: &str) -> Checked {
    let receives = |(_, grant): (Process<'_>, Grant<'_>)| {
        grant.interface == Interface::Endpoint && grant.object == endpoint && grant.has(rights::RECV)
    };
    if grants(manifest).any(receives) {
        Ok(())
    } else {
        place.fails(ErrorKind::NoReceiver { endpoint: Name::new(endpoint) })
    }
}

/// Init holds what it needs to start the others, and what it passes on to them.
fn check_init(manifest: &Manifest<'_>) -> Checked {
    let Some(init) = manifest.processes().next() else { return Ok(()) };
    let holds =
        |interface, wanted| init.grants().any(|grant| grant.interface == interface && grant.has(wanted));
    let need = |place: Place<'_>, interface, wanted, why| {
        if holds(interface, wanted) {
            return Ok(());
        }
        if holds(interface, wanted & !rights::BANDS) {
            return place.fails(ErrorKind::InitBand { why });
        }
        place.fails(ErrorKind::InitLacks { cap: capability_name(interface).unwrap_or(""), why })
    };
    for process in manifest.processes().skip(1) {
        let place = Place { section: Section::Process, line: process.line, entry: process.name };
        need(place, Interface::BootManifest, rights::CALL, "know this process")?;
        need(place, Interface::ProcessSpawner, rights::CALL, "start this process")?;
        if process.critical {
            need(place, Interface::Power, rights::CALL, "power off when this critical process ends")?;
        }
        if process.share() != init.share() {
            need(
                place,
                Interface::SchedulingPolicy,
                rights::CALL,
                "give this process another weight or class",
            )?;
        }
        let makes = rights::CALL | rights::WRITE;
        if process.template().is_some() {
            need(place, Interface::SchedulingContext, makes, "give this process the budget of its profile")?;
        }
        for grant in process.grants() {
            let place = place.at(grant.line);
            if grant.interface == Interface::SchedulingContext && !grant.object.is_empty() {
                let own = manifest.contexts().find(|context| context.name == grant.object);
                let band = rights::up_to_band(own.map_or(0, |own| own.criticality));
                need(place, grant.interface, makes | band, "make what is granted here")?;
            } else if matches!(grant.interface, Interface::Endpoint | Interface::MemoryObject) {
                need(place, Interface::Factory, rights::CALL, "make what is granted here")?;
            } else if !grant.is_own() {
                need(place, grant.interface, rights::GRANT | grant.rights, "pass it on, with these rights")?;
            }
        }
    }
    Ok(())
}
