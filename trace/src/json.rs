//! The few things that writing JSON by hand needs: quoted strings and exact decimals.

use std::fmt::{self, Write as _};

/// Shows a string as a JSON string, quotes included.
///
/// `<`, `>`, `&` and the line separators are written as escapes, so that the result may also
/// stand inside an HTML `<script>`: a thread called `</script>` must not end it.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\0'..='\x1f' | '<' | '>' | '&' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                    write!(f, "\\u{:04x}", u32::from(c))?;
                }
                _ => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Shows a count of thousandths as the shortest exact decimal: 1500 is `1.5`, 2000 is `2`.
#[derive(Clone, Copy, Debug)]
pub struct Thousandths(pub u64);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        match rest {
            0 => write!(f, "{whole}"),
            _ if rest % 100 == 0 => write!(f, "{whole}.{}", rest / 100),
            _ if rest % 10 == 0 => write!(f, "{whole}.{:02}", rest / 10),
            _ => write!(f, "{whole}.{rest:03}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn strings_cannot_break_out() {
        assert_eq!(Quoted("a\"b\\c\n").to_string(), r#""a\"b\\c\u000a""#);
        let script = Quoted("</script><!--&\u{2028}").to_string();
        assert!(!script.contains(['<', '>', '&', '\u{2028}']), "{script}");
        assert_eq!(Quoted("käse 火").to_string(), "\"käse 火\"");
    }

    #[test]
    fn decimals_are_exact_and_short() {
        let shown = [0, 1, 10, 100, 1000, 1010, 12_345, u64::MAX].map(|n| Thousandths(n).to_string());
        let wanted = ["0", "0.001", "0.01", "0.1", "1", "1.01", "12.345", "18446744073709551.615"];
        assert_eq!(shown, wanted);
    }
}
