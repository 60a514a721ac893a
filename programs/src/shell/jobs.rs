//! Programs that the shell started: in the foreground one at a time, in the background a bounded number.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use rt::abi::Interface;
use rt::{Child, Command, Exit, Pending, ProcessSpawner, SystemInfo, caps, println};

use super::commands::none;
use super::{Outcome, Shell};
use crate::ensure;
use crate::proof::{Doing, Failure};

/// Programs in the background at the same time; each has an operation under way, and a thread has 32.
const JOBS_MAX: usize = 16;

/// A program in the background.
struct Job {
    number: u32,
    name: String,
    child: Child,
    end: Pending<Exit>,
    /// How it ended; told at the next prompt.
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

    /// Sees who has ended; true if somebody has.
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

    /// What is to be said of those who have ended; they are forgotten.
    pub(super) fn notices(&mut self) -> String {
        let mut text = String::new();
        self.list.retain(|job| {
            let Some(exit) = job.exit else { return true };
            // Writing to a string does not fail.
            let _ = write!(text, "[{}] pid {} {}: {exit}\r\n", job.number, job.child.pid, job.name);
            false
        });
        text
    }

    /// Ends all of them.
    pub(super) fn kill_all(&mut self) {
        for job in &mut self.list {
            // One that has ended needs no killing.
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

/// What `run` was asked for.
struct Request<'a> {
    program: &'a str,
    name: &'a str,
    arguments: Vec<&'a str>,
    has_input: bool,
    is_background: bool,
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
        let (mut name, mut has_input) = ("", false);
        let mut rest = words.as_slice();
        loop {
            rest = match rest {
                ["--input", rest @ ..] => {
                    has_input = true;
                    rest
                }
                ["--name", wanted, rest @ ..] => {
                    name = wanted;
                    rest
                }
                ["--name"] => return Err(Failure::new("--name wants a name: `run --name counter prog`")),
                [option, ..] if option.starts_with('-') => {
                    let why = format_args!("there is no option `{option}`; `help run` lists them");
                    return Err(Failure::new(why));
                }
                [program, arguments @ ..] => {
                    let arguments = arguments.to_vec();
                    return Ok(Request { program, name, arguments, has_input, is_background });
                }
                [] => return Err(Failure::new("which program? `programs` lists them")),
            }
        }
    }
}

impl Shell {
    /// The command `run`.
    pub(super) fn run(&mut self, words: &[String]) -> Outcome {
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
        let kept = [Interface::Power as u16, Interface::UserSession as u16];
        let child = command.grant_all(|entry| kept.contains(&entry.interface)).spawn(&spawner)?;
        let end = child.handle.wait_start().doing("it runs, but cannot be waited for")?;
        let name = if request.name.is_empty() { request.program } else { request.name };
        if request.is_background {
            self.jobs.add(name.into(), child, end);
            return Ok(());
        }
        let exit = if request.has_input { self.lend(end)? } else { self.watch(&child, end)? };
        if !exit.is_success() {
            println!("{name} (pid {}): {exit}", child.pid);
        }
        Ok(())
    }

    /// Waits for a program in the foreground; Ctrl-C kills it.
    fn watch(&mut self, child: &Child, mut end: Pending<Exit>) -> Result<Exit, Failure> {
        loop {
            if let Some(exit) = end.poll() {
                return Ok(exit?);
            }
            // What was typed since the line was finished counts, too.
            if self.input.is_interrupted() {
                println!("^C");
                // It may have ended by itself just now.
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
    pub(super) fn list_jobs(&mut self, arguments: &[String]) -> Outcome {
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
    pub(super) fn kill(&mut self, arguments: &[String]) -> Outcome {
        let [text] = arguments else { return Err(Failure::new("whom? `kill pid`; `jobs` lists yours")) };
        let Ok(number) = text.strip_prefix('%').unwrap_or(text).parse::<u32>() else {
            return Err(Failure::new(format_args!("`{text}` is no pid; `jobs` lists yours")));
        };
        let is_job = text.starts_with('%');
        let is_meant = |job: &&Job| number == if is_job { job.number } else { job.child.pid };
        if let Some(job) = self.jobs.list.iter().filter(|job| job.exit.is_none()).find(is_meant) {
            return Ok(job.child.handle.kill()?);
        }
        ensure!(!is_job, "there is no job {number}; `jobs` lists them");
        let pid = number;
        ensure!(pid != rt::boot_info().pid, "that is this shell; `logout` ends it");
        let processes = caps::any::<SystemInfo>()?.processes()?;
        let Some(process) = processes.iter().find(|process| process.pid == pid) else {
            return Err(Failure::new(format_args!("there is no process {pid}; `ps` lists them")));
        };
        Err(Failure::new(format_args!(
            "pid {pid} ({}) was not started here; only who holds its handle can end it,\n\
             and `jobs` lists those that this shell holds",
            process.name
        )))
    }
}
