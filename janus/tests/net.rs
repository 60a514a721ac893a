//! Evidence for J-13: real sockets, on both back ends, that block the task and not its worker.

mod common;

use common::{on_every_backend, until};
use janus::io::IoError;
use janus::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use janus::{Budget, Cx, NurseryOptions, Resource, TaskState, Wait};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(5);

/// A call that blocks its task.
type Blocking<'a> = &'a (dyn Fn(&Cx) -> io::Result<usize> + Sync);

fn listen(cx: &Cx) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(cx, "127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Two ends of a TCP connection.
fn pair(cx: &Cx) -> (TcpStream, TcpStream) {
    let (listener, address) = listen(cx);
    cx.nursery(|n| {
        let client = n.spawn(move |cx| TcpStream::connect(cx, address).unwrap());
        let (server, peer) = listener.accept(cx).unwrap();
        let client = client.join(cx).unwrap();
        assert_eq!(client.local_addr().unwrap(), peer);
        assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
        Ok((server, client))
    })
    .unwrap()
}

fn echo(cx: &Cx, stream: &TcpStream) -> io::Result<u64> {
    let mut buffer = [0; 512];
    let mut total = 0;
    loop {
        match stream.read(cx, &mut buffer)? {
            0 => return Ok(total),
            got => {
                stream.write_all(cx, &buffer[..got])?;
                total += got as u64;
            }
        }
    }
}

#[test]
fn j_13_an_echo_server_serves_many_clients() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (listener, address) = listen(cx);
            let listener = &listener;
            cx.nursery(|n| {
                let server = n.task().children(50).spawn(move |cx| {
                    cx.nursery(|n| {
                        for _ in 0..50 {
                            let (stream, _) = listener.accept(cx).unwrap();
                            drop(n.spawn(move |cx| echo(cx, &stream).unwrap()));
                        }
                        Ok(())
                    })
                    .unwrap();
                });
                let clients: Vec<_> = (0..50_u8)
                    .map(|me| {
                        let client = move |cx: &Cx| {
                            let stream = TcpStream::connect(cx, address).unwrap();
                            for round in 0..20_u8 {
                                let sent = [me, round, 7];
                                stream.write_all(cx, &sent).unwrap();
                                let mut got = [0; 3];
                                stream.read_exact(cx, &mut got).unwrap();
                                assert_eq!(got, sent);
                            }
                        };
                        n.spawn(client)
                    })
                    .collect();
                for client in clients {
                    client.join(cx).unwrap();
                }
                server.join(cx).unwrap();
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_13_an_end_is_read_as_such_and_half_a_connection_goes_on() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            client.write_all(cx, b"question").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut heard = Vec::new();
            assert_eq!(server.read_to_end(cx, &mut heard).unwrap(), 8);
            assert_eq!(server.read(cx, &mut [0; 4]).unwrap(), 0, "the end stays");
            // The other direction is open.
            server.write_all(cx, b"answer").unwrap();
            let mut start = [0; 3];
            assert_eq!(client.peek(cx, &mut start).unwrap(), 3);
            client.read_exact(cx, &mut start).unwrap();
            assert_eq!(&start, b"ans");
            drop(server);
            let mut rest = Vec::new();
            client.read_to_end(cx, &mut rest).unwrap();
            assert_eq!(rest, b"wer");
            let lost = client.read_exact(cx, &mut [0]).unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::UnexpectedEof);
        })
        .unwrap();
    });
}

