//! Capabilities as a program sees them.

/// A capability: an index into the process's table (low 16 bits) and the generation of that slot (high 16 bits, never 0).
///
/// 0 is no capability. A slot that is used again has another generation, so an old number does not name a new object.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct CapId(pub u32);

impl CapId {
    /// No capability.
    pub const NONE: CapId = CapId(0);

    /// The capability in slot `index` with `generation`.
    pub const fn new(index: u16, generation: u16) -> CapId {
        CapId((generation as u32) << 16 | index as u32)
    }
    /// The slot's index.
    pub const fn index(self) -> u16 {
        self.0 as u16
    }
    /// The slot's generation when the capability was put there.
    pub const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// What a capability can be asked: the numbers of the interfaces of `schema/capos.capnp`.
#[repr(u16)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// Bytes to and from the serial line.
    Console = 1,
    /// The clock, and sleeping.
    Timer = 2,
    /// Makes threads in the caller's process.
    ThreadSpawner = 3,
    /// One thread of the caller's process.
    ThreadHandle = 4,
    /// The calling thread.
    ThreadControl = 5,
    /// Makes processes from the programs of the boot image.
    ProcessSpawner = 6,
    /// One process.
    ProcessHandle = 7,
    /// A place to call, or to receive calls.
    Endpoint = 8,
    /// Parking and waking threads by address.
    ParkSpace = 9,
    /// The caller's address space.
    VirtualMemory = 10,
    /// Memory that can be shared.
    MemoryObject = 11,
    /// The session that the process belongs to.
    UserSession = 12,
    /// What machine and kernel this is.
    SystemInfo = 13,
    /// Makes endpoints and memory objects.
    Factory = 14,
    /// Powers the machine off.
    Power = 15,
    /// The boot manifest, for init.
    BootManifest = 16,
    /// How the calling thread shares CPUs with others.
    SchedulingPolicy = 17,
    /// CPU time: a budget in every period.
    SchedulingContext = 18,
}

impl Interface {
    /// All of them, in the order of their numbers.
    pub const ALL: [Interface; 18] = [
        Interface::Console,
        Interface::Timer,
        Interface::ThreadSpawner,
        Interface::ThreadHandle,
        Interface::ThreadControl,
        Interface::ProcessSpawner,
        Interface::ProcessHandle,
        Interface::Endpoint,
        Interface::ParkSpace,
        Interface::VirtualMemory,
        Interface::MemoryObject,
        Interface::UserSession,
        Interface::SystemInfo,
        Interface::Factory,
        Interface::Power,
        Interface::BootManifest,
        Interface::SchedulingPolicy,
        Interface::SchedulingContext,
    ];

    /// The interface with number `raw`.
    pub const fn from_raw(raw: u16) -> Option<Interface> {
        if raw >= 1 && raw as usize <= Self::ALL.len() { Some(Self::ALL[raw as usize - 1]) } else { None }
    }

    /// Its name in `schema/capos.capnp`.
    pub const fn name(self) -> &'static str {
        match self {
            Interface::Console => "Console",
            Interface::Timer => "Timer",
            Interface::ThreadSpawner => "ThreadSpawner",
            Interface::ThreadHandle => "ThreadHandle",
            Interface::ThreadControl => "ThreadControl",
            Interface::ProcessSpawner => "ProcessSpawner",
            Interface::ProcessHandle => "ProcessHandle",
            Interface::Endpoint => "Endpoint",
            Interface::ParkSpace => "ParkSpace",
            Interface::VirtualMemory => "VirtualMemory",
            Interface::MemoryObject => "MemoryObject",
            Interface::UserSession => "UserSession",
            Interface::SystemInfo => "SystemInfo",
            Interface::Factory => "Factory",
            Interface::Power => "Power",
            Interface::BootManifest => "BootManifest",
            Interface::SchedulingPolicy => "SchedulingPolicy",
            Interface::SchedulingContext => "SchedulingContext",
        }
    }
}

/// What the holder of a capability may do with it, beyond what its interface says.
pub mod rights {
    /// May call it (an endpoint: CALL).
    pub const CALL: u16 = 1;
    /// May receive from it (an endpoint: RECV and RETURN; a console: READ).
    pub const RECV: u16 = 2;
    /// May pass it on: in a message, to a child, by COPY.
    pub const GRANT: u16 = 4;
    /// May revoke every other capability to the same object.
    pub const REVOKE: u16 = 8;
    /// May change what it names (a memory object: map writable).
    pub const WRITE: u16 = 16;
    /// All that any capability can have. The bands are named separately, so that they are passed on only on purpose.
    pub const ALL: u16 = 31;
    /// The bands of criticality above 0 that a SchedulingContext may create contexts in, a bit each (S-17). Band 0 is open to every
    /// creator.
    pub const BANDS: u16 = 0x7f << BANDS_SHIFT;
    /// All bits that mean something.
    pub const KNOWN: u16 = ALL | BANDS;

    const BANDS_SHIFT: u32 = 8;

    /// The right to create in every band up to `band`, which is 7 at most.
    #[must_use]
    pub const fn up_to_band(band: u8) -> u16 {
        let bits = if band < 7 { (1 << band) - 1 } else { 0x7f };
        bits << BANDS_SHIFT
    }

    /// Do `rights` allow to create in `band`?
    #[must_use]
    pub const fn allow_band(rights: u16, band: u8) -> bool {
        band == 0 || band <= 7 && rights & (1 << (BANDS_SHIFT + band as u32 - 1)) != 0
    }
}

/// `CapSetHeader::magic`.
pub const CAPSET_MAGIC: u64 = u64::from_le_bytes(*b"capOScap");
/// Entries that fit in the page of the set.
pub const CAPSET_MAX: usize = (crate::PAGE_BYTES as usize - 16) / 32;

/// The first bytes of the page at [`crate::CAPSET_VADDR`]; `count` entries follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CapSetHeader {
    /// [`CAPSET_MAGIC`].
    pub magic: u64,
    /// How many entries follow.
    pub count: u32,
    /// 0.
    pub reserved: u32,
}

/// One capability that the process was started with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CapSetEntry {
    /// The name under which it was granted, padded with NULs.
    pub name: [u8; crate::MAX_NAME_BYTES],
    /// The capability.
    pub cap: CapId,
    /// Its [`Interface`].
    pub interface: u16,
    /// Its [`rights`].
    pub rights: u16,
}
