//! `janus run`.

use crate::Run;
use crate::code;
use crate::module::{self, Failure, read};
use crate::top::Watched;
use janus::budget::UNLIMITED;
use janus::{Budget, Config, Cx, NurseryOptions, Recharge, Runtime, StackClass, TaskError};
use janus_guest::amount::{PARTS, show};
use janus_guest::{
    End, Given, Grant, Grants, GuestError, Input, Need, Options, Output, Program, Tally, Used, World,
    functions, needs,
};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Operations after which a guest gives way. They are instructions, smaller than what native tasks count.
const QUANTUM: u64 = 16_384;
/// Functions of a module that an error lists.
const LISTED: usize = 10;
/// How long the report of a guest that was stopped waits for somebody who reads it.
const PATIENCE: Duration = Duration::from_secs(1);

type Ended = Result<Result<End, GuestError>, TaskError>;

pub(crate) fn run(run: &Run) -> ExitCode {
    match try_run(run) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.tell(),
    }
}

/// Everything that a module imports and was not granted, so that it is asked for once.
fn lacking(wasm: &[u8], grants: Grants) -> String {
    let mut names: Vec<&str> = Vec::new();
    for need in needs(wasm).unwrap_or_default() {
        // Memory that does not grow is no reason to refuse it.
        if let Need::Granted(_, grant) = need
            && !grants.has(grant)
            && grant != Grant::Memory
            && !names.contains(&grant.name())
        {
            names.push(grant.name());
        }
    }
    names.join(",")
}

fn refused(error: &GuestError, run: &Run, wasm: &[u8], grants: Grants) -> Failure {
    let hint = match error {
        GuestError::NotGranted { grant, .. } => match lacking(wasm, grants) {
            // It is a linked module that imports it.
            names if names.is_empty() => format!("; to give it: --grant {grant}"),
            names => format!("; to give it what it needs: --grant {names}"),
        },
        GuestError::UnknownImport { .. } => {
            format!("; `janus check {}` lists its imports", run.guest.display())
        }
        GuestError::Cycle { .. } => {
            "; break the cycle: a module comes after those it imports from".to_string()
        }
        _ => String::new(),
    };
    Failure(code::of_guest(error, &Used::default()), format!("{error}{hint}"))
}

fn open(files: &[(String, PathBuf)], writable: bool, given: &mut Vec<Given>) -> Result<(), Failure> {
    for (name, path) in files {
        let file = if writable {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
        } else {
            File::open(path)
        };
        let file = file.map_err(|error| {
            Failure(code::CANNOT_READ, format!("cannot open {}: {error}", path.display()))
        })?;
        if file.metadata().is_ok_and(|data| data.is_dir()) {
            let why = format!("{} is a directory; a guest is given files, one by one", path.display());
            return Err(Failure(code::CANNOT_READ, why));
        }
        // As a guest's own paths are read.
        let name = name.trim_start_matches("./").trim_start_matches('/').to_string();
        if name.is_empty() || given.iter().any(|other: &Given| other.name == name) {
            let why = format!("two files are called `{name}`, or one has no name; write NAME=PATH");
            return Err(Failure(code::USAGE, why));
        }
        given.push(Given { name, file, writable });
    }
    Ok(())
}

fn world(run: &Run) -> Result<World, Failure> {
    let mut files = Vec::new();
    open(&run.file, false, &mut files)?;
    open(&run.file_rw, true, &mut files)?;
    let name = run.guest.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let input = Input::reader(std::io::stdin())
        .map_err(|error| Failure(code::RUNTIME, format!("no thread to read the input: {error}")))?;
    Ok(World {
        args: std::iter::once(name).chain(run.args.iter().cloned()).collect(),
        input: Mutex::new(input),
        output: Output::descriptor(std::io::stdout()),
        errors: Output::descriptor(std::io::stderr()),
        files,
        env: run.env.clone(),
        // A run that is to repeat itself begins at the same time and draws the same numbers.
        epoch: if run.seed.is_some() { Duration::ZERO } else { epoch },
        seed: run.seed,
    })
}

fn check_recharge(run: &Run, grants: Grants) -> Result<(), Failure> {
    let why = match (run.recharge.is_some(), grants.has(Grant::Budget)) {
        (true, false) => {
            "--recharge limits what the guest recharges itself with, which is a right; to give it: --grant budget"
        }
        (false, true) => {
            "--grant budget lets the guest recharge itself; say with how much in all: --recharge ops=1M"
        }
        _ => return Ok(()),
    };
    Err(Failure(code::USAGE, why.to_string()))
}

