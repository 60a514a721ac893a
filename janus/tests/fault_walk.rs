//! J-19: a fault at every allocation and at every frame of random programs. The stack ends, seen in time or not, and memory
//! ends, within the reserve or beyond it: each run ends with a typed error, or, where everybody borrows, with the named abort; and
//! nobody ever sees memory in the middle of a change. `FAULT_SEEDS=20` walks through more programs; each that is given up leaks its thread, and with 30 Linux has no mappings left.
//!
//! A program is a random list of steps over containers, locks, channels and children that borrow. It is run once without a
//! fault, to learn how many allocations and frames it has, and then once for each of them and each kind of fault.

mod common;

use common::within;
use janus::raw::with_task;
use janus::{Budget, Charged, Config, Cx, NurseryOptions, Recharge, Resource, Runtime, TaskError, channel};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

/// What happens, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Fault {
    None,
    /// At a frame: the stack ends where nobody looks.
    Overflow,
    /// At a frame: the runtime is asked whether there is enough, and there is not.
    OverflowSeen,
    /// At an allocation: memory beyond the budget, and within the reserve.
    Memory,
    /// At an allocation: memory beyond the reserve.
    MemoryBeyond,
}

const FAULTS: [Fault; 4] = [Fault::Overflow, Fault::OverflowSeen, Fault::Memory, Fault::MemoryBeyond];

impl Fault {
    fn is_of_frames(self) -> bool {
        matches!(self, Fault::Overflow | Fault::OverflowSeen)
    }

    /// Is the task given up, or does it end in order?
    fn gives_up(self) -> bool {
        matches!(self, Fault::Overflow | Fault::MemoryBeyond)
    }
}

/// The fault that is planned, at which allocation or frame, how many of each there were, and whether it has happened.
static PLAN: AtomicU8 = AtomicU8::new(Fault::None as u8);
static AT: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static FRAMES: AtomicUsize = AtomicUsize::new(0);
static HAPPENED: AtomicBool = AtomicBool::new(false);
/// A program runs.
static COUNTING: AtomicBool = AtomicBool::new(false);

/// Is it now?
fn strikes(fault: Fault, count: usize) -> bool {
    PLAN.load(Ordering::Relaxed) == fault as u8
        && count == AT.load(Ordering::Relaxed)
        && !HAPPENED.swap(true, Ordering::Relaxed)
}

/// Calls `body` with the context of the task that runs here, if one does.
fn in_task<R>(body: impl FnOnce(&Cx) -> R) -> Option<R> {
    // SAFETY: an allocator, a comparison and a hook are given no context.
    unsafe { with_task(body) }
}

/// Counts what tasks allocate, and has one of their allocations be a large one.
struct Faulty(Charged);

#[global_allocator]
static ALLOC: Faulty = Faulty(Charged::new());

impl Faulty {
    fn count(&self) {
        if !COUNTING.load(Ordering::Relaxed) || in_task(|_| ()).is_none() {
            return;
        }
        let count = ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let large = [(Fault::Memory, 3 << 20), (Fault::MemoryBeyond, 64 << 20)];
        for (fault, bytes) in large {
            if strikes(fault, count) {
                let layout = Layout::from_size_align(bytes, 8).unwrap();
                // SAFETY: the layout is not empty; what was allocated is freed, by the same allocator.
                unsafe {
                    let taken = self.0.alloc(layout);
                    if !taken.is_null() {
                        self.0.dealloc(taken, layout);
                    }
                }
            }
        }
    }
}

