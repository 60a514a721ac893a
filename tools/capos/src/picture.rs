//! A terminal's screen as a picture for the docs, drawn from a machine's output.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::screen::{Cell, Colour, text_of};

/// Size of a character and of the margin, in the picture's own units.
const WIDE: f64 = 7.83;
const HIGH: f64 = 17.0;
const MARGIN: f64 = 14.0;
/// The narrowest picture, in characters.
const COLUMNS_MIN: usize = 80;
/// Shorter words say nothing about which version a text is from.
const WORD_MIN: usize = 4;

/// The rows of a screen as SVG. Each row is one text, so that the picture can be searched and read aloud.
#[must_use]
pub fn svg(rows: &[Vec<Cell>]) -> String {
    // Empty rows at the end are no part of the picture.
    let end = rows.iter().rposition(|row| !text_of(row).is_empty()).map_or(0, |last| last + 1);
    let rows = &rows[..end];
    let columns = rows.iter().map(|row| text_of(row).chars().count()).fold(COLUMNS_MIN, usize::max);
    let (width, height) = (columns as f64 * WIDE + 2.0 * MARGIN, rows.len() as f64 * HIGH + 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\">\n\
         <style>text {{ font: 13px 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #d8dee9; white-space: pre }}\n\
         .red {{ fill: #ff6b6b; font-weight: bold }} .green {{ fill: #8fd18f }} .yellow {{ fill: #e8c15a }}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1d2129\"/>\n"
    );
    for (at, row) in rows.iter().enumerate() {
        let y = MARGIN + HIGH * (at as f64 + 0.75);
        // Writing to a string does not fail.
        let _ =
            writeln!(out, "<text x=\"{MARGIN}\" y=\"{y:.1}\" xml:space=\"preserve\">{}</text>", spans(row));
    }
    out.push_str("</svg>\n");
    out
}

/// A row as text with its colours.
fn spans(row: &[Cell]) -> String {
    let length = text_of(row).chars().count();
    let mut out = String::new();
    for part in row[..length].chunk_by(|a, b| a.colour == b.colour) {
        let text = escaped(&part.iter().map(|cell| cell.character).collect::<String>());
        let class = match part[0].colour {
            Colour::Plain => {
                out.push_str(&text);
                continue;
            }
            Colour::Red => "red",
            Colour::Green => "green",
            Colour::Yellow => "yellow",
        };
        let _ = write!(out, "<tspan class=\"{class}\">{text}</tspan>");
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The texts of a picture that [`svg`] drew.
fn texts(svg: &str) -> String {
    let mut out = String::new();
    let mut is_tag = false;
    for line in svg.lines().filter(|line| line.starts_with("<text")) {
        for character in line.chars() {
            match character {
                '<' => is_tag = true,
                '>' => is_tag = false,
                _ if !is_tag => out.push(character),
                _ => {}
            }
        }
        out.push('\n');
    }
    out.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// A word of the picture that does not occur in `said`, which means that the picture shows another version. Numbers are ignored,
/// because they differ from run to run.
#[must_use]
pub fn stale_word(svg: &str, said: &str) -> Option<String> {
    let known: BTreeSet<&str> = words(said).collect();
    let text = texts(svg);
    if text.trim().is_empty() {
        return Some("nothing".to_owned());
    }
    words(&text).find(|word| !known.contains(word)).map(str::to_owned)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() >= WORD_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Screen;

    fn drawn(text: &str) -> String {
        let mut screen = Screen::default();
        screen.take(text.as_bytes());
        svg(screen.rows_between("top", ">"))
    }

    #[test]
    fn a_screen_becomes_text_with_colours() {
        let svg = drawn("before\r\ntop of <it> & all\r\n  \x1b[33mthrottled\x1b[0m 20 %\r\n\r\n");
        assert_eq!(texts(&svg), "top of <it> & all\n  throttled 20 %\n");
        assert!(svg.contains("<tspan class=\"yellow\">throttled</tspan> 20 %"), "{svg}");
        assert!(svg.contains("&lt;it&gt; &amp; all") && !svg.contains("before"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_picture_that_says_something_else_is_stale() {
        let svg = drawn("top threads: 12 running\r\n");
        assert_eq!(stale_word(&svg, "top threads: 99 running\n"), None, "numbers may differ");
        assert_eq!(stale_word(&svg, "top tasks: 12 running"), Some("threads".to_owned()));
        assert_eq!(stale_word("<svg/>", "top"), Some("nothing".to_owned()));
    }
}
