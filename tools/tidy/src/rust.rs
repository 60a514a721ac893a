//! Just enough of Rust to count braces and find words: comments and literals blanked out, offsets kept.
//!
//! This is no parser. It knows where code is and where it is not, and nothing about macros.

/// `source` with every comment, string and character literal turned into spaces, byte for byte.
#[must_use]
pub fn code_of(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(source, at);
        if end > at {
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
            at = end;
        } else if is_word_byte(bytes[at]) {
            // A whole word, so that the `r` of `for"` is not taken for a raw string.
            while at < bytes.len() && is_word_byte(bytes[at]) {
                at += 1;
            }
        } else {
            at += 1;
        }
    }
    String::from_utf8(out).expect("literals begin and end on character boundaries")
}

/// Where the comment or literal that begins at `at` ends; `at` when none begins there.
fn literal_end(source: &str, at: usize) -> usize {
    let rest = &source.as_bytes()[at..];
    match rest[0] {
        b'/' if rest.starts_with(b"//") => {
            at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
        }
        b'/' if rest.starts_with(b"/*") => at + block_comment_len(rest),
        b'"' => at + quoted_len(rest, b'"'),
        b'\'' => at + char_len(&source[at..]),
        b'r' | b'b' | b'c' => at + prefixed_len(rest),
        _ => at,
    }
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Length of a literal that opens and closes with `quote`, with backslash escapes.
fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a character literal; 0 for a lifetime.
fn char_len(rest: &str) -> usize {
    let mut chars = rest[1..].chars();
    match chars.next() {
        Some('\\') => quoted_len(rest.as_bytes(), b'\''),
        Some(first) if chars.next() == Some('\'') => 2 + first.len_utf8(),
        _ => 0,
    }
}

/// Length of a literal with a prefix (`b"…"`, `b'…'`, `c"…"`, `r#"…"#`, `br"…"`); 0 for a plain word.
fn prefixed_len(rest: &[u8]) -> usize {
    let letters = rest.iter().take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count().min(2);
    let hashes = rest[letters..].iter().take_while(|&&byte| byte == b'#').count();
    let raw = rest[letters - 1] == b'r';
    match rest.get(letters + hashes) {
        Some(b'"') if raw => {
            let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
            let body = letters + hashes + 1;
            let end = rest[body..].windows(close.len()).position(|window| window == close);
            end.map_or(rest.len(), |end| body + end + close.len())
        }
        Some(b'"') if hashes == 0 => letters + quoted_len(&rest[letters..], b'"'),
        Some(b'\'') if hashes == 0 && rest[0] == b'b' && letters == 1 => 1 + quoted_len(&rest[1..], b'\''),
        _ => 0,
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || byte >= 0x80
}

/// Every word (identifier, keyword or number) of `code` with its offset.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let bytes = code.as_bytes();
        at += bytes[at..].iter().position(|&byte| is_word_byte(byte))?;
        let start = at;
        at += bytes[at..].iter().position(|&byte| !is_word_byte(byte)).unwrap_or(bytes.len() - at);
        Some((start, &code[start..at]))
    })
}

/// The line of `offset`, counted from 1.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of its `fn`.
    pub line: usize,
    /// Lines from its `fn` to its last brace.
    pub lines: usize,
}

/// Every function with a body in `code`, nested ones included.
#[must_use]
pub fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let mut words = words(code).peekable();
    while let Some((start, word)) = words.next() {
        if word != "fn" {
            continue;
        }
        let Some(&(at, name)) = words.peek() else { continue };
        let is_named = code[start + 2..at].chars().all(char::is_whitespace);
        if let Some(end) = is_named.then(|| body_end(code, at)).flatten() {
            let (first, last) = (line_of(code, start), line_of(code, end));
            found.push(Function { name: name.to_owned(), line: first, lines: last + 1 - first });
        }
    }
    found
}

