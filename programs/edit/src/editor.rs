//! One line under a cursor.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use crate::{History, Key};

/// Longest line, in characters; what is typed beyond it is ignored, with a bell.
pub const LINE_MAX: usize = 200;
/// Columns of the terminal. A line that is longer is shown in part, never wrapped: wrapped lines cannot be drawn again by a VT100.
pub(crate) const COLUMNS: usize = 80;
/// Longest text that is searched for; what is typed beyond it rings the bell.
const QUERY_MAX: usize = 40;
/// Most words that a completion lists.
const LISTED_MAX: usize = 200;

/// What a key led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The line goes on.
    Editing,
    /// Enter: this is the line.
    Line(String),
    /// Enter, but the end of what was typed had no room: not what somebody meant.
    Cut,
    /// Ctrl-C: the line was given up.
    Interrupted,
    /// Ctrl-D on an empty line: no more input.
    EndOfInput,
}

/// A line that is being edited.
#[derive(Debug)]
pub struct Editor {
    prompt: String,
    text: Vec<char>,
    cursor: usize,
    /// How many steps back in the history the text is from; 0 is what was typed.
    age: usize,
    /// What was typed before going back.
    typed: Vec<char>,
    /// Characters were ignored, and nothing was done about it since.
    is_cut: bool,
    /// Ctrl-R was typed, and the search goes on: what is searched for.
    query: Option<String>,
}

impl Editor {
    /// An empty line after `prompt` (printable, one column a character).
    pub fn new(prompt: &str) -> Editor {
        let prompt = prompt.to_string();
        let (text, typed) = (Vec::new(), Vec::new());
        Editor { prompt, text, cursor: 0, age: 0, typed, is_cut: false, query: None }
    }

    /// Shows prompt and line; first thing to do for a new line.
    pub fn show(&self, out: &mut String) {
        let room = self.room();
        let first = self.first();
        let end = self.text.len().min(first + room);
        out.push('\r');
        out.push_str(&self.prompt());
        for (at, &c) in self.text.iter().enumerate().take(end).skip(first) {
            out.push(match at {
                at if at == first && first > 0 => '<',
                at if at + 1 == end && end < self.text.len() => '>',
                _ => shown(c),
            });
        }
        out.push_str("\x1b[K");
        let back = end - self.cursor;
        if back > 0 {
            // Writing to a string does not fail.
            let _ = write!(out, "\x1b[{back}D");
        }
    }

