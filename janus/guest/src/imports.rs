//! Every import that a guest can have: its name, its type and the right that it needs.

use crate::grant::Grant;
use crate::wasi::errno;

/// The module of the runtime's own imports.
pub(crate) const JANUS: &str = "janus";
/// The system interface that C and Rust programs are compiled for.
pub(crate) const WASI: &str = "wasi_snapshot_preview1";

/// What an import does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    // Used only by the pass.
    Allocate,
    Release,
    // The opcodes of the specification, and related calls.
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
    FdAdvise,
    FdClose,
    FdStat,
    FdSetFlags,
    FdSetSize,
    FdFileStat,
    FdPrestat,
    FdPrestatName,
    FdRead,
    FdReadAt,
    FdReadDir,
    FdRenumber,
    FdSeek,
    FdSync,
    FdTell,
    FdWrite,
    FdWriteAt,
    PathOpen,
    PathFileStat,
    PathReadLink,
    Poll,
    Raise,
    Exit,
    Random,
    /// Always returns this error number.
    Refuse(i32),
}

pub(crate) struct Offer {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) grant: Option<Grant>,
    /// Parameters and, after the colon, results: `i` is 32 bits wide, `l` 64.
    ty: &'static str,
    pub(crate) call: Call,
}

const fn janus(name: &'static str, grant: Option<Grant>, ty: &'static str, call: Call) -> Offer {
    Offer { module: JANUS, name, grant, ty, call }
}

const fn wasi(name: &'static str, grant: Option<Grant>, ty: &'static str, call: Call) -> Offer {
    Offer { module: WASI, name, grant, ty, call }
}

/// An import that works on descriptors and files.
const fn file(name: &'static str, ty: &'static str, call: Call) -> Offer {
    wasi(name, Some(Grant::Io), ty, call)
}

/// An import that always returns `error`.
const fn none(name: &'static str, ty: &'static str, error: i32) -> Offer {
    file(name, ty, Call::Refuse(error))
}

/// All imports but those that only the pass uses. For WASI these are all of its functions.
pub(crate) const OFFERS: [Offer; 57] = [
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
    wasi("proc_raise", None, "i:i", Call::Raise),
    wasi("args_get", None, "ii:i", Call::ArgsGet),
    wasi("args_sizes_get", None, "ii:i", Call::ArgsSizes),
    wasi("environ_get", None, "ii:i", Call::EnvironGet),
    wasi("environ_sizes_get", None, "ii:i", Call::EnvironSizes),
    wasi("clock_res_get", Some(Grant::Clock), "ii:i", Call::ClockRes),
    wasi("clock_time_get", Some(Grant::Clock), "ili:i", Call::ClockTime),
    wasi("poll_oneoff", Some(Grant::Clock), "iiii:i", Call::Poll),
    wasi("random_get", Some(Grant::Random), "ii:i", Call::Random),
    file("fd_advise", "illi:i", Call::FdAdvise),
    file("fd_close", "i:i", Call::FdClose),
    file("fd_datasync", "i:i", Call::FdSync),
    file("fd_fdstat_get", "ii:i", Call::FdStat),
    file("fd_fdstat_set_flags", "ii:i", Call::FdSetFlags),
    file("fd_filestat_get", "ii:i", Call::FdFileStat),
    file("fd_filestat_set_size", "il:i", Call::FdSetSize),
    file("fd_pread", "iiili:i", Call::FdReadAt),
    file("fd_prestat_get", "ii:i", Call::FdPrestat),
    file("fd_prestat_dir_name", "iii:i", Call::FdPrestatName),
    file("fd_pwrite", "iiili:i", Call::FdWriteAt),
    file("fd_read", "iiii:i", Call::FdRead),
    file("fd_readdir", "iiili:i", Call::FdReadDir),
    file("fd_renumber", "ii:i", Call::FdRenumber),
    file("fd_seek", "ilii:i", Call::FdSeek),
    file("fd_sync", "i:i", Call::FdSync),
    file("fd_tell", "ii:i", Call::FdTell),
    file("fd_write", "iiii:i", Call::FdWrite),
    file("path_filestat_get", "iiiii:i", Call::PathFileStat),
    file("path_open", "iiiiillii:i", Call::PathOpen),
    file("path_readlink", "iiiiii:i", Call::PathReadLink),
    none("fd_allocate", "ill:i", errno::NOTSUP),
    none("fd_fdstat_set_rights", "ill:i", errno::NOTSUP),
    none("fd_filestat_set_times", "illi:i", errno::NOTCAPABLE),
    none("path_create_directory", "iii:i", errno::NOTCAPABLE),
    none("path_filestat_set_times", "iiiilli:i", errno::NOTCAPABLE),
    none("path_link", "iiiiiii:i", errno::NOTCAPABLE),
    none("path_remove_directory", "iii:i", errno::NOTCAPABLE),
    none("path_rename", "iiiiii:i", errno::NOTCAPABLE),
    none("path_symlink", "iiiii:i", errno::NOTCAPABLE),
    none("path_unlink_file", "iii:i", errno::NOTCAPABLE),
    none("sock_accept", "iii:i", errno::NOTSOCK),
    none("sock_recv", "iiiiii:i", errno::NOTSOCK),
    none("sock_send", "iiiii:i", errno::NOTSOCK),
    none("sock_shutdown", "ii:i", errno::NOTSOCK),
];

impl Offer {
    pub(crate) fn find(module: &str, name: &str) -> Option<&'static Offer> {
        OFFERS.iter().find(|offer| offer.module == module && offer.name == name)
    }

    /// The letters of its parameters, and of its results.
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
