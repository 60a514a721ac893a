//! Drives a machine's terminal as a person would, by a script: what to type, what to wait for.
//!
//! ```text
//! boot default 4            # the manifest, and the number of CPUs; `icount 4` behind it counts instructions, 2^4 ns each, instead of time
//! within 20                 # seconds that each step from here on may take
//! see operator>             # waits for this text, and goes on behind it
//! type hepl<Left><Left>     # types keys: <Up> <C-a> <Tab> <Enter> ...
//! row operator> he|pl       # waits until the row with the cursor is this; | is the cursor
//! enter help                # types a line and Enter; what follows is looked for behind its echo
//! never panic               # must not come before what the next `see` finds
//! colour yellow throttled   # waits until this text is on the screen in this colour: plain red green yellow
//! picture top up .. >       # draws the last row that begins with `up` and those below it, until one begins with `>`, as the picture `top`
//! columns 79                # from here on, no answer to a line has longer lines; 0 is no limit
//! off 0                     # waits for the machine to power off with this status
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use crate::patience::Patience;
use crate::qemu::{Event, Guest, Keys, Outcome};
use crate::screen::{Colour, Screen};
use crate::{Problem, picture};

/// Time limit of a step until a script says otherwise.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// How much of the output is shown again when a step fails.
const SHOWN_LINES: usize = 20;

/// Keys by name.
const KEYS: [(&str, &[u8]); 13] = [
    ("Up", b"\x1b[A"),
    ("Down", b"\x1b[B"),
    ("Right", b"\x1b[C"),
    ("Left", b"\x1b[D"),
    ("Home", b"\x1b[H"),
    ("End", b"\x1b[F"),
    ("Delete", b"\x1b[3~"),
    ("Backspace", b"\x7f"),
    ("Tab", b"\t"),
    ("Enter", b"\r"),
    ("Esc", b"\x1b"),
    ("Space", b" "),
    ("lt", b"<"),
];

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Within(Duration),
    Type(Vec<u8>),
    Enter(Vec<u8>),
    See(String),
    Never(String),
    Columns(usize),
    Colour(Colour, String),
    Picture(String, [String; 2]),
    Row(String, Option<usize>),
    Off(u8),
}

/// A script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The manifest that is booted.
    pub manifest: String,
    /// CPUs.
    pub cpus: u32,
    /// Count instructions instead of time, 2 to this power ns each.
    pub icount: Option<u8>,
    name: String,
    /// Each step with its line, counted from 1.
    steps: Vec<(usize, Step)>,
}

impl Script {
    /// Reads a script; `name` is its file, for messages.
    ///
    /// # Errors
    /// With the line that is wrong.
    pub fn parse(name: &str, text: &str) -> Result<Script, Problem> {
        let mut script = Script {
            manifest: String::new(),
            cpus: 0,
            icount: None,
            name: name.to_owned(),
            steps: Vec::new(),
        };
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let added = match word {
                "boot" => script.boot(rest),
                _ if script.cpus == 0 => Err("the first line is `boot MANIFEST CPUS`".to_owned()),
                _ => step(word, rest).map(|step| script.steps.push((at + 1, step))),
            };
            added.map_err(|why| Problem(format!("{name}:{}: {why}", at + 1)))?;
        }
        if script.steps.is_empty() {
            return Err(Problem(format!("{name}: the script has no steps; write some, or take it away")));
        }
        Ok(script)
    }

    fn boot(&mut self, rest: &str) -> Result<(), String> {
        let usage = "`boot` takes a manifest and a number of CPUs, and `icount` and a number: boot default 4 icount 4";
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (manifest, cpus, shift) = match words.as_slice() {
            [manifest, cpus] => (manifest, cpus, None),
            [manifest, cpus, "icount", shift] => (manifest, cpus, Some(*shift)),
            _ => return Err(usage.to_owned()),
        };
        self.manifest = (*manifest).to_owned();
        self.cpus = cpus.parse().ok().filter(|cpus| (1..=255).contains(cpus)).ok_or(usage)?;
        let shift = shift.map(|shift| shift.parse().ok().filter(|shift| *shift <= 10).ok_or(usage));
        self.icount = shift.transpose()?;
        Ok(())
    }

    /// How many steps it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has none; a script that was read has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Plays it.
    ///
    /// # Errors
    /// At the first step that fails: which one, and what the machine printed instead.
    pub fn play(&self, guest: &mut Guest) -> Result<Played, Problem> {
        let mut talk = Talk::new(guest);
        for (line, step) in &self.steps {
            talk.step(step).map_err(|why| {
                let said = talk.recent();
                let log = talk.guest.log_path.display();
                Problem(format!("{}:{line}: {why}\n{said}    the whole log: {log}", self.name))
            })?;
        }
        Ok(Played { pictures: talk.pictures, text: talk.screen.text().to_owned() })
    }
}

