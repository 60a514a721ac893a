//! What a guest is given besides rights: arguments, input, output, files, a clock and a source of random numbers.

use janus::Receiver;
use janus::io::PipeWriter;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Where a guest's input comes from.
pub enum Input {
    /// There is none: the input has ended.
    Empty,
    /// These bytes.
    Bytes(Vec<u8>),
    /// Pieces from a channel, so that the task waits and not the worker. A closed channel is the end.
    Pieces(Receiver<Vec<u8>>),
}

impl Input {
    /// Input that a separate thread reads, so that a guest that waits for it blocks only itself.
    pub fn reader(mut from: impl Read + Send + 'static) -> io::Result<Input> {
        let (to, pieces) = janus::channel(1);
        std::thread::Builder::new().name("guest-input".into()).spawn(move || {
            let mut buffer = vec![0; PIECE];
            loop {
                match from.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => return,
                    Ok(count) => {
                        if to.send_blocking(buffer[..count].to_vec()).is_err() {
                            return;
                        }
                    }
                }
            }
        })?;
        Ok(Input::Pieces(pieces))
    }
}

/// Bytes that are read from an input at a time.
const PIECE: usize = 16 << 10;

/// A file that a guest is given, with the name by which the guest knows it. The host opens it: a guest cannot name any other.
#[derive(Debug)]
pub struct Given {
    /// The name.
    pub name: String,
    /// The file.
    pub file: File,
    /// Whether it may be written.
    pub writable: bool,
}

type Sink = Box<dyn Write + Send>;

/// Where a guest's output goes.
#[derive(Clone)]
pub struct Output {
    to: Arc<Mutex<Sink>>,
    way: Way,
}

/// How output is written, and so what waits for it.
#[derive(Clone)]
pub(crate) enum Way {
    /// The task writes, and its worker waits with it.
    Direct,
    /// A thread of the runtime writes; the task waits.
    Thread,
    /// The task writes, and only it waits.
    Pipe(Arc<PipeWriter>),
}

impl Output {
    /// Output to a sink that accepts it at once, such as memory or a regular file.
    #[must_use]
    pub fn direct(to: impl Write + Send + 'static) -> Output {
        Output { to: Arc::new(Mutex::new(Box::new(to))), way: Way::Direct }
    }

    /// Output to a sink that may block: a thread of the runtime writes, and only the task waits for it. If the task is
    /// cancelled, a write that has begun goes on without it.
    #[must_use]
    pub fn blocking(to: impl Write + Send + 'static) -> Output {
        Output { way: Way::Thread, ..Output::direct(to) }
    }

    /// Output to a descriptor of the process, whatever it is. A pipe or a terminal is opened once more, so that other users
    /// of it do not notice that it is set to non-blocking; what cannot be opened again, such as a socket, is written by a
    /// thread.
    #[must_use]
    pub fn descriptor(to: impl AsFd + Write + Send + 'static) -> Output {
        let path = format!("/proc/self/fd/{}", to.as_fd().as_raw_fd());
        if fs::metadata(&path).is_ok_and(|data| data.is_file()) {
            return Output::direct(to);
        }
        // Without the flag, opening a pipe that has lost its reader would wait for another one.
        let again =
            fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        match again.and_then(|file| PipeWriter::new(file.into())) {
            Ok(pipe) => Output { way: Way::Pipe(Arc::new(pipe)), ..Output::direct(to) },
            Err(_) => Output::blocking(to),
        }
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Writes all bytes on this thread. Also used in a deterministic runtime, which has no I/O of its own.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        to.write_all(bytes).and_then(|()| to.flush()).map(|()| bytes.len())
    }
}

/// What a guest and its children are given.
pub struct World {
    /// Its arguments; the first is its name.
    pub args: Vec<String>,
    /// Its environment, as `NAME=value`.
    pub env: Vec<String>,
    /// Its standard input.
    pub input: Mutex<Input>,
    /// Its standard output.
    pub output: Output,
    /// Its standard error.
    pub errors: Output,
    /// Its files.
    pub files: Vec<Given>,
    /// The time of day when the runtime began.
    pub epoch: Duration,
    /// The seed of random numbers, which makes a run repeatable; `None` takes them from the system.
    pub seed: Option<u64>,
}

impl Default for World {
    /// No arguments, no environment, no input, no files; output is discarded; the time begins at zero.
    fn default() -> World {
        World {
            args: Vec::new(),
            env: Vec::new(),
            input: Mutex::new(Input::Empty),
            output: Output::direct(io::sink()),
            errors: Output::direct(io::sink()),
            files: Vec::new(),
            epoch: Duration::ZERO,
            seed: Some(0),
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("args", &self.args).field("files", &self.files).finish_non_exhaustive()
    }
}

/// Output that is kept in memory, to be read afterwards.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    /// What was written so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
