//! What a thread may know about its share: weight and latency class, with the numbers and names of the scheduling core.

/// The smallest weight.
pub const WEIGHT_MIN: u16 = 1;
/// The largest weight.
pub const WEIGHT_MAX: u16 = 1024;
/// The weight of a thread unless another one is set.
pub const WEIGHT_DEFAULT: u16 = 64;
/// In a spawn: the creator's weight.
pub const WEIGHT_INHERIT: u32 = 0;
/// In a spawn: the creator's class.
pub const CLASS_INHERIT: u16 = u16::MAX;

/// How soon a thread wants to run once it can: it changes the length of its slices, never its share.
#[repr(u16)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatencyClass {
    /// Short slices.
    Interactive = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Long slices.
    Batch = 2,
    /// A server on an endpoint.
    IpcServer = 3,
}

impl LatencyClass {
    /// All of them, in the order of their numbers.
    pub const ALL: [LatencyClass; 4] =
        [LatencyClass::Interactive, LatencyClass::Normal, LatencyClass::Batch, LatencyClass::IpcServer];

    /// Its name in manifests, commands and lists.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LatencyClass::Interactive => "interactive",
            LatencyClass::Normal => "normal",
            LatencyClass::Batch => "batch",
            LatencyClass::IpcServer => "ipcserver",
        }
    }

    /// The class with this number.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<LatencyClass> {
        if (raw as usize) < Self::ALL.len() { Some(Self::ALL[raw as usize]) } else { None }
    }

    /// The class with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<LatencyClass> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}
