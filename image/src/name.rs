//! A short text that needs no allocation: names in errors.

use core::fmt;

use abi::MAX_NAME_BYTES;

const ROOM: usize = 27;
const _: () = assert!(ROOM >= MAX_NAME_BYTES);

/// At most 27 bytes of text, by value. A longer one is cut, and shows it by a final `…`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Name {
    /// Bytes in use; `CUT` is added when there were more.
    len: u8,
    bytes: [u8; ROOM],
}

const CUT: u8 = 0x80;

impl Name {
    /// `text`, or as much of it as fits.
    #[must_use]
    pub fn new(text: &str) -> Name {
        let mut name = Name::default();
        name.push(text);
        name
    }

    /// The text, without the mark of one that was cut.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len & !CUT)]).unwrap_or("")
    }

    /// Whether there was more of it.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.len & CUT != 0
    }

    /// Whether there is no text at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, text: &str) {
        if self.is_cut() {
            return;
        }
        let used = usize::from(self.len);
        let room = ROOM - used;
        let fits = if text.len() <= room { text.len() } else { text.floor_char_boundary(room) };
        self.bytes[used..used + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits as u8;
        if fits < text.len() {
            self.len |= CUT;
        }
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        if self.is_cut() { f.write_str("…") } else { Ok(()) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_between_characters_and_shows_it() {
        assert_eq!(Name::new("init").to_string(), "init");
        let long = "ä".repeat(20);
        let name = Name::new(&long);
        assert!(name.is_cut());
        assert_eq!(name.to_string(), format!("{}…", "ä".repeat(13)));
        let mut name = Name::default();
        core::fmt::Write::write_fmt(&mut name, format_args!("interface {}", 99)).unwrap();
        assert_eq!(name.as_str(), "interface 99");
    }
}
