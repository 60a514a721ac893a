//! Numbers and small pictures as text, without floating point.

use core::fmt::{self, Display, Formatter, Write};

/// `part` of `whole` in thousandths; 0 if there is no whole.
pub fn permille(part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(part) * 1000 / u128::from(whole)) as u64 }
}

/// A bar of `width` characters, filled in the proportion of thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// How much of it is filled, in thousandths.
    pub permille: u64,
    /// Characters.
    pub width: usize,
}

impl Display for Bar {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let filled = (self.permille.min(1000) as usize * self.width + 500) / 1000;
        for at in 0..self.width {
            f.write_char(if at < filled { '#' } else { '.' })?;
        }
        Ok(())
    }
}

/// A number with the noun that it counts, in the plural if need be: `1 CPU`, `4 CPUs`.
#[derive(Clone, Copy, Debug)]
pub struct Count(pub u64, pub &'static str);

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// The number of CPUs of this machine.
pub fn cpus() -> Count {
    Count(rt::boot_info().cpus.into(), "CPU")
}

/// Nanoseconds as seconds with three places.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        padded(f, self.0 / 1_000_000_000, '.', self.0 / 1_000_000 % 1000, 3)
    }
}

/// Thousandths as per cent with one place.
#[derive(Clone, Copy, Debug)]
pub struct Percent(pub u64);

impl Display for Percent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        padded(f, self.0 / 10, '.', self.0 % 10, 1)
    }
}

/// Frames of 4 KiB as MiB with one place.
#[derive(Clone, Copy, Debug)]
pub struct Mib(pub u64);

impl Display for Mib {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        padded(f, self.0 / 256, '.', self.0 % 256 * 10 / 256, 1)
    }
}

/// A number whose thousands are separated.
#[derive(Clone, Copy, Debug)]
pub struct Thousands(pub u64);

impl Display for Thousands {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 >= 1_000_000 {
            write!(f, "{},{:03},{:03}", self.0 / 1_000_000, self.0 / 1000 % 1000, self.0 % 1000)
        } else if self.0 >= 1000 {
            write!(f, "{},{:03}", self.0 / 1000, self.0 % 1000)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// `whole`, `point` and `places` digits of `part`, right-aligned in the width of the format.
fn padded(f: &mut Formatter<'_>, whole: u64, point: char, part: u64, places: usize) -> fmt::Result {
    let width = f.width().unwrap_or(0).saturating_sub(places + 1);
    write!(f, "{whole:width$}{point}{part:0places$}")
}

/// Colours of a terminal, named by what they mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    /// A promise was kept.
    Met,
    /// A promise was not kept.
    Missed,
    /// A thread waits for CPU time that is not available yet.
    Waits,
}

/// `text` in a colour, or plain where the output shows no colours.
#[derive(Clone, Copy, Debug)]
pub struct Tinted<T> {
    /// The colour; `None` if the output is not a terminal.
    pub colour: Option<Colour>,
    /// The text to be coloured.
    pub text: T,
}

impl<T: Display> Display for Tinted<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let code = match self.colour {
            None => return self.text.fmt(f),
            Some(Colour::Met) => "32",
            Some(Colour::Missed) => "1;31",
            Some(Colour::Waits) => "33",
        };
        write!(f, "\x1b[{code}m")?;
        self.text.fmt(f)?;
        f.write_str("\x1b[0m")
    }
}

/// `text`, cut to `max` characters.
pub fn cut(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(at, _)| &text[..at])
}
