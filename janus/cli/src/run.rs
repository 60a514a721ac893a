//! `janus run` and `janus check`.

use crate::Run;
use crate::code;
use crate::top::Watched;
use janus::budget::UNLIMITED;
use janus::{Budget, Config, Cx, NurseryOptions, Recharge, Runtime, StackClass, TaskError};
use janus_guest::amount::{PARTS, show};
use janus_guest::{
    End, Given, Grant, Grants, GuestError, Input, Need, Options, Output, Program, Tally, Used, World, needs,
};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Operations after which a guest gives way. They are instructions, smaller than what native tasks count.
const QUANTUM: u64 = 16_384;
/// How long the report of a guest that was stopped waits for somebody who reads it.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is wrong, and the exit code that says it.
struct Failure(u8, String);

type Ended = Result<Result<End, GuestError>, TaskError>;

pub(crate) fn run(run: &Run) -> ExitCode {
    match try_run(run) {
        Ok(code) => ExitCode::from(code),
        Err(Failure(code, why)) => {
            eprintln!("janus: {why}");
            ExitCode::from(code)
        }
    }
}

/// A module, from its binary or its text form.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = std::fs::read(path)
        .map_err(|error| Failure(code::CANNOT_READ, format!("cannot read {}: {error}", path.display())))?;
    let wasm = wat::parse_bytes(&bytes)
        .map_err(|error| Failure(code::BAD_MODULE, format!("{} is no module: {error}", path.display())))?;
    Ok(wasm.into_owned())
}

fn refused(error: &GuestError, run: &Run) -> Failure {
    let hint = match error {
        GuestError::NotGranted { grant, .. } => format!("; to give it: --grant {grant}"),
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
        given.push(Given { name: name.clone(), file, writable });
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
    if run.recharge.is_some() && !grants.has(Grant::Budget) {
        let why = "--recharge limits what the guest recharges itself with, which is a right; to give it: --grant budget";
        return Err(Failure(code::USAGE, why.to_string()));
    }
    let program = Program::link(&wasm, &libraries, grants).map_err(|error| refused(&error, run))?;
    let entry = match &run.entry {
        Some(entry) => entry.clone(),
        None if program.exports("_start") => "_start".to_string(),
        None => "main".to_string(),
    };
    if !program.exports(&entry) {
        let why = format!("the module exports no function `{entry}`; name one that it has with --entry");
        return Err(Failure(code::BAD_MODULE, why));
    }
    let mut config = Config::new().profile(run.profile).quantum(QUANTUM);
    config = run.workers.map_or(config.clone(), |workers| config.workers(workers));
    let config = run.seed.map_or(config.clone(), |seed| config.seed(seed));
    let runtime = Runtime::new(config).map_err(|error| Failure(code::RUNTIME, error.to_string()))?;
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
    let ended = std::thread::scope(|threads| {
        if let Some(watched) = &watched {
            threads.spawn(|| watched.serve(&runtime, &tally, &done));
        }
        let ended = runtime.run(|cx| supervise(cx, run, &program, &entry, options));
        done.store(true, Ordering::Release);
        ended
    });
    let ended = ended.map_err(|error| Failure(code::RUNTIME, error.to_string()))?;
    let used = tally.used();
    let value = ended.as_ref().ok().and_then(|end| end.as_ref().ok()?.value);
    let mut report = if run.quiet { String::new() } else { table(&run.budget, &used, value) };
    let code = verdict(run, &ended, &used, &mut report);
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
                let launcher = task.spawn(|cx| launch(cx, run.budget, program, entry, options));
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
            exit => exit.clamp(1, code::GUEST_MAX) as u8,
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

pub(crate) fn check(guest: &Path) -> ExitCode {
    let found = read(guest)
        .and_then(|wasm| needs(&wasm).map_err(|error| Failure(code::BAD_MODULE, error.to_string())));
    match found {
        Ok(found) => {
            let mut grants = Vec::new();
            for need in &found {
                match need {
                    Need::Free(name) => println!("{name:<48} free"),
                    Need::Granted(name, grant) => {
                        println!("{name:<48} --grant {grant}");
                        if !grants.contains(&grant.name()) {
                            grants.push(grant.name());
                        }
                    }
                    Need::Linked(name) => {
                        println!("{name:<48} --link {}=PATH", name.split('.').next().unwrap_or_default())
                    }
                }
            }
            let grants =
                if grants.is_empty() { String::new() } else { format!(" --grant {}", grants.join(",")) };
            println!("to run it: janus run{grants} {}", guest.display());
            ExitCode::SUCCESS
        }
        Err(Failure(code, why)) => {
            eprintln!("janus: {why}");
            ExitCode::from(code)
        }
    }
}
