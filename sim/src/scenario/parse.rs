//! The parser: three passes over the lines of a file.
//!
//! The first reads the headers and the names, the second the threads, the third
//! what refers to finished threads. So a file may give its lines in any order,
//! and every reference is checked where it stands.

use std::collections::BTreeMap;

use super::error::{ScenarioError, one_of};
use super::lex::{Cursor, Read, Source, Word};
use super::limits::{CPUS_MAX, RATIO_MAX, THREADS_MAX, TIME_NS_MAX, WEIGHT_MAX, WEIGHT_MIN, WHOLE_PPM};
use super::program::{Builder, Names, Need, Reference, STEPS};
use super::thread::{new_context, thread};
use super::values::{
    cpu, decimal, duration, keyword, name, number, pairs, percent, seed, small, time_in_run,
};
use super::{
    Action, Barrier, Check, Class, ContextSpec, CostsName, Expect, Op, PolicyName, Scenario, SourceLine,
    Target, ThreadSpec, Timed, TopologySpec,
};

/// The words that start a line that is not a step.
const DIRECTIVES: [&str; 11] =
    ["title", "cpus", "topology", "for", "policy", "seed", "costs", "barrier", "thread", "at", "expect"];
const ACTIONS: [&str; 7] = ["weight", "class", "revoke", "reconfigure", "kill", "wake", "stall"];
const CHECKS: [&str; 4] = ["share", "ratio", "latency", "order"];

pub(super) fn parse(file: &str, text: &str) -> Read<Scenario> {
    let source = Source::new(file, text);
    let mut parser = Parser {
        scenario: Scenario::new(0),
        headers: BTreeMap::new(),
        threads: Names::default(),
        barriers: Names::default(),
        references: Vec::new(),
        room: THREADS_MAX,
        open: None,
    };
    let mut in_thread = false;
    for (word, cursor) in source.lines() {
        parser.declare(word, cursor, &mut in_thread)?;
    }
    if parser.scenario.duration_ns == 0 {
        let error = source.end().refuse("a line `for <duration>`").finding("end of file");
        return Err(error.with_note("every scenario says how long it runs, such as `for 1s`"));
    }
    for (word, cursor) in source.lines() {
        parser.define(word, cursor)?;
    }
    parser.close_thread(source.end())?;
    parser.check_references()?;
    for (word, cursor) in source.lines() {
        match word.text {
            "at" => parser.at(word, cursor)?,
            "expect" => parser.expect(word, cursor)?,
            _ => {}
        }
    }
    // Stable: what happens at one instant happens in the order of the lines.
    parser.scenario.timed.sort_by_key(|timed| timed.at_ns);
    Ok(parser.scenario)
}

pub(super) fn parse_bytes(file: &str, bytes: &[u8]) -> Read<Scenario> {
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return parse(file, text),
        Err(error) => error,
    };
    let valid = &bytes[..error.valid_up_to()];
    let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
    let before = valid.rsplit(|&byte| byte == b'\n').next().unwrap_or(valid);
    let column = 1 + String::from_utf8_lossy(before).chars().count();
    let text = String::from_utf8_lossy(bytes);
    let source = Source::new(file, &text);
    let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
    let refused = source.word("", line, column).refuse("UTF-8 text");
    Err(refused.finding(format!("byte 0x{byte:02x}")))
}

struct Parser<'a> {
    scenario: Scenario,
    /// The line of each header that was given.
    headers: BTreeMap<&'a str, u32>,
    threads: Names<'a>,
    barriers: Names<'a>,
    references: Vec<Reference<'a>>,
    /// How many threads may still start at boot.
    room: u32,
    /// The thread whose steps are being read.
    open: Option<(ThreadSpec, Builder<'a>)>,
}

