//! What Tab can put in the place of the word under the cursor.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The options of the command `run`, and whether a value follows.
pub const RUN_OPTIONS: [(&str, bool); 7] = [
    ("--budget", true),
    ("--class", true),
    ("--input", false),
    ("--name", true),
    ("--overrun", true),
    ("--own", false),
    ("--weight", true),
];

/// Commands that run another command.
const PREFIXES: [&str; 2] = ["time", "watch"];

/// The names that there are.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Commands of the shell.
    pub commands: &'a [&'a str],
    /// Programs of the boot image.
    pub programs: &'a [String],
    /// Programs in the background, as `kill` takes them: `%spin`.
    pub jobs: &'a [String],
    /// Latency classes.
    pub classes: &'a [&'a str],
}

/// Every whole word that could stand for the last one of `left`: a command or program at first, then what the command takes.
pub fn candidates(left: &str, names: &Names<'_>) -> Vec<String> {
    let mut words: Vec<&str> = left.split(' ').collect();
    let last = words.pop().unwrap_or("");
    words.retain(|word| !word.is_empty());
    let mut words = words.as_slice();
    while let [first, rest @ ..] = words
        && PREFIXES.contains(first)
    {
        words = rest;
    }
    let fixed = |known: &[&str]| -> Vec<String> { known.iter().map(ToString::to_string).collect() };
    let mut found = match words {
        [] => {
            let mut all = fixed(names.commands);
            all.extend(
                names.programs.iter().filter(|name| !names.commands.contains(&name.as_str())).cloned(),
            );
            all
        }
        ["help"] => fixed(names.commands),
        ["ps"] => fixed(&["-t"]),
        ["top"] => fixed(&["-p"]),
        ["kill"] => names.jobs.to_vec(),
        ["run", .., "--class"] => fixed(names.classes),
        ["run", .., "--overrun"] => fixed(&["throttle", "demote"]),
        ["run", rest @ ..] if is_program_next(rest) && last.starts_with('-') => {
            RUN_OPTIONS.iter().map(|(name, _)| name.to_string()).collect()
        }
        ["run", rest @ ..] if is_program_next(rest) => names.programs.to_vec(),
        _ => Vec::new(),
    };
    found.retain(|word| word.starts_with(last));
    found
}

/// Whether the word after these arguments of `run` is an option or the program.
fn is_program_next(words: &[&str]) -> bool {
    let takes = |name: &str| RUN_OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, takes)| *takes);
    match words {
        [] => true,
        [option, rest @ ..] => match (takes(option), rest) {
            (Some(false), rest) | (Some(true), [_, rest @ ..]) => is_program_next(rest),
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(left: &str) -> Vec<String> {
        let strings = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let (programs, jobs) = (strings(&["budget", "spin", "time"]), strings(&["%burner", "%2"]));
        let names = Names {
            commands: &["help", "kill", "ps", "run", "time", "top", "watch"],
            programs: &programs,
            jobs: &jobs,
            classes: &["interactive", "normal", "batch"],
        };
        candidates(left, &names)
    }

    #[test]
    fn the_first_word_is_a_command_or_a_program() {
        assert_eq!(complete("t"), ["time", "top"], "a command that is a program too is there once");
        assert_eq!(complete("s"), ["spin"]);
        assert_eq!(complete("").len(), 9);
        assert_eq!(complete("  ps"), ["ps"]);
        assert_eq!(complete("help t"), ["time", "top"]);
        assert_eq!(complete("help s"), [""; 0], "help explains commands");
    }

    #[test]
    fn what_runs_a_command_takes_one() {
        assert_eq!(complete("time s"), ["spin"]);
        assert_eq!(complete("watch time p"), ["ps"]);
        assert_eq!(complete("watch ps -"), ["-t"]);
        assert_eq!(complete("time run --cl"), ["--class"]);
    }

    #[test]
    fn options_their_values_and_jobs() {
        assert_eq!(complete("run --o"), ["--overrun", "--own"]);
        assert_eq!(complete("run --class "), ["interactive", "normal", "batch"]);
        assert_eq!(complete("run --budget 2ms/10ms --overrun d"), ["demote"]);
        assert_eq!(complete("run --name x --own b"), ["budget"]);
        assert_eq!(complete("run --name --b"), [""; 0], "a name is nothing that is known");
        assert_eq!(complete("run spin --b"), [""; 0], "behind the program are its own words");
        assert_eq!(complete("kill "), ["%burner", "%2"]);
        assert_eq!(complete("kill %b"), ["%burner"]);
        assert_eq!(complete("top -"), ["-p"]);
        assert_eq!(complete("echo a"), [""; 0]);
    }
}
