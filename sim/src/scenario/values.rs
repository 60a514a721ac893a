//! Values: from one word to a number, a duration, a list of CPUs, a name.
//!
//! Decimals are read as scaled integers, never as floating point, so that a
//! value prints back exactly as it was meant.

use std::ops::RangeInclusive;

use super::error::one_of;
use super::lex::{Cursor, Read, Word};
use super::limits::{NAME_LEN_MAX, TIME_NS_MAX};
use super::print::duration_text;
use super::{Span, UNITS};

/// A key=value pair of a line.
pub(super) struct Pair<'a> {
    pub(super) key: &'static str,
    /// The whole `key=value`.
    pub(super) word: Word<'a>,
    pub(super) value: Word<'a>,
}

/// A whole number within `range`; `what` names it with its article.
pub(super) fn number(word: Word<'_>, what: &str, range: RangeInclusive<u64>) -> Read<u64> {
    let value = parse_digits(word.text).filter(|value| range.contains(value));
    value.ok_or_else(|| {
        let (min, max) = (range.start(), range.end());
        word.refuse(match min == max {
            true => format!("{what}: there is only {min}"),
            false => format!("{what} from {min} to {max}"),
        })
    })
}

/// `number`, for the small types of the AST: `range` must fit the type.
pub(super) fn small<T>(word: Word<'_>, what: &str, range: RangeInclusive<T>) -> Read<T>
where
    T: TryFrom<u64> + Into<u64> + Copy,
{
    let bounds = (*range.start()).into()..=(*range.end()).into();
    let value = number(word, what, bounds)?;
    T::try_from(value).map_err(|_| word.refuse(what))
}

/// A seed: any 64-bit number, decimal or hexadecimal.
pub(super) fn seed(word: Word<'_>) -> Read<u64> {
    let hexadecimal = |digits: &str| {
        let sane = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        sane.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    let value = match word.text.strip_prefix("0x") {
        Some(digits) => hexadecimal(digits),
        None => parse_digits(word.text),
    };
    value.ok_or_else(|| word.refuse("a seed: a 64-bit number such as `7` or `0x7f`"))
}

/// A duration within `range`; `what` names it with its article.
pub(super) fn duration(word: Word<'_>, what: &str, range: RangeInclusive<u64>) -> Read<u64> {
    let text = word.text;
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let expected = || word.refuse(format!("{what} such as `5ms` (units ns, us, ms, s)"));
    let Some(&(_, decimals)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let error = expected();
        return Err(match unit {
            "" if !digits.is_empty() => error.with_note("the unit is missing"),
            _ if unit.contains('#') => error.with_note("a comment needs a space before its `#`"),
            _ => error,
        });
    };
    let value = parse_scaled(digits, decimals).ok_or_else(|| {
        expected().with_note(format!("a whole number of nanoseconds, at most {}", duration_text(TIME_NS_MAX)))
    })?;
    if range.contains(&value) {
        return Ok(value);
    }
    let (min, max) = (duration_text(*range.start()), duration_text(*range.end()));
    Err(word.refuse(format!("{what} from {min} to {max}")))
}

/// A time before the end of the run: what comes later would silently not happen.
pub(super) fn time_in_run(word: Word<'_>, what: &str, end_ns: u64) -> Read<u64> {
    let value = duration(word, what, 0..=TIME_NS_MAX)?;
    if value < end_ns {
        return Ok(value);
    }
    Err(word.refuse(format!("{what} before the end of the run, {}", duration_text(end_ns))))
}

/// A time that a step takes: `5ms`, or `5ms..7ms`. Never zero, so that a step
/// that takes time always moves the clock.
pub(super) fn span(word: Word<'_>) -> Read<Span> {
    let Some((low, high)) = word.split("..") else {
        let only = duration(word, "a duration", 1..=TIME_NS_MAX)?;
        return Ok(Span { min_ns: only, max_ns: only });
    };
    let min_ns = duration(low, "a duration", 1..=TIME_NS_MAX)?;
    let max_ns = duration(high, "a duration", 1..=TIME_NS_MAX)?;
    if min_ns > max_ns {
        return Err(high.refuse(format!("a duration of at least {}", low.text)));
    }
    Ok(Span { min_ns, max_ns })
}

/// A decimal scaled by ten to the `decimals`, within `range` after scaling.
pub(super) fn decimal(
    word: Word<'_>,
    expected: &str,
    decimals: u32,
    range: RangeInclusive<u64>,
) -> Read<u64> {
    let value = parse_scaled(word.text, decimals).filter(|value| range.contains(value));
    value.ok_or_else(|| word.refuse(expected))
}

/// A percentage in parts per million, within `range`.
pub(super) fn percent(word: Word<'_>, expected: &str, range: RangeInclusive<u64>) -> Read<u64> {
    let digits = word.text.strip_suffix('%').ok_or_else(|| word.refuse(expected))?;
    let value = parse_scaled(digits, 4).filter(|value| range.contains(value));
    value.ok_or_else(|| word.refuse(expected))
}

/// One of the words of an enumeration.
pub(super) fn keyword<T: Copy>(word: Word<'_>, all: &[T], name: fn(T) -> &'static str) -> Read<T> {
    let found = all.iter().copied().find(|&value| name(value) == word.text);
    found.ok_or_else(|| {
        let names = || all.iter().map(|&value| name(value));
        word.refuse(one_of(names())).suggest(word.text, names())
    })
}

/// A name that a file gives to a thread or a barrier.
pub(super) fn name<'a>(word: Word<'a>, what: &str) -> Read<&'a str> {
    let text = word.text;
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if starts && text.len() <= NAME_LEN_MAX && text.bytes().all(allowed) {
        return Ok(text);
    }
    Err(word
        .refuse(what)
        .with_note(format!("a letter or `_`, then letters, digits, `_` and `-`: at most {NAME_LEN_MAX}")))
}

