//! An event as three words: what a kernel keeps in its buffer and writes into a dump.

use crate::{Event, Kind};

impl Kind {
    /// Its number in [`Kind::NAMES`], which stands for it in dumps: a number is never reused for something else.
    #[must_use]
    pub const fn tag(self) -> u8 {
        match self {
            Self::Run { .. } => 0,
            Self::Idle => 1,
            Self::System => 2,
            Self::Spawn { .. } => 3,
            Self::Wake { .. } => 4,
            Self::Preempt { .. } => 5,
            Self::Yield { .. } => 6,
            Self::Block { .. } => 7,
            Self::Exit { .. } => 8,
            Self::Steal { .. } => 9,
            Self::Balance { .. } => 10,
            Self::Place { .. } => 11,
            Self::Throttle { .. } => 12,
            Self::Refill { .. } => 13,
            Self::Deplete { .. } => 14,
            Self::Fault { .. } => 15,
            Self::Demote { .. } => 16,
            Self::Revoke { .. } => 17,
            Self::Handoff { .. } => 18,
            Self::Ipi { .. } => 19,
            Self::Weight { .. } => 20,
            Self::Class { .. } => 21,
            Self::Stall => 22,
            Self::LostTick => 23,
            Self::Keep { .. } => 24,
            Self::Timer => 25,
            Self::Charge => 26,
            Self::Forgive { .. } => 27,
            Self::Affinity { .. } => 28,
            Self::Debt { .. } => 29,
            Self::Spec { .. } => 30,
            Self::Admit { .. } => 31,
            Self::Readmit { .. } => 32,
            Self::Retire { .. } => 33,
            Self::Host { .. } => 34,
            Self::Unhost { .. } => 35,
            Self::Bind { .. } => 36,
            Self::Unbind { .. } => 37,
            Self::Lend { .. } => 38,
            Self::Behind { .. } => 39,
            Self::ContextOnly { .. } => 40,
            Self::Evict { .. } => 41,
        }
    }

    /// What it holds: a small number, the thread (or the context, if it names no thread), another number.
    const fn fields(self) -> (u16, u32, u32) {
        match self {
            Self::Steal { thread, from } | Self::Balance { thread, from } | Self::Place { thread, from } => {
                (from, thread, 0)
            }
            Self::Ipi { to } => (to, 0, 0),
            Self::Weight { thread, weight } => (0, thread, weight),
            Self::Class { thread, class } => (class as u16, thread, 0),
            Self::Forgive { high, low } => (0, high, low),
            Self::Affinity { thread, cpus, part } => (part, thread, cpus),
            Self::Debt { thread, low, high } => (high, thread, low),
            Self::Spec { part, context, value } => (part, context, value),
            Self::Bind { thread, context } => (0, thread, context),
            Self::ContextOnly { thread, only: flag } | Self::Evict { thread, lost: flag } => {
                (flag as u16, thread, 0)
            }
            other => match (other.thread(), other.context()) {
                (Some(named), _) | (None, Some(named)) => (0, named, 0),
                (None, None) => (0, 0, 0),
            },
        }
    }

    const fn from_fields(tag: u8, (small, thread, value): (u16, u32, u32)) -> Option<Self> {
        Some(match tag {
            0 => Self::Run { thread },
            1 => Self::Idle,
            2 => Self::System,
            3 => Self::Spawn { thread },
            4 => Self::Wake { thread },
            5 => Self::Preempt { thread },
            6 => Self::Yield { thread },
            7 => Self::Block { thread },
            8 => Self::Exit { thread },
            9 => Self::Steal { thread, from: small },
            10 => Self::Balance { thread, from: small },
            11 => Self::Place { thread, from: small },
            12 => Self::Throttle { thread },
            13 => Self::Refill { thread },
            14 => Self::Deplete { thread },
            15 => Self::Fault { thread },
            16 => Self::Demote { thread },
            17 => Self::Revoke { thread },
            18 => Self::Handoff { thread },
            19 => Self::Ipi { to: small },
            20 => Self::Weight { thread, weight: value },
            21 => Self::Class { thread, class: small as u8 },
            22 => Self::Stall,
            23 => Self::LostTick,
            24 => Self::Keep { thread },
            25 => Self::Timer,
            26 => Self::Charge,
            27 => Self::Forgive { high: thread, low: value },
            28 => Self::Affinity { thread, cpus: value, part: small },
            29 => Self::Debt { thread, low: value, high: small },
            30 => Self::Spec { part: small, context: thread, value },
            31 => Self::Admit { context: thread },
            32 => Self::Readmit { context: thread },
            33 => Self::Retire { context: thread },
            34 => Self::Host { context: thread },
            35 => Self::Unhost { context: thread },
            36 => Self::Bind { thread, context: value },
            37 => Self::Unbind { thread },
            38 => Self::Lend { thread },
            39 => Self::Behind { thread },
            40 => Self::ContextOnly { thread, only: small != 0 },
            41 => Self::Evict { thread, lost: small != 0 },
            _ => return None,
        })
    }
}

impl Event {
    /// As three words: the time; CPU, tag and small number; thread and value.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        let (small, thread, value) = self.kind.fields();
        let second = self.cpu as u64 | (self.kind.tag() as u64) << 16 | (small as u64) << 32;
        [self.time_ns, second, thread as u64 | (value as u64) << 32]
    }

    /// From three words. `None` unless they are what [`Event::to_words`] gives for the event: no bit is left over.
    #[must_use]
    pub fn from_words(words: [u64; 3]) -> Option<Self> {
        let [time_ns, second, third] = words;
        let fields = ((second >> 32) as u16, third as u32, (third >> 32) as u32);
        let kind = Kind::from_fields((second >> 16) as u8, fields)?;
        let event = Self { time_ns, cpu: second as u16, kind };
        (event.to_words() == words).then_some(event)
    }
}
