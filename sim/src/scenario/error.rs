//! The one error of the scenario language: where, what was found, what was expected.

use std::fmt::{self, Write as _};

/// The most characters of a source line that a message shows.
const SHOWN_CHARS_MAX: usize = 120;
/// The most characters of a found word that a message repeats.
const FOUND_CHARS_MAX: usize = 40;

/// Why a scenario was refused. Its `Display` is the whole message, with the
/// source line and a caret below the place.
///
/// Lines and columns count from 1; columns count characters, not bytes. They
/// are `u32` so that the error stays small enough to return by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The file name that the caller gave.
    pub file: String,
    /// The line that was refused.
    pub line: u32,
    /// The column of the first character that was refused.
    pub column: u32,
    /// What stands there, as shown: a word in backquotes, or `end of line`.
    pub found: String,
    /// What would have been accepted.
    pub expected: String,
    /// A hint: a near name, or the other line of a conflict.
    pub note: Option<String>,
    /// The text of the refused line.
    pub source: Box<str>,
}

impl ScenarioError {
    /// Adds a hint.
    pub(super) fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Replaces what was found, where it is not simply the word at the place.
    pub(super) fn finding(mut self, found: impl Into<String>) -> Self {
        self.found = found.into();
        self
    }

    /// Adds the nearest of `names` as a hint, if one is near.
    pub(super) fn suggest<'n>(self, word: &str, names: impl IntoIterator<Item = &'n str>) -> Self {
        match nearest(word, names) {
            Some(name) => self.with_note(format!("did you mean `{name}`?")),
            None => self,
        }
    }

    /// How many characters the caret line marks: the found word, or one.
    fn marked_chars(&self) -> usize {
        let quoted = self.found.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        quoted.map_or(1, |word| word.chars().count()).max(1)
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, found, expected, .. } = self;
        writeln!(f, "{file}:{line}:{column}: found {found}, expected {expected}")?;

        // A very long line is shown as a window around the caret.
        let before = (*column as usize).saturating_sub(1);
        let skipped = if before < SHOWN_CHARS_MAX * 3 / 4 { 0 } else { before - SHOWN_CHARS_MAX / 2 };
        let shown: String = self.source.chars().skip(skipped).take(SHOWN_CHARS_MAX).map(printable).collect();
        let margin = " ".repeat(line.to_string().len());
        let indent = " ".repeat(before - skipped);
        let carets = "^".repeat(self.marked_chars());
        writeln!(f, " {margin} |")?;
        writeln!(f, " {line} | {}", shown.trim_end())?;
        write!(f, " {margin} | {indent}{carets}")?;
        if let Some(note) = &self.note {
            write!(f, "\n {margin} = note: {note}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ScenarioError {}

/// A word as messages repeat it: in backquotes, clipped, safe for a terminal.
pub(super) fn quoted(word: &str) -> String {
    if word.is_empty() {
        return "nothing".into();
    }
    let mut text = String::from("`");
    text.extend(word.chars().take(FOUND_CHARS_MAX).map(printable));
    if word.chars().nth(FOUND_CHARS_MAX).is_some() {
        text.push('…');
    }
    text.push('`');
    text
}

/// `one of `a`, `b``, for messages.
pub(super) fn one_of<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut text = String::from("one of");
    for (index, name) in names.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma} `{name}`");
    }
    text
}

/// One column for each character, and no escape sequence reaches a terminal.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// The name within a third of its length of `word`, nearest first.
fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // The distance is quadratic: nobody means a name by a word this long.
    if word.len() > super::limits::NAME_LEN_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let near = |name: &'n str| {
        let distance = edit_distance(&word, &name.to_lowercase());
        let allowed = (name.chars().count().max(word.chars().count()) / 3).max(1);
        (distance <= allowed && distance < name.chars().count()).then_some((distance, name))
    };
    names.into_iter().filter_map(near).min_by_key(|&(distance, _)| distance).map(|(_, name)| name)
}

/// How many letters to insert, remove, replace or swap with a neighbour to get
/// from one word to the other; three rows at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut two_above = above.clone();
    for i in 0..a.len() {
        let mut row = vec![i + 1; b.len() + 1];
        for j in 0..b.len() {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            row[j + 1] = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                row[j + 1] = row[j + 1].min(two_above[j - 1] + 1);
            }
        }
        two_above = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}
