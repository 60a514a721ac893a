//! The life of a thread (K-31): made, running, waiting, stopped, ending, ended, and the record used again.
//!
//! ```text
//!  63         32  31  30      12 11         8 7    6       5       4 3     0
//! | generation | live |    0    |  errands   | 0 |  reply  | woken | ends | stage |
//! ```
//! The state is one word, so that every reader sees one moment of it. It changes by [`Life::after`] alone, and in the kernel under the thread's
//! *wait* lock alone. The same lock guards the thread itself (the scheduler's entity) while it is in no queue and on no CPU. So nothing can come
//! between a look at the word and the action that follows: between "is it still this thread, and may it have a context" and the binding, or between
//! "is it about to end" and stopping it for lack of a context.
//!
//! `models/src/lives.rs` drives this very file from several CPUs, and visits every interleaving.

use crate::generation::SlotGeneration;

/// The stage of a thread's life, which also says where its entity of the scheduler is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Stage {
    /// The record has no thread.
    Free = 0,
    /// The thread has never run: its creator holds the entity.
    Made = 1,
    /// It runs, is queued, or is in transit to a queue.
    Running = 2,
    /// It is blocked until it is woken: the entity is under the *wait* lock, as in all stages that follow.
    Waiting = 3,
    /// It was taken off its CPU to be placed again, which happens as soon as it no longer uses its stack.
    SwitchingOut = 4,
    /// It could run, but lacks a context or a fault handler's reply.
    Stopped = 5,
    /// It never runs again.
    Ended = 6,
}

/// Why a thread is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StopReason {
    /// It runs on contexts only, and has none.
    Context,
    /// Its budget is spent, and its fault handler was asked.
    FaultReply,
}

/// What can happen to a thread. `runnable` says whether it could be queued as it is: it has a context, or needs none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The record gets a new thread.
    Reuse,
    /// The new thread is queued for the first time.
    Start,
    /// It wants to block.
    Block,
    /// It is taken off its CPU to be placed again.
    SwitchOut,
    /// It no longer uses its stack and is placed.
    Requeue {
        /// Whether it could be queued as it is.
        runnable: bool,
    },
    /// It is woken.
    Wake {
        /// Whether it could be queued as it is.
        runnable: bool,
    },
    /// The dispatcher took it off its CPU, or another CPU took it out of a queue, because it lacks something. The caller holds the entity.
    Evict(StopReason),
    /// It is about to be bound to a context, or lent one: may it be?
    Bind,
    /// It has got a context, or is about to: an earlier request to bind is void.
    GiveContext,
    /// A context is promised to it, and lies in the context's record until the thread fetches it, before it returns to user mode. If the promise is
    /// taken back before that, the thread stops without a context (`Some(true)`), goes on without one (`Some(false)`), or does what it did before
    /// (`None`).
    RequestBind(Option<bool>),
    /// It fetches the promised context; or another thread found, while this one was stopped, that there is nothing to fetch.
    Fetch,
    /// It is handed a loan, or gets back the context that it lent: it runs at once, on that.
    Take,
    /// Its context is lent: it does not return to user mode.
    Lend,
    /// Its context is not lent any more.
    Return,
    /// Its fault handler has answered.
    FaultReply,
    /// It must end: its process is killed.
    Kill,
    /// It begins to end, by itself or because it was killed. Comes before its last search for contexts that it has.
    Exit,
    /// From here on no reference finds it. Done under its ring's lock, too.
    Close,
    /// It leaves its stack for ever.
    End,
    /// Its resources are free, and the record can be used again.
    Reap,
}

/// What the kernel does after an event, under the same lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Nothing more.
    Nothing,
    /// Puts the entity under the *wait* lock.
    Park,
    /// Queues the entity.
    Run,
    /// Queues the entity, which needs no context from now on: the thread is about to end, or its request to bind said so.
    Free,
    /// Wakes it ([`Event::Wake`]), when no lock is held any more.
    Wake,
    /// Gives it the promised context, when no lock is held any more: it is stopped and cannot fetch that.
    Deliver,
    /// It does not block: it was woken before, or is about to end.
    Stay,
    /// It fetches the promised context first ([`Event::Fetch`]), and asks again.
    Fetch,
    /// It does what the request to bind said for the case that there is nothing to fetch: it stops without a context, or does not.
    Depend(Option<bool>),
}