impl<'a> Parser<'a> {
    /// First pass: headers, and the names of barriers and threads.
    fn declare(&mut self, word: Word<'a>, mut cursor: Cursor<'a>, in_thread: &mut bool) -> Read<()> {
        if *in_thread && STEPS.contains(&word.text) {
            return Ok(());
        }
        let was_in_thread = std::mem::replace(in_thread, word.text == "thread");
        match word.text {
            "at" | "expect" => return Ok(()),
            "thread" => {
                let named = cursor.need("a thread name")?;
                name(named, "a thread name")?;
                // The rest of the line waits for the second pass.
                return self.threads.add(named, "thread");
            }
            "barrier" => {
                let named = cursor.need("a barrier name")?;
                let line = SourceLine(word.line);
                let name = name(named, "a barrier name")?.to_owned();
                self.barriers.add(named, "barrier")?;
                let count = cursor.need("the number of parties")?;
                let parties = small(count, "a number of parties", 1..=THREADS_MAX)?;
                self.scenario.barriers.push(Barrier { name, line, parties });
            }
            header if DIRECTIVES.contains(&header) => {
                if let Some(line) = self.headers.insert(header, word.line) {
                    let error = word.refuse(format!("only one `{header}`"));
                    return Err(error.with_note(format!("it stands on line {line} already")));
                }
                self.header(word, &mut cursor)?;
            }
            _ => return Err(unknown_line(word, was_in_thread)),
        }
        cursor.finish()
    }

    fn header(&mut self, word: Word<'a>, cursor: &mut Cursor<'a>) -> Read<()> {
        let scenario = &mut self.scenario;
        match word.text {
            "title" => {
                let first = cursor.need("a title")?;
                let rest = std::iter::from_fn(|| cursor.take());
                let words: Vec<&str> = std::iter::once(first).chain(rest).map(|w| w.text).collect();
                scenario.title = words.join(" ");
            }
            "for" => {
                let word = cursor.need("a duration")?;
                scenario.duration_ns = duration(word, "a duration", 1..=TIME_NS_MAX)?;
            }
            "policy" => {
                let word = cursor.need("the name of a policy")?;
                scenario.policy = keyword(word, PolicyName::ALL, PolicyName::name)?;
            }
            "seed" => scenario.seed = seed(cursor.need("a seed")?)?,
            "costs" => {
                let word = cursor.need("the name of a cost model")?;
                scenario.costs = keyword(word, CostsName::ALL, CostsName::name)?;
            }
            _ => self.machine(word, cursor)?,
        }
        Ok(())
    }

    /// `cpus` and `topology`: two ways to say the same, so only one of them.
    fn machine(&mut self, word: Word<'a>, cursor: &mut Cursor<'a>) -> Read<()> {
        let other = if word.text == "cpus" { "topology" } else { "cpus" };
        if let Some(line) = self.headers.get(other) {
            let error = word.refuse("either `cpus` or `topology`");
            return Err(error.with_note(format!("`{other}` stands on line {line}")));
        }
        if word.text == "cpus" {
            let word = cursor.need("a number of CPUs")?;
            self.scenario.cpus = small(word, "a number of CPUs", 1..=CPUS_MAX)?;
            return Ok(());
        }
        let keys = ["sockets", "cores", "threads", "numa"];
        let first = cursor.peek();
        let (given, _) = pairs(cursor, &keys, None)?;
        let first = first.ok_or_else(|| cursor.refuse_end(&one_of(keys)))?;
        let mut sizes = [1; 4];
        for pair in &given {
            let size = small(pair.value, "a number", 1..=CPUS_MAX)?;
            keys.iter()
                .zip(&mut sizes)
                .filter(|(key, _)| **key == pair.key)
                .for_each(|(_, slot)| *slot = size);
        }
        let [sockets, cores, threads, numa] = sizes;
        let topology = TopologySpec { sockets, cores, threads, numa };
        if topology.cpus() > CPUS_MAX {
            let error = first.refuse(format!("at most {CPUS_MAX} CPUs in all"));
            return Err(error.with_note(format!("this topology has {}", topology.cpus())));
        }
        if let Some(pair) = given.iter().find(|pair| pair.key == "numa") {
            let all = sockets * cores;
            if !all.is_multiple_of(numa) {
                return Err(pair.value.refuse(format!("a number that divides the {all} cores")));
            }
        }
        self.scenario.cpus = topology.cpus();
        self.scenario.topology = Some(topology);
        Ok(())
    }

    /// Second pass: threads and their steps.
    fn define(&mut self, word: Word<'a>, mut cursor: Cursor<'a>) -> Read<()> {
        if let (true, Some((_, builder))) = (STEPS.contains(&word.text), &mut self.open) {
            let barriers = (&self.barriers, &self.scenario.barriers[..]);
            return builder.step(word, &mut cursor, &self.threads, barriers);
        }
        self.close_thread(word)?;
        if word.text == "thread" {
            let name = cursor.need("a thread name")?;
            let (spec, handler) = thread(name, &mut cursor, &self.scenario, &self.threads, self.room)?;
            self.references.extend(handler);
            self.room -= spec.count;
            self.open = Some((spec, Builder::default()));
        }
        Ok(())
    }