/// A CPU of a machine with `cpus` CPUs.
pub(super) fn cpu(word: Word<'_>, cpus: u32) -> Read<u32> {
    small(word, "a CPU", 0..=cpus.saturating_sub(1))
}

/// A list of CPUs such as `0-1,3`, sorted; naming one twice is refused.
pub(super) fn cpu_list(word: Word<'_>, cpus: u32) -> Read<Vec<u32>> {
    let mut member = vec![false; cpus as usize];
    let mut rest = Some(word);
    while let Some(current) = rest {
        let (item, after) = match current.split(",") {
            Some((item, after)) => (item, Some(after)),
            None => (current, None),
        };
        rest = after;
        let (first, last) = match item.split("-") {
            None => (cpu(item, cpus)?, cpu(item, cpus)?),
            Some((low, high)) => {
                let first = cpu(low, cpus)?;
                (first, small(high, "a CPU", first..=cpus.saturating_sub(1))?)
            }
        };
        for slot in &mut member[first as usize..=last as usize] {
            if std::mem::replace(slot, true) {
                return Err(item.refuse("CPUs that the list does not name yet"));
            }
        }
    }
    Ok((0..cpus).filter(|&cpu| member[cpu as usize]).collect())
}

/// The rest of a line as key=value pairs, each of `keys` at most once, and
/// whether `flag` stood among them.
pub(super) fn pairs<'a>(
    cursor: &mut Cursor<'a>,
    keys: &[&'static str],
    flag: Option<&'static str>,
) -> Read<(Vec<Pair<'a>>, Option<Word<'a>>)> {
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    let mut flagged = None;
    while let Some(word) = cursor.take() {
        if flag == Some(word.text) && flagged.is_none() {
            flagged = Some(word);
            continue;
        }
        let (head, value) = word.split("=").unwrap_or((word, word));
        let known = keys.iter().copied().find(|&key| key == head.text);
        let (Some(key), true) = (known, head.text.len() < word.text.len()) else {
            return Err(unknown_key(word, head, known, keys, flag));
        };
        if pairs.iter().any(|pair| pair.key == key) {
            return Err(word.refuse(format!("`{key}=` only once on a line")));
        }
        pairs.push(Pair { key, word, value });
    }
    Ok((pairs, flagged))
}

fn unknown_key(
    word: Word<'_>,
    head: Word<'_>,
    known: Option<&str>,
    keys: &[&'static str],
    flag: Option<&'static str>,
) -> super::ScenarioError {
    match known {
        Some(key) => word.refuse(format!("`{key}=<value>`")),
        None if flag == Some(word.text) => word.refuse(format!("`{}` only once", word.text)),
        None => {
            let names = || keys.iter().copied().chain(flag);
            head.refuse(one_of(names())).suggest(head.text, names())
        }
    }
}

/// Decimal digits only: no sign, no separator.
fn parse_digits(text: &str) -> Option<u64> {
    let sane = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    sane.then(|| text.parse().ok()).flatten()
}

/// `12.5` scaled by ten to the `decimals`, if that is a whole number that fits.
fn parse_scaled(text: &str, decimals: u32) -> Option<u64> {
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let missing = decimals.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    let part = if fraction.is_empty() { 0 } else { parse_digits(fraction)? };
    let part = part.checked_mul(10u64.checked_pow(missing)?)?;
    parse_digits(whole)?.checked_mul(10u64.checked_pow(decimals)?)?.checked_add(part)
}