/// Why an event cannot happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// There is no such thread any more, or the record has none.
    Ended,
    /// It is about to end: it gets no context, and waits for nothing.
    Ending,
    /// It is off the CPU: the context is given to it directly, without a request.
    Waits,
    /// It is not blocked.
    Runs,
    /// It is not stopped for its fault handler's reply.
    NotStopped,
    /// Not in this order: a bug of the caller.
    Order,
}

const STAGE: u64 = 0xf;
const ENDS: u64 = 1 << 4;
const WOKEN: u64 = 1 << 5;
const FAULT_REPLY: u64 = 1 << 6;
const BIND_REQUESTED: u64 = 1 << 8;
const LENT: u64 = 1 << 9;
const STOPS: u64 = 1 << 10;
const STAYS: u64 = 1 << 11;
const ERRANDS: u64 = BIND_REQUESTED | LENT | STOPS | STAYS;
const LIVE: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;

/// The state of a record at one moment: which thread it has, and in which stage of its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Life(u64);

impl Life {
    /// A record that was never used.
    pub const UNUSED: Life = Life(0);

    /// As it was stored.
    #[inline(always)]
    pub const fn from_word(word: u64) -> Life {
        Life(word)
    }

    /// To be stored.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The stage of its life.
    #[inline(always)]
    pub const fn stage(self) -> Stage {
        match self.0 & STAGE {
            1 => Stage::Made,
            2 => Stage::Running,
            3 => Stage::Waiting,
            4 => Stage::SwitchingOut,
            5 => Stage::Stopped,
            6 => Stage::Ended,
            _ => Stage::Free,
        }
    }

    /// The generation of the thread that is here, or was last.
    #[inline(always)]
    pub const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// As [`Life::generation`], if that thread can be found; 0 if not.
    #[inline(always)]
    pub const fn live_generation(self) -> u32 {
        if self.0 & LIVE == 0 { 0 } else { self.generation() }
    }

    /// Whether the thread of this generation is here and can be found. No thread has generation 0.
    #[inline(always)]
    pub const fn names(self, generation: u32) -> bool {
        self.0 >> (GENERATION_SHIFT - 1) == (generation as u64) << 1 | 1
    }

    /// Whether it fetches what is promised to the thread of this generation. It does not if it is another thread, or is about to end: then it must
    /// not have to wait for budget, and its killer may have searched already for the contexts that it has.
    #[inline(always)]
    pub const fn fetches(self, generation: u32) -> bool {
        self.names(generation) && !self.is_ending()
    }

    /// Whether it is about to end.
    #[inline(always)]
    pub const fn is_ending(self) -> bool {
        self.0 & ENDS != 0
    }

    /// Whether it has something to do before it returns to user mode.
    #[inline(always)]
    pub const fn has_errands(self) -> bool {
        self.0 & ERRANDS != 0
    }

    /// Whether a context is promised to it, and nothing keeps it from fetching that.
    pub const fn is_bind_requested_only(self) -> bool {
        self.0 & ERRANDS == BIND_REQUESTED
    }

    /// Whether its context is lent.
    pub const fn has_lent(self) -> bool {
        self.0 & LENT != 0
    }

    /// Whether it is blocked or stopped.
    pub const fn waits(self) -> bool {
        matches!(self.stage(), Stage::Waiting | Stage::Stopped)
    }

    /// Whether the entity is under the *wait* lock.
    pub const fn is_parked(self) -> bool {
        matches!(self.stage(), Stage::Waiting | Stage::SwitchingOut | Stage::Stopped | Stage::Ended)
    }

    #[inline(always)]
    const fn at(self, stage: Stage) -> Life {
        Life(self.0 & !STAGE | stage as u64)
    }

    #[inline(always)]
    const fn with(self, bits: u64) -> Life {
        Life(self.0 | bits)
    }

    #[inline(always)]
    const fn without(self, bits: u64) -> Life {
        Life(self.0 & !bits)
    }

    /// Queues it, unless it needs a context and has none; a thread that is about to end needs none.
    #[inline(always)]
    const fn runs_if(self, runnable: bool) -> (Life, Action) {
        if self.0 & ENDS != 0 {
            (self.at(Stage::Running), Action::Free)
        } else if runnable {
            (self.at(Stage::Running), Action::Run)
        } else {
            (self.at(Stage::Stopped), Action::Park)
        }
    }

