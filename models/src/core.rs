//! One CPU between its critical sections: the order in which it takes the steps of [`crate::protocol`].
//!
//! ```text
//!        ┌──────────────── rung ────────────────┐
//!        v                                      │
//!   Redispatch ─► Settle ─► Help ─► Run ─ block, yield, timer ─► …
//!        ^                   ├────► Look ─► Pull ─► Help
//!        │                   │       │  ^     └──── nothing ──► Look
//!        │                   │       v  └─────────────┐
//!        └─── rung ── Halt ◄─┼── Recheck ─ offer ─────┘
//!                     ^      │      ^
//!                     └──────┘   Announce ◄── Look: no offer
//! ```
//! The model takes one step at a time; the stress takes them on real threads.

use sched::{CpuId, Effect, FOREVER, Runnable, Ticket};

use crate::Flaw;
use crate::protocol::{Machine, Next};
use crate::record::Handle;
use crate::sync::Backend;

/// What a CPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Runs a thread.
    Run,
    /// Was rung: chooses who runs.
    Redispatch,
    /// Puts away the thread that left.
    Settle,
    /// Calls idle CPUs to whatever is on offer.
    Help,
    /// Has nothing: looks for a victim.
    Look,
    /// Steals from this CPU.
    Pull(CpuId),
    /// Flawed: takes by a ticket seen earlier.
    PullStale(Ticket),
    /// Found nothing: says that it is idle.
    Announce,
    /// Looks again, now that everybody can know that it is idle.
    Recheck,
    /// Waits for an interrupt.
    Halt,
}

/// One CPU.
pub struct Core<B: Backend> {
    /// Which.
    pub id: CpuId,
    /// What it does next.
    pub phase: Phase,
    /// When its timer fires.
    pub armed_ns: u64,
    /// Whether it believes that it has a thread to run.
    pub running: bool,
    /// How many decisions of the core it has followed.
    pub decisions: u64,
    off: Option<sched::Blocked<Handle<B>>>,
    flaw: Option<Flaw>,
}

impl<B: Backend> Core<B> {
    /// A CPU that has just come up: it finds its queue empty first.
    pub fn new(id: CpuId, flaw: Option<Flaw>) -> Core<B> {
        Core {
            id,
            phase: Phase::Redispatch,
            armed_ns: FOREVER,
            running: false,
            decisions: 0,
            off: None,
            flaw,
        }
    }

    /// The thread that left the CPU and is not put away yet.
    pub fn off(&self) -> Option<&sched::Blocked<Handle<B>>> {
        self.off.as_ref()
    }

    /// Whether nothing but an interrupt or the running thread can make it go on.
    pub fn rests(&self, machine: &Machine<B>) -> bool {
        matches!(self.phase, Phase::Run | Phase::Halt) && !machine.bell.is_rung(self.id)
    }

    fn accept(&mut self, next: Next<B>) {
        self.decisions += 1;
        self.armed_ns = next.until_ns;
        self.running = next.run.is_some();
        self.off = next.off;
        self.phase = if self.off.is_some() { Phase::Settle } else { self.resume() };
    }

    /// A CPU with a thread passes calls for help on; one without goes to see for itself.
    fn resume(&self) -> Phase {
        if self.running { Phase::Help } else { Phase::Look }
    }

    /// Takes one step of its own. A thread that was woken before it was put away comes back: make it runnable.
    pub fn step(&mut self, machine: &Machine<B>, now: u64) -> Option<Runnable<Handle<B>>> {
        match self.phase {
            Phase::Run | Phase::Halt if machine.bell.is_rung(self.id) => {
                machine.bell.answer(self.id);
                self.phase = Phase::Redispatch;
            }
            Phase::Run | Phase::Halt => {}
            Phase::Redispatch => self.redispatch(machine, now),
            Phase::Settle => {
                self.phase = self.resume();
                return self.off.take().and_then(|blocked| machine.settle(blocked));
            }
            Phase::Help => {
                if self.flaw != Some(Flaw::CallNotPassedOn) {
                    machine.bell.call_help();
                }
                self.phase = Phase::Run;
            }
            Phase::Look => {
                self.phase = match machine.pick_victim(self.id) {
                    Some(victim) if self.flaw == Some(Flaw::StaleSteal) => {
                        machine.note_first(victim).map_or(Phase::Look, Phase::PullStale)
                    }
                    Some(victim) => Phase::Pull(victim),
                    None => Phase::Announce,
                };
            }
            Phase::Pull(victim) => match machine.pull(self.id, victim, now) {
                Some(next) => self.accept(next),
                None => self.phase = Phase::Look,
            },
            Phase::PullStale(ticket) => {
                if let Some(blocked) = machine.take_queued(&ticket, now)
                    && let Ok(runnable) = blocked.wake()
                    && let Err(back) = machine.insert(self.id, runnable, now)
                {
                    return Some(back);
                }
                self.accept(machine.redispatch(self.id, now));
                (self.running, self.phase) = (true, Phase::Run); // "we have just stolen something"
            }
            Phase::Announce => {
                machine.bell.announce_idle(self.id);
                self.phase = Phase::Recheck;
            }
            Phase::Recheck => {
                self.phase = if machine.bell.may_halt(self.id) {
                    Phase::Halt
                } else {
                    machine.bell.answer(self.id);
                    Phase::Redispatch
                };
            }
        }
        None
    }

    fn redispatch(&mut self, machine: &Machine<B>, now: u64) {
        if self.flaw == Some(Flaw::TimerTrusted) && self.running {
            match machine.timer(self.id, now) {
                Effect::Keep => {}
                Effect::Rearm { until_ns } => self.armed_ns = until_ns,
                Effect::Dispatch => return self.accept(machine.redispatch(self.id, now)),
            }
            self.phase = Phase::Help;
            return;
        }
        self.accept(machine.redispatch(self.id, now));
    }

    /// The running thread waits.
    pub fn block(&mut self, machine: &Machine<B>, now: u64) {
        self.accept(machine.block(self.id, now));
    }

    /// The running thread yields.
    pub fn yield_now(&mut self, machine: &Machine<B>, now: u64) {
        self.accept(machine.yield_now(self.id, now));
    }

    /// The running thread calls a server that it has woken, and waits. A server that may not run here comes back.
    pub fn call(
        &mut self,
        machine: &Machine<B>,
        server: Runnable<Handle<B>>,
        now: u64,
    ) -> Option<Runnable<Handle<B>>> {
        let (next, refused) = machine.call(self.id, server, now);
        self.accept(next);
        refused
    }

    /// The timer fires.
    pub fn timer(&mut self, machine: &Machine<B>, now: u64) {
        match machine.timer(self.id, now) {
            Effect::Keep => {}
            Effect::Rearm { until_ns } => self.armed_ns = until_ns,
            Effect::Dispatch => {
                machine.bell.answer(self.id);
                self.phase = Phase::Redispatch;
            }
        }
    }
}
