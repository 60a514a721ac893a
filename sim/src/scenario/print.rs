//! The printer: a scenario as canonical text that parses to an equal scenario.
//!
//! It never panics, even for a tree that no parser would make: an index that
//! leads nowhere prints as `?`, which the parser then refuses.

use std::fmt::{self, Display, Formatter};

use super::limits::{REFILLS_DEFAULT, WEIGHT_DEFAULT, WHOLE_PPM};
use super::{Action, Check, Class, ContextSpec, Op, Overrun, Scenario, Span, Target, ThreadSpec, UNITS};

/// The spaces of one level of indentation.
const INDENT: usize = 4;

impl Display for Scenario {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.title.is_empty() {
            let words: Vec<&str> = self.title.split_whitespace().collect();
            writeln!(f, "title  {}", words.join(" "))?;
        }
        match &self.topology {
            None => writeln!(f, "cpus   {}", self.cpus)?,
            Some(topology) => {
                let super::TopologySpec { sockets, cores, threads, numa } = topology;
                write!(f, "topology sockets={sockets} cores={cores} threads={threads}")?;
                writeln!(f, " numa={numa}")?;
            }
        }
        writeln!(f, "for    {}", duration_text(self.duration_ns))?;
        writeln!(f, "policy {}", self.policy)?;
        writeln!(f, "seed   {}", self.seed)?;
        writeln!(f, "costs  {}", self.costs)?;
        for (index, barrier) in self.barriers.iter().enumerate() {
            let gap = if index == 0 { "\n" } else { "" };
            writeln!(f, "{gap}barrier {} {}", barrier.name, barrier.parties)?;
        }
        for thread in &self.threads {
            writeln!(f)?;
            self.write_thread(f, thread)?;
        }
        for (index, timed) in self.timed.iter().enumerate() {
            let gap = if index == 0 { "\n" } else { "" };
            let action = self.describe_action(&timed.action);
            writeln!(f, "{gap}at {} {action}", duration_text(timed.at_ns))?;
        }
        for (index, expect) in self.expects.iter().enumerate() {
            let gap = if index == 0 { "\n" } else { "" };
            writeln!(f, "{gap}expect {}", self.describe_check(&expect.check))?;
        }
        Ok(())
    }
}

impl Scenario {
    /// A target as scenario files write it: `hog`, `hog#1`.
    #[must_use]
    pub fn describe_target(&self, target: Target) -> String {
        let name = self.name_of(target.thread);
        target.instance.map_or_else(|| name.to_owned(), |instance| format!("{name}#{instance}"))
    }

    /// An action as scenario files write it, after its time.
    #[must_use]
    pub fn describe_action(&self, action: &Action) -> String {
        let name = |target: &Target| self.describe_target(*target);
        match action {
            Action::Weight(target, weight) => format!("weight {} {weight}", name(target)),
            Action::Class(target, class) => format!("class {} {class}", name(target)),
            Action::Revoke(target) => format!("revoke {}", name(target)),
            Action::Reconfigure(target, context) => {
                format!("reconfigure {}{}", name(target), context_text(context))
            }
            Action::Kill(target) => format!("kill {}", name(target)),
            Action::Wake(target) => format!("wake {}", name(target)),
            Action::Stall { cpu, duration_ns } => {
                format!("stall cpu={cpu} {}", duration_text(*duration_ns))
            }
        }
    }

    /// A check as scenario files write it, without `expect`.
    #[must_use]
    pub fn describe_check(&self, check: &Check) -> String {
        let name = |target: &Target| self.describe_target(*target);
        match check {
            Check::Share { target, share_ppm, tolerance_ppm } => {
                let (share, tolerance) = (decimal(*share_ppm, 4), decimal(*tolerance_ppm, 4));
                format!("share {} {share}% +-{tolerance}%", name(target))
            }
            Check::Ratio { left, right, ratio_ppm, tolerance_ppm } => {
                let (ratio, tolerance) = (decimal(*ratio_ppm, 6), decimal(*tolerance_ppm, 4));
                format!("ratio {} {} {ratio} +-{tolerance}%", name(left), name(right))
            }
            Check::Latency { target, percentile_ppm, limit_ns } => {
                let percentile = match *percentile_ppm {
                    WHOLE_PPM => "max".to_owned(),
                    ppm => format!("p{}", decimal(ppm, 4)),
                };
                format!("latency {} {percentile} <= {}", name(target), duration_text(*limit_ns))
            }
            Check::Order { cpu, runs } => {
                let runs: Vec<String> = runs.iter().map(name).collect();
                format!("order cpu={cpu} {}", runs.join(" "))
            }
        }
    }

