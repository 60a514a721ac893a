//! Connections: how many there may be, which are evicted when there are too many, and the shutdown.

use crate::http::{Answer, Limits, Reader, Refusal, Request, part, send};
use crate::settings::Settings;
use crate::tenant::Tenant;
use janus::io::IoError;
use janus::net::{TcpListener, TcpStream};
use janus::{Budget, CapSpawn, Cx, NurseryOptions, Receiver, Runtime, Scope, StackClass};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long open requests may take after the server was asked to end.
const GRACE: Duration = Duration::from_secs(5);
/// A connection that has waited for less is not evicted for others.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a connection that is refused or aborted is still read.
const PARTING: Duration = Duration::from_secs(1);
/// The pause between two attempts to accept when there are no descriptors.
const BREATH: Duration = Duration::from_millis(10);

/// The server.
pub struct Server {
    runtime: Arc<Runtime>,
    tenants: Vec<Tenant>,
    limits: Limits,
    connections: usize,
    live: AtomicUsize,
    ending: AtomicBool,
    waiting: Waiting,
    evicted: AtomicU64,
    turned_away: AtomicU64,
}

/// Connections that wait for a complete request, in the order in which they began to wait.
#[derive(Default)]
struct Waiting(Mutex<(BTreeMap<u64, Waiter>, u64)>);

struct Waiter {
    stream: Arc<TcpStream>,
    since: Duration,
    /// Whether the first byte of the request has arrived.
    begun: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<u64, Waiter>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stream: &Arc<TcpStream>, since: Duration) -> u64 {
        let mut guard = self.lock();
        let (waiters, next) = &mut *guard;
        *next += 1;
        waiters.insert(*next, Waiter { stream: stream.clone(), since, begun: false });
        *next
    }

    fn begin(&self, ticket: u64) {
        if let Some(waiter) = self.lock().0.get_mut(&ticket) {
            waiter.begun = true;
        }
    }

    fn leave(&self, ticket: u64) {
        self.lock().0.remove(&ticket);
    }

    /// Evicts the connection that has waited longest, if that is long enough.
    fn evict(&self, now: Duration) -> bool {
        let mut guard = self.lock();
        let long = |waiter: &Waiter| now.saturating_sub(waiter.since) >= PATIENCE;
        match guard.0.first_entry() {
            Some(first) if long(first.get()) => {
                // Its task reads the end of the connection, and ends.
                let _ = first.remove().stream.shutdown(Shutdown::Both);
                true
            }
            _ => false,
        }
    }

    /// Ends every connection without an open request.
    fn dismiss(&self) {
        for waiter in self.lock().0.values().filter(|waiter| !waiter.begun) {
            let _ = waiter.stream.shutdown(Shutdown::Read);
        }
    }
}

impl Server {
    /// A server with these settings; it also reports the statistics of its runtime.
    #[must_use]
    pub fn new(settings: Settings, runtime: Arc<Runtime>) -> Server {
        let Settings { tenants, limits, connections } = settings;
        Server {
            runtime,
            tenants,
            limits,
            connections,
            live: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
            waiting: Waiting::default(),
            evicted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
        }
    }

    /// The tenants that are served.
    #[must_use]
    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// Serves until `stop` is closed; then open requests still get their answers.
    pub fn run(&self, cx: &Cx, listener: &TcpListener, stop: &Receiver<()>) {
        // How a connection ended does not matter here, nor that the rest was cancelled.
        let _ = cx.nursery_with(NurseryOptions::new().share(Budget::UNLIMITED).keep_going(), |scope| {
            let capability = cx.cap_spawn().ok_or(janus::SpawnError::NoCapability)?;
            let accept = scope.task().name("accept").budget(Budget::UNLIMITED).grant_spawn(capability);
            let accept = accept.spawn(move |cx| self.accept(cx, scope, capability, listener));
            scope.task().name("keeper").budget(Budget::UNLIMITED).spawn(|cx| self.keep(cx));
            let _ = stop.recv(cx);
            self.ending.store(true, Ordering::Release);
            accept.cancel();
            let _ = accept.join(cx);
            self.waiting.dismiss();
            let until = cx.now() + GRACE;
            while self.live.load(Ordering::Acquire) > 0 && cx.now() < until && cx.sleep(BREATH).is_ok() {}
            scope.cancel();
            Ok(())
        });
    }

    /// Recharges the purses, each at the end of its period.
    fn keep(&self, cx: &Cx) {
        let mut due: Vec<Duration> =
            self.tenants.iter().map(|tenant| cx.now() + tenant.terms.period).collect();
        while let Some(first) = due.iter().min() {
            if cx.sleep(first.saturating_sub(cx.now())).is_err() {
                return;
            }
            for (tenant, due) in self.tenants.iter().zip(&mut due) {
                if *due <= cx.now() {
                    tenant.recharge();
                    // Counted from now, and not from when it was due: a late recharge does not lead to a burst.
                    *due = cx.now() + tenant.terms.period;
                }
            }
        }
    }

