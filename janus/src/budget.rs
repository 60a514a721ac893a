//! Budgets: SPEC-021 [SCHED:5.1.1] "Budget Structure", [SCHED:3.3.1] "Budget Costs", [SCHED:8.2.1] "Budget Inheritance".
//!
//! A component of [`UNLIMITED`] is infinite: it is never charged and stays infinite whatever is taken from it. This
//! module is arithmetic only; `task.rs` decides who is charged when, `cx.rs` what happens when a part is spent.

use std::fmt;

/// An infinite component.
pub const UNLIMITED: u64 = u64::MAX;

/// A child that lives on its parent's budget gets at most 1/`PART` of what is left.
pub const PART: u64 = 8;

/// What a child gets of its nursery's pool unless it asks for another amount [SCHED:8.2.1].
pub const DEFAULT_OPS: u64 = 1_000_000;
/// See [`DEFAULT_OPS`]; bytes.
pub const DEFAULT_MEMORY: u64 = 16 << 20;
/// See [`DEFAULT_OPS`].
pub const DEFAULT_CHANNEL_OPS: u64 = 10_000;
/// See [`DEFAULT_OPS`].
pub const DEFAULT_SYSCALLS: u64 = 1_000;

/// What a task may use of each resource.
///
/// ```
/// use janus::{Budget, Resource};
/// let mut pool = Budget::UNLIMITED.with(Resource::Ops, 100);
/// let taken = pool.take(&Budget { ops: 70, memory: 1 << 20, ..Budget::ZERO });
/// assert_eq!((taken.ops, pool.ops, pool.memory), (70, 30, janus::budget::UNLIMITED));
/// ```
/// Counters are 64 bits wide; the C struct has the specification's widths and saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Abstract instructions: loop iterations, calls, and one for every other operation.
    pub ops: u64,
    /// Bytes that are allocated and not yet freed.
    pub memory: u64,
    /// Children that may be spawned.
    pub spawn_count: u64,
    /// Sends and receives.
    pub channel_ops: u64,
    /// File and network operations.
    pub syscalls: u64,
}

/// One component of a [`Budget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Resource {
    /// [`Budget::ops`].
    Ops,
    /// [`Budget::memory`].
    Memory,
    /// [`Budget::spawn_count`].
    Spawn,
    /// [`Budget::channel_ops`].
    Channel,
    /// [`Budget::syscalls`].
    Syscalls,
}

impl Resource {
    /// Every component, in the order of the specification.
    pub const ALL: [Resource; 5] =
        [Resource::Ops, Resource::Memory, Resource::Spawn, Resource::Channel, Resource::Syscalls];

    /// The specification's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Resource::Ops => "ops",
            Resource::Memory => "memory",
            Resource::Spawn => "spawn_count",
            Resource::Channel => "channel_ops",
            Resource::Syscalls => "syscalls",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a task does, as the cost table names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The back-edge of a loop.
    LoopIteration,
    /// A call.
    FunctionCall,
    /// An allocation of this many bytes.
    Allocation(u64),
    /// Spawning a child.
    Spawn,
    /// Sending a message.
    ChannelSend,
    /// Receiving a message.
    ChannelRecv,
    /// A file operation.
    FileIo,
    /// A network operation.
    NetworkIo,
}

impl Operation {
    /// The cost table [SCHED:3.3.1].
    #[must_use]
    pub const fn cost(self) -> Budget {
        let one = Budget { ops: 1, ..Budget::ZERO };
        match self {
            Operation::LoopIteration | Operation::FunctionCall => one,
            Operation::Allocation(size) => Budget { memory: size, ..one },
            Operation::Spawn => Budget { spawn_count: 1, ..one },
            Operation::ChannelSend | Operation::ChannelRecv => Budget { channel_ops: 1, ..one },
            Operation::FileIo | Operation::NetworkIo => Budget { syscalls: 1, ..one },
        }
    }
}

impl Budget {
    /// No component has anything.
    pub const ZERO: Budget = Budget { ops: 0, memory: 0, spawn_count: 0, channel_ops: 0, syscalls: 0 };

    /// Every component is infinite.
    pub const UNLIMITED: Budget = Budget {
        ops: UNLIMITED,
        memory: UNLIMITED,
        spawn_count: UNLIMITED,
        channel_ops: UNLIMITED,
        syscalls: UNLIMITED,
    };

