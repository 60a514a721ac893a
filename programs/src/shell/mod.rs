//! The shell: a line editor on the console, commands that query the kernel, programs in the foreground and in the
//! background.

mod commands;
mod input;
mod jobs;
mod look;
mod top;

use alloc::string::String;
use alloc::vec::Vec;

use edit::complete::Names;
use edit::{Editor, Event, History, Keys, LINE_MAX};
use rt::{Error, ProcessSpawner, Result, UserSession, caps, println, ring};

use crate::proof::Failure;
use crate::text::{Colour, Tinted};
use commands::COMMANDS;
use input::Input;
use jobs::Jobs;

/// Lines that are remembered.
const HISTORY_MAX: usize = 100;

/// The result of a command.
type CommandResult = core::result::Result<(), Failure>;

/// The shell's state.
struct Shell {
    input: Input,
    history: History,
    jobs: Jobs,
    /// Names of the programs in the boot image, which does not change; sorted.
    programs: Vec<String>,
    /// CPU time of the program that ended last in the foreground, for `time`.
    used_ns: Option<u64>,
    /// The exit code, once the shell shall end.
    end: Option<i64>,
}

/// Runs the shell until the user leaves it; returns its exit code.
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
        Ok(Shell { input: Input::new()?, history, jobs: Jobs::new(), programs, used_ns: None, end: None })
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
                let (programs, jobs) = (&self.programs, &self.jobs);
                let mut complete = |left: &str| candidates(left, programs, jobs);
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
        match edit::words(line) {
            Some(words) => self.perform(&words),
            None => println!("shell: a quote \" is not closed; close it, or leave it out"),
        }
    }

    /// Performs a command, or else runs the program of that name.
    fn perform(&mut self, words: &[String]) {
        let Some((name, arguments)) = words.split_first() else { return };
        let done = match COMMANDS.iter().find(|command| command.name == name) {
            Some(command) => (command.run)(self, arguments),
            None if self.programs.binary_search(name).is_ok() => self.run(words),
            None if ["exit", "quit"].contains(&name.as_str()) => {
                println!("`logout` ends the shell, `poweroff` the machine");
                return;
            }
            None => {
                println!("there is no command `{name}`: `help` lists them, `programs` what can be run");
                return;
            }
        };
        if let Err(Failure(why)) = done {
            println!("{}", Tinted { colour: Some(Colour::Missed), text: format_args!("{name}: {why}") });
        }
    }
}

/// The prompt: `name> `, where the name is that of the session.
fn prompt() -> String {
    let session: Result<UserSession> = caps::any();
    let name = session.and_then(|session| session.info()).map(|info| info.name);
    let mut prompt = name.unwrap_or_else(|_: Error| "capos".into());
    prompt.push_str("> ");
    prompt
}

/// What Tab offers for the last word of `left`.
fn candidates(left: &str, programs: &[String], jobs: &Jobs) -> Vec<String> {
    let commands: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    let classes = rt::LatencyClass::ALL.map(rt::LatencyClass::name);
    let names = Names { commands: &commands, programs, jobs: &jobs.names(), classes: &classes };
    edit::complete::candidates(left, &names)
}