#[test]
fn j_13_a_writer_waits_for_a_slow_reader_and_the_worker_does_not() {
    const BYTES: usize = 8 << 20;
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            cx.nursery(|n| {
                let server = &server;
                let writer = n.spawn(move |cx| {
                    let block = vec![7_u8; BYTES];
                    server.write_all(cx, &block).unwrap();
                    server.shutdown(Shutdown::Write).unwrap();
                });
                // It has filled what the kernel keeps, and waits; this task runs.
                until(cx, || writer.state() == TaskState::Blocked);
                cx.sleep(SHORT).unwrap();
                assert_eq!(writer.state(), TaskState::Blocked);
                let mut buffer = vec![0; 64 << 10];
                let mut total = 0;
                loop {
                    match client.read(cx, &mut buffer).unwrap() {
                        0 => break,
                        got => {
                            assert!(buffer[..got].iter().all(|&byte| byte == 7));
                            total += got;
                        }
                    }
                }
                assert_eq!(total, BYTES);
                writer.join(cx).unwrap();
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_13_two_tasks_read_and_write_one_stream() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            cx.nursery(|n| {
                let (server, client) = (&server, &client);
                drop(n.spawn(move |cx| {
                    echo(cx, server).unwrap();
                    server.shutdown(Shutdown::Write).unwrap();
                }));
                let reader = n.spawn(move |cx| {
                    let mut sum = 0_u64;
                    let mut buffer = [0; 8];
                    while client.read_exact(cx, &mut buffer).is_ok() {
                        sum += u64::from_le_bytes(buffer);
                    }
                    sum
                });
                for number in 0..2000_u64 {
                    client.write_all(cx, &number.to_le_bytes()).unwrap();
                }
                client.shutdown(Shutdown::Write).unwrap();
                assert_eq!(reader.join(cx).unwrap(), 1999 * 1000);
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

/// A task in each of these waits is cancelled, and says so; the others go on.
#[test]
fn j_13_cancellation_ends_every_wait_in_flight() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            let (listener, _) = listen(cx);
            let udp = UdpSocket::bind(cx, "127.0.0.1:0").unwrap();
            let full = UnixStream::pair(cx).unwrap();
            let (server, listener, udp, full) = (&server, &listener, &udp, &full.0);
            let waits: [Blocking; 5] = [
                &|cx| server.read(cx, &mut [0; 64]),
                &|cx| listener.accept(cx).map(|_| 0),
                &|cx| udp.recv_from(cx, &mut [0; 64]).map(|(got, _)| got),
                &|cx| loop {
                    full.write(cx, &[1; 1 << 16])?;
                },
                &|cx| janus::io::unblock(cx, || std::thread::sleep(Duration::from_millis(200))).map(|()| 0),
            ];
            let started = Instant::now();
            for wait in waits {
                let outcome = cx.nursery(|n| {
                    let task = n.spawn(move |cx| wait(cx));
                    until(cx, || rt.dump().tasks.iter().any(|task| task.waits_for == Wait::Io));
                    task.cancel();
                    Ok(task.join(cx).unwrap())
                });
                let error = outcome.unwrap().unwrap_err();
                assert_eq!(IoError::of(&error), Some(IoError::Cancelled), "{error}");
            }
            assert!(started.elapsed() < LONG);
            // The connection is as it was: nothing was lost, and nothing is written into a buffer that is gone.
            client.write_all(cx, b"still here").unwrap();
            let mut buffer = [0; 10];
            server.read_exact(cx, &mut buffer).unwrap();
            assert_eq!(&buffer, b"still here");
        })
        .unwrap();
    });
}

/// Bytes that arrive while a read is cancelled are either in its buffer, and then it is `Ok`, or still to be read.
#[test]
fn j_13_a_cancelled_read_loses_no_bytes() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            let (mut sent, mut got, mut cancelled) = (0_u64, 0_u64, 0);
            for round in 0..300_u32 {
                let outcome = cx.nursery(|n| {
                    let server = &server;
                    let reader = n.spawn(move |cx| server.read(cx, &mut [0; 8]));
                    for _ in 0..round % 4 {
                        cx.yield_now().unwrap();
                    }
                    // Before the byte, which then is another's, or after it, which may be too late.
                    if round % 3 == 0 {
                        reader.cancel();
                    }
                    client.write_all(cx, &[round as u8]).unwrap();
                    sent += 1;
                    reader.cancel();
                    Ok(reader.join(cx))
                });
                // Cancelled before it ran, while it waited, or not in time.
                match outcome {
                    Ok(Ok(Ok(bytes))) => got += bytes as u64,
                    _ => cancelled += 1,
                }
            }
            client.shutdown(Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            server.read_to_end(cx, &mut rest).unwrap();
            assert_eq!(got + rest.len() as u64, sent);
            assert!(cancelled > 0, "some reads were cancelled");
        })
        .unwrap();
    });
}