fn find_entry(run: &Run, wasm: &[u8]) -> Result<String, Failure> {
    let exported = functions(wasm).unwrap_or_default();
    let found = match &run.entry {
        Some(entry) => exported.iter().find(|name| *name == entry).map(String::as_str),
        None => module::entry(&exported),
    };
    found.map(str::to_string).ok_or_else(|| {
        let wanted = run.entry.as_ref().map_or_else(
            || "neither `_start` nor `main`".to_string(),
            |entry| format!("no function `{entry}`"),
        );
        let others = match exported.len() {
            0 => "it exports no function at all".to_string(),
            count => {
                let more = if count > LISTED { ", ..." } else { "" };
                let names = exported[..count.min(LISTED)].join(", ");
                format!("name one that it has with --entry: {names}{more}")
            }
        };
        Failure(code::BAD_MODULE, format!("the module exports {wanted}; {others}"))
    })
}

/// Virtual time stands still while a guest computes: with a seed a thread watches the clock, and ends the process.
fn stop_in_real_time(run: &Run, timeout: Duration, tally: &Tally, done: &mpsc::Receiver<()>) {
    if done.recv_timeout(timeout) != Err(mpsc::RecvTimeoutError::Timeout) {
        return;
    }
    let mut report = if run.quiet { String::new() } else { table(&run.budget, &tally.used(), None) };
    report.push_str("janus: the guest was stopped by --timeout\n");
    say(report, true);
    if let Some(socket) = &run.watch {
        // Nobody else will.
        let _ = std::fs::remove_file(socket);
    }
    std::process::exit(i32::from(code::TIMED_OUT));
}

fn try_run(run: &Run) -> Result<u8, Failure> {
    let wasm = read(&run.guest)?;
    let libraries: Vec<(String, Vec<u8>)> = run
        .link
        .iter()
        .map(|(name, path)| Ok((name.clone(), read(path)?)))
        .collect::<Result<_, Failure>>()?;
    let libraries: Vec<(&str, &[u8])> =
        libraries.iter().map(|(name, wasm)| (name.as_str(), wasm.as_slice())).collect();
    let grants = run.grant.iter().fold(Grants::of(run.profile), |grants, &grant| grants.with(grant));
    check_recharge(run, grants)?;
    let program =
        Program::link(&wasm, &libraries, grants).map_err(|error| refused(&error, run, &wasm, grants))?;
    let entry = find_entry(run, &wasm)?;
    let mut config = Config::new().profile(run.profile).quantum(QUANTUM);
    config = run.workers.map_or(config.clone(), |workers| config.workers(workers));
    let config = run.seed.map_or(config.clone(), |seed| config.seed(seed));
    #[allow(unsafe_code, reason = "the one promise of a runtime's making")]
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime =
        unsafe { Runtime::new(config) }.map_err(|error| Failure(code::RUNTIME, error.to_string()))?;
    let watched = match &run.watch {
        Some(path) => Some(Watched::open(path).map_err(|error| {
            let why = format!("cannot answer on {}: {error}; name a path that is free", path.display());
            Failure(code::CANNOT_READ, why)
        })?),
        None => None,
    };
    let tally = Arc::new(Tally::default());
    let options = Options { world: Arc::new(world(run)?), recharge: run.recharge, tally: tally.clone() };
    let done = AtomicBool::new(false);
    let (running, over) = mpsc::channel();
    let ended = std::thread::scope(|threads| {
        if let (Some(timeout), Some(_)) = (run.timeout, run.seed) {
            let tally = &tally;
            threads.spawn(move || stop_in_real_time(run, timeout, tally, &over));
        }
        if let Some(watched) = &watched {
            threads.spawn(|| watched.serve(&runtime, &tally, &done));
        }
        let ended = runtime.run(|cx| supervise(cx, run, &program, &entry, options));
        done.store(true, Ordering::Release);
        drop(running);
        ended
    });
    let ended = ended.map_err(|error| Failure(code::RUNTIME, error.to_string()))?;
    if let Ok(Err(error @ GuestError::NoEntry { .. })) = &ended {
        return Err(Failure(code::BAD_MODULE, error.to_string()));
    }
    let used = tally.used();
    let value = ended.as_ref().ok().and_then(|end| end.as_ref().ok()?.value);
    let mut report = if run.quiet { String::new() } else { table(&run.budget, &used, value) };
    let code = verdict(run, &ended, &used, &mut report);
    let wants_memory = || needs(&wasm).is_ok_and(|needs| needs.iter().any(Need::is_growth));
    if code != 0 && !grants.has(Grant::Memory) && wants_memory() {
        report.push_str(
            "janus: it may not have more memory than it began with; to let it grow: --grant memory\n",
        );
    }
    say(report, code == code::TIMED_OUT);
    Ok(code)
}

