//! The workload of `bench-sched`, and ours and the peers as contestants that play it.
//!
//! `n` threads are queued all along; one more runs, and in the first scenario one more is blocked. Weights are mostly 64,
//! the others from 1 to 1024; all latency classes occur. Running times are fixed in advance, below the shortest slice, and
//! never longer than the quantum that was granted.
//!
//! **switch**, one step (2 inserts, 2 picks, 2 charges):
//! 1. the blocked thread wakes while another runs: charge, join the clock, insert, preemption check;
//! 2. dispatch: the running thread is requeued (insert) and the first one is picked; it runs for a while;
//! 3. it blocks: charge, leave the clock; it will be the next to wake;
//! 4. dispatch: the first one is picked; it runs for a while, and is charged and requeued in the next step.
//!
//! **remove**, one step (1 removal, 2 inserts, 1 pick, 1 charge): while a thread runs, an arbitrary queued one is taken out by
//! its ticket (as for a kill or a steal: it leaves the clock) and comes back at once; dispatch requeues the running thread
//! and picks the first one, which runs for a while.

use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;

use sched::{
    Blocked, Cpu, CpuId, Effect, LatencyClass, Payload, Policy, Runnable, Snapshot, ThreadId, Ticket,
};

use crate::peer::{Order, Peer, Picked};

/// A scheduler with its threads, of which at most one is blocked.
pub trait Contestant {
    /// The blocked thread wakes.
    fn wake(&mut self, now: u64) -> Effect;
    /// Requeue and pick.
    fn dispatch(&mut self, now: u64) -> Picked;
    /// The running thread blocks.
    fn block(&mut self, now: u64);
    /// A queued thread is taken out and put back; `false` if it is not queued.
    fn bounce(&mut self, id: u32, now: u64) -> bool;
    /// The counters of every thread, by id.
    fn snapshots(&self) -> Vec<Snapshot>;
}

/// A payload that says where its thread is queued: what somebody needs who wants to remove it.
#[derive(Debug)]
pub struct Noted {
    id: u32,
    tickets: Rc<[Cell<Option<Ticket>>]>,
}

impl Payload for Noted {
    fn queued(&self, ticket: Ticket) {
        self.tickets[self.id as usize].set(Some(ticket));
    }
}

/// How a payload for ours is made, and how a ticket is found with it.
pub trait Tracked: Payload + Debug + Sized {
    /// What all threads share.
    type Shared;
    /// For this many threads.
    fn share(count: usize) -> Self::Shared;
    /// For one thread.
    fn make(id: u32, shared: &Self::Shared) -> Self;
    /// Where the thread was queued last.
    fn ticket(id: u32, shared: &Self::Shared) -> Option<Ticket>;
}

impl Tracked for u32 {
    type Shared = ();
    fn share(_: usize) {}
    fn make(id: u32, _: &()) -> u32 {
        id
    }
    fn ticket(_: u32, _: &()) -> Option<Ticket> {
        None
    }
}

impl Tracked for Noted {
    type Shared = Rc<[Cell<Option<Ticket>>]>;
    fn share(count: usize) -> Self::Shared {
        (0..count).map(|_| Cell::new(None)).collect()
    }
    fn make(id: u32, shared: &Self::Shared) -> Noted {
        Noted { id, tickets: Rc::clone(shared) }
    }
    fn ticket(id: u32, shared: &Self::Shared) -> Option<Ticket> {
        shared[id as usize].get()
    }
}

/// `sched::Cpu`, as a kernel would call it.
pub struct Ours<T: Tracked, P: Policy> {
    cpu: Cpu<T, P>,
    blocked: Option<Blocked<T>>,
    shared: T::Shared,
}

impl<T: Tracked, P: Policy> Ours<T, P> {
    /// Threads with these knobs, all queued at time 0, in order.
    pub fn new(knobs: &[(u16, LatencyClass)], policy: P) -> Self {
        let mut cpu = Cpu::new(CpuId::new(0).expect("CPU 0 exists"), policy, 0);
        let shared = T::share(knobs.len());
        for (id, &(weight, class)) in (0u32..).zip(knobs) {
            let mut thread = Runnable::new(ThreadId(u64::from(id)), T::make(id, &shared));
            thread.set_weight(weight).expect("weights of the workload are valid");
            thread.set_class(class);
            let _ = cpu.enqueue(thread, 0).expect("no thread of the workload is restricted");
        }
        Ours { cpu, blocked: None, shared }
    }
}

impl<T: Tracked, P: Policy> Contestant for Ours<T, P> {
    fn wake(&mut self, now: u64) -> Effect {
        let thread = self.blocked.take().expect("a thread is blocked").wake().expect("it needs no context");
        self.cpu.enqueue(thread, now).expect("no thread of the workload is restricted")
    }

