//! The scenario language: small text files that say which threads run on which
//! machine, what happens to them, and what should come out.
//!
//! This module holds the tree that the simulator interprets. [`Scenario::parse`]
//! makes one from text and refuses what makes no sense; `Display` prints one
//! back as text that parses to an equal tree. Nothing here runs a thread or
//! knows a scheduler. The language itself is described in `docs/scenarios.md`.
//!
//! Programs are flat: loops are jumps between indices, so an interpreter needs
//! a program counter and [`limits::LOOP_DEPTH_MAX`] counters, and no recursion.

mod error;
mod lex;
pub mod limits;
mod parse;
mod print;
mod program;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
mod thread;
mod values;

use std::fmt;

pub use error::ScenarioError;
pub use print::duration_text;

/// The units of time, smallest first, and their power of ten in nanoseconds.
const UNITS: [(&str, u32); 4] = [("ns", 0), ("us", 3), ("ms", 6), ("s", 9)];

/// Declares an enumeration whose values are words of the language.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $value,)+ }

        impl $name {
            /// Every value, in the order in which messages list them.
            pub const ALL: &'static [Self] = &[$(Self::$value,)+];

            /// The word for it in scenario files and on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $word,)+ }
            }

            /// The value that `word` names.
            #[must_use]
            pub fn from_name(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == word)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

words! {
    /// Which policy orders the run queues.
    PolicyName {
        /// Weighted fair queueing by virtual time.
        #[default]
        Wfq = "wfq",
        /// Earliest eligible virtual deadline first.
        Eevdf = "eevdf",
    }
}

words! {
    /// What scheduling itself costs in simulated time.
    CostsName {
        /// The cost model's numbers.
        #[default]
        Default = "default",
        /// Nothing: for timelines derived by hand.
        None = "none",
        /// Nothing but the interrupts of timers that threads set, 10 us each.
        Timers = "timers",
    }
}

words! {
    /// A latency class.
    Class {
        /// Short bursts that someone waits for.
        Interactive = "interactive",
        /// Everything else.
        #[default]
        Normal = "normal",
        /// Throughput only.
        Batch = "batch",
        /// Serves calls of others.
        IpcServer = "ipcserver",
    }
}

words! {
    /// What happens to a thread that uses up its context's budget.
    Overrun {
        /// It waits for the next refill.
        #[default]
        Throttle = "throttle",
        /// It faults.
        Fault = "fault",
        /// It runs on as best effort.
        Demote = "demote",
    }
}

/// The line of the file that an item came from, counted from 1; 0 for an item
/// that did not come from a file.
///
/// All values are equal to each other: two scenarios that say the same are
/// equal wherever they say it, and a printed one equals the original.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceLine(pub u32);

impl PartialEq for SourceLine {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SourceLine {}

/// A whole scenario file.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// A line for people; empty if the file gives none. Words are separated by
    /// single spaces, and none starts with `#`.
    pub title: String,
    /// How many CPUs there are: the product of the topology, if there is one.
    pub cpus: u32,
    /// How the CPUs are grouped; `None` is a flat machine.
    pub topology: Option<TopologySpec>,
    /// How long to simulate.
    pub duration_ns: u64,
    /// The policy to use unless the command line names another.
    pub policy: PolicyName,
    /// The seed of everything that is random.
    pub seed: u64,
    /// What scheduling costs.
    pub costs: CostsName,
    /// The barriers, in order of declaration.
    pub barriers: Vec<Barrier>,
    /// The threads, in order of declaration; other items refer to them by index.
    pub threads: Vec<ThreadSpec>,
    /// What happens from outside, ordered by time, then by line.
    pub timed: Vec<Timed>,
    /// What should come out.
    pub expects: Vec<Expect>,
}

