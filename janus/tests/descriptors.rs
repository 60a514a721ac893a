//! Evidence for J-13: descriptors and memory come back, and a process that has no descriptors left goes on serving. A process
//! of its own, as it changes its limits and counts what is open: one test at a time.

mod common;

use common::{descriptors, on_every_backend};
use janus::io::IoError;
use janus::net::{TcpListener, TcpStream};
use janus::{Budget, Cx, NurseryOptions, Runtime, TaskError};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn free() -> NurseryOptions {
    NurseryOptions::new().share(Budget::UNLIMITED)
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The open sockets. Not every descriptor: a worker opens those of its driver at its first operation, in whichever storm that is.
fn sockets() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    names.filter(|name| name.to_string_lossy().starts_with("socket:")).count()
}

/// What a server experienced.
#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    /// How often there was no descriptor for a connection.
    refused: AtomicUsize,
}

/// Waits until `count` has moved from 0, however busy the machine is.
fn until_some(cx: &Cx, count: &AtomicUsize) {
    while count.load(Ordering::Relaxed) == 0 {
        cx.sleep(Duration::from_millis(1)).unwrap();
    }
}

/// Serves until it is cancelled.
fn serve(cx: &Cx, listener: &TcpListener, seen: &Seen) {
    let _ = cx.nursery_with(free(), |n| {
        loop {
            match listener.accept(cx) {
                Ok((stream, _)) => {
                    let handler = move |cx: &Cx| {
                        let mut byte = [0];
                        while stream.read(cx, &mut byte).is_ok_and(|got| got > 0) {
                            // Before the answer: whoever has it looks at the count.
                            seen.answered.fetch_add(1, Ordering::Relaxed);
                            if stream.write_all(cx, &byte).is_err() {
                                return;
                            }
                        }
                    };
                    if n.try_spawn(handler).is_err() {
                        return Ok(());
                    }
                }
                Err(error) if IoError::is_out_of_descriptors(&error) => {
                    seen.refused.fetch_add(1, Ordering::Relaxed);
                    if cx.sleep(Duration::from_millis(1)).is_err() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    assert_eq!(IoError::of(&error), Some(IoError::Cancelled), "{error}");
                    return Ok(());
                }
            }
        }
    });
}

fn ask(cx: &Cx, address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(cx, address)?;
    stream.write_all(cx, b"x")?;
    stream.read_exact(cx, &mut [0])?;
    Ok(stream)
}