/// The result of a script.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Names of pictures, and the pictures as SVG.
    pub pictures: Vec<(String, String)>,
    /// All output of the machine.
    pub text: String,
}

fn step(word: &str, rest: &str) -> Result<Step, String> {
    Ok(match word {
        "within" => {
            let seconds = rest.parse().ok().filter(|seconds| (1..=600).contains(seconds));
            Step::Within(Duration::from_secs(seconds.ok_or("`within` takes seconds: within 10")?))
        }
        "type" => Step::Type(keys(rest)?),
        "enter" => {
            let mut bytes = keys(rest)?;
            bytes.push(b'\r');
            Step::Enter(bytes)
        }
        "see" if !rest.is_empty() => Step::See(rest.replace("\\n", "\n")),
        "never" if !rest.is_empty() => Step::Never(rest.replace("\\n", "\n")),
        "row" => {
            let cursor = rest.find('|').map(|at| rest[..at].chars().count());
            Step::Row(rest.replacen('|', "", 1).trim_end().to_owned(), cursor)
        }
        "colour" => {
            let usage = "`colour` takes plain, red, green or yellow and a text: colour red FAILED";
            let (colour, text) = rest.split_once(' ').ok_or(usage)?;
            Step::Colour(Colour::named(colour).ok_or(usage)?, text.to_owned())
        }
        "picture" => {
            let usage = "`picture` takes a name, and how its first row and the row below it begin: picture top up .. >";
            let (name, rows) = rest.split_once(' ').ok_or(usage)?;
            let (first, below) = rows.split_once(" .. ").ok_or(usage)?;
            Step::Picture(name.to_owned(), [first.to_owned(), below.to_owned()])
        }
        "columns" => Step::Columns(rest.parse().map_err(|_| "`columns` takes a number: columns 79")?),
        "off" => Step::Off(rest.parse().map_err(|_| "`off` takes a status: off 0")?),
        "see" | "never" => return Err(format!("`{word}` takes a text")),
        _ => {
            return Err(format!(
                "no step `{word}`; there are: within type enter see never colour picture columns row off"
            ));
        }
    })
}

/// The bytes of keys: text, and names in angle brackets.
fn keys(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, after)) = rest.split_once('<') {
        bytes.extend_from_slice(plain.as_bytes());
        let (name, next) = after.split_once('>').ok_or("`<` begins the name of a key: <Up>, <C-a>, <lt>")?;
        if let Some((_, key)) = KEYS.iter().find(|(known, _)| *known == name) {
            bytes.extend_from_slice(key);
        } else if let Some(&[letter @ b'a'..=b'z']) = name.strip_prefix("C-").map(str::as_bytes) {
            bytes.push(letter - b'a' + 1);
        } else if let Some(byte) = name.strip_prefix('x').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            bytes.push(byte);
        } else {
            let known: Vec<&str> = KEYS.iter().map(|(known, _)| *known).collect();
            return Err(format!(
                "no key <{name}>; there are <C-a> to <C-z>, <x00> to <xff> and {}",
                known.join(" ")
            ));
        }
        rest = next;
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

