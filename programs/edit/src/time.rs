//! Times as people type and read them: `2ms`, `0.5s`, `2ms/10ms`.

use core::fmt::{self, Display, Formatter};

/// Units, longest first, and how many decimal places one has above a nanosecond.
const UNITS: [(&str, usize); 4] = [("s", 9), ("ms", 6), ("us", 3), ("ns", 0)];

/// A decimal number, times 10 to the power of `places`; `None` if it is none, has more places, or is too large.
fn decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + part.len() == 0 || !is_number(whole) || !is_number(part) || part.len() > places {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits = part.bytes().chain(core::iter::repeat(b'0')).take(places);
    let part = digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    whole.checked_mul(10_u64.pow(places as u32))?.checked_add(part)
}

/// Nanoseconds of a decimal number of seconds.
pub fn seconds(text: &str) -> Option<u64> {
    decimal(text, 9)
}

/// Nanoseconds of a number with its unit: `2ms`, `0.5s`, `20us`, `800ns`.
pub fn duration(text: &str) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let (_, places) = UNITS.iter().find(|(name, _)| *name == unit)?;
    decimal(number, *places)
}

/// What is wrong with a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BudgetError<'a> {
    /// It has no period.
    NoPeriod,
    /// A part of it is no time.
    NoTime(&'a str),
    /// It is nothing, or in no time.
    Nothing,
    /// More time than there is.
    AbovePeriod,
}

impl Display for BudgetError<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            BudgetError::NoPeriod => f.write_str("is a time without a period"),
            BudgetError::NoTime("") => f.write_str("lacks a time"),
            BudgetError::NoTime(part) => {
                write!(f, "has no time in `{part}`")
            }
            BudgetError::Nothing => f.write_str("is no time at all"),
            BudgetError::AbovePeriod => f.write_str("is more time than its period has"),
        }
    }
}

/// Budget and period in nanoseconds of `2ms/10ms`. What else may be wrong with them, the kernel knows.
pub fn budget(text: &str) -> Result<(u64, u64), BudgetError<'_>> {
    let (budget, period) = text.split_once('/').ok_or(BudgetError::NoPeriod)?;
    let time = |part| duration(part).ok_or(BudgetError::NoTime(part));
    match (time(budget)?, time(period)?) {
        (0, _) | (_, 0) => Err(BudgetError::Nothing),
        (budget, period) if budget > period => Err(BudgetError::AbovePeriod),
        times => Ok(times),
    }
}

/// Nanoseconds in the longest unit of which there is one, with three places at most: what [`duration`] reads. The rest is cut.
#[derive(Clone, Copy, Debug)]
pub struct Short(pub u64);

impl Display for Short {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let per = |places: usize| 10_u64.pow(places as u32);
        let unit = UNITS.iter().find(|(_, places)| self.0 >= per(*places));
        let (unit, places) = *unit.unwrap_or(&("s", 9));
        let (whole, mut part) = (self.0 / per(places), self.0 % per(places) / per(places.saturating_sub(3)));
        let mut width = places.min(3);
        while width > 0 && part % 10 == 0 {
            (part, width) = (part / 10, width - 1);
        }
        match width {
            0 => write!(f, "{whole}{unit}"),
            _ => write!(f, "{whole}.{part:0width$}{unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn seconds_are_read() {
        assert_eq!(seconds("0.2"), Some(200_000_000));
        assert_eq!(seconds(".000000001"), Some(1));
        assert_eq!(seconds("18446744073.709551615"), Some(u64::MAX));
        for bad in ["", ".", "-1", "1e3", "1.2.3", "0.0000000001", "18446744073.709551616", "2s", "+1"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_have_units() {
        let good =
            [("2ms", 2_000_000), ("0.5s", 500_000_000), ("20us", 20_000), ("7ns", 7), ("1.5ms", 1_500_000)];
        for (text, ns) in good {
            assert_eq!(duration(text), Some(ns), "{text}");
        }
        for bad in ["2", "ms", "2m", "2 ms", "1.5ns", "2mss", "-2ms", "99999999999s", "", "2MS"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }

    /// Each refusal names what is wrong.
    #[test]
    fn budgets_are_read() {
        assert_eq!(budget("2ms/10ms"), Ok((2_000_000, 10_000_000)));
        assert_eq!(budget("20us/1s"), Ok((20_000, 1_000_000_000)));
        assert_eq!(budget("1s/1s"), Ok((1_000_000_000, 1_000_000_000)));
        assert_eq!(budget("2ms"), Err(BudgetError::NoPeriod));
        assert_eq!(budget("2ms/10"), Err(BudgetError::NoTime("10")));
        assert_eq!(budget("2/10ms"), Err(BudgetError::NoTime("2")));
        assert_eq!(budget("/10ms"), Err(BudgetError::NoTime("")));
        assert_eq!(budget("2ms/10ms/3ms"), Err(BudgetError::NoTime("10ms/3ms")));
        assert_eq!(budget("0ms/10ms"), Err(BudgetError::Nothing));
        assert_eq!(budget("1ns/0s"), Err(BudgetError::Nothing));
        assert_eq!(budget("11ms/10ms"), Err(BudgetError::AbovePeriod));
        let said = format!("{}", BudgetError::NoTime("10"));
        assert_eq!(said, "has no time in `10`");
    }

    /// What is shown is what can be typed, up to what is cut.
    #[test]
    fn shown_times_can_be_typed() {
        let shown = [
            (0, "0s"),
            (7, "7ns"),
            (999, "999ns"),
            (20_000, "20us"),
            (1_050, "1.05us"),
            (2_500_000, "2.5ms"),
            (60_000_000_000, "60s"),
            (1_234_567_890, "1.234s"),
        ];
        for (ns, text) in shown {
            assert_eq!(format!("{}", Short(ns)), text);
            let back = duration(text).unwrap();
            assert!(back <= ns && ns - back <= ns / 1000, "{text} is {back} of {ns}");
        }
        assert_eq!(format!("{}", Short(u64::MAX)), "18446744073.709s");
    }
}
