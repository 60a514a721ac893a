//! Contexts on the move: lent and given back (S-06, S-07), taken away (S-09), hosted elsewhere (S-07), made anew (S-03), and what is noted
//! of them (S-08).

mod common;

use common::*;
use sched::*;

fn spec(budget_ms: u64, period_ms: u64) -> Spec {
    Spec::new(budget_ms * MS, period_ms * MS)
}

fn identity(id: u64) -> ContextId {
    ContextId { id, generation: 1 }
}

fn thread(id: u64) -> Runnable<u32> {
    Runnable::new(ThreadId(id), id as u32)
}

fn cpu() -> Cpu<u32> {
    Cpu::new(cpu_id(0), PolicyKind::Wfq, 0)
}

/// A thread with a context of its own, queued.
fn bound(cpu: &mut Cpu<u32>, id: u64, spec: Spec, now: u64) -> Effect {
    let mut thread = thread(id);
    let context = cpu.admit(Proposal::new(identity(id), spec), now).unwrap();
    assert!(matches!(thread.bind(context), Ok(None)));
    cpu.enqueue(thread, now).unwrap()
}

fn available_ms(cpu: &Cpu<u32>, now: u64) -> u64 {
    cpu.current_context().unwrap().info(now).available_ns / MS
}

/// S-06: a call lends, the answer gives back, in between the server runs on the caller's budget and until its end; what was spent
/// stays spent. Depth three: the same step each time.
#[test]
fn s_06_a_loan_goes_and_comes_back() {
    let mut cpu = cpu();
    let _ = cpu.enqueue(thread(9), 0).unwrap();
    let _ = bound(&mut cpu, 1, spec(10, 100), 0);
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    let mut waiting = vec![thread(4).park(), thread(3).park(), thread(2).park()];
    let mut callers = Vec::new();
    for (depth, server) in (2..=4).enumerate() {
        let now = (depth as u64 + 1) * MS;
        let next = waiting.pop().unwrap().wake().unwrap();
        let (caller, decision) = cpu.block_lending(next, now).unwrap();
        let caller = caller.unwrap();
        assert_eq!((caller.id(), caller.context().is_none()), (ThreadId(server - 1), true));
        assert_eq!((decision.run, decision.until_ns), (Some(ThreadId(server)), 10 * MS));
        assert!(cpu.current_is_guaranteed());
        assert_eq!(cpu.check(), Ok(()));
        callers.push(caller);
    }
    for (steps, caller) in (1..=3).rev().enumerate() {
        let now = (steps as u64 + 4) * MS;
        let (server, decision) = cpu.block_lending(callers.pop().unwrap().wake().unwrap(), now).unwrap();
        assert_eq!(server.unwrap().id(), ThreadId(caller + 1));
        assert_eq!(decision.run, Some(ThreadId(caller)));
        assert_eq!(cpu.check(), Ok(()));
    }
    assert_eq!(available_ms(&cpu, 6 * MS), 4);
    assert_eq!(cpu.current_snapshot().unwrap().runtime_ns, MS, "its own, not its servers'");
    assert_eq!(cpu.current_context().unwrap().info(6 * MS).consumed_ns, 6 * MS);
}

/// S-06: a server that spends the loan waits for the lender's refill, and answers after that.
#[test]
fn s_06_a_server_without_budget_waits_for_the_lenders_refill() {
    let mut cpu = cpu();
    let _ = bound(&mut cpu, 1, spec(10, 100), 0);
    let _ = cpu.dispatch(0);
    let (caller, _) = cpu.block_lending(thread(2), 4 * MS).unwrap();
    assert_eq!(cpu.timer(10 * MS), Effect::Dispatch);
    let decision = cpu.dispatch(10 * MS);
    assert_eq!((decision.run, decision.until_ns), (None, 100 * MS));
    assert_eq!(decision.noted, Noted::DEPLETED.and(Noted::THROTTLED));
    assert_eq!(cpu.timer(100 * MS), Effect::Dispatch);
    assert_eq!(cpu.dispatch(100 * MS).run, Some(ThreadId(2)));
    let (_, decision) = cpu.block_lending(caller.unwrap().wake().unwrap(), 103 * MS).unwrap();
    assert_eq!((decision.run, decision.noted), (Some(ThreadId(1)), Noted::NOTHING));
    assert_eq!(available_ms(&cpu, 103 * MS), 7);
}

