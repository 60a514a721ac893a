//! Programs: from the step lines below a `thread` line to flat, checked steps.

use std::collections::BTreeMap;

use super::lex::{Cursor, Read, Word};
use super::limits::{INSTANT_STEPS_MAX, LOOP_DEPTH_MAX, THREADS_MAX};
use super::values::{small, span};
use super::{Barrier, Op};

/// The words that start a step.
pub(super) const STEPS: [&str; 13] = [
    "run", "sleep", "loop", "end", "call", "receive", "reply", "release", "fork", "join", "yield", "barrier",
    "exit",
];

/// The names of one kind, and their indices.
#[derive(Default)]
pub(super) struct Names<'a>(BTreeMap<&'a str, (usize, u32)>);

impl<'a> Names<'a> {
    /// Adds the next name; refuses one that exists.
    pub(super) fn add(&mut self, word: Word<'a>, what: &str) -> Read<()> {
        let index = self.0.len();
        if let Some((_, line)) = self.0.get(word.text) {
            let note = format!("`{}` stands on line {line} already", word.text);
            return Err(word.refuse(format!("a new {what} name")).with_note(note));
        }
        self.0.insert(word.text, (index, word.line));
        Ok(())
    }

    /// The index of a name; refuses an unknown one.
    pub(super) fn find(&self, word: Word<'_>, what: &str) -> Read<usize> {
        let found = self.0.get(word.text).map(|&(index, _)| index);
        found.ok_or_else(|| {
            let names = self.0.keys().copied();
            word.refuse(format!("the name of a {what}")).suggest(word.text, names)
        })
    }
}

/// What a step needs from the thread it names, which may be declared later.
pub(super) struct Reference<'a> {
    pub(super) word: Word<'a>,
    pub(super) thread: usize,
    pub(super) need: Need,
}

/// What a named thread must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Receives,
    Template,
}

/// A program being read.
#[derive(Default)]
pub(super) struct Builder<'a> {
    ops: Vec<Op>,
    open: Vec<Loop<'a>>,
    receives: bool,
    pub(super) references: Vec<Reference<'a>>,
}

/// A loop whose `end` has not come yet.
struct Loop<'a> {
    word: Word<'a>,
    start: usize,
    times: Option<u32>,
    body: Body,
}

/// What is known of a loop's body, to refuse loops that hang the clock.
#[derive(Default)]
struct Body {
    /// A step that takes time, waits for another thread or leaves the loop.
    passes: bool,
    forks: bool,
    joins: bool,
    /// Steps for one pass over the body.
    steps: u64,
}

impl Body {
    /// A `join` waits only if there is a child to wait for.
    fn takes_time(&self) -> bool {
        self.passes || (self.forks && self.joins)
    }
}