/// A guest that waits for somebody who reads its output can be stopped; then nobody may read this either, and it is waited
/// for so long at most.
fn say(report: String, stopped: bool) {
    let (done, told) = mpsc::channel();
    // If nobody listens there is nothing to say.
    let print = move || {
        let _ = write!(std::io::stderr(), "{report}");
        let _ = done.send(());
    };
    if !stopped {
        print();
    } else if std::thread::Builder::new().spawn(print).is_ok() {
        let _ = told.recv_timeout(PATIENCE);
    }
}

/// The guest is alone in its nursery, so that it is known when it cannot go on; the timer is in another.
fn supervise(cx: &Cx, run: &Run, program: &Program, entry: &str, options: Options) -> Ended {
    let mut ended: Ended = Err(TaskError::Cancelled);
    // How the guest ended is in `ended`; that the timer was cancelled is no news.
    let _ = cx.nursery(|outer| {
        let mut task = outer.task().name("launcher").stack(StackClass::Medium).budget(Budget::UNLIMITED);
        if let Some(capability) = cx.cap_spawn() {
            task = task.grant_spawn(capability);
        }
        let launcher =
            task.grant_budget(cx).map_err(|error| TaskError::Failed(Arc::new(error))).and_then(|task| {
                let launcher = task.try_spawn(|cx| launch(cx, run.budget, program, entry, options));
                launcher.map_err(|error| TaskError::Failed(Arc::new(error)))
            });
        if let Some(timeout) = run.timeout {
            let timer = outer.spawn(move |cx| {
                cx.sleep(timeout).is_ok_and(|()| {
                    outer.cancel();
                    true
                })
            });
            // If there is no room for a timer there is none for the launcher.
            drop(timer);
        }
        ended = match launcher {
            Ok(launcher) => launcher.join(cx).unwrap_or_else(Err),
            Err(error) => Err(error),
        };
        outer.cancel();
        Ok(())
    });
    ended
}

fn launch(cx: &Cx, budget: Budget, program: &Program, entry: &str, options: Options) -> Ended {
    let mut ended: Ended = Err(TaskError::Cancelled);
    let _ = cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |nursery| {
        ended = match program.spawn(cx, nursery, entry, budget, options) {
            Ok(guest) => guest.join(cx),
            Err(error) => Err(TaskError::Failed(Arc::new(error))),
        };
        Ok(())
    });
    ended
}

/// The exit code; what is to be said of it goes to the report.
fn verdict(run: &Run, ended: &Ended, used: &Used, report: &mut String) -> u8 {
    let mut explain = |code: u8, why: &dyn std::fmt::Display| {
        let part = match code {
            code::OPS => Some("ops"),
            code::MEMORY => Some("memory"),
            code::SPAWN => Some("spawn"),
            code::MESSAGES => Some("messages"),
            code::IO => Some("io"),
            _ => None,
        };
        let _ = match part {
            Some(part) => {
                writeln!(report, "janus: {why}: it ran out of {part}; give it more with --budget {part}=...")
            }
            None => writeln!(report, "janus: {why}"),
        };
        code
    };
    match ended {
        Ok(Ok(End { exit, .. })) => match exit.unwrap_or(0) {
            0 => 0,
            _ if code::refused(used).is_some() => {
                explain(code::refused(used).unwrap_or_default(), &"the guest failed after a refusal")
            }
            exit => (exit as u32).min(code::GUEST_MAX) as u8,
        },
        Ok(Err(error)) => explain(code::of_guest(error, used), error),
        Err(TaskError::Cancelled) if run.timeout.is_some() => {
            explain(code::TIMED_OUT, &"the guest was stopped by --timeout")
        }
        Err(error @ TaskError::BudgetExceeded(_)) => explain(code::of_task(error), &"the guest was stopped"),
        Err(error) => explain(code::of_task(error), error),
    }
}

/// What was used of what, and what it returned.
fn table(budget: &Budget, used: &Used, value: Option<i64>) -> String {
    let figures = [used.ops, used.memory, used.spawned, used.messages, used.io];
    let mut text = format!("{:<10} {:>16} {:>16} {:>8}\n", "", "used", "budget", "");
    for ((name, resource), figure) in PARTS.into_iter().zip(figures) {
        let given = budget.get(resource);
        let part = match given {
            0 | UNLIMITED => String::new(),
            given => format!("{:.1} %", figure as f64 * 100.0 / given as f64),
        };
        let _ = writeln!(text, "{name:<10} {:>16} {:>16} {part:>8}", show(figure), show(given));
    }
    if let Some(value) = value {
        let _ = writeln!(text, "{:<10} {value:>16}", "result");
    }
    text
}
