//! Programs that the shell started: in the foreground one at a time, in the background a bounded number.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use rt::abi::{Interface, WEIGHT_DEFAULT, WEIGHT_MAX, WEIGHT_MIN, rights};
use rt::{
    Child, Client, Command, Exit, Factory, LatencyClass, Overrun, Pending, ProcessSpawner, SchedulingContext,
    SchedulingPolicy, Spec, SystemInfo, UserSession, caps, println,
};

use super::commands::{none, print_demos};
use super::{CommandResult, Shell};
use crate::ensure;
use crate::proof::{Doing, Failure};
use crate::text::{Colour, Tinted};

/// The most programs in the background. Each needs one operation under way, and a thread may have 32.
const JOBS_MAX: usize = 16;

/// A program in the background.
struct Job {
    number: u32,
    name: String,
    child: Child,
    end: Pending<Exit>,
    /// How it ended; printed before the next prompt.
    exit: Option<Exit>,
}

/// Programs in the background.
pub(super) struct Jobs {
    list: Vec<Job>,
}

impl Jobs {
    pub(super) fn new() -> Jobs {
        Jobs { list: Vec::new() }
    }

    /// Collects the exits of jobs that have ended; true if there was one.
    pub(super) fn collect(&mut self) -> bool {
        let mut has_ended = false;
        for job in &mut self.list {
            if let Some(Ok(exit)) = job.end.poll() {
                job.exit = Some(exit);
                has_ended = true;
            }
        }
        has_ended
    }

    /// The messages about jobs that have ended; these jobs are removed.
    pub(super) fn notices(&mut self) -> String {
        let mut text = String::new();
        self.list.retain(|job| {
            let Some(exit) = job.exit else { return true };
            // Writing to a string does not fail.
            let said = format_args!("[{}] pid {} {}: {exit}", job.number, job.child.pid, job.name);
            let colour = (!exit.is_success()).then_some(Colour::Missed);
            let _ = write!(text, "{}\r\n", Tinted { colour, text: said });
            false
        });
        text
    }

    /// How `kill` names the running jobs: `%spin`, or `%2` if another job has the same name or the name looks like a number.
    pub(super) fn names(&self) -> Vec<String> {
        let running = || self.list.iter().filter(|job| job.exit.is_none());
        let is_clear = |name: &str| {
            name.parse::<u32>().is_err() && running().filter(|job| job.name == name).count() == 1
        };
        let name_of = |job: &Job| {
            if is_clear(&job.name) {
                alloc::format!("%{}", job.name)
            } else {
                alloc::format!("%{}", job.number)
            }
        };
        running().map(name_of).collect()
    }

    /// The running job that `word`, without its `%`, means: by number, or by name if only one job has it.
    fn named(&self, word: &str) -> Result<&Job, Failure> {
        let running = || self.list.iter().filter(|job| job.exit.is_none());
        if let Ok(number) = word.parse::<u32>() {
            let found = running().find(|job| job.number == number);
            return found
                .ok_or_else(|| Failure::new(format_args!("there is no job {number}; `jobs` lists them")));
        }
        let mut found = running().filter(|job| job.name == word);
        match (found.next(), found.next()) {
            (Some(job), None) => Ok(job),
            (Some(_), Some(_)) => {
                Err(Failure::new(format_args!("several jobs are called `{word}`; kill one by its number")))
            }
            (None, _) => Err(Failure::new(format_args!("there is no job `{word}`; `jobs` lists them"))),
        }
    }

    /// Kills all jobs.
    pub(super) fn kill_all(&mut self) {
        for job in &mut self.list {
            // Killing a job that has ended fails, which does no harm.
            let _ = job.child.handle.kill();
        }
        self.list.clear();
    }

    fn add(&mut self, name: String, child: Child, end: Pending<Exit>) {
        let number = (1..).find(|number| self.list.iter().all(|job| job.number != *number)).unwrap_or(1);
        println!("[{number}] pid {} {name}", child.pid);
        self.list.push(Job { number, name, child, end, exit: None });
    }
}

/// The parsed arguments of `run`.
struct Request<'a> {
    program: &'a str,
    name: &'a str,
    arguments: Vec<&'a str>,
    has_input: bool,
    is_background: bool,
    weight: u16,
    class: LatencyClass,
    /// Whether a weight or a class was given.
    has_share: bool,
    /// Budget and period in ns.
    budget: Option<(u64, u64)>,
    overrun: Option<Overrun>,
    /// Whether the program shall run in the shell's own session.
    is_own: bool,
}

/// Parses a weight; the error says which values are valid.
fn weight(word: &str) -> Result<u16, Failure> {
    let weight = word.parse().ok().filter(|weight| (WEIGHT_MIN..=WEIGHT_MAX).contains(weight));
    weight.ok_or_else(|| {
        Failure::new(format_args!(
            "weight `{word}` is not from {WEIGHT_MIN} to {WEIGHT_MAX}; {WEIGHT_DEFAULT} is usual, 128 runs twice as much"
        ))
    })
}