    /// What stands before the line: during a search, what is searched for.
    fn prompt(&self) -> Cow<'_, str> {
        match &self.query {
            None => Cow::Borrowed(&self.prompt),
            Some(query) => Cow::Owned(format!("(search `{query}') ")),
        }
    }

    /// Columns for the line; the last one of the terminal stays free for the cursor.
    fn room(&self) -> usize {
        COLUMNS.saturating_sub(1 + self.prompt().chars().count()).max(8)
    }

    /// The first character that is shown: as few half pages on as bring the cursor into view.
    fn first(&self) -> usize {
        let (room, step) = (self.room(), self.room() / 2);
        if self.text.len() <= room || self.cursor < room {
            return 0;
        }
        ((self.cursor - room) / step + 1) * step
    }

    /// Takes a key; `out` gets what brings the screen up to date. `candidates` completes: given the text up to the cursor, it returns
    /// every whole word that could stand for the last one.
    pub fn take(
        &mut self,
        key: Key,
        history: &History,
        candidates: &mut dyn FnMut(&str) -> Vec<String>,
        out: &mut String,
    ) -> Event {
        // Whoever edits the line afterwards has seen where it ends.
        self.is_cut &= matches!(key, Key::Enter | Key::Char(_) | Key::Unknown);
        if self.query.is_some() && self.search(key, history, out) {
            self.show(out);
            return Event::Editing;
        }
        match key {
            Key::Enter => return self.finish(out),
            Key::Ctrl('c') => {
                out.push_str("^C\r\n");
                self.clear();
                return Event::Interrupted;
            }
            Key::Ctrl('d') if self.text.is_empty() => {
                out.push_str("\r\n");
                return Event::EndOfInput;
            }
            Key::Unknown => return Event::Editing,
            Key::Tab => self.complete(candidates, out),
            Key::Ctrl('r') => {
                self.query = Some(String::new());
                if self.age == 0 {
                    self.typed.clone_from(&self.text);
                }
            }
            Key::Ctrl('l') => out.push_str("\x1b[2J\x1b[H"),
            Key::Up | Key::Ctrl('p') => self.recall(self.age + 1, history),
            Key::Down | Key::Ctrl('n') => self.recall(self.age.saturating_sub(1), history),
            Key::Char(_) if self.text.len() == LINE_MAX => {
                self.is_cut = true;
                out.push('\x07');
                return Event::Editing;
            }
            Key::Char(c) if self.cursor == self.text.len() && self.text.len() < self.room() => {
                // At the end of a line that fits, the character is all that changes.
                self.edit(key);
                out.push(shown(c));
                return Event::Editing;
            }
            _ => self.edit(key),
        }
        self.show(out);
        Event::Editing
    }

    fn finish(&mut self, out: &mut String) -> Event {
        self.cursor = self.text.len();
        self.show(out);
        out.push_str("\r\n");
        let event = if self.is_cut { Event::Cut } else { Event::Line(self.text.iter().collect()) };
        self.clear();
        event
    }

    fn clear(&mut self) {
        self.text.clear();
        self.typed.clear();
        (self.cursor, self.age, self.is_cut) = (0, 0, false);
    }

    /// Keys that change the line or the cursor and nothing else.
    fn edit(&mut self, key: Key) {
        let end = self.text.len();
        match key {
            Key::Char(c) if end < LINE_MAX => {
                self.text.insert(self.cursor, c);
                self.cursor += 1;
            }
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.text.remove(self.cursor);
            }
            Key::Delete | Key::Ctrl('d') if self.cursor < end => {
                self.text.remove(self.cursor);
            }
            Key::Left | Key::Ctrl('b') => self.cursor = self.cursor.saturating_sub(1),
            Key::Right | Key::Ctrl('f') => self.cursor = (self.cursor + 1).min(end),
            Key::Home | Key::Ctrl('a') => self.cursor = 0,
            Key::End | Key::Ctrl('e') => self.cursor = end,
            Key::Ctrl('k') => self.text.truncate(self.cursor),
            Key::Ctrl('u') => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            Key::Ctrl('w') => {
                let from = self.word_left();
                self.text.drain(from..self.cursor);
                self.cursor = from;
            }
            _ => {}
        }
    }

    /// Where the word to the left of the cursor begins.
    fn word_left(&self) -> usize {
        let left = &self.text[..self.cursor];
        let end = left.iter().rposition(|&c| c != ' ').map_or(0, |at| at + 1);
        left[..end].iter().rposition(|&c| c == ' ').map_or(0, |at| at + 1)
    }

    fn recall(&mut self, age: usize, history: &History) {
        if self.age == 0 {
            self.typed.clone_from(&self.text);
        }
        if age == 0 {
            self.text.clone_from(&self.typed);
        } else if let Some(line) = history.back(age) {
            self.text = line.chars().take(LINE_MAX).collect();
        } else {
            return;
        }
        self.age = age;
        self.cursor = self.text.len();
    }

    /// A key during a search. False if the key ends it: then the key does what it always does, to the line that was found.
    fn search(&mut self, key: Key, history: &History, out: &mut String) -> bool {
        let mut query = self.query.take().unwrap_or_default();
        let from = match key {
            Key::Ctrl('r') => self.age + 1,
            Key::Char(c) if query.chars().count() < QUERY_MAX && shown(c) == c => {
                query.push(c);
                self.age.max(1)
            }
            Key::Char(_) => {
                out.push('\x07');
                self.query = Some(query);
                return true;
            }
            Key::Backspace => {
                query.pop();
                1
            }
            Key::Ctrl('g') => {
                self.recall(0, history);
                return true;
            }
            _ => return false,
        };
        let mut ages = from..=history.len();
        match ages.find(|age| history.back(*age).is_some_and(|line| line.contains(&query))) {
            Some(age) if !query.is_empty() => self.recall(age, history),
            _ => out.push('\x07'),
        }
        self.query = Some(query);
        true
    }

    /// Puts in what all candidates have in common; if that is nothing new, lists them.
    fn complete(&mut self, candidates: &mut dyn FnMut(&str) -> Vec<String>, out: &mut String) {
        let left: String = self.text[..self.cursor].iter().collect();
        let typed = left.rsplit(' ').next().unwrap_or("").chars().count();
        let found = candidates(&left);
        let Some(first) = found.first() else { return };
        let common = found.iter().fold(first.as_str(), |common, word| {
            let len = common.char_indices().zip(word.chars()).take_while(|((_, a), b)| a == b).count();
            let end = common.char_indices().nth(len).map_or(common.len(), |(at, _)| at);
            &common[..end]
        });
        let mut new: Vec<char> = common.chars().skip(typed).collect();
        if found.len() == 1 {
            new.push(' ');
        }
        if !new.is_empty() {
            for c in new {
                self.edit(Key::Char(c));
            }
        } else if found.len() > 1 {
            list(&found, out);
        }
    }
}