/// S-06: lending at the very end of the budget: the borrower waits at once, and the depletion is told.
#[test]
fn s_06_lending_an_empty_context() {
    let mut cpu = cpu();
    let _ = cpu.enqueue(thread(9), 0).unwrap();
    let _ = bound(&mut cpu, 1, spec(10, 100), 0);
    let _ = cpu.dispatch(0);
    let (_, decision) = cpu.block_lending(thread(2), 10 * MS + 5_000).unwrap();
    assert_eq!((decision.run, decision.noted.has(Noted::DEPLETED)), (Some(ThreadId(9)), true));
    let mut seen = 0;
    cpu.for_each_queued_context(|ticket, context| {
        assert_eq!((ticket.thread, ticket.queue), (ThreadId(2), QueueKind::Throttled));
        assert_eq!(context.info(10 * MS).overrun_max_ns, 5_000);
        seen += 1;
    });
    assert_eq!(seen, 1);
    assert_eq!(cpu.check(), Ok(()));
}

/// S-06, S-11: somebody more urgent came meanwhile: the borrower queues with the loan, in the lender's place.
#[test]
fn s_06_a_loan_overtakes_nobody() {
    let mut cpu = cpu();
    let _ = bound(&mut cpu, 1, spec(10, 100), 0);
    let _ = cpu.dispatch(0);
    assert_eq!(bound(&mut cpu, 3, spec(5, 20), MS), Effect::Dispatch);
    let (_, decision) = cpu.block_lending(thread(2), MS).unwrap();
    assert_eq!(decision.run, Some(ThreadId(3)));
    assert_eq!(cpu.timer(6 * MS), Effect::Dispatch);
    assert_eq!(cpu.dispatch(6 * MS).run, Some(ThreadId(2)));
    assert_eq!(cpu.check(), Ok(()));
}

/// S-06: nothing to lend, or a borrower with a context of its own: an ordinary call. And masks are obeyed, with nothing changed.
#[test]
fn s_06_no_loan_without_need() {
    let mut cpu = cpu();
    let _ = cpu.enqueue(thread(1), 0).unwrap();
    let _ = cpu.dispatch(0);
    let (blocked, decision) = cpu.block_lending(thread(2), MS).unwrap();
    assert_eq!((blocked.unwrap().id(), decision.run), (ThreadId(1), Some(ThreadId(2))));
    let _ = bound(&mut cpu, 3, spec(10, 100), MS);
    let _ = cpu.dispatch(MS);
    let mut elsewhere = thread(5);
    elsewhere.set_allowed(CpuMask::only(cpu_id(1))).unwrap();
    let Err(Misplaced(elsewhere)) = cpu.block_lending(elsewhere, MS) else { panic!("its mask") };
    assert_eq!((elsewhere.id(), elsewhere.context().is_none()), (ThreadId(5), true));
    assert_eq!(cpu.current(), Some(ThreadId(3)));
    let mut own = thread(4);
    let context = cpu.admit(Proposal::new(identity(4), spec(10, 100)), MS).unwrap();
    assert!(matches!(own.bind(context), Ok(None)));
    let (blocked, decision) = cpu.block_lending(own, 2 * MS).unwrap();
    assert_eq!(blocked.unwrap().context().unwrap().identity(), identity(3));
    assert_eq!(decision.run, Some(ThreadId(4)));
    assert_eq!(cpu.current_context().unwrap().identity(), identity(4));
}