    /// The most that a child gets by default; its `spawn_count` is 0: children cannot spawn unless they are allowed to.
    pub const CHILD: Budget = Budget {
        ops: DEFAULT_OPS,
        memory: DEFAULT_MEMORY,
        spawn_count: 0,
        channel_ops: DEFAULT_CHANNEL_OPS,
        syscalls: DEFAULT_SYSCALLS,
    };

    /// The amount of one component.
    #[must_use]
    pub const fn get(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Ops => self.ops,
            Resource::Memory => self.memory,
            Resource::Spawn => self.spawn_count,
            Resource::Channel => self.channel_ops,
            Resource::Syscalls => self.syscalls,
        }
    }

    /// One component, as a mutable reference.
    pub const fn get_mut(&mut self, resource: Resource) -> &mut u64 {
        match resource {
            Resource::Ops => &mut self.ops,
            Resource::Memory => &mut self.memory,
            Resource::Spawn => &mut self.spawn_count,
            Resource::Channel => &mut self.channel_ops,
            Resource::Syscalls => &mut self.syscalls,
        }
    }

    /// A copy with one component changed.
    #[must_use]
    pub const fn with(mut self, resource: Resource, amount: u64) -> Budget {
        *self.get_mut(resource) = amount;
        self
    }

    /// Takes as much of `wanted` as is here, and returns what was taken.
    pub fn take(&mut self, wanted: &Budget) -> Budget {
        let mut taken = Budget::ZERO;
        for resource in Resource::ALL {
            let here = self.get_mut(resource);
            let amount = (*here).min(wanted.get(resource));
            if *here != UNLIMITED {
                *here -= amount;
            }
            *taken.get_mut(resource) = amount;
        }
        taken
    }

    /// Takes `wanted`, all of it or nothing; the error is the first component of which there is too little.
    pub fn take_all(&mut self, wanted: &Budget) -> Result<(), Resource> {
        if let Some(short) = Resource::ALL.into_iter().find(|&r| self.get(r) < wanted.get(r)) {
            return Err(short);
        }
        self.take(wanted);
        Ok(())
    }

    /// Adds `more`. An infinite component stays infinite; a sum that would overflow the counter stops just below
    /// infinity.
    pub fn put(&mut self, more: &Budget) {
        for resource in Resource::ALL {
            let here = self.get_mut(resource);
            *here = put(*here, more.get(resource));
        }
    }
}

/// `here + more`, where infinity absorbs and nothing else becomes infinite.
pub(crate) fn put(here: u64, more: u64) -> u64 {
    if here == UNLIMITED || more == UNLIMITED {
        UNLIMITED
    } else {
        here.saturating_add(more).min(UNLIMITED - 1)
    }
}

impl Default for Budget {
    /// [`Budget::UNLIMITED`]: a nursery without an explicit budget has no limit; its children still get
    /// [`Budget::CHILD`].
    fn default() -> Budget {
        Budget::UNLIMITED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cell of the specification's table.
    #[test]
    fn cost_table() {
        let rows = [
            (Operation::LoopIteration, [1, 0, 0, 0, 0]),
            (Operation::FunctionCall, [1, 0, 0, 0, 0]),
            (Operation::Allocation(77), [1, 77, 0, 0, 0]),
            (Operation::Spawn, [1, 0, 1, 0, 0]),
            (Operation::ChannelSend, [1, 0, 0, 1, 0]),
            (Operation::ChannelRecv, [1, 0, 0, 1, 0]),
            (Operation::FileIo, [1, 0, 0, 0, 1]),
            (Operation::NetworkIo, [1, 0, 0, 0, 1]),
        ];
        for (operation, cells) in rows {
            assert_eq!(Resource::ALL.map(|r| operation.cost().get(r)), cells, "{operation:?}");
        }
    }

    #[test]
    fn taking_and_putting() {
        let mut pool = Budget { ops: 10, memory: UNLIMITED, ..Budget::ZERO };
        let taken = pool.take(&Budget { ops: 7, memory: 5, spawn_count: 3, ..Budget::ZERO });
        assert_eq!(taken, Budget { ops: 7, memory: 5, ..Budget::ZERO });
        assert_eq!(pool, Budget { ops: 3, memory: UNLIMITED, ..Budget::ZERO });
        assert_eq!(pool.take_all(&Budget { ops: 4, ..Budget::ZERO }), Err(Resource::Ops));
        assert_eq!(pool.ops, 3);
        pool.put(&Budget { ops: UNLIMITED - 2, ..Budget::ZERO });
        assert_eq!(pool.ops, UNLIMITED - 1);
    }
}
