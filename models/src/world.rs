//! A small machine that is advanced one step at a time: CPUs, wakers and a killer, between any two of whose steps the
//! others may act. The real [`Machine`] and the real `sched::Cpu` do the work; this file only holds the ends.

mod key;

use sched::{Blocked, CpuId, CpuMask, Effect, FOREVER, PolicyKind, Runnable, ThreadId, Ticket};

use crate::Flaw;
use crate::core::{Core, Phase};
use crate::protocol::{Claim, Machine};
use crate::record::{Handle, Record, Slot};
use crate::sync::{self, Host, Lock};

/// How large, and what may happen.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// CPUs.
    pub cpus: u8,
    /// Threads, all waiting at first.
    pub threads: u8,
    /// Wakers that may be under way at once (devices, timers, other CPUs).
    pub wakers: u8,
    /// Threads that may be killed.
    pub kills: u8,
    /// Wakes may come between the block of a thread and its slot.
    pub permits: bool,
    /// Running threads may exit, yield, and call a waiting thread directly.
    pub extras: bool,
    /// Thread 0 may run on CPU 0 only.
    pub pinned: bool,
    /// How often a timer may fire. At 0 time stands still and the model is exact (see `ownership`).
    pub ticks: u8,
    /// The order of best-effort threads.
    pub policy: PolicyKind,
    /// A planted bug.
    pub flaw: Option<Flaw>,
}

impl Config {
    /// Wakes, blocks and steals on `cpus` CPUs with `threads` threads.
    pub const fn new(cpus: u8, threads: u8) -> Config {
        Config {
            cpus,
            threads,
            wakers: 1,
            kills: 0,
            permits: true,
            extras: false,
            pinned: false,
            ticks: 0,
            policy: PolicyKind::Wfq,
            flaw: None,
        }
    }
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A CPU goes on by itself.
    Step(u8),
    /// The thread on this CPU waits.
    Block(u8),
    /// The thread on this CPU lets others go first.
    Yield(u8),
    /// The thread on this CPU ends.
    Exit(u8),
    /// The thread on the CPU hands over to a waiting thread, and waits.
    Call(u8, u8),
    /// The timer of this CPU fires.
    Tick(u8),
    /// A free waker begins to wake a thread.
    Wake(u8),
    /// A waker goes on.
    Waker(u8),
    /// The killer goes for a thread.
    Kill(u8),
    /// The killer goes on.
    Killer,
}

/// What is wrong with a state, as bits.
pub mod fault {
    /// A live thread has no owner or two.
    pub const OWNER: u16 = 1;
    /// `Cpu::check` found a broken invariant.
    pub const CHECK: u16 = 2;
    /// A lock was taken out of order.
    pub const LOCKS: u16 = 4;
    /// Everything is quiet, and a CPU halts over a queue that is not empty.
    pub const LOST_WAKE: u16 = 8;
    /// Everything is quiet, and a CPU halts beside work that it could take.
    pub const IDLE_BESIDE_WORK: u16 = 16;
    /// Everything is quiet, threads wait behind a running one, and no timer is armed.
    pub const NO_TIMER: u16 = 32;
    /// Everything is quiet, and a killed thread runs or waits.
    pub const UNDEAD: u16 = 64;
    /// A thread waits although it was woken.
    pub const WAKE_DROPPED: u16 = 128;
}

/// What a model should have seen at least once, as bits.
pub mod mark {
    /// An idle CPU took a thread from another.
    pub const STOLE: u16 = 1;
    /// A thief came too late.
    pub const TOO_LATE: u16 = 2;
    /// A wake came between the block and the slot, and was honoured.
    pub const PERMIT: u16 = 4;
    /// A thread was killed in a queue.
    pub const KILLED_QUEUED: u16 = 8;
    /// A stale ticket found nothing.
    pub const STALE_TICKET: u16 = 16;
}

enum Waker {
    Free,
    Aim { thread: Runnable<Handle<Host>>, cpu: CpuId, looked_idle: bool },
    Tell { cpu: CpuId, effect: Effect, looked_idle: bool },
    Help,
}

