//! The bytes of a compiled manifest.
//!
//! ```text
//! 0   magic "capOSman", version u32, bytes of the whole u32
//! 16  name, source: Text
//! 32  for each of TABLES: offset u32, count u32
//!     the tables: records of fixed size; then the strings, one after the other
//! ```
//! All numbers are little-endian. A [`Text`] is an offset and a length in the strings, which are UTF-8 as a whole.
//! Every record begins with the line of the source that it comes from.

/// The first bytes of a manifest.
pub const MAGIC: [u8; 8] = *b"capOSman";
/// The version of this format.
pub const VERSION: u32 = 2;
/// Where the descriptors of the tables begin.
pub const TABLES_AT: usize = 32;
/// Where the tables may begin.
pub const HEADER_BYTES: usize = TABLES_AT + TABLES.len() * 8;
/// The bit of a process that is critical, in [`RawProcess::flags`].
pub const CRITICAL: u32 = 1;

/// The tables, in the order of their descriptors, each with the bytes of one record.
pub const TABLES: [(&str, usize); 11] = [
    ("process", RawProcess::BYTES),
    ("args", RawText::BYTES),
    ("grants", RawGrant::BYTES),
    ("after", RawText::BYTES),
    ("memory", RawMemory::BYTES),
    ("pool", RawPool::BYTES),
    ("pool_grant", RawPoolGrant::BYTES),
    ("minter", RawAllow::BYTES),
    ("profile", RawProfile::BYTES),
    ("context", RawContext::BYTES),
    ("strings", 1),
];

/// The numbers of [`TABLES`].
pub mod table {
    /// Processes: [`super::RawProcess`].
    pub const PROCESS: usize = 0;
    /// Arguments of all processes: [`super::RawText`].
    pub const ARGS: usize = 1;
    /// Grants of all processes: [`super::RawGrant`].
    pub const GRANTS: usize = 2;
    /// What all processes wait for: [`super::RawText`].
    pub const AFTER: usize = 3;
    /// Memory objects: [`super::RawMemory`].
    pub const MEMORY: usize = 4;
    /// Pools: [`super::RawPool`].
    pub const POOL: usize = 5;
    /// Pool grants: [`super::RawPoolGrant`].
    pub const POOL_GRANT: usize = 6;
    /// What the minter may mint: [`super::RawAllow`].
    pub const MINTER: usize = 7;
    /// Profiles: [`super::RawProfile`].
    pub const PROFILE: usize = 8;
    /// Scheduling contexts: [`super::RawContext`].
    pub const CONTEXT: usize = 9;
    /// The strings.
    pub const STRINGS: usize = 10;
}

/// A value with a fixed number of bytes.
pub trait Record: Sized {
    /// How many.
    const BYTES: usize;
    /// Reads it from the beginning of `bytes`, if there are enough.
    fn read(bytes: &[u8]) -> Option<Self>;
    /// Writes its bytes to `sink`.
    fn write(&self, sink: &mut impl FnMut(&[u8]));
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Record for $type {
            const BYTES: usize = size_of::<$type>();
            fn read(bytes: &[u8]) -> Option<Self> {
                Some(<$type>::from_le_bytes(*bytes.first_chunk()?))
            }
            fn write(&self, sink: &mut impl FnMut(&[u8])) {
                sink(&self.to_le_bytes());
            }
        }
    )*};
}
number!(u32, u64);

macro_rules! record {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        impl $name {
            /// Bytes of one record.
            pub const BYTES: usize = 0 $(+ <$type as Record>::BYTES)*;
        }

        impl Record for $name {
            const BYTES: usize = $name::BYTES;
            fn read(bytes: &[u8]) -> Option<Self> {
                let rest = bytes;
                $(
                    let ($field, rest) =
                        (<$type as Record>::read(rest)?, rest.get(<$type as Record>::BYTES..)?);
                )*
                let _ = rest;
                Some($name { $($field,)* })
            }
            fn write(&self, sink: &mut impl FnMut(&[u8])) {
                $(self.$field.write(sink);)*
            }
        }
    };
}

