//! Plays a scenario of the simulator with real threads and reports which ran when: steps of the proof `context-order` (S-06).
//!
//! All threads are created first and wait. The conductor, this program's main thread, then starts each at its time. It has a context of the
//! highest band, so that its actions are short and precede everything else; otherwise it sleeps. A thread records itself only while it
//! computes: actions that take no time in the simulator take microseconds here.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rt::thread::{Builder, JoinHandle};
use rt::{
    Answer, Endpoint, Factory, Fallback, Incoming, ParkSpace, SchedulingContext, Spec, ThreadControl,
    Timeout, caps, println, thread, time,
};

use super::script::{Event, Role, Script, Step};
use super::{STOP, new_context, own_cpu};
use crate::fair::{self, Kind};
use crate::kit::{self, MS};
use crate::proof::{Doing, Failure, Outcome};
use crate::ticks::{self, Scale};
use crate::{ensure, proof};

/// How many runs can be recorded for each CPU.
const RUNS: usize = 256;
/// Stack of each thread.
const STACK_BYTES: usize = 16384;
/// The conductor's context, in the highest band. It also creates the threads on that context, so that it takes no part in fair scheduling,
/// where its work would become lag that others are owed.
const CONDUCTOR: Spec = Spec::new(2 * MS, 50 * MS).criticality(7);
/// The most CPUs of a scenario.
const CPUS: usize = 2;

/// The threads that ran on a CPU, in order. An entry is written once, by the thread that finds it empty, in a single step: a thread that is
/// interrupted here has either written it or not.
struct Log {
    /// Numbers of roles, plus one; unused entries are 0.
    runs: [AtomicU8; RUNS],
    /// When each run began, by the CPU's clock.
    since: [AtomicU64; RUNS],
    /// All entries before this one are written.
    hint: AtomicUsize,
}

impl Log {
    fn new() -> Log {
        Log {
            runs: [const { AtomicU8::new(0) }; RUNS],
            since: [const { AtomicU64::new(0) }; RUNS],
            hint: AtomicUsize::new(0),
        }
    }

    /// Records that the calling thread, role `me`, is on this CPU.
    fn note(&self, me: u8) {
        let mut at = self.hint.load(Ordering::Relaxed);
        while let Some(run) = self.runs.get(at) {
            match run.load(Ordering::Relaxed) {
                0 if at > 0 && self.runs[at - 1].load(Ordering::Relaxed) == me => return,
                0 => {
                    if run.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                        self.since[at].store(ticks::now(), Ordering::Relaxed);
                        self.hint.store(at, Ordering::Relaxed);
                    }
                }
                _ => at += 1,
            }
        }
    }

    /// The names of the runs that began before `end`. A thread that lost the CPU while it recorded itself, and had the CPU again only after
    /// the end, has a later time and is left out.
    fn names<'a>(&self, script: &'a Script, end: u64) -> Outcome<Vec<&'a str>> {
        let runs = self.runs.iter().map(|run| usize::from(run.load(Ordering::Relaxed)));
        let in_time = self.since.iter().map(|since| since.load(Ordering::Relaxed) <= end);
        let names: Vec<&str> = runs
            .zip(in_time)
            .take_while(|(run, in_time)| *run > 0 && *in_time)
            .map(|(run, _)| script.roles[run - 1].name)
            .collect();
        ensure!(names.len() < RUNS, "more than {} runs", RUNS - 1);
        Ok(names)
    }

    /// Prints when the runs began, in us, for people.
    fn show(&self, names: &[&str], scale: Scale, begin: u64) {
        let mut line = String::from("   ");
        for (name, since) in names.iter().zip(&self.since) {
            let us = scale.to_ns(since.load(Ordering::Relaxed).saturating_sub(begin)) / 1000;
            // Writing to a string does not fail.
            let _ = write!(line, " {us}:{name}");
        }
        println!("{line}");
    }
}

/// What all threads of a scenario share.
struct Stage {
    script: Script,
    scale: Scale,
    /// One word for each role, whose thread waits until the word is not 0.
    go: Vec<AtomicU32>,
    tids: Vec<AtomicU32>,
    over: AtomicBool,
    logs: [Log; CPUS],
    /// The endpoints of the servers.
    endpoints: Vec<Option<Endpoint>>,
}

