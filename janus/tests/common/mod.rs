//! What several test files need.
#![allow(dead_code, reason = "each test file uses a part of it")]

use janus::{Config, Cx, Runtime};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Far longer than any test takes: what is not over then hangs.
const PATIENCE: Duration = Duration::from_secs(25);

/// A runtime whose tasks stay with their threads.
pub(crate) fn runtime(workers: usize) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(workers).watchdog(None).pinned()) }.unwrap()
}

/// A runtime whose tasks move between its workers, as by default.
pub(crate) fn moving(workers: usize) -> Runtime {
    // SAFETY: as above.
    unsafe { Runtime::new(Config::new().workers(workers).watchdog(None)) }.unwrap()
}

/// A deterministic runtime.
pub(crate) fn seeded(workers: usize, seed: u64) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(workers).seed(seed)) }.unwrap()
}

/// Runs `test` on runtimes of both kinds, with several worker counts, and fails if that hangs.
pub(crate) fn everywhere(test: impl Fn(&Runtime) + Send + Sync + 'static) {
    within(move || {
        for workers in [1, 2, 4] {
            test(&runtime(workers));
            test(&moving(workers));
        }
    });
}

/// Runs `test` as the main task of a runtime with `workers`, and fails if that hangs.
pub(crate) fn on(workers: usize, test: impl FnOnce(&Cx) + Send + 'static) {
    within(move || moving(workers).run(test).unwrap());
}

/// Runs `test`, and fails if that hangs.
pub(crate) fn within(test: impl FnOnce() + Send + 'static) {
    let (done, end) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if end.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("the test hangs");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Lets others run until `done`.
pub(crate) fn until(cx: &Cx, mut done: impl FnMut() -> bool) {
    while !done() {
        cx.sleep(Duration::from_micros(100)).unwrap();
    }
}

/// Counts how many of its tokens were made and dropped.
#[derive(Default)]
pub(crate) struct Tally {
    made: AtomicUsize,
    dropped: AtomicUsize,
}

/// See [`Tally`].
pub(crate) struct Token<'a>(&'a Tally);

impl Tally {
    pub(crate) fn token(&self) -> Token<'_> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Token(self)
    }

    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Acquire)
    }

    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Acquire)
    }

    /// Every token was dropped, once.
    #[track_caller]
    pub(crate) fn assert_even(&self) {
        assert_eq!(self.made(), self.dropped(), "tokens made and dropped");
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::AcqRel);
    }
}

/// Runs `test` on runtimes with either way to do I/O, tasks that stay and tasks that move, 1 and 2 workers, and fails if that
/// hangs.
pub(crate) fn on_every_backend(test: impl Fn(&Runtime) + Send + Sync + 'static) {
    within(move || {
        for backend in [janus::io::Backend::Uring, janus::io::Backend::Epoll] {
            for workers in [1, 2] {
                let config = Config::new().workers(workers).watchdog(None).io_backend(backend);
                // SAFETY: no task here keeps anything of its thread over a suspension.
                test(&unsafe { Runtime::new(config.clone().pinned()) }.unwrap());
                // SAFETY: as above.
                test(&unsafe { Runtime::new(config) }.unwrap());
            }
        }
    });
}

/// Descriptors that the process has open.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs the ignored test `name` of this program in a process of its own, told what `case` it is; answers how that ended, and
/// all that it wrote. Fails if it hangs.
pub(crate) fn alone(name: &str, case: &str) -> (std::process::ExitStatus, String) {
    use std::io::Read;
    use std::process::Stdio;
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).env("JANUS_CASE", case);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a child process");
    let (mut output, mut error) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let reads = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.read_to_end(&mut text);
        text
    });
    let reads_errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = error.read_to_end(&mut text);
        text
    });
    let begun = std::time::Instant::now();
    let status = loop {
        match child.try_wait().expect("a child process") {
            Some(status) => break Some(status),
            None if begun.elapsed() > PATIENCE => {
                let _ = child.kill();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut text = reads_errors.join().expect("a reader");
    text.extend(reads.join().expect("a reader"));
    let text = String::from_utf8_lossy(&text).into_owned();
    (status.unwrap_or_else(|| panic!("{name}, {case:?}: it hangs: {text}")), text)
}

/// The case of a test that `alone` runs; none: it is not run by that, and does nothing.
pub(crate) fn case() -> Option<String> {
    std::env::var("JANUS_CASE").ok()
}