/// S-06: a thread that runs on contexts only can be lent one, and is taken by no CPU without.
#[test]
fn s_06_passive_threads_run_on_loans_only() {
    let mut cpu = cpu();
    let mut passive = thread(2);
    passive.set_context_only(true);
    let Err(Misplaced(passive)) = cpu.enqueue(passive, 0) else { panic!("it has no context") };
    let Err(Misplaced(passive)) = cpu.hand_over(passive, 0) else { panic!("it has no context") };
    let Err(passive) = passive.park().wake() else { panic!("it has no context") };
    let _ = bound(&mut cpu, 1, spec(10, 100), 0);
    let _ = cpu.dispatch(0);
    let (caller, decision) = cpu.block_lending(passive.wake_to_borrow(), MS).unwrap();
    assert_eq!(decision.run, Some(ThreadId(2)));
    let (passive, _) = cpu.block_lending(caller.unwrap().wake().unwrap(), 2 * MS).unwrap();
    assert!(passive.unwrap().wake().is_err());
    // A Runnable that loses its context in somebody's hands is refused, too.
    let mut bare = thread(7);
    let context = cpu.admit(Proposal::new(identity(7), spec(1, 100)), MS).unwrap();
    assert!(matches!(bare.bind(context), Ok(None)));
    bare.set_context_only(true);
    let context = bare.unbind().unwrap();
    assert!(bare.allowed().is_empty());
    assert!(cpu.enqueue(bare, 2 * MS).is_err());
    assert!(cpu.retire(context, 20 * MS).is_ok());
}

/// S-09: a context is taken from wherever its thread is: running, ready, throttled, demoted. The thread goes on at its weight.
#[test]
fn s_09_a_context_is_taken_from_anywhere() {
    let mut cpu = cpu();
    let mut demote = spec(2, 100);
    demote.overrun = Overrun::Demote;
    demote.criticality = 2;
    let mut throttle = spec(2, 100);
    throttle.criticality = 1;
    for (id, spec) in [(1, demote), (2, throttle), (3, spec(20, 100)), (4, spec(20, 200))] {
        let _ = bound(&mut cpu, id, spec, 0);
    }
    for now in [0, 2 * MS, 4 * MS] {
        let _ = cpu.dispatch(now);
    }
    assert_eq!(cpu.current(), Some(ThreadId(3)));
    let mut queues = Vec::new();
    cpu.for_each_queued_context(|ticket, _| queues.push((ticket.thread.0, ticket.queue)));
    queues.sort_by_key(|(id, _)| *id);
    assert_eq!(queues, [(1, QueueKind::Restricted), (2, QueueKind::Throttled), (4, QueueKind::Guaranteed)]);
    assert!(cpu.take_context(&cpu.find(ThreadId(99)), 5 * MS).is_none());
    for id in 1..=4 {
        let taken = cpu.take_context(&cpu.find(ThreadId(id)), 5 * MS).unwrap();
        assert_eq!(taken.context.identity(), identity(id));
        // 1 and 2 wait behind whoever has budget; 3 runs; 4 is among equals then.
        assert!(id == 4 || (taken.effect == Effect::Dispatch) == (id == 3), "{id}: {:?}", taken.effect);
        assert!(taken.stopped.is_none());
        assert!(cpu.take_context(&cpu.find(ThreadId(id)), 5 * MS).is_none(), "it has none any more");
        assert!(cpu.retire(taken.context, 20 * MS).is_ok());
        assert_eq!(cpu.check(), Ok(()));
        if id == 3 {
            let _ = cpu.dispatch(5 * MS);
        }
    }
    assert_eq!((cpu.contexts(), cpu.waiting()), (0, 3), "all best effort now, one running");
}

/// T-02: who asks for what is not there changes nothing, not even up to when the running thread pays for itself. A CPU that looks for a
/// context on its way asks often, and the one that has it may have read its clock before.
#[test]
fn t_02_what_is_refused_is_not_charged() {
    let mut cpu = cpu();
    let context = cpu.admit(Proposal::new(identity(1), spec(2, 10)), 0).unwrap();
    let other = cpu.admit(Proposal::new(identity(2), spec(2, 10)), 0).unwrap();
    let _ = cpu.enqueue(thread(1), 0).unwrap();
    let _ = cpu.dispatch(0);
    assert!(cpu.take_context(&cpu.find(ThreadId(1)), 3 * MS).is_none(), "it is on its way");
    assert!(cpu.unbind_current(3 * MS).is_none());
    assert!(cpu.run_at_once(thread(2), 3 * MS).is_err(), "somebody runs");
    assert_eq!(cpu.wall_ns(), 0);
    assert!(cpu.bind_current(context, MS).is_ok(), "the clock was read before the others came");
    assert!(cpu.bind_current(other, 3 * MS).is_err(), "it has one");
    assert_eq!((cpu.wall_ns(), cpu.time().thread_ns), (MS, MS));
    let taken = cpu.take_context(&cpu.find(ThreadId(1)), 2 * MS).unwrap();
    assert_eq!(taken.context.info(2 * MS).consumed_ns, MS, "it has paid for all since the bind");
}

