//! Evidence for J-13 and J-15: I/O in flight beside, and under, whatever goes wrong: overflows, panics, signals, resets,
//! full queues of the kernel, a kernel that refuses io_uring, a blocking pool that is stuck.

mod common;

use common::{Tally, on_every_backend, until, within};
use janus::io::{Backend, IoError};
use janus::net::{TcpListener, TcpStream, UnixStream};
use janus::{Budget, Config, Cx, NurseryOptions, Resource, Runtime, TaskError};
use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn free() -> NurseryOptions {
    NurseryOptions::new().share(Budget::UNLIMITED)
}

fn pair(cx: &Cx) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(cx, "127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    cx.nursery(|n| {
        let client = n.spawn(move |cx| TcpStream::connect(cx, address).unwrap());
        let (server, _) = listener.accept(cx).unwrap();
        Ok((server, client.join(cx).unwrap()))
    })
    .unwrap()
}

fn echo(cx: &Cx, stream: &UnixStream) -> io::Result<()> {
    let mut buffer = [0; 256];
    loop {
        match stream.read(cx, &mut buffer)? {
            0 => return Ok(()),
            got => stream.write_all(cx, &buffer[..got])?,
        }
    }
}

/// Asks the echo at every level, with frames of different sizes: sooner or later the stack ends, in a call or between two.
#[inline(never)]
fn ask_deeper(cx: &Cx, stream: &UnixStream, level: usize, padding: usize) -> usize {
    let mut answer = [0; 48];
    let question = [level as u8; 48];
    stream.write_all(cx, &question).unwrap();
    stream.read_exact(cx, &mut answer).unwrap();
    assert_eq!(answer, question);
    let deeper = match padding {
        0 => ask_deeper(cx, stream, level + 1, padding),
        _ => {
            let mut frame = [level as u8; 200];
            black_box(&mut frame);
            ask_deeper(cx, stream, level + 1, padding - 1) + usize::from(frame[level % 200] == 255)
        }
    };
    black_box(deeper) + 1
}

#[test]
fn j_13_a_stack_overflow_in_the_middle_of_io_fails_one_task() {
    on_every_backend(|rt| {
        let before = rt.stats().total.overflows;
        rt.run(|cx| {
            let (near, far) = UnixStream::pair(cx).unwrap();
            let end = cx.nursery_with(free(), |n| {
                let (near, far) = (&near, &far);
                // In flight all the time, on whichever worker: its buffer gets its own bytes and no others.
                let neighbour = n.spawn(move |cx| {
                    let mut kept = [0xAA; 512];
                    near.read_exact(cx, &mut kept).unwrap();
                    kept == [7; 512]
                });
                for padding in 0..24 {
                    let (one, other) = UnixStream::pair(cx).unwrap();
                    let result = cx.nursery_with(free(), |n| {
                        let other = &other;
                        drop(n.spawn(move |cx| echo(cx, other)));
                        // The parent's, as an abandoned task leaves what it owns open for ever.
                        let one = &one;
                        let deep = n.spawn(move |cx| ask_deeper(cx, one, 0, padding));
                        let end = deep.join(cx);
                        assert!(matches!(end, Err(TaskError::StackOverflow)), "{end:?}");
                        one.shutdown(Shutdown::Both).unwrap();
                        Ok(())
                    });
                    assert!(matches!(result, Err(TaskError::StackOverflow)), "{result:?}");
                }
                far.write_all(cx, &[7; 512]).unwrap();
                assert!(neighbour.join(cx).unwrap());
                Ok(())
            });
            end.unwrap();
        })
        .unwrap();
        assert_eq!(rt.stats().total.overflows - before, 24);
    });
}

#[inline(never)]
fn overflow(level: usize) -> usize {
    let mut frame = [level; 64];
    black_box(&mut frame);
    let deeper = if level == usize::MAX { 0 } else { overflow(level + 1) };
    black_box(deeper) + frame[level % 64]
}

