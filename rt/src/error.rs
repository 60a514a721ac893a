//! What can go wrong, with the three planes of errors kept apart, because the reaction depends on who refused.

use core::fmt;

use abi::{Cqe, Exception, TransportError};

/// Longest text of an exception that is kept; the rest is cut.
pub const TEXT_MAX: usize = 94;

/// A short text that needs no allocator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    len: u8,
    bytes: [u8; TEXT_MAX],
}

impl Text {
    /// The first [`TEXT_MAX`] bytes of `bytes`, up to the last whole character.
    pub fn new(bytes: &[u8]) -> Text {
        let mut text = Text { len: 0, bytes: [0; TEXT_MAX] };
        let cut = &bytes[..bytes.len().min(TEXT_MAX)];
        let len = match core::str::from_utf8(cut) {
            Ok(_) => cut.len(),
            Err(error) => error.valid_up_to(),
        };
        text.bytes[..len].copy_from_slice(&cut[..len]);
        text.len = len as u8;
        text
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len as usize]).unwrap_or("")
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why something was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The method was reached and refused or failed.
    Exception {
        /// Which kind of refusal.
        kind: Exception,
        /// What it said.
        message: Text,
    },
    /// The method answered, and its answer says that it did nothing.
    Operation(schema::messages_capnp::OperationResult),
    /// The entry never reached a method.
    Transport(TransportError),
    /// The answer does not match the schema: the other side has another version of it.
    BadReply,
    /// A completion with a status that this program does not know.
    UnknownStatus(i32),
    /// The process was granted no such capability: its parent or the manifest must name it.
    NoCapability(&'static str),
    /// No memory for it.
    NoMemory,
}

impl Error {
    /// The exception's kind, if it is one.
    pub fn exception(&self) -> Option<Exception> {
        match self {
            Error::Exception { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// The operation's result, if it is one.
    pub fn operation(&self) -> Option<schema::messages_capnp::OperationResult> {
        match self {
            Error::Operation(result) => Some(*result),
            _ => None,
        }
    }

    /// The transport error, if it is one.
    pub fn transport(&self) -> Option<TransportError> {
        match self {
            Error::Transport(error) => Some(*error),
            _ => None,
        }
    }

    /// From a completion that is not a success; `text` is the result buffer, where an exception puts its message.
    #[cold]
    pub(crate) fn of(cqe: &Cqe, text: &[u8]) -> Error {
        if let Some(kind) = Exception::from_raw(cqe.status) {
            let len = text.len().min(cqe.value as usize);
            return Error::Exception { kind, message: Text::new(&text[..len]) };
        }
        TransportError::from_raw(cqe.status).map_or(Error::UnknownStatus(cqe.status), Error::Transport)
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Error {
        Error::Transport(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Exception { kind, message } if message.as_str().is_empty() => write!(f, "{kind:?}"),
            Error::Exception { kind, message } => write!(f, "{kind:?}: {}", message.as_str()),
            Error::Operation(result) => write!(f, "refused: {result:?}"),
            Error::Transport(error) => write!(f, "transport error {error:?} ({})", *error as i32),
            Error::BadReply => f.write_str("the answer does not fit the schema"),
            Error::UnknownStatus(status) => write!(f, "unknown status {status}"),
            Error::NoCapability(name) => {
                write!(f, "no capability \"{name}\": grant it in the manifest or by the parent")
            }
            Error::NoMemory => f.write_str("out of memory"),
        }
    }
}

/// What most operations return.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Whether a completion is a success, without looking at the text.
#[inline(always)]
pub(crate) fn check(cqe: &Cqe) -> Result<()> {
    if cqe.status == 0 { Ok(()) } else { Err(Error::of(cqe, &[])) }
}