// SAFETY: the other allocator does all of it.
unsafe impl GlobalAlloc for Faulty {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: the caller's.
        unsafe { self.0.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.0.dealloc(pointer, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: the caller's.
        unsafe { self.0.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count();
        // SAFETY: the caller's.
        unsafe { self.0.realloc(pointer, layout, size) }
    }
}

#[inline(never)]
fn without_end(depth: u64) -> u64 {
    if depth == u64::MAX { 0 } else { black_box(without_end(depth + 1)) + 1 }
}

/// A frame of the program.
fn frame() {
    if !COUNTING.load(Ordering::Relaxed) || std::thread::panicking() {
        return;
    }
    let count = FRAMES.fetch_add(1, Ordering::Relaxed);
    if strikes(Fault::Overflow, count) {
        black_box(without_end(0));
    }
    if strikes(Fault::OverflowSeen, count) {
        in_task(|cx| cx.ensure_stack(usize::MAX));
    }
}

/// What was seen that must not be.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// A value that knows whether it is one. It lies in the program's containers; what is half moved, or dropped twice, shows.
struct Value {
    number: u64,
    /// Its number, scrambled, while it lives.
    seal: u64,
    /// Of the heap, so that a second drop is one of memory too.
    text: String,
}

const SEAL: u64 = 0x5EA1_5EA1_5EA1_5EA1;

impl Value {
    fn new(number: u64) -> Value {
        frame();
        Value { number, seal: number ^ SEAL, text: number.to_string() }
    }

    fn check(&self) {
        self.look();
    }

    fn look(&self) -> u64 {
        if self.number ^ SEAL != self.seal || self.text.parse() != Ok(self.number) {
            SEEN.fetch_add(1, Ordering::Relaxed);
        }
        self.number
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.look();
        self.seal = 0;
        // A destructor must not panic: only the fault that nobody sees may strike here.
        if PLAN.load(Ordering::Relaxed) == Fault::Overflow as u8 {
            frame();
        }
    }
}

impl Clone for Value {
    fn clone(&self) -> Value {
        Value::new(self.look())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        frame();
        self.look() == other.look()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> std::cmp::Ordering {
        frame();
        self.look().cmp(&other.look())
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        frame();
        self.look().hash(state);
    }
}

/// A map whose order does not depend on chance: runs must repeat themselves.
type Table = HashMap<Value, Value, BuildHasherDefault<DefaultHasher>>;

/// What a program works on.
#[derive(Default)]
struct World {
    list: Vec<Value>,
    queue: VecDeque<Value>,
    tree: BTreeMap<Value, Value>,
    table: Table,
}

impl World {
    fn sum(&self) -> u64 {
        let mut sum = 0_u64;
        let mut add = |value: &Value| sum = sum.wrapping_mul(31).wrapping_add(value.look());
        self.list.iter().for_each(&mut add);
        self.queue.iter().for_each(&mut add);
        self.tree.iter().for_each(|(key, value)| (add(key), add(value)).0);
        let mut table: Vec<u64> = self.table.iter().map(|(key, value)| key.look() ^ value.look()).collect();
        table.sort_unstable();
        table.iter().fold(sum, |sum, number| sum.wrapping_mul(31).wrapping_add(*number))
    }
}

/// What others see too: two lists that are of the same length whenever nobody holds the lock.
#[derive(Default)]
struct Shared(Mutex<(Vec<Value>, Vec<Value>)>);

impl Shared {
    fn look(&self) {
        // Held by a task that was given up: then nobody sees it.
        let pair = match self.0.try_lock() {
            Ok(pair) => pair,
            Err(TryLockError::WouldBlock) => return,
            // A panic in the middle: each list is whole, the pair need not be.
            Err(TryLockError::Poisoned(pair)) => {
                let pair = pair.into_inner();
                pair.0.iter().chain(&pair.1).for_each(Value::check);
                return;
            }
        };
        if pair.0.len() != pair.1.len() {
            SEEN.fetch_add(1, Ordering::Relaxed);
        }
        pair.0.iter().chain(&pair.1).for_each(Value::check);
    }
}

/// Numbers by a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Why a program did not come to its end, though its task did: a child, or a check, was told to end.
struct Stopped;

/// One step, chosen by chance.
fn step(
    cx: &Cx,
    world: &mut World,
    shared: &Shared,
    random: &mut Random,
    depth: usize,
) -> Result<(), Stopped> {
    frame();
    let number = random.below(1_000);
    match random.below(if depth < 2 { 12 } else { 10 }) {
        0 => world.list.push(Value::new(number)),
        1 => world.list.extend((0..4).map(|i| Value::new(number + i))),
        2 => world.list.sort(),
        3 => world.list.retain(|value| value.look() % 5 != number % 5),
        4 => drop(world.tree.insert(Value::new(number), Value::new(number + 1))),
        5 => drop(world.table.insert(Value::new(number), Value::new(number + 1))),
        6 => {
            let moved = world.list.len() / 2;
            world.queue.extend(world.list.drain(moved..));
        }
        7 => world.list = world.queue.iter().take(6).cloned().chain(world.list.drain(..)).collect(),
        8 => {
            let Ok(mut pair) = shared.0.lock() else { return Ok(()) };
            pair.0.push(Value::new(number));
            pair.1.push(Value::new(number));
        }
        9 => cx.check().map_err(|_| Stopped)?,
        // A child borrows a part of the world, and works on it.
        10 => {
            let mut part = World { list: world.list.drain(..).collect(), ..World::default() };
            let seed = Random(random.below(u64::MAX >> 8));
            let well = &AtomicBool::new(false);
            let ended = cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |n| {
                let (part, mut seed) = (&mut part, seed);
                let child = n.task().children(if depth == 0 { 40 } else { 2 }).spawn(move |cx| {
                    let end = (0..6).try_for_each(|_| step(cx, part, shared, &mut seed, depth + 1));
                    well.store(end.is_ok(), Ordering::Relaxed);
                });
                // It is waited for here, or where the nursery ends.
                if number.is_multiple_of(2) {
                    let _ = child.join(cx);
                } else {
                    drop(child);
                }
                Ok(())
            });
            // Whatever became of the child, this is whole, or nobody gets here.
            part.sum();
            world.list = part.list;
            if ended.is_err() || !well.load(Ordering::Relaxed) {
                return Err(Stopped);
            }
        }
        // Two children talk.
        _ => {
            let (sender, receiver) = channel::<Value>(1);
            let got = Mutex::new(Vec::new());
            let ended = cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |n| {
                let send = move |cx: &Cx| {
                    (0..3).try_for_each(|i| sender.send(cx, Value::new(number + i)).map_err(drop)).is_ok()
                };
                let got = &got;
                let receive = move |cx: &Cx| {
                    while let Ok(value) = receiver.recv(cx) {
                        if let Ok(mut got) = got.lock() {
                            got.push(value);
                        }
                    }
                };
                let (send, receive) = (n.spawn(send), n.spawn(receive));
                Ok(send.join(cx).is_ok_and(|sent| sent) && receive.join(cx).is_ok())
            });
            if !ended.is_ok_and(|well| well) {
                return Err(Stopped);
            }
            world.queue.extend(got.into_inner().unwrap_or_default());
        }
    }
    Ok(())
}

/// A whole program: what came of it, if it came to its end.
fn program(cx: &Cx, seed: u64, shared: &Shared) -> Option<u64> {
    let (mut world, mut random) = (World::default(), Random(seed));
    let end = (0..40).try_for_each(|_| step(cx, &mut world, shared, &mut random, 0));
    let sum = world.sum();
    end.is_ok().then_some(sum)
}

fn runtime(workers: usize) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(workers).watchdog(None)) }.expect("a runtime")
}

