//! Every import that a guest can have: its name, its type and the right that it takes.

use crate::grant::Grant;

/// The runtime's own.
pub(crate) const JANUS: &str = "janus";
/// The system interface that C and Rust programs are compiled for.
pub(crate) const WASI: &str = "wasi_snapshot_preview1";

/// What an import does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    // The pass's own.
    Allocate,
    Release,
    // The opcodes of the specification, and what goes with them.
    Yield,
    SchedYield,
    TaskCreate,
    TaskJoin,
    TaskCancel,
    BudgetLeft,
    BudgetRecharge,
    ChannelMake,
    ChannelSend,
    ChannelReceive,
    ChannelClose,
    Sleep,
    // WASI.
    ArgsGet,
    ArgsSizes,
    EnvironGet,
    EnvironSizes,
    ClockRes,
    ClockTime,
    FdClose,
    FdStat,
    FdSetFlags,
    FdFileStat,
    FdPrestat,
    FdPrestatName,
    FdRead,
    FdSeek,
    FdTell,
    FdWrite,
    PathOpen,
    PathFileStat,
    Exit,
    Random,
}

pub(crate) struct Offer {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) grant: Option<Grant>,
    /// Parameters and, after the colon, results: `i` is 32 bits, `l` 64.
    ty: &'static str,
    pub(crate) call: Call,
}

const fn janus(name: &'static str, grant: Option<Grant>, ty: &'static str, call: Call) -> Offer {
    Offer { module: JANUS, name, grant, ty, call }
}

const fn wasi(name: &'static str, grant: Option<Grant>, ty: &'static str, call: Call) -> Offer {
    Offer { module: WASI, name, grant, ty, call }
}

/// All of them but those that only the pass imports.
pub(crate) const OFFERS: [Offer; 32] = [
    janus("yield", None, ":", Call::Yield),
    janus("spawn", Some(Grant::Spawn), "ili:i", Call::TaskCreate),
    janus("join", Some(Grant::Spawn), "ii:i", Call::TaskJoin),
    janus("cancel", Some(Grant::Spawn), "i:i", Call::TaskCancel),
    janus("budget_left", None, "i:l", Call::BudgetLeft),
    janus("budget_recharge", Some(Grant::Budget), "il:i", Call::BudgetRecharge),
    janus("channel", Some(Grant::Messages), "i:i", Call::ChannelMake),
    janus("send", Some(Grant::Messages), "iii:i", Call::ChannelSend),
    janus("receive", Some(Grant::Messages), "iii:i", Call::ChannelReceive),
    janus("close", Some(Grant::Messages), "i:i", Call::ChannelClose),
    janus("sleep", Some(Grant::Clock), "l:", Call::Sleep),
    wasi("sched_yield", None, ":i", Call::SchedYield),
    wasi("proc_exit", None, "i:", Call::Exit),
    wasi("args_get", None, "ii:i", Call::ArgsGet),
    wasi("args_sizes_get", None, "ii:i", Call::ArgsSizes),
    wasi("environ_get", None, "ii:i", Call::EnvironGet),
    wasi("environ_sizes_get", None, "ii:i", Call::EnvironSizes),
    wasi("clock_res_get", Some(Grant::Clock), "ii:i", Call::ClockRes),
    wasi("clock_time_get", Some(Grant::Clock), "ili:i", Call::ClockTime),
    wasi("random_get", Some(Grant::Random), "ii:i", Call::Random),
    wasi("fd_close", Some(Grant::Io), "i:i", Call::FdClose),
    wasi("fd_fdstat_get", Some(Grant::Io), "ii:i", Call::FdStat),
    wasi("fd_fdstat_set_flags", Some(Grant::Io), "ii:i", Call::FdSetFlags),
    wasi("fd_filestat_get", Some(Grant::Io), "ii:i", Call::FdFileStat),
    wasi("fd_prestat_get", Some(Grant::Io), "ii:i", Call::FdPrestat),
    wasi("fd_prestat_dir_name", Some(Grant::Io), "iii:i", Call::FdPrestatName),
    wasi("fd_read", Some(Grant::Io), "iiii:i", Call::FdRead),
    wasi("fd_seek", Some(Grant::Io), "ilii:i", Call::FdSeek),
    wasi("fd_tell", Some(Grant::Io), "ii:i", Call::FdTell),
    wasi("fd_write", Some(Grant::Io), "iiii:i", Call::FdWrite),
    wasi("path_open", Some(Grant::Io), "iiiiillii:i", Call::PathOpen),
    wasi("path_filestat_get", Some(Grant::Io), "iiiii:i", Call::PathFileStat),
];

impl Offer {
    pub(crate) fn find(module: &str, name: &str) -> Option<&'static Offer> {
        OFFERS.iter().find(|offer| offer.module == module && offer.name == name)
    }

    /// The letters of its parameters and of its results.
    pub(crate) fn types(&self) -> (&'static str, &'static str) {
        self.ty.split_once(':').unwrap_or((self.ty, ""))
    }
}

/// For tests that call everything: module, name, and the letters of the type.
#[doc(hidden)]
#[must_use]
pub fn offers() -> Vec<(&'static str, &'static str, &'static str)> {
    OFFERS.iter().map(|offer| (offer.module, offer.name, offer.ty)).collect()
}
