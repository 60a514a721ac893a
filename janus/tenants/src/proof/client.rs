//! A client for the proof: blocking, on threads of its own, so that it uses nothing of the server's runtime.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take on a busy machine. It is only a safeguard: without it a server that hangs would hang the
/// proof.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// `x-janus-budget`.
    pub(super) spent: Option<String>,
    pub(super) closes: bool,
    pub(super) body: String,
}

pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

pub(super) fn say<T>(what: &str, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

impl Client {
    pub(super) fn connect(to: SocketAddr) -> Result<Client, String> {
        let stream = say("cannot connect", TcpStream::connect_timeout(&to, PATIENCE))?;
        say("no timeout", stream.set_read_timeout(Some(PATIENCE)))?;
        say("no timeout", stream.set_write_timeout(Some(PATIENCE)))?;
        say("no nodelay", stream.set_nodelay(true))?;
        Ok(Client { stream, buffer: Vec::new() })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        say("cannot send", self.stream.write_all(bytes))
    }

    /// Sends no more requests; answers may still come.
    pub(super) fn end(&self) -> Result<(), String> {
        say("cannot end", self.stream.shutdown(Shutdown::Write))
    }

    /// The next answer; `None` at the end of the connection. The answer to `HEAD` has no body.
    pub(super) fn reply(&mut self, to_head: bool) -> Result<Option<Reply>, String> {
        loop {
            if let Some((reply, length)) = parse(&self.buffer, to_head)? {
                self.buffer.drain(..length);
                // `100 Continue` is not an answer.
                if reply.status != 100 {
                    return Ok(Some(reply));
                }
                continue;
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => {
                    return Err(format!("an answer ends early: {:?}", String::from_utf8_lossy(&self.buffer)));
                }
                Ok(got) => self.buffer.extend_from_slice(&piece[..got]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset && self.buffer.is_empty() => {
                    return Ok(None);
                }
                Err(error) => return Err(format!("no answer: {error}")),
            }
        }
    }

    /// Sends, and waits for the answer.
    pub(super) fn ask(&mut self, request: &[u8]) -> Result<Reply, String> {
        self.send(request)?;
        self.reply(false)?.ok_or_else(|| "the connection was closed without an answer".to_string())
    }
}

/// The same on a new connection.
pub(super) fn ask_once(to: SocketAddr, request: &[u8]) -> Result<Reply, String> {
    Client::connect(to)?.ask(request)
}

pub(super) fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: here\r\nUser-Agent: proof\r\n\r\n").into_bytes()
}

pub(super) fn post(target: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {target} HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// The same, with the body in chunks of `size` bytes.
pub(super) fn post_chunks(target: &str, body: &str, size: usize) -> Vec<u8> {
    let mut bytes =
        format!("POST {target} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in body.as_bytes().chunks(size) {
        bytes.extend_from_slice(format!("{:x};name=value\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\nX-Trailer: end\r\n\r\n");
    bytes
}

fn parse(bytes: &[u8], to_head: bool) -> Result<Option<(Reply, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(bytes).map_err(|error| format!("an answer that is no HTTP: {error}"))? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(head) => head,
    };
    let find = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| String::from_utf8_lossy(header.value).into_owned())
    };
    let status = response.code.unwrap_or_default();
    let length = match find("content-length") {
        Some(_) if to_head => 0,
        Some(text) => text.parse().map_err(|_| format!("a length of `{text}`"))?,
        None if matches!(status, 100 | 204 | 304) => 0,
        None => return Err(format!("an answer without a length: {status}")),
    };
    let Some(body) = bytes.get(head..head + length) else { return Ok(None) };
    let reply = Reply {
        status,
        spent: find("x-janus-budget"),
        closes: find("connection").is_some_and(|word| word == "close"),
        body: String::from_utf8_lossy(body).into_owned(),
    };
    Ok(Some((reply, head + length)))
}