const BUDGET: Budget = Budget { memory: 2 << 20, spawn_count: 2_000, ..Budget::UNLIMITED };

/// Plans a fault, runs the program, and says how its task ended.
fn play(rt: &Runtime, seed: u64, fault: Fault, at: usize) -> Result<Option<u64>, TaskError> {
    let shared = Arc::new(Shared::default());
    AT.store(at, Ordering::Relaxed);
    [&ALLOCATIONS, &FRAMES].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
    HAPPENED.store(false, Ordering::Relaxed);
    PLAN.store(fault as u8, Ordering::Relaxed);
    let mut end = None;
    let result = rt.run(|cx| {
        cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |n| {
            let of_task = shared.clone();
            let task = n.task().name("program").budget(BUDGET).owned().spawn(move |cx| {
                COUNTING.store(true, Ordering::Relaxed);
                let end = program(cx, seed, &of_task);
                COUNTING.store(false, Ordering::Relaxed);
                end
            });
            end = Some(task.join(cx));
            COUNTING.store(false, Ordering::Relaxed);
            Ok(())
        })
    });
    // The nursery fails as its child does; the task that opened it goes on.
    let _ = result.unwrap();
    PLAN.store(Fault::None as u8, Ordering::Relaxed);
    shared.look();
    end.expect("it was joined")
}

/// Panics of tasks are what is tested here, and not worth a line.
fn hush() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        if in_task(|_| ()).is_none() {
            loud(what);
        }
    }));
}

