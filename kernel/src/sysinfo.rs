//! SystemInfo: information about the machine, the kernel, and the processes and threads that run.

use crate::context::leaving;
use crate::dispatch::percpu;
use crate::methods::{MethodCall, Outcome};
use crate::mm::stacks::STACK_BYTES;
use crate::mm::{frames, plant};
use crate::preempt::Pacer;
use crate::process::{self, Process};
use crate::session::Session;
use crate::thread;
use crate::{console, counters, dispatch, event, image, measure, preempt, ring, time};
use ::sched::Policy as _;
use abi::Exception;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use schema::messages_capnp as m;
use schema::words;

/// How many threads are looked at between two preemption points.
const PACE_THREADS: u32 = 16;
/// How many thread records, used or not, are passed between two preemption points.
const PACE_RECORDS: u32 = 512;

/// SystemInfo's methods.
pub fn call(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    match c.call.method {
        0 => info(c, params),
        1 => processes(c, params, None),
        2 => threads(c, params),
        3 => cpus(c, params),
        4 => count(c, params),
        6 => fail_allocation(c, params),
        _ => crate::methods::context::list(c, start(params)?),
    }
}

fn start(params: &[u8]) -> Result<usize, schema::Error> {
    let message = schema::decode(params)?;
    Ok(message.root::<m::list_params::Reader<'_>>()?.get_start() as usize)
}

/// Bytes of kernel memory for one thread: its record, its stack, and what the scheduler keeps.
pub fn bytes_per_thread() -> u64 {
    thread::RECORD_BYTES as u64 + STACK_BYTES + ::sched::THREAD_BYTES as u64
}

fn info(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let asked = message.root::<m::system_info_info_params::Reader<'_>>()?.get_ring_abi_version();
    if asked != 0 && asked != abi::RING_ABI_VERSION {
        return Err(abi::TransportError::UnsupportedRingAbi.into());
    }
    let version = concat!("capOS ", env!("CARGO_PKG_VERSION"));
    let timer = match event::source() {
        event::Source::Apic => crate::arch::apic::mode(),
        event::Source::Pit => "pit",
        event::Source::None => "none",
    };
    let clock = crate::clock::source();
    let policy = dispatch::policy().name();
    let texts = [version, timer, clock, policy];
    let more = words::data(1) + texts.iter().map(|text| words::text(text.len())).sum::<usize>();
    c.reply_long::<m::system_info_info_results::Owned>(more, |mut r| {
        r.set_ring_abi_version(abi::RING_ABI_VERSION);
        r.set_sqe_size(size_of::<abi::Sqe>() as u32);
        r.set_cqe_size(size_of::<abi::Cqe>() as u32);
        r.reborrow().init_sqe_versions(1).set(0, abi::SQE_VERSION);
        r.set_cpus(percpu::count() as u32);
        r.set_frames(frames::total());
        r.set_free_frames(frames::free_count());
        r.set_kernel_version(version);
        r.set_uptime_ns(time::now_ns());
        r.set_bytes_per_thread(bytes_per_thread() as u32);
        r.set_bytes_per_process(size_of::<Process>() as u32);
        r.set_bytes_per_ring(size_of::<abi::Ring>() as u32);
        r.set_timer(timer);
        r.set_clock(clock);
        r.set_policy(policy);
    })
}

/// The data of one process, collected before the message is built.
struct Row {
    process: Arc<Process>,
    threads: u32,
    runtime_ns: u64,
    frames: u64,
    caps: u32,
    ended: bool,
}

fn row(process: Arc<Process>) -> Row {
    let threads = process.live_threads();
    let mut runtime_ns = process.ended_runtime_ns.load(Ordering::Relaxed);
    let mut at = 0;
    let mut pacer = Pacer::of(PACE_THREADS);
    while let Some(tid) = process.thread_at(at) {
        runtime_ns += dispatch::snapshot(tid).map_or(0, |snapshot| snapshot.runtime_ns);
        at += 1;
        pacer.step();
    }
    let frames = process.space.owned_frames();
    let caps = process.caps.lock().len() as u32;
    Row { threads, runtime_ns, frames, caps, ended: process.ended().is_some(), process }
}

fn fill_row(mut r: m::process_info::Builder<'_>, row: &Row) {
    r.set_pid(row.process.pid);
    r.set_generation(row.process.generation);
    r.set_parent(row.process.parent);
    r.set_name(row.process.name.as_str());
    r.set_state(match row {
        row if row.ended => m::ProcessState::Exited,
        row if row.process.is_ending() => m::ProcessState::Exiting,
        _ => m::ProcessState::Running,
    });
    r.set_threads(row.threads);
    r.set_runtime_ns(row.runtime_ns);
    r.set_frames(row.frames);
    r.set_caps(row.caps);
    r.set_session(row.process.session.id);
}

/// ProcessHandle.info.
pub fn process(c: &MethodCall<'_>, process: &Arc<Process>) -> Outcome {
    let row = row(process.clone());
    let name_words = words::text(row.process.name.as_str().len());
    let more = words::structure::<m::process_info::Owned>() + name_words;
    c.reply::<m::process_handle_info_results::Owned>(more, |r| fill_row(r.init_info(), &row))
}

/// The first `limit` of `items`.
fn list<T>(limit: usize, items: impl Iterator<Item = T>) -> Result<Vec<T>, abi::TransportError> {
    let mut list = Vec::new();
    list.try_reserve_exact(limit).map_err(|_| abi::TransportError::NoSpace)?;
    list.extend(items.take(limit));
    Ok(list)
}

/// How many entries of `entry_words` words fit in the result beside `head_words`.
fn fitting(c: &MethodCall<'_>, head_words: usize, entry_words: usize) -> usize {
    (c.room() / 8).saturating_sub(head_words + 1) / entry_words
}

/// SystemInfo.processes, or UserSession.processes, which lists those of one session.
pub fn processes(c: &MethodCall<'_>, params: &[u8], of: Option<&Session>) -> Outcome {
    let start = start(params)?;
    let entry = words::structure::<m::process_info::Owned>() + words::text(abi::MAX_NAME_BYTES);
    let limit = fitting(c, words::message::<m::system_info_processes_results::Owned>(), entry);
    let mut rows = list(limit, core::iter::empty())?;
    let mut more = false;
    // Process numbers begin with 1.
    process::each(start.saturating_sub(1), |_, process| {
        if of.is_some_and(|session| !session.holds(&process.session)) {
            preempt::point();
            return true;
        }
        more = rows.len() == limit;
        if !more {
            // K-30: not beyond the limit.
            rows.push(row(process));
            preempt::point();
        }
        !more
    });
    let count = rows.len();
    let size = words::structures::<m::process_info::Owned>(count) + count * words::text(abi::MAX_NAME_BYTES);
    c.reply_long::<m::system_info_processes_results::Owned>(size, |mut r| {
        r.set_more(more);
        let mut list = r.init_processes(count as u32);
        for (i, row) in rows.iter().enumerate() {
            fill_row(list.reborrow().get(i as u32), row);
        }
    })
}

/// UserSession.quotas.
pub fn quotas(c: &MethodCall<'_>, session: &Session) -> Outcome {
    // The stakes of contexts that have left meanwhile are not used any more.
    leaving::sweep_all();
    let rows = session.quotas();
    let names: usize = rows.iter().map(|(name, ..)| words::text(name.len())).sum();
    let size = words::structures::<m::quota::Owned>(rows.len()) + names;
    c.reply_long::<m::user_session_quotas_results::Owned>(size, |r| {
        let mut list = r.init_quotas(rows.len() as u32);
        for (i, (name, used, limit)) in rows.iter().enumerate() {
            let mut row = list.reborrow().get(i as u32);
            row.set_name(name);
            row.set_used(*used);
            row.set_limit(*limit);
        }
    })
}

fn threads(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let start = start(params)? as u32;
    const WAITS_BYTES: usize = 16;
    let entry = words::structure::<m::thread_info::Owned>() + words::text(WAITS_BYTES);
    let limit = fitting(c, words::message::<m::system_info_threads_results::Owned>(), entry);
    let live = |tid: u32| thread::get(tid).is_some_and(|t| t.life().live_generation() != 0);
    let mut rows = list(limit, core::iter::empty())?;
    let mut more = false;
    let mut pacer = Pacer::of(PACE_RECORDS);
    for tid in start..thread::count() {
        pacer.step();
        if !live(tid) {
            continue;
        }
        more = rows.len() == limit;
        if more {
            break;
        }
        // K-30: not beyond the limit.
        rows.push((tid, dispatch::snapshot(tid)));
        preempt::point();
    }
    let count = rows.len();
    let size = words::structures::<m::thread_info::Owned>(count) + count * words::text(WAITS_BYTES);
    c.reply_long::<m::system_info_threads_results::Owned>(size, |mut r| {
        r.set_more(more);
        let mut list = r.init_threads(count as u32);
        for (i, (tid, snapshot)) in rows.iter().enumerate() {
            let Some(thread) = thread::get(*tid) else { continue };
            let mut t = list.reborrow().get(i as u32);
            let who = thread.reference();
            t.set_pid(who.pid);
            t.set_tid(who.tid);
            t.set_generation(who.thread_generation);
            let waiting = thread.life().waits();
            let running = percpu::all().any(|cpu| core::ptr::eq(cpu.current.get(), &raw const **thread));
            t.set_state(match (waiting, running, snapshot) {
                (true, ..) => m::ThreadState::Blocked,
                (_, true, _) => m::ThreadState::Running,
                (.., Some(snapshot)) if snapshot.is_throttled => m::ThreadState::Throttled,
                _ => m::ThreadState::Ready,
            });
            t.set_cpu(thread.cpu.load(Ordering::Relaxed));
            t.set_waits_for(if waiting { "completions" } else { "" });
            if let Some(s) = snapshot {
                t.set_weight(s.weight.get().into());
                t.set_class(s.class as u16);
                t.set_runtime_ns(s.runtime_ns);
                t.set_virtual_runtime_ns(s.virtual_runtime_ns);
                t.set_switches(s.voluntary_blocks + s.preemptions);
                t.set_preemptions(s.preemptions);
                t.set_migrations(s.migrations);
                t.set_runnable_ns(s.runnable_accumulated_ns);
                t.set_throttled_ns(s.throttled_ns);
            }
        }
    })
}

fn cpus(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let skip = start(params)?;
    let entry = words::structure::<m::cpu_info::Owned>();
    let limit = fitting(c, words::message::<m::system_info_cpus_results::Owned>(), entry);
    let count = percpu::count().saturating_sub(skip).min(limit);
    let more = skip + count < percpu::count();
    let rows = list(count, percpu::all().skip(skip).map(|cpu| (cpu, dispatch::cpu_time(cpu))))?;
    c.reply_long::<m::system_info_cpus_results::Owned>(
        words::structures::<m::cpu_info::Owned>(count),
        |mut r| {
            r.set_more(more);
            let mut list = r.init_cpus(count as u32);
            for (i, (cpu, (time, queued))) in rows.iter().enumerate() {
                let mut t = list.reborrow().get(i as u32);
                t.set_id(cpu.id as u32);
                t.set_apic_id(cpu.apic_id);
                t.set_idle_ns(time.idle_ns);
                t.set_busy_ns(time.total_ns() - time.idle_ns - time.interrupt_ns);
                t.set_interrupt_ns(time.interrupt_ns);
                t.set_interrupt_owned_ns(time.interrupt_owned_ns);
                t.set_switches(cpu.counters.switches.get());
                t.set_steals(cpu.counters.steals.get());
                t.set_queued(*queued as u32);
                t.set_online(cpu.online.load(Ordering::Relaxed));
            }
        },
    )
}

const OTHERS: usize = 11 + Process::ROWS;
const COUNTERS: usize = counters::COUNT + OTHERS + measure::COUNT;

/// The kernel's counters by name: those of all CPUs, others, and what is charged to the caller's own process.
fn all_counters(caller: &Process) -> impl Iterator<Item = (&'static str, u64)> {
    counters::all().into_iter().chain(other_counters()).chain(caller.rows()).chain(measure::all())
}

fn other_counters() -> [(&'static str, u64); OTHERS - Process::ROWS] {
    let load = |counter: &core::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    [
        ("migrations", percpu::all().map(dispatch::migrations).sum()),
        ("stale_completions", load(&ring::STALE_COMPLETIONS)),
        ("kernel_stack_depth", load(&process::STACK_DEPTH)),
        ("kernel_stack_bytes", STACK_BYTES),
        ("thread_record_bytes", thread::RECORD_BYTES as u64),
        ("unexpected_interrupts", load(&counters::UNEXPECTED_INTERRUPTS)),
        ("console_lost_bytes", load(&console::LOST)),
        ("thread_records", u64::from(thread::count())),
        ("clock_error_ns", crate::clock::reference_error_ns().map_or(0, i64::unsigned_abs)),
        ("frames_outside_heap", frames::used_outside_heap()),
        ("heap_used_bytes", crate::mm::heap::used().1),
    ]
}

fn count(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let skip = start(params)?;
    if skip > COUNTERS {
        return Err((Exception::InvalidArgument, "there are not so many counters").into());
    }
    // Sessions may end with the stakes of contexts that left, which changes `heap_used_bytes`.
    leaving::sweep_all();
    let rest = list(COUNTERS, all_counters(c.process).skip(skip))?;
    let names: usize = rest.iter().map(|(name, _)| words::text(name.len())).sum();
    let size = words::structures::<m::counter::Owned>(rest.len()) + names;
    // Looking at all CPUs took long.
    preempt::point();
    c.reply_long::<m::system_info_counters_results::Owned>(size, |mut r| {
        r.set_more(false);
        let mut list = r.init_counters(rest.len() as u32);
        for (i, (name, value)) in rest.iter().enumerate() {
            let mut t = list.reborrow().get(i as u32);
            t.set_name(name);
            t.set_value(*value);
        }
    })
}

fn fail_allocation(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let after = message.root::<m::system_info_fail_allocation_params::Reader<'_>>()?.get_after();
    c.expects::<m::system_info_fail_allocation_results::Owned>()?;
    let armed = plant::arm(c.process.pid, after);
    let why = "the kernel was not booted with allocfail: capos --append allocfail";
    let (seen, failed) = armed.ok_or((Exception::Unimplemented, why))?;
    c.reply::<m::system_info_fail_allocation_results::Owned>(0, |mut r| {
        r.set_seen(seen);
        r.set_failed(failed);
    })
}

/// ProcessSpawner.programs.
pub fn programs(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let skip = start(params)?;
    let archive = image::archive().ok_or((Exception::Failed, "there is no boot image"))?;
    let entry = words::pointers(1) + words::text(abi::MAX_NAME_BYTES);
    let limit = fitting(c, words::message::<m::process_spawner_programs_results::Owned>(), entry);
    let all = archive.entries().map(|e| e.name).filter(|name| image::is_program(name));
    let mut names = list(limit + 1, all.skip(skip))?;
    let more = names.len() > limit;
    names.truncate(limit);
    // Looking at all names took long.
    preempt::point();
    let texts: usize = names.iter().map(|name| words::text(name.len())).sum();
    c.reply_long::<m::process_spawner_programs_results::Owned>(
        words::pointers(names.len()) + texts,
        |mut r| {
            r.set_more(more);
            let mut list = r.init_names(names.len() as u32);
            for (i, name) in names.iter().enumerate() {
                list.set(i as u32, *name);
            }
        },
    )
}
