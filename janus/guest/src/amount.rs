//! Budgets, durations and `name=path` pairs as people write them: on a command line, in a file.

use janus::budget::UNLIMITED;
use janus::{Budget, Resource};
use std::path::PathBuf;
use std::time::Duration;

/// The parts of a budget, as people name them.
pub const PARTS: [(&str, Resource); 5] = [
    ("ops", Resource::Ops),
    ("memory", Resource::Memory),
    ("spawn", Resource::Spawn),
    ("messages", Resource::Channel),
    ("io", Resource::Syscalls),
];

/// The name of a part.
#[must_use]
pub fn part(resource: Resource) -> &'static str {
    PARTS[resource as usize].0
}

/// Parses `10M`, `1k`, `16MiB`, `unlimited`. For memory, `K`, `M` and `G` are powers of 1,024.
fn number(text: &str, step: u64) -> Result<u64, String> {
    if text == "unlimited" {
        return Ok(UNLIMITED);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let value: u64 = digits
        .replace('_', "")
        .parse()
        .map_err(|_| format!("`{text}` is no number: write 5000, 5k, 10M, 2G or unlimited"))?;
    let (step, unit) = match unit.strip_suffix("iB").or_else(|| unit.strip_suffix('i')) {
        Some(unit) => (1_024, unit),
        None => (step, unit),
    };
    let factor = match unit {
        "" => 1,
        "k" | "K" => step,
        "m" | "M" => step * step,
        "g" | "G" => step * step * step,
        other => return Err(format!("`{other}` in `{text}` is no unit: there are k, M and G")),
    };
    value
        .checked_mul(factor)
        .filter(|&value| value < UNLIMITED)
        .ok_or_else(|| format!("`{text}` is too large"))
}

/// Parses `ops=10M,memory=16M`; parts that are not named stay as in `base`.
pub fn budget(text: &str, base: Budget) -> Result<Budget, String> {
    let mut budget = base;
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("`{part}` has no amount: write {part}=1000"))?;
        let Some((_, resource)) = PARTS.iter().find(|(known, _)| *known == name) else {
            let names = PARTS.map(|(name, _)| name).join(", ");
            return Err(format!("a budget has no `{name}`; it has {names}"));
        };
        let step = if *resource == Resource::Memory { 1_024 } else { 1_000 };
        *budget.get_mut(*resource) = number(value, step)?;
    }
    Ok(budget)
}

/// Parses `500ms`, `5s`, `2m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let wrong = || format!("`{text}` is no duration: write 500ms, 5s or 2m");
    let value: u64 = digits.parse().map_err(|_| wrong())?;
    match unit {
        "ms" => Ok(Duration::from_millis(value)),
        "s" => Ok(Duration::from_secs(value)),
        "m" => Ok(Duration::from_secs(value.saturating_mul(60))),
        _ => Err(wrong()),
    }
}

/// Parses `name=path`, or a path alone, whose last part is the name.
pub fn named(text: &str) -> Result<(String, PathBuf), String> {
    if let Some((name, path)) = text.split_once('=') {
        return Ok((name.to_string(), PathBuf::from(path)));
    }
    let path = PathBuf::from(text);
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| format!("`{text}` names no file: write NAME=PATH"))?.to_string();
    Ok((name, path))
}

/// A number with commas between its thousands.
#[must_use]
pub fn show(value: u64) -> String {
    if value == UNLIMITED {
        return "unlimited".to_string();
    }
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j_12_budgets_are_read() {
        let budget = |text| budget(text, Budget::ZERO);
        let read = budget("ops=10M,memory=16M,spawn=100,messages=1k,io=1_0").unwrap();
        let wanted =
            Budget { ops: 10_000_000, memory: 16 << 20, spawn_count: 100, channel_ops: 1_000, syscalls: 10 };
        assert_eq!(read, wanted);
        assert_eq!(budget("ops=unlimited").unwrap().ops, UNLIMITED);
        assert_eq!(
            budget("ops=2Ki,memory=3MiB").unwrap(),
            Budget { ops: 2_048, memory: 3 << 20, ..Budget::ZERO }
        );
        for (text, said) in [
            ("ops", "has no amount"),
            ("cpu=1", "a budget has no `cpu`"),
            ("ops=ten", "is no number"),
            ("ops=1T", "is no unit"),
            ("ops=99999999999G", "too large"),
        ] {
            assert!(budget(text).unwrap_err().contains(said), "{text}");
        }
    }

    #[test]
    fn j_12_durations_names_and_numbers() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("2").is_err() && duration("fast").is_err());
        assert_eq!(named("a=b/c"), Ok(("a".into(), PathBuf::from("b/c"))));
        assert_eq!(named("b/c"), Ok(("c".into(), PathBuf::from("b/c"))));
        assert!(named("/").is_err());
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(show),
            ["0", "999", "1,000", "1,234,567"].map(String::from)
        );
    }
}
