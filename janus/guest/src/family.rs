//! What a guest shares with the children that it spawns: channels, what it was given, and the sum of what all of
//! them use.

use crate::world::World;
use janus::{Receiver, Resource, Sender};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes of a message.
pub const MESSAGE_BYTES_MAX: u64 = 4 << 10;
/// The most channels that a guest and its children may make.
const CHANNELS_MAX: usize = 1_024;

/// What a guest and its children used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Operations.
    pub ops: u64,
    /// The most bytes at any time.
    pub memory: u64,
    /// Children.
    pub spawned: u64,
    /// Messages sent and received.
    pub messages: u64,
    /// Operations on files, input and output.
    pub io: u64,
    /// How often memory was refused because the budget was used up.
    pub memory_refused: u64,
    /// How often a child was refused for the same reason.
    pub spawn_refused: u64,
}

impl Used {
    /// What was refused because the budget was used up, if anything: memory and children are refused without
    /// stopping the guest.
    #[must_use]
    pub fn refused(&self) -> Option<Resource> {
        match self {
            Used { memory_refused: 1.., .. } => Some(Resource::Memory),
            Used { spawn_refused: 1.., .. } => Some(Resource::Spawn),
            _ => None,
        }
    }
}

/// Counts what is used; shared, so that a host can read it while the guest runs, and after it has failed.
#[derive(Debug, Default)]
pub struct Tally {
    ops: AtomicU64,
    memory: AtomicU64,
    memory_most: AtomicU64,
    spawned: AtomicU64,
    messages: AtomicU64,
    io: AtomicU64,
    memory_refused: AtomicU64,
    spawn_refused: AtomicU64,
}

impl Tally {
    /// What was used so far.
    #[must_use]
    pub fn used(&self) -> Used {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Used {
            ops: get(&self.ops),
            memory: get(&self.memory_most),
            spawned: get(&self.spawned),
            messages: get(&self.messages),
            io: get(&self.io),
            memory_refused: get(&self.memory_refused),
            spawn_refused: get(&self.spawn_refused),
        }
    }

    pub(crate) fn ops(&self, count: u64) {
        self.ops.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn memory(&self, bytes: u64) {
        let now = self.memory.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.memory_most.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn memory_back(&self, bytes: u64) {
        self.memory.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn memory_refused(&self) {
        self.memory_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn spawned(&self) {
        self.spawned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn spawn_refused(&self) {
        self.spawn_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn io(&self) {
        self.io.fetch_add(1, Ordering::Relaxed);
    }
}

/// The two ends of a channel; a closed channel has no sender.
#[derive(Debug)]
struct Channel {
    to: Option<Sender<Vec<u8>>>,
    from: Receiver<Vec<u8>>,
}

/// Channels by their numbers, which are not reused.
#[derive(Debug, Default)]
struct Channels {
    open: BTreeMap<usize, Channel>,
    made: usize,
}

#[derive(Debug)]
pub(crate) struct Family {
    channels: Mutex<Channels>,
    /// Input that was received and not read yet.
    pub(crate) rest: Mutex<Vec<u8>>,
    pub(crate) world: Arc<World>,
    pub(crate) tally: Arc<Tally>,
}

impl Family {
    pub(crate) fn new(world: Arc<World>, tally: Arc<Tally>) -> Family {
        Family { channels: Mutex::default(), rest: Mutex::default(), world, tally }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Channels) -> R) -> R {
        act(&mut self.channels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of a new channel, unless there are too many.
    pub(crate) fn make(&self, capacity: usize) -> Option<usize> {
        let (to, from) = janus::channel(capacity);
        self.with(|channels| {
            if channels.open.len() >= CHANNELS_MAX {
                return None;
            }
            let number = channels.made;
            channels.made += 1;
            channels.open.insert(number, Channel { to: Some(to), from });
            Some(number)
        })
    }

    /// Ends a channel with its content, because the instance that made it, and was charged for its room, is gone.
    pub(crate) fn end(&self, channel: usize) {
        let ended = self.with(|channels| channels.open.remove(&channel));
        drop(ended);
    }

    pub(crate) fn sender(&self, channel: usize) -> Option<Sender<Vec<u8>>> {
        self.with(|channels| channels.open.get(&channel)?.to.clone())
    }

    pub(crate) fn receiver(&self, channel: usize) -> Option<Receiver<Vec<u8>>> {
        self.with(|channels| Some(channels.open.get(&channel)?.from.clone()))
    }

    /// Allows no more messages; those in the channel can still be received.
    pub(crate) fn close(&self, channel: usize) -> bool {
        let sender =
            self.with(|channels| channels.open.get_mut(&channel).and_then(|channel| channel.to.take()));
        sender.is_some()
    }
}