fn class(word: &str) -> Result<LatencyClass, Failure> {
    LatencyClass::from_name(word).ok_or_else(|| {
        Failure::new(format_args!("there is no class `{word}`; interactive, normal, batch or ipcserver"))
    })
}

fn budget(word: &str) -> Result<(u64, u64), Failure> {
    edit::time::budget(word).map_err(|why| Failure::new(format_args!("budget `{word}` {why}; try 2ms/10ms")))
}

fn overrun(word: &str) -> Result<Overrun, Failure> {
    match Overrun::from_name(word) {
        Some(Overrun::Fault) => Err(Failure::new("a fault needs somebody to tell; throttle or demote")),
        Some(overrun) => Ok(overrun),
        None => Err(Failure::new(format_args!("there is no overrun `{word}`; throttle or demote"))),
    }
}

impl Request<'_> {
    fn parse(words: &[String]) -> Result<Request<'_>, Failure> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut is_background = false;
        if let Some(last) = words.last_mut()
            && let Some(rest) = last.strip_suffix('&')
        {
            is_background = true;
            *last = rest;
            if rest.is_empty() {
                words.pop();
            }
        }
        let mut asked = Request {
            program: "",
            name: "",
            arguments: Vec::new(),
            has_input: false,
            is_background,
            weight: WEIGHT_DEFAULT,
            class: LatencyClass::Normal,
            has_share: false,
            budget: None,
            overrun: None,
            is_own: false,
        };
        let mut rest = words.as_slice();
        loop {
            rest = match rest {
                ["--input", rest @ ..] => {
                    asked.has_input = true;
                    rest
                }
                ["--name", wanted, rest @ ..] => {
                    asked.name = wanted;
                    rest
                }
                ["--own", rest @ ..] => {
                    asked.is_own = true;
                    rest
                }
                ["--weight", wanted, rest @ ..] => {
                    (asked.weight, asked.has_share) = (weight(wanted)?, true);
                    rest
                }
                ["--class", wanted, rest @ ..] => {
                    (asked.class, asked.has_share) = (class(wanted)?, true);
                    rest
                }
                ["--budget", wanted, rest @ ..] => {
                    asked.budget = Some(budget(wanted)?);
                    rest
                }
                ["--overrun", wanted, rest @ ..] => {
                    asked.overrun = Some(overrun(wanted)?);
                    rest
                }
                ["--weight"] => return Err(Failure::new("--weight wants a number: `run --weight 128 prog`")),
                ["--class"] => return Err(Failure::new("--class wants a word: `run --class batch prog`")),
                ["--budget"] => {
                    return Err(Failure::new("--budget wants times: `run --budget 2ms/10ms prog`"));
                }
                ["--overrun"] => return Err(Failure::new("--overrun wants a word: throttle or demote")),
                ["--name"] => return Err(Failure::new("--name wants a name: `run --name counter prog`")),
                [option, ..] if option.starts_with('-') => {
                    let why = format_args!("there is no option `{option}`; `help run` lists them");
                    return Err(Failure::new(why));
                }
                [program, arguments @ ..] => {
                    return Ok(Request { program, arguments: arguments.to_vec(), ..asked });
                }
                [] => return Err(Failure::new("which program? `run` alone lists some to try")),
            }
        }
    }
}

impl Request<'_> {
    /// The specification of the context that each thread of the program gets.
    fn template(&self) -> Result<Option<Spec>, Failure> {
        let Some((budget_ns, period_ns)) = self.budget else {
            ensure!(
                self.overrun.is_none(),
                "--overrun is for a budget: `--budget 2ms/10ms --overrun demote`"
            );
            return Ok(None);
        };
        let spec = Spec::new(budget_ns, period_ns);
        Ok(Some(if self.overrun == Some(Overrun::Demote) { spec.demote() } else { spec }))
    }
}