    fn dispatch(&mut self, now: u64) -> Picked {
        let decision = self.cpu.dispatch(now);
        let run = decision.run.expect("somebody is queued").0 as u32;
        Picked { run, until_ns: decision.until_ns, switched: decision.switched }
    }

    fn block(&mut self, now: u64) {
        self.blocked = self.cpu.block(now);
    }

    fn bounce(&mut self, id: u32, now: u64) -> bool {
        let Some(thread) = T::ticket(id, &self.shared).and_then(|ticket| self.cpu.remove(&ticket, now))
        else {
            return false;
        };
        let _ = self.cpu.enqueue(thread, now).expect("no thread of the workload is restricted");
        true
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        let mut all: Vec<(ThreadId, Snapshot)> = Vec::new();
        self.cpu.for_each_queued(|ticket, snapshot, _| all.push((ticket.thread, snapshot)));
        all.extend(self.cpu.current().zip(self.cpu.current_snapshot()));
        all.extend(self.blocked.iter().map(|thread| (thread.id(), thread.snapshot())));
        all.sort_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, snapshot)| snapshot).collect()
    }
}

/// A peer and the thread that waits to be woken.
pub struct Theirs<O> {
    peer: Peer<O>,
    blocked: Option<u32>,
    count: u32,
}

impl<O: Order> Theirs<O> {
    /// Threads with these knobs, all queued at time 0, in order.
    pub fn new(knobs: &[(u16, LatencyClass)]) -> Self {
        let mut peer = Peer::new(knobs.iter().copied());
        let count = knobs.len() as u32;
        for id in 0..count {
            let _ = peer.enqueue(id, 0);
        }
        Theirs { peer, blocked: None, count }
    }
}

impl<O: Order> Contestant for Theirs<O> {
    fn wake(&mut self, now: u64) -> Effect {
        let id = self.blocked.take().expect("a thread is blocked");
        self.peer.enqueue(id, now)
    }

    fn dispatch(&mut self, now: u64) -> Picked {
        self.peer.dispatch(now).expect("somebody is queued")
    }

    fn block(&mut self, now: u64) {
        self.blocked = self.peer.block(now);
    }

    fn bounce(&mut self, id: u32, now: u64) -> bool {
        self.peer.remove(id, now) && {
            let _ = self.peer.enqueue(id, now);
            true
        }
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        (0..self.count).map(|id| self.peer.snapshot(id)).collect()
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Wake, pick, requeue.
    Switch,
    /// Remove, put back, pick, requeue.
    Remove,
}

/// What a step decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the wake asked for ([`Scenario::Switch`] only).
    pub effect: Option<Effect>,
    /// Who was picked last.
    pub picked: Picked,
}

const TIMES: usize = 1024;

/// Plays the workload on one contestant.
pub struct Player<C> {
    contestant: C,
    count: u32,
    times_ns: Vec<u64>,
    random: u64,
    steps: usize,
    now_ns: u64,
    until_ns: u64,
    /// Every decision so far, mixed: equal for contestants that decided alike.
    checksum: u64,
}

impl<C: Contestant> Player<C> {
    /// `contestant` has the threads of [`knobs`] for `queued` waiting ones; it is brought into the state between two steps.
    pub fn new(contestant: C, scenario: Scenario, queued: usize) -> Self {
        let mut random = 0x2545_f491_4f6c_dd1d;
        // At least 10 us; 4.2 ms at most, and an interactive slice is 5 ms.
        let times_ns = (0..TIMES).map(|_| 10_000 + xorshift(&mut random) % (1 << 22)).collect();
        let count = (queued + spare(scenario)) as u32;
        let mut player =
            Player { contestant, count, times_ns, random, steps: 0, now_ns: 0, until_ns: 0, checksum: 0 };
        player.pick();
        player.run();
        if scenario == Scenario::Switch {
            player.contestant.block(player.now_ns);
            player.pick();
            player.run();
        }
        player
    }

    /// Plays one step.
    #[inline]
    pub fn step(&mut self, scenario: Scenario) -> Outcome {
        match scenario {
            Scenario::Switch => {
                let effect = self.contestant.wake(self.now_ns);
                self.pick();
                self.run();
                self.contestant.block(self.now_ns);
                let picked = self.pick();
                self.run();
                Outcome { effect: Some(effect), picked }
            }
            Scenario::Remove => {
                let mut victim = (xorshift(&mut self.random) % u64::from(self.count)) as u32;
                while !self.contestant.bounce(victim, self.now_ns) {
                    victim = (victim + 1) % self.count; // it was the one that runs
                }
                let picked = self.pick();
                self.run();
                Outcome { effect: None, picked }
            }
        }
    }

    /// Plays many steps and answers the checksum of all decisions so far.
    #[inline(never)]
    pub fn play(&mut self, scenario: Scenario, steps: usize) -> u64 {
        for _ in 0..steps {
            self.step(scenario);
        }
        self.checksum
    }

