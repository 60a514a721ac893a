//! Proof of the ring: credits, nonsense in the shared page, unknown entries, many operations at once (K-11, K-12); versions that do not
//! exist.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use programs::ensure;
use programs::kit::{self, MS, raised};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use programs::rawring::RawRing;
use rt::abi::{
    CQ_ENTRIES, Cqe, Exception, Op, PAGE_BYTES, RING_ABI_VERSION, Ring, SQE_VERSION, Sqe, TransportError,
    flags,
};
use rt::thread::{self, Builder};
use rt::{Client, Endpoint, Factory, ParkSpace, Protection, Timer, caps, println, ring, time, vm};

rt::main!(run);

const ENTRIES: u64 = CQ_ENTRIES as u64;

fn run() -> i64 {
    prove("ring-flood", || {
        println!("ring-flood: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        step("a batch of 32, completed in order (K-11)", batch)?;
        step("batches by rt, in the order of their entries (K-11)", batches)?;
        step("a full completion queue stops consumption and loses nothing (K-11)", full_queue)?;
        step("operations under way keep their place in the queue (K-11)", reserved)?;
        step("a tail that is nonsense consumes nothing (K-12)", bad_tails)?;
        step("a head that is nonsense stops its writer only (K-11)", bad_heads)?;
        step("what the kernel wrote is not believed when it comes back (K-11)", scribbles)?;
        step("unknown operations, versions and flags (K-21)", unknown)?;
        step("fields that an operation does not name must be 0 (K-28)", unnamed)?;
        step("the version is told, and others are refused by name (Q-05)", versions)?;
        step("quiet entries complete only when they fail (K-11)", quiet)?;
        step("the ring itself cannot be taken away (K-11)", own_page)?;
        step("thirty-two operations of all kinds under way, each completes once (K-11)", mixture)?;
        step("messages on their way are charged to whoever sent them (K-07)", messages_charged)?;
        step("threads with rings of their own, as fast as they can (K-11, K-12)", hammer)
    })
}

/// The results of a batch come in the order of its entries, whichever completes first, and whatever else is under way.
fn batches() -> Outcome {
    let strays = ring::strays();
    let timer: Timer = caps::any()?;
    let sleep = |ns| Sqe { op: Op::Sleep as u8, cap: timer.cap().id().0, arg0: ns, ..Sqe::default() };
    let unknown = Sqe { op: 200, ..Sqe::default() };
    let entries = [sleep(2 * MS), nop(0), sleep(MS), unknown, nop(0), nop(0)];
    let wanted = [0, 0, 0, TransportError::UnknownOp as i32, 0, 0];
    let run = |entries: &[Sqe], done: &mut [Cqe]| {
        // SAFETY: names no memory.
        unsafe { ring::run_all(entries, done) }
    };
    let all = [nop(0); CQ_ENTRIES as usize];
    let mut done = [Cqe::default(); CQ_ENTRIES as usize];
    for round in 0..40 {
        let other = if round % 4 == 3 { Some(timer.sleep_start(3 * MS).doing("sleep")?) } else { None };
        run(&entries, &mut done).map_err(rt::Error::from).doing("a batch")?;
        let came = &done[..entries.len()];
        ensure!(came.iter().map(|cqe| cqe.status).eq(wanted), "round {round}: {came:?}");
        let serials = came.windows(2).all(|two| two[0].user_data >> 32 < two[1].user_data >> 32);
        ensure!(serials, "round {round}: completions of other entries: {came:?}");
        if let Some(other) = other {
            ensure!(run(&all, &mut done) == Err(TransportError::NoSpace), "33 operations are under way");
            other.wait().doing("the sleep beside it")?;
        }
        let few = run(&entries, &mut done[..3]);
        ensure!(few == Err(TransportError::NoSpace), "six completions in three places: {few:?}");
        run(&all, &mut done).map_err(rt::Error::from).doing("a full batch")?;
        ensure!(done.iter().all(|cqe| cqe.status == 0), "round {round}: {done:?}");
    }
    run(&[], &mut []).map_err(rt::Error::from).doing("an empty batch")?;
    ensure!(ring::strays() == strays, "{} completions belonged to nobody", ring::strays() - strays);
    Ok(())
}

/// Takes the thread's ring, without rt.
fn take() -> RawRing {
    // SAFETY: no step has any operation of rt under way, and all of them name only memory that lives long enough, or that the kernel must
    // refuse. Completions that they leave in the queue are taken by rt, which counts them as strays.
    unsafe { RawRing::take() }
}

fn nop(user_data: u64) -> Sqe {
    Sqe { op: Op::Nop as u8, user_data, ..Sqe::default() }
}

fn error(what: &str, cqe: &Cqe, want: TransportError) -> Outcome {
    ensure!(cqe.status == want as i32, "{what}: {cqe:?} instead of {want:?}");
    Ok(())
}

fn batch() -> Outcome {
    let mut ring = take();
    for round in 0..100 {
        for n in 0..ENTRIES {
            ring.push(nop(round << 8 | n));
        }
        let there = ring.enter(ENTRIES, u64::MAX);
        ensure!(there == ENTRIES as i64, "round {round}: {there} completions");
        for n in 0..ENTRIES {
            let cqe = ring.pop();
            let is_right = cqe.is_some_and(|cqe| cqe.user_data == round << 8 | n && cqe.status == 0);
            ensure!(is_right, "round {round}: completion {n} is {cqe:?}");
        }
        ensure!(ring.pop().is_none(), "round {round}: one too many");
    }
    // Waiting for more completions than there can be is waiting for as many as there can be.
    for n in 0..ENTRIES {
        ring.push(nop(n));
    }
    let there = ring.enter(u64::MAX, u64::MAX);
    ensure!(there == ENTRIES as i64, "waiting for more than fits: {there}");
    while ring.pop().is_some() {}
    Ok(())
}

fn full_queue() -> Outcome {
    let mut ring = take();
    let mut random = Random::new(2);
    for n in 0..ENTRIES {
        ring.push(nop(n));
    }
    ensure!(ring.enter(0, 0) == ENTRIES as i64, "a queue full of completions");
    let (mut written, mut read) = (ENTRIES, 0);
    let taken = ring.sq_head();
    for n in 0..ENTRIES {
        ring.push(nop(written + n));
    }
    written += ENTRIES;
    for _ in 0..5 {
        let there = ring.enter(0, 0);
        let more = ring.sq_head().wrapping_sub(taken);
        ensure!(
            there == ENTRIES as i64 && more == 0,
            "{more} entries were taken without room for completions"
        );
    }
    // Room for some lets exactly as many through; nothing is lost, nothing changes its order.
    while read < written {
        let before = ring.sq_head();
        let queued = u64::from(ring.tail().wrapping_sub(before));
        for _ in 0..=random.below(7) {
            let Some(cqe) = ring.pop() else { break };
            ensure!(cqe.user_data == read && cqe.status == 0, "completion {read} is {cqe:?}");
            read += 1;
        }
        let room = ENTRIES - u64::from(ring.unread());
        ring.enter(0, 0);
        let taken = u64::from(ring.sq_head().wrapping_sub(before));
        ensure!(taken == room.min(queued), "{taken} of {queued} entries went through room for {room}");
        ensure!(read == written || ring.unread() > 0, "{} completions are lost", written - read);
        // Adds the next flood.
        if written < 40 * ENTRIES && ring.tail() == ring.sq_head() {
            for n in 0..ENTRIES {
                ring.push(nop(written + n));
            }
            written += ENTRIES;
        }
    }
    ensure!(ring.pop().is_none(), "one too many");
    drop(ring);
    println!("    {read} completions through a queue that was nearly always full");
    Ok(())
}

fn reserved() -> Outcome {
    let timer = caps::any::<Timer>()?.cap().id().0;
    let mut seen = Vec::with_capacity(64);
    let mut ring = take();
    let before = ring.sq_head();
    let sleeps = ENTRIES - 5;
    for n in 0..sleeps {
        ring.push(Sqe {
            op: Op::Sleep as u8,
            cap: timer,
            user_data: 1000 + n,
            arg0: 30 * MS,
            ..Sqe::default()
        });
    }
    for n in 0..5 {
        ring.push(nop(n));
    }
    ring.enter(0, 0);
    let mut queued = 0;
    for n in 5..12 {
        ring.push(nop(n));
        queued += 1;
    }
    ring.enter(0, 0);
    let taken = ring.sq_head().wrapping_sub(before);
    // The host may have been away for the 30 ms: then the queue is full of sleeps, and the kernel stops all the same.
    ensure!(
        taken == CQ_ENTRIES,
        "{taken} entries were taken, with {sleeps} sleeps under way and 5 completed"
    );
    while seen.len() < (sleeps + 5 + queued) as usize {
        seen.push(ring.next_cqe().user_data);
    }
    ensure!(ring.pop().is_none(), "one too many");
    drop(ring);
    seen.sort_unstable();
    let wanted: Vec<u64> = (0..12).chain(1000..1000 + sleeps).collect();
    ensure!(seen == wanted, "completed were {seen:?}");
    Ok(())
}

fn bad_tails() -> Outcome {
    let mut ring = take();
    let (head, tail) = (ring.sq_head(), ring.tail());
    ensure!(head == tail, "the queue is not empty");
    let bad = TransportError::BadMessage as i64;
    for wrong in [CQ_ENTRIES + 1, 1000, 1 << 16, 1 << 31, u32::MAX - 1, u32::MAX] {
        ring.set_tail(tail.wrapping_add(wrong));
        let results = [(0, 0), (1, MS), (32, u64::MAX)].map(|(min, timeout)| ring.enter(min, timeout));
        ring.set_tail(tail);
        ensure!(results == [bad; 3], "a tail {wrong} ahead: cap_enter says {results:?}");
        ensure!(ring.sq_head() == head && ring.unread() == 0, "a tail {wrong} ahead had an effect");
    }
    for n in 0..ENTRIES {
        ring.push(nop(n));
    }
    ensure!(ring.enter(ENTRIES, u64::MAX) == ENTRIES as i64, "the ring does not go on");
    for n in 0..ENTRIES {
        ensure!(ring.pop().is_some_and(|cqe| cqe.user_data == n), "completion {n}");
    }
    Ok(())
}

fn bad_heads() -> Outcome {
    let mut ring = take();
    let true_head = ring.sq_head();
    for wrong in [1, 33, 1000, 1 << 31, u32::MAX] {
        // Behind or ahead of what was posted: the queue looks full, nothing is taken, and waiting does not hang.
        // SAFETY: the thread's own page.
        let cq_tail = unsafe { (*ring::raw()).cq_tail.load(Ordering::Relaxed) };
        ring.lie(cq_tail.wrapping_add(wrong));
        ring.push(nop(7));
        let there = ring.enter(ENTRIES, MS);
        let taken = ring.sq_head().wrapping_sub(true_head);
        ring.lie(cq_tail);
        if wrong == u32::MAX {
            // One behind: one completion is unread, and there is room for more.
            ensure!(taken == 1 && there == 2, "a head one behind: {there} there, {taken} taken");
            ensure!(ring.pop().is_some_and(|cqe| cqe.user_data == 7), "the completion is lost");
            continue;
        }
        ring.set_tail(true_head);
        ensure!(taken == 0 && there == ENTRIES as i64, "a head {wrong} ahead: {there} there, {taken} taken");
    }
    ring.push(nop(8));
    ensure!(ring.next_cqe().user_data == 8, "the ring does not go on");
    Ok(())
}

fn scribbles() -> Outcome {
    let mut ring = take();
    // SAFETY: the thread's own page, as long as it lives.
    let page: &Ring = unsafe { &*ring::raw() };
    let mut random = Random::new(3);
    for n in 0..200 {
        let (head, tail) = (ring.sq_head(), page.cq_tail.load(Ordering::Relaxed));
        page.sq_head.store(random.word() as u32, Ordering::Relaxed);
        page.cq_tail.store(random.word() as u32, Ordering::Relaxed);
        page.flags.store(random.word() as u32, Ordering::Relaxed);
        ring.push(nop(n));
        let there = ring.enter(1, u64::MAX);
        let (new_head, new_tail) = (ring.sq_head(), page.cq_tail.load(Ordering::Relaxed));
        ensure!(
            there == 1 && new_head == head.wrapping_add(1) && new_tail == tail.wrapping_add(1),
            "round {n}: {there} there, head {head} to {new_head}, tail {tail} to {new_tail}"
        );
        ensure!(ring.pop().is_some_and(|cqe| cqe.user_data == n), "round {n}: the completion");
    }
    page.flags.store(0, Ordering::Relaxed);
    Ok(())
}

fn unknown() -> Outcome {
    let mut ring = take();
    let mut ask = |sqe: Sqe| {
        ring.push_as_is(sqe);
        ring.next_cqe()
    };
    for op in [Op::COUNT as u8, 100, 200, u8::MAX] {
        error(
            "an unknown operation",
            &ask(Sqe { op, version: SQE_VERSION, ..Sqe::default() }),
            TransportError::UnknownOp,
        )?;
    }
    for version in [0, 2, 77, u8::MAX] {
        for op in [Op::Nop as u8, Op::Call as u8, 200] {
            let cqe = ask(Sqe { op, version, ..Sqe::default() });
            error("an unknown version", &cqe, TransportError::UnsupportedSqeVersion)?;
        }
    }
    for op in Op::ALL {
        let allowed = match op {
            Op::Call => flags::INLINE | flags::MOVE,
            Op::Return => flags::ALL,
            Op::Unpark | Op::Write | Op::Release | Op::Nop => flags::QUIET,
            _ => 0,
        };
        for bit in (0..16).map(|bit| 1 << bit).filter(|bit| allowed & bit == 0) {
            let cqe = ask(Sqe { op: op as u8, version: SQE_VERSION, flags: bit, ..Sqe::default() });
            error("an unknown flag", &cqe, TransportError::BadFlags)?;
        }
        // All other operations need a capability.
        if !matches!(op, Op::Nop | Op::Cancel | Op::Yield) {
            for cap in [0, 1, 0xffff, 0xffff_0000, u32::MAX] {
                let cqe = ask(Sqe { op: op as u8, version: SQE_VERSION, cap, ..Sqe::default() });
                error("no such capability", &cqe, TransportError::BadCap)?;
            }
        }
    }
    ensure!(ring.unread() == 0, "{} completions too many", ring.unread());
    Ok(())
}

/// A field of an entry: its name, and a function that sets it.
type Field = (&'static str, fn(&mut Sqe));

const FIELDS: [Field; 9] = [
    ("cap", |sqe| sqe.cap = 1),
    ("method", |sqe| sqe.method = 1),
    ("len", |sqe| sqe.len = 1),
    ("addr", |sqe| sqe.addr = 1),
    ("result_addr", |sqe| sqe.result_addr = 1),
    ("result_len", |sqe| sqe.result_len = 1),
    ("xfer", |sqe| sqe.xfer = 1),
    ("arg0", |sqe| sqe.arg0 = 1),
    ("arg1", |sqe| sqe.arg1 = 1),
];

/// The fields that each operation uses, as `abi::Op` documents them, with its flags.
const NAMED: [(Op, u16, &[&str]); 18] = [
    (Op::Nop, 0, &[]),
    (Op::Nop, flags::QUIET, &[]),
    (Op::Call, 0, &["cap", "method", "len", "addr", "result_addr", "result_len", "xfer"]),
    (Op::Call, flags::INLINE, &["cap", "method", "arg0", "arg1", "result_addr", "result_len", "xfer"]),
    (Op::Recv, 0, &["cap", "result_addr", "result_len"]),
    (Op::Return, 0, &["cap", "method", "len", "addr", "result_addr", "xfer"]),
    (Op::Return, flags::INLINE | flags::QUIET, &["cap", "method", "arg0", "arg1", "result_addr", "xfer"]),
    (Op::Park, 0, &["cap", "addr", "arg0", "arg1"]),
    (Op::Unpark, 0, &["cap", "addr", "arg0"]),
    (Op::Unpark, flags::QUIET, &["cap", "addr", "arg0"]),
    (Op::Sleep, 0, &["cap", "arg0"]),
    (Op::Write, 0, &["cap", "len", "addr"]),
    (Op::Read, 0, &["cap", "result_addr", "result_len"]),
    (Op::Cancel, 0, &["arg0"]),
    (Op::Release, 0, &["cap"]),
    (Op::Copy, 0, &["cap", "arg0", "arg1"]),
    (Op::Revoke, 0, &["cap"]),
    (Op::Yield, 0, &[]),
];

/// K-28: an unused field that is not 0 is refused with the same error for every operation, on the fast path of common entries as on the slow
/// one, and without any effect. The capability is one that supports the operation, where there is one, so that nothing else is wrong with the
/// entry.
fn unnamed() -> Outcome {
    let timer = caps::any::<Timer>()?.cap().id().0;
    let park = caps::any::<ParkSpace>()?.cap().id().0;
    let mut ring = take();
    for (op, flags, named) in NAMED {
        let cap = match op {
            Op::Park | Op::Unpark => park,
            Op::Sleep => timer,
            _ => 0,
        };
        for (name, set) in FIELDS.iter().filter(|(name, _)| !named.contains(name)) {
            let mut sqe =
                Sqe { op: op as u8, flags, cap, arg0: u64::from(op == Op::Sleep), ..Sqe::default() };
            set(&mut sqe);
            ring.push(sqe);
            let cqe = ring.next_cqe();
            ensure!(cqe.status == TransportError::BadFlags as i32, "{op:?} with {name}: {cqe:?}");
        }
    }
    Ok(())
}

/// The kernel's version is the same in the page that every program begins with and in the answer to a query; a query for another version gets
/// the error that programs of that version know.
fn versions() -> Outcome {
    let (info, boot) = (kit::system()?, rt::boot_info());
    let known = info.machine(0)?.ring_abi_version;
    ensure!(known == RING_ABI_VERSION && boot.ring_abi_version == known, "version {known}, {boot:?}");
    let sizes = (size_of::<Sqe>(), size_of::<Cqe>());
    ensure!((boot.sqe_size as usize, boot.cqe_size as usize) == sizes, "{boot:?}");
    ensure!(info.machine(known)?.ring_abi_version == known, "the version that it speaks is refused");
    for version in [known + 1, known + 2, 77, u32::MAX] {
        let answer = info.machine(version).map(|machine| machine.ring_abi_version);
        kit::refused("another version", answer, TransportError::UnsupportedRingAbi)?;
    }
    Ok(())
}

fn quiet() -> Outcome {
    let mut ring = take();
    for n in 0..100 {
        for _ in 0..ENTRIES {
            ring.push(Sqe { flags: flags::QUIET, ..nop(n) });
        }
        ring.enter(0, 0);
        ensure!(ring.unread() == 0, "{} completions of quiet successes", ring.unread());
    }
    ring.push(Sqe { op: Op::Release as u8, flags: flags::QUIET, user_data: 9, ..Sqe::default() });
    let cqe = ring.next_cqe();
    ensure!(cqe.user_data == 9, "completion {cqe:?}");
    error("a quiet failure", &cqe, TransportError::BadCap)
}

fn own_page() -> Outcome {
    let page = ring::raw() as u64;
    // SAFETY: the kernel must refuse; if it does not, the next system call shows it.
    let (unmapped, protected) =
        unsafe { (vm::unmap(page, 4096), vm::space()?.protect(page, PAGE_BYTES as usize, Protection::READ)) };
    raised("unmapping a ring", unmapped, Exception::InvalidArgument)?;
    raised("protecting a ring", protected, Exception::InvalidArgument)?;
    let over = vm::space()?.map(Some(page), 4096, Protection::READ_WRITE);
    raised("mapping over a ring", over, Exception::InvalidArgument)
}

/// An operation of each kind that can be under way, many times.
fn mixture() -> Outcome {
    let timer = caps::any::<Timer>()?.cap().id().0;
    let park = caps::any::<ParkSpace>()?.cap().id().0;
    let factory: Factory = caps::any()?;
    for round in 0..10 {
        let (served, called): (Endpoint, Endpoint) = (factory.endpoint()?, factory.endpoint()?);
        let caller = called.caller(1)?;
        let word = Arc::new(AtomicU32::new(0));
        let other = Builder::new().spawn(|| rt::thread::exit(21)).doing("spawn")?;
        let other: &rt::thread::JoinHandle<()> = &other;
        let join = other.handle().ok_or_else(|| Failure::new("no handle"))?.cap().id().0;
        let (mut wanted, mut seen) = (Vec::with_capacity(64), alloc::vec![0; 64]);
        let mut ring = take();
        let mut start = |sqe: Sqe, status: i32| {
            let user_data = wanted.len() as u64;
            wanted.push(status);
            ring.push(Sqe { user_data, ..sqe });
        };
        let sleep = Sqe { op: Op::Sleep as u8, cap: timer, ..Sqe::default() };
        (0..10).for_each(|n| start(Sqe { arg0: 1 + n * 50_000, ..sleep }, 0));
        let disconnected = Exception::Disconnected as i32;
        let call =
            Sqe { op: Op::Call as u8, cap: caller.cap().id().0, flags: flags::INLINE, ..Sqe::default() };
        (0..8).for_each(|_| start(call, disconnected));
        let receive = Sqe { op: Op::Recv as u8, cap: served.cap().id().0, ..Sqe::default() };
        (0..8).for_each(|_| start(receive, TransportError::Cancelled as i32));
        start(Sqe { op: Op::Call as u8, cap: join, ..Sqe::default() }, 0);
        let addr = word.as_ptr() as u64;
        start(
            Sqe { op: Op::Park as u8, cap: park, addr, arg1: MS, ..Sqe::default() },
            TransportError::TimedOut as i32,
        );
        ring.enter(0, 0);
        // The endpoints close: calls are Disconnected, receivers Cancelled.
        for cap in [served.into_cap().into_id(), called.into_cap().into_id()] {
            ring.push(Sqe { op: Op::Release as u8, flags: flags::QUIET, cap: cap.0, ..Sqe::default() });
        }
        for _ in 0..wanted.len() {
            let cqe = ring.next_cqe();
            let at = cqe.user_data as usize;
            ensure!(at < wanted.len() && cqe.status == wanted[at], "round {round}: completion {cqe:?}");
            seen[at] += 1;
        }
        ensure!(ring.unread() == 0, "round {round}: one too many");
        ensure!(
            seen[..wanted.len()].iter().all(|count| *count == 1),
            "round {round}: completed {seen:?} times"
        );
    }
    Ok(())
}

fn hammer() -> Outcome {
    let timer = caps::any::<Timer>()?.cap().id().0;
    let count = u64::from(rt::boot_info().cpus) * 2 + 2;
    let before = time::now_ns()?;
    let mut threads = Vec::new();
    for seed in 0..count {
        let work = move || -> Outcome<u64> {
            let mut random = Random::new(seed);
            let mut ring = take();
            let (mut nops, mut sleeps, mut next_nop, mut total) = (0, 0, 0, 0);
            for _ in 0..150 {
                for _ in 0..=random.below(ENTRIES) {
                    match random.below(8) {
                        0 if sleeps < 12 => {
                            let arg0 = random.below(50_000) + 1;
                            ring.push(Sqe {
                                op: Op::Sleep as u8,
                                cap: timer,
                                user_data: u64::MAX,
                                arg0,
                                ..Sqe::default()
                            });
                            sleeps += 1;
                        }
                        1 => {
                            ring.push(Sqe { op: Op::Yield as u8, user_data: u64::MAX - 1, ..Sqe::default() })
                        }
                        _ => {
                            ring.push(nop(nops));
                            nops += 1;
                        }
                    }
                    total += 1;
                }
                // Takes all completions: sleeps in any order, NOPs in theirs.
                while ring.tail() != ring.sq_head() || ring.unread() > 0 {
                    ring.enter(1, MS);
                    while let Some(cqe) = ring.pop() {
                        ensure!(cqe.status == 0, "completion {cqe:?}");
                        match cqe.user_data {
                            u64::MAX => sleeps -= 1,
                            data if data == u64::MAX - 1 => {}
                            data => {
                                ensure!(data == next_nop, "NOP {data} completed, not {next_nop}");
                                next_nop += 1;
                            }
                        }
                    }
                }
            }
            while sleeps > 0 {
                ensure!(ring.next_cqe().user_data == u64::MAX, "a completion after all others");
                sleeps -= 1;
            }
            ensure!(nops == next_nop, "{nops} NOPs, {next_nop} completions");
            Ok(total)
        };
        threads.push(Builder::new().spawn(work).doing("spawn")?);
    }
    let mut total = 0;
    for thread in threads {
        total += thread.join()??;
    }
    let took = time::now_ns()? - before;
    println!("    {total} operations of {count} threads in {} ms", took / MS);
    thread::trim();
    Ok(())
}

/// Calls of 4,096 bytes to an endpoint where nobody receives: a process may have 256 of them, whichever of its threads sends them. When they
/// are cancelled there is room again.
fn messages_charged() -> Outcome {
    const EACH: usize = 30;
    const THREADS: usize = 10;
    const LIMIT: usize = (1 << 20) / rt::abi::MAX_MESSAGE_BYTES;
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    for round in 0..2 {
        let (called, go_on) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (endpoint, called, go_on) = (Arc::clone(&endpoint), Arc::clone(&called), Arc::clone(&go_on));
            let work = move || -> Outcome<(usize, usize)> {
                let message = [7; rt::abi::MAX_MESSAGE_BYTES];
                let mut calls = Vec::new();
                for _ in 0..EACH {
                    calls.push(endpoint.call_bytes_start(1, &message, 8).doing("call")?);
                }
                called.fetch_add(1, Ordering::AcqRel);
                while go_on.load(Ordering::Acquire) == 0 {
                    time::sleep(MS).doing("sleep")?;
                }
                let (mut waited, mut refused) = (0, 0);
                for call in calls {
                    match call.cancel().err().and_then(|error| error.transport()) {
                        Some(TransportError::Cancelled) => waited += 1,
                        Some(TransportError::NoSpace) => refused += 1,
                        other => return Err(Failure::new(format_args!("a call ended with {other:?}"))),
                    }
                }
                Ok((waited, refused))
            };
            threads.push(Builder::new().stack_bytes(64 << 10).spawn(work).doing("spawn")?);
        }
        while called.load(Ordering::Acquire) < THREADS as u32 {
            time::sleep(MS).doing("sleep")?;
        }
        go_on.store(1, Ordering::Release);
        let (mut waited, mut refused) = (0, 0);
        for thread in threads {
            let (more_waited, more_refused) = thread.join()??;
            (waited, refused) = (waited + more_waited, refused + more_refused);
        }
        ensure!(
            (waited, refused) == (LIMIT, THREADS * EACH - LIMIT),
            "round {round}: {waited} calls waited and {refused} were refused; the limit is {LIMIT}"
        );
    }
    Ok(())
}
