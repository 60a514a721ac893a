//! Pictures as SVG, written by hand: what they share (palette, axes, legend, text).
//!
//! Every picture is a white card with its own colours, so that it reads the same on a light
//! page, on a dark page and on paper. All text goes through one escape.

mod chart;
mod timeline;

pub use chart::{BarChart, LineChart, Series};
pub use timeline::{Window, timeline};

use super::escape;
use super::units::{Count, Human};
use std::fmt::{self, Write as _};

/// Colours that stay apart for colour-blind readers (Okabe and Ito, then Tol's muted set).
pub const PALETTE: [&str; 12] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#882255", "#f0e442", "#44aa99",
    "#332288", "#999933", "#aa4499",
];
/// Time in the scheduler itself.
pub const SYSTEM_COLOUR: &str = "#6b7280";
const IDLE: &str = "#f1f3f5";
const INK: &str = "#1f2933";
const FAINT: &str = "#616e7c";
const GRID: &str = "#e4e7eb";
const FONT: &str = "font-family=\"system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif\"";

/// The colour of the `index`th thread or series.
#[must_use]
pub fn colour(index: usize) -> &'static str {
    PALETTE[index % PALETTE.len()]
}

/// Black or white, whichever reads better on this `#rrggbb`.
fn ink_on(colour: &str) -> &'static str {
    let part = |at: usize| {
        let digits = colour.get(at..at + 2).unwrap_or("ff");
        f64::from(u8::from_str_radix(digits, 16).unwrap_or(255))
    };
    let luma = 0.299 * part(1) + 0.587 * part(3) + 0.114 * part(5);
    if luma > 140.0 { INK } else { "#ffffff" }
}

/// What the numbers of an axis are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    #[default]
    Plain,
    /// A share, shown as a percentage.
    Share,
    /// Nanoseconds, shown with a fitting unit.
    Time,
}

impl Unit {
    fn show(self, value: f64, step: f64) -> String {
        let decimals = |step: f64| (-step.log10().floor()).clamp(0.0, 6.0) as usize;
        match self {
            Self::Share => format!("{:.*}%", decimals(step * 100.0), value * 100.0),
            Self::Time => Human(value.max(0.0) as u64).to_string(),
            Self::Plain if step >= 1.0 && value >= 0.0 => Count(value as u64).to_string(),
            Self::Plain => format!("{value:.*}", decimals(step)),
        }
    }
}

/// Round steps (1, 2 or 5 times a power of ten) from 0 to `max`, about `wanted` of them.
fn round_step(max: f64, wanted: f64) -> f64 {
    let raw = max / wanted;
    if !raw.is_finite() || raw <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(raw.log10().floor());
    let factor = match raw / power {
        f if f <= 1.5 => 1.0,
        f if f <= 3.5 => 2.0,
        f if f <= 7.5 => 5.0,
        _ => 10.0,
    };
    factor * power
}

/// Where a text is anchored.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy)]
struct Font {
    size: f64,
    bold: bool,
    fill: &'static str,
    anchor: Anchor,
}

const LABEL: Font = Font { size: 12.0, bold: false, fill: FAINT, anchor: Anchor::Start };
const TITLE: Font = Font { size: 17.0, bold: true, fill: INK, anchor: Anchor::Start };

/// About how wide a text is; browsers differ, so labels leave some room.
fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(|c| if c.is_ascii() { 0.58 } else { 0.9 }).sum::<f64>() * size
}

/// An SVG under construction. Numbers are rounded to a hundredth: smaller files, same picture.
struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    fn new(width: f64) -> Self {
        Self { body: String::new(), width, height: 0.0 }
    }

    fn put(&mut self, element: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    fn rect(&mut self, [x, y, width, height]: [f64; 4], fill: &str, tip: &str) {
        let (x, width) = (Short(x), Short(width));
        let (y, height) = (Short(y), Short(height));
        if tip.is_empty() {
            self.put(format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
            ));
        } else {
            let tip = escape::markup(tip);
            self.put(format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"><title>{tip}</title></rect>"
            ));
        }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(Short);
        self.put(format_args!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{stroke}\"/>"));
    }

    fn text(&mut self, x: f64, y: f64, font: Font, text: &str) {
        let anchor = match font.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if font.bold { " font-weight=\"600\"" } else { "" };
        let (x, y, size, fill) = (Short(x), Short(y), Short(font.size), font.fill);
        let text = escape::markup(text);
        self.put(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{weight} fill=\"{fill}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// Coloured squares with names, in as many rows as they need; returns the y below them.
    fn legend(&mut self, left: f64, top: f64, entries: &[(&str, String)]) -> f64 {
        let (mut x, mut y) = (left, top);
        for (fill, name) in entries {
            let width = 18.0 + text_width(name, 12.0) + 18.0;
            if x > left && x + width > self.width - 16.0 {
                x = left;
                y += 22.0;
            }
            self.rect([x, y, 12.0, 12.0], fill, "");
            self.text(x + 18.0, y + 10.5, Font { fill: INK, ..LABEL }, name);
            x += width;
        }
        y + 22.0
    }

    fn finish(self, title: &str) -> String {
        let (width, height, body) = (Short(self.width), Short(self.height), self.body);
        let title = escape::markup(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" {FONT}>\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"10\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }
}

/// A coordinate with at most two decimals.
#[derive(Clone, Copy)]
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.2}", self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        let steps = [1.0, 0.9, 7.0, 100.0, 1e6].map(|max| round_step(max, 5.0));
        assert_eq!(steps, [0.2, 0.2, 1.0, 20.0, 200_000.0]);
        assert_eq!([0.0, f64::NAN, f64::INFINITY].map(|max| round_step(max, 5.0)), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn axis_numbers() {
        assert_eq!(Unit::Share.show(0.5, 0.1), "50%");
        assert_eq!(Unit::Share.show(0.005, 0.005), "0.5%");
        assert_eq!(Unit::Time.show(2e6, 1e6), "2 ms");
        assert_eq!(Unit::Plain.show(12_000.0, 2000.0), "12,000");
        assert_eq!(Unit::Plain.show(0.25, 0.05), "0.25");
    }

    #[test]
    fn labels_contrast_with_their_block() {
        assert_eq!(ink_on("#332288"), "#ffffff");
        assert_eq!(ink_on("#f0e442"), INK);
        assert_eq!(ink_on("nonsense"), INK);
    }

    #[test]
    fn text_is_escaped_and_numbers_are_short() {
        let mut svg = Svg::new(100.0);
        svg.text(1.0, 2.125, LABEL, "<a&b>");
        let text = svg.finish("</title>");
        assert!(text.contains("&lt;a&amp;b&gt;") && text.contains("<title>&lt;/title&gt;</title>"));
        assert!(text.contains("x=\"1\" y=\"2.12\""), "{text}");
    }
}