#[test]
fn j_13_timeouts_end_waits_and_leave_the_stream_usable() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            let (listener, _) = listen(cx);
            server.set_read_timeout(Some(SHORT)).unwrap();
            server.set_write_timeout(Some(SHORT)).unwrap();
            listener.set_timeout(Some(SHORT)).unwrap();
            let start = Instant::now();
            let late = server.read(cx, &mut [0; 8]).unwrap_err();
            assert_eq!((late.kind(), IoError::of(&late)), (ErrorKind::TimedOut, Some(IoError::TimedOut)));
            assert!(start.elapsed() >= SHORT);
            assert_eq!(listener.accept(cx).unwrap_err().kind(), ErrorKind::TimedOut);
            // A client that does not read.
            let stuck = loop {
                if let Err(error) = server.write(cx, &[0; 1 << 16]) {
                    break error;
                }
            };
            assert_eq!(stuck.kind(), ErrorKind::TimedOut);
            assert_eq!(
                server.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            server.set_read_timeout(None).unwrap();
            client.write_all(cx, b"x").unwrap();
            assert_eq!(server.read(cx, &mut [0; 8]).unwrap(), 1);
        })
        .unwrap();
    });
}

#[test]
fn j_13_every_call_is_charged_to_syscalls_and_ops() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            cx.nursery(|n| {
                let (server, client) = (&server, &client);
                let spent =
                    n.task().budget(Budget { ops: 10_000, syscalls: 100, ..Budget::ZERO }).spawn(move |cx| {
                        let before = cx.budget();
                        for _ in 0..5 {
                            client.write(cx, b"one").unwrap();
                            server.read(cx, &mut [0; 3]).unwrap();
                        }
                        // However long it waits.
                        client.set_read_timeout(Some(SHORT)).unwrap();
                        client.read(cx, &mut [0; 3]).unwrap_err();
                        let after = cx.budget();
                        (before.syscalls - after.syscalls, before.ops - after.ops)
                    });
                assert_eq!(spent.join(cx).unwrap(), (11, 11));
                Ok(())
            })
            .unwrap();
            // A task that has none left stops, and is recharged.
            let manual = NurseryOptions::new().recharge(janus::Recharge::Manual);
            cx.nursery_with(manual, |n| {
                let (server, client) = (&server, &client);
                let two = Budget { ops: 1000, syscalls: 2, ..Budget::ZERO };
                let task =
                    n.task().budget(two).spawn(move |cx| (0..4).all(|_| client.write(cx, b"x").is_ok()));
                until(cx, || task.state() == TaskState::BudgetExhausted);
                task.recharge(&Budget::ZERO.with(Resource::Syscalls, 2)).unwrap();
                assert!(task.join(cx).unwrap());
                let mut four = [0; 4];
                server.read_exact(cx, &mut four).unwrap();
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_13_nagle_can_be_turned_off_and_addresses_are_told() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, _client) = pair(cx);
            assert!(!server.nodelay().unwrap());
            server.set_nodelay(true).unwrap();
            assert!(server.nodelay().unwrap());
            assert!(server.take_error().unwrap().is_none());
        })
        .unwrap();
    });
}

#[test]
fn j_13_refusals_have_the_errors_of_std() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (listener, address) = listen(cx);
            assert_eq!(TcpListener::bind(cx, address).unwrap_err().kind(), ErrorKind::AddrInUse);
            drop(listener);
            assert_eq!(TcpStream::connect(cx, address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            // A name is resolved by a thread that may block; what is no name says so.
            assert!(TcpStream::connect(cx, "no such name:1").is_err());
            let (listener, address) = listen(cx);
            let named = TcpStream::connect(cx, ("localhost", address.port())).unwrap();
            assert!(listener.accept(cx).is_ok());
            drop(named);
            // The reader is gone: an error, and no signal that ends the process.
            let (server, client) = pair(cx);
            drop(client);
            let gone = loop {
                if let Err(error) = server.write(cx, b"anybody there?") {
                    break error;
                }
            };
            assert!(matches!(gone.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{gone}");
        })
        .unwrap();
    });
}

#[test]
fn j_13_datagrams() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let one = UdpSocket::bind(cx, "127.0.0.1:0").unwrap();
            let other = UdpSocket::bind(cx, "127.0.0.1:0").unwrap();
            let (here, there) = (one.local_addr().unwrap(), other.local_addr().unwrap());
            cx.nursery(|n| {
                let other = &other;
                drop(n.spawn(move |cx| {
                    let mut buffer = [0; 16];
                    let (got, from) = other.recv_from(cx, &mut buffer).unwrap();
                    assert_eq!(from, here);
                    other.send_to(cx, &buffer[..got], from).unwrap();
                    other.connect(cx, from).unwrap();
                    other.send(cx, b"").unwrap();
                }));
                cx.sleep(SHORT).unwrap();
                assert_eq!(one.send_to(cx, b"ping", there).unwrap(), 4);
                let mut buffer = [0; 2];
                // As much as there is room for; the rest of a datagram is lost, as it is with std.
                assert_eq!(one.recv_from(cx, &mut buffer).unwrap(), (2, there));
                assert_eq!(&buffer, b"pi");
                assert_eq!(one.recv(cx, &mut buffer).unwrap(), 0);
                Ok(())
            })
            .unwrap();
            one.set_read_timeout(Some(SHORT)).unwrap();
            assert_eq!(one.recv_from(cx, &mut [0; 4]).unwrap_err().kind(), ErrorKind::TimedOut);
        })
        .unwrap();
    });
}