/// Where the body of the function whose signature goes on at `from` ends; `None` when it has none.
fn body_end(code: &str, from: usize) -> Option<usize> {
    let (mut nested, mut braces) = (0_i32, 0_i32);
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' if braces == 0 => nested += 1,
            b')' | b']' if braces == 0 => nested -= 1,
            b';' if braces == 0 && nested == 0 => return None,
            b'{' if nested == 0 => braces += 1,
            b'}' if nested == 0 => {
                braces -= 1;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// A `mod name;` declaration: a file elsewhere belongs to this one.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// Names of the inline modules around it, outermost first.
    pub inside: Vec<String>,
    /// Its name.
    pub name: String,
    /// What its `#[path = "…"]` says.
    pub path: Option<String>,
}

/// Every `mod name;` of `source`.
#[must_use]
pub fn modules(source: &str) -> Vec<Module> {
    let code = code_of(source);
    let mut found = Vec::new();
    let mut inside: Vec<(i32, String)> = Vec::new();
    let (mut depth, mut scanned) = (0, 0);
    let mut words = words(&code).peekable();
    while let Some((start, word)) = words.next() {
        for byte in code[scanned..start].bytes() {
            depth += i32::from(byte == b'{') - i32::from(byte == b'}');
            if byte == b'}' {
                inside.retain(|&(at, _)| at <= depth);
            }
        }
        scanned = start;
        let Some(&(at, name)) = words.peek() else { continue };
        if word != "mod" {
            continue;
        }
        match code[at + name.len()..].trim_start().bytes().next() {
            Some(b'{') => inside.push((depth + 1, name.to_owned())),
            Some(b';') => found.push(Module {
                inside: inside.iter().map(|(_, name)| name.clone()).collect(),
                name: name.to_owned(),
                path: path_attribute(source, &code, start),
            }),
            _ => {}
        }
        // The opening brace comes after the name: count it only with the next word.
        if let Some((next, _)) = words.next() {
            scanned = next;
        }
    }
    found
}

/// The string of a `#[path = "…"]` that stands right before the item at `start`.
fn path_attribute(source: &str, code: &str, start: usize) -> Option<String> {
    let from = code[..start].rfind([';', '{', '}']).map_or(0, |at| at + 1);
    let (at, _) = words(&code[from..start]).find(|&(_, word)| word == "path")?;
    source[from + at..start].split('"').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_offsets_stay() {
        let source = "a /* { /* { */ */ b // {\n\"{\\\"\" r#\"{\"{\"# b'{' '{' '\\'' 'é' b\"{\" br\"{\" c";
        let code = code_of(source);
        assert_eq!(code.len(), source.len());
        assert!(!code.contains(['{', '"', 'é']), "{code}");
        assert_eq!(words(&code).map(|(_, word)| word).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(line_of(&code, code.len() - 1), 2);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        let source = "fn f<'a>(r#type: &'a str, b: u8) -> &'a str { r#type }";
        assert_eq!(code_of(source), source);
    }

    #[test]
    fn a_word_that_ends_in_r_does_not_open_a_raw_string() {
        assert_eq!(code_of("for\"a\"x"), "for   x");
    }

    #[test]
    fn functions_are_measured_from_fn_to_brace() {
        let code = "trait T { fn none(x: [u8; 4]); }\nfn one() {}\nfn two(f: fn(u8) -> u8)\nwhere u8: Copy\n{\n  { }\n}\n";
        let found: Vec<_> = functions(code).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one".to_owned(), 2, 1), ("two".to_owned(), 3, 5)]);
    }

    #[test]
    fn modules_know_what_they_are_inside_of() {
        let source = "mod a;\nmod b { pub mod c; fn f() { } mod d { mod e; } mod f; }\n\
                      #[path = \"other.rs\"]\nmod g;\n// mod h;\n";
        let found: Vec<_> =
            modules(source).into_iter().map(|m| (m.inside.join("/"), m.name, m.path)).collect();
        let expect = [("", "a", None), ("b", "c", None), ("b/d", "e", None), ("b", "f", None)];
        for (at, (inside, name, path)) in expect.into_iter().enumerate() {
            assert_eq!(found[at], (inside.to_owned(), name.to_owned(), path));
        }
        assert_eq!(found[4], (String::new(), "g".to_owned(), Some("other.rs".to_owned())));
        assert_eq!(found.len(), 5);
    }
}