    fn name_of(&self, thread: usize) -> &str {
        self.threads.get(thread).map_or("?", |thread| &thread.name)
    }

    fn write_thread(&self, f: &mut Formatter<'_>, thread: &ThreadSpec) -> fmt::Result {
        write!(f, "thread {}", thread.name)?;
        if thread.template {
            write!(f, " template")?;
        } else if thread.count != 1 {
            write!(f, " count={}", thread.count)?;
        }
        if thread.weight != WEIGHT_DEFAULT {
            write!(f, " weight={}", thread.weight)?;
        }
        if thread.class != Class::default() {
            write!(f, " class={}", thread.class)?;
        }
        if let Some(cpus) = &thread.cpus {
            write!(f, " cpus={}", cpu_list(cpus))?;
        }
        if thread.start_ns != 0 {
            write!(f, " start={}", duration_text(thread.start_ns))?;
        }
        if let Some(home) = thread.home {
            write!(f, " home={home}")?;
        }
        if let Some(context) = &thread.context {
            write!(f, "{}", context_text(context))?;
            if let Some(handler) = context.handler {
                write!(f, " handler={}", self.name_of(handler))?;
            }
        }
        writeln!(f)?;
        let mut depth = 1;
        for op in &thread.program {
            if matches!(op, Op::LoopEnd { .. }) {
                depth = std::cmp::max(depth, 2) - 1;
            }
            writeln!(f, "{:indent$}{}", "", self.step(op), indent = depth * INDENT)?;
            if matches!(op, Op::LoopStart { .. }) {
                depth += 1;
            }
        }
        Ok(())
    }

    fn step(&self, op: &Op) -> String {
        match *op {
            Op::Run(span) => format!("run {}", span_text(span)),
            Op::RunForever => "run forever".into(),
            Op::Sleep(span) => format!("sleep {}", span_text(span)),
            Op::Call(thread) => format!("call {}", self.name_of(thread)),
            Op::Receive => "receive".into(),
            Op::Reply => "reply".into(),
            Op::Release => "release".into(),
            Op::Fork { thread, count: 1 } => format!("fork {}", self.name_of(thread)),
            Op::Fork { thread, count } => format!("fork {} {count}", self.name_of(thread)),
            Op::Join => "join".into(),
            Op::Yield => "yield".into(),
            Op::Barrier(index) => {
                let name = self.barriers.get(index).map_or("?", |barrier| &barrier.name);
                format!("barrier {name}")
            }
            Op::Exit => "exit".into(),
            Op::LoopStart { times: None, .. } => "loop".into(),
            Op::LoopStart { times: Some(times), .. } => format!("loop {times}"),
            Op::LoopEnd { .. } => "end".into(),
        }
    }
}

/// The parameters of a context, each after a space.
fn context_text(context: &ContextSpec) -> String {
    let (budget, period) = (duration_text(context.budget_ns), duration_text(context.period_ns));
    let mut text = format!(" budget={budget} period={period}");
    if context.deadline_ns != context.period_ns {
        text += &format!(" deadline={}", duration_text(context.deadline_ns));
    }
    if context.band != 0 {
        text += &format!(" band={}", context.band);
    }
    if context.overrun != Overrun::default() {
        text += &format!(" overrun={}", context.overrun);
    }
    if context.refills != REFILLS_DEFAULT {
        text += &format!(" refills={}", context.refills);
    }
    text
}

/// A time in the largest unit that keeps it a whole number: `1500us`.
#[must_use]
pub fn duration_text(ns: u64) -> String {
    let fits = |decimals: u32| ns != 0 && ns.is_multiple_of(10u64.pow(decimals));
    let unit = UNITS.iter().rev().find(|(_, decimals)| fits(*decimals));
    let (name, decimals) = unit.copied().unwrap_or(UNITS[0]);
    format!("{}{name}", ns / 10u64.pow(decimals))
}

fn span_text(span: Span) -> String {
    let (min, max) = (duration_text(span.min_ns), duration_text(span.max_ns));
    if span.min_ns == span.max_ns { min } else { format!("{min}..{max}") }
}

/// A scaled integer as a decimal without needless zeros.
fn decimal(value: u64, decimals: u32) -> String {
    let scale = 10u64.pow(decimals);
    let (whole, part) = (value / scale, value % scale);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:0width$}", width = decimals as usize);
    format!("{whole}.{}", part.trim_end_matches('0'))
}

/// Sorted CPUs as ranges: `0-1,3`.
fn cpu_list(cpus: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}
