//! From bytes to keys.

/// A key, or what a terminal sends for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A printable character.
    Char(char),
    /// Enter.
    Enter,
    /// Tab.
    Tab,
    /// Rubs out to the left.
    Backspace,
    /// Rubs out to the right.
    Delete,
    /// One to the left.
    Left,
    /// One to the right.
    Right,
    /// One line up.
    Up,
    /// One line down.
    Down,
    /// To the beginning.
    Home,
    /// To the end.
    End,
    /// A letter with Ctrl, `'a'` to `'z'`.
    Ctrl(char),
    /// Escape and nothing that is known.
    Unknown,
}

/// Longest escape sequence that is listened to; longer ones are given up.
const SEQUENCE_MAX: usize = 8;

/// Puts bytes together to keys.
#[derive(Debug, Default)]
pub struct Keys {
    state: State,
    /// The last byte was CR: an LF after it is the same Enter.
    after_cr: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Ground,
    /// After ESC.
    Escape,
    /// After ESC `[` or ESC `O`: the first number so far, and how many bytes.
    Sequence { number: u8, bytes: usize },
    /// Inside a UTF-8 character: its bits so far, and how many bytes are missing.
    Utf8 { bits: u32, missing: u8 },
}

impl Keys {
    /// Before the first byte.
    pub fn new() -> Keys {
        Keys::default()
    }

    /// Takes the next byte; a key if it completes one.
    pub fn take(&mut self, byte: u8) -> Option<Key> {
        let after_cr = core::mem::replace(&mut self.after_cr, byte == b'\r');
        match self.state {
            State::Ground => self.ground(byte, after_cr),
            State::Escape => match byte {
                b'[' | b'O' => {
                    self.state = State::Sequence { number: 0, bytes: 0 };
                    None
                }
                0x1b => None,
                _ => {
                    self.state = State::Ground;
                    Some(Key::Unknown)
                }
            },
            State::Sequence { number, bytes } => self.sequence(number, bytes, byte),
            State::Utf8 { bits, missing } => {
                if byte & 0xc0 != 0x80 {
                    // Broken off: the byte begins something new.
                    self.state = State::Ground;
                    return self.ground(byte, after_cr);
                }
                let bits = bits << 6 | u32::from(byte & 0x3f);
                if missing > 1 {
                    self.state = State::Utf8 { bits, missing: missing - 1 };
                    return None;
                }
                self.state = State::Ground;
                Some(char::from_u32(bits).filter(|c| !c.is_control()).map_or(Key::Unknown, Key::Char))
            }
        }
    }

    fn ground(&mut self, byte: u8, after_cr: bool) -> Option<Key> {
        let (bits, missing) = match byte {
            b'\n' if after_cr => return None,
            b'\r' | b'\n' => return Some(Key::Enter),
            b'\t' => return Some(Key::Tab),
            0x7f | 0x08 => return Some(Key::Backspace),
            0x1b => {
                self.state = State::Escape;
                return None;
            }
            1..=26 => return Some(Key::Ctrl((b'a' + byte - 1) as char)),
            b' '..=b'~' => return Some(Key::Char(byte as char)),
            0xc2..=0xdf => (byte & 0x1f, 1),
            0xe0..=0xef => (byte & 0x0f, 2),
            0xf0..=0xf4 => (byte & 0x07, 3),
            _ => return Some(Key::Unknown),
        };
        self.state = State::Utf8 { bits: bits.into(), missing };
        None
    }

    fn sequence(&mut self, number: u8, bytes: usize, byte: u8) -> Option<Key> {
        if bytes >= SEQUENCE_MAX {
            self.state = State::Ground;
            return Some(Key::Unknown);
        }
        let bytes = bytes + 1;
        match byte {
            b'0'..=b'9' => {
                let number = number.saturating_mul(10).saturating_add(byte - b'0');
                self.state = State::Sequence { number, bytes };
                None
            }
            // A modifier follows; the key is the same.
            b';' => {
                self.state = State::Sequence { number: 0, bytes };
                None
            }
            _ => {
                self.state = State::Ground;
                Some(match (byte, number) {
                    (b'A', _) => Key::Up,
                    (b'B', _) => Key::Down,
                    (b'C', _) => Key::Right,
                    (b'D', _) => Key::Left,
                    (b'H', _) | (b'~', 1 | 7) => Key::Home,
                    (b'F', _) | (b'~', 4 | 8) => Key::End,
                    (b'~', 3) => Key::Delete,
                    _ => Key::Unknown,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut keys = Keys::new();
        bytes.iter().filter_map(|&byte| keys.take(byte)).collect()
    }

    #[test]
    fn what_terminals_send() {
        assert_eq!(keys(b"a\r\nb\n\r"), [Key::Char('a'), Key::Enter, Key::Char('b'), Key::Enter, Key::Enter]);
        assert_eq!(keys(b"\x1b[A\x1b[B\x1bOC\x1b[D"), [Key::Up, Key::Down, Key::Right, Key::Left]);
        assert_eq!(
            keys(b"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[3~"),
            [Key::Home, Key::End, Key::Home, Key::End, Key::Delete]
        );
        assert_eq!(
            keys(b"\x01\x05\x7f\x08\t"),
            [Key::Ctrl('a'), Key::Ctrl('e'), Key::Backspace, Key::Backspace, Key::Tab]
        );
        assert_eq!(keys(b"\x1b[1;5C"), [Key::Right]);
        assert_eq!(keys("ä€😀".as_bytes()), [Key::Char('ä'), Key::Char('€'), Key::Char('😀')]);
    }

    #[test]
    fn broken_input_ends() {
        assert_eq!(
            keys(b"\x1b[11111111111a"),
            [Key::Unknown, Key::Char('1'), Key::Char('1'), Key::Char('a')]
        );
        assert_eq!(keys(b"\xc3a"), [Key::Char('a')]);
        assert_eq!(keys(b"\xff\x1bq"), [Key::Unknown, Key::Unknown]);
        assert_eq!(keys(b"\xf4\xbf\xbf\xbf"), [Key::Unknown], "beyond the last character");
    }
}