/// A parent that overflows, or panics, while its child reads into the parent's own frame: the read ends before the parent does.
/// The child of one that panicked learns it; the child of one that overflowed stands still.
#[test]
fn j_13_a_parent_that_fails_waits_for_the_reads_into_its_frame() {
    for panics in [false, true] {
        on_every_backend(move |rt| {
            rt.run(|cx| {
                let (near, far) = UnixStream::pair(cx).unwrap();
                let (near, reads) = (Arc::new(near), Arc::new(AtomicUsize::new(0)));
                let end = cx.nursery_with(free(), |n| {
                    let (near, counted) = (near.clone(), reads.clone());
                    let parent = move |cx: &Cx| {
                        let (near, reads) = (&near, &counted);
                        let mut lent = [0; 64];
                        let lent = &mut lent;
                        let _ = cx.nursery_with(free(), |n| {
                            drop(n.spawn(move |cx| {
                                reads.fetch_add(1, Ordering::Relaxed);
                                let error = near.read(cx, lent).unwrap_err();
                                assert_eq!(IoError::of(&error), Some(IoError::Cancelled), "{error}");
                                reads.fetch_add(1, Ordering::Relaxed);
                            }));
                            until(cx, || reads.load(Ordering::Relaxed) == 1);
                            cx.sleep(Duration::from_millis(1)).unwrap();
                            Ok(if panics { panic!("on purpose") } else { overflow(0) })
                        });
                    };
                    let end = n.task().children(1).owned().spawn(parent).join(cx);
                    match panics {
                        true => assert!(matches!(end, Err(TaskError::Panicked(_))), "{end:?}"),
                        false => assert!(matches!(end, Err(TaskError::StackOverflow)), "{end:?}"),
                    }
                    Ok(())
                });
                assert!(end.is_err());
                let expected = if panics { 2 } else { 1 };
                assert_eq!(reads.load(Ordering::Relaxed), expected, "the read was over, and who reads on?");
                // What comes now is nobody's old read's.
                far.write_all(cx, b"late").unwrap();
                let mut late = [0; 4];
                near.read_exact(cx, &mut late).unwrap();
                assert_eq!(&late, b"late");
            })
            .unwrap();
        });
    }
}

/// More operations than the ring's queue holds are handed over, and more of them end at once than its answers hold.
#[test]
fn j_13_more_operations_than_the_rings_hold() {
    const TASKS: usize = 5000;
    within(|| {
        for backend in [Backend::Uring, Backend::Epoll] {
            // SAFETY: no task here keeps anything of its thread over a suspension.
            let rt =
                unsafe { Runtime::new(Config::new().workers(1).watchdog(None).io_backend(backend)) }.unwrap();
            rt.run(|cx| {
                let (near, far) = UnixStream::pair(cx).unwrap();
                let (near, ends) = (&near, &AtomicUsize::new(0));
                cx.nursery_with(free(), |n| {
                    for _ in 0..TASKS {
                        let read = move |cx: &Cx| {
                            assert_eq!(near.read(cx, &mut [0; 8]).unwrap(), 0);
                            ends.fetch_add(1, Ordering::Relaxed);
                        };
                        drop(n.spawn(read));
                    }
                    // All of them wait.
                    cx.sleep(Duration::from_millis(1)).unwrap();
                    assert_eq!(ends.load(Ordering::Relaxed), 0);
                    far.shutdown(Shutdown::Write).unwrap();
                    Ok(())
                })
                .unwrap();
                assert_eq!(ends.load(Ordering::Relaxed), TASKS);
                // And the same where each is asked to stop.
                let (near, far) = UnixStream::pair(cx).unwrap();
                let near = &near;
                let end = cx.nursery_with(free(), |n| {
                    for _ in 0..TASKS {
                        drop(n.spawn(move |cx: &Cx| near.read(cx, &mut [0; 8]).unwrap_err()));
                    }
                    cx.sleep(Duration::from_millis(1)).unwrap();
                    n.cancel();
                    Ok(())
                });
                assert!(end.is_err());
                far.write_all(cx, b"still works").unwrap();
                assert_eq!(near.read(cx, &mut [0; 16]).unwrap(), 11);
            })
            .unwrap();
        }
    });
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Interrupts every thread of the process all the time, without asking the kernel to go on by itself.
#[test]
fn j_13_signals_interrupt_nothing() {
    // SAFETY: the handler counts, on the alternate stack where there is one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    on_every_backend(|rt| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for task in std::fs::read_dir("/proc/self/task").unwrap() {
                        let name = task.unwrap().file_name();
                        let id: libc::pid_t = name.to_str().unwrap().parse().unwrap();
                        // SAFETY: takes no pointers; a thread that is gone is an error, which does not matter.
                        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR1) };
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            rt.run(|cx| {
                let (server, client) = pair(cx);
                cx.nursery_with(free(), |n| {
                    let (server, client) = (&server, &client);
                    // Large: it waits for room many times.
                    drop(n.spawn(move |cx| {
                        server.write_all(cx, &vec![5; 4 << 20]).unwrap();
                        server.shutdown(Shutdown::Write).unwrap();
                    }));
                    let mut read = Vec::new();
                    client.read_to_end(cx, &mut read).unwrap();
                    assert_eq!(read.len(), 4 << 20);
                    let output = janus::process::Command::new("echo").arg("hello").output(cx).unwrap();
                    assert_eq!(output.stdout, b"hello\n");
                    for _ in 0..20 {
                        janus::io::unblock(cx, || std::fs::metadata("/").unwrap()).unwrap();
                    }
                    Ok(())
                })
                .unwrap();
            })
            .unwrap();
            over.store(true, Ordering::Relaxed);
        });
    });
    assert!(SIGNALS.load(Ordering::Relaxed) > 0);
}