/// A conversation with a machine.
struct Talk<'a> {
    guest: &'a mut Guest,
    keys: Keys,
    screen: Screen,
    /// How much of the text has been dealt with.
    at: usize,
    never: Vec<String>,
    /// The most columns of a line; 0 is no limit.
    columns: usize,
    /// Where the answer to the last line begins.
    answer: usize,
    limit: Duration,
    end: Option<Outcome>,
    pictures: Vec<(String, String)>,
}

impl Talk<'_> {
    fn new(guest: &mut Guest) -> Talk<'_> {
        let keys = guest.keys();
        let (screen, never, pictures) = (Screen::default(), Vec::new(), Vec::new());
        let (limit, end) = (STEP_LIMIT, None);
        Talk { guest, keys, screen, at: 0, never, columns: 0, answer: 0, limit, end, pictures }
    }

    /// Listens until `done` finds what it looks for, the machine ends, or the time is over.
    fn listen<T>(&mut self, mut done: impl FnMut(&Talk<'_>) -> Option<T>) -> Option<T> {
        let patience = Patience::new(self.limit, self.guest.starved());
        let mut deadline = Instant::now() + self.limit;
        loop {
            let found = done(self);
            if found.is_some() || self.end.is_some() {
                return found;
            }
            match self.guest.next(Some(deadline)) {
                Event::Said(bytes) => self.screen.take(&bytes),
                Event::Ended(outcome) => self.end = Some(outcome),
                Event::TimeUp if patience.end(self.guest.starved()) > Instant::now() => {
                    deadline = patience.end(self.guest.starved());
                }
                Event::TimeUp | Event::Quit | Event::Signal(_) => return None,
            }
        }
    }

    fn new_text(&self) -> &str {
        &self.screen.text()[self.at..]
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Within(limit) => self.limit = *limit,
            Step::Type(bytes) => self.keys.send(bytes),
            Step::Enter(bytes) => {
                let from = self.screen.text().len();
                self.keys.send(bytes);
                let echoed = self.listen(|talk| talk.screen.text()[from..].find('\n'));
                self.at = from + echoed.ok_or_else(|| self.why("the line was never echoed"))? + 1;
                self.answer = self.at;
            }
            Step::See(text) => self.see(text)?,
            Step::Never(text) => self.never.push(text.clone()),
            Step::Columns(columns) => self.columns = *columns,
            Step::Row(text, cursor) => {
                let is_so = |talk: &Talk<'_>| {
                    let (row, column) = (talk.screen.row(), talk.screen.column());
                    (row == *text && cursor.is_none_or(|cursor| cursor == column)).then_some(())
                };
                if self.listen(is_so).is_none() {
                    let (row, column) = (self.screen.row(), self.screen.column());
                    let wanted = with_cursor(text, *cursor);
                    let is = with_cursor(&row, cursor.map(|_| column));
                    return Err(self.why(&format!("the row is `{is}`, not `{wanted}`")));
                }
                self.at = self.screen.text().len();
                self.check_columns()?;
            }
            Step::Colour(colour, text) => {
                let is_so = |talk: &Talk<'_>| talk.screen.has(text, *colour).then_some(());
                if self.listen(is_so).is_none() {
                    return Err(self.why(&format!("`{text}` was never {colour:?}")));
                }
            }
            Step::Picture(name, [first, below]) => match self.screen.rows_between(first, below) {
                [] => return Err(format!("no row begins with `{first}`")),
                rows => self.pictures.push((name.clone(), picture::svg(rows))),
            },
            Step::Off(status) => {
                self.listen(|_| None::<()>);
                match &self.end {
                    Some(Outcome::Off(found)) if found == status => {}
                    Some(outcome) => return Err(format!("the machine {outcome}, not with {status}")),
                    None => return Err(self.why("the machine goes on")),
                }
            }
        }
        Ok(())
    }

    fn see(&mut self, text: &str) -> Result<(), String> {
        let found = self.listen(|talk| talk.new_text().find(text));
        let Some(found) = found else {
            return Err(self.why(&format!("never saw `{}`", text.escape_debug())));
        };
        let before = &self.new_text()[..found];
        if let Some(text) = self.never.iter().find(|text| before.contains(text.as_str())) {
            return Err(format!("saw `{}`, which must not come", text.escape_debug()));
        }
        self.never.clear();
        self.at += found + text.len();
        Ok(())
    }

    /// Whether no complete line of the last answer is too long.
    fn check_columns(&mut self) -> Result<(), String> {
        let answer = &self.screen.text()[self.answer..self.at];
        let whole = answer.rfind('\n').map_or("", |end| &answer[..end]);
        let too_long = whole.lines().find(|line| self.columns > 0 && line.chars().count() > self.columns);
        if let Some(line) = too_long {
            return Err(format!("a line of {} columns: `{line}`", line.chars().count()));
        }
        self.answer = self.at;
        Ok(())
    }

    fn why(&self, what: &str) -> String {
        match &self.end {
            Some(outcome) => format!("{what}, and the machine {outcome}"),
            None => format!("{what} within {} s", self.limit.as_secs()),
        }
    }

    /// The last lines of the machine's output, indented.
    fn recent(&self) -> String {
        let lines: Vec<&str> = self.screen.text().lines().collect();
        let first = lines.len().saturating_sub(SHOWN_LINES);
        lines[first..].iter().map(|line| format!("    | {line}\n")).collect()
    }
}

