//! What a scenario's `at` lines do to a running system.

use sched::{Effect, LatencyClass, QueueKind};
use trace::Kind;

use super::{Engine, Event, SimError, Wait};
use crate::scenario::{Action, Target};

impl Engine<'_> {
    pub(super) fn timed_action(&mut self, at: usize) -> Result<(), SimError> {
        let scenario = self.scenario;
        match &scenario.timed[at].action {
            Action::Weight(target, weight) => {
                self.for_each(target, |engine, thread| engine.reweigh(thread, *weight))
            }
            Action::Class(target, class) => {
                let class = super::glue::class_of(*class);
                self.for_each(target, |engine, thread| engine.reclass(thread, class));
            }
            Action::Revoke(target) => self.for_each(target, Engine::revoke),
            Action::Reconfigure(target, wish) => {
                self.for_each(target, |engine, thread| engine.reconfigure(thread, wish));
            }
            Action::Kill(target) => self.for_each(target, Engine::kill),
            Action::Wake(target) => self.for_each(target, |engine, thread| {
                if matches!(engine.threads[thread as usize].parked, Some((_, Wait::Sleep))) {
                    engine.wake(thread, None, false);
                }
            }),
            Action::Stall { cpu, duration_ns } => self.stall(*cpu as usize, *duration_ns),
        }
        Ok(())
    }

    fn for_each(&mut self, target: &Target, act: impl Fn(&mut Self, u32)) {
        for index in 0..self.threads.len() {
            let thread = &self.threads[index];
            let meant =
                thread.spec == target.thread && target.instance.is_none_or(|one| one == thread.instance);
            if meant && thread.ended.is_none() {
                act(self, index as u32);
            }
        }
    }

    fn reweigh(&mut self, index: u32, weight: u16) {
        self.checker.weight_changed(weight);
        let thread = &mut self.threads[index as usize];
        let result = if let Some((blocked, _)) = &mut thread.parked {
            blocked.set_weight(weight)
        } else if let Some(cpu) = thread.on_cpu {
            self.sync(cpu);
            self.cpus[cpu].core.set_current_weight(weight, self.now)
        } else if let Some(ticket) = thread.place.get() {
            let cpu = ticket.cpu.index();
            self.sync(cpu);
            self.cpus[cpu].core.set_queued_weight(&ticket, weight, self.now).map(|found| assert!(found))
        } else {
            Ok(())
        };
        result.expect("the parser checks weights");
        let cpu = self.cpu_of(index);
        self.record(self.now, cpu, Kind::Weight { thread: index, weight: u32::from(weight) });
    }

    fn reclass(&mut self, index: u32, class: LatencyClass) {
        let scenario = self.scenario;
        self.checker.class_changed(&scenario.threads[self.threads[index as usize].spec]);
        let cpu = self.cpu_of(index);
        let thread = &mut self.threads[index as usize];
        if let Some((blocked, _)) = &mut thread.parked {
            blocked.set_class(class);
        } else if let Some(cpu) = thread.on_cpu {
            self.cpus[cpu].core.set_current_class(class);
        } else {
            self.requeue(index, |thread| thread.set_class(class));
        }
        self.record(self.now, cpu, Kind::Class { thread: index, class: class as u8 });
    }

    fn cpu_of(&self, index: u32) -> usize {
        let thread = &self.threads[index as usize];
        thread.on_cpu.or(thread.place.get().map(|ticket| ticket.cpu.index())).unwrap_or(0)
    }

    /// Takes a queued thread out, changes it, and puts it back on the same CPU.
    fn requeue(&mut self, index: u32, change: impl FnOnce(&mut sched::Runnable<super::Member>)) {
        let Some(ticket) = self.threads[index as usize].place.get() else { return };
        let cpu = ticket.cpu.index();
        self.sync(cpu);
        let mut thread =
            self.cpus[cpu].core.remove(&ticket, self.now).expect("tickets of queued threads are good");
        change(&mut thread);
        if ticket.queue == QueueKind::Throttled && self.threads[index as usize].queued_at.is_none() {
            self.threads[index as usize].queued_at = Some((self.now, self.overhead_ns));
        }
        let effect = self.cpus[cpu].core.enqueue(thread, self.now).expect("it was allowed here before");
        self.react(cpu, effect, false);
    }

    fn revoke(&mut self, index: u32) {
        let cpu = self.cpu_of(index);
        self.record(self.now, cpu, Kind::Revoke { thread: index });
        if let Some(id) = self.owned_by(index) {
            self.end_context(id, None);
        }
    }

    fn kill(&mut self, index: u32) {
        let cpu = self.cpu_of(index);
        self.record(self.now, cpu, Kind::Exit { thread: index });
        let thread = &mut self.threads[index as usize];
        let mut running_on = None;
        let blocked = if let Some((blocked, wait)) = thread.parked.take() {
            let spec = thread.spec;
            if let Wait::Barrier(barrier) = wait {
                self.barriers[barrier].retain(|waiting| *waiting != index);
            }
            for endpoint in self.endpoints.iter_mut() {
                endpoint.callers.retain(|caller| *caller != index);
            }
            self.endpoints[spec].servers.retain(|server| *server != index);
            for server in &mut self.threads {
                if server.serving == Some(index) {
                    server.serving = None;
                }
            }
            blocked
        } else if let Some(cpu) = thread.on_cpu {
            running_on = Some(cpu);
            self.sync(cpu);
            // The CPU may not be able to switch to another thread at once.
            self.cpus[cpu].doing = None;
            self.record(self.now, cpu, Kind::Idle);
            self.cpus[cpu].core.block(self.now).expect("it runs here")
        } else {
            let ticket = thread.place.get().expect("a thread that is nowhere else is queued");
            let cpu = ticket.cpu.index();
            self.sync(cpu);
            let runnable =
                self.cpus[cpu].core.remove(&ticket, self.now).expect("tickets of queued threads are good");
            self.update_masks(cpu);
            runnable.park()
        };
        self.bury(index, blocked);
        if let Some(cpu) = running_on {
            self.react(cpu, Effect::Dispatch, false);
        }
    }

    fn stall(&mut self, cpu: usize, duration_ns: u64) {
        self.sync(cpu);
        self.record(self.now, cpu, Kind::Stall);
        self.checker.allow_delay(duration_ns);
        let end = self.now + duration_ns;
        let state = &mut self.cpus[cpu];
        state.stalled_until_ns = state.stalled_until_ns.max(end);
        if state.doing.is_some() {
            state.runs_from_ns = state.runs_from_ns.max(end);
        }
        if !self.pending.contains(self.cpus[cpu].id) {
            // The CPU looks at its queue when the stall is over.
            self.pending.insert(self.cpus[cpu].id);
            self.push(end, Event::Ipi { cpu: cpu as u16 });
        }
    }
}