impl Stage {
    fn new(script: Script, scale: Scale) -> Outcome<Stage> {
        let factory: Factory = caps::any()?;
        let endpoint = |role: &Role| role.is_server().then(|| factory.endpoint()).transpose();
        let endpoints = script.roles.iter().map(endpoint).collect::<rt::Result<_>>();
        let words = || script.roles.iter().map(|_| AtomicU32::new(0)).collect();
        Ok(Stage {
            scale,
            go: words(),
            tids: words(),
            over: AtomicBool::new(false),
            logs: core::array::from_fn(|_| Log::new()),
            endpoints: endpoints.doing("make an endpoint")?,
            script,
        })
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn endpoint(&self, name: &str) -> Outcome<&Endpoint> {
        let found = self.script.find(name).and_then(|at| self.endpoints[at].as_ref());
        found.ok_or_else(|| Failure::new(format_args!("`{name}` is no server")))
    }

    fn run(&self, me: usize, ns: u64) {
        let is_alone = self.script.cpus == 1;
        fair::compute_while(ns, self.scale, || {
            if !self.is_over() {
                let cpu = if is_alone { 0 } else { own_cpu() as usize };
                self.logs[cpu].note(me as u8 + 1);
            }
            !self.is_over()
        });
    }

    /// The body of the thread of role `me`.
    fn act(&self, me: usize) -> Outcome {
        let role = &self.script.roles[me];
        Kind::weight(role.weight).take_on()?;
        let all = if role.cpus == 0 { (1u8 << self.script.cpus) - 1 } else { role.cpus };
        let control: ThreadControl = caps::any()?;
        if let Some(home) = role.home {
            control.set_affinity(&[1 << home])?;
        }
        control.set_affinity(&[all])?;
        self.tids[me].store(thread::id(), Ordering::Release);
        // A server whose first step is to receive waits for its first call before the scenario begins.
        if role.next(0).map(|(_, step)| step) != Some(Step::Receive) {
            fair::wait_for(&self.go[me])?;
        }
        self.steps(me, role)
    }

    fn steps(&self, me: usize, role: &Role) -> Outcome {
        let mut call: Option<Incoming> = None;
        let mut at = 0;
        while let Some((here, step)) = role.next(at) {
            at = here + 1;
            if self.is_over() && !role.is_server() {
                break;
            }
            match step {
                Step::Run(ns) => self.run(me, ns),
                Step::Sleep(ns) => time::sleep(ns).doing("sleep")?,
                Step::Call(other) => {
                    self.endpoint(other)?.call(1, [0; 2]).doing("call")?;
                }
                Step::Receive => call = Some(self.endpoint(role.name)?.recv(&mut [])?),
                Step::Reply | Step::Release => {
                    let token = call.take().ok_or_else(|| Failure::new("nothing to answer"))?.token;
                    let answer = if step == Step::Reply { Timeout::WAIT } else { Timeout::DEMOTE };
                    match role.next(at) {
                        // Replies and receives in one step, as servers do: otherwise the next call might come before the server waits for it.
                        Some((next, Step::Receive)) => {
                            call = Some(self.endpoint(role.name)?.reply_recv(token, answer, &mut [])?);
                            at = next + 1;
                        }
                        _ => self.endpoint(role.name)?.reply(token, answer)?,
                    }
                }
                Step::Goto(to) => at = to,
            }
            if let Some(last) = call.as_ref().filter(|call| call.method == STOP) {
                self.endpoint(role.name)?.reply(last.token, Answer::Words([0; 2]))?;
                break;
            }
        }
        Ok(())
    }
}

/// The threads of a scenario, and their contexts.
struct Cast {
    stage: Arc<Stage>,
    threads: Vec<JoinHandle<Outcome>>,
    contexts: Vec<Option<SchedulingContext>>,
}

impl Cast {
    /// Creates all threads, in the order of the file; they wait.
    fn gather(script: Script, scale: Scale) -> Outcome<Cast> {
        let stage = Arc::new(Stage::new(script, scale)?);
        let (mut threads, mut contexts) = (Vec::new(), Vec::new());
        for (me, role) in stage.script.roles.iter().enumerate() {
            let theirs = Arc::clone(&stage);
            let actor = Builder::new().stack_bytes(STACK_BYTES).spawn(move || theirs.act(me))?;
            kit::wait_until("a thread begins", || Ok(stage.tids[me].load(Ordering::Acquire) != 0))?;
            kit::wait_blocked(stage.tids[me].load(Ordering::Acquire))?;
            let mut spec = role.spec;
            if let (Some(spec), Some(handler)) = (&mut spec, role.handler) {
                *spec = spec.fault(stage.endpoint(handler)?);
            }
            let context = spec.map(|spec| new_context(&spec)).transpose()?;
            if let (Some(context), Some(handle)) = (&context, actor.handle()) {
                context.bind_thread(handle, Fallback::BestEffort)?.ok()?;
            }
            threads.push(actor);
            contexts.push(context);
        }
        Ok(Cast { stage, threads, contexts })
    }

