//! For tests: what a VT100 shows.

/// A terminal of 80 columns and unlimited height that panics at a character beyond them. It knows the sequences which the editor uses, and panics at others too.
pub(crate) struct Screen {
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// How often it rang.
    pub(crate) bells: usize,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        Screen { lines: vec![Vec::new()], row: 0, column: 0, bells: 0 }
    }

    pub(crate) fn take(&mut self, text: &str) {
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '\r' => self.column = 0,
                '\x07' => self.bells += 1,
                '\n' => {
                    self.row += 1;
                    self.lines.resize(self.lines.len().max(self.row + 1), Vec::new());
                }
                '\x1b' => {
                    assert_eq!(chars.next(), Some('['), "only CSI sequences");
                    let rest: String = chars.by_ref().take_while_inclusive().collect();
                    self.sequence(&rest);
                }
                _ => {
                    assert!(self.column < crate::editor::COLUMNS - 1, "the last column is left free");
                    let line = &mut self.lines[self.row];
                    line.resize(line.len().max(self.column + 1), ' ');
                    line[self.column] = c;
                    self.column += 1;
                }
            }
        }
    }

    fn sequence(&mut self, text: &str) {
        match text {
            "K" => self.lines[self.row].truncate(self.column),
            "2J" => self.lines.iter_mut().for_each(Vec::clear),
            "H" => {
                (self.row, self.column) = (0, 0);
                self.lines.truncate(1);
            }
            _ => {
                let count: usize =
                    text.strip_suffix('D').and_then(|n| n.parse().ok()).expect("a known sequence");
                self.column = self.column.checked_sub(count).expect("not beyond the left edge");
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        let lines: Vec<String> = self.lines.iter().map(|line| line.iter().collect()).collect();
        lines.join("\n")
    }

    pub(crate) fn line_with_cursor(&self) -> String {
        let mut line = self.lines[self.row].clone();
        line.insert(self.column, '|');
        line.iter().collect()
    }
}

/// Up to the letter that ends a sequence.
trait TakeWhileInclusive: Iterator<Item = char> + Sized {
    fn take_while_inclusive(self) -> impl Iterator<Item = char>;
}

impl<I: Iterator<Item = char>> TakeWhileInclusive for I {
    fn take_while_inclusive(mut self) -> impl Iterator<Item = char> {
        let mut is_over = false;
        core::iter::from_fn(move || {
            let c = (!is_over).then(|| self.next()).flatten()?;
            is_over = c.is_ascii_alphabetic();
            Some(c)
        })
    }
}