/// How CPUs are grouped. CPU numbers count threads first, then cores, then
/// sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologySpec {
    /// Sockets of the machine.
    pub sockets: u32,
    /// Cores of each socket.
    pub cores: u32,
    /// Hardware threads of each core.
    pub threads: u32,
    /// Memory nodes of the machine; they split its cores evenly.
    pub numa: u32,
}

impl TopologySpec {
    /// How many CPUs there are in all.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }
}

/// A place where a number of threads wait for each other, again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Barrier {
    /// Its name.
    pub name: String,
    /// Where it was declared.
    pub line: SourceLine,
    /// How many arrivals open it.
    pub parties: u32,
}

/// One or more threads that run the same program with the same parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadSpec {
    /// The name that other lines use.
    pub name: String,
    /// Where it was declared.
    pub line: SourceLine,
    /// How many instances start at `start_ns`: 0 for a template.
    pub count: u32,
    /// The weight of each instance.
    pub weight: u16,
    /// The latency class of each instance.
    pub class: Class,
    /// The CPUs it may run on, sorted; `None` is all of them.
    pub cpus: Option<Vec<u32>>,
    /// When the instances start.
    pub start_ns: u64,
    /// The CPU whose queue it starts on; `None` lets placement choose.
    pub home: Option<u32>,
    /// Whether instances start by `fork` only.
    pub template: bool,
    /// The scheduling context of each instance; each gets its own.
    pub context: Option<ContextSpec>,
    /// The steps; a thread that runs off the end exits.
    pub program: Vec<Op>,
}

/// CPU time as a capability: so much budget in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextSpec {
    /// The time that each period grants.
    pub budget_ns: u64,
    /// The period of the grants.
    pub period_ns: u64,
    /// The deadline relative to each release.
    pub deadline_ns: u64,
    /// The criticality band; higher bands run first.
    pub band: u8,
    /// What happens at the end of the budget.
    pub overrun: Overrun,
    /// How many pending refills are remembered.
    pub refills: u8,
    /// The thread that is told of a fault; `None`: faulted threads go on with the next refill.
    pub handler: Option<usize>,
}

/// A time between two bounds, both included, drawn uniformly by the seed;
/// never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The shortest time.
    pub min_ns: u64,
    /// The longest time.
    pub max_ns: u64,
}

/// One step of a program. Program counters are indices into
/// [`ThreadSpec::program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Use the CPU for a time.
    Run(Span),
    /// Use the CPU and never come back.
    RunForever,
    /// Leave the CPU for a time.
    Sleep(Span),
    /// Call the thread with this index and wait for the reply.
    Call(usize),
    /// Wait for a call.
    Receive,
    /// Answer the call received last.
    Reply,
    /// As `Reply`; if what was received is a timeout fault, the thread goes on at once, without its context.
    Release,
    /// Start instances of a template as children.
    Fork {
        /// The index of the template.
        thread: usize,
        /// How many instances.
        count: u32,
    },
    /// Wait until every child forked so far has exited.
    Join,
    /// Let others run first.
    Yield,
    /// Wait at the barrier with this index.
    Barrier(usize),
    /// Stop here.
    Exit,
    /// The head of a loop: runs once on entry, then falls into the body.
    LoopStart {
        /// How often the body runs; `None` is for ever.
        times: Option<u32>,
        /// The matching [`Op::LoopEnd`].
        end: usize,
    },
    /// The end of a loop: back to the step after `start`, or on.
    LoopEnd {
        /// The matching [`Op::LoopStart`].
        start: usize,
    },
}

/// All instances of a thread, or one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The index of the thread.
    pub thread: usize,
    /// The instance, counted from 0 in order of start; `None` is all.
    pub instance: Option<u32>,
}

/// Something that happens from outside at a given time.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// When.
    pub at_ns: u64,
    /// Where it was written.
    pub line: SourceLine,
    /// What happens.
    pub action: Action,
}

