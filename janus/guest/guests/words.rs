//! The most frequent words of the files that its arguments name, or of its input. Ordinary Rust that uses nothing of
//! janus.

use std::collections::HashMap;
use std::io::Read;
use std::process::ExitCode;
use std::{env, fs, io};

const SHOWN: usize = 10;

fn read() -> Result<String, String> {
    let mut text = String::new();
    let mut names = env::args().skip(1).peekable();
    if names.peek().is_none() {
        io::stdin().read_to_string(&mut text).map_err(|error| format!("input: {error}"))?;
    }
    for name in names {
        text += &fs::read_to_string(&name).map_err(|error| format!("{name}: {error}"))?;
        text.push('\n');
    }
    Ok(text)
}

fn main() -> ExitCode {
    let text = match read() {
        Ok(text) => text.to_lowercase(),
        Err(why) => {
            eprintln!("words: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        *counts.entry(word).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|&(word, count)| (usize::MAX - count, word));
    for (word, count) in counts.iter().take(SHOWN) {
        println!("{count:>6} {word}");
    }
    ExitCode::SUCCESS
}
