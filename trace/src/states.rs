//! What each thread did, as spans: running, runnable, blocked or throttled.
//!
//! The other side of [`Trace::runs`]: the running spans of a thread add up to its runs. The
//! gaps between them say what it waited for, and that is where latency comes from.

use crate::{Event, Kind, Trace};
use std::collections::BTreeMap;
use std::vec::Vec;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// On a CPU.
    Running,
    /// Could run, waits for a CPU.
    Runnable,
    /// Waits for an event.
    Blocked,
    /// Waits for budget.
    Throttled,
}

impl State {
    /// The name that pictures and exports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Runnable => "runnable",
            Self::Blocked => "blocked",
            Self::Throttled => "throttled",
        }
    }
}

/// One thread was in one state from `start_ns` to `end_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpan {
    /// The thread.
    pub thread: u32,
    /// In which state.
    pub state: State,
    /// Where it ran, or the CPU whose event began the span.
    pub cpu: u16,
    /// From, inclusive.
    pub start_ns: u64,
    /// To, exclusive; always after `start_ns`.
    pub end_ns: u64,
    /// True when the span began with a wake or a spawn: a wait that counts as latency.
    pub from_wake: bool,
}

/// One open span.
#[derive(Clone, Copy)]
struct Open {
    state: State,
    cpu: u16,
    since_ns: u64,
    from_wake: bool,
}

/// All threads' open spans, and what is on each CPU.
struct Tracker {
    open: BTreeMap<u32, Open>,
    on_cpu: Vec<Option<u32>>,
    spans: Vec<StateSpan>,
}

impl Tracker {
    fn close(&mut self, thread: u32, time_ns: u64) {
        let Some(open) = self.open.remove(&thread) else { return };
        if time_ns > open.since_ns {
            self.spans.push(StateSpan {
                thread,
                state: open.state,
                cpu: open.cpu,
                start_ns: open.since_ns,
                end_ns: time_ns,
                from_wake: open.from_wake,
            });
        }
    }

    fn enter(&mut self, thread: u32, state: State, event: &Event) {
        // A wait that began with a wake is one wait; only running is tied to its CPU.
        let goes_on = |open: &Open| open.state == state && (state != State::Running || open.cpu == event.cpu);
        if self.open.get(&thread).is_some_and(goes_on) {
            return;
        }
        self.close(thread, event.time_ns);
        let from_wake = matches!(event.kind, Kind::Wake { .. } | Kind::Spawn { .. });
        let open = Open { state, cpu: event.cpu, since_ns: event.time_ns, from_wake };
        self.open.insert(thread, open);
    }

    fn vacate(&mut self, event: &Event) {
        let old = self.on_cpu[usize::from(event.cpu)].take();
        // No event said why it stopped, so all that is known is that it could go on.
        if let Some(old) = old {
            self.enter(old, State::Runnable, event);
        }
    }

    fn state_of(&self, thread: u32) -> Option<State> {
        self.open.get(&thread).map(|open| open.state)
    }

    fn leave(&mut self, thread: u32, event: &Event) {
        // As in `runs`: only the CPU that runs a thread can say that it stopped.
        let elsewhere = |open: &Open| open.state == State::Running && open.cpu != event.cpu;
        if self.open.get(&thread).is_some_and(elsewhere) {
            return;
        }
        let slot = &mut self.on_cpu[usize::from(event.cpu)];
        if *slot == Some(thread) {
            *slot = None;
        }
        match event.kind {
            Kind::Block { .. } => self.enter(thread, State::Blocked, event),
            Kind::Throttle { .. } => self.enter(thread, State::Throttled, event),
            Kind::Exit { .. } => self.close(thread, event.time_ns),
            _ => self.enter(thread, State::Runnable, event),
        }
    }