    /// Ends the open thread, if any; `at` is what ends it.
    fn close_thread(&mut self, at: Word<'a>) -> Read<()> {
        let Some((mut spec, builder)) = self.open.take() else { return Ok(()) };
        let (program, references) = builder.finish(at)?;
        spec.program = program;
        self.references.extend(references);
        self.scenario.threads.push(spec);
        Ok(())
    }

    /// Whether the threads that steps name can do what the steps ask.
    fn check_references(&self) -> Read<()> {
        for Reference { word, thread, need } in &self.references {
            let spec = &self.scenario.threads[*thread];
            let (met, expected) = match need {
                Need::Receives => (spec.program.contains(&Op::Receive), "a thread that receives"),
                Need::Template => (spec.template, "a template"),
            };
            if !met {
                let SourceLine(line) = spec.line;
                let lacks = if *need == Need::Template { "no `template`" } else { "no `receive`" };
                let note = format!("`{}` on line {line} has {lacks}", spec.name);
                return Err(word.refuse(expected).with_note(note));
            }
        }
        Ok(())
    }

    /// Third pass: what happens from outside.
    fn at(&mut self, word: Word<'a>, mut cursor: Cursor<'a>) -> Read<()> {
        let when = cursor.need("a time")?;
        let at_ns = time_in_run(when, "a time", self.scenario.duration_ns)?;
        let verb = cursor.need(&one_of(ACTIONS))?;
        let action = match verb.text {
            "weight" => {
                let target = self.target(&mut cursor)?;
                let word = cursor.need("a weight")?;
                Action::Weight(target, small(word, "a weight", WEIGHT_MIN..=WEIGHT_MAX)?)
            }
            "class" => {
                let target = self.target(&mut cursor)?;
                Action::Class(target, keyword(cursor.need("a class")?, Class::ALL, Class::name)?)
            }
            "revoke" => Action::Revoke(self.bound_target(&mut cursor)?.0),
            "reconfigure" => {
                let (target, old) = self.bound_target(&mut cursor)?;
                let new = new_context(&mut cursor)?;
                Action::Reconfigure(target, ContextSpec { handler: old.handler, ..new })
            }
            "kill" => Action::Kill(self.target(&mut cursor)?),
            "wake" => Action::Wake(self.target(&mut cursor)?),
            "stall" => {
                let word = cursor.need("`cpu=<number>`")?;
                let cpu = self.cpu_pair(word)?;
                let word = cursor.need("a duration")?;
                Action::Stall { cpu, duration_ns: duration(word, "a duration", 1..=TIME_NS_MAX)? }
            }
            _ => return Err(verb.refuse(one_of(ACTIONS)).suggest(verb.text, ACTIONS)),
        };
        cursor.finish()?;
        self.scenario.timed.push(Timed { at_ns, line: SourceLine(word.line), action });
        Ok(())
    }

