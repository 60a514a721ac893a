//! Child processes: `std::process` with the task's [`Cx`]. A thread starts them, as that can take a while; waiting for
//! one blocks only the task.

use crate::budget::Operation;
use crate::cx::Cx;
use crate::io::op::{Call, Manner, Request, Side, any_readable, perform};
use crate::io::pool::{Ending, unblock_as};
use crate::io::{PipeReader, PipeWriter, sys};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::Location;
use std::path::Path;
use std::process as std_process;

pub use std::process::{ExitStatus, Output, Stdio};

/// A program to start: [`std::process::Command`] with a [`Cx`].
///
/// ```
/// # use janus::{Config, Runtime, process::Command};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let output = runtime.run(|cx| Command::new("echo").arg("hello").output(cx)).unwrap().unwrap();
/// assert_eq!((output.status.success(), &*output.stdout), (true, &b"hello\n"[..]));
/// ```
#[derive(Debug)]
pub struct Command(std_process::Command);

/// A running program: [`std::process::Child`] with a [`Cx`]. As with `std`, dropping it does not end the program.
#[derive(Debug)]
pub struct Child {
    child: std_process::Child,
    /// Readable when the program has ended.
    process: OwnedFd,
    /// The program's standard input, if that is a pipe. When it is dropped, the program reads the end.
    pub stdin: Option<PipeWriter>,
    /// The program's standard output, if that is a pipe.
    pub stdout: Option<PipeReader>,
    /// The program's standard error, if that is a pipe.
    pub stderr: Option<PipeReader>,
}

/// A program that was started for a task. If the task does not want it any more, the drop kills it.
struct Fresh(Option<std_process::Child>);

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Command {
    /// A command for this program, which is searched for as the shell does.
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        Command(std_process::Command::new(program))
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Command {
        self.0.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args(&mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Command {
        self.0.args(arguments);
        self
    }

    /// Sets a variable of the program's environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.0.env(name, value);
        self
    }

    /// The folder that the program starts in.
    pub fn current_dir(&mut self, folder: impl AsRef<Path>) -> &mut Command {
        self.0.current_dir(folder);
        self
    }

    /// Where the program's standard input comes from.
    pub fn stdin(&mut self, from: impl Into<Stdio>) -> &mut Command {
        self.0.stdin(from);
        self
    }

    /// Where the program's standard output goes.
    pub fn stdout(&mut self, to: impl Into<Stdio>) -> &mut Command {
        self.0.stdout(to);
        self
    }

    /// Where the program's standard error goes.
    pub fn stderr(&mut self, to: impl Into<Stdio>) -> &mut Command {
        self.0.stderr(to);
        self
    }

    /// The command of `std`, for everything else that it offers.
    pub fn as_std_mut(&mut self) -> &mut std_process::Command {
        &mut self.0
    }

    /// Starts the program. This uses the settings up: the next start needs another command.
    #[track_caller]
    pub fn spawn(&mut self, cx: &Cx) -> io::Result<Child> {
        let mut command = std::mem::replace(&mut self.0, std_process::Command::new(""));
        let start = move || command.spawn().map(|child| Fresh(Some(child)));
        let mut fresh = unblock_as(cx, Operation::FileIo, Location::caller(), Ending::Abandon, start)??;
        // The program has not been waited for yet, so its process number cannot have been reused.
        let process = sys::process(fresh.0.as_ref().map_or(0, std_process::Child::id))?;
        let mut child = fresh.0.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let stdin = child.stdin.take().map(|end| PipeWriter::new(end.into())).transpose()?;
        let stdout = child.stdout.take().map(|end| PipeReader::new(end.into())).transpose()?;
        let stderr = child.stderr.take().map(|end| PipeReader::new(end.into())).transpose()?;
        Ok(Child { child, process, stdin, stdout, stderr })
    }

    /// Runs the program to its end, and returns what it printed. When the task is cancelled, the program is killed.
    #[track_caller]
    pub fn output(&mut self, cx: &Cx) -> io::Result<Output> {
        self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn(cx)?.wait_with_output(cx)
    }

    /// Runs the program to its end. When the task is cancelled, the program is killed.
    #[track_caller]
    pub fn status(&mut self, cx: &Cx) -> io::Result<ExitStatus> {
        let mut child = self.spawn(cx)?;
        child.wait(cx).inspect_err(|_| child.end())
    }
}

impl Child {
    /// The system's number for the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the program.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// How the program ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the program's end. Its standard input is closed first, as the program may wait for that.
    #[track_caller]
    pub fn wait(&mut self, cx: &Cx) -> io::Result<ExitStatus> {
        let at = Location::caller();
        drop(self.stdin.take());
        let request = Request::new(Call::Ready(Side::In), self.process.as_raw_fd());
        perform(cx, request, &Manner { cost: Operation::FileIo, until: None, eager: true, at })?;
        // The program has ended, so this does not wait.
        self.child.wait()
    }

    /// Waits for the program's end, and meanwhile reads what it prints to pipes. If that fails, or the task is
    /// cancelled, the program is killed.
    #[track_caller]
    pub fn wait_with_output(mut self, cx: &Cx) -> io::Result<Output> {
        let at = Location::caller();
        drop(self.stdin.take());
        let read = self.read_both(cx, at);
        let end = read.and_then(|printed| Ok((printed, self.wait(cx)?)));
        let ((stdout, stderr), status) = end.inspect_err(|_| self.end())?;
        Ok(Output { status, stdout, stderr })
    }

    /// Everything that the program prints, read from whichever pipe is ready first.
    fn read_both(&self, cx: &Cx, at: &'static Location<'static>) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let mut printed = (Vec::new(), Vec::new());
        let (mut out, mut err) = (self.stdout.as_ref(), self.stderr.as_ref());
        let mut buffer = vec![0; 16 << 10];
        let manner = Manner { cost: Operation::FileIo, until: None, eager: true, at };
        while let (Some(one), Some(other)) = (out, err) {
            any_readable(cx, [one, other].map(|pipe| pipe.as_fd().as_raw_fd()), &manner)?;
            take(cx, &mut out, &mut printed.0, &mut buffer, &manner)?;
            take(cx, &mut err, &mut printed.1, &mut buffer, &manner)?;
        }
        if let Some(rest) = out {
            rest.read_to_end(cx, &mut printed.0)?;
        }
        if let Some(rest) = err {
            rest.read_to_end(cx, &mut printed.1)?;
        }
        Ok(printed)
    }

    /// Kills the program and reaps it, as nobody will wait for it.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes what is in a pipe; at the pipe's end sets it to `None`.
fn take(
    cx: &Cx,
    pipe: &mut Option<&PipeReader>,
    printed: &mut Vec<u8>,
    buffer: &mut [u8],
    manner: &Manner,
) -> io::Result<()> {
    let Some(reader) = *pipe else { return Ok(()) };
    let fd = reader.as_fd().as_raw_fd();
    // Only read what is there: the program may be waiting for the other pipe to be read.
    if !crate::io::op::is_readable(fd) {
        return Ok(());
    }
    match perform(cx, Request::into(Call::Read, fd, buffer), manner)? {
        0 => *pipe = None,
        got => printed.extend_from_slice(&buffer[..got]),
    }
    Ok(())
}
