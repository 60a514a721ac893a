//! How numbers are shown: times, shares and counts in the form that a person reads fastest.

use std::fmt;

/// A time with three significant digits and a fitting unit: `12.5 ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        // The borders are where three digits would round up to the next unit.
        let (value, unit) = match self.0 {
            0 => return f.pad("0"),
            1..=999 => return f.pad(&format!("{} ns", self.0)),
            1_000..=999_499 => (ns / 1e3, "µs"),
            999_500..=999_499_999 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        f.pad(&format!("{} {unit}", three_digits(value)))
    }
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// A time as the shortest exact decimal in milliseconds: `10.000123ms`. For golden files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactMs(pub u64);

impl fmt::Display for ExactMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if rest == 0 {
            return f.pad(&format!("{whole}ms"));
        }
        let digits = format!("{rest:06}");
        f.pad(&format!("{whole}.{}ms", digits.trim_end_matches('0')))
    }
}

/// A share as a percentage of one CPU: `66.7%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1}%", self.0 * 100.0))
    }
}

/// A count with its thousands set apart: `1,234,567`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_times() {
        let shown = [0, 1, 999, 1_000, 12_345, 999_499, 999_500, 12_500_000, 100_000_000, 999_500_000]
            .map(|ns| Human(ns).to_string());
        let wanted = ["0", "1 ns", "999 ns", "1 µs", "12.3 µs", "999 µs", "1 ms", "12.5 ms", "100 ms", "1 s"];
        assert_eq!(shown, wanted);
        assert_eq!(Human(u64::MAX).to_string(), "18446744074 s");
    }

    #[test]
    fn exact_milliseconds() {
        let shown = [0, 10_000_000, 10_000_123, 500_000, 1].map(|ns| ExactMs(ns).to_string());
        assert_eq!(shown, ["0ms", "10ms", "10.000123ms", "0.5ms", "0.000001ms"]);
    }

    #[test]
    fn counts_and_shares() {
        let shown = [0, 999, 1000, 1_234_567].map(|n| Count(n).to_string());
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(Percent(2.0 / 3.0).to_string(), "66.7%");
    }
}
