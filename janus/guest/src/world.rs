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
    /// Nowhere: it has ended.
    Empty,
    /// These bytes.
    Bytes(Vec<u8>),
    /// Pieces, from whoever sends them: the task waits and not the worker. A closed channel is the end.
    Pieces(Receiver<Vec<u8>>),
}

impl Input {
    /// A thread of its own reads, so that a guest that waits for it blocks itself only.
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

/// Bytes that are read of an input at a time.
const PIECE: usize = 16 << 10;

/// A file that a guest is given, by the name that it knows it by. The host opens it: a guest has no way to name any other.
#[derive(Debug)]
pub struct Given {
    /// The name.
    pub name: String,
    /// The file.
    pub file: File,
    /// May it be written?
    pub writable: bool,
}

type Sink = Box<dyn Write + Send>;

/// Where a guest's output goes.
#[derive(Clone)]
pub struct Output {
    to: Arc<Mutex<Sink>>,
    way: Way,
}

/// Who writes, and so who waits.
#[derive(Clone)]
pub(crate) enum Way {
    /// The task, and its worker with it.
    Direct,
    /// A thread of the runtime; the task waits.
    Thread,
    /// The task, and it alone waits.
    Pipe(Arc<PipeWriter>),
}

impl Output {
    /// To what takes it at once, such as memory or a regular file.
    #[must_use]
    pub fn direct(to: impl Write + Send + 'static) -> Output {
        Output { to: Arc::new(Mutex::new(Box::new(to))), way: Way::Direct }
    }

    /// To what may make its writer wait: a thread of the runtime writes, and only the task waits for it. When the task is
    /// cancelled, a write that has begun goes on without it.
    #[must_use]
    pub fn blocking(to: impl Write + Send + 'static) -> Output {
        Output { way: Way::Thread, ..Output::direct(to) }
    }

    /// To a descriptor of the process, whatever it is. A pipe or a terminal is opened once more, so that nobody who shares it
    /// notices that we never block there; what cannot be opened again, such as a socket, is left to a thread.
    #[must_use]
    pub fn descriptor(to: impl AsFd + Write + Send + 'static) -> Output {
        let path = format!("/proc/self/fd/{}", to.as_fd().as_raw_fd());
        if fs::metadata(&path).is_ok_and(|data| data.is_file()) {
            return Output::direct(to);
        }
        // Without the flag, to open a pipe that has lost its reader would wait for another one.
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

    /// All of it, on this thread. So it is written in a deterministic runtime too, which has no I/O of its own.
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
    /// Where random numbers come from; `None`: from the system. A seed makes a run repeat itself.
    pub seed: Option<u64>,
}

impl Default for World {
    /// No arguments, no environment, no input, no files; output is thrown away; the time begins at zero.
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

/// Output that can be looked at afterwards.
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
