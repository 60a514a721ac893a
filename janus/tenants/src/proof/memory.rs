//! What the server's process uses, and whether it comes back.
//!
//! Only exact counts are judged: bytes that are allocated and not freed, tasks, stacks, descriptors by kind. Resident memory is only
//! printed, because the system's allocator keeps freed memory, for each thread separately.
//!
//! Some of what an attack leaves is kept on purpose, and is bounded: the runtime keeps records of tasks (80 KiB at a time), stacks
//! and blocks for closures, as many as were in use at once; wasmi keeps two stacks for each module; lists keep their length; a spare
//! worker that the watchdog starts has a driver. All of it reaches its limit sooner or later, while a leak grows each time: so an
//! attack is repeated until it leaves nothing, up to a maximum.

use super::client::{Client, get, say};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The most looks at the server until it is at rest.
const LOOKS_MAX: usize = 600;
/// The most bytes by which the heap may grow from the first look to the last: what is kept on purpose.
const KEPT_MAX: u64 = 1 << 20;
/// Workers that the watchdog may start, each with a driver of its own.
const SPARES: usize = 4;

/// How an attack is judged.
pub(super) struct Rule {
    name: &'static str,
    /// It must leave nothing so many times in a row, ..
    clean: usize,
    /// .. within so many.
    most: usize,
    /// Bytes that count as nothing.
    slack: u64,
    /// Whether stacks that workers keep are counted.
    stacks: bool,
}

/// All attacks at once: how many were open at a time differs, and so do the few blocks that are kept for them.
pub(super) const WAVES: Rule = Rule { name: "wave", clean: 1, most: 12, slack: 2 << 10, stacks: false };
/// Attacks one by one: exact to the byte, after N rounds and after 2N.
pub(super) const BATCHES: Rule = Rule { name: "one by one", clean: 2, most: 8, slack: 0, stacks: true };

/// What a process uses at rest.
#[derive(Clone, Debug)]
struct Has {
    heap: u64,
    tasks: u64,
    stacks: u64,
    /// Stacks that a task uses, or a worker keeps at hand.
    stacks_in_use: u64,
    abandoned: u64,
    resident_kib: u64,
    descriptors: BTreeMap<String, usize>,
}

impl fmt::Display for Has {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Has { heap, tasks, stacks, stacks_in_use, abandoned, resident_kib, descriptors } = self;
        write!(
            f,
            "{heap} bytes, {tasks} tasks, {stacks_in_use} of {stacks} stacks ({abandoned} abandoned), "
        )?;
        write!(f, "{resident_kib} KiB resident;")?;
        descriptors.iter().try_for_each(|(what, count)| write!(f, " {count} {what}"))
    }
}

impl Has {
    /// Reads what the process uses; `None` if there are other connections.
    fn look(process: u32, client: &mut Client) -> Result<Option<Has>, String> {
        let table = client.ask(&get("/-/"))?.body;
        let value = |name: &str| {
            let mut words = table.lines().last().unwrap_or_default().split(' ');
            let found =
                words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
            found.ok_or_else(|| format!("no {name} in {table:?}"))
        };
        if value("connections")? != 1 {
            return Ok(None);
        }
        let folder = PathBuf::from(format!("/proc/{process}"));
        let status = say("the server is gone", std::fs::read_to_string(folder.join("status")))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let mut descriptors = BTreeMap::new();
        for entry in say("the server is gone", std::fs::read_dir(folder.join("fd")))? {
            // A descriptor that was closed meanwhile has no name any more.
            if let Ok(name) = entry.and_then(|entry| std::fs::read_link(entry.path())) {
                *descriptors.entry(kind(&name.to_string_lossy())).or_default() += 1;
            }
        }
        Ok(Some(Has {
            heap: value("heap")?,
            tasks: value("tasks")?,
            stacks: value("stacks")?,
            stacks_in_use: value("stacks-in-use")?,
            abandoned: value("abandoned")?,
            resident_kib: resident.ok_or("no VmRSS")?,
            descriptors,
        }))
    }

