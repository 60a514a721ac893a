//! The attackers: tenants whose modules are bombs, and clients that are slow, broken or rude. Each of them checks its
//! answer: an attack with another answer than the expected one is a failure, too.

use super::client::{Client, ask_once, get, post, say};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Tenants whose requests must fail: status, used-up part of the budget, and a text of the answer.
const BOMBS: [(&str, u16, Option<&str>, &str); 14] = [
    ("endless", 503, Some("ops"), "the ops budget of a request is spent"),
    ("recurse", 500, None, "stack"),
    ("trap", 500, None, "out of bounds"),
    ("grow", 503, Some("memory"), "the memory budget of a request is spent"),
    ("giant", 503, Some("memory"), "is less than its"),
    ("table", 503, Some("memory"), "is less than its"),
    ("fork", 503, Some("spawn"), "the spawn budget of a request is spent"),
    ("flood", 503, Some("messages"), "the messages budget of a request is spent"),
    ("spill", 503, Some("io"), "the io budget of a request is spent"),
    ("wait", 504, None, "it took too long"),
    ("cycle", 500, None, "import from each other"),
    ("thief", 500, None, "needs the grant `messages`"),
    ("broken", 500, None, "not a valid module"),
    ("nested", 200, None, ""),
];

/// Sends requests to every bomb so many times; some of them concurrently.
pub(super) fn bombs(to: SocketAddr, rounds: usize) -> Result<(), String> {
    std::thread::scope(|threads| {
        let attackers: Vec<_> = BOMBS
            .chunks(5)
            .map(|bombs| {
                threads.spawn(move || {
                    for _ in 0..rounds {
                        for bomb in bombs {
                            explode(to, bomb)?;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        attackers.into_iter().try_for_each(|attacker| {
            attacker.join().unwrap_or_else(|_| Err("an attacker panicked".to_string()))
        })
    })
}

/// Every attack, one after the other, so that each has given back its resources before the next begins.
pub(super) fn one_by_one(to: SocketAddr) -> Result<(), String> {
    BOMBS.iter().try_for_each(|bomb| explode(to, bomb))?;
    nonsense(to, 1)?;
    manners(to)
}

fn explode(to: SocketAddr, bomb: &(&str, u16, Option<&str>, &str)) -> Result<(), String> {
    let (name, status, spent, said) = *bomb;
    let reply = patiently(to, &get(&format!("/{name}")))?;
    // The tenant's purse may be empty before its request's budget is used up: that also affects only this tenant.
    let poor = reply.status == 429 && reply.spent.is_some();
    let right = reply.status == status && reply.spent.as_deref() == spent && reply.body.contains(said);
    if right || poor { Ok(()) } else { Err(format!("{name}: {reply:?}")) }
}

/// Repeats a request until there is room for the connection.
fn patiently(to: SocketAddr, request: &[u8]) -> Result<super::client::Reply, String> {
    for _ in 0..100 {
        match ask_once(to, request) {
            Ok(reply) if reply.body != "too many connections\n" => return Ok(reply),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    Err("there is never room for a connection".to_string())
}

/// A tenant that asks for more than its purse has is told to wait; the others are not.
pub(super) fn purse(to: SocketAddr) -> Result<(), String> {
    let mut statuses = Vec::new();
    for _ in 0..6000 {
        let reply = patiently(to, &get("/poor"))?;
        match (reply.status, reply.spent.as_deref()) {
            (200, None) => {}
            (429, Some("ops")) => return Ok(()),
            _ => return Err(format!("poor: {reply:?}")),
        }
        statuses.push(reply.status);
    }
    Err(format!("poor: {} requests, and its purse was never empty", statuses.len()))
}

/// Invalid requests, and the status of their refusal. After it the connection is closed.
pub(super) fn nonsense(to: SocketAddr, rounds: usize) -> Result<(), String> {
    let long = "x".repeat(10_000);
    let start = "POST /wc HTTP/1.1\r\nHost: x\r\n";
    let chunked = format!("{start}Transfer-Encoding: chunked\r\n\r\n");
    let cases: [(String, u16); 18] = [
        ("\r\n\r\nnonsense\r\n\r\n".into(), 400),
        ("\u{16}\u{3}\u{1}\u{2}\r\n\r\n".into(), 400),
        (format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(100)), 431),
        ("GET / HTTP/1.1\r\n\r\n".into(), 400),
        ("GET / HTTP/3.0\r\nHost: x\r\n\r\n".into(), 505),
        (format!("POST /wc HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n{long}"), 413),
        (
            format!("POST /wc HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n{long}"),
            413,
        ),
        ("POST /wc HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n".into(), 400),
        (
            "POST /wc HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"
                .into(),
            400,
        ),
        ("POST /wc HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n".into(), 501),
        // What others read differently, so that a request may be hidden in it.
        (format!("{start}Transfer-Encoding: \u{a0}chunked\r\n\r\n0\r\n\r\n"), 400),
        (format!("{start}Transfer-Encoding: ,chunked,\r\n\r\n0\r\n\r\n"), 400),
        (format!("{start}Transfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc"), 400),
        ("GET /hello HTTP/1.1\nHost: x\n\n".into(), 400),
        (format!("{chunked}3   \r\nabc\r\n0\r\n\r\n"), 400),
        (format!("{chunked}3;a\nb\r\nabc\r\n0\r\n\r\n"), 400),
        (format!("{chunked}0\r\nA: b\n\r\n"), 400),
    ];
    for _ in 0..rounds {
        for (text, status) in &cases {
            let reply = patiently(to, text.as_bytes())?;
            if (reply.status, reply.closes) != (*status, true) {
                let start: String = text.chars().take(60).collect();
                return Err(format!("{start:?} was answered {reply:?}"));
            }
        }
        let reply = patiently(to, &get("/nobody"))?;
        if reply.status != 404 {
            return Err(format!("a tenant that is not there: {reply:?}"));
        }
    }
    Ok(())
}

/// What HTTP allows and few clients do: `HEAD`, HTTP/1.0, a go-ahead before the body, closing one direction.
pub(super) fn manners(to: SocketAddr) -> Result<(), String> {
    let wrong = |what: &str, reply: &dyn std::fmt::Debug| Err(format!("{what}: {reply:?}"));
    let mut client = Client::connect(to)?;
    client.send(b"HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n")?;
    match client.reply(true)? {
        Some(reply) if reply.status == 200 && reply.body.is_empty() && !reply.closes => {}
        reply => return wrong("HEAD", &reply),
    }
    client.send(b"POST /wc HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")?;
    client.send(b"a b\n")?;
    match client.reply(false)? {
        Some(reply) if reply.body == "1 2 4\n" => {}
        reply => return wrong("Expect", &reply),
    }
    // The client sends nothing more, and still gets both answers.
    client.send(&[get("/hello"), get("/greet/a")].concat())?;
    client.end()?;
    let replies = [client.reply(false)?, client.reply(false)?, client.reply(false)?];
    let bodies = replies.each_ref().map(|reply| reply.as_ref().map(|reply| reply.body.as_str()));
    if bodies != [Some("Hello there\n"), Some("GET: good day, a, says proof\n"), None] {
        return wrong("a half-closed connection", &replies);
    }
    let mut old = Client::connect(to)?;
    let reply = old.ask(b"GET /hello HTTP/1.0\r\n\r\n")?;
    if !reply.closes || reply.body != "Hello there\n" || old.reply(false)?.is_some() {
        return wrong("HTTP/1.0", &reply);
    }
    Ok(())
}

/// What became of slow and half-open connections.
#[derive(Debug, Default)]
pub(super) struct Slow {
    pub(super) connections: usize,
    /// Answered with 408.
    pub(super) late: usize,
    /// Answered with 503, or closed.
    pub(super) closed: usize,
}

/// Connections that send a byte now and then, that stop in the middle, that never send anything, and that never read. The
/// server must end each of them.
pub(super) fn slow(to: SocketAddr, count: usize) -> Result<Slow, String> {
    let mut open = Vec::new();
    for index in 0..count {
        let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_secs(60)) else { continue };
        say("no nonblocking", stream.set_nonblocking(true))?;
        let begin: Vec<u8> = match index % 4 {
            0 => b"GET /hello HTTP/1.1\r\nHost: x\r\nX: ".to_vec(),
            1 => post("/wc", &"x".repeat(60_000))[..200].to_vec(),
            // Sends many requests and never reads. Not to a neighbour, whose purse all of them together would empty.
            2 => get("/mute").repeat(20),
            _ => Vec::new(),
        };
        let _ = (&stream).write(&begin);
        open.push((index, stream));
    }
    let mut slow = Slow { connections: open.len(), ..Slow::default() };
    // Far longer than every limit of the server.
    for _ in 0..1200 {
        open.retain(|(index, stream)| {
            let sent = if index % 4 < 2 { (&*stream).write(b"x").map(drop) } else { Ok(()) };
            let mut piece = [0; 256];
            // A client that never reads only checks whether the connection is over.
            let got = if index % 4 == 2 { stream.peek(&mut piece) } else { (&*stream).read(&mut piece) };
            match got {
                Ok(got) if piece[..got].starts_with(b"HTTP/1.1 408") => slow.late += 1,
                Ok(got) if index % 4 == 2 && got > 0 => {
                    return stream.take_error().is_ok_and(|kept| kept.is_none());
                }
                Ok(_) => slow.closed += 1,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && sent.is_ok() => return true,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => slow.closed += 1,
                Err(_) => slow.closed += 1,
            }
            false
        });
        // Connections that were answered and do not read are for this client to close.
        if open.iter().all(|(index, _)| index % 4 == 2) {
            return Ok(slow);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(format!("{} of {count} slow connections are still open", open.len()))
}

/// Writes the modules that no tool would make: bytes that are no module, and 50,000 nested blocks.
pub(super) fn write_modules(folder: &Path) -> Result<(), String> {
    const DEPTH: usize = 50_000;
    say("no folder for modules", std::fs::create_dir_all(folder))?;
    let broken = b"\0asm\x01\0\0\0\x01\xff\xff\xff\xff\x0fnonsense";
    say("cannot write a module", std::fs::write(folder.join("broken.wasm"), broken))?;
    let mut body = vec![0];
    body.extend([0x02, 0x40].repeat(DEPTH));
    body.extend([0x0b].repeat(DEPTH + 1));
    let mut wasm = b"\0asm\x01\0\0\0".to_vec();
    // One type, one function, its export `_start`.
    wasm.extend(b"\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x0a\x01\x06_start\0\0");
    let code = [&[1][..], &number(body.len()), &body].concat();
    wasm.extend([&[10][..], &number(code.len()), &code].concat());
    say("cannot write a module", std::fs::write(folder.join("nested.wasm"), wasm))
}

/// A number in WebAssembly's encoding (LEB128).
fn number(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
