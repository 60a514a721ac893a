//! Lines and words: the shape of a scenario file, before any meaning.
//!
//! A word knows where it stands, so that a fault in it, or in a part of it, can be refused with the right
//! line and column.

use super::error::{ScenarioError, quoted};

/// The result of every reading step.
pub(super) type Read<T> = Result<T, ScenarioError>;

/// A scenario file, cut into lines.
pub(super) struct Source<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
}

/// A part of a line without white space, and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Word<'a> {
    source: &'a Source<'a>,
    pub(super) text: &'a str,
    pub(super) line: u32,
    column: u32,
}

/// The words of one line, taken from left to right.
pub(super) struct Cursor<'a> {
    words: Vec<Word<'a>>,
    next: usize,
    end: Word<'a>,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        // Some editors put a byte-order mark first; it is not part of a word.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { file, lines: text.lines().collect() }
    }

    /// The lines that say something, in order; each starts with a word.
    pub(super) fn lines(&'a self) -> impl Iterator<Item = (Word<'a>, Cursor<'a>)> {
        (1u32..).zip(&self.lines).filter_map(|(line, text)| {
            let mut cursor = self.cursor(line, text);
            let first = cursor.take()?;
            Some((first, cursor))
        })
    }

    /// The end of the file, as a place to refuse.
    pub(super) fn end(&'a self) -> Word<'a> {
        let text = self.lines.last().copied().unwrap_or("");
        self.word("", self.lines.len().max(1), text.chars().count() + 1)
    }

    /// Any place, as a word.
    pub(super) fn word(&'a self, text: &'a str, line: usize, column: usize) -> Word<'a> {
        let place = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Word { source: self, text, line: place(line), column: place(column) }
    }

    /// Cuts a line into words. `#` starts a comment only where a word could
    /// start, because `hog#1` is a word.
    fn cursor(&'a self, line: u32, text: &'a str) -> Cursor<'a> {
        let mut words = Vec::new();
        let mut open: Option<(usize, usize)> = None;
        let mut end_column = 1;
        let mut push = |from: usize, to: usize, column: usize| {
            words.push(self.word(&text[from..to], line as usize, column));
        };
        for (index, (at, c)) in text.char_indices().enumerate() {
            match open {
                None if c == '#' => break,
                None if !c.is_whitespace() => open = Some((at, index + 1)),
                Some((from, column)) if c.is_whitespace() => {
                    push(from, at, column);
                    open = None;
                }
                _ => {}
            }
            if !c.is_whitespace() {
                end_column = index + 2;
            }
        }
        if let Some((from, column)) = open {
            push(from, text.len(), column);
        }
        Cursor { words, next: 0, end: self.word("", line as usize, end_column) }
    }
}

impl<'a> Word<'a> {
    /// The error that this word is not what was expected.
    pub(super) fn refuse(self, expected: impl Into<String>) -> ScenarioError {
        let index = (self.line as usize).saturating_sub(1);
        ScenarioError {
            file: self.source.file.into(),
            line: self.line,
            column: self.column,
            found: quoted(self.text),
            expected: expected.into(),
            note: None,
            source: self.source.lines.get(index).copied().unwrap_or("").into(),
        }
    }

    /// The parts before and after the first `separator`.
    pub(super) fn split(self, separator: &str) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        let head = Self { text: &self.text[..at], ..self };
        Some((head, self.skip(at + separator.len())))
    }

    /// The part after `bytes` bytes, which must end at a character.
    pub(super) fn skip(self, bytes: usize) -> Self {
        let skipped = self.text[..bytes].chars().count();
        let column = self.column.saturating_add(u32::try_from(skipped).unwrap_or(u32::MAX));
        Self { text: &self.text[bytes..], column, ..self }
    }
}

impl<'a> Cursor<'a> {
    /// The next word, if there is one.
    pub(super) fn take(&mut self) -> Option<Word<'a>> {
        let word = self.words.get(self.next).copied()?;
        self.next += 1;
        Some(word)
    }

    /// The next word; at the end of the line, the error that names `expected`.
    pub(super) fn need(&mut self, expected: &str) -> Read<Word<'a>> {
        self.take().ok_or_else(|| self.end.refuse(expected).finding("end of line"))
    }

    /// The next word, left in place.
    pub(super) fn peek(&self) -> Option<Word<'a>> {
        self.words.get(self.next).copied()
    }

    /// Refuses any word that is left over.
    pub(super) fn finish(&mut self) -> Read<()> {
        self.take().map_or(Ok(()), |word| Err(word.refuse("end of line")))
    }

    /// The error that the line ends too early.
    pub(super) fn refuse_end(&self, expected: &str) -> ScenarioError {
        self.end.refuse(expected).finding("end of line")
    }
}