/// S-09: threads that run on contexts only stop when theirs is taken: at once, in the caller's hands, if they wait; at the dispatch if they run.
#[test]
fn s_09_passive_threads_stop_without_their_context() {
    let mut cpu = cpu();
    for id in 1..=3 {
        let mut thread = thread(id);
        let spec = Spec { overrun: Overrun::Demote, criticality: 7 - id as u8, ..spec(5, 100) };
        let context = cpu.admit(Proposal::new(identity(id), spec), 0).unwrap();
        assert!(matches!(thread.bind(context), Ok(None)));
        thread.set_context_only(true);
        let _ = cpu.enqueue(thread, 0).unwrap();
    }
    let _ = cpu.dispatch(0);
    let _ = cpu.dispatch(5 * MS); // thread 1 is demoted, 2 runs, 3 is ready
    for id in [1, 3] {
        let taken = cpu.take_context(&cpu.find(ThreadId(id)), 6 * MS).unwrap();
        let stopped = taken.stopped.unwrap();
        assert_eq!((stopped.id(), stopped.context().is_none()), (ThreadId(id), true));
        assert!(stopped.wake().is_err());
        assert_eq!(cpu.check(), Ok(()));
    }
    let taken = cpu.take_context(&cpu.find(ThreadId(2)), 6 * MS).unwrap();
    assert_eq!((taken.effect, taken.stopped.is_none()), (Effect::Dispatch, true));
    let decision = cpu.dispatch(6 * MS);
    assert_eq!(decision.run, None);
    let evicted = decision.evicted.unwrap();
    assert_eq!((evicted.thread.id(), evicted.reason), (ThreadId(2), EvictionReason::ContextLost));
}

/// S-10: `yieldTo` puts the caller behind its target; who is more urgent runs before both, and nobody else moves.
#[test]
fn s_10_yield_to_queues_behind_the_target() {
    let mut cpu = cpu();
    for (id, period_ms) in [(1, 100), (2, 300), (3, 200), (4, 400)] {
        let _ = bound(&mut cpu, id, spec(5, period_ms), 0);
    }
    assert_eq!(cpu.dispatch(0).run, Some(ThreadId(1)));
    assert_eq!(cpu.yield_to(&cpu.find(ThreadId(9)), MS).map(|_| ()), Err(NotReady));
    assert_eq!(cpu.yield_to(&cpu.find(ThreadId(1)), MS).map(|_| ()), Err(NotReady));
    assert_eq!(cpu.current(), Some(ThreadId(1)));
    let mut order = vec![cpu.yield_to(&cpu.find(ThreadId(2)), MS).unwrap().run.unwrap().0];
    for turn in 1..4 {
        let now = MS + turn * 5 * MS;
        order.push(cpu.dispatch(now).run.unwrap().0);
    }
    assert_eq!(order, [3, 2, 1, 4], "each ran its 5 ms");
    assert_eq!(cpu.check(), Ok(()));
}