    fn take(&mut self, event: &Event) {
        match event.kind {
            Kind::Run { thread } if self.on_cpu[usize::from(event.cpu)] != Some(thread) => {
                self.vacate(event);
                self.on_cpu[usize::from(event.cpu)] = Some(thread);
                self.enter(thread, State::Running, event);
            }
            Kind::Idle | Kind::System => self.vacate(event),
            // A wake does not bring back budget, and a wake of a thread that already
            // runs or waits for a CPU changes nothing.
            Kind::Spawn { thread } | Kind::Wake { thread }
                if matches!(self.state_of(thread), None | Some(State::Blocked)) =>
            {
                self.enter(thread, State::Runnable, event);
            }
            Kind::Refill { thread } | Kind::Unbind { thread }
                if self.state_of(thread) == Some(State::Throttled) =>
            {
                self.enter(thread, State::Runnable, event);
            }
            Kind::Evict { thread, .. }
                if matches!(self.state_of(thread), Some(State::Runnable | State::Throttled)) =>
            {
                self.enter(thread, State::Blocked, event);
            }
            kind if kind.leaves_cpu() => {
                if let Some(thread) = kind.thread() {
                    self.leave(thread, event);
                }
            }
            _ => {}
        }
    }
}

impl Trace {
    /// Every thread's spans, in order of their end.
    ///
    /// The trace should pass [`Trace::check`]; events of unknown CPUs and events after the
    /// end are left out.
    #[must_use]
    pub fn states(&self) -> Vec<StateSpan> {
        let on_cpu = std::vec![None; usize::from(self.cpus)];
        let mut tracker = Tracker { open: BTreeMap::new(), on_cpu, spans: Vec::new() };
        for event in &self.events {
            if event.cpu < self.cpus && event.time_ns <= self.end_ns {
                tracker.take(event);
            }
        }
        let still: Vec<u32> = tracker.open.keys().copied().collect();
        for thread in still {
            tracker.close(thread, self.end_ns);
        }
        tracker.spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(events: &[(u64, u16, Kind)]) -> Vec<(u32, State, u64, u64, bool)> {
        let mut trace = Trace { cpus: 2, end_ns: 100, ..Trace::default() };
        for &(time_ns, cpu, kind) in events {
            trace.push(time_ns, cpu, kind);
        }
        let view = |s: &StateSpan| (s.thread, s.state, s.start_ns, s.end_ns, s.from_wake);
        trace.states().iter().map(view).collect()
    }

    #[test]
    fn the_life_of_a_thread() {
        let thread = 3;
        let found = spans(&[
            (0, 0, Kind::Spawn { thread }),
            (5, 0, Kind::Run { thread }),
            (15, 0, Kind::Block { thread }),
            (15, 0, Kind::Idle),
            (40, 1, Kind::Wake { thread }),
            (42, 1, Kind::Run { thread }),
            (50, 1, Kind::Throttle { thread }),
            (55, 1, Kind::Wake { thread }),
            (70, 1, Kind::Refill { thread }),
            (71, 1, Kind::Run { thread }),
            (90, 1, Kind::Exit { thread }),
        ]);
        assert_eq!(
            found,
            [
                (3, State::Runnable, 0, 5, true),
                (3, State::Running, 5, 15, false),
                (3, State::Blocked, 15, 40, false),
                (3, State::Runnable, 40, 42, true),
                (3, State::Running, 42, 50, false),
                (3, State::Throttled, 50, 70, false),
                (3, State::Runnable, 70, 71, false),
                (3, State::Running, 71, 90, false),
            ]
        );
    }

    #[test]
    fn another_cpu_cannot_stop_a_running_thread() {
        let found = spans(&[(0, 0, Kind::Run { thread: 1 }), (30, 1, Kind::Exit { thread: 1 })]);
        assert_eq!(found, [(1, State::Running, 0, 100, false)]);
    }

    #[test]
    fn switched_out_without_a_reason_is_runnable() {
        let found = spans(&[(0, 0, Kind::Run { thread: 1 }), (30, 0, Kind::Run { thread: 2 })]);
        assert_eq!(
            found,
            [
                (1, State::Running, 0, 30, false),
                (1, State::Runnable, 30, 100, false),
                (2, State::Running, 30, 100, false),
            ]
        );
    }
}
