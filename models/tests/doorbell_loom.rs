//! The lock-free piece under loom: every interleaving *and* every reordering that the memory model allows (M-02).
//!
//! The real glue and the real core run here, with loom's atomics and locks. Hints (`models::board`) stay plain: nobody's
//! sleep depends on them. Loom treats `SeqCst` accesses as acquire/release, so the fence that the protocol needs must be
//! an explicit one, and is.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Mutex, MutexGuard};
use models::Flaw;
use models::core::{Core, Phase};
use models::protocol::{Claim, Machine};
use models::record::Record;
use models::sync::{Backend, Lock, Word};
use sched::{CpuId, CpuMask, PolicyKind};

struct Loom;
struct LoomWord(AtomicU64);
struct LoomLock<T>(Mutex<T>);

impl Backend for Loom {
    type Word = LoomWord;
    type Lock<T> = LoomLock<T>;

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl Word for LoomWord {
    fn new() -> LoomWord {
        LoomWord(AtomicU64::new(0))
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    fn set(&self, bits: u64) -> u64 {
        self.0.fetch_or(bits, Ordering::AcqRel)
    }

    fn clear(&self, bits: u64) -> u64 {
        self.0.fetch_and(!bits, Ordering::AcqRel)
    }
}

impl<T> Lock<T> for LoomLock<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        Self: 'a,
        T: 'a;

    fn new(_rank: u32, value: T) -> LoomLock<T> {
        LoomLock(Mutex::new(value))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no panic under a lock")
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Steps until the CPU rests: it runs a thread or halts, and nobody has rung.
fn run_to_rest(core: &mut Core<Loom>, machine: &Machine<Loom>) {
    while !core.rests(machine) {
        if let Some(thread) = core.step(machine, 0) {
            machine.make_runnable(thread, Some(core.id), 0);
        }
    }
}

/// Two CPUs, of which the first has `busy` threads (one running, the others waiting), the second none. Thread 1 may not
/// leave CPU 0, so it is nothing to steal.
fn prepare(flaw: Option<Flaw>, threads: u64, busy: usize) -> (Arc<Machine<Loom>>, [Core<Loom>; 2]) {
    let pin = |id: u64| {
        Record::parked(id, move |blocked| {
            let cpus = if id == 1 { CpuMask::first_n(1) } else { CpuMask::ALL };
            blocked.set_allowed(cpus).expect("not empty");
        })
    };
    let threads = (0..threads).map(pin).collect();
    let machine = Arc::new(Machine::new(2, threads, PolicyKind::Wfq, flaw));
    let mut cores = [0, 1].map(|at| Core::new(CpuId::new(at).expect("small"), flaw));
    for thread in 0..busy {
        machine.wake(thread, None, 0); // nobody is idle yet: to the least loaded, CPU 0
    }
    if busy > 0 {
        cores[0].phase = Phase::Halt; // woken by the ring, it dispatches once: thread 0 runs, thread 1 waits
        run_to_rest(&mut cores[0], &machine);
        assert_eq!(cores[0].phase, Phase::Run);
    }
    (machine, cores)
}

/// Delivers the interrupts that are pending when both sides have done their part, and looks for work left beside a halted CPU.
fn assert_nothing_left(machine: &Machine<Loom>, cores: &mut [Core<Loom>; 2]) {
    while !cores.iter().all(|core| core.rests(machine)) {
        cores.iter_mut().for_each(|core| run_to_rest(core, machine));
    }
    for core in cores {
        let (idle, queued) = machine.look(core.id, |cpu| (cpu.current().is_none(), cpu.queued()));
        assert!(!(idle && queued > 0), "lost wake-up: {} halts over its own queue", core.id);
        assert!(
            !(idle && machine.bell.offers_to(core.id).next().is_some()),
            "lost wake-up: {} halts beside work that it could take",
            core.id
        );
    }
}

fn explore(scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 10_000;
    model.check(scenario);
}

/// CPU 1 goes idle from `phase` on, while a waker queues the last thread on CPU `target`.
fn race(flaw: Option<Flaw>, threads: u64, busy: usize, phase: Phase, target: usize) {
    explore(move || {
        let (machine, [mut first, mut second]) = prepare(flaw, threads, busy);
        second.phase = phase;
        let shared = Arc::clone(&machine);
        let going_idle = loom::thread::spawn(move || {
            run_to_rest(&mut second, &shared);
            second
        });
        let Claim::Won(thread) = machine.claim(busy) else { panic!("nobody else wakes it") };
        let cpu = CpuId::new(target).expect("small");
        let looked_idle = machine.bell.idle() & 1 << target != 0;
        let effect = machine.insert(cpu, thread, 0).expect("it may run anywhere");
        machine.notify(cpu, effect, looked_idle);
        machine.bell.call_help();
        run_to_rest(&mut first, &machine);
        let second = going_idle.join().expect("no panic");
        assert_nothing_left(&machine, &mut [first, second]);
    });
}

/// The thread is one too many on CPU 0, and CPU 1 looks for work for the last time. CPU 0 shares its time already, so the
/// newcomer changes nothing there and nobody rings it: only the two looks decide.
fn spare_work_or_idle(flaw: Option<Flaw>) {
    race(flaw, 3, 2, Phase::Look, 0);
}

/// The thread is for CPU 1 itself.
fn ring_or_halt(flaw: Option<Flaw>) {
    race(flaw, 1, 0, Phase::Redispatch, 1);
}

/// Runs a scenario that must fail, and returns what it said.
fn failure(scenario: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(scenario).expect_err("the planted bug was not found");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}

#[test]
fn m_02_spare_work_meets_an_idle_cpu() {
    spare_work_or_idle(None);
}

#[test]
fn m_02_a_ring_is_not_lost() {
    ring_or_halt(None);
}

#[test]
fn m_02_without_the_recheck_is_caught() {
    assert!(failure(|| spare_work_or_idle(Some(Flaw::NoRecheck))).contains("lost wake-up"));
}

#[test]
fn m_02_without_the_fence_is_caught() {
    assert!(failure(|| spare_work_or_idle(Some(Flaw::NoFence))).contains("lost wake-up"));
}

#[test]
fn m_02_an_idle_check_before_the_enqueue_is_caught() {
    assert!(failure(|| ring_or_halt(Some(Flaw::IdleCheckedTooEarly))).contains("lost wake-up"));
}
