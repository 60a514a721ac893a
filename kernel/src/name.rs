//! Names of processes, sessions and grants; and unique numbers.

use abi::MAX_NAME_BYTES;
use core::sync::atomic::{AtomicU64, Ordering};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A number that was never returned before.
pub fn fresh_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// A short name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name(pub [u8; MAX_NAME_BYTES]);

impl Name {
    /// `None` if the text is empty, too long, or has control characters, C1 and DEL included, because names are printed.
    pub fn new(text: &str) -> Option<Name> {
        let mut bytes = [0; MAX_NAME_BYTES];
        if text.is_empty() || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
            return None;
        }
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(Name(bytes))
    }
    /// The name as text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(MAX_NAME_BYTES);
        core::str::from_utf8(&self.0[..end]).unwrap_or("?")
    }
}