/// S-02, S-03: a new spec: checked first, the share exchanged, identity and counters kept, nothing made.
#[test]
fn s_03_a_new_spec_keeps_what_was_used() {
    let mut cpu = cpu();
    let _ = bound(&mut cpu, 1, spec(10, 100), 0);
    let _ = bound(&mut cpu, 2, spec(40, 100), 0);
    let _ = cpu.dispatch(0);
    let Taken { context, .. } = cpu.take_context(&cpu.find(ThreadId(1)), 8 * MS).unwrap();
    let (before, reserved) = (context.info(8 * MS), cpu.reserved());
    let (why, context) = cpu.readmit(context, spec(56, 100), 8 * MS).unwrap_err();
    assert!(
        matches!(
            why,
            AdmissionError::Refused(Witness { free_ppm: 550_000, reason: Reason::Utilisation, .. })
        ),
        "{why}"
    );
    let (why, context) = cpu.readmit(context, Spec::new(1, 100), 8 * MS).unwrap_err();
    assert!(matches!(why, AdmissionError::Invalid(SpecError::BudgetTooSmall { found_ns: 1 })));
    assert_eq!((context.info(8 * MS), cpu.reserved()), (before, reserved), "a refusal changes nothing");
    let context = cpu.readmit(context, spec(20, 50), 8 * MS).unwrap();
    assert_eq!(cpu.reserved().ppm(), 800_000);
    let refills = context.ledger().refills();
    assert_eq!(refills[0], Refill { time_ns: 8 * MS, amount_ns: 2 * MS });
    // Not at 58: what was used under the old one would be back at 100 only (S-13).
    assert_eq!(refills[1], Refill { time_ns: 100 * MS, amount_ns: 18 * MS });
    assert_eq!((context.identity(), context.info(8 * MS).consumed_ns), (identity(1), 8 * MS));
    assert!(cpu.retire(context, 20 * MS).is_ok());
    assert_eq!(cpu.reserved().ppm(), 400_000);
}

/// S-03: what was overdrawn is paid by the next refill, under whatever spec: reconfiguring does not forgive it.
#[test]
fn s_03_a_new_spec_forgives_no_overdraft() {
    let mut cpu = cpu();
    let _ = bound(&mut cpu, 1, spec(10, 100), 0);
    let _ = cpu.dispatch(0);
    let Taken { mut context, .. } = cpu.take_context(&cpu.find(ThreadId(1)), 13 * MS).unwrap(); // 3 ms too late
    assert_eq!(context.info(13 * MS).overrun_max_ns, 3 * MS);
    for now in [13 * MS, 14 * MS] {
        context = cpu.readmit(context, spec(10, 20), now).unwrap();
        assert_eq!(context.info(now).available_ns, 0);
        let ready = context.info(now).ready_at_ns;
        assert_eq!(context.info(ready).available_ns, 7 * MS, "after {context:?}");
    }
    assert!(cpu.retire(context, 20 * MS).is_ok());
}

/// S-07: a guest counts at both CPUs, runs at its host, and must go home before it is given up.
#[test]
fn s_07_a_context_is_hosted_elsewhere() {
    let mut cpus = [cpu(), Cpu::<u32>::new(cpu_id(1), PolicyKind::Wfq, 0)];
    let mut narrow = spec(30, 100);
    narrow.cpu_mask = CpuMask::only(cpu_id(0));
    let context = cpus[0].admit(Proposal::new(identity(1), narrow), 0).unwrap();
    let (why, context) = cpus[1].host(context, 0).unwrap_err();
    assert_eq!(why, AdmissionError::WrongCpu(cpu_id(1)));
    assert!(cpus[0].retire(context, 10 * MS).is_ok());

    let context = cpus[0].admit(Proposal::new(identity(1), spec(30, 100)), 0).unwrap();
    let (why, context) = cpus[0].host(context, 0).unwrap_err();
    assert_eq!(why, AdmissionError::Elsewhere(cpu_id(0)), "one is no guest at home");
    let big = cpus[1].admit(Proposal::new(identity(2), spec(70, 100)), 0).unwrap();
    let (why, context) = cpus[1].host(context, 0).unwrap_err();
    assert!(matches!(why, AdmissionError::Refused(_)));
    assert!(cpus[1].retire(big, 0).is_ok());
    let context = cpus[1].host(context, 0).unwrap();
    assert_eq!((context.home(), context.origin()), (cpu_id(1), cpu_id(0)));
    assert_eq!(cpus.each_ref().map(|cpu| (cpu.reserved().ppm(), cpu.contexts())), [(300_000, 1); 2]);
    let [context] = cpus
        .each_mut()
        .into_iter()
        .fold([context], |[context], cpu| [cpu.retire(context, 20 * MS).unwrap_err()]);
    let mut borrower = thread(5);
    borrower.set_allowed(CpuMask::only(cpu_id(1))).unwrap();
    assert!(matches!(borrower.bind(context), Ok(None)));
    let _ = cpus[1].enqueue(borrower, 0).unwrap();
    assert_eq!(cpus[1].dispatch(0).until_ns, 30 * MS);
    let ticket = cpus[1].find(ThreadId(5));
    let Taken { context, .. } = cpus[1].take_context(&ticket, 10 * MS).unwrap();
    let context = cpus[0].unhost(context, 10 * MS);
    assert!(context.is_hosted(), "it is no guest of that one");
    let context = cpus[1].unhost(context, 10 * MS);
    assert_eq!((context.home(), context.info(10 * MS).available_ns), (cpu_id(0), 20 * MS));
    assert_eq!(cpus.each_ref().map(|cpu| cpu.contexts()), [1, 0]);
    assert!(cpus[0].retire(context, 10 * MS).is_ok());
}