/// A peer that goes away with a reset, and one that is gone when we write: the errors of `std`.
#[test]
fn j_13_resets_and_broken_pipes_have_the_errors_of_std() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (server, client) = pair(cx);
            cx.nursery_with(free(), |n| {
                let server = &server;
                let reads = n.spawn(move |cx| server.read(cx, &mut [0; 8]).unwrap_err().kind());
                cx.sleep(Duration::from_millis(1)).unwrap();
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let size = size_of::<libc::linger>() as libc::socklen_t;
                let fd = std::os::fd::AsFd::as_fd(&client).as_raw_fd();
                let value = (&raw const linger).cast();
                // SAFETY: the value is there and of that size.
                let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, size) };
                assert_eq!(set, 0);
                drop(client);
                assert_eq!(reads.join(cx).unwrap(), ErrorKind::ConnectionReset);
                assert_eq!(server.write(cx, b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
                Ok(())
            })
            .unwrap();
            let (reader, writer) = janus::io::pipe(cx).unwrap();
            drop(reader);
            assert_eq!(writer.write(cx, b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        })
        .unwrap();
    });
}

/// A filter of the calling thread, and of those that it starts: io_uring does not exist.
fn refuse_io_uring() {
    let load = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let equal = libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_io_uring_setup as u32 };
    let refuse = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | libc::EPERM as u32 };
    let allow = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7FFF_0000 };
    let mut filter = [load, equal, refuse, allow];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program is there and of that length.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program),
            0,
            "{}",
            io::Error::last_os_error()
        );
    }
}

