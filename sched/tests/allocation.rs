//! Nothing allocates or frees once threads, contexts and CPUs are made: queues get their nodes from the threads (K-18, F-01).
//!
//! Counted for the test's own thread: the test harness allocates whenever it likes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sched::*;

/// The system's allocator, with a count of calls.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and nobody asks for it.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: both calls go to the system's allocator unchanged; counting touches no memory of theirs.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises about `layout` are passed on as they are.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MS: u64 = 1_000_000;
const THREADS: u64 = 3_000;

/// Random events on two CPUs with thousands of threads: wakes, blocks, timers, yields, handovers, steals, balance steps, new weights.
#[test]
fn k_18_events_neither_allocate_nor_free() {
    for policy in [PolicyKind::Wfq, PolicyKind::Eevdf] {
        let cpu = |number| Cpu::<u32>::new(CpuId::new(number).unwrap(), policy, 0);
        let mut cpus = [cpu(0), cpu(1)];
        let mut away = Away {
            threads: Vec::with_capacity(THREADS as usize),
            contexts: Vec::with_capacity(40),
            survey: Survey::default(),
        };
        for id in 0..THREADS {
            let mut thread = Runnable::new(ThreadId(id), id as u32);
            thread.set_weight([64, 1, 1024, 128][id as usize % 4]).unwrap();
            if id % 7 == 0 {
                thread.set_allowed(CpuMask::first_n(1 + id as usize % 2)).unwrap();
            }
            if id < 40 {
                let overrun = [Overrun::Throttle, Overrun::Demote, Overrun::Fault][id as usize % 3];
                let spec = Spec { overrun, ..Spec::new(100_000, 10 * MS) };
                let proposal = Proposal::new(ContextId { id, generation: 0 }, spec);
                let home = if id % 7 == 0 { 0 } else { id as usize % 2 };
                let context = cpus[home].admit(proposal, 0).unwrap();
                assert!(matches!(thread.bind(context), Ok(None)));
            }
            away.threads.push(thread.park());
        }
        let before = CALLS.get();
        assert!(before > THREADS, "the counting works");
        let (mut now, mut random) = (0, 88_172_645_463_325_252u64);
        for _ in 0..60_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            now += random % 200_000;
            step(&mut cpus, &mut away, now, random >> 20);
        }
        assert_eq!(CALLS.get() - before, 0, "{policy:?}: calls of the allocator");
        cpus.iter().for_each(|cpu| assert_eq!(cpu.check(), Ok(())));
        assert!(cpus.iter().any(|cpu| cpu.contexts() > 10), "contexts were used");
        assert!(cpus.iter().map(|cpu| cpu.queued()).sum::<usize>() > 500, "the queues were used");
    }
}

fn step(cpus: &mut [Cpu<u32>; 2], away: &mut Away, now: u64, random: u64) {
    let [zero, one] = cpus;
    let (here, there) = if random & 1 == 0 { (zero, one) } else { (one, zero) };
    match random >> 1 & 15 {
        0..6 if !away.threads.is_empty() => {
            let thread = away.threads.swap_remove(random as usize % away.threads.len()).wake().unwrap();
            let place = if thread.allowed().contains(here.id()) { &mut *here } else { there };
            let effect =
                if random & 64 == 0 { place.enqueue(thread, now) } else { place.hand_over(thread, now) };
            if effect.unwrap() == Effect::Dispatch {
                evict(place.dispatch(now), away);
            }
        }
        6..9 => {
            away.threads.extend(here.block(now));
            evict(here.dispatch(now), away);
        }
        9 => evict(here.yield_now(now), away),
        10 => drop(here.set_current_weight(1 + (random % 1024) as u16, now)),
        11 => drop(here.steal_from(there, now)),
        12 => drop(here.balance_from(there, now)),
        13 if !away.threads.is_empty() => {
            let next = away.threads.swap_remove(random as usize % away.threads.len()).wake_to_borrow();
            match here.block_lending(next, now) {
                Ok((blocked, decision)) => {
                    away.threads.extend(blocked);
                    evict(decision, away);
                }
                Err(Misplaced(thread)) => away.threads.push(thread.park()),
            }
        }
        14 => move_contexts(here, there, away, now, random),
        _ if here.timer(now) == Effect::Dispatch => evict(here.dispatch(now), away),
        _ => {}
    }
}

/// Threads and contexts in nobody's queue.
struct Away {
    threads: Vec<Blocked<u32>>,
    // A context is a box wherever it goes.
    #[allow(clippy::vec_box)]
    contexts: Vec<Box<Context>>,
    survey: Survey,
}

/// A context is taken from a thread, configured anew, sent to the other CPU and back, and one is bound to somebody.
fn move_contexts(here: &mut Cpu<u32>, there: &mut Cpu<u32>, away: &mut Away, now: u64, random: u64) {
    if let Ok(decision) = here.yield_to(&here.find(ThreadId(random % 40)), now) {
        evict(decision, away);
    }
    let ticket = here.find(ThreadId(random >> 8 & 63));
    if let Some(Taken { mut context, effect, .. }) = here.take_context(&ticket, now) {
        if effect == Effect::Dispatch {
            evict(here.dispatch(now), away);
        }
        let spec = *context.spec();
        here.survey(Successor::OfNobody, now, &mut away.survey);
        let verdict = away.survey.judge_change(context.identity().id, &spec, &mut || true).unwrap();
        context = here.readmit_judged(context, spec, &verdict, now).unwrap();
        there.survey(Successor::OfItself(context.identity().id), now, &mut away.survey);
        let verdict = away.survey.judge(&spec).unwrap();
        context = there.host_judged(context, &verdict, now).unwrap();
        away.contexts.push(there.unhost(context, now));
    }
    if let Some(context) = away.contexts.pop() {
        let free =
            |thread: &&mut Blocked<u32>| thread.context().is_none() && thread.may_run_on(context.home());
        match away.threads.iter_mut().find(free) {
            Some(thread) => assert!(matches!(thread.bind(context), Ok(None))),
            None => away.contexts.push(context),
        }
    }
}

fn evict(decision: Decision<u32>, away: &mut Away) {
    away.threads.extend(decision.evicted.map(|evicted| evicted.thread));
}