    /// What the process uses when nothing is left of the connections.
    fn at_rest(process: u32, to: SocketAddr) -> Result<Has, String> {
        let mut client = Client::connect(to)?;
        let mut last: Option<Has> = None;
        for _ in 0..LOOKS_MAX {
            // A connection that ends stops being counted a moment before all that it had is freed, so two equal readings are needed.
            let now = Has::look(process, &mut client)?;
            match (now, last) {
                (Some(now), Some(last)) if now.is(&last) && now.count("socket") == 2 => return Ok(now),
                (now, _) => last = now,
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("the server does not come to rest: {last:?}"))
    }

    fn is(&self, other: &Has) -> bool {
        let exact = |has: &Has| (has.heap, has.tasks, has.stacks_in_use, has.abandoned);
        exact(self) == exact(other) && self.descriptors == other.descriptors
    }

    fn count(&self, kind: &str) -> usize {
        self.descriptors.get(kind).copied().unwrap_or(0)
    }

    /// Counts the descriptors of the workers' drivers, each a ring (or epoll where there are no rings) and an eventfd; and all
    /// others.
    fn drivers(&self) -> ([usize; 2], BTreeMap<&str, usize>) {
        let mut others: BTreeMap<&str, usize> =
            self.descriptors.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        let mut take = |kind: &str| others.remove(kind).unwrap_or(0);
        let drivers = [take("io_uring") + take("eventpoll"), take("eventfd")];
        (drivers, others)
    }
}

/// `anon_inode:[io_uring]` is an `io_uring`, `socket:[123]` a `socket`.
fn kind(name: &str) -> String {
    let name = name.strip_prefix("anon_inode:").unwrap_or(name).trim_matches(['[', ']']);
    name.split(':').next().unwrap_or(name).to_string()
}

/// What the server used at each look.
pub(super) struct Memory {
    process: u32,
    to: SocketAddr,
    looks: Vec<(&'static str, Has)>,
}

impl Memory {
    /// Takes the first look, at a server that has seen everything once.
    pub(super) fn new(process: u32, to: SocketAddr) -> Result<Memory, String> {
        Ok(Memory { process, to, looks: vec![("before", Has::at_rest(process, to)?)] })
    }

    /// Repeats an attack until it leaves nothing, as the rule says.
    pub(super) fn settles(
        &mut self,
        rule: &Rule,
        mut attack: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let mut clean = 0;
        for _ in 0..rule.most {
            attack()?;
            let now = Has::at_rest(self.process, self.to)?;
            let before = self.looks.last().map_or(&now, |(_, has)| has);
            let grown = now.heap > before.heap + rule.slack
                || rule.stacks && now.stacks_in_use > before.stacks_in_use
                || now.descriptors != before.descriptors;
            clean = if grown { 0 } else { clean + 1 };
            self.looks.push((rule.name, now));
            self.judge()?;
            if clean == rule.clean {
                return Ok(());
            }
        }
        self.print();
        Err(format!("{}: memory does not come back, {} times", rule.name, rule.most))
    }

    /// What must hold after each of them.
    fn judge(&self) -> Result<(), String> {
        let [(_, first), .., (_, now)] = &self.looks[..] else { return Ok(()) };
        let ([rings, bells], others) = now.drivers();
        let ([rings_first, bells_first], others_first) = first.drivers();
        let spares = rings.saturating_sub(rings_first);
        let wrong = if (now.tasks, now.abandoned) != (first.tasks, 0) {
            "tasks are left, or stacks given up"
        } else if others != others_first || spares > SPARES || bells != bells_first + spares {
            "descriptors are left"
        } else if now.heap > first.heap + KEPT_MAX {
            "more memory is left than is ever kept"
        } else {
            return Ok(());
        };
        self.print();
        Err(wrong.to_string())
    }

    pub(super) fn print(&self) {
        for (when, has) in &self.looks {
            println!("{when}: {has}");
        }
    }
}