record! {
    /// A piece of the strings.
    Text {
        /// Where it begins.
        at: u32,
        /// Its bytes.
        len: u32,
    }
}

record! {
    /// Some neighbouring records of another table.
    Span {
        /// The first.
        first: u32,
        /// How many.
        count: u32,
    }
}

record! {
    /// Which CPUs, lowest bit first.
    RawCpus {
        /// 0 to 63.
        w0: u64,
        /// 64 to 127.
        w1: u64,
        /// 128 to 191.
        w2: u64,
        /// 192 to 255.
        w3: u64,
    }
}

record! {
    /// A `[[process]]`.
    RawProcess {
        /// Its line.
        line: u32,
        /// `name`.
        name: Text,
        /// `program`.
        program: Text,
        /// `session`, empty when there is none.
        session: Text,
        /// `profile`, empty when there is none.
        profile: Text,
        /// `args`, in the table of arguments.
        args: Span,
        /// `grants`, in the table of grants.
        grants: Span,
        /// `after`, in the table of that name.
        after: Span,
        /// `weight`.
        weight: u32,
        /// `class`: a [`crate::Class`].
        class: u32,
        /// [`CRITICAL`].
        flags: u32,
    }
}

record! {
    /// An argument, or the name of a process.
    RawText {
        /// Its line.
        line: u32,
        /// The text.
        text: Text,
    }
}

record! {
    /// One of a process's `grants`.
    RawGrant {
        /// Its line.
        line: u32,
        /// An [`abi::Interface`].
        interface: u32,
        /// [`abi::rights`].
        rights: u32,
        /// `badge`, 0 when there is none.
        badge: u64,
        /// `name`.
        name: Text,
        /// What follows the colon of `endpoint:`, `memory:` and `scheduling_context:`; empty for others.
        object: Text,
    }
}

record! {
    /// A `[[memory]]`.
    RawMemory {
        /// Its line.
        line: u32,
        /// `name`.
        name: Text,
        /// `bytes`.
        bytes: u64,
    }
}

record! {
    /// A `[[pool]]`.
    RawPool {
        /// Its line.
        line: u32,
        /// `name`.
        name: Text,
        /// `cpus`.
        cpus: RawCpus,
        /// `budget_ns`, 0 when there is none.
        budget_ns: u64,
        /// `period_ns`, 0 when there is none.
        period_ns: u64,
        /// `max_leases`, 0 when there is no bound.
        max_leases: u64,
        /// `max_leases_per_account`, 0 when there is no bound.
        max_leases_per_account: u64,
    }
}

record! {
    /// A `[[pool_grant]]`.
    RawPoolGrant {
        /// Its line.
        line: u32,
        /// `name`.
        name: Text,
        /// `pool`.
        pool: Text,
        /// `account`.
        account: u64,
    }
}

record! {
    /// One of the minter's `allow`.
    RawAllow {
        /// Its line.
        line: u32,
        /// `pool`.
        pool: Text,
        /// `account`.
        account: u64,
    }
}

record! {
    /// A `[[profile]]`.
    RawProfile {
        /// Its line.
        line: u32,
        /// `name`.
        name: Text,
        /// `weight`.
        weight: u32,
        /// `class`: a [`crate::Class`].
        class: u32,
        /// `budget_ns`, 0 when there is none.
        budget_ns: u64,
        /// `period_ns`, 0 when there is none.
        period_ns: u64,
    }
}

record! {
    /// A `[[context]]`.
    RawContext {
        /// Its line.
        line: u32,
        /// `name`.
        name: Text,
        /// `budget_ns`.
        budget_ns: u64,
        /// `period_ns`.
        period_ns: u64,
        /// `deadline_ns`, 0 when there is none.
        deadline_ns: u64,
        /// `cpus`.
        cpus: RawCpus,
        /// `overrun`: an [`abi::Overrun`].
        overrun: u32,
        /// `criticality`.
        criticality: u32,
        /// `refills`, 0 when there is no bound.
        refills: u32,
        /// `timeout`: the name of an endpoint, empty when there is none.
        timeout: Text,
        /// `badge` of the call to it, 0 when there is none.
        badge: u64,
    }
}
