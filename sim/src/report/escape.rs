//! The one place where text becomes markup.

/// Makes text safe inside XML and HTML, in element content and in quoted attributes.
///
/// Control characters, which XML 1.0 cannot hold even as references, become U+FFFD.
pub(super) fn markup(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' => safe.push(c),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Makes text safe inside one line of plain text: control characters are shown as escapes.
pub(super) fn line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_breaks_out() {
        assert_eq!(markup("</script>&\"'\0"), "&lt;/script&gt;&amp;&quot;&#39;\u{fffd}");
        assert_eq!(line("a\nb\u{1b}[31m ü"), "a\\nb\\u{1b}[31m ü");
    }
}