/// Grants the capabilities that a program gets: all but the power switch and the session, the console for reading only with `has_input`,
/// and the right to create contexts in no band but the lowest (S-17).
fn grant(command: Command<'_>, has_input: bool) -> Command<'_> {
    const POWER: u16 = Interface::Power as u16;
    const SESSION: u16 = Interface::UserSession as u16;
    const CONSOLE: u16 = Interface::Console as u16;
    command.grant_each(|entry| match entry.interface {
        POWER | SESSION => None,
        CONSOLE if !has_input => Some(entry.rights & !rights::RECV),
        _ => Some(entry.rights & !rights::BANDS),
    })
}

/// A guest session for one program, so that the resources of the program and its children are bounded. `None` if this shell cannot create
/// one; the program then runs in the shell's session.
fn guests(program: &str) -> Result<Option<UserSession>, Failure> {
    match caps::any::<Factory>() {
        Ok(factory) => Ok(Some(factory.guest_session(program)?)),
        Err(_) => Ok(None),
    }
}

impl Shell {
    /// The command `run`.
    pub(super) fn run(&mut self, words: &[String]) -> CommandResult {
        if words.is_empty() {
            println!("which program? For example:");
            print_demos();
            println!("`help run` explains options, `programs` lists the rest.");
            return Ok(());
        }
        let request = Request::parse(words)?;
        ensure!(
            self.programs.iter().any(|name| name == request.program),
            "there is no program `{}`; `programs` lists them",
            request.program
        );
        ensure!(
            !(request.has_input && request.is_background),
            "--input is for the foreground: leave it or the & out"
        );
        let is_full = request.is_background && self.jobs.list.len() >= JOBS_MAX;
        ensure!(!is_full, "{JOBS_MAX} programs run in the background; wait, or `kill` one of `jobs`");
        let spawner: ProcessSpawner = caps::any()?;
        let mut command = Command::new(request.program).name(request.name);
        for argument in &request.arguments {
            command = command.arg(argument);
        }
        // This shell is interactive; the programs that it starts are not, unless the options say so.
        if caps::any::<SchedulingPolicy>().is_ok() {
            command = command.weight(request.weight).class(request.class);
        } else {
            ensure!(
                !request.has_share,
                "this shell holds no `scheduling_policy`, so what it runs has its own weight and class: \
                 leave --weight and --class out, or grant it in the manifest"
            );
        }
        if let Some(spec) = request.template()? {
            let Ok(context) = caps::any::<SchedulingContext>() else {
                return Err(Failure::new(
                    "this shell holds no `scheduling_context`, so it has no time to give: \
                     leave --budget out, or grant it in the manifest",
                ));
            };
            command = command.template(spec, &context);
        }
        let session = if request.is_own { None } else { guests(request.program)? };
        if let Some(session) = &session {
            command = command.grant("session", session.cap(), rights::CALL | rights::GRANT, 0);
        }
        let child = grant(command, request.has_input).spawn(&spawner)?;
        let end = child.handle.wait_start().doing("it runs, but cannot be waited for")?;
        let name = if request.name.is_empty() { request.program } else { request.name };
        if request.is_background {
            self.jobs.add(name.into(), child, end);
            return Ok(());
        }
        let exit = if request.has_input { self.lend(end)? } else { self.wait_for(&child, end)? };
        self.used_ns = child.handle.info().ok().map(|info| info.runtime_ns);
        if !exit.is_success() {
            let text = format_args!("{name} (pid {}): {exit}", child.pid);
            println!("{}", Tinted { colour: Some(Colour::Missed), text });
        }
        Ok(())
    }

    /// Waits for a program in the foreground; Ctrl-C kills it.
    fn wait_for(&mut self, child: &Child, mut end: Pending<Exit>) -> Result<Exit, Failure> {
        loop {
            if let Some(exit) = end.poll() {
                return Ok(exit?);
            }
            // Ctrl-C counts from the moment when the line was finished.
            if self.input.is_interrupted() {
                println!("^C");
                // The program may have ended by itself just now.
                let _ = child.handle.kill();
            }
            self.wait()?;
        }
    }

    /// Waits for a program in the foreground that reads the console itself.
    fn lend(&mut self, end: Pending<Exit>) -> Result<Exit, Failure> {
        self.input.pause();
        Ok(end.wait()?)
    }

    /// The command `jobs`.
    pub(super) fn list_jobs(&mut self, arguments: &[String]) -> CommandResult {
        none(arguments)?;
        self.jobs.collect();
        if self.jobs.list.is_empty() {
            println!("nothing runs in the background; `run program &` starts something there");
        }
        for Job { number, name, child, exit, .. } in &self.jobs.list {
            match exit {
                None => println!("[{number}] pid {} {name}: running", child.pid),
                Some(exit) => println!("[{number}] pid {} {name}: {exit}", child.pid),
            }
        }
        Ok(())
    }

    /// The command `kill`.
    pub(super) fn kill(&mut self, arguments: &[String]) -> CommandResult {
        let [text] = arguments else {
            return Err(Failure::new("which one? `kill pid` or `kill %job`; `jobs` lists yours"));
        };
        if let Some(word) = text.strip_prefix('%') {
            return Ok(self.jobs.named(word)?.child.handle.kill()?);
        }
        let Ok(pid) = text.parse::<u32>() else {
            return Err(Failure::new(format_args!("`{text}` is no pid; `jobs` lists yours")));
        };
        let is_meant = |job: &&Job| job.exit.is_none() && job.child.pid == pid;
        if let Some(job) = self.jobs.list.iter().find(is_meant) {
            return Ok(job.child.handle.kill()?);
        }
        ensure!(pid != rt::boot_info().pid, "that is this shell; `logout` ends it");
        // A process that was left behind by a program of this shell belongs to the session.
        if let Ok(session) = caps::any::<UserSession>()
            && session.processes()?.iter().any(|process| process.pid == pid)
        {
            return Ok(session.kill(pid)?);
        }
        let processes = caps::any::<SystemInfo>()?.processes()?;
        let Some(process) = processes.iter().find(|process| process.pid == pid) else {
            return Err(Failure::new(format_args!("there is no process {pid}; `ps` lists them")));
        };
        Err(Failure::new(format_args!(
            "pid {pid} ({}) is not of this session; only who holds its handle or its\n\
             session can end it, and `jobs` lists those that this shell holds",
            process.name
        )))
    }
}