    fn accept<'scope>(
        &'scope self,
        cx: &Cx,
        scope: &'scope Scope<'scope, '_>,
        capability: CapSpawn,
        listener: &TcpListener,
    ) {
        loop {
            let stream = match listener.accept(cx) {
                Ok((stream, _)) => Arc::new(stream),
                Err(error) if IoError::of(&error) == Some(IoError::Cancelled) => return,
                Err(error) => {
                    if IoError::is_out_of_descriptors(&error) {
                        self.evict(cx);
                    }
                    if cx.sleep(BREATH).is_err() {
                        return;
                    }
                    continue;
                }
            };
            // Sends a small answer without delay.
            let _ = stream.set_nodelay(true);
            let full = self.live.load(Ordering::Acquire) >= self.connections && !self.evict(cx);
            let guard = Live::new(self);
            let task = scope.task().name("connection").stack(StackClass::Medium).budget(Budget::UNLIMITED);
            // If even the refusal cannot be sent, the client learns of it by the end of the connection.
            drop(task.grant_spawn(capability).spawn(move |cx| {
                let server = guard.server();
                if full && server.turn_away(cx, &stream) {
                    return;
                }
                server.serve(cx, &stream);
            }));
        }
    }

    fn evict(&self, cx: &Cx) -> bool {
        let done = self.waiting.evict(cx.now());
        self.evicted.fetch_add(u64::from(done), Ordering::Relaxed);
        done
    }

    /// Tells the client that there are too many connections, unless that has changed.
    fn turn_away(&self, cx: &Cx, stream: &TcpStream) -> bool {
        if self.live.load(Ordering::Acquire) <= self.connections {
            return false;
        }
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        let mut answer = Answer::text(503, "too many connections");
        answer.retry_after = Some(Duration::from_secs(1));
        if send(cx, stream, &answer.bytes(false, true), PARTING).is_ok() {
            part(cx, stream, PARTING / 10);
        }
        true
    }

    /// Serves one connection to its end.
    fn serve(&self, cx: &Cx, stream: &Arc<TcpStream>) {
        let mut reader = Reader::new(stream, &self.limits);
        loop {
            let ticket = self.waiting.enter(stream, cx.now());
            // Connections that begin during the shutdown are not waited for.
            if self.ending.load(Ordering::Acquire) {
                self.waiting.dismiss();
            }
            let next = reader.next(cx, || self.waiting.begin(ticket));
            self.waiting.leave(ticket);
            let (answer, head, closes) = match next {
                Ok(request) => {
                    let head = request.method == "HEAD";
                    let closes = !request.keep_alive;
                    (self.answer(cx, request), head, closes)
                }
                Err(Refusal::Say(status, why)) => (Answer::text(status, why), false, true),
                Err(Refusal::Over | Refusal::Broken(_)) => return,
            };
            let closes = closes || self.ending.load(Ordering::Acquire);
            if send(cx, stream, &answer.bytes(head, closes), self.limits.write).is_err() {
                return;
            }
            if closes {
                return part(cx, stream, PARTING);
            }
        }
    }

    fn answer(&self, cx: &Cx, request: Request) -> Answer {
        let name = request.tenant();
        match self.tenants.iter().find(|tenant| tenant.name == name) {
            Some(tenant) => tenant.serve(cx, request),
            None if name == "-" => self.tell(&request.method),
            None => Answer::text(404, "there is no such tenant; /-/ lists them"),
        }
    }

    /// The answer of `/-/`. It is read-only, and other methods are refused.
    fn tell(&self, method: &str) -> Answer {
        match method {
            "GET" | "HEAD" => Answer { body: self.table().into_bytes(), ..Answer::text(200, "") },
            _ => Answer { allow: Some("GET, HEAD"), ..Answer::text(405, "/-/ can only be read") },
        }
    }

    /// A line of numbers for each tenant, which `GET /-/` answers.
    fn table(&self) -> String {
        // Read first, before it includes this text.
        let heap = crate::HEAP.live().bytes;
        let stats = self.runtime.stats();
        let mut text =
            String::from("tenant requests ok ops memory spawn messages io other used-ops used-memory\n");
        for tenant in &self.tenants {
            let seen = tenant.seen();
            let [ops, memory, spawn, messages, io] = seen.spent;
            let _ = writeln!(
                text,
                "{} {} {} {ops} {memory} {spawn} {messages} {io} {} {} {}",
                tenant.name, seen.requests, seen.ok, seen.other, seen.ops, seen.memory
            );
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let _ = writeln!(
            text,
            "- connections={} evicted={} turned-away={} heap={heap} tasks={} stacks={} stacks-in-use={} abandoned={}",
            self.live.load(Ordering::Relaxed),
            count(&self.evicted),
            count(&self.turned_away),
            self.runtime.dump().tasks.len(),
            stats.stacks_made,
            stats.stacks_made.saturating_sub(stats.stacks_free),
            stats.stacks_abandoned,
        );
        text
    }
}

/// One of the counted connections.
struct Live<'a>(&'a Server);

impl<'a> Live<'a> {
    fn new(server: &'a Server) -> Live<'a> {
        server.live.fetch_add(1, Ordering::AcqRel);
        Live(server)
    }

    /// A method, so that a closure that calls it captures the whole value: a copy of the field would not hold the
    /// count.
    fn server(&self) -> &'a Server {
        self.0
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Listens on loopback.
pub fn listen(cx: &Cx, port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(cx, SocketAddr::from(([127, 0, 0, 1], port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use janus::Config;

    #[test]
    fn j_13_the_table_is_only_read() {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let runtime = Arc::new(unsafe { Runtime::new(Config::new().workers(1)) }.expect("a runtime"));
        let settings = Settings { tenants: Vec::new(), limits: Limits::default(), connections: 1 };
        let server = Server::new(settings, runtime.clone());
        let ask = |cx: &Cx, method: &str| {
            let (method, target) = (method.to_string(), "/-/".to_string());
            let request = Request { method, target, headers: Vec::new(), body: Vec::new(), keep_alive: true };
            server.answer(cx, request)
        };
        let methods = ["GET", "HEAD", "POST", "DELETE", "get"];
        let answers = runtime.run(move |cx| methods.map(|method| ask(cx, method))).expect("it runs");
        assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 405, 405, 405]);
        let text = String::from_utf8(answers[2].bytes(false, false)).expect("text");
        assert!(text.contains("\r\nallow: GET, HEAD\r\n"), "{text}");
        assert!(answers[0].allow.is_none());
    }
}