fn seeds() -> u64 {
    // Not `SEEDS`, which is what the simulator's fuzzer and `make test` say: here a seed is hundreds of runs.
    std::env::var("FAULT_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3)
}

/// Its task is owned: it fails alone, at whatever place, and everybody else goes on.
#[test]
fn j_19_a_fault_at_every_allocation_and_every_frame() {
    for seed in 0..seeds() {
        within(move || {
            hush();
            let rt = runtime(1 + seed as usize % 2);
            let whole = play(&rt, seed, Fault::None, 0).unwrap().expect("it comes to its end");
            for fault in FAULTS {
                // Nowhere: for how many places there are.
                assert_eq!(play(&rt, seed, fault, usize::MAX).unwrap(), Some(whole));
                let places = if fault.is_of_frames() { &FRAMES } else { &ALLOCATIONS };
                let places = places.load(Ordering::Relaxed);
                assert!(places > 40, "{places} are no program");
                let (mut ended, mut given_up) = (0, 0);
                for at in 0..places {
                    let before = rt.stats().stacks_abandoned;
                    let end = play(&rt, seed, fault, at);
                    let happened = HAPPENED.load(Ordering::Relaxed);
                    match &end {
                        // Not reached (two workers count in another order), or where the runtime allocates for itself.
                        Ok(Some(sum)) => assert_eq!(*sum, whole, "{fault:?} at {at}"),
                        // A child ended, and its parent with it, in order.
                        Ok(None) => assert!(happened && !fault.gives_up(), "{fault:?} at {at}"),
                        Err(TaskError::StackOverflow) => assert!(happened && fault.is_of_frames()),
                        Err(TaskError::BudgetExceeded(Resource::Memory)) => {
                            assert!(happened && !fault.is_of_frames());
                        }
                        Err(other) => panic!("{fault:?} at {at}: {other:?}"),
                    }
                    ended += usize::from(!matches!(end, Ok(Some(_))));
                    given_up += usize::from(rt.stats().stacks_abandoned > before);
                    assert_eq!(
                        SEEN.load(Ordering::Relaxed),
                        0,
                        "{fault:?} at {at}: something half changed was seen"
                    );
                }
                println!(
                    "seed {seed}: {fault:?} at {places} places, {ended} ended, {given_up} of them given up"
                );
                assert!(ended * 2 > places, "{fault:?} strikes: {ended} of {places}");
                assert_eq!(given_up > 0, fault.gives_up(), "{fault:?}: {given_up} were given up");
                // And all is well.
                assert_eq!(play(&rt, seed, Fault::None, 0).unwrap(), Some(whole));
            }
        });
    }
}

#[test]
#[ignore = "run by the next in processes of their own"]
fn everybody_borrows_here() {
    let word = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let fault = FAULTS[word("FAULT")];
    AT.store(word("AT"), Ordering::Relaxed);
    PLAN.store(fault as u8, Ordering::Relaxed);
    let shared = Shared::default();
    let mut world = World { list: (0..9).map(Value::new).collect(), ..World::default() };
    let rt = runtime(2);
    let (lent, shared) = (&mut world, &shared);
    let _ = rt.run(|cx| {
        cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |n| {
            let body = move |cx: &Cx| {
                COUNTING.store(true, Ordering::Relaxed);
                let mut random = Random(1);
                (0..24).try_for_each(|_| step(cx, lent, shared, &mut random, 0)).is_ok()
            };
            n.task().name("borrower").budget(BUDGET).spawn(body);
            Ok(())
        })
    });
    COUNTING.store(false, Ordering::Relaxed);
    world.sum();
    assert_eq!(SEEN.load(Ordering::Relaxed), 0);
    println!(
        "somebody went on, {}",
        if HAPPENED.load(Ordering::Relaxed) { "after it" } else { "without it" }
    );
}

/// Nobody between it and the one who called `run` is owned: the process ends by name, at whatever place; where the task can end in
/// order, it does that.
#[test]
fn j_19_a_fault_where_everybody_borrows() {
    let mut aborted = 0;
    for (kind, fault) in FAULTS.into_iter().enumerate() {
        for at in (0..60).step_by(4) {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "everybody_borrows_here", "--ignored", "--nocapture"]);
            let output = command.env("FAULT", kind.to_string()).env("AT", at.to_string()).output().unwrap();
            let (shown, said) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            if output.status.signal() == Some(6) {
                assert!(fault.gives_up(), "{fault:?} at {at}: {said}");
                assert!(said.contains("janus: abort: task #"), "{said}");
                assert!(!shown.contains("somebody went on"), "{fault:?} at {at}: {shown}");
                aborted += 1;
            } else {
                assert!(output.status.success(), "{fault:?} at {at}: {}\n{shown}{said}", output.status);
                // An allocation of the runtime's own is served.
                let served = fault == Fault::MemoryBeyond || shown.contains("without it");
                assert!(!fault.gives_up() || served, "{fault:?} at {at}: {shown}");
            }
        }
    }
    assert!(aborted > 15, "{aborted} ended by name");
}
