//! What can be wrong with a guest, before it runs and while it runs.

use std::error::Error;
use std::fmt;

/// Why a guest was refused or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuestError {
    /// The bytes are no valid module, or use an extension of WebAssembly that guests do not have.
    Malformed {
        /// What is wrong.
        reason: String,
        /// The offset in the bytes.
        offset: u64,
    },
    /// The module has more of something than a guest may have.
    TooLarge {
        /// The resource.
        what: &'static str,
        /// How much the module has.
        has: u64,
        /// How much it may have.
        limit: u64,
    },
    /// A name that belongs to the runtime.
    Reserved {
        /// The name.
        name: String,
    },
    /// An import that exists, but was not granted.
    NotGranted {
        /// The import, as `module.name`.
        import: String,
        /// The right that it needs.
        grant: crate::Grant,
    },
    /// An import that nothing provides.
    UnknownImport {
        /// The import, as `module.name`.
        import: String,
    },
    /// An import that exists with another type.
    WrongType {
        /// The import, as `module.name`.
        import: String,
    },
    /// Modules that import from each other.
    Cycle {
        /// Their names; the first one is repeated at the end.
        modules: Vec<String>,
    },
    /// There is no such export to call.
    NoEntry {
        /// Its name.
        name: String,
    },
    /// The initial memory and tables of the module, or its instance, do not fit into the memory budget.
    NoMemory {
        /// Bytes that it asks for.
        bytes: u64,
    },
    /// It did something that ends a WebAssembly program: `unreachable`, a bad access, a division by zero.
    Trap {
        /// The reason.
        reason: String,
    },
    /// It was cancelled, or a part of its budget was used up and not recharged: its task's result says which.
    Cancelled,
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestError::Malformed { reason, offset } => {
                write!(f, "not a valid module: {reason} (at byte {offset})")
            }
            GuestError::TooLarge { what, has, limit } => {
                write!(f, "the module has {has} {what}; a guest may have {limit}")
            }
            GuestError::Reserved { name } => {
                write!(f, "the name `{name}` belongs to the runtime: rename it in the module")
            }
            GuestError::NotGranted { import, grant } => {
                write!(f, "the module imports `{import}`, which needs the grant `{grant}`")
            }
            GuestError::UnknownImport { import } => {
                write!(f, "nothing provides `{import}`: link a module that exports it")
            }
            GuestError::WrongType { import } => write!(f, "`{import}` exists with another type"),
            GuestError::Cycle { modules } => {
                write!(f, "modules import from each other: {}", modules.join(" -> "))
            }
            GuestError::NoEntry { name } => {
                write!(f, "the module exports no function `{name}` without parameters")
            }
            GuestError::NoMemory { bytes } => {
                write!(f, "the guest needs {bytes} bytes to begin with; its memory budget is smaller")
            }
            GuestError::Trap { reason } => write!(f, "the guest trapped: {reason}"),
            GuestError::Cancelled => f.write_str("the guest was cancelled"),
        }
    }
}

impl Error for GuestError {}

impl From<wasmparser::Error> for GuestError {
    fn from(error: wasmparser::Error) -> GuestError {
        GuestError::Malformed { reason: error.message().to_string(), offset: error.offset() }
    }
}
