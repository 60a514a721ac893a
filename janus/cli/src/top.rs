//! Looking into a runtime from another process: the one that runs answers on a Unix socket that its user named, with text.
//! Who may open the socket may look; nobody can do anything else by it.

use crate::code;
use janus::Runtime;
use janus_guest::Tally;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the answering thread looks whether it is done.
const LOOK: Duration = Duration::from_millis(20);
/// How long it waits for somebody who asks and does not read.
const PATIENCE: Duration = Duration::from_millis(500);

/// A socket; it is removed when the runtime is done.
pub(crate) struct Watched {
    listener: UnixListener,
    path: PathBuf,
}

impl Watched {
    pub(crate) fn open(path: &Path) -> io::Result<Watched> {
        let listener = match UnixListener::bind(path) {
            // A run that was killed left its socket behind: nobody answers there any more. Anything but a socket stays.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && std::fs::symlink_metadata(path)?.file_type().is_socket()
                    && UnixStream::connect(path)
                        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) =>
            {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        Ok(Watched { listener, path: path.to_path_buf() })
    }

    /// Answers until `done`.
    pub(crate) fn serve(&self, runtime: &Runtime, tally: &Tally, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // Who hangs up early misses the rest; nobody else minds.
                    let _ = answer(stream, runtime, tally);
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(mut stream: UnixStream, runtime: &Runtime, tally: &Tally) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let used = tally.used();
    write!(stream, "{}\n{}", runtime.dump(), runtime.stats())?;
    writeln!(
        stream,
        "guest: {} ops, {} bytes, {} children, {} messages, {} io",
        used.ops, used.memory, used.spawned, used.messages, used.io
    )
}

/// `janus top`.
pub(crate) fn top(socket: &Path, every: Duration, once: bool) -> ExitCode {
    let mut looks = 0u64;
    loop {
        let mut text = String::new();
        match UnixStream::connect(socket).and_then(|mut stream| stream.read_to_string(&mut text)) {
            Ok(_) => looks += 1,
            Err(_) if looks > 0 => {
                eprintln!("janus: the runtime has ended");
                return ExitCode::SUCCESS;
            }
            Err(error) => {
                eprintln!(
                    "janus: nobody answers on {}: {error}; start one with `janus run --watch {} GUEST`",
                    socket.display(),
                    socket.display()
                );
                return ExitCode::from(code::CANNOT_READ);
            }
        }
        let clear = if once { "" } else { "\x1b[2J\x1b[H" };
        if write!(io::stdout(), "{clear}{text}").and_then(|()| io::stdout().flush()).is_err() || once {
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(every);
    }
}
