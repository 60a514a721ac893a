//! What kernel and programs agree on about scheduling contexts, beyond the schema.

/// The method of the call that the kernel makes to a context's timeout endpoint when a thread has used up its budget. Its words are the
/// context's number, and the thread's number with [`TIMEOUT_DONATED`].
pub const TIMEOUT_METHOD: u16 = u16::MAX;
/// In the second word of that call: the thread has the context on loan.
pub const TIMEOUT_DONATED: u64 = 1 << 32;
/// The first word of an answer to that call: the thread goes on with the next refill.
pub const TIMEOUT_WAIT: u64 = 0;
/// The first word of an answer to that call: the thread goes on at once at its weight, its context unbound or its loan returned.
pub const TIMEOUT_DEMOTE: u64 = 1;

/// Along how many calls a context can be lent on.
pub const MAX_LOAN_DEPTH: usize = 8;
/// The longest mask of CPUs: a bit for each CPU that there can be.
pub const CPU_MASK_BYTES_MAX: usize = 32;

/// What happens to a thread whose budget is spent. Numbers are those of `OverrunPolicy` in the schema.
#[repr(u16)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overrun {
    /// It waits for the next refill.
    #[default]
    Throttle = 0,
    /// It is stopped, and the timeout endpoint is told.
    Fault = 1,
    /// It goes on at its weight until the next refill.
    Demote = 2,
}

impl Overrun {
    /// All of them, in the order of their numbers.
    pub const ALL: [Overrun; 3] = [Overrun::Throttle, Overrun::Fault, Overrun::Demote];

    /// Its name in manifests, commands and lists.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Overrun::Throttle => "throttle",
            Overrun::Fault => "fault",
            Overrun::Demote => "demote",
        }
    }

    /// The one with this number.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Overrun> {
        if (raw as usize) < Self::ALL.len() { Some(Self::ALL[raw as usize]) } else { None }
    }

    /// The one with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Overrun> {
        Self::ALL.into_iter().find(|overrun| overrun.name() == name)
    }
}