#[test]
fn j_13_where_io_uring_is_refused_epoll_does_it() {
    // The filter ends with this thread.
    within(|| {
        refuse_io_uring();
        let runtime =
            // SAFETY: no task here keeps anything of its thread over a suspension.
            |backend| unsafe { Runtime::new(Config::new().workers(2).watchdog(None).io_backend(backend)) }.unwrap();
        runtime(Backend::Auto)
            .run(|cx| {
                let (server, client) = pair(cx);
                cx.nursery(|n| {
                    let server = &server;
                    let reads = n.spawn(move |cx| {
                        let mut got = [0; 5];
                        server.read_exact(cx, &mut got).map(|()| got)
                    });
                    cx.sleep(Duration::from_millis(1)).unwrap();
                    client.write_all(cx, b"hello").unwrap();
                    assert_eq!(&reads.join(cx).unwrap().unwrap(), b"hello");
                    Ok(())
                })
                .unwrap();
                let path = std::env::temp_dir().join(format!("janus-refused-{}", std::process::id()));
                janus::fs::write(cx, &path, b"kept").unwrap();
                assert_eq!(janus::fs::read(cx, &path).unwrap(), b"kept");
                janus::fs::remove_file(cx, &path).unwrap();
            })
            .unwrap();
        // A program that insists is told so by the first call that needs it, and the task goes on.
        runtime(Backend::Uring)
            .run(|cx| {
                let (near, far) = UnixStream::pair(cx).unwrap();
                let error = near.read(cx, &mut [0; 1]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                far.write_all(cx, b"x").unwrap();
                assert_eq!(near.read(cx, &mut [0; 1]).unwrap(), 1);
            })
            .unwrap();
    });
}

/// All threads of the pool are stuck, and tasks come and go: what they asked for goes with them.
#[test]
fn j_13_a_stuck_pool_does_not_collect_calls_of_tasks_that_are_gone() {
    within(|| {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt =
            unsafe { Runtime::new(Config::new().workers(2).watchdog(None).blocking_threads(1)) }.unwrap();
        let tally: &'static Tally = Box::leak(Box::default());
        let (open, gate) = std::sync::mpsc::channel::<()>();
        rt.run(|cx| {
            cx.nursery_with(free(), |n| {
                let (enters, is_inside) = std::sync::mpsc::channel::<()>();
                let stuck = n.spawn(move |cx| {
                    janus::io::unblock(cx, move || {
                        enters.send(()).unwrap();
                        gate.recv().is_err()
                    })
                });
                // Before it has the pool's thread, others would get that.
                common::until(cx, || is_inside.try_recv().is_ok());
                for _ in 0..10 {
                    let end = cx.nursery_with(free(), |n| {
                        for _ in 0..100 {
                            let token = tally.token();
                            let call =
                                move |cx: &Cx| janus::io::unblock(cx, move || drop(token)).unwrap_err();
                            drop(n.spawn(call));
                        }
                        cx.sleep(Duration::from_millis(1)).unwrap();
                        n.cancel();
                        Ok(())
                    });
                    assert!(end.is_err());
                    assert_eq!(tally.made(), tally.dropped(), "while the one thread is stuck");
                }
                drop(open);
                assert!(stuck.join(cx).unwrap().unwrap());
                assert_eq!(janus::io::unblock(cx, || 5).unwrap(), 5);
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_13_what_makes_a_descriptor_is_charged_too() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let spent = |cx: &Cx, call: &dyn Fn(&Cx) -> io::Result<()>| {
                let before = cx.budget().get(Resource::Syscalls);
                call(cx).unwrap();
                before - cx.budget().get(Resource::Syscalls)
            };
            let listener = TcpListener::bind(cx, "127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            cx.nursery(|n| {
                let budget = Budget { ops: 10_000, syscalls: 100, ..Budget::ZERO };
                let task = n.task().budget(budget).spawn(move |cx| {
                    [
                        spent(cx, &|cx| TcpListener::bind(cx, "127.0.0.1:0").map(drop)),
                        spent(cx, &|cx| TcpStream::connect(cx, address).map(drop)),
                        spent(cx, &|cx| janus::net::UdpSocket::bind(cx, "127.0.0.1:0").map(drop)),
                        spent(cx, &|cx| UnixStream::pair(cx).map(drop)),
                        spent(cx, &|cx| janus::net::UnixDatagram::pair(cx).map(drop)),
                        spent(cx, &|cx| janus::io::pipe(cx).map(drop)),
                        spent(cx, &|cx| janus::io::unblock(cx, || ())),
                    ]
                });
                assert_eq!(task.join(cx).unwrap(), [1; 7]);
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

/// A loop of sleeps that are over at once is a loop like any other.
#[test]
fn j_13_sleeping_for_no_time_gives_way() {
    common::everywhere(|rt| {
        rt.run(|cx| {
            let done = &AtomicBool::new(false);
            cx.nursery_with(free(), |n| {
                for _ in 0..4 {
                    drop(n.spawn(move |cx| {
                        while !done.load(Ordering::Relaxed) {
                            cx.sleep(Duration::ZERO).unwrap();
                        }
                    }));
                }
                drop(n.spawn(move |_| done.store(true, Ordering::Relaxed)));
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}