impl<'a> Builder<'a> {
    /// Reads one step line.
    pub(super) fn step(
        &mut self,
        verb: Word<'a>,
        cursor: &mut Cursor<'a>,
        threads: &Names<'a>,
        barriers: (&Names<'a>, &[Barrier]),
    ) -> Read<()> {
        match verb.text {
            "loop" => self.open_loop(verb, cursor)?,
            "end" => self.close_loop(verb)?,
            _ => {
                let op = self.plain(verb, cursor, threads, barriers.0)?;
                self.push(op, barriers.1);
            }
        }
        cursor.finish()
    }

    /// The finished program; `at` is where it ended.
    pub(super) fn finish(self, at: Word<'_>) -> Read<(Vec<Op>, Vec<Reference<'a>>)> {
        match self.open.last() {
            None => Ok((self.ops, self.references)),
            Some(open) => {
                let error = at.refuse("`end`");
                let error = if at.text.is_empty() { error.finding("end of file") } else { error };
                Err(error.with_note(format!("the loop on line {} is still open", open.word.line)))
            }
        }
    }

    /// A step that is not part of a loop.
    fn plain(
        &mut self,
        verb: Word<'a>,
        cursor: &mut Cursor<'a>,
        threads: &Names<'a>,
        barriers: &Names<'a>,
    ) -> Read<Op> {
        Ok(match verb.text {
            "run" => {
                let word = cursor.need("a duration or `forever`")?;
                if word.text == "forever" { Op::RunForever } else { Op::Run(span(word)?) }
            }
            "sleep" => Op::Sleep(span(cursor.need("a duration")?)?),
            "call" => Op::Call(self.refer(cursor, threads, Need::Receives)?),
            "receive" => {
                self.receives = true;
                Op::Receive
            }
            "reply" if self.receives => Op::Reply,
            "release" if self.receives => Op::Release,
            "reply" | "release" => return Err(verb.refuse("a `receive` earlier in the thread")),
            "fork" => {
                let thread = self.refer(cursor, threads, Need::Template)?;
                let count = cursor.take().map(|word| small(word, "a count", 1..=THREADS_MAX));
                Op::Fork { thread, count: count.transpose()?.unwrap_or(1) }
            }
            "join" => Op::Join,
            "yield" => Op::Yield,
            "barrier" => {
                let index = barriers.find(cursor.need("the name of a barrier")?, "barrier");
                // A number after the name is a declaration in the wrong place.
                if let Some(word) = cursor.peek() {
                    let note = "barriers are declared outside a thread, such as before the first";
                    return Err(word.refuse("end of line").with_note(note));
                }
                Op::Barrier(index?)
            }
            "exit" => Op::Exit,
            _ => return Err(verb.refuse("a step")),
        })
    }

    /// Reads the name of a thread and remembers what it must be.
    fn refer(&mut self, cursor: &mut Cursor<'a>, threads: &Names<'a>, need: Need) -> Read<usize> {
        let word = cursor.need("the name of a thread")?;
        let thread = threads.find(word, "thread")?;
        self.references.push(Reference { word, thread, need });
        Ok(thread)
    }

    fn push(&mut self, op: Op, barriers: &[Barrier]) {
        if let Some(Loop { body, .. }) = self.open.last_mut() {
            body.steps = body.steps.saturating_add(1);
            body.forks |= matches!(op, Op::Fork { .. });
            body.joins |= matches!(op, Op::Join);
            body.passes |= match op {
                Op::Run(_) | Op::RunForever | Op::Sleep(_) | Op::Exit => true,
                Op::Call(_) | Op::Receive => true,
                Op::Barrier(index) => barriers[index].parties > 1,
                _ => false,
            };
        }
        self.ops.push(op);
    }

    fn open_loop(&mut self, verb: Word<'a>, cursor: &mut Cursor<'a>) -> Read<()> {
        if self.open.len() == LOOP_DEPTH_MAX {
            return Err(verb.refuse(format!("at most {LOOP_DEPTH_MAX} nested loops")));
        }
        let times = cursor.take().map(|word| small(word, "a count", 1..=u32::MAX)).transpose()?;
        let start = self.ops.len();
        self.open.push(Loop { word: verb, start, times, body: Body::default() });
        // The end is known only when it comes.
        self.ops.push(Op::LoopStart { times, end: start });
        Ok(())
    }

    fn close_loop(&mut self, verb: Word<'a>) -> Read<()> {
        let Some(Loop { word, start, times, body }) = self.open.pop() else {
            return Err(verb.refuse("a step or a directive").with_note("no loop is open"));
        };
        // The loop's own two steps count, so that an empty body counts as well.
        let steps = times.map_or(u64::MAX, |times| {
            body.steps.saturating_add(1).saturating_mul(times.into()).saturating_add(1)
        });
        if !body.takes_time() && steps > INSTANT_STEPS_MAX {
            let many = format!("more than {INSTANT_STEPS_MAX} steps at one instant");
            let note = format!("the loop takes {many}: add a `run` or a `sleep` to it");
            return Err(word.refuse("a loop whose body takes time").with_note(note));
        }
        let end = self.ops.len();
        self.ops[start] = Op::LoopStart { times, end };
        self.ops.push(Op::LoopEnd { start });
        if let Some(outer) = self.open.last_mut() {
            outer.body.passes |= body.takes_time();
            outer.body.forks |= body.forks;
            outer.body.joins |= body.joins;
            outer.body.steps = outer.body.steps.saturating_add(steps);
        }
        Ok(())
    }
}