    /// Third pass: what should come out.
    fn expect(&mut self, word: Word<'a>, mut cursor: Cursor<'a>) -> Read<()> {
        let verb = cursor.need(&one_of(CHECKS))?;
        let check = match verb.text {
            "share" => {
                let target = self.target(&mut cursor)?;
                let most = u64::from(self.scenario.cpus);
                let range = format!("from 0% to {}%, with at most 4 decimals", most * 100);
                let expected = format!("a share of one CPU such as `50%`, {range}");
                let word = cursor.need(&expected)?;
                let share_ppm = percent(word, &expected, 0..=most * WHOLE_PPM)?;
                Check::Share { target, share_ppm, tolerance_ppm: tolerance(&mut cursor)? }
            }
            "ratio" => {
                let (left, right) = (self.target(&mut cursor)?, self.target(&mut cursor)?);
                let expected = "a ratio such as `2.0`, above 0, with at most 6 decimals";
                let word = cursor.need(expected)?;
                let ratio_ppm = decimal(word, expected, 6, 1..=RATIO_MAX * WHOLE_PPM)?;
                Check::Ratio { left, right, ratio_ppm, tolerance_ppm: tolerance(&mut cursor)? }
            }
            "latency" => {
                let target = self.target(&mut cursor)?;
                let percentile_ppm = percentile(&mut cursor)?;
                let sign = cursor.need("`<=`")?;
                if sign.text != "<=" {
                    return Err(sign.refuse("`<=`"));
                }
                let word = cursor.need("a duration")?;
                let limit_ns = duration(word, "a duration", 0..=TIME_NS_MAX)?;
                Check::Latency { target, percentile_ppm, limit_ns }
            }
            "order" => {
                let chosen = cursor.peek().filter(|word| word.text.contains('='));
                let cpu = chosen.map(|word| self.cpu_pair(word)).transpose()?;
                if cpu.is_some() {
                    cursor.take();
                }
                let mut runs = vec![self.target(&mut cursor)?];
                while cursor.peek().is_some() {
                    runs.push(self.target(&mut cursor)?);
                }
                Check::Order { cpu: cpu.unwrap_or(0), runs }
            }
            _ => return Err(verb.refuse(one_of(CHECKS)).suggest(verb.text, CHECKS)),
        };
        cursor.finish()?;
        self.scenario.expects.push(Expect { line: SourceLine(word.line), check });
        Ok(())
    }

    /// As `target`, of a thread with a context.
    fn bound_target(&self, cursor: &mut Cursor<'a>) -> Read<(Target, ContextSpec)> {
        let word = cursor.peek();
        let target = self.target(cursor)?;
        match (self.scenario.threads[target.thread].context, word) {
            (None, Some(word)) => Err(word.refuse("a thread with a `budget=`")),
            (context, _) => {
                context.map(|context| (target, context)).ok_or_else(|| cursor.refuse_end("a thread"))
            }
        }
    }

    /// `hog` or `hog#1`.
    fn target(&self, cursor: &mut Cursor<'a>) -> Read<Target> {
        let word = cursor.need("the name of a thread")?;
        let Some((name, instance)) = word.split("#") else {
            return Ok(Target { thread: self.threads.find(word, "thread")?, instance: None });
        };
        let thread = self.threads.find(name, "thread")?;
        let spec = &self.scenario.threads[thread];
        // How many instances a template will have is known only when it runs.
        let count = if spec.template { THREADS_MAX } else { spec.count };
        let what = format!("an instance of `{}`", spec.name);
        let instance = number(instance, &what, 0..=u64::from(count - 1))?;
        Ok(Target { thread, instance: u32::try_from(instance).ok() })
    }

    /// `cpu=1`.
    fn cpu_pair(&self, word: Word<'a>) -> Read<u32> {
        match word.split("=").filter(|(key, _)| key.text == "cpu") {
            Some((_, value)) => cpu(value, self.scenario.cpus),
            None => Err(word.refuse("`cpu=<number>`")),
        }
    }
}

/// `+-5%`, relative to the value before it.
fn tolerance(cursor: &mut Cursor<'_>) -> Read<u64> {
    let expected = "a tolerance such as `+-5%`, from 0% to 100%";
    let word = cursor.need(expected)?;
    let sign = ["+-", "±"].into_iter().find(|sign| word.text.starts_with(sign));
    let sign = sign.ok_or_else(|| word.refuse(expected))?;
    percent(word.skip(sign.len()), expected, 0..=WHOLE_PPM)
}

/// `p99`, `p99.9` or `max`.
fn percentile(cursor: &mut Cursor<'_>) -> Read<u64> {
    let expected = "a percentile such as `p50`, `p99.9` or `max`";
    let word = cursor.need(expected)?;
    if word.text == "max" {
        return Ok(WHOLE_PPM);
    }
    if !word.text.starts_with('p') {
        return Err(word.refuse(expected));
    }
    decimal(word.skip(1), expected, 4, 1..=WHOLE_PPM)
}

fn unknown_line(word: Word<'_>, in_thread: bool) -> ScenarioError {
    let expected = match in_thread {
        true => format!("a directive or {}", one_of(STEPS)),
        false => one_of(DIRECTIVES),
    };
    let error = word.refuse(expected);
    if STEPS.contains(&word.text) {
        let note = format!("`{}` is a step: it belongs below a `thread` line", word.text);
        return error.with_note(note);
    }
    error.suggest(word.text, DIRECTIVES.into_iter().chain(STEPS))
}
