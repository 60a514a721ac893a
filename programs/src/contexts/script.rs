//! A reader for the simulator's scenarios: the part of their language that the proof `context-order` can play.
//!
//! The text is the simulator's own file, so both start from the same input and can differ only in what they do with it.

use alloc::vec::Vec;

use rt::Spec;

use crate::fair;
use crate::kit::MS;
use crate::proof::{Failure, Outcome};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Script {
    /// The name of its file, without the extension.
    pub name: &'static str,
    /// The number of CPUs.
    pub cpus: u32,
    /// How long it takes.
    pub for_ns: u64,
    /// The threads that take part.
    pub roles: Vec<Role>,
    /// What happens to them, and when.
    pub events: Vec<(u64, Event)>,
}

/// A thread of a scenario.
#[derive(Clone, Debug)]
pub struct Role {
    /// Its name.
    pub name: &'static str,
    /// The context of the thread, if it has one.
    pub spec: Option<Spec>,
    /// If set, a used-up budget causes a timeout fault, which the thread of this name handles.
    pub handler: Option<&'static str>,
    /// Its weight.
    pub weight: u16,
    /// The CPUs that it may use, as bits; 0 means all.
    pub cpus: u8,
    /// The CPU on which it starts, if that is not left to the kernel.
    pub home: Option<u32>,
    /// When it starts.
    pub start_ns: u64,
    /// What it does, in order.
    pub steps: Vec<Step>,
}

/// An action of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Computes for this much of its own CPU time.
    Run(u64),
    /// Sleeps for this long.
    Sleep(u64),
    /// Calls this thread, and waits for the answer.
    Call(&'static str),
    /// Waits for a call.
    Receive,
    /// Answers the call.
    Reply,
    /// Answers a fault: the thread that faulted goes on without its context.
    Release,
    /// Continues with this step.
    Goto(usize),
}

/// What happens to a thread from outside.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// This thread starts.
    Start(usize),
    /// The context of this thread is revoked.
    Revoke(usize),
    /// The context of this thread gets this specification.
    Reconfigure(usize, Spec),
}

impl Role {
    /// Whether the thread receives calls.
    pub fn is_server(&self) -> bool {
        self.steps.contains(&Step::Receive)
    }

    /// The next step to perform at or after `at`, with its index.
    pub fn next(&self, at: usize) -> Option<(usize, Step)> {
        let mut at = at;
        // This ends: a loop contains at least one step, so jumps do not form a circle.
        loop {
            match self.steps.get(at) {
                Some(Step::Goto(to)) => at = *to,
                other => return other.map(|step| (at, *step)),
            }
        }
    }
}

impl Script {
    /// Reads the scenario `name` from its text.
    ///
    /// # Errors
    /// Fails if the text uses something that cannot be played here.
    pub fn read(name: &'static str, text: &'static str) -> Outcome<Script> {
        let mut script = Script { name, cpus: 1, for_ns: 0, roles: Vec::new(), events: Vec::new() };
        // Where the loops begin that are not closed yet.
        let mut loops = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&'static str> = line.split_whitespace().collect();
            script.line(&words, &mut loops).ok_or_else(|| {
                Failure::new(format_args!("{name}.scn, line {}: `{line}` is not played here", at + 1))
            })?;
        }
        if script.for_ns == 0 || script.roles.is_empty() || !loops.is_empty() {
            return Err(Failure::new(format_args!("{name}.scn has no end, nobody in it, or an open loop")));
        }
        let starts = script.roles.iter().enumerate().map(|(at, role)| (role.start_ns, Event::Start(at)));
        script.events.extend(starts.collect::<Vec<_>>());
        // The sort is stable: events at the same time stay in the order of the file.
        script.events.sort_by_key(|(at_ns, _)| *at_ns);
        Ok(script)
    }

    fn line(&mut self, words: &[&'static str], loops: &mut Vec<usize>) -> Option<()> {
        match *words {
            [] | ["title" | "expect", ..] | ["costs", "none"] => {}
            [first, ..] if first.starts_with('#') => {}
            ["cpus", number] => self.cpus = number.parse().ok()?,
            ["for", time] => self.for_ns = duration_ns(time)?,
            ["thread", name, ref keys @ ..] => self.roles.push(role(name, keys)?),
            ["at", time, "revoke", name] => {
                self.events.push((duration_ns(time)?, Event::Revoke(self.find(name)?)));
            }
            ["at", time, "reconfigure", name, ref keys @ ..] => {
                let event = Event::Reconfigure(self.find(name)?, role(name, keys)?.spec?);
                self.events.push((duration_ns(time)?, event));
            }
            _ => self.roles.last_mut()?.step(words, loops)?,
        }
        Some(())
    }

    /// The index of the role with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.roles.iter().position(|role| role.name == name)
    }
}

impl Role {
    fn step(&mut self, words: &[&'static str], loops: &mut Vec<usize>) -> Option<()> {
        let step = match *words {
            ["loop"] => {
                loops.push(self.steps.len());
                return Some(());
            }
            ["end"] => {
                let to = loops.pop().filter(|to| *to < self.steps.len())?;
                Step::Goto(to)
            }
            ["run", "forever"] => Step::Run(u64::MAX),
            ["run", time] => Step::Run(duration_ns(time)?),
            ["sleep", time] => Step::Sleep(duration_ns(time)?),
            ["call", name] => Step::Call(name),
            ["receive"] => Step::Receive,
            ["reply"] => Step::Reply,
            ["release"] => Step::Release,
            _ => return None,
        };
        self.steps.push(step);
        Some(())
    }
}

fn role(name: &'static str, keys: &[&'static str]) -> Option<Role> {
    let mut role = Role {
        name,
        spec: None,
        handler: None,
        weight: fair::WEIGHT,
        cpus: 0,
        home: None,
        start_ns: 0,
        steps: Vec::new(),
    };
    let mut spec = Spec::new(0, 0);
    for key in keys {
        match key.split_once('=')? {
            ("budget", time) => spec.budget_ns = duration_ns(time)?,
            ("period", time) => spec.period_ns = duration_ns(time)?,
            ("deadline", time) => spec.deadline_ns = duration_ns(time)?,
            ("band", band) => spec.criticality = band.parse().ok()?,
            ("refills", number) => spec.refills = number.parse().ok()?,
            ("overrun", "throttle") => spec = spec.throttle(),
            ("overrun", "demote") => spec = spec.demote(),
            // The `handler` word says the rest.
            ("overrun", "fault") => {}
            ("handler", other) => role.handler = Some(other),
            ("weight", weight) => role.weight = weight.parse().ok()?,
            ("cpus", cpus) => role.cpus = mask(cpus)?,
            ("home", cpu) => role.home = Some(cpu.parse().ok()?),
            ("start", time) => role.start_ns = duration_ns(time)?,
            _ => return None,
        }
    }
    if role.cpus != 0 {
        spec = spec.cpus((0..u8::BITS).filter(|cpu| role.cpus >> cpu & 1 == 1));
    }
    role.spec = (spec.budget_ns > 0).then_some(spec);
    Some(role)
}

/// Parses `0`, `0-1` or `0,2`, for the first eight CPUs.
fn mask(cpus: &str) -> Option<u8> {
    cpus.split(',').try_fold(0, |mask, part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        (from..=to).try_fold(mask, |mask, cpu| Some(mask | 1u8.checked_shl(cpu)?))
    })
}

fn duration_ns(time: &str) -> Option<u64> {
    let (number, unit) = match (time.strip_suffix("ms"), time.strip_suffix("us")) {
        (Some(number), _) => (number, MS),
        (_, Some(number)) => (number, 1000),
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}
