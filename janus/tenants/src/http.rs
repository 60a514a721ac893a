//! HTTP/1.1 as a server meets it: whole requests from a stream of bytes that may be slow, broken or malicious. Every refusal
//! has a status and a reason; nothing is read without a limit in bytes and in time.

use janus::Cx;
use janus::net::TcpStream;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;
/// Bytes that are read at a time.
const PIECE: usize = 4 << 10;
/// The most bytes of a line that begins a chunk, extensions included.
const CHUNK_LINE_MAX: usize = 256;
/// The most hex digits of a chunk's size: as many as fit into 64 bits.
const CHUNK_DIGITS_MAX: usize = 16;
/// White space in a header. Other white space of Unicode belongs to the value: other servers do not strip it, so this one
/// does not, either.
const BLANK: [char; 2] = [' ', '\t'];
/// How many bytes are discarded after a refusal, so that the other side reads the answer before the connection is closed.
const DRAIN_MAX: usize = 256 << 10;

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request line and its headers.
    pub head_bytes: usize,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Time from the first byte of a request to the end of its headers.
    pub head: Duration,
    /// Time from there to the end of the body.
    pub body: Duration,
    /// Time without a request.
    pub idle: Duration,
    /// Time for an answer to be taken.
    pub write: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let seconds = Duration::from_secs;
        Limits {
            head_bytes: 8 << 10,
            body_bytes: 64 << 10,
            head: seconds(5),
            body: seconds(10),
            idle: seconds(30),
            write: seconds(10),
        }
    }
}

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET` and so on.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
    /// Whether the other side wants to send another request.
    pub keep_alive: bool,
}

/// Why there is no request.
#[derive(Debug)]
pub enum Refusal {
    /// There will be none: the other side has closed, or was idle for too long. There is nothing to answer.
    Over,
    /// Answer this and close the connection, because what follows cannot be understood.
    Say(u16, &'static str),
    /// The connection is broken.
    Broken(io::Error),
}

const fn bad(why: &'static str) -> Refusal {
    Refusal::Say(400, why)
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Length(u64),
    Chunked,
}

#[derive(Debug)]
struct Head {
    request: Request,
    length: usize,
    body: Body,
    /// Whether the client waits for a go-ahead before it sends the body.
    expects: bool,
}

/// Reads requests of one connection.
pub struct Reader<'a> {
    stream: &'a TcpStream,
    limits: &'a Limits,
    /// Bytes that were read and are not used yet: perhaps the next requests.
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// A reader for a new connection.
    #[must_use]
    pub fn new(stream: &'a TcpStream, limits: &'a Limits) -> Reader<'a> {
        Reader { stream, limits, buffer: Vec::new() }
    }

    /// The next request. `begins` is called when its first byte has arrived.
    pub fn next(&mut self, cx: &Cx, begins: impl FnOnce()) -> Result<Request, Refusal> {
        let idle = cx.now() + self.limits.idle;
        while self.buffer.is_empty() {
            match self.fill(cx, idle) {
                Ok(0) | Err(Refusal::Say(..)) => return Err(Refusal::Over),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        begins();
        let until = cx.now() + self.limits.head;
        let head = loop {
            if let Some(head) = parse(&self.buffer)? {
                break head;
            }
            if self.buffer.len() >= self.limits.head_bytes {
                return Err(Refusal::Say(431, "the headers are too long"));
            }
            if self.fill(cx, until)? == 0 {
                // Empty lines between requests are allowed, and so is closing after them.
                let blank = self.buffer.iter().all(|byte| b"\r\n".contains(byte));
                return Err(if blank { Refusal::Over } else { bad("the request ends in its headers") });
            }
        };
        if head.length > self.limits.head_bytes {
            return Err(Refusal::Say(431, "the headers are too long"));
        }
        self.buffer.drain(..head.length);
        let mut request = head.request;
        let until = cx.now() + self.limits.body;
        if head.expects && head.body != Body::Length(0) && self.buffer.is_empty() {
            self.check(&head.body)?;
            send(cx, self.stream, b"HTTP/1.1 100 Continue\r\n\r\n", self.limits.write)
                .map_err(Refusal::Broken)?;
        }
        self.check(&head.body)?;
        match head.body {
            Body::Length(length) => {
                self.want(cx, length as usize, until)?;
                request.body = self.buffer.drain(..length as usize).collect();
            }
            Body::Chunked => self.chunks(cx, until, &mut request.body)?,
        }
        Ok(request)
    }

    fn check(&self, body: &Body) -> Result<(), Refusal> {
        match body {
            Body::Length(length) if *length > self.limits.body_bytes as u64 => {
                Err(Refusal::Say(413, "the body is too long"))
            }
            _ => Ok(()),
        }
    }

    /// Reads until there are `length` bytes.
    fn want(&mut self, cx: &Cx, length: usize, until: Duration) -> Result<(), Refusal> {
        while self.buffer.len() < length {
            if self.fill(cx, until)? == 0 {
                return Err(bad("the request ends in its body"));
            }
        }
        Ok(())
    }

    fn chunks(&mut self, cx: &Cx, until: Duration, body: &mut Vec<u8>) -> Result<(), Refusal> {
        loop {
            let (line, size) = loop {
                match chunk_size(&self.buffer)? {
                    Some(found) => break found,
                    None => self.want(cx, self.buffer.len() + 1, until)?,
                }
            };
            if size > (self.limits.body_bytes - body.len()) as u64 {
                return Err(Refusal::Say(413, "the body is too long"));
            }
            self.buffer.drain(..line);
            if size == 0 {
                return self.trailers(cx, until);
            }
            let size = size as usize;
            self.want(cx, size + 2, until)?;
            if &self.buffer[size..size + 2] != b"\r\n" {
                return Err(bad("a chunk is longer than it says"));
            }
            body.extend(self.buffer.drain(..size));
            self.buffer.drain(..2);
        }
    }

    /// Reads the trailers and ignores them.
    fn trailers(&mut self, cx: &Cx, until: Duration) -> Result<(), Refusal> {
        loop {
            match trailers_length(&self.buffer)? {
                Some(length) => {
                    self.buffer.drain(..length);
                    return Ok(());
                }
                None if self.buffer.len() < self.limits.head_bytes => {
                    self.want(cx, self.buffer.len() + 1, until)?
                }
                None => return Err(Refusal::Say(431, "the trailers are too long")),
            }
        }
    }

    /// Reads a piece; a refusal if that is not possible before `until`. Returns 0 at the end.
    fn fill(&mut self, cx: &Cx, until: Duration) -> Result<usize, Refusal> {
        let late = Refusal::Say(408, "the request takes too long");
        let Some(left) = until.checked_sub(cx.now()).filter(|left| !left.is_zero()) else { return Err(late) };
        self.stream.set_read_timeout(Some(left)).map_err(Refusal::Broken)?;
        let length = self.buffer.len();
        self.buffer.resize(length + PIECE, 0);
        let got = self.stream.read(cx, &mut self.buffer[length..]);
        self.buffer.truncate(length + got.as_ref().map_or(0, |got| *got));
        match got {
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(late),
            Err(error) => Err(Refusal::Broken(error)),
            Ok(got) => Ok(got),
        }
    }
}

/// Whether every line ends with CR and LF. A reader that accepts a bare LF as an end sees other headers than one that does
/// not.
fn whole_lines(bytes: &[u8]) -> bool {
    bytes.split_inclusive(|&byte| byte == b'\n').all(|line| line.ends_with(b"\r\n"))
}

/// Parses the line that begins a chunk, if it is complete: returns its length and the chunk's size.
fn chunk_size(bytes: &[u8]) -> Result<Option<(usize, u64)>, Refusal> {
    let start = &bytes[..bytes.len().min(CHUNK_LINE_MAX)];
    match start.iter().position(|&byte| byte == b'\n') {
        Some(end) => Ok(Some((end + 1, size_of_line(&start[..=end]).ok_or(bad("a chunk has no size"))?))),
        None if start.len() < CHUNK_LINE_MAX => Ok(None),
        None => Err(bad("a chunk has no size")),
    }
}

/// Accepts digits, an optional extension, and nothing else: anything that one reader tolerates, another may read differently.
fn size_of_line(line: &[u8]) -> Option<u64> {
    let line = line.strip_suffix(b"\r\n")?;
    let (digits, extension) = line.split_at(line.iter().position(|&byte| byte == b';').unwrap_or(line.len()));
    let good = digits.len() <= CHUNK_DIGITS_MAX
        && digits.iter().all(u8::is_ascii_hexdigit)
        && !extension.iter().any(u8::is_ascii_control);
    let digits = std::str::from_utf8(digits).ok().filter(|_| good)?;
    u64::from_str_radix(digits, 16).ok()
}

/// The length of the trailers at the beginning of these bytes, if they are complete.
fn trailers_length(bytes: &[u8]) -> Result<Option<usize>, Refusal> {
    let mut found = [httparse::EMPTY_HEADER; HEADERS_MAX];
    match httparse::parse_headers(bytes, &mut found) {
        Ok(httparse::Status::Complete((length, _))) if whole_lines(&bytes[..length]) => Ok(Some(length)),
        Ok(httparse::Status::Partial) => Ok(None),
        _ => Err(bad("the trailers are malformed")),
    }
}

/// Parses the head at the beginning of these bytes, if it is complete.
fn parse(bytes: &[u8]) -> Result<Option<Head>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::Version) => return Err(Refusal::Say(505, "only HTTP/1.0 and HTTP/1.1")),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::Say(431, "too many headers")),
        Err(_) => return Err(bad("this is no HTTP request")),
    };
    if !whole_lines(&bytes[..length]) {
        return Err(bad("a line ends with CR and LF"));
    }
    let mut request = Request {
        method: parsed.method.unwrap_or_default().to_string(),
        target: origin(parsed.path.unwrap_or_default()).ok_or(bad("the target is no path"))?.to_string(),
        headers: Vec::with_capacity(parsed.headers.len()),
        body: Vec::new(),
        keep_alive: false,
    };
    for header in parsed.headers.iter() {
        let value = std::str::from_utf8(header.value).map_err(|_| bad("a header is no text"))?;
        request.headers.push((header.name.to_ascii_lowercase(), value.to_string()));
    }
    let new = parsed.version == Some(1);
    if new && request.all("host").count() != 1 {
        return Err(bad("a request has one host"));
    }
    let says =
        |word: &str| request.all("connection").flat_map(words).any(|said| said.eq_ignore_ascii_case(word));
    let keep_alive = if new { !says("close") } else { says("keep-alive") };
    let expects = new && request.all("expect").any(|what| what.eq_ignore_ascii_case("100-continue"));
    let body = framing(&request, new)?;
    request.keep_alive = keep_alive;
    Ok(Some(Head { request, length, body, expects }))
}

/// Path and query of a target, whichever form it has.
fn origin(target: &str) -> Option<&str> {
    if target.starts_with('/') {
        return Some(target);
    }
    let rest = target.strip_prefix("http://")?;
    Some(rest.find('/').map_or("/", |at| &rest[at..]))
}

/// How the body is framed. A request with two lengths for its body is refused: a proxy that passes it on may read it the
/// other way.
fn framing(request: &Request, new: bool) -> Result<Body, Refusal> {
    let mut lengths = request.all("content-length");
    let mut codings = request.all("transfer-encoding");
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(Body::Length(0)),
        (Some(_), Some(_)) => Err(bad("a body has a length or an encoding, not both")),
        (Some(text), None) => {
            if lengths.next().is_some() {
                return Err(bad("a body has one length, not two lengths"));
            }
            if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(bad("the content length is no number"));
            }
            // A number that does not fit is too long.
            Ok(Body::Length(text.parse().unwrap_or(u64::MAX)))
        }
        (None, Some(_)) if !new => Err(bad("HTTP/1.0 has no chunks")),
        (None, Some(_)) if codings.next().is_some() => Err(bad("a body has one encoding, not two")),
        (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => Ok(Body::Chunked),
        (None, Some(coding)) => Err(not_chunked(coding)),
    }
}

/// The refusal of an unsupported encoding, or of a disguised `chunked` that only some readers recognise.
fn not_chunked(coding: &str) -> Refusal {
    if coding.is_ascii() && words(coding).any(|word| !word.eq_ignore_ascii_case("chunked")) {
        Refusal::Say(501, "the only encoding is `chunked`")
    } else {
        bad("the encoding is malformed")
    }
}

/// The elements of a list in a header.
fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(|word| word.trim_matches(BLANK)).filter(|word| !word.is_empty())
}

impl Request {
    /// The values of every header of this name.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.trim_matches(BLANK))
    }

    /// The first part of the path, which is a tenant's name.
    #[must_use]
    pub fn tenant(&self) -> &str {
        let path = self.target.split(['?', '#']).next().unwrap_or_default();
        path.trim_start_matches('/').split('/').next().unwrap_or_default()
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// The part of a budget that was used up, as header `x-janus-budget`.
    pub spent: Option<&'static str>,
    /// After how long to try again.
    pub retry_after: Option<Duration>,
    /// The allowed methods.
    pub allow: Option<&'static str>,
}

impl Answer {
    /// A line of text.
    #[must_use]
    pub fn text(status: u16, line: &str) -> Answer {
        let body = format!("{line}\n").into_bytes();
        Answer { status, body, spent: None, retry_after: None, allow: None }
    }

    /// Head and body in the form in which they are sent. Without a body (`HEAD`) the head is the same.
    #[must_use]
    pub fn bytes(&self, without_body: bool, closes: bool) -> Vec<u8> {
        let (status, reason, length) = (self.status, reason(self.status), self.body.len());
        // These two have no body, and therefore no length.
        let bare = matches!(status, 204 | 304);
        let mut text = format!("HTTP/1.1 {status} {reason}\r\n");
        if !bare {
            text += &format!("content-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\n");
        }
        if let Some(part) = self.spent {
            text += &format!("x-janus-budget: {part}\r\n");
        }
        if let Some(time) = self.retry_after {
            text += &format!("retry-after: {}\r\n", time.as_secs().max(1));
        }
        if let Some(methods) = self.allow {
            text += &format!("allow: {methods}\r\n");
        }
        if closes {
            text += "connection: close\r\n";
        }
        text += "\r\n";
        let mut bytes = text.into_bytes();
        if !without_body && !bare {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Other",
    }
}

/// Writes all bytes within the limit.
pub fn send(cx: &Cx, stream: &TcpStream, mut bytes: &[u8], limit: Duration) -> io::Result<()> {
    let until = cx.now() + limit;
    while !bytes.is_empty() {
        let left = until.checked_sub(cx.now()).filter(|left| !left.is_zero());
        stream.set_write_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        let sent = stream.write(cx, bytes)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Ends a connection whose other side may still be sending: closes the sending direction, and reads on for a while. Closing
/// at once would discard what the other side has not read yet.
pub fn part(cx: &Cx, stream: &TcpStream, limit: Duration) {
    let until = cx.now() + limit;
    let mut left = DRAIN_MAX;
    let mut piece = [0; 1 << 10];
    let mut open = stream.shutdown(Shutdown::Write).is_ok();
    while open && left > 0 {
        let time = until.saturating_sub(cx.now());
        open = !time.is_zero() && stream.set_read_timeout(Some(time)).is_ok();
        match stream.read(cx, &mut piece) {
            Ok(got @ 1..) if open => left = left.saturating_sub(got),
            _ => open = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> u16 {
        match parse(text.as_bytes()) {
            Err(Refusal::Say(status, _)) => status,
            other => panic!("{text:?} gives {other:?}"),
        }
    }

    fn head(text: &str) -> Head {
        parse(text.as_bytes()).expect("a good head").expect("a whole head")
    }

    #[test]
    fn j_13_heads() {
        let found = head("GET /a/b?c HTTP/1.1\r\nHost: x\r\nX-Y:  z \r\n\r\nrest");
        assert_eq!(
            (found.request.tenant(), found.request.keep_alive, found.body),
            ("a", true, Body::Length(0))
        );
        assert_eq!(found.request.headers, [("host".into(), "x".into()), ("x-y".into(), "z".into())]);
        assert_eq!(head("GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n").request.target, "/a");
        assert!(!head("GET / HTTP/1.1\r\nHost: x\r\nConnection: a, Close\r\n\r\n").request.keep_alive);
        assert!(!head("GET / HTTP/1.0\r\n\r\n").request.keep_alive);
        assert!(head("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").request.keep_alive);
        let chunked = head("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n");
        assert_eq!(chunked.body, Body::Chunked);
        let long = head("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n");
        assert_eq!(long.body, Body::Length(u64::MAX));
        assert!(parse(b"GET / HTTP/1.1\r\nHost: x\r\n").expect("no error yet").is_none());
    }

    /// What a request smuggler tries, and plain nonsense.
    #[test]
    fn j_13_bad_heads_are_refused() {
        let with = |headers: &str| refused(&format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n"));
        assert_eq!(with("Content-Length: 3\r\nTransfer-Encoding: chunked"), 400);
        assert_eq!(with("Content-Length: 3\r\nContent-Length: 4"), 400);
        assert_eq!(with("Content-Length: +3"), 400);
        assert_eq!(with("Content-Length: 3, 3"), 400);
        assert_eq!(with("Content-Length:"), 400);
        assert_eq!(with("Transfer-Encoding: gzip, chunked"), 501);
        assert_eq!(with("Host: y"), 400);
        assert_eq!(with("Content-Length : 3"), 400);
        assert_eq!(with(&"A: b\r\n".repeat(80)), 431);
        assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(refused("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), 505);
        assert_eq!(refused("GET nowhere HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        assert_eq!(refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
        assert_eq!(refused("\x16\x03\x01\x02\r\n\r\n"), 400);
    }

    fn why(refusal: Option<Refusal>) -> (u16, &'static str) {
        match refusal {
            Some(Refusal::Say(status, why)) => (status, why),
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    /// A request that this server and a proxy before it might read differently can hide a second request.
    #[test]
    fn j_13_ambiguous_framing_is_refused() {
        let with = |headers: &str| refused(&format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n"));
        assert_eq!(with("Transfer-Encoding: \u{a0}chunked"), 400);
        assert_eq!(with("Transfer-Encoding: chunked\u{2003}"), 400);
        assert_eq!(with("Content-Length: \u{a0}5"), 400);
        assert_eq!(with("Content-Length: 5\u{a0}"), 400);
        assert_eq!(with("Transfer-Encoding:\r\nContent-Length: 5"), 400);
        assert_eq!(with("Content-Length: 5\r\nTransfer-Encoding: \t"), 400);
        assert_eq!(with("Transfer-Encoding:"), 400);
        assert_eq!(with("Transfer-Encoding: ,chunked,"), 400);
        assert_eq!(with("Transfer-Encoding: chunked, chunked"), 400);
        assert_eq!(with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 400);
        assert_eq!(with("Transfer-Encoding:\r\nTransfer-Encoding: chunked"), 400);
        assert_eq!(with("Transfer-Encoding: xchunked"), 501);
        let blank = head("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \tCHUNKED \t\r\n\r\n");
        assert_eq!(blank.body, Body::Chunked);
    }

    #[test]
    fn j_13_bare_line_ends_are_refused() {
        assert_eq!(refused("GET / HTTP/1.1\nHost: x\r\n\r\n"), 400);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: x\n\r\n"), 400);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: x\r\n\n"), 400);
        assert_eq!(refused("\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        assert_eq!(head("\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\nbody\n").request.target, "/");
        assert_eq!(why(trailers_length(b"A: b\n\r\n").err()).0, 400);
        assert_eq!(why(trailers_length(b"A: b\r\n\n").err()).0, 400);
        assert_eq!(trailers_length(b"A: b\r\n\r\nrest\n").expect("good trailers"), Some(8));
        assert_eq!(trailers_length(b"\r\n").expect("no trailers"), Some(2));
        assert_eq!(trailers_length(b"A: b\r\n").expect("no error yet"), None);
    }

    #[test]
    fn j_13_chunk_sizes() {
        let good = |line: &str| chunk_size(line.as_bytes()).expect("a good line");
        assert_eq!(good("5\r\nhello\r\n"), Some((3, 5)));
        assert_eq!(good("aF;name=\"a b\"\r\n"), Some((15, 0xaf)));
        assert_eq!(good("ffffffffffffffff\r\n"), Some((18, u64::MAX)));
        assert_eq!((good(""), good("5"), good("5\r"), good("5;a")), (None, None, None, None));
        let bad = ["5   \r\n", "5;a\nb\r\n", "5;a\rb\r\n", "5;\0\r\n", "5\n", "5\r\r\n", "5 ;a\r\n"];
        let worse = ["\r\n", ";a\r\n", "+5\r\n", "0x5\r\n", " 5\r\n", "00000000000000005\r\n", "\u{a0}5\r\n"];
        for line in bad.into_iter().chain(worse) {
            assert_eq!(why(chunk_size(line.as_bytes()).err()).0, 400, "{line:?}");
        }
        let long = format!("5;{}\r\n", "a".repeat(CHUNK_LINE_MAX));
        assert_eq!(why(chunk_size(long.as_bytes()).err()).0, 400);
        assert_eq!(why(chunk_size(&long.as_bytes()[..CHUNK_LINE_MAX]).err()).0, 400);
    }

    #[test]
    fn j_13_two_lengths_are_called_so() {
        let text = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n";
        let (status, said) = why(parse(text).err());
        assert!(status == 400 && said.contains("two lengths"), "{said}");
    }

    #[test]
    fn j_13_answers() {
        let answer = Answer { spent: Some("ops"), ..Answer::text(503, "spent") };
        let text = String::from_utf8(answer.bytes(false, true)).expect("text");
        assert!(
            text.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && text.ends_with("\r\n\r\nspent\n")
        );
        assert!(text.contains("content-length: 6\r\nx-janus-budget: ops\r\nconnection: close\r\n"));
        let head = String::from_utf8(answer.bytes(true, true)).expect("text");
        assert_eq!(Some(head.as_str()), text.strip_suffix("spent\n"));
    }
}