/// What happens at a [`Timed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A new weight.
    Weight(Target, u16),
    /// A new latency class.
    Class(Target, Class),
    /// The scheduling context is revoked.
    Revoke(Target),
    /// The scheduling context gets other parameters.
    Reconfigure(Target, ContextSpec),
    /// The thread ends at once.
    Kill(Target),
    /// A sleep ends early; no effect on a thread that does not sleep.
    Wake(Target),
    /// A fault: a CPU makes no progress for a time.
    Stall {
        /// The CPU.
        cpu: u32,
        /// For how long.
        duration_ns: u64,
    },
}

/// Something that must hold at the end of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Expect {
    /// Where it was written.
    pub line: SourceLine,
    /// What is checked.
    pub check: Check,
}

/// What an [`Expect`] checks. Fractions are in parts per million, and
/// tolerances are relative to the expected value: see [`within_ppm`].
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// The CPU time of the target's instances together, as a share of one
    /// CPU's time over the whole run.
    Share {
        /// Whose time.
        target: Target,
        /// The expected share.
        share_ppm: u64,
        /// The tolerance.
        tolerance_ppm: u64,
    },
    /// The CPU time of one target divided by that of another.
    Ratio {
        /// The numerator.
        left: Target,
        /// The denominator.
        right: Target,
        /// The expected ratio.
        ratio_ppm: u64,
        /// The tolerance.
        tolerance_ppm: u64,
    },
    /// A percentile of the time from wake to run, of all instances together.
    Latency {
        /// Whose latency.
        target: Target,
        /// The percentile: 990,000 is p99, 1,000,000 the maximum.
        percentile_ppm: u64,
        /// The most it may be.
        limit_ns: u64,
    },
    /// Which threads run first on a CPU, in order of dispatch.
    Order {
        /// The CPU.
        cpu: u32,
        /// The first runs; a target without an instance matches any.
        runs: Vec<Target>,
    },
}

/// Whether `actual` is within a tolerance of `expected`; the tolerance is
/// relative to `expected`, and the bounds are included.
#[must_use]
pub fn within_ppm(actual: u64, expected: u64, tolerance_ppm: u64) -> bool {
    let off = u128::from(actual.abs_diff(expected)) * u128::from(limits::WHOLE_PPM);
    off <= u128::from(expected) * u128::from(tolerance_ppm)
}

impl Scenario {
    /// Reads a scenario and checks it. `file` is only used in messages.
    ///
    /// # Errors
    /// The first thing in the text that is refused.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        parse::parse(file, text)
    }

    /// [`Scenario::parse`] for the bytes of a file, so that bytes that are not
    /// UTF-8 are refused with a line and a column as well.
    ///
    /// # Errors
    /// The first thing in the file that is refused.
    pub fn parse_bytes(file: &str, bytes: &[u8]) -> Result<Self, ScenarioError> {
        parse::parse_bytes(file, bytes)
    }

    /// A scenario of one CPU and no threads, with every default.
    #[must_use]
    pub fn new(duration_ns: u64) -> Self {
        Self {
            title: String::new(),
            cpus: 1,
            topology: None,
            duration_ns,
            policy: PolicyName::default(),
            seed: limits::SEED_DEFAULT,
            costs: CostsName::default(),
            barriers: Vec::new(),
            threads: Vec::new(),
            timed: Vec::new(),
            expects: Vec::new(),
        }
    }

    /// The index of the thread with this name.
    #[must_use]
    pub fn thread_index(&self, name: &str) -> Option<usize> {
        self.threads.iter().position(|thread| thread.name == name)
    }

    /// How many threads start without a fork.
    #[must_use]
    pub fn boot_threads(&self) -> u32 {
        self.threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.count))
    }
}

impl ThreadSpec {
    /// One thread with every default and no steps: it exits at once.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            line: SourceLine::default(),
            count: 1,
            weight: limits::WEIGHT_DEFAULT,
            class: Class::default(),
            cpus: None,
            start_ns: 0,
            home: None,
            template: false,
            context: None,
            program: Vec::new(),
        }
    }
}