#[derive(Clone, Copy)]
enum Killer {
    Free,
    Hunt { thread: u8, last: Option<Ticket> },
    Take { thread: u8, ticket: Ticket },
}

/// The machine and everybody who is at work on it.
pub struct World {
    config: Config,
    machine: Machine<Host>,
    cores: Vec<Core<Host>>,
    /// The external ones, and one for each CPU.
    wakers: Vec<Waker>,
    killer: Killer,
    kills: u8,
    ticks: u8,
    now: u64,
    /// Woken while away, and not honoured yet.
    noted: Vec<bool>,
    /// Until when each CPU may run as far as its `sched::Cpu` knows: what decides between `Keep` and `Rearm`.
    promised_ns: Vec<u64>,
    breaches: u64,
    marks: u16,
}

impl World {
    /// All threads wait, all CPUs have just come up.
    pub fn new(config: Config) -> World {
        let home = CpuMask::first_n(1);
        let threads = (0..u64::from(config.threads))
            .map(|id| {
                Record::parked(id, |blocked| {
                    if config.pinned && id == 0 {
                        blocked.set_allowed(home).expect("not empty");
                    }
                })
            })
            .collect();
        let machine = Machine::new(usize::from(config.cpus), threads, config.policy, config.flaw);
        let cores = machine.cpu_ids().map(|id| Core::new(id, config.flaw)).collect();
        let wakers = (0..config.wakers + config.cpus).map(|_| Waker::Free).collect();
        World {
            config,
            machine,
            cores,
            wakers,
            killer: Killer::Free,
            kills: 0,
            ticks: 0,
            now: 0,
            noted: vec![false; usize::from(config.threads)],
            promised_ns: vec![FOREVER; usize::from(config.cpus)],
            breaches: sync::breaches(),
            marks: 0,
        }
    }

    /// What the last action showed.
    pub fn marks(&self) -> u16 {
        self.marks
    }

    /// Everything that may happen now.
    pub fn enabled(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (core, at) in self.cores.iter().zip(0u8..) {
            if !matches!(self.wakers[usize::from(self.config.wakers + at)], Waker::Free) {
                continue; // it is busy making a thread runnable
            }
            if !core.rests(&self.machine) {
                actions.push(Action::Step(at));
            }
            let resting = matches!(core.phase, Phase::Run | Phase::Halt);
            if resting && core.armed_ns != FOREVER && self.ticks < self.config.ticks {
                actions.push(Action::Tick(at));
            }
            if core.phase == Phase::Run && self.current(at).is_some() {
                actions.push(Action::Block(at));
                if self.config.extras {
                    actions.extend([Action::Yield(at), Action::Exit(at)]);
                    let callable = (0..self.config.threads).filter(|thread| self.is_parked(*thread));
                    actions.extend(callable.map(|thread| Action::Call(at, thread)));
                }
            }
        }
        let external = usize::from(self.config.wakers);
        if self.wakers[..external].iter().any(|waker| matches!(waker, Waker::Free)) {
            actions.extend((0..self.config.threads).filter(|t| self.may_wake(*t)).map(Action::Wake));
        }
        let busy = self.wakers.iter().zip(0u8..).filter(|(waker, _)| !matches!(waker, Waker::Free));
        actions.extend(busy.map(|(_, at)| Action::Waker(at)));
        match self.killer {
            Killer::Free if self.kills < self.config.kills => {
                let alive = (0..self.config.threads).filter(|thread| !self.is_dead(*thread));
                actions.extend(alive.map(Action::Kill));
            }
            Killer::Free => {}
            _ => actions.push(Action::Killer),
        }
        actions
    }

    /// Lets it happen.
    pub fn act(&mut self, action: Action) {
        self.marks = 0;
        let before: Vec<u64> = self.cores.iter().map(|core| core.decisions).collect();
        self.perform(action);
        for ((core, before), promised) in self.cores.iter().zip(before).zip(&mut self.promised_ns) {
            if core.decisions != before {
                *promised = core.armed_ns;
            }
        }
    }

