//! Evidence for J-20: one select over channels, joins, times, sockets and signals; signals to wait for; names built at run time.

mod common;

use common::{everywhere, on, on_every_backend, until, within};
use janus::net::{TcpListener, TcpStream};
use janus::prelude::*;
use janus::signal::{Signal, Signals};
use janus::{Cancelled, TaskState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(2);

/// Signals are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(signal: Signal) {
    // SAFETY: takes no pointers; somebody waits for it.
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal as i32) }, 0);
}

/// What the process does on a signal now.
fn action(signal: Signal) -> usize {
    // SAFETY: all zeroes is a value; it is only asked for.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(signal as i32, std::ptr::null(), &raw mut now), 0);
        now.sa_sigaction
    }
}

#[test]
fn j_20_one_select_waits_for_everything() {
    let _alone = alone();
    on_every_backend(|rt| {
        rt.run(|cx| -> Result<(), TaskError> {
            let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
            let address = listener.local_addr()?;
            let signals = Signals::new(cx, &[Signal::User1])?;
            let (tx, rx) = channel::<u8>(0);
            cx.nursery(|n| {
                for wanted in [0, 1, 2, 3, 4, 2, 0] {
                    let tx = tx.clone();
                    let child = n.spawn(move |cx| match wanted {
                        3 => Ok(()),
                        _ => cx.sleep(LONG),
                    });
                    // Whatever it is to be comes when the select waits already, most often.
                    let maker = n.spawn_try(move |cx| -> Result<Option<TcpStream>, TaskError> {
                        cx.sleep(Duration::from_micros(300))?;
                        match wanted {
                            0 => tx.send(cx, 7)?,
                            2 => return Ok(Some(TcpStream::connect(cx, address)?)),
                            4 => send(Signal::User1),
                            _ => {}
                        }
                        Ok(None)
                    });
                    let mut message = rx.arm();
                    let mut time = cx.after(if wanted == 1 { SHORT } else { LONG });
                    let (mut call, mut end, mut signal) = (listener.arm(), child.arm(), signals.arm());
                    let chosen =
                        cx.select(&mut [&mut message, &mut time, &mut call, &mut end, &mut signal], None)?;
                    assert_eq!(chosen, Selected::Arm(wanted));
                    match wanted {
                        0 => assert_eq!(message.into_result()?, 7),
                        2 => drop(listener.accept(cx)?),
                        4 => assert_eq!(signals.next(), Some(Signal::User1)),
                        _ => {}
                    }
                    drop(maker.join(cx)?);
                    child.cancel();
                    // On a busy machine it may never have begun: that is an error, and no failure.
                    let _ = child.join(cx);
                }
                Ok(())
            })
        })
        .unwrap()
        .unwrap();
    });
}

#[test]
fn j_20_a_stream_is_an_arm_that_is_ready_with_data_or_its_end() {
    on_every_backend(|rt| {
        rt.run(|cx| -> Result<(), TaskError> {
            let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
            let near = TcpStream::connect(cx, listener.local_addr()?)?;
            let (far, _) = listener.accept(cx)?;
            assert_eq!(cx.select(&mut [&mut near.arm()], Some(SHORT))?, Selected::Timeout);
            assert_eq!(cx.select(&mut [&mut near.arm()], Some(Duration::ZERO))?, Selected::Timeout);
            far.write_all(cx, b"x")?;
            assert_eq!(cx.select(&mut [&mut near.arm()], None)?, Selected::Arm(0));
            assert_eq!(near.read(cx, &mut [0; 8])?, 1);
            drop(far);
            assert_eq!(cx.select(&mut [&mut near.arm()], None)?, Selected::Arm(0));
            assert_eq!(near.read(cx, &mut [0; 8])?, 0);
            Ok(())
        })
        .unwrap()
        .unwrap();
    });
}

