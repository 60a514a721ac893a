//! Console input. One read is always under way, so that keys are noticed while the shell waits for
//! something else.

use alloc::collections::VecDeque;

use rt::abi::TransportError;
use rt::{Console, Error, Pending, Result, Timer, caps};

/// The most bytes that one read returns.
const READ_BYTES: usize = 64;
/// Bytes that were typed and not yet used; more are dropped.
const AHEAD_MAX: usize = 1024;

/// How long to wait when too many other threads read the console.
const RETRY_NS: u64 = 20_000_000;

/// Ctrl-C.
const INTERRUPT: u8 = 3;

/// The console's input.
pub(super) struct Input {
    console: Console,
    pending: Option<Pending<usize>>,
    /// The timer after which the read is submitted again, because the console had no place for it.
    retry: Option<Pending<()>>,
    ahead: VecDeque<u8>,
}

impl Input {
    /// Input from the console that the shell was granted.
    pub(super) fn new() -> Result<Input> {
        Ok(Input { console: caps::any()?, pending: None, retry: None, ahead: VecDeque::new() })
    }

    /// Writes to the same console.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        self.console.write(text.as_bytes())
    }

    /// Keeps a read under way and takes what has arrived, without waiting; true if something has.
    pub(super) fn listen(&mut self) -> Result<bool> {
        let mut has_more = false;
        loop {
            if let Some(retry) = &mut self.retry {
                let Some(result) = retry.poll() else { return Ok(has_more) };
                self.retry = None;
                result?;
            }
            if self.pending.is_none() {
                self.pending = Some(self.console.read_start(READ_BYTES)?);
            }
            let Some(pending) = &mut self.pending else { return Ok(has_more) };
            let Some(result) = pending.poll() else { return Ok(has_more) };
            has_more |= self.take(result)?;
        }
    }

    /// As [`Input::listen`], but waits until something is typed or `timeout_ns` are over.
    pub(super) fn listen_for(&mut self, timeout_ns: u64) -> Result<bool> {
        if self.listen()? {
            return Ok(true);
        }
        if let Some(retry) = &mut self.retry {
            // Nothing can be typed before the pause is over.
            if retry.wait_timeout(timeout_ns).is_some() {
                self.retry = None;
            }
            return self.listen();
        }
        let Some(pending) = &mut self.pending else { return Ok(false) };
        let Some(result) = pending.wait_timeout(timeout_ns) else { return Ok(false) };
        self.take(result)
    }

    /// Cancels the read, so that another process can read the console; bytes that arrived meanwhile are
    /// kept.
    pub(super) fn pause(&mut self) {
        self.retry = None;
        let Some(pending) = &mut self.pending else { return };
        // `Cancelled` is the expected result; any other failure shows up at the next read.
        if let Ok(count) = pending.cancel_mut() {
            let _ = self.take(Ok(count));
        }
        self.pending = None;
    }

    /// Whether something was typed that has not been used yet.
    pub(super) fn is_typed(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// The next byte that was typed.
    pub(super) fn next(&mut self) -> Option<u8> {
        self.ahead.pop_front()
    }

    /// Whether Ctrl-C was typed; if so, what was typed before it is dropped.
    pub(super) fn is_interrupted(&mut self) -> bool {
        let found = self.ahead.iter().rposition(|&byte| byte == INTERRUPT);
        found.is_some_and(|at| {
            self.ahead.drain(..=at);
            true
        })
    }

    /// Drops what was typed.
    pub(super) fn clear(&mut self) {
        self.ahead.clear();
    }

    /// Takes the bytes of the read that has ended; false if the console had no place for the read.
    fn take(&mut self, result: Result<usize>) -> Result<bool> {
        let Some(pending) = self.pending.take() else { return Ok(false) };
        if result.as_ref().err().and_then(Error::transport) == Some(TransportError::NoSpace) {
            self.retry = Some(caps::any::<Timer>()?.sleep_start(RETRY_NS)?);
            return Ok(false);
        }
        let count = result?;
        let room = AHEAD_MAX - self.ahead.len();
        self.ahead.extend(pending.results().iter().take(count.min(room)));
        Ok(true)
    }
}
