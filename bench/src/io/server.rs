//! A server process: started, asked for its port, killed in the end.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// It returns what it reads.
    Echo,
    /// It says hello.
    Http,
}

impl Protocol {
    /// As in the rows, and on the command line of servers.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Echo => "echo",
            Protocol::Http => "http",
        }
    }

    /// What a client sends each time.
    pub fn request(self) -> &'static [u8] {
        match self {
            Protocol::Echo => b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            Protocol::Http => {
                b"GET /hello HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench-io\r\nAccept: */*\r\n\r\n"
            }
        }
    }

    /// What a client sends that wants a handler to loop without end.
    fn hog(self) -> &'static [u8] {
        match self {
            Protocol::Echo => b"L",
            Protocol::Http => b"GET /loop HTTP/1.1\r\nHost: localhost\r\n\r\n",
        }
    }
}

/// A running server.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    /// The connection whose handler loops; it stays open.
    hog: Option<TcpStream>,
}

impl Server {
    /// Starts it, with one more argument if there is one, and reads its port.
    pub fn start(
        program: &Path,
        protocol: Protocol,
        workers: usize,
        more: Option<&str>,
    ) -> Result<Server, String> {
        // It ends with us, also when we are killed and cannot end it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command.arg(protocol.name()).arg(workers.to_string()).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let mut line = String::new();
        let read = child.stdout.take().map(|pipe| BufReader::new(pipe).read_line(&mut line));
        match (read, line.trim().parse::<u16>()) {
            (Some(Ok(_)), Ok(port)) => {
                Ok(Server { child, address: SocketAddr::from(([127, 0, 0, 1], port)), hog: None })
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("{} printed no port but {line:?}", program.display()))
            }
        }
    }

    /// CPU time that its threads have used so far.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let ns = |task: std::fs::DirEntry| -> Option<u64> {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        Duration::from_nanos(tasks.into_iter().flatten().flatten().filter_map(ns).sum())
    }

    /// From now on one handler loops without end.
    pub fn add_hog(&mut self, protocol: Protocol) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(protocol.hog())?;
        self.hog = Some(stream);
        // It has surely begun then.
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
