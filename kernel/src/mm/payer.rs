//! Who pays for memory, as this layer knows it: sessions, which belong to a layer above.

use crate::name::Name;
use core::fmt;
use kcore::quota::Kind;

/// An account with a quota of memory.
pub trait Payer: Send + Sync {
    /// Charges `bytes`, or says whose quota does not allow it.
    fn take_memory(&self, bytes: u64) -> Result<(), Denied>;
    /// Gives back what was taken.
    fn release_memory(&self, bytes: u64);
}

/// A quota that is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied {
    /// The resource.
    pub kind: Kind,
    /// The session whose quota it is.
    pub session: Name,
    /// The size of the quota.
    pub limit: u64,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}: its {} {} are used up", self.session.as_str(), self.limit, self.kind.name())
    }
}
