//! The load: one thread with many connections, each of which sends the next request when it has its answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::server::{Protocol, Server};

/// Events that are taken at a time.
const BATCH: usize = 256;
/// How long a connection, and the first answer, may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a server did under the load.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Answers a second.
    pub rate: f64,
    /// Microseconds of CPU time of the server for an answer: the figure that a busy machine moves least.
    pub cpu_us: f64,
    /// Microseconds from a request to its answer: the middle one.
    pub p50_us: f64,
    /// All but one in a hundred are faster.
    pub p99_us: f64,
    /// Requests that had no answer when the time was over, and had waited for more than half of it.
    pub stuck: usize,
}

struct Connection {
    stream: TcpStream,
    /// Bytes of the answer that are there.
    got: usize,
    sent_at: Instant,
}

/// Loads the server with so many connections: for `warm` without looking, then for `span`.
pub fn run(
    server: &Server,
    protocol: Protocol,
    connections: usize,
    warm: Duration,
    span: Duration,
) -> io::Result<Figures> {
    let mut load = Load::new(server.address, protocol, connections)?;
    load.turn_until(Instant::now() + warm)?;
    load.latencies_ns.clear();
    let (start, cpu) = (Instant::now(), server.cpu());
    load.turn_until(start + span)?;
    let cpu = server.cpu().saturating_sub(cpu);
    Ok(load.figures(start, cpu))
}

struct Load {
    poll: rustix::fd::OwnedFd,
    connections: Vec<Connection>,
    /// Connections that the server did not take: its queue was full, and nobody emptied it.
    missing: usize,
    request: &'static [u8],
    protocol: Protocol,
    /// Bytes of an answer, once one is there.
    answer: usize,
    latencies_ns: Vec<u64>,
}

impl Load {
    fn new(address: SocketAddr, protocol: Protocol, count: usize) -> io::Result<Load> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            let stream = match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::TimedOut && index > 0 => break,
                Err(error) => return Err(error),
            };
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&poll, &stream, EventData::new_u64(index as u64), EventFlags::IN)?;
            connections.push(Connection { stream, got: 0, sent_at: Instant::now() });
        }
        let request = protocol.request();
        let mut load = Load {
            missing: count - connections.len(),
            poll,
            connections,
            request,
            protocol,
            answer: request.len(),
            latencies_ns: Vec::new(),
        };
        if protocol == Protocol::Http {
            load.answer = load.measure_answer()?;
        }
        for index in 0..load.connections.len() {
            load.send(index)?;
        }
        Ok(load)
    }

    /// How long an answer is: all of a server's are alike. A server that does not answer has none.
    fn measure_answer(&mut self) -> io::Result<usize> {
        let address = self.connections[0].stream.peer_addr()?;
        let mut stream = match TcpStream::connect_timeout(&address, PATIENCE) {
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(usize::MAX),
            other => other?,
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(self.request)?;
        let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server hung up")),
                Ok(got) => text.extend_from_slice(&buffer[..got]),
                // Nothing for so long: it is stuck, and the load will say so.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(usize::MAX),
                Err(error) => return Err(error),
            }
            if text.ends_with(b"Hello, World!") {
                return if text.starts_with(b"HTTP/1.1 200 OK\r\n") {
                    Ok(text.len())
                } else {
                    Err(io::Error::new(ErrorKind::InvalidData, "no HTTP answer"))
                };
            }
        }
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        connection.got = 0;
        connection.sent_at = Instant::now();
        // A request is short, and the last one was taken: there is room.
        (&connection.stream).write_all(self.request)
    }

    fn turn_until(&mut self, end: Instant) -> io::Result<()> {
        let mut events = Vec::with_capacity(BATCH);
        let mut buffer = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            events.clear();
            let timeout = rustix::event::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.receive(*event, &mut buffer)?;
            }
        }
    }

    fn receive(&mut self, event: Event, buffer: &mut [u8]) -> io::Result<()> {
        let index = event.data.u64() as usize;
        let connection = &mut self.connections[index];
        match (&connection.stream).read(buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server hung up")),
            Ok(got) => {
                if self.protocol == Protocol::Echo && buffer[..got] != self.request[connection.got..][..got] {
                    return Err(io::Error::new(ErrorKind::InvalidData, "no echo"));
                }
                connection.got += got;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        if connection.got >= self.answer {
            self.latencies_ns.push(connection.sent_at.elapsed().as_nanos() as u64);
            self.send(index)?;
        }
        Ok(())
    }

    /// A request without an answer counts with the time that it has waited, if that is longer than most waits.
    fn figures(mut self, start: Instant, cpu: Duration) -> Figures {
        let end = Instant::now();
        let span = end - start;
        let answers = self.latencies_ns.len() as f64;
        let (rate, cpu_us) = (answers / span.as_secs_f64(), cpu.as_secs_f64() * 1e6 / answers);
        let waiting: Vec<u64> = self
            .connections
            .iter()
            .map(|connection| (end - connection.sent_at).as_nanos() as u64)
            .filter(|&waited| waited > span.as_nanos() as u64 / 2)
            .collect();
        let stuck = waiting.len() + self.missing;
        self.latencies_ns.extend(waiting);
        self.latencies_ns.extend(std::iter::repeat_n(span.as_nanos() as u64, self.missing));
        self.latencies_ns.sort_unstable();
        let percentile = |percent: usize| {
            let at = (self.latencies_ns.len() * percent / 100).min(self.latencies_ns.len().saturating_sub(1));
            self.latencies_ns.get(at).map_or(span.as_micros() as f64, |&ns| ns as f64 / 1000.0)
        };
        Figures { rate, cpu_us, p50_us: percentile(50), p99_us: percentile(99), stuck }
    }
}