    /// The state after an event, and what the kernel has to do.
    #[inline(always)]
    pub const fn after(self, event: Event) -> Result<(Life, Action), Refused> {
        use Stage::*;
        // The events of every wait, with one comparison each.
        match event {
            Event::Block if self.0 & (STAGE | ENDS | WOKEN | BIND_REQUESTED) == Running as u64 => {
                return Ok((self.at(Waiting), Action::Park));
            }
            Event::Wake { runnable: true } if self.0 & (STAGE | ENDS) == Waiting as u64 => {
                return Ok((self.at(Running), Action::Run));
            }
            Event::Take if self.0 & STAGE == Waiting as u64 => return Ok((self.at(Running), Action::Run)),
            _ => {}
        }
        let stage = self.stage();
        Ok(match event {
            Event::Block => match stage {
                Running if self.0 & (ENDS | WOKEN) != 0 => (self.without(WOKEN), Action::Stay),
                // If it blocked now and were woken without a context that it needs, it would be stopped although one is promised to it.
                Running => (self, Action::Fetch),
                _ => return Err(Refused::Order),
            },
            Event::Wake { runnable } => match stage {
                Waiting => self.runs_if(runnable),
                Running | SwitchingOut | Made => (self.with(WOKEN), Action::Nothing),
                // It goes on when it gets what it lacks; until then the wake-up is noted as if it ran.
                Stopped => (self.with(WOKEN), Action::Nothing),
                Free | Ended => return Err(Refused::Ended),
            },
            Event::Take => match stage {
                Waiting => (self.at(Running), Action::Run),
                Stopped if self.0 & FAULT_REPLY == 0 => (self.at(Running), Action::Run),
                Free | Ended => return Err(Refused::Ended),
                _ => return Err(Refused::Runs),
            },
            Event::Bind
            | Event::GiveContext
            | Event::RequestBind(_)
            | Event::Fetch
            | Event::Lend
            | Event::Return
            | Event::FaultReply => return self.after_context(event),
            _ => return self.after_step(event),
        })
    }

    /// [`Life::after`] what has to do with contexts.
    #[inline]
    const fn after_context(self, event: Event) -> Result<(Life, Action), Refused> {
        use Stage::*;
        let stage = self.stage();
        Ok(match event {
            Event::Bind => match stage {
                Free | Ended => return Err(Refused::Ended),
                _ if self.0 & LIVE == 0 => return Err(Refused::Ended),
                _ if self.0 & ENDS != 0 => return Err(Refused::Ending),
                _ => (self, Action::Nothing),
            },
            Event::GiveContext => match stage {
                _ if self.0 & ENDS != 0 => return Err(Refused::Ending),
                Stopped => {
                    (self.at(Waiting).without(FAULT_REPLY | STOPS | STAYS | BIND_REQUESTED), Action::Wake)
                }
                Made | Running | Waiting | SwitchingOut => {
                    (self.without(STOPS | STAYS | BIND_REQUESTED), Action::Nothing)
                }
                Free | Ended => return Err(Refused::Ended),
            },
            Event::RequestBind(without) => match stage {
                _ if self.0 & ENDS != 0 => return Err(Refused::Ending),
                Made | Running => {
                    let without = match without {
                        None => 0,
                        Some(true) => STOPS,
                        Some(false) => STAYS,
                    };
                    (self.without(STOPS | STAYS).with(BIND_REQUESTED | without), Action::Nothing)
                }
                Waiting | SwitchingOut | Stopped => return Err(Refused::Waits),
                Free | Ended => return Err(Refused::Ended),
            },
            Event::Fetch => match stage {
                Running => {
                    let without = match (self.0 & STOPS != 0, self.0 & STAYS != 0) {
                        (false, false) => None,
                        (stops, _) => Some(stops),
                    };
                    (self.without(BIND_REQUESTED | STOPS | STAYS), Action::Depend(without))
                }
                // It was stopped meanwhile, and there is nothing to fetch any more.
                Stopped if self.0 & (FAULT_REPLY | STAYS) == STAYS => {
                    (self.at(Running).without(BIND_REQUESTED | STOPS | STAYS), Action::Free)
                }
                Stopped => (self.without(BIND_REQUESTED | STOPS | STAYS), Action::Nothing),
                _ => return Err(Refused::Order),
            },
            Event::Lend => match stage {
                Free | Ended => return Err(Refused::Ended),
                _ => (self.with(LENT), Action::Nothing),
            },
            Event::Return => (self.without(LENT), Action::Nothing),
            Event::FaultReply => match stage {
                Stopped if self.0 & FAULT_REPLY != 0 => (self.at(Waiting).without(FAULT_REPLY), Action::Wake),
                _ => return Err(Refused::NotStopped),
            },
            _ => return Err(Refused::Order),
        })
    }

