//! Our own server of `make bench-io`. Protocol: see `bench::io`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::RwLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use janus::io::Backend;
use janus::net::{TcpListener, TcpStream};
use janus::{Budget, Config, Cx, NurseryOptions, Runtime};

const USAGE: &str = "io-janus echo|http WORKERS [uring|epoll|pinned]";

/// What serves one connection to its end.
type Serve = fn(&Cx, TcpStream) -> io::Result<()>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (serve, workers): (Serve, usize) = match &arguments[..] {
        [protocol, workers, ..] => match (protocol.as_str(), workers.parse()) {
            ("echo", Ok(workers)) => (echo, workers),
            ("http", Ok(workers)) => (http, workers),
            _ => return usage(),
        },
        _ => return usage(),
    };
    let backend = match arguments.get(2).map(String::as_str) {
        None | Some("pinned") => Backend::Auto,
        Some("uring") => Backend::Uring,
        Some("epoll") => Backend::Epoll,
        Some(_) => return usage(),
    };
    let mut config = Config::new().workers(workers).io_backend(backend);
    if arguments.get(2).is_some_and(|more| more == "pinned") {
        config = config.pinned();
    }
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let result = unsafe { Runtime::new(config) }.and_then(|runtime| runtime.run(|cx| listen(cx, serve)));
    eprintln!("io-janus: {result:?}");
    ExitCode::FAILURE
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn listen(cx: &Cx, serve: Serve) -> io::Result<()> {
    let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    let options = NurseryOptions::new().share(Budget { spawn_count: 0, ..Budget::UNLIMITED });
    cx.nursery_with(options, |nursery| {
        drop(nursery.spawn(keep_date));
        loop {
            let (stream, _peer) = listener.accept(cx)?;
            stream.set_nodelay(true)?;
            // A connection that breaks is its own affair.
            drop(nursery.spawn(move |cx| drop(serve(cx, stream))));
        }
    })
    .map_err(io::Error::other)
}

/// A handler that loops without end, and checks, as the attribute macro makes every loop do.
fn hog(cx: &Cx) -> io::Result<()> {
    let mut ticker = cx.ticker();
    loop {
        if ticker.tick().is_err() {
            return Ok(());
        }
        std::hint::spin_loop();
    }
}

fn echo(cx: &Cx, stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        match stream.read(cx, &mut buffer)? {
            0 => return Ok(()),
            _ if buffer[0] == b'L' => return hog(cx),
            got => stream.write_all(cx, &buffer[..got])?,
        }
    }
}

fn http(cx: &Cx, stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    let mut filled = 0;
    loop {
        match stream.read(cx, &mut buffer[filled..])? {
            0 => return Ok(()),
            got => filled += got,
        }
        let mut start = 0;
        // Requests may come in one piece, in several, or several in one.
        while let Some(length) = request(&buffer[start..filled]).map_err(io::Error::other)? {
            if buffer[start..].starts_with(b"GET /loop ") {
                return hog(cx);
            }
            start += length;
            answer(cx, &stream)?;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        if filled == buffer.len() {
            return Err(io::Error::other("the request is too long"));
        }
    }
}

/// How long the first request is, if it is whole.
fn request(bytes: &[u8]) -> Result<Option<usize>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes)? {
        httparse::Status::Complete(length) => Ok(Some(length)),
        httparse::Status::Partial => Ok(None),
    }
}

fn answer(cx: &Cx, stream: &TcpStream) -> io::Result<()> {
    let mut text = [0; 192];
    let length = {
        let mut rest = &mut text[..];
        let date = DATE.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        rest.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\ncontent-type: text/plain\r\ndate: ")?;
        rest.write_all(&*date)?;
        rest.write_all(b"\r\n\r\nHello, World!")?;
        192 - rest.len()
    };
    stream.write_all(cx, &text[..length])
}

/// The date of all answers, a second old at most.
static DATE: RwLock<[u8; 29]> = RwLock::new([b' '; 29]);

fn keep_date(cx: &Cx) {
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        *DATE.write().unwrap_or_else(std::sync::PoisonError::into_inner) = date(now);
        if cx.sleep(Duration::from_millis(500)).is_err() {
            return;
        }
    }
}

/// As HTTP writes it.
fn date(seconds: u64) -> [u8; 29] {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of the year 0, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_based = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_based + 2) / 5 + 1;
    let month = (march_based + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    let mut written = [b' '; 29];
    let mut room = &mut written[..];
    let _ = write!(
        room,
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    );
    written
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_written_as_http_does() {
        assert_eq!(&super::date(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&super::date(951_827_696), b"Tue, 29 Feb 2000 12:34:56 GMT");
        assert_eq!(&super::date(1_767_225_599), b"Wed, 31 Dec 2025 23:59:59 GMT");
    }
}