#[test]
fn j_20_what_is_always_ready_starves_no_other_arm() {
    on(2, |cx| {
        let (tx, rx) = channel(1);
        let mut always = cx.after(Duration::ZERO);
        let mut chosen = [0; 2];
        for _ in 0..200 {
            let _ = tx.try_send(cx, 1);
            match cx.select(&mut [&mut rx.arm(), &mut always], None) {
                Ok(Selected::Arm(arm)) => chosen[arm] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(chosen.iter().all(|&times| times > 20), "{chosen:?}");
    });
}

#[test]
fn j_20_a_select_ends_with_its_task_and_leaves_nothing_behind() {
    let _alone = alone();
    on_every_backend(|rt| {
        rt.run(|cx| -> Result<(), TaskError> {
            let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
            let signals = Signals::new(cx, &[Signal::User2])?;
            let (listener, signals) = (&listener, &signals);
            cx.nursery(|n| {
                let child = n.spawn(move |cx| {
                    let (_tx, rx) = channel::<u8>(0);
                    let mut message = rx.arm();
                    cx.select(
                        &mut [&mut message, &mut listener.arm(), &mut signals.arm(), &mut cx.after(LONG)],
                        None,
                    )
                });
                until(cx, || child.state() == TaskState::Blocked);
                child.cancel();
                assert_eq!(child.join(cx)?, Err(Cancelled));
                // A deadline ends it as well.
                let late = cx.timeout(SHORT, || Ok(cx.select(&mut [&mut listener.arm()], None)?));
                assert!(matches!(late, Err(TaskError::TimedOut)), "{late:?}");
                Ok(())
            })?;
            // The arms are gone, so nobody takes what was meant for the next.
            send(Signal::User2);
            assert_eq!(signals.wait(cx)?, Signal::User2);
            Ok(())
        })
        .unwrap()
        .unwrap();
    });
}

#[test]
fn j_20_signals_reach_all_who_wait_and_then_do_what_they_did() {
    let _alone = alone();
    on_every_backend(|rt| {
        let before = action(Signal::User1);
        rt.run(|cx| -> Result<(), TaskError> {
            let one = Signals::new(cx, &[Signal::User1])?;
            let both = Signals::new(cx, &[Signal::User1, Signal::User2])?;
            assert_eq!((one.next(), both.next()), (None, None));
            send(Signal::User1);
            assert_eq!((one.wait(cx)?, both.wait(cx)?), (Signal::User1, Signal::User1));
            // Not asked for: not heard.
            send(Signal::User2);
            assert_eq!(both.wait(cx)?, Signal::User2);
            assert_eq!(one.next(), None);
            drop(one);
            assert_ne!(action(Signal::User1), before, "somebody still waits for it");
            send(Signal::User1);
            assert_eq!(both.wait(cx)?, Signal::User1);
            // The place of the first is used again, and nothing old is in it.
            let again = Signals::new(cx, &[Signal::User1])?;
            assert_eq!(again.next(), None);
            Ok(())
        })
        .unwrap()
        .unwrap();
        assert_eq!(action(Signal::User1), before);
    });
}

#[test]
fn j_20_the_33rd_who_waits_for_signals_is_refused() {
    let _alone = alone();
    on(1, |cx| {
        let all: Vec<_> = (0..32).map(|_| Signals::new(cx, &[Signal::User1]).unwrap()).collect();
        assert!(Signals::new(cx, &[Signal::User1]).unwrap_err().to_string().contains("share one"));
        drop(all);
        assert!(Signals::new(cx, &[Signal::User1]).is_ok());
    });
}

/// Stop accepting, finish, then cancel; and a second signal in the middle of that.
#[test]
fn j_20_a_graceful_end_and_a_signal_in_the_middle_of_it() {
    let _alone = alone();
    on_every_backend(|rt| {
        for twice in [false, true] {
            let ends = rt.run(|cx| -> Result<_, TaskError> {
                let signals = Signals::new(cx, &[Signal::Terminate])?;
                let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
                let address = listener.local_addr()?;
                let (begun, started) = channel::<()>(8);
                cx.nursery(|clients| {
                    let clients: [_; 3] = std::array::from_fn(|_| {
                        clients.spawn_try(move |cx| -> std::io::Result<Vec<u8>> {
                            let stream = TcpStream::connect(cx, address)?;
                            let mut heard = Vec::new();
                            stream.read_to_end(cx, &mut heard)?;
                            Ok(heard)
                        })
                    });
                    let mut finished = Selected::Timeout;
                    let server = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                        let mut accepted = 0;
                        while cx.select(&mut [&mut listener.arm(), &mut signals.arm()], None)?
                            == Selected::Arm(0)
                        {
                            let (stream, _) = listener.accept(cx)?;
                            let begun = begun.clone();
                            accepted += 1;
                            n.task().name(format!("client {accepted}")).spawn_try(move |cx| {
                                begun.send(cx, ())?;
                                // The first two finish by themselves, if they are let.
                                let work = if twice || accepted == 3 { LONG } else { SHORT };
                                let end = cx.sleep(work);
                                let word: &[u8] = if end.is_ok() { b"done" } else { b"bye" };
                                cx.shield(LONG, || stream.write_all(cx, word))?;
                                Ok::<(), TaskError>(end?)
                            });
                            if accepted == 3 {
                                for _ in 0..3 {
                                    started.recv(cx)?;
                                }
                                send(Signal::Terminate);
                            }
                        }
                        assert_eq!((accepted, signals.next()), (3, Some(Signal::Terminate)));
                        drop(listener);
                        if twice {
                            send(Signal::Terminate);
                        }
                        if !twice {
                            // However busy the machine is: the two that can finish do.
                            until(cx, || n.live() == 1);
                        }
                        let grace = if twice { LONG } else { SHORT };
                        finished = cx.select(&mut [&mut n.arm(), &mut signals.arm()], Some(grace))?;
                        n.cancel();
                        Ok(())
                    });
                    assert!(matches!(server, Err(TaskError::Cancelled)), "{server:?}");
                    let mut heard = Vec::new();
                    for client in clients {
                        heard.push(client.join(cx)?);
                    }
                    heard.sort();
                    Ok((finished, heard))
                })
            });
            let (finished, heard) = ends.unwrap().unwrap();
            if twice {
                assert_eq!(finished, Selected::Arm(1), "the second signal");
                assert_eq!(heard, [b"bye", b"bye", b"bye"]);
            } else {
                assert_eq!(finished, Selected::Timeout, "the third never ends by itself");
                assert_eq!(heard, [&b"bye"[..], b"done", b"done"]);
            }
        }
    });
}