#[test]
fn j_13_unix_sockets() {
    on_every_backend(|rt| {
        let folder = std::env::temp_dir().join(format!("janus-net-{}-{:p}", std::process::id(), rt));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, letters) = (folder.join("stream"), folder.join("letters"));
        rt.run(|cx| {
            let listener = UnixListener::bind(cx, &path).unwrap();
            cx.nursery(|n| {
                let path = &path;
                let client = n.spawn(move |cx| {
                    let stream = UnixStream::connect(cx, path).unwrap();
                    stream.write_all(cx, b"by name").unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                    let mut answer = Vec::new();
                    stream.read_to_end(cx, &mut answer).unwrap();
                    answer
                });
                let stream = listener.accept(cx).unwrap();
                let mut heard = Vec::new();
                stream.read_to_end(cx, &mut heard).unwrap();
                stream.write_all(cx, &heard).unwrap();
                drop(stream);
                assert_eq!(client.join(cx).unwrap(), b"by name");
                Ok(())
            })
            .unwrap();
            assert_eq!(
                UnixStream::connect(cx, folder.join("nobody")).unwrap_err().kind(),
                ErrorKind::NotFound
            );
            let receiver = UnixDatagram::bind(cx, &letters).unwrap();
            let (one, other) = UnixDatagram::pair(cx).unwrap();
            one.send(cx, b"pair").unwrap();
            assert_eq!(other.recv(cx, &mut [0; 8]).unwrap(), 4);
            other.connect(&letters).unwrap();
            other.send(cx, b"letter").unwrap();
            assert_eq!(receiver.recv(cx, &mut [0; 8]).unwrap(), 6);
            receiver.set_read_timeout(Some(SHORT)).unwrap();
            assert_eq!(receiver.recv(cx, &mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
        })
        .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

/// Tasks that compute, with checks, beside one that serves: no task starves.
#[test]
fn j_13_io_goes_on_beside_a_task_that_never_waits() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            cx.nursery(|n| {
                let (server, client) = (&server, &client);
                let hog = n.spawn(|cx| {
                    let mut ticker = cx.ticker();
                    while ticker.tick().is_ok() {}
                });
                drop(n.spawn(move |cx| echo(cx, server).is_ok()));
                let start = Instant::now();
                for _ in 0..50 {
                    client.write_all(cx, b"tick").unwrap();
                    client.read_exact(cx, &mut [0; 4]).unwrap();
                }
                let each = start.elapsed() / 50;
                client.shutdown(Shutdown::Both).unwrap();
                hog.cancel();
                assert!(each < Duration::from_millis(50), "{each:?} a round beside a hog");
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_13_deterministic_mode_refuses_io_and_says_so() {
    let rt = common::seeded(2, 7);
    rt.run(|cx| {
        let refusals = [
            TcpListener::bind(cx, "127.0.0.1:0").unwrap_err(),
            TcpStream::connect(cx, "127.0.0.1:1").unwrap_err(),
            TcpStream::connect(cx, "localhost:1").unwrap_err(),
            UdpSocket::bind(cx, "127.0.0.1:0").unwrap_err(),
            UnixStream::pair(cx).unwrap_err(),
            janus::io::unblock(cx, || ()).unwrap_err(),
        ];
        for refusal in refusals {
            assert_eq!(IoError::of(&refusal), Some(IoError::Deterministic), "{refusal}");
            assert_eq!(refusal.kind(), ErrorKind::Unsupported);
        }
        // Also with a socket that was made elsewhere.
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = UnixStream::from_std(ours).unwrap();
        let refusal = stream.read(cx, &mut [0; 1]).unwrap_err();
        assert_eq!(IoError::of(&refusal), Some(IoError::Deterministic));
    })
    .unwrap();
}
