//! The well-behaved tenants: their requests, and their answers, to the byte.

use super::client::{Client, Reply, get, post, post_chunks};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Requests that are sent before the first answer is read, now and then.
const PIPELINED: usize = 4;
/// A connection may be closed between two requests; then another one is made. This often in a row is no accident.
const RETRIES_MAX: u32 = 20;

/// Their names.
pub(super) const NAMES: [&str; 5] = ["hello", "greet", "wc", "words", "primes"];

/// What the client of one tenant measured.
#[derive(Debug, Default)]
pub(super) struct Saw {
    pub(super) latencies: Vec<Duration>,
    /// Connections that were closed before a request, as an HTTP server may.
    pub(super) retries: u64,
}

impl Saw {
    /// In microseconds: the longest time that this fraction of all requests took.
    pub(super) fn percentile(&self, fraction: f64) -> u128 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * fraction) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(0, Duration::as_micros)
    }
}

/// The `turn`th request to a tenant, and its expected answer.
fn question(name: &str, turn: usize) -> (Vec<u8>, u16, String) {
    match name {
        "greet" if turn % 7 == 3 => (get("/greet/"), 404, "who is to be greeted?\n".into()),
        "greet" => (get(&format!("/greet/{turn}")), 200, format!("GET: good day, {turn}, says proof\n")),
        "wc" => {
            let lines = turn % 40;
            let body = "one two\n".repeat(lines);
            let answer = format!("{lines} {} {}\n", 2 * lines, 8 * lines);
            let request = if turn.is_multiple_of(2) {
                post("/wc", &body)
            } else {
                post_chunks("/wc", &body, 1 + turn % 50)
            };
            (request, 200, answer)
        }
        "words" => {
            let (some, more) = (turn % 9 + 1, turn % 20 + 11);
            let body = format!("{}{}", "Alpha, beta. ".repeat(some), "beta! ".repeat(more));
            (post("/words", &body), 200, format!("{:>6} beta\n{some:>6} alpha\n", some + more))
        }
        "primes" => (get("/primes"), 200, "550 primes below 4000\n".into()),
        _ => (get("/hello"), 200, "Hello there\n".into()),
    }
}

fn check(name: &str, turn: usize, reply: &Reply) -> Result<(), String> {
    let (_, status, body) = question(name, turn);
    let wanted = Reply { status, spent: None, closes: false, body };
    if *reply == wanted { Ok(()) } else { Err(format!("{name} answered {reply:?} and not {wanted:?}")) }
}

/// Sends requests to one tenant until `enough` or `stop`, and checks every answer.
pub(super) fn run(
    to: SocketAddr,
    name: &'static str,
    enough: usize,
    stop: &AtomicBool,
) -> Result<Saw, String> {
    let mut saw = Saw::default();
    let mut client = Client::connect(to)?;
    let (mut turn, mut failures) = (0, 0);
    while turn < enough && !stop.load(Ordering::Acquire) {
        let together = if turn % 16 == 15 { PIPELINED } else { 1 };
        match ask(&mut client, name, turn, together, &mut saw) {
            Ok(()) => {
                turn += together;
                failures = 0;
            }
            // Closed before the first byte of an answer, or no room for the connection: tries again, as every client does.
            Err(None) if failures < RETRIES_MAX => {
                failures += 1;
                saw.retries += 1;
                std::thread::sleep(Duration::from_millis(50));
                client = Client::connect(to)?;
            }
            Err(None) => return Err(format!("{name}: the connection is closed again and again")),
            Err(Some(why)) => return Err(format!("{name}: {why}")),
        }
    }
    Ok(saw)
}

/// Sends a request; `None` if nothing was answered and the connection is gone.
fn ask(
    client: &mut Client,
    name: &str,
    turn: usize,
    together: usize,
    saw: &mut Saw,
) -> Result<(), Option<String>> {
    let requests: Vec<u8> = (turn..turn + together).flat_map(|turn| question(name, turn).0).collect();
    let start = Instant::now();
    client.send(&requests).map_err(|_| None)?;
    for turn in turn..turn + together {
        match client.reply(false).map_err(Some)? {
            None => return Err(None),
            Some(reply) if reply.status == 503 && reply.body == "too many connections\n" => return Err(None),
            Some(reply) => check(name, turn, &reply).map_err(Some)?,
        }
        saw.latencies.push(start.elapsed());
    }
    Ok(())
}
