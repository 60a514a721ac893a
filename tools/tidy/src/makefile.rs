//! The rules of the Makefile, and the targets that a shell command asks of `make`.

/// One rule of a Makefile.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its target.
    pub target: String,
    /// Its line, counted from 1.
    pub line: usize,
    /// What it depends on.
    pub needs: Vec<String>,
    /// The text after `##`: what `make help` shows.
    pub help: Option<String>,
    /// Whether it has commands.
    pub has_recipe: bool,
}

/// Every rule of a Makefile, special targets such as `.PHONY` included.
#[must_use]
pub fn rules(makefile: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut current = 0; // the first of `rules` that a recipe line belongs to
    let mut lines = makefile.lines().enumerate();
    while let Some((at, text)) = lines.next() {
        if text.starts_with('\t') {
            for rule in &mut rules[current..] {
                rule.has_recipe = true;
            }
            continue;
        }
        let mut text = text.to_owned();
        while let Some(start) = text.strip_suffix('\\') {
            text = format!("{start} {}", lines.next().map_or("", |(_, next)| next));
        }
        let Some((targets, needs, help)) = parse(&text) else { continue };
        current = rules.len();
        for target in targets.split_whitespace() {
            rules.push(Rule {
                target: target.to_owned(),
                line: at + 1,
                needs: needs.split_whitespace().map(str::to_owned).collect(),
                help: help.map(str::to_owned),
                has_recipe: false,
            });
        }
    }
    rules
}

/// Targets, needs and help of a rule; `None` for a comment, a variable, a condition or a blank line.
fn parse(text: &str) -> Option<(&str, &str, Option<&str>)> {
    let (rule, help) = match text.split_once("##") {
        Some((rule, help)) => (rule, Some(help.trim())),
        None => (text, None),
    };
    let rule = rule.split('#').next().unwrap_or(rule);
    let (targets, needs) = rule.split_once(':')?;
    let is_rule =
        !targets.trim().is_empty() && !targets.contains(['=', '$']) && !needs.starts_with(['=', ':']);
    // `target: VARIABLE = value` sets a variable and is no rule.
    (is_rule && !needs.contains('=')).then_some((targets, needs, help))
}

/// The targets that the commands of one line of shell ask of `make`.
#[must_use]
pub fn asked(shell: &str) -> Vec<&str> {
    let mut found = Vec::new();
    // Whether the next word begins a command, and whether the command is `make`.
    let (mut begins, mut is_make) = (true, false);
    let mut words = shell.split_whitespace();
    // Inside quotes there are no commands and no targets.
    let mut quote = None;
    while let Some(word) = words.next() {
        let inside = quote.is_some();
        for letter in word.chars().filter(|letter| matches!(letter, '\'' | '"')) {
            match quote {
                None => quote = Some(letter),
                Some(open) if open == letter => quote = None,
                Some(_) => {}
            }
        }
        if inside {
            continue;
        }
        let is_setting = word.split_once('=').is_some_and(|(name, _)| is_variable(name));
        match word {
            "$" if begins => {}
            "&&" | "||" | "|" | ";" => (begins, is_make) = (true, false),
            "#" => break,
            "make" if begins => (begins, is_make) = (false, true),
            "-C" | "-f" if is_make => {
                words.next();
            }
            _ if is_setting => {}
            _ if is_make && !word.starts_with('-') => {
                let target = word.trim_end_matches([';', ',', '.', ':']);
                found.push(target);
                (begins, is_make) = (word.ends_with(';'), !word.ends_with(';'));
            }
            _ => begins = word.ends_with(';'),
        }
    }
    found
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_needs_help_and_recipes() {
        let text =
            "A := 1\nB ?= x:y\n.PHONY: a \\\n  b\na: b c ## does a\n\techo a\nb d: ; # none\nc: X = 1\n";
        let found = rules(text);
        let targets: Vec<_> = found.iter().map(|rule| (rule.target.as_str(), rule.line)).collect();
        assert_eq!(targets, [(".PHONY", 3), ("a", 5), ("b", 7), ("d", 7)]);
        assert_eq!(found[0].needs, ["a", "b"]);
        assert_eq!(found[1].needs, ["b", "c"]);
        assert_eq!(found[1].help.as_deref(), Some("does a"));
        assert!(found[1].has_recipe && !found[2].has_recipe);
    }

    #[test]
    fn asked_targets_are_words_after_make() {
        assert_eq!(asked("make run"), ["run"]);
        assert_eq!(
            asked("$ make -j2 sim SCENARIO=a/b.scn && make test; make tidy # make no"),
            ["sim", "test", "tidy"]
        );
        assert_eq!(asked("make sim ARGS='--html a.html --svg b' report"), ["sim", "report"]);
        assert_eq!(asked("make -C main help"), ["help"]);
        assert_eq!(asked("REPS=3 make bench-sched"), ["bench-sched"]);
        assert!(
            asked("cmake run").is_empty() && asked("to make sense").is_empty() && asked("make").is_empty()
        );
    }
}