    fn perform(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Step(at) => self.step(at),
            Action::Block(at) => self.cores[usize::from(at)].block(&self.machine, now),
            Action::Yield(at) => self.cores[usize::from(at)].yield_now(&self.machine, now),
            Action::Exit(at) => {
                if let Some(thread) = self.current(at) {
                    self.machine.threads()[thread.0 as usize].doom();
                }
                self.cores[usize::from(at)].block(&self.machine, now);
            }
            Action::Call(at, server) => {
                let Claim::Won(server) = self.machine.claim(usize::from(server)) else { return };
                if let Some(back) = self.cores[usize::from(at)].call(&self.machine, server, now) {
                    self.aim(usize::from(self.config.wakers + at), back);
                }
            }
            Action::Tick(at) => {
                self.ticks += 1;
                let core = &mut self.cores[usize::from(at)];
                self.now = now.max(core.armed_ns);
                core.timer(&self.machine, self.now);
            }
            Action::Wake(thread) => {
                let free = self.wakers.iter().position(|waker| matches!(waker, Waker::Free));
                match (self.machine.claim(usize::from(thread)), free) {
                    (Claim::Won(runnable), Some(waker)) => self.aim(waker, runnable),
                    (Claim::Noted, _) => self.noted[usize::from(thread)] = true,
                    _ => {}
                }
            }
            Action::Waker(at) => self.waker(usize::from(at)),
            Action::Kill(thread) => {
                self.kills += 1;
                match self.machine.doom(usize::from(thread)) {
                    Some(blocked) => self.machine.bury(blocked),
                    None => self.killer = Killer::Hunt { thread, last: None },
                }
            }
            Action::Killer => self.kill(),
        }
    }

    fn step(&mut self, at: u8) {
        let core = &mut self.cores[usize::from(at)];
        let pulling = matches!(core.phase, Phase::Pull(_));
        let woken = core.step(&self.machine, self.now);
        if pulling {
            self.marks |= if core.phase == Phase::Look { mark::TOO_LATE } else { mark::STOLE };
        }
        if let Some(thread) = woken {
            self.marks |= mark::PERMIT;
            self.noted[thread.id().0 as usize] = false;
            self.aim(usize::from(self.config.wakers + at), thread);
        }
    }

    /// The choice of a CPU is a step of its own for everybody else, so it is made here and used later.
    fn aim(&mut self, waker: usize, thread: Runnable<Handle<Host>>) {
        let from = waker.checked_sub(usize::from(self.config.wakers)).and_then(CpuId::new);
        let (cpu, looked_idle) = self.machine.choose(&thread, from).expect("every mask names a CPU");
        self.wakers[waker] = Waker::Aim { thread, cpu, looked_idle };
    }

    fn waker(&mut self, at: usize) {
        self.wakers[at] = match std::mem::replace(&mut self.wakers[at], Waker::Free) {
            Waker::Free => Waker::Free,
            Waker::Aim { thread, cpu, looked_idle } => {
                let effect = self.machine.insert(cpu, thread, self.now).expect("placed within its mask");
                if let Effect::Rearm { until_ns } = effect {
                    self.promised_ns[cpu.index()] = until_ns;
                }
                Waker::Tell { cpu, effect, looked_idle }
            }
            Waker::Tell { cpu, effect, looked_idle } => {
                self.machine.notify(cpu, effect, looked_idle);
                Waker::Help
            }
            Waker::Help => {
                self.machine.bell.call_help();
                Waker::Free
            }
        };
    }

    /// `Machine::kill`, one step at a time.
    fn kill(&mut self) {
        self.killer = match self.killer {
            Killer::Free => Killer::Free,
            Killer::Hunt { thread, last } => match self.machine.threads()[usize::from(thread)].ticket() {
                None => Killer::Free,
                Some(ticket) if last == Some(ticket) => {
                    self.machine.bell.ring(ticket.cpu);
                    Killer::Free
                }
                Some(ticket) => Killer::Take { thread, ticket },
            },
            Killer::Take { thread, ticket } => match self.machine.take_queued(&ticket, self.now) {
                Some(blocked) => {
                    self.marks |= mark::KILLED_QUEUED;
                    self.machine.bury(blocked);
                    Killer::Free
                }
                None => {
                    self.marks |= mark::STALE_TICKET;
                    Killer::Hunt { thread, last: Some(ticket) }
                }
            },
        };
    }

    fn current(&self, at: u8) -> Option<ThreadId> {
        self.machine.look(self.cores[usize::from(at)].id, |cpu| cpu.current())
    }

    fn is_parked(&self, thread: u8) -> bool {
        matches!(*self.machine.threads()[usize::from(thread)].slot.lock(), Slot::Parked(_))
    }

    fn is_dead(&self, thread: u8) -> bool {
        matches!(*self.machine.threads()[usize::from(thread)].slot.lock(), Slot::Dead)
    }

    /// A wake of a thread that waits, or (the race that permits are for) of one that has left its CPU but is not in its
    /// slot yet. A permit that comes earlier changes nothing that anybody looks at before that.
    fn may_wake(&self, thread: u8) -> bool {
        if self.is_parked(thread) {
            return true;
        }
        let id = ThreadId(u64::from(thread));
        let away = self.cores.iter().any(|core| core.off().is_some_and(|off| off.id() == id));
        self.config.permits && away && !self.is_dead(thread) && !self.noted[usize::from(thread)]
    }

    // ---- what must hold -------------------------------------------------------------------------------------------

    /// Every fault of this state.
    pub fn faults(&self) -> u16 {
        let mut faults = 0;
        let mut owners = vec![0u8; usize::from(self.config.threads)];
        let mut own = |id: ThreadId| owners[id.0 as usize] += 1;
        for core in &self.cores {
            self.machine.look(core.id, |cpu| {
                cpu.current().iter().for_each(|id| own(*id));
                cpu.for_each_queued(|ticket, _, _| own(ticket.thread));
                faults |= if cpu.check().is_err() { fault::CHECK } else { 0 };
            });
            core.off().map(Blocked::id).into_iter().for_each(&mut own);
        }
        for waker in &self.wakers {
            if let Waker::Aim { thread, .. } = waker {
                own(thread.id());
            }
        }
        for thread in 0..self.config.threads {
            let at = usize::from(thread);
            owners[at] += u8::from(self.is_parked(thread));
            if owners[at] != u8::from(!self.is_dead(thread)) {
                faults |= fault::OWNER;
            }
            if self.is_parked(thread) && self.noted[at] {
                faults |= fault::WAKE_DROPPED;
            }
        }
        if sync::breaches() != self.breaches {
            faults |= fault::LOCKS;
        }
        if self.is_quiet() { faults | self.faults_at_rest() } else { faults }
    }

    /// Nobody is under way: only a thread, a waker or a timer could begin something.
    fn is_quiet(&self) -> bool {
        matches!(self.killer, Killer::Free)
            && self.wakers.iter().all(|waker| matches!(waker, Waker::Free))
            && self.cores.iter().all(|core| core.rests(&self.machine))
    }

    fn faults_at_rest(&self) -> u16 {
        let mut faults = 0;
        let mut add = |broken: bool, fault: u16| faults |= if broken { fault } else { 0 };
        for core in &self.cores {
            let offered = self.machine.bell.offers_to(core.id).next().is_some();
            self.machine.look(core.id, |cpu| {
                let idle = cpu.current().is_none();
                add(idle && cpu.queued() > 0, fault::LOST_WAKE);
                add(idle && offered, fault::IDLE_BESIDE_WORK);
                add(!idle && cpu.waiting() > 0 && core.armed_ns == FOREVER, fault::NO_TIMER);
                add(cpu.current_payload().is_some_and(|handle| handle.0.is_doomed()), fault::UNDEAD);
            });
        }
        let parked = (0..self.config.threads).filter(|thread| self.is_parked(*thread));
        let mut undead = parked.map(|thread| self.machine.threads()[usize::from(thread)].is_doomed());
        add(undead.any(|doomed| doomed), fault::UNDEAD);
        faults
    }
}
