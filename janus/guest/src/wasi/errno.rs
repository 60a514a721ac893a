//! Error numbers of WASI.

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const BADF: i32 = 8;
pub(crate) const EXIST: i32 = 20;
pub(crate) const FAULT: i32 = 21;
pub(crate) const INVAL: i32 = 28;
pub(crate) const IO: i32 = 29;
pub(crate) const MFILE: i32 = 33;
pub(crate) const NOENT: i32 = 44;
pub(crate) const NOSYS: i32 = 52;
pub(crate) const NOTDIR: i32 = 54;
pub(crate) const NOTSOCK: i32 = 57;
pub(crate) const NOTSUP: i32 = 58;
pub(crate) const PIPE: i32 = 64;
pub(crate) const SPIPE: i32 = 70;
pub(crate) const NOTCAPABLE: i32 = 76;