    fn context(&self, at: usize) -> Outcome<&SchedulingContext> {
        self.contexts[at].as_ref().ok_or_else(|| Failure::new("an event for a thread without a context"))
    }

    /// Performs all events of the scenario at their times. Returns the begin and the end by the CPU's clock.
    fn conduct(&self) -> Outcome<(u64, u64)> {
        // Until the conductor's own budget is back.
        time::sleep(2 * CONDUCTOR.period_ns)?;
        let (timer, space) = (time::timer()?, caps::any::<ParkSpace>()?);
        let (begin, begin_ticks) = (timer.now_ns()?, ticks::now());
        let until = |at_ns: u64| -> Outcome {
            let left_ns = (begin + at_ns).saturating_sub(timer.now_ns()?);
            if at_ns > 0 && left_ns > 0 { Ok(timer.sleep(left_ns)?) } else { Ok(()) }
        };
        for (at_ns, event) in &self.stage.script.events {
            until(*at_ns)?;
            match *event {
                Event::Start(at) => {
                    self.stage.go[at].store(1, Ordering::Release);
                    space.unpark(&self.stage.go[at], 1)?;
                }
                Event::Revoke(at) => {
                    self.context(at)?.revoke()?.ok()?;
                }
                Event::Reconfigure(at, spec) => {
                    self.context(at)?.reconfigure(&spec)?.ok()?;
                }
            }
        }
        until(self.stage.script.for_ns)?;
        let end_ticks = ticks::now();
        self.stage.over.store(true, Ordering::Relaxed);
        let took_ns = timer.now_ns()? - begin;
        let for_ns = self.stage.script.for_ns;
        ensure!(took_ns < for_ns + MS / 10, "it was over after {took_ns} ns instead of {for_ns}");
        Ok((begin_ticks, end_ticks))
    }

    /// Ends all threads, callers before servers, so that all calls are answered.
    fn dismiss(self) -> Outcome {
        let (servers, others): (Vec<_>, Vec<_>) =
            self.threads.into_iter().enumerate().partition(|(at, _)| self.stage.endpoints[*at].is_some());
        for (_, thread) in others {
            thread.join()??;
        }
        for (at, server) in servers {
            if let Some(endpoint) = &self.stage.endpoints[at] {
                endpoint.call(STOP, [0; 2]).doing("stop a server")?;
            }
            server.join()??;
        }
        Ok(())
    }
}

/// Plays a scenario, and prints `order <scenario> <cpu> <thread>...` for each CPU, for the comparison with the simulator.
pub fn play(script: Script, scale: Scale) -> Outcome {
    ensure!(script.cpus as usize <= CPUS, "{} is for {} CPUs", script.name, script.cpus);
    proof::step(script.name, || {
        super::all_back()?;
        // The conductor runs on the last CPU, because the threads of the scenario prefer the first.
        let own = new_context(&CONDUCTOR.cpus([script.cpus - 1]))?;
        own.bind(Fallback::BestEffort)?.ok()?;
        let cast = Cast::gather(script.clone(), scale)?;
        let (begin, end) = cast.conduct()?;
        own.unbind()?.ok()?;
        let stage = Arc::clone(&cast.stage);
        cast.dismiss()?;
        for (cpu, log) in stage.logs.iter().enumerate().take(script.cpus as usize) {
            let names = log.names(&script, end)?;
            ensure!(!names.is_empty(), "nobody ran on CPU {cpu}");
            log.show(&names, scale, begin);
            let mut line = alloc::format!("order {} {cpu}", script.name);
            for name in names {
                // Writing to a string does not fail.
                let _ = write!(line, " {name}");
            }
            println!("{line}");
        }
        Ok(())
    })
}