#[test]
fn j_20_a_nursery_drains() {
    everywhere(|rt| {
        rt.run(|cx| {
            let end = cx.nursery(|n| {
                assert!(n.drain(cx, LONG)?, "there is nobody");
                n.spawn(|cx| cx.sleep(SHORT));
                assert!(n.drain(cx, LONG)?);
                let stuck = n.spawn(|cx| cx.sleep(LONG));
                assert!(!n.drain(cx, SHORT)?);
                // It waits no more: the end of a child is not taken for the end of this.
                stuck.cancel();
                // On a busy machine it may never have begun: that is an error, and no failure.
                let _ = stuck.join(cx);
                // A join may be a moment faster than the count.
                assert!(n.drain(cx, LONG)?);
                Ok(())
            });
            end.unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_20_a_failure_ends_a_select_but_not_before_the_join_that_shows_it() {
    everywhere(|rt| {
        rt.run(|cx| {
            for _ in 0..50 {
                let end = cx.nursery(|n| {
                    let (_tx, never) = channel::<u8>(0);
                    let child = n.spawn_try(|_| Err::<(), _>(std::io::Error::other("sour")));
                    assert_eq!(
                        cx.select(&mut [&mut never.arm(), &mut child.arm()], None),
                        Ok(Selected::Arm(1))
                    );
                    assert!(cx.select(&mut [&mut never.arm()], None).is_err(), "the nursery has failed");
                    child.join(cx)
                });
                assert!(matches!(end, Err(TaskError::Failed(_))), "{end:?}");
            }
        })
        .unwrap();
    });
}

#[test]
fn j_20_names_are_built_at_run_time_and_given_back() {
    within(|| {
        let rt = common::moving(2);
        rt.run(|cx| {
            cx.nursery(|n| {
                for round in 0..4_usize {
                    let (tx, rx) = channel::<()>(0);
                    for child in 0..20 {
                        let rx = rx.clone();
                        let name = format!(
                            "child {child} of round {round}, \u{e9}\u{e9}\u{e9} {}",
                            "x".repeat(100 * (1 - round % 2))
                        );
                        n.task().name(name).spawn(move |cx| rx.recv(cx));
                    }
                    n.task().name("plain").spawn(move |cx| rx.recv(cx));
                    let dump = rt.dump();
                    let names: Vec<_> = dump.tasks.iter().filter_map(|task| task.name.as_deref()).collect();
                    for child in 0..20 {
                        // Every second round has short names, in the places of long ones.
                        let start = format!("child {child} of round {round}, \u{e9}\u{e9}\u{e9} ");
                        let wanted = if round % 2 == 0 {
                            format!("{start}{}", "x".repeat(56 - start.len()))
                        } else {
                            start
                        };
                        let found = names.iter().filter(|name| **name == wanted).count();
                        assert_eq!(found, 1, "{wanted}: {names:?}");
                    }
                    assert!(names.contains(&"plain"), "{names:?}");
                    assert!(names.iter().all(|name| name.len() <= 56));
                    drop(tx);
                    assert!(n.drain(cx, LONG)?);
                }
                Ok(())
            })
        })
        .unwrap()
        .unwrap();
    });
}
