//! The shell: a line editor on the console, commands that ask the kernel, programs in the foreground and in the background.

mod commands;
mod input;
mod jobs;
mod look;
mod top;

use alloc::string::String;
use alloc::vec::Vec;

use edit::{Editor, Event, History, Keys, LINE_MAX};
use rt::{Error, ProcessSpawner, Result, UserSession, caps, println, ring};

use crate::proof::Failure;
use commands::COMMANDS;
use input::Input;
use jobs::Jobs;

/// Lines that are remembered.
const HISTORY_MAX: usize = 100;

/// What a command comes to.
type Outcome = core::result::Result<(), Failure>;

/// The shell's state.
struct Shell {
    input: Input,
    history: History,
    jobs: Jobs,
    /// Names of the programs in the boot image, which does not change; sorted.
    programs: Vec<String>,
    /// The exit code, once the shell is to end.
    end: Option<i64>,
}

/// Runs the shell until it is left; returns its exit code.
pub fn run() -> i64 {
    match Shell::new().and_then(|mut shell| shell.serve()) {
        Ok(code) => code,
        Err(error) => {
            println!("shell: {error}");
            1
        }
    }
}

impl Shell {
    fn new() -> Result<Shell> {
        let spawner: Result<ProcessSpawner> = caps::any();
        let mut programs = match spawner.and_then(|spawner| spawner.programs()) {
            Ok(programs) => programs,
            Err(error) => {
                println!("shell: programs cannot be started: {error}");
                Vec::new()
            }
        };
        programs.sort();
        let history = History::new(HISTORY_MAX);
        Ok(Shell { input: Input::new()?, history, jobs: Jobs::new(), programs, end: None })
    }

    fn serve(&mut self) -> Result<i64> {
        println!("\ncapOS shell. `help` lists the commands, Tab completes, arrows recall lines.");
        let mut keys = Keys::new();
        loop {
            match self.read_line(&mut keys)? {
                Event::Line(line) => {
                    self.history.add(line.trim());
                    self.execute(&line);
                }
                Event::Cut => {
                    println!("shell: more than {LINE_MAX} characters, so nothing was done; make it shorter")
                }
                Event::EndOfInput => self.execute("logout"),
                Event::Editing | Event::Interrupted => {}
            }
            if let Some(code) = self.end {
                return Ok(code);
            }
        }
    }

    /// Shows a prompt and edits a line until it is finished.
    fn read_line(&mut self, keys: &mut Keys) -> Result<Event> {
        let mut editor = Editor::new(&prompt());
        let mut out = String::new();
        self.jobs.collect();
        out.push_str(&self.jobs.notices());
        editor.show(&mut out);
        loop {
            while let Some(byte) = self.input.next() {
                let Some(key) = keys.take(byte) else { continue };
                let programs = &self.programs;
                let mut complete = |left: &str| candidates(left, programs);
                let event = editor.take(key, &self.history, &mut complete, &mut out);
                if event != Event::Editing {
                    self.input.write(&out)?;
                    return Ok(event);
                }
            }
            self.input.write(&out)?;
            out.clear();
            self.wait()?;
            let notices = self.jobs.notices();
            if !notices.is_empty() {
                out.push_str("\r\x1b[K");
                out.push_str(&notices);
                editor.show(&mut out);
            }
        }
    }

    /// Waits until something is typed, a background program ends, or another operation of this thread is done.
    fn wait(&mut self) -> Result<()> {
        let is_typed = self.input.listen()?;
        if !self.jobs.collect() && !is_typed {
            ring::wait_any();
            self.input.listen()?;
            self.jobs.collect();
        }
        Ok(())
    }

    fn execute(&mut self, line: &str) {
        let Some(words) = edit::words(line) else {
            println!("shell: a quote \" is not closed; close it, or leave it out");
            return;
        };
        let Some((name, arguments)) = words.split_first() else { return };
        let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
            if ["exit", "quit"].contains(&name.as_str()) {
                println!("`logout` ends the shell, `poweroff` the machine");
            } else if self.programs.binary_search(name).is_ok() {
                println!("{name} is a program: type `run {}`", line.trim());
            } else {
                println!("there is no command `{name}`: `help` lists them, `programs` what can be run");
            }
            return;
        };
        if let Err(Failure(why)) = (command.run)(self, arguments) {
            println!("{name}: {why}");
        }
    }
}

/// `name> `, by whose session it is.
fn prompt() -> String {
    let session: Result<UserSession> = caps::any();
    let name = session.and_then(|session| session.info()).map(|info| info.name);
    let mut prompt = name.unwrap_or_else(|_: Error| "capos".into());
    prompt.push_str("> ");
    prompt
}

/// Words that could stand for the last one of `left`: commands at first, then what the command takes.
fn candidates(left: &str, programs: &[String]) -> Vec<String> {
    let mut words: Vec<&str> = left.split(' ').collect();
    let last = words.pop().unwrap_or("");
    words.retain(|word| !word.is_empty());
    let is_wanted = |word: &str| word.starts_with(last);
    let commands = || COMMANDS.iter().map(|command| command.name).filter(|name| is_wanted(name));
    match words.as_slice() {
        [] | ["help"] => commands().map(String::from).collect(),
        ["run", .., "--class"] => {
            let classes = rt::LatencyClass::ALL.into_iter().map(rt::LatencyClass::name);
            classes.filter(|name| is_wanted(name)).map(String::from).collect()
        }
        ["run", .., "--overrun"] => {
            let known = ["throttle", "demote"].into_iter();
            known.filter(|name| is_wanted(name)).map(String::from).collect()
        }
        ["run", rest @ ..] if is_program_next(rest) => {
            programs.iter().filter(|name| is_wanted(name)).cloned().collect()
        }
        _ => Vec::new(),
    }
}

/// Whether the word after these arguments of `run` is a program.
fn is_program_next(words: &[&str]) -> bool {
    match words {
        [] => true,
        ["--input" | "--own", rest @ ..]
        | ["--name" | "--weight" | "--class" | "--budget" | "--overrun", _, rest @ ..] => {
            is_program_next(rest)
        }
        _ => false,
    }
}