    /// [`Life::after`] a step from one stage to another.
    #[inline]
    const fn after_step(self, event: Event) -> Result<(Life, Action), Refused> {
        use Stage::*;
        let stage = self.stage();
        Ok(match event {
            Event::Reuse => match stage {
                Free => {
                    let next = match SlotGeneration::from_raw(self.generation()) {
                        Some(last) => last.next(),
                        None => SlotGeneration::FIRST,
                    };
                    let word = (next.get() as u64) << GENERATION_SHIFT | LIVE | Made as u64;
                    (Life(word), Action::Nothing)
                }
                _ => return Err(Refused::Order),
            },
            Event::Start => match stage {
                Made => (self.at(Running), Action::Run),
                _ => return Err(Refused::Order),
            },
            Event::SwitchOut => match stage {
                Running if self.0 & (ENDS | BIND_REQUESTED) == BIND_REQUESTED => (self, Action::Fetch),
                Running => (self.at(SwitchingOut), Action::Park),
                _ => return Err(Refused::Order),
            },
            Event::Requeue { runnable } => match stage {
                SwitchingOut => self.runs_if(runnable),
                _ => return Err(Refused::Order),
            },
            Event::Evict(want) => match stage {
                // A thread that is about to end needs nothing, so it is not stopped.
                Running if self.0 & ENDS != 0 => (self, Action::Free),
                Running => match want {
                    StopReason::FaultReply => (self.at(Stopped).with(FAULT_REPLY), Action::Park),
                    StopReason::Context if self.0 & BIND_REQUESTED != 0 => {
                        (self.at(Stopped), Action::Deliver)
                    }
                    StopReason::Context => (self.at(Stopped), Action::Park),
                },
                _ => return Err(Refused::Order),
            },
            Event::Kill => match stage {
                Free | Ended => return Err(Refused::Ended),
                _ if self.0 & LIVE == 0 => return Err(Refused::Ended),
                Waiting | Stopped => (self.at(Running).without(FAULT_REPLY).with(ENDS), Action::Free),
                Made | Running | SwitchingOut => (self.with(ENDS), Action::Nothing),
            },
            Event::Exit => match stage {
                Running => (self.with(ENDS), Action::Nothing),
                _ => return Err(Refused::Order),
            },
            Event::Close => match stage {
                Running if self.0 & ENDS != 0 => (self.without(LIVE | ERRANDS), Action::Nothing),
                // It never ran, and never will.
                Made => (self.at(Ended).without(LIVE | ERRANDS), Action::Nothing),
                _ => return Err(Refused::Order),
            },
            Event::End => match stage {
                Running if self.0 & (ENDS | LIVE) == ENDS => (self.at(Ended), Action::Park),
                _ => return Err(Refused::Order),
            },
            Event::Reap => match stage {
                Ended if self.0 & LIVE == 0 => {
                    (Life(self.0 >> GENERATION_SHIFT << GENERATION_SHIFT), Action::Nothing)
                }
                _ => return Err(Refused::Order),
            },
            _ => return Err(Refused::Order),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn events() -> Vec<Event> {
        let mut all = vec![
            Event::Start,
            Event::Block,
            Event::SwitchOut,
            Event::Evict(StopReason::Context),
            Event::Evict(StopReason::FaultReply),
            Event::Bind,
            Event::GiveContext,
            Event::RequestBind(None),
            Event::RequestBind(Some(true)),
            Event::RequestBind(Some(false)),
            Event::Fetch,
            Event::Take,
            Event::Lend,
            Event::Return,
            Event::FaultReply,
            Event::Kill,
            Event::Exit,
            Event::Close,
            Event::End,
            Event::Reap,
        ];
        for runnable in [false, true] {
            all.extend([Event::Requeue { runnable }, Event::Wake { runnable }]);
        }
        all
    }

    /// Every state that the first thread of a record can have.
    fn reachable() -> Vec<Life> {
        let (made, _) = Life::UNUSED.after(Event::Reuse).unwrap();
        let mut seen = vec![made];
        let mut at = 0;
        while at < seen.len() {
            for event in events() {
                if let Ok((life, _)) = seen[at].after(event)
                    && !seen.contains(&life)
                {
                    seen.push(life);
                }
            }
            at += 1;
        }
        seen
    }

    /// K-31: what holds in every state, whatever happens next.
    #[test]
    fn k_31_what_holds_in_every_life() {
        let lives = reachable();
        assert!(lives.len() > 100, "{} moments", lives.len());
        for life in &lives {
            let stage = life.stage();
            let waits = matches!(stage, Stage::Waiting | Stage::Stopped);
            assert!(!(waits && life.is_ending()), "one that is to end waits: {life:?}");
            assert!(
                life.0 & FAULT_REPLY == 0 || stage == Stage::Stopped,
                "a reply on one that runs: {life:?}"
            );
            assert_eq!(life.names(1), life.live_generation() == 1);
            assert!(!life.names(0) && !life.names(2));
            for event in events() {
                let Ok((next, action)) = life.after(event) else { continue };
                assert_eq!(next.generation(), 1, "{event:?} of {life:?}");
                let runs = matches!(action, Action::Run | Action::Free);
                assert!(!runs || next.stage() == Stage::Running, "{event:?} of {life:?}");
                let parks = matches!(action, Action::Park | Action::Deliver);
                assert!(!parks || next.is_parked(), "{event:?} of {life:?}");
                // Only closing makes a thread impossible to find, and a thread that is about to end stays so until it has ended.
                assert!(next.names(1) || !life.names(1) || event == Event::Close, "{event:?} of {life:?}");
                assert!(
                    next.is_ending() || !life.is_ending() || stage == Stage::Ended,
                    "{event:?} of {life:?}"
                );
            }
        }
    }

    /// K-31: a thread that is about to end is not bound, asked to bind or given a context; and a kill leaves no thread waiting.
    #[test]
    fn k_31_who_ends_gets_nothing_and_waits_for_nothing() {
        for life in reachable().into_iter().filter(|life| life.is_ending() && life.names(1)) {
            for event in
                [Event::Bind, Event::GiveContext, Event::RequestBind(Some(true)), Event::RequestBind(None)]
            {
                assert_eq!(life.after(event), Err(Refused::Ending), "{event:?} of {life:?}");
            }
            if life.stage() == Stage::Running {
                assert_eq!(life.after(Event::Block).unwrap().1, Action::Stay);
                assert_eq!(life.after(Event::Evict(StopReason::Context)).unwrap().1, Action::Free);
            }
        }
        for life in reachable().into_iter().filter(|life| life.waits()) {
            assert_eq!(life.after(Event::Kill).unwrap().1, Action::Free, "{life:?}");
        }
    }

    /// K-31: a whole life, step by step; and none of the last steps can come before its time.
    #[test]
    fn k_31_a_life_from_its_beginning_to_its_end() {
        let last = [Event::Exit, Event::Close, Event::End, Event::Reap];
        let mut life = Life::UNUSED.after(Event::Reuse).unwrap().0.after(Event::Start).unwrap().0;
        for (at, step) in last.into_iter().enumerate() {
            for early in &last[at + 1..] {
                assert_eq!(life.after(*early), Err(Refused::Order), "{early:?} of {life:?}");
            }
            life = life.after(step).unwrap().0;
        }
        assert_eq!((life.stage(), life.generation(), life.live_generation()), (Stage::Free, 1, 0));
    }

    /// K-05, K-31: the next thread of a record has another generation, and inherits nothing from the last one.
    #[test]
    fn k_31_a_record_that_is_used_again_is_new() {
        let ended: Vec<_> = reachable().into_iter().filter_map(|life| life.after(Event::Reap).ok()).collect();
        assert!(!ended.is_empty());
        for (free, _) in ended {
            let (next, _) = free.after(Event::Reuse).unwrap();
            assert!(next.names(2) && !next.names(1) && !next.has_errands() && !next.is_ending());
            assert_eq!(next.stage(), Stage::Made);
            assert_eq!(free.after(Event::Wake { runnable: true }), Err(Refused::Ended));
        }
        let last = Life::from_word(u64::from(u32::MAX) << GENERATION_SHIFT);
        assert_eq!(last.after(Event::Reuse).unwrap().0.generation(), 1);
    }
}