/// S-08: depletion and lateness are told once each, whatever event found them, and counted in the context.
#[test]
fn s_08_what_is_noted_is_noted_once() {
    let mut cpu = cpu();
    let mut low = spec(10, 100);
    low.relative_deadline_ns = 20 * MS;
    let _ = bound(&mut cpu, 1, low, 0);
    assert_eq!(cpu.dispatch(0).noted, Noted::NOTHING);
    let mut high = spec(8, 100);
    high.criticality = 7;
    let _ = bound(&mut cpu, 2, high, 5 * MS);
    assert_eq!(cpu.dispatch(5 * MS).run, Some(ThreadId(2)));
    let decision = cpu.dispatch(35 * MS); // the timer is late: 2 is out of budget, 1 had its deadline at 20
    assert_eq!((decision.run, decision.noted), (Some(ThreadId(1)), Noted::DEPLETED.and(Noted::THROTTLED)));
    assert_eq!(cpu.timer(37 * MS), Effect::Keep);
    assert_eq!(cpu.timer(40 * MS + 7), Effect::Dispatch);
    let decision = cpu.dispatch(40 * MS + 9);
    assert_eq!(
        (decision.run, decision.noted),
        (None, Noted::DEPLETED.and(Noted::LATE).and(Noted::THROTTLED))
    );
    let _ = cpu.timer(100 * MS);
    assert_eq!(cpu.dispatch(100 * MS).noted, Noted::NOTHING);
    let info = cpu.current_context().unwrap().info(100 * MS);
    assert_eq!((info.depletions, info.late, info.overrun_max_ns), (1, 1, 9));
    // Found by a block, told by the dispatch after it.
    let blocked = cpu.block(111 * MS).unwrap();
    assert!(cpu.dispatch(111 * MS).noted.has(Noted::DEPLETED));
    assert_eq!(blocked.context().unwrap().info(111 * MS).depletions, 2);
}

/// One passive server and its clients on one CPU, driven by random numbers: clients with contexts run, call, sleep; the server works for each and
/// answers. Beside a hog, so that nothing is free.
struct Clients {
    cpu: Cpu<u32>,
    now: u64,
    /// By thread: parked ones. The server is 0, the hog 1, then clients.
    parked: Vec<Option<Blocked<u32>>>,
    /// Whom each server works for; nobody: it waits for calls.
    callers: [Option<usize>; SERVERS],
    /// All that ran on each client's context, by stopwatch, as it grew.
    used: Vec<Vec<(u64, u64)>>,
    loans: u64,
}

const SERVERS: usize = 3; // the first is called by clients, each may call the next
const HOG: usize = SERVERS;

impl Clients {
    fn new(specs: &[Spec], policy: PolicyKind) -> Clients {
        let mut cpu = Cpu::new(cpu_id(0), policy, 0);
        let mut parked: Vec<_> = (0..SERVERS).map(|id| Some(thread(id as u64).park())).collect();
        parked.push(None);
        let _ = cpu.enqueue(thread(HOG as u64), 0).unwrap();
        for (at, spec) in specs.iter().enumerate() {
            let _ = bound(&mut cpu, (HOG + 1 + at) as u64, *spec, 0);
            parked.push(None);
        }
        for server in parked.iter_mut().flatten() {
            server.set_context_only(true);
        }
        let used = vec![vec![(0, 0)]; specs.len()];
        let mut clients = Clients { cpu, now: 0, parked, callers: [None; SERVERS], used, loans: 0 };
        let decision = clients.cpu.dispatch(0);
        clients.carry_out(decision);
        clients
    }

