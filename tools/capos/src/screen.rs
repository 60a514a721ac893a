//! What a terminal of 80 columns and 24 rows shows, as far as this project's programs use one.

const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// The colour of a character; its meaning is up to the programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// The default colour.
    #[default]
    Plain,
    /// Sequence 31.
    Red,
    /// Sequence 32.
    Green,
    /// Sequence 33.
    Yellow,
}

impl Colour {
    /// By its name in a script.
    #[must_use]
    pub fn named(name: &str) -> Option<Colour> {
        let known = [
            ("plain", Colour::Plain),
            ("red", Colour::Red),
            ("green", Colour::Green),
            ("yellow", Colour::Yellow),
        ];
        known.into_iter().find(|(known, _)| *known == name).map(|(_, colour)| colour)
    }
}

/// A place on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The character there.
    pub character: char,
    /// Its colour.
    pub colour: Colour,
}

impl Cell {
    const BLANK: Cell = Cell { character: ' ', colour: Colour::Plain };
}

/// The terminal. It also keeps all text that was ever received, without control sequences.
#[derive(Default)]
pub struct Screen {
    /// Every row since the start; the last 24 are shown.
    rows: Vec<Vec<Cell>>,
    colour: Colour,
    row: usize,
    column: usize,
    state: State,
    /// Bytes of an incomplete character.
    partial: Vec<u8>,
    text: String,
}

#[derive(Default)]
enum State {
    #[default]
    Plain,
    Escape,
    /// A control sequence: what was received after `ESC [`.
    Sequence(String),
}

impl Screen {
    /// Shows the bytes that were received.
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

    /// All text so far; lines end with `\n`, and text that was later overwritten stays.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The row with the cursor, without spaces at its end.
    #[must_use]
    pub fn row(&self) -> String {
        self.rows.get(self.row).map(|row| text_of(row)).unwrap_or_default()
    }

    /// The last row that begins with `first`, leading blanks aside, and those after it, until one begins with `below` or the cursor's row was
    /// reached; empty if no row begins with `first`.
    #[must_use]
    pub fn rows_between(&self, first: &str, below: &str) -> &[Vec<Cell>] {
        let begins = |row: &Vec<Cell>, text: &str| text_of(row).trim_start().starts_with(text);
        let rows = &self.rows[..self.rows.len().min(self.row + 1)];
        let Some(first) = rows.iter().rposition(|row| begins(row, first)) else { return &[] };
        let count = rows[first..].iter().position(|row| begins(row, below));
        &rows[first..count.map_or(rows.len(), |count| first + count)]
    }

    /// Whether `text` stands on the screen with every character in this colour.
    #[must_use]
    pub fn has(&self, text: &str, colour: Colour) -> bool {
        let wanted: Vec<Cell> = text.chars().map(|character| Cell { character, colour }).collect();
        let shown = self.rows.iter().skip(self.top());
        shown.into_iter().any(|row| row.windows(wanted.len().max(1)).any(|cells| cells == wanted))
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
                let (column, colour) = (self.column, self.colour);
                let row = self.here();
                row.resize(row.len().max(column + 1), Cell::BLANK);
                row[column] = Cell { character, colour };
                self.column += 1;
                self.text.push(character);
            }
        }
    }

    fn here(&mut self) -> &mut Vec<Cell> {
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
            ('m', _) => {
                for word in text.split(';') {
                    self.colour = match word {
                        "" | "0" => Colour::Plain,
                        "31" => Colour::Red,
                        "32" => Colour::Green,
                        "33" => Colour::Yellow,
                        _ => self.colour,
                    };
                }
            }
            // Sequences that the programs do not use.
            _ => {}
        }
    }
}

/// A row as text, without spaces at its end.
#[must_use]
pub fn text_of(row: &[Cell]) -> String {
    row.iter().map(|cell| cell.character).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(text: &str) -> Screen {
        let mut screen = Screen::default();
        // In pieces, as they may arrive.
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
    fn colours_last_until_the_next_one() {
        let shown = screen("a \x1b[1;31mmissed\x1b[0m b \x1b[33mwaits");
        assert!(shown.has("missed", Colour::Red) && shown.has(" b ", Colour::Plain));
        assert!(shown.has("waits", Colour::Yellow));
        assert!(!shown.has("missed", Colour::Plain) && !shown.has("missed b", Colour::Red));
    }

    #[test]
    fn rows_begin_at_the_last_that_fits() {
        let shown = screen("up 1\r\nold\r\n  up 2\r\nnew\r\n> ");
        let rows = |first, below| -> Vec<String> {
            shown.rows_between(first, below).iter().map(|row| text_of(row)).collect()
        };
        assert_eq!(rows("up", ">"), ["  up 2", "new"]);
        assert_eq!(rows("up", "none"), ["  up 2", "new", ">"]);
        assert!(rows("down", ">").is_empty());
    }

    #[test]
    fn home_is_the_first_of_the_rows_that_are_shown() {
        let mut shown = screen(&"line\r\n".repeat(100));
        shown.take(b"\x1b[2J\x1b[Htop\r\nnext\x1b[1A");
        assert_eq!(shown.row(), "top");
        assert_eq!(shown.top(), 101 - ROWS);
    }
}
