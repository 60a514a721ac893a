//! What a terminal of 80 columns and 24 rows shows, as far as our programs use one.

const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// The terminal. It also keeps all text that ever came, without control sequences.
#[derive(Default)]
pub struct Screen {
    /// Every row since the start; the last 24 are shown.
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    state: State,
    /// Bytes of a character that is not whole yet.
    partial: Vec<u8>,
    text: String,
}

#[derive(Default)]
enum State {
    #[default]
    Plain,
    Escape,
    /// A control sequence: what came after `ESC [`.
    Sequence(String),
}

impl Screen {
    /// Shows what came.
    pub fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.partial.push(byte);
            let whole = match std::str::from_utf8(&self.partial) {
                Ok(text) => text.chars().next(),
                Err(error) if error.error_len().is_none() => None,
                Err(_) => Some(char::REPLACEMENT_CHARACTER),
            };
            if let Some(character) = whole {
                self.partial.clear();
                self.character(character);
            }
        }
    }

    /// All text so far; lines end with `\n`, and what a cursor moved over stays.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The row with the cursor, without spaces at its end.
    #[must_use]
    pub fn row(&self) -> String {
        let row = self.rows.get(self.row);
        row.map(|row| row.iter().collect::<String>().trim_end().to_owned()).unwrap_or_default()
    }

    /// The column of the cursor, from 0.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column
    }

    fn character(&mut self, character: char) {
        match std::mem::take(&mut self.state) {
            State::Plain => self.plain(character),
            State::Escape if character == '[' => self.state = State::Sequence(String::new()),
            State::Escape => {}
            State::Sequence(text) if character.is_ascii_alphabetic() || character == '~' => {
                self.sequence(&text, character);
            }
            State::Sequence(mut text) => {
                text.push(character);
                self.state = State::Sequence(text);
            }
        }
    }

    fn plain(&mut self, character: char) {
        match character {
            '\r' => self.column = 0,
            '\n' => {
                self.row += 1;
                self.here();
                self.text.push('\n');
            }
            '\x08' => self.column = self.column.saturating_sub(1),
            '\x1b' => self.state = State::Escape,
            _ if character.is_control() => {}
            _ => {
                if self.column == COLUMNS {
                    (self.row, self.column) = (self.row + 1, 0);
                }
                let column = self.column;
                let row = self.here();
                row.resize(row.len().max(column + 1), ' ');
                row[column] = character;
                self.column += 1;
                self.text.push(character);
            }
        }
    }

    fn here(&mut self) -> &mut Vec<char> {
        if self.rows.len() <= self.row {
            self.rows.resize(self.row + 1, Vec::new());
        }
        &mut self.rows[self.row]
    }

    fn top(&self) -> usize {
        self.rows.len().saturating_sub(ROWS)
    }

    fn sequence(&mut self, text: &str, kind: char) {
        let mut numbers = text.split(';').map(|word| word.parse::<usize>().ok());
        let (first, second) = (numbers.next().flatten(), numbers.next().flatten());
        let count = first.unwrap_or(1).max(1);
        let column = self.column;
        match (kind, first.unwrap_or(0)) {
            ('A', _) => self.row = self.row.saturating_sub(count).max(self.top()),
            ('B', _) => self.row = (self.row + count).min(self.top() + ROWS - 1),
            ('C', _) => self.column = (column + count).min(COLUMNS - 1),
            ('D', _) => self.column = column.saturating_sub(count),
            ('H', _) => {
                self.row = self.top() + count.min(ROWS) - 1;
                self.column = second.unwrap_or(1).max(1) - 1;
            }
            ('K', 0) => self.here().truncate(column),
            ('K', 2) => self.here().clear(),
            ('J', 0) => {
                self.here().truncate(column);
                let below = self.row + 1;
                self.rows.iter_mut().skip(below).for_each(Vec::clear);
            }
            ('J', 2) => {
                let top = self.top();
                self.rows.iter_mut().skip(top).for_each(Vec::clear);
            }
            // Colours, and what we do not use.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(text: &str) -> Screen {
        let mut screen = Screen::default();
        // In pieces, as they may come.
        text.as_bytes().chunks(3).for_each(|piece| screen.take(piece));
        screen
    }

    #[test]
    fn an_edited_line_is_shown_as_it_became() {
        let shown = screen("one\r\n> hepl\x1b[2D\x1b[Klp\x1b[2D");
        assert_eq!((shown.row().as_str(), shown.column()), ("> help", 4));
        assert_eq!(screen("abc\r\x1b[Kxy").row(), "xy");
        assert_eq!(screen("a\x1b[31mb\x1b[0m\u{e4}\x08\x08c").row(), "ac\u{e4}");
    }

    #[test]
    fn the_text_is_all_that_came() {
        assert_eq!(screen("one\r\n\x1b[2J\x1b[Htwo\r\nthree").text(), "one\ntwo\nthree");
    }

    #[test]
    fn home_is_the_first_of_the_rows_that_are_shown() {
        let mut shown = screen(&"line\r\n".repeat(100));
        shown.take(b"\x1b[2J\x1b[Htop\r\nnext\x1b[1A");
        assert_eq!(shown.row(), "top");
        assert_eq!(shown.top(), 101 - ROWS);
    }
}