    fn carry_out(&mut self, decision: Decision<u32>) {
        assert!(decision.evicted.is_none());
        assert_eq!(decision.run, Some(self.cpu.current().unwrap()), "the hog always runs, if nobody else");
        self.cpu.check().unwrap_or_else(|violation| panic!("{violation}"));
    }

    /// Time passes: on the account of the running context, by a stopwatch that knows nothing of the core's.
    fn advance(&mut self, elapsed: u64) {
        self.now += elapsed;
        if self.cpu.current_is_guaranteed() {
            let context = self.cpu.current_context().unwrap().identity().id as usize - HOG - 1;
            let total = self.used[context].last().unwrap().1 + elapsed;
            self.used[context].push((self.now, total));
        }
    }

    fn exchange(&mut self, next: usize) {
        let next = self.parked[next].take().unwrap().wake_to_borrow();
        let (blocked, decision) = self.cpu.block_lending(next, self.now).unwrap();
        let blocked = blocked.unwrap();
        assert!(blocked.context().is_none());
        let at = blocked.id().0 as usize;
        self.parked[at] = Some(blocked);
        self.carry_out(decision);
        self.loans += 1;
    }

    fn step(&mut self, random: &mut Random) {
        let elapsed = random.range(1, 3 * MS).min(self.cpu.until_ns().saturating_sub(self.now).max(1));
        self.advance(elapsed);
        if self.cpu.timer(self.now) == Effect::Dispatch {
            let decision = self.cpu.dispatch(self.now);
            return self.carry_out(decision);
        }
        let current = self.cpu.current().unwrap().0 as usize;
        let server = if current < SERVERS { current + 1 } else { 0 };
        match random.next() % 4 {
            // A client calls the first server, a server the next one, if it waits.
            0 | 1 if current != HOG && self.callers.get(server) == Some(&None) => {
                self.callers[server] = Some(current);
                self.exchange(server);
            }
            2 if current < SERVERS => {
                let caller = self.callers[current].take().unwrap();
                self.exchange(caller);
            }
            3 if current > HOG => {
                self.parked[current] = self.cpu.block(self.now);
                let decision = self.cpu.dispatch(self.now);
                self.carry_out(decision);
            }
            _ => {}
        }
        for at in HOG + 1..self.parked.len() {
            let sleeps = self.parked[at].as_ref().is_some_and(|thread| thread.context().is_some());
            if sleeps && random.next().is_multiple_of(3) {
                let woken = self.parked[at].take().unwrap().wake().unwrap();
                if self.cpu.enqueue(woken, self.now).unwrap() == Effect::Dispatch {
                    let decision = self.cpu.dispatch(self.now);
                    self.carry_out(decision);
                }
            }
        }
    }
}

/// S-06, S-07: N clients through one passive server, which may call on, over random schedules: what runs on each context is at most its
/// budgets in every window (`k + 1` in `k` periods: one band, EDF), so all of them together get at most the sum.
#[test]
fn s_06_clients_of_one_server_get_the_sum_of_their_budgets() {
    let mut loans = 0;
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let clients = random.range(1, 6);
        let specs: Vec<Spec> = (0..clients)
            .map(|_| {
                let period_ns = random.range(5, 40) * MS;
                let mut spec = Spec::new(period_ns * random.range(20, 900 / clients) / 1_000, period_ns);
                spec.max_refills = random.range(2, 8) as u8;
                spec
            })
            .collect();
        let mut world = Clients::new(&specs, [PolicyKind::Wfq, PolicyKind::Eevdf][seed as usize % 2]);
        for _ in 0..1_500 {
            world.step(&mut random);
        }
        for (used, spec) in world.used.iter().zip(&specs) {
            // A timer is at most a nanosecond late here, once a budget.
            for (first, &(start, before)) in used.iter().enumerate() {
                for &(end, after) in &used[first..] {
                    let most = ((end - start).div_ceil(spec.period_ns) + 1) * (spec.budget_ns + 1);
                    assert!(after - before <= most, "seed {seed}: {} of {most}", after - before);
                }
            }
        }
        loans += world.loans;
    }
    assert!(loans > 5_000, "the loans were made: {loans}");
}
