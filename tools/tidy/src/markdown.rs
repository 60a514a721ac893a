//! What a Markdown page names: its code (spans and fenced blocks) and the places that it links to.

/// A piece of code in a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// Its line, counted from 1.
    pub line: usize,
    /// What stands between the backticks, or one line of a fenced block.
    pub text: &'a str,
    /// Whether it is a line of a fenced block.
    pub fenced: bool,
}

/// A link or a picture.
#[derive(Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// Its line, counted from 1.
    pub line: usize,
    /// Where it leads, without title and fragment.
    pub target: &'a str,
}

/// The code of a page, line by line.
#[must_use]
pub fn code(page: &str) -> Vec<Code<'_>> {
    let mut found = Vec::new();
    for (line, text, fenced) in lines(page) {
        if fenced {
            found.push(Code { line, text, fenced });
        } else {
            found.extend(spans(text).map(|text| Code { line, text, fenced }));
        }
    }
    found
}

/// The links of a page that stay inside the project: no web addresses, no fragments of the page itself.
#[must_use]
pub fn links(page: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (line, text, _) in lines(page).filter(|(_, _, fenced)| !fenced) {
        let inline = after(text, "](").map(|rest| rest.split(')').next().unwrap_or(rest));
        let html = after(text, "src=\"").chain(after(text, "href=\""));
        let html = html.map(|rest| rest.split('"').next().unwrap_or(rest));
        for target in inline.chain(html).chain(definition(text)) {
            let target = target.trim().trim_start_matches('<').trim_end_matches('>');
            let target = target.split([' ', '#']).next().unwrap_or(target);
            if !target.is_empty() && !target.contains(':') {
                found.push(Link { line, target });
            }
        }
    }
    found
}

/// Each line with its number and whether it stands in a fenced block; the fences themselves are left out.
fn lines(page: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut fence: Option<&str> = None;
    page.lines().enumerate().filter_map(move |(at, text)| {
        let start = text.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (fence, _) => return Some((at + 1, text, fence.is_some())),
        }
        None
    })
}

/// The code spans of one line: what stands between two runs of as many backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            rest = &rest[rest.find('`')?..];
            let ticks = rest.len() - rest.trim_start_matches('`').len();
            let (mark, body) = rest.split_at(ticks);
            if let Some(end) = body.find(mark) {
                rest = &body[end + ticks..];
                return Some(body[..end].trim());
            }
            rest = body;
        }
    })
}

/// What follows each `mark` that stands outside a code span.
fn after<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(mark)
        .filter(|(at, _)| text[..*at].matches('`').count().is_multiple_of(2))
        .map(move |(at, _)| &text[at + mark.len()..])
}

/// The target of a reference definition (`[name]: target`).
fn definition(text: &str) -> Option<&str> {
    let (name, target) = text.trim_start().strip_prefix('[')?.split_once("]: ")?;
    (!name.contains(']')).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_fences_are_code() {
        let page = "a `b c` and ``d ` e``\n\n```sh\nmake run\n```\n`f\n";
        let found: Vec<_> = code(page).into_iter().map(|c| (c.line, c.text, c.fenced)).collect();
        assert_eq!(found, [(1, "b c", false), (1, "d ` e", false), (4, "make run", true)]);
    }

    #[test]
    fn links_leave_out_the_web_and_code() {
        let page = "[a](docs/a.md#top) ![b](b.svg \"t\") [c](https://x.y/z) [d](#here) `[e](e.md)`\n\
                    [f]: ../f.md\n<img src=\"g.png\">\n```\n[h](h.md)\n```\n";
        let found: Vec<_> = links(page).into_iter().map(|l| (l.line, l.target)).collect();
        assert_eq!(found, [(1, "docs/a.md"), (1, "b.svg"), (2, "../f.md"), (3, "g.png")]);
    }
}
