//! The rights of a guest. Every right is an import that exists only if it was granted.

use janus::Profile;
use std::fmt;
use std::str::FromStr;

/// A right that a guest is given, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grant {
    /// To grow its memory and tables, out of the memory budget. Without it `memory.grow` returns -1.
    Memory,
    /// To have children: `CapSpawn`.
    Spawn,
    /// To recharge itself, as far as its host allows: `CapBudget`.
    Budget,
    /// To make channels, send and receive.
    Messages,
    /// To read its input, write its output, and open the files that it was given.
    Io,
    /// To know the time, and to sleep.
    Clock,
    /// To have random numbers.
    Random,
}

impl Grant {
    /// All of them.
    pub const ALL: [Grant; 7] =
        [Grant::Memory, Grant::Spawn, Grant::Budget, Grant::Messages, Grant::Io, Grant::Clock, Grant::Random];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Grant::Memory => "memory",
            Grant::Spawn => "spawn",
            Grant::Budget => "budget",
            Grant::Messages => "messages",
            Grant::Io => "io",
            Grant::Clock => "clock",
            Grant::Random => "random",
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(name: &str) -> Result<Grant, String> {
        Grant::ALL.into_iter().find(|grant| grant.name() == name).ok_or_else(|| {
            let names = Grant::ALL.map(Grant::name).join(", ");
            format!("there is no grant `{name}`; there are {names}")
        })
    }
}

/// A set of rights.
///
/// ```
/// use janus_guest::{Grant, Grants};
/// let grants = Grants::NONE.with(Grant::Io).with(Grant::Memory);
/// assert!(grants.has(Grant::Io) && !grants.has(Grant::Spawn));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grants(u8);

impl Grants {
    /// No right but to compute.
    pub const NONE: Grants = Grants(0);
    /// Everything.
    pub const ALL: Grants = Grants((1 << Grant::ALL.len()) - 1);

    /// What a profile grants by itself [SCHED:10.2.2], [SCHED:10.2.4]: `:service` grants everything but the right to
    /// recharge, the others nothing.
    #[must_use]
    pub const fn of(profile: Profile) -> Grants {
        match profile {
            Profile::Service => Grants(Grants::ALL.0 & !(1 << Grant::Budget as u8)),
            _ => Grants::NONE,
        }
    }

    /// These rights and one more.
    #[must_use]
    pub const fn with(self, grant: Grant) -> Grants {
        Grants(self.0 | 1 << grant as u8)
    }

    /// Whether the set has this right.
    #[must_use]
    pub const fn has(self, grant: Grant) -> bool {
        self.0 & 1 << grant as u8 != 0
    }
}
