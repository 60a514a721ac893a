//! `make run-tenants`: a server in a process of its own is attacked from this one, beside well-behaved tenants.
//!
//! Every answer of a well-behaved tenant is compared to the byte, every attack must have the expected result, and
//! afterwards the server's memory, tasks and descriptors must be what they were (`proof/memory.rs`). Times are printed, but
//! not judged.

mod attack;
mod client;
mod memory;
mod neighbours;

use client::{Client, ask_once, get, say};
use memory::Memory;
use neighbours::Saw;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How much of everything is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Requests to each well-behaved tenant, without an attack.
    calm: usize,
    /// How often each attack is made in each wave.
    rounds: usize,
    /// Slow and half-open connections in each wave.
    slow: usize,
}

impl Scale {
    /// For a person who watches.
    pub const LONG: Scale = Scale { calm: 300, rounds: 12, slow: 320 };
    /// For a test.
    pub const SHORT: Scale = Scale { calm: 30, rounds: 2, slow: 24 };
}

/// Rounds of attacks one by one between two checks of the server.
const ROUNDS: usize = 8;

/// The server, and what is known of its process.
struct Served {
    child: Child,
    /// Closing it asks the server to end.
    input: Option<ChildStdin>,
    to: SocketAddr,
}

impl Served {
    fn start(settings: &Path, modules: &Path) -> Result<Served, String> {
        let program = say("who am I?", std::env::current_exe())?;
        let mut command = Command::new(program);
        command.arg("serve").arg(settings).args(["--port", "0", "--modules"]).arg(modules);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = say("the server does not start", command.spawn())?;
        let input = child.stdin.take();
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            say("the server says nothing", BufReader::new(output).read_line(&mut line))?;
        }
        let address =
            line.trim().strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix('/'));
        match address.and_then(|address| address.parse().ok()) {
            Some(to) => Ok(Served { child, input, to }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("the server says {line:?}"))
            }
        }
    }

    /// Asks the server to end while a request is open: the answer must still come, and the server must end by itself.
    fn end(&mut self) -> Result<(), String> {
        let mut client = Client::connect(self.to)?;
        let mut idle = Client::connect(self.to)?;
        if idle.ask(&get("/hello"))?.status != 200 {
            return Err("no answer before the end".to_string());
        }
        client.send(&get("/pause"))?;
        // The request is open when the server has counted it; then the server is asked to end.
        while !ask_once(self.to, &get("/-/"))?.body.contains("\npause 1 ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.input.take());
        match client.reply(false)? {
            Some(reply) if reply.status == 200 && reply.body == "rested\n" => {}
            reply => return Err(format!("the request that was open at the end got {reply:?}")),
        }
        if let Some(reply) = idle.reply(false)? {
            return Err(format!("an idle connection was told {reply:?} at the end"));
        }
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match say("the server is gone", self.child.try_wait())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the server ended with {status}")),
                None if Instant::now() > until => return Err("the server does not end".to_string()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The server has ended already, or something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends requests to every well-behaved tenant, on a thread each, while `beside` runs; without it, `enough` times.
fn neighbours<T: Send>(
    to: SocketAddr,
    enough: usize,
    beside: Option<impl FnOnce() -> Result<T, String>>,
) -> Result<(Vec<Saw>, Option<T>), String> {
    let stop = AtomicBool::new(false);
    let enough = if beside.is_some() { usize::MAX } else { enough };
    std::thread::scope(|threads| {
        let stop = &stop;
        let clients: Vec<_> = neighbours::NAMES
            .into_iter()
            .map(|name| threads.spawn(move || neighbours::run(to, name, enough, stop)))
            .collect();
        let made = beside.map(|attack| attack()).transpose();
        if enough == usize::MAX {
            stop.store(true, Ordering::Release);
        }
        let saw = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| Err("a client panicked".to_string())))
            .collect::<Result<Vec<_>, _>>();
        // If an attack failed because the server is gone, both report errors; the neighbour's comes first.
        Ok((saw?, made?))
    })
}

/// All attacks at once.
fn wave(to: SocketAddr, scale: &Scale) -> Result<attack::Slow, String> {
    std::thread::scope(|threads| {
        let join = |result: std::thread::Result<Result<(), String>>| {
            result.unwrap_or_else(|_| Err("an attacker panicked".to_string()))
        };
        let bombs = threads.spawn(|| attack::bombs(to, scale.rounds));
        let nonsense = threads.spawn(|| attack::nonsense(to, scale.rounds));
        let purse = threads.spawn(|| attack::purse(to));
        let slow = attack::slow(to, scale.slow);
        for attacker in [bombs, nonsense, purse] {
            join(attacker.join())?;
        }
        slow
    })
}

/// The whole proof.
pub fn prove(settings: &Path, modules: &Path, scale: &Scale) -> Result<(), String> {
    attack::write_modules(modules)?;
    let mut server = Served::start(settings, modules)?;
    let to = server.to;
    attack::manners(to)?;
    let nothing: Option<fn() -> Result<(), String>> = None;
    let (calm, _) = neighbours(to, scale.calm, nothing)?;
    // wasmi compiles a function when it is first called: the memory for that stays.
    attack::one_by_one(to)?;
    let mut memory = Memory::new(server.child.id(), to)?;
    let (mut attacked, mut slow) = (Vec::new(), Vec::new());
    memory.settles(&memory::WAVES, || {
        let (saw, told) = neighbours(to, 0, Some(|| wave(to, scale)))?;
        attacked.push(saw);
        slow.extend(told);
        Ok(())
    })?;
    memory.settles(&memory::BATCHES, || (0..ROUNDS).try_for_each(|_| attack::one_by_one(to)))?;
    // Well-behaved tenants are still served.
    neighbours(to, scale.calm.min(50), nothing)?;
    let table = ask_once(to, &get("/-/"))?.body;
    print(&table, &calm, &attacked);
    for (wave, slow) in slow.into_iter().enumerate() {
        println!(
            "wave {}: {} slow and half-open connections; {} told 408, {} told 503 or closed",
            wave + 1,
            slow.connections,
            slow.late,
            slow.closed
        );
    }
    memory.print();
    server.end()
}

/// Prints the server's own numbers, and what the well-behaved tenants' clients measured.
fn print(table: &str, calm: &[Saw], waves: &[Vec<Saw>]) {
    println!(
        "{:<9}{:>9}{:>8}  {:<34}{:>7}{:>15}{:>9}",
        "tenant", "requests", "ok", "refused for", "failed", "ops", "KiB"
    );
    for line in table.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, requests, ok, spent @ .., other, ops, memory] = &words[..] else { continue };
        if spent.len() != 5 {
            println!("{line}");
            continue;
        }
        let spent: Vec<String> = ["ops", "memory", "spawn", "messages", "io"]
            .iter()
            .zip(spent)
            .filter(|(_, count)| **count != "0")
            .map(|(part, count)| format!("{part} {count}"))
            .collect();
        let kib = memory.parse::<u64>().unwrap_or_default() / 1024;
        println!("{name:<9}{requests:>9}{ok:>8}  {:<34}{other:>7}{ops:>15}{kib:>9}", spent.join(", "));
    }
    println!(
        "\n{:<9}{:>10}{:>10}{:>14}{:>10}{:>9}",
        "µs", "calm p50", "p99", "attacked p50", "p99", "retries"
    );
    for (index, name) in neighbours::NAMES.into_iter().enumerate() {
        let mut attacked = Saw::default();
        for wave in waves {
            attacked.latencies.extend_from_slice(&wave[index].latencies);
            attacked.retries += wave[index].retries;
        }
        let quiet = &calm[index];
        println!(
            "{name:<9}{:>10}{:>10}{:>14}{:>10}{:>9}",
            quiet.percentile(0.5),
            quiet.percentile(0.99),
            attacked.percentile(0.5),
            attacked.percentile(0.99),
            attacked.retries
        );
    }
    println!();
}