/// One storm: clients that ask, clients that say nothing and go (half-open ones), clients that are cancelled at any point,
/// and a server that is cancelled while it has all of them.
fn storm(rt: &Runtime, clients: usize) {
    rt.run(|cx| {
        let listener = TcpListener::bind(cx, "127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Seen::default();
        let end = cx.nursery_with(free(), |n| {
            let (listener, seen) = (&listener, &seen);
            let server = n.spawn(move |cx| serve(cx, listener, seen));
            let mut honest = Vec::new();
            for client in 0..clients {
                let task = n.spawn(move |cx| match client % 4 {
                    0 => ask(cx, address).map(drop),
                    1 => TcpStream::connect(cx, address).map(drop),
                    // Says nothing, and stays until it is cancelled.
                    2 => TcpStream::connect(cx, address)?.read(cx, &mut [0; 16]).map(drop),
                    _ => loop {
                        ask(cx, address)?;
                    },
                });
                if client % 4 >= 2 {
                    for _ in 0..client % 7 {
                        cx.yield_now().unwrap();
                    }
                    task.cancel();
                } else {
                    honest.push(task);
                }
            }
            for client in honest {
                client.join(cx).unwrap().unwrap();
            }
            assert!(seen.answered.load(Ordering::Relaxed) >= clients / 4);
            server.cancel();
            Ok(())
        });
        // Some were cancelled before they ran.
        assert!(matches!(end, Ok(()) | Err(TaskError::Cancelled)), "{end:?}");
    })
    .unwrap();
}

#[test]
fn j_13_connections_opened_and_cancelled_leave_nothing_behind() {
    let _alone = ONE_AT_A_TIME.lock();
    on_every_backend(|rt| {
        storm(rt, 100);
        let (before, memory) = (sockets(), resident_kib());
        for _ in 0..10 {
            storm(rt, 100);
            assert_eq!(sockets(), before, "sockets after a storm");
        }
        let more = resident_kib().saturating_sub(memory);
        assert!(more < 8 << 10, "{more} KiB more after 10 storms");
    });
}

#[test]
fn j_13_an_accept_loop_survives_the_end_of_descriptors() {
    let _alone = ONE_AT_A_TIME.lock();
    on_every_backend(|rt| {
        rt.run(|cx| {
            let listener = TcpListener::bind(cx, "127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let seen = Seen::default();
            cx.nursery_with(free(), |n| {
                let (listener, seen) = (&listener, &seen);
                let server = n.spawn(move |cx| serve(cx, listener, seen));
                drop(ask(cx, address).unwrap());
                // All that may be open is open: the server accepts nothing more, and connects fail with a name for it.
                let limited = Limit::set(descriptors() as u64 + 6);
                let mut clients = Vec::new();
                for round in 0.. {
                    let error = loop {
                        match TcpStream::connect(cx, address) {
                            Ok(stream) => clients.push(stream),
                            Err(error) => break error,
                        }
                        assert!(clients.len() < 50);
                    };
                    assert!(IoError::is_out_of_descriptors(&error), "{error}");
                    cx.sleep(Duration::from_millis(1)).unwrap();
                    if seen.refused.load(Ordering::Relaxed) > 0 {
                        break;
                    }
                    // Each client had its other end before the last descriptor was gone: one goes, and the next may have none.
                    drop(clients.pop());
                    assert!(round < 10_000, "the server never met the end of descriptors");
                }
                clients.clear();
                drop(limited);
                // What waited is served, and so is what comes.
                let before = seen.answered.load(Ordering::Relaxed);
                drop(ask(cx, address).unwrap());
                assert!(seen.answered.load(Ordering::Relaxed) > before);
                server.cancel();
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

/// A loop that only tries again does not spin, and tasks that can close something run.
#[test]
fn j_13_an_accept_loop_without_descriptors_does_not_spin() {
    let _alone = ONE_AT_A_TIME.lock();
    on_every_backend(|rt| {
        rt.run(|cx| {
            let listener = TcpListener::bind(cx, "127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let failed = AtomicUsize::new(0);
            cx.nursery_with(free(), |n| {
                // It waits in the kernel's queue.
                let client = TcpStream::connect(cx, address).unwrap();
                // Less than are open: not one more.
                let limited = Limit::set(3);
                let (listener, failed, start) = (&listener, &failed, cx.now());
                let loops = n.spawn(move |cx| {
                    loop {
                        match listener.accept(cx) {
                            Ok(accepted) => return (accepted, cx.now()),
                            Err(error) => assert!(IoError::is_out_of_descriptors(&error), "{error}"),
                        }
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                });
                until_some(cx, failed);
                cx.sleep(Duration::from_millis(10)).unwrap();
                drop(limited);
                let (accepted, end) = loops.join(cx).unwrap();
                let failed = failed.load(Ordering::Relaxed);
                // Each took a millisecond at least, however slow the machine is.
                let most = (end - start).as_millis() as usize + 1;
                assert!((1..=most).contains(&failed), "{failed} attempts in {:?}", end - start);
                drop((accepted, client));
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

/// The limit of open descriptors, put back at the end.
struct Limit(libc::rlimit);

impl Limit {
    fn now() -> Limit {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: there is room for one.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        Limit(limit)
    }

    fn set(most: u64) -> Limit {
        let before = Limit::now();
        before.write(most);
        before
    }

    fn write(&self, most: u64) {
        let limit = libc::rlimit { rlim_cur: most, ..self.0 };
        // SAFETY: the limit is there.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.write(self.0.rlim_cur);
    }
}
