//! Connects this terminal with the machine's serial line. Ctrl-A x leaves; Ctrl-A Ctrl-A types Ctrl-A. A signal that can be caught also
//! leaves: the terminal is restored, and the machine is stopped.

use std::io::{IsTerminal, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use rustix::termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::qemu::{Event, Guest, Keys, Outcome};

const ESCAPE: u8 = 1;

/// A terminal in raw mode, which passes every key on as it is pressed; restored when this value is dropped.
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Changes the terminal on standard input, if it is one.
    #[must_use]
    pub fn enter() -> Option<Raw> {
        let input = rustix::stdio::stdin();
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(input).ok()?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN);
        raw.input_modes.remove(InputModes::ICRNL | InputModes::IXON | InputModes::INLCR | InputModes::ISTRIP);
        tcsetattr(input, OptionalActions::Now, &raw).ok()?;
        Some(Raw { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Flush, &self.before);
    }
}

/// Finds the escape sequence among the keys.
#[derive(Default)]
struct Escapes {
    pending: bool,
}

impl Escapes {
    /// The keys for the machine; `None` if the person wants to leave.
    fn take(&mut self, keys: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for &key in keys {
            match (std::mem::take(&mut self.pending), key) {
                (true, b'x') => return None,
                (true, ESCAPE) => out.push(ESCAPE),
                (true, other) => out.extend([ESCAPE, other]),
                (false, ESCAPE) => self.pending = true,
                (false, other) => out.push(other),
            }
        }
        Some(out)
    }
}

fn type_on(keys: Keys) {
    thread::spawn(move || {
        let mut escapes = Escapes::default();
        let mut buffer = [0; 256];
        while let Ok(count @ 1..) = std::io::stdin().read(&mut buffer) {
            match escapes.take(&buffer[..count]) {
                Some(bytes) => keys.send(&bytes),
                None => {
                    keys.quit();
                    return;
                }
            }
        }
    });
}

/// Leaves on any of the signals that end a program.
fn listen_on(keys: Keys) {
    let Ok(mut signals) = Signals::new([SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]) else {
        return; // The default applies: the signal ends this process, and the machine with it
    };
    thread::spawn(move || {
        for signal in signals.forever() {
            keys.signal(signal);
        }
    });
}

/// How a conversation ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Farewell {
    /// The machine ended.
    Ended(Outcome),
    /// The person left.
    Left,
    /// This signal came.
    Signal(i32),
    /// The time was over.
    TimeUp,
}

/// Connects the terminal with the machine until one of them ends.
#[must_use]
pub fn converse(guest: &mut Guest, limit: Option<Duration>) -> Farewell {
    let deadline = limit.map(|limit| Instant::now() + limit);
    listen_on(guest.keys());
    let raw = Raw::enter();
    type_on(guest.keys());
    let farewell = loop {
        match guest.next(deadline) {
            Event::Said(bytes) => {
                let mut out = std::io::stdout().lock();
                let _ = out.write_all(&bytes).and_then(|()| out.flush());
            }
            Event::Ended(outcome) => break Farewell::Ended(outcome),
            Event::Quit => break Farewell::Left,
            Event::Signal(signal) => break Farewell::Signal(signal),
            Event::TimeUp => break Farewell::TimeUp,
        }
    };
    drop(raw);
    farewell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_leaves_and_everything_else_passes() {
        let mut escapes = Escapes::default();
        assert_eq!(escapes.take(b"ls\r\x03"), Some(b"ls\r\x03".to_vec()));
        assert_eq!(escapes.take(b"a\x01"), Some(b"a".to_vec()));
        assert_eq!(escapes.take(b"b\x01\x01c"), Some(b"\x01b\x01c".to_vec()));
        assert_eq!(escapes.take(b"x\x01"), Some(b"x".to_vec()));
        assert_eq!(escapes.take(b"x"), None);
    }
}