/// Shows words, as many in a line as fit.
fn list(words: &[String], out: &mut String) {
    let mut column = 0;
    for word in words.iter().take(LISTED_MAX) {
        let wide = word.chars().count();
        if column > 0 && column + 2 + wide < COLUMNS {
            out.push_str("  ");
            column += 2 + wide;
        } else {
            out.push_str("\r\n");
            column = wide;
        }
        out.push_str(word);
    }
    if words.len() > LISTED_MAX {
        // Writing to a string does not fail.
        let _ = write!(out, "\r\nand {} more", words.len() - LISTED_MAX);
    }
    out.push_str("\r\n");
}

/// What stands for `c` on the screen: characters that take no column or two would move everything after them.
fn shown(c: char) -> char {
    match u32::from(c) {
        0x300..=0x36f | 0x1100..=0x115f | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x2064 => '?',
        0x20d0..=0x20ff | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xd800..=0xfaff | 0xfe00..=0xfe6f => '?',
        0xfeff..=0xff60 | 0xffe0..=0xffe6 => '?',
        0x10000.. => '?',
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Keys;
    use crate::screen::Screen;

    struct Terminal {
        keys: Keys,
        editor: Editor,
        history: History,
        screen: Screen,
        events: Vec<Event>,
    }

    const WORDS: [&str; 5] = ["help", "history", "ps", "poweroff", "run"];

    impl Terminal {
        fn new() -> Terminal {
            let editor = Editor::new("> ");
            let mut screen = Screen::new();
            let mut out = String::new();
            editor.show(&mut out);
            screen.take(&out);
            Terminal { keys: Keys::new(), editor, history: History::new(10), screen, events: Vec::new() }
        }

        /// Types, as a terminal would send it, and returns the screen's last line with `|` at the cursor.
        fn types(&mut self, text: &str) -> String {
            for byte in text.bytes() {
                let Some(key) = self.keys.take(byte) else { continue };
                let mut out = String::new();
                let mut complete = |left: &str| -> Vec<String> {
                    let word = left.rsplit(' ').next().unwrap();
                    WORDS
                        .iter()
                        .filter(|known| known.starts_with(word))
                        .map(|known| known.to_string())
                        .collect()
                };
                let event = self.editor.take(key, &self.history, &mut complete, &mut out);
                if let Event::Line(line) = &event {
                    self.history.add(line);
                }
                if event != Event::Editing {
                    self.events.push(event);
                    self.editor.show(&mut out);
                }
                self.screen.take(&out);
            }
            self.screen.line_with_cursor()
        }
    }

    #[test]
    fn the_line_is_edited_where_the_cursor_is() {
        let mut terminal = Terminal::new();
        assert_eq!(terminal.types("helo\x1b[Dl"), "> hell|o");
        assert_eq!(terminal.types("\x01X\x05Y"), "> XhelloY|");
        assert_eq!(terminal.types("\x7f\x1b[H\x1b[3~"), "> |hello");
        assert_eq!(terminal.types("\x05 two words\x17"), "> hello two |");
        assert_eq!(terminal.types("\x1b[D\x1b[D\x0b"), "> hello tw|");
        assert_eq!(terminal.types("\x1b[D\x15"), "> |w");
        terminal.types("\r");
        assert_eq!(terminal.events, [Event::Line("w".into())]);
    }

    #[test]
    fn history_goes_back_and_returns_to_what_was_typed() {
        let mut terminal = Terminal::new();
        terminal.types("one\rtwo\rthr");
        assert_eq!(terminal.types("\x1b[A"), "> two|");
        assert_eq!(terminal.types("\x1b[A\x1b[A\x1b[A"), "> one|", "stops at the oldest");
        assert_eq!(terminal.types("\x1b[B\x1b[B"), "> thr|");
        terminal.types("\x1b[A!\r");
        assert_eq!(terminal.events.last(), Some(&Event::Line("two!".into())));
    }

    #[test]
    fn a_search_finds_the_newest_line_then_older_ones() {
        let mut terminal = Terminal::new();
        terminal.types("run spin\rps -t\rrun budget\r");
        assert_eq!(terminal.types("half\x12"), "(search `') half|");
        assert_eq!(terminal.types("ru"), "(search `ru') run budget|");
        assert_eq!(terminal.types("\x12"), "(search `ru') run spin|", "Ctrl-R again: an older one");
        let bells = terminal.screen.bells;
        assert_eq!(terminal.types("\x12"), "(search `ru') run spin|", "there is none older");
        assert_eq!(terminal.types("zz"), "(search `ruzz') run spin|", "nor one with this");
        assert_eq!(terminal.screen.bells, bells + 3);
        assert_eq!(terminal.types("\x7f\x7f"), "(search `ru') run budget|", "from the newest again");
        assert_eq!(terminal.types("\x07"), "> half|", "Ctrl-G gives the search up");
        assert_eq!(terminal.types("\x12spin\x1b[D!"), "> run spi!|n", "another key takes the line");
        terminal.types("\r\x12-t\r");
        let lines: Vec<_> = terminal.events.iter().rev().take(2).collect();
        assert_eq!(lines, [&Event::Line("ps -t".into()), &Event::Line("run spi!n".into())]);
        terminal.types("\x12ps\x03");
        assert_eq!(terminal.events.last(), Some(&Event::Interrupted));
        assert_eq!(terminal.types("x"), "> x|", "the search is over");
    }

    #[test]
    fn a_search_has_room() {
        let mut terminal = Terminal::new();
        terminal.types(&"a".repeat(LINE_MAX));
        terminal.types("\r\x12");
        // The screen panics if anything goes beyond its 80 columns.
        terminal.types(&"a".repeat(QUERY_MAX + 5));
        assert!(terminal.screen.bells >= 5, "the query has an end");
        terminal.types("\u{6f22}\r");
        assert_eq!(terminal.events.last(), Some(&Event::Line("a".repeat(LINE_MAX))));
    }

    #[test]
    fn tab_completes_and_lists() {
        let mut terminal = Terminal::new();
        assert_eq!(terminal.types("r\t"), "> run |");
        assert_eq!(terminal.types("h\t"), "> run h|");
        assert!(terminal.screen.text().contains("help  history"), "{}", terminal.screen.text());
        assert_eq!(terminal.types("e\t"), "> run help |");
        assert_eq!(terminal.types("x\t"), "> run help x|", "nothing fits");
    }

    #[test]
    fn control_keys() {
        let mut terminal = Terminal::new();
        terminal.types("abc\x03\x04");
        assert_eq!(terminal.events, [Event::Interrupted, Event::EndOfInput]);
        assert_eq!(terminal.types("ab\x0c"), "> ab|");
        assert_eq!(terminal.screen.text(), "> ab", "the rest was cleared");
        assert_eq!(terminal.types("\x01\x04"), "> |b", "Ctrl-D deletes when there is something");
    }

    #[test]
    fn a_long_line_is_shown_in_part() {
        let mut terminal = Terminal::new();
        let text: String = (0..150).map(|n| char::from(b'a' + n % 26)).collect();
        // The screen panics if anything goes beyond its 80 columns.
        let shown = terminal.types(&text);
        assert!(shown.starts_with("> <") && shown.ends_with("qrst|"), "{shown}");
        let shown = terminal.types("\x1b[H");
        assert!(shown.starts_with("> |abcd") && shown.ends_with('>'), "{shown}");
        let shown = terminal.types("\x05\x1b[DX");
        assert!(shown.ends_with("qrsX|t"), "{shown}");
        for _ in 0..160 {
            terminal.types("\x1b[D");
        }
        terminal.types("\r");
        let expected = format!("{}X{}", &text[..149], &text[149..]);
        assert_eq!(terminal.events, [Event::Line(expected)]);
    }

    #[test]
    fn what_has_no_column_of_its_own_is_shown_as_one() {
        let mut terminal = Terminal::new();
        assert_eq!(terminal.types("a\u{301}ä漢😀"), "> a?ä??|");
        terminal.types("\r");
        assert_eq!(terminal.events, [Event::Line("a\u{301}ä漢😀".into())]);
    }

    #[test]
    fn many_candidates_are_listed_in_lines() {
        let words: Vec<String> = (0..250).map(|n| format!("program-{n:03}")).collect();
        let mut out = String::new();
        list(&words, &mut out);
        assert!(out.lines().all(|line| line.len() < COLUMNS), "{out}");
        assert!(out.ends_with("program-199\r\nand 50 more\r\n"), "{out}");
    }

    #[test]
    fn a_line_has_an_end() {
        let mut terminal = Terminal::new();
        terminal.types(&"x".repeat(LINE_MAX));
        assert_eq!(terminal.screen.bells, 0);
        terminal.types(&"x".repeat(50));
        assert_eq!(terminal.screen.bells, 50);
        // A line without its end may mean something else: it is not taken. Unless somebody has looked at it.
        terminal.types("\r");
        assert_eq!(terminal.events, [Event::Cut]);
        terminal.types(&"y".repeat(LINE_MAX + 1));
        terminal.types("\x7fz\r");
        assert_eq!(terminal.events[1..], [Event::Line("y".repeat(LINE_MAX - 1) + "z")]);
        terminal.types(&"x".repeat(LINE_MAX));
        terminal.types("\r");
        assert_eq!(terminal.events[2..], [Event::Line("x".repeat(LINE_MAX))]);
    }
}
