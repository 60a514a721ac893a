//! A line as words.

use alloc::string::String;
use alloc::vec::Vec;

/// Splits a line at blanks; what is between double quotes stays together. `None` if a quote is not closed.
pub fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !is_quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    (!is_quoted).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_separate_and_quotes_keep() {
        assert_eq!(words("  run  a b ").unwrap(), ["run", "a", "b"]);
        assert_eq!(words(r#"echo "a  b" c"d e"f """#).unwrap(), ["echo", "a  b", "cd ef", ""]);
        assert_eq!(words(" ").unwrap(), [""; 0]);
        assert_eq!(words(r#"echo "a"#), None);
    }
}