fn with_cursor(row: &str, cursor: Option<usize>) -> String {
    let Some(cursor) = cursor else { return row.to_owned() };
    let mut characters: Vec<char> = row.chars().collect();
    characters.resize(characters.len().max(cursor), ' ');
    characters.insert(cursor, '|');
    characters.into_iter().collect()
}

/// The scripts in `folder`, sorted.
///
/// # Errors
/// When the folder cannot be read.
pub fn all(folder: &Path) -> Result<Vec<std::path::PathBuf>, Problem> {
    let entries = std::fs::read_dir(folder).map_err(|error| crate::place::cannot("read", folder, &error))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|end| end == "txt")).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names() {
        assert_eq!(keys("a<Up><C-a>b<lt>c<xff>").unwrap(), b"a\x1b[A\x01b<c\xff");
        assert!(keys("<Nope>").unwrap_err().contains("no key <Nope>"));
        assert!(keys("a<b").is_err());
    }

    #[test]
    fn a_script_is_read() {
        let text = "# a comment\nboot default 4\nwithin 5\nrow > he|lp\nsee a\\nb\noff 0\n";
        let script = Script::parse("x.txt", text).unwrap();
        assert_eq!((script.manifest.as_str(), script.cpus, script.len()), ("default", 4, 4));
        assert_eq!(script.icount, None);
        assert_eq!(Script::parse("x.txt", "boot a 1 icount 4\nsee x\n").unwrap().icount, Some(4));
        assert_eq!(script.steps[1], (4, Step::Row("> help".to_owned(), Some(4))));
        assert_eq!(script.steps[2], (5, Step::See("a\nb".to_owned())));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, why) in [
            ("see x\n", "x.txt:1: the first line is `boot"),
            ("boot default\n", "x.txt:1: `boot` takes"),
            ("boot default 0\n", "x.txt:1: `boot` takes"),
            ("boot default 1 icount 11\n", "x.txt:1: `boot` takes"),
            ("boot a 1\nlook x\n", "x.txt:2: no step `look`"),
            ("boot a 1\nsee\n", "x.txt:2: `see` takes a text"),
            ("boot a 1\ncolour blue x\n", "x.txt:2: `colour` takes"),
            ("boot a 1\npicture top\n", "x.txt:2: `picture` takes"),
            ("boot a 1\nwithin x\n", "x.txt:2: `within` takes seconds"),
            ("boot a 1\n", "no steps"),
        ] {
            let problem = Script::parse("x.txt", text).unwrap_err().to_string();
            assert!(problem.contains(why), "{text}: {problem}");
        }
    }

    #[test]
    fn the_cursor_is_shown() {
        assert_eq!(with_cursor("> ab", Some(3)), "> a|b");
        assert_eq!(with_cursor("", Some(2)), "  |");
    }
}
