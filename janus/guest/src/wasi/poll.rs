//! `poll_oneoff`, which `sleep`, `poll` and `select` of a library use. It waits for clocks and for input. Output and files
//! are ready at once: a write that has to wait does so itself.

use super::files::Descriptor;
use super::{errno, word};
use crate::grant::Grant;
use crate::machine::{Machine, Stop};
use std::time::Duration;

/// The most events that a guest may wait for at a time.
const SUBSCRIPTIONS_MAX: u64 = 256;
/// Bytes of a subscription, and of an event.
const SUBSCRIPTION: u64 = 48;
const EVENT: u64 = 32;

const CLOCK: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const ABSOLUTE: u8 = 1;
const HANGUP: u8 = 1;

/// When an event occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    /// At this time of the runtime's clock.
    At(Duration),
    Input,
    Failed(i32),
}

struct Subscription {
    /// The guest's own tag, unchanged.
    user: [u8; 8],
    kind: u8,
    when: When,
}

fn long(bytes: &[u8]) -> u64 {
    word(bytes) | word(&bytes[4..]) << 32
}

impl Machine<'_, '_, '_> {
    /// Waits for the first event, and reports all that have occurred.
    pub(super) fn poll(&mut self, args: &[u64]) -> Result<i32, Stop> {
        let count = args[2];
        if count == 0 || count > SUBSCRIPTIONS_MAX {
            return Ok(errno::INVAL);
        }
        self.work(count * (SUBSCRIPTION + EVENT))?;
        let Some(list) = self.vm.bytes(args[0], count * SUBSCRIPTION) else { return Ok(errno::FAULT) };
        if !self.vm.reaches(args[1], count * EVENT) {
            return Ok(errno::FAULT);
        }
        let wanted: Vec<Subscription> =
            list.chunks_exact(SUBSCRIPTION as usize).map(|bytes| self.subscription(bytes)).collect();
        if wanted.iter().any(|one| one.kind != CLOCK) {
            self.io()?;
        }
        let input = self.wait_for(&wanted)?;
        let now = self.cx.now();
        let events: Vec<u8> = wanted.iter().filter_map(|one| one.event(now, input)).flatten().collect();
        Ok(match self.put(args[1], &events) {
            errno::SUCCESS => self.put(args[3], &((events.len() as u64 / EVENT) as u32).to_le_bytes()),
            error => error,
        })
    }

    fn subscription(&self, bytes: &[u8]) -> Subscription {
        let kind = bytes[8];
        let when = match kind {
            CLOCK => match self.clock(word(&bytes[16..])) {
                None => When::Failed(errno::INVAL),
                Some(began) => {
                    let time = Duration::from_nanos(long(&bytes[24..]));
                    let absolute = bytes[40] & ABSOLUTE != 0;
                    When::At(if absolute { time.saturating_sub(began) } else { self.cx.now() + time })
                }
            },
            READ | WRITE if !self.program.grants().has(Grant::Io) => When::Failed(errno::NOTCAPABLE),
            READ | WRITE => match (kind, self.files.get(word(&bytes[16..]))) {
                (_, None) => When::Failed(errno::BADF),
                (READ, Some(Descriptor::Input)) => When::Input,
                (WRITE, Some(Descriptor::Output | Descriptor::Errors)) | (_, Some(Descriptor::File(_))) => {
                    When::Now
                }
                _ => When::Failed(errno::NOTCAPABLE),
            },
            _ => When::Failed(errno::INVAL),
        };
        let mut user = [0; 8];
        user.copy_from_slice(&bytes[..8]);
        Subscription { user, kind, when }
    }

    /// Waits until an event has occurred. Returns how much input there is (0 at its end), if that was asked for and has
    /// occurred.
    fn wait_for(&mut self, wanted: &[Subscription]) -> Result<Option<usize>, Stop> {
        let ready = wanted.iter().any(|one| matches!(one.when, When::Now | When::Failed(_)));
        let first = wanted.iter().filter_map(|one| if let When::At(at) = one.when { Some(at) } else { None });
        let first = first.min().map(|at| at.saturating_sub(self.cx.now()));
        let timeout = if ready { Some(Duration::ZERO) } else { first };
        if wanted.iter().any(|one| one.when == When::Input) {
            return self.await_input(timeout);
        }
        if let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) {
            self.cx.sleep(timeout)?;
        }
        Ok(None)
    }
}

impl Subscription {
    fn event(&self, now: Duration, input: Option<usize>) -> Option<[u8; EVENT as usize]> {
        let (error, bytes) = match self.when {
            When::Now => (0, 1),
            When::At(at) if at <= now => (0, 0),
            When::Input => (0, input?),
            When::Failed(error) => (error as u16, 0),
            When::At(_) => return None,
        };
        let mut event = [0; EVENT as usize];
        event[..8].copy_from_slice(&self.user);
        event[8..10].copy_from_slice(&error.to_le_bytes());
        event[10] = self.kind;
        event[16..24].copy_from_slice(&(bytes as u64).to_le_bytes());
        if self.when == When::Input && bytes == 0 {
            event[24] = HANGUP;
        }
        Some(event)
    }
}