    /// The counters of every thread.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.contestant.snapshots()
    }

    fn pick(&mut self) -> Picked {
        let picked = self.contestant.dispatch(self.now_ns);
        self.until_ns = picked.until_ns;
        self.checksum = (self.checksum ^ u64::from(picked.run) ^ picked.until_ns).rotate_left(7);
        picked
    }

    /// The picked thread runs for a while, at most until the timer fires.
    fn run(&mut self) {
        self.steps += 1;
        self.now_ns = (self.now_ns + self.times_ns[self.steps % TIMES]).min(self.until_ns);
    }
}

/// How many threads a scenario has besides the queued ones.
fn spare(scenario: Scenario) -> usize {
    match scenario {
        Scenario::Switch => 2,
        Scenario::Remove => 1,
    }
}

/// Weight and class of every thread of the workload: 70 of 100 have the default weight.
pub fn knobs(scenario: Scenario, queued: usize) -> Vec<(u16, LatencyClass)> {
    const RARE: [u16; 12] = [1, 2, 5, 16, 32, 63, 100, 128, 200, 256, 512, 1024];
    let mut random = 0x9e37_79b9_7f4a_7c15;
    (0..queued + spare(scenario))
        .map(|_| {
            let (a, b) = (xorshift(&mut random), xorshift(&mut random));
            let weight = if a % 100 < 70 { 64 } else { RARE[(a >> 32) as usize % RARE.len()] };
            let class = match b % 10 {
                0 | 1 => LatencyClass::Interactive,
                2 => LatencyClass::Batch,
                3 => LatencyClass::IpcServer,
                _ => LatencyClass::Normal,
            };
            (weight, class)
        })
        .collect()
}

fn xorshift(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{BTree, BTreeScan, BTreeTwo, Heap, HeapTwo};
    use sched::{Eevdf, PolicyKind, Wfq};

    /// Plays all side by side: every effect, pick, quantum and, at the end, every counter is the same.
    fn agree<P: Policy, A: Order, B: Order, C: Order>(policy: P, kind: PolicyKind) {
        for scenario in [Scenario::Switch, Scenario::Remove] {
            for queued in [1, 2, 10, 257] {
                let knobs = knobs(scenario, queued);
                let mut ours = Player::new(Ours::<Noted, _>::new(&knobs, policy), scenario, queued);
                let mut selected = Player::new(Ours::<Noted, _>::new(&knobs, kind), scenario, queued);
                let mut a = Player::new(Theirs::<A>::new(&knobs), scenario, queued);
                let mut b = Player::new(Theirs::<B>::new(&knobs), scenario, queued);
                let mut c = Player::new(Theirs::<C>::new(&knobs), scenario, queued);
                let mut seen = vec![0u32; knobs.len()];
                for step in 0..6_000 {
                    let outcome = ours.step(scenario);
                    let place = format!("{} {scenario:?} {queued} queued, step {step}", policy.name());
                    assert_eq!(selected.step(scenario), outcome, "selected, {place}");
                    assert_eq!(a.step(scenario), outcome, "{}, {place}", A::NAME);
                    assert_eq!(b.step(scenario), outcome, "{}, {place}", B::NAME);
                    assert_eq!(c.step(scenario), outcome, "{}, {place}", C::NAME);
                    seen[outcome.picked.run as usize] += 1;
                }
                assert!(
                    seen.iter().filter(|picks| **picks > 0).count() > knobs.len() / 2,
                    "most threads run"
                );
                assert_eq!(ours.contestant.cpu.check(), Ok(()));
                for others in [selected.snapshots(), a.snapshots(), b.snapshots(), c.snapshots()] {
                    assert_eq!(others, ours.snapshots());
                }
                let sums = [ours.checksum, selected.checksum, a.checksum, b.checksum, c.checksum];
                assert!(sums.iter().all(|sum| *sum == sums[0]));
            }
        }
    }

    /// WFQ: the peers compute the very schedule that ours does.
    #[test]
    fn wfq_peers_agree() {
        agree::<_, BTree, Heap, Heap>(Wfq, PolicyKind::Wfq);
    }

    /// EEVDF: exactly as well; eligibility is an exact integer test in all of them.
    #[test]
    fn eevdf_peers_agree() {
        agree::<_, BTreeTwo, BTreeScan, HeapTwo>(Eevdf, PolicyKind::Eevdf);
    }

    /// The comparison can fail: the two policies do not make the same schedule of this workload.
    #[test]
    fn policies_differ() {
        let knobs = knobs(Scenario::Switch, 10);
        let mut wfq = Player::new(Ours::<u32, _>::new(&knobs, Wfq), Scenario::Switch, 10);
        let mut eevdf = Player::new(Theirs::<BTreeTwo>::new(&knobs), Scenario::Switch, 10);
        assert_ne!(wfq.play(Scenario::Switch, 1_000), eevdf.play(Scenario::Switch, 1_000));
    }
}
