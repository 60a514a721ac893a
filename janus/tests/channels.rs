//! Evidence for J-13 in part: channels (rendezvous, bounded), close, timeouts, foreign threads, select.

mod common;

use common::{Tally, everywhere, moving, on, within};
use janus::{Budget, Cx, NurseryOptions, RecvError, Selected, SendError, TaskState, channel};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_micros(200);

/// Children that no budget stops.
fn free() -> NurseryOptions {
    NurseryOptions::new().share(Budget { spawn_count: 0, ..Budget::UNLIMITED })
}

#[test]
fn a_rendezvous_send_returns_when_the_message_is_received() {
    everywhere(|rt| {
        rt.run(|cx| {
            let (tx, rx) = channel::<u32>(0);
            cx.nursery(|n| {
                let sent = AtomicBool::new(false);
                let sent = &sent;
                let sender = cx.nursery(|inner| {
                    let sender = |cx: &Cx| {
                        tx.send(cx, 5).unwrap();
                        sent.store(true, Ordering::Release);
                    };
                    let sender = inner.spawn(sender);
                    common::until(cx, || sender.state() == TaskState::Blocked);
                    assert!(!sent.load(Ordering::Acquire));
                    assert_eq!(rx.recv(cx), Ok(5));
                    sender.join(cx).unwrap();
                    assert!(sent.load(Ordering::Acquire));
                    Ok(())
                });
                sender.unwrap();
                assert_eq!(n.live(), 0);
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn a_bounded_channel_takes_so_many_and_keeps_their_order() {
    everywhere(|rt| {
        rt.run(|cx| {
            for capacity in [1, 2, 7] {
                let (tx, rx) = channel::<usize>(capacity);
                for message in 0..capacity {
                    tx.try_send(cx, message).unwrap();
                }
                assert_eq!(tx.try_send(cx, 99), Err(SendError::Full(99)));
                cx.nursery(|n| {
                    let tx = &tx;
                    let more = n.spawn(move |cx| (capacity..100).for_each(|m| tx.send(cx, m).unwrap()));
                    let received: Vec<usize> = (0..100).map(|_| rx.recv(cx).unwrap()).collect();
                    assert_eq!(received, (0..100).collect::<Vec<_>>());
                    more.join(cx).unwrap();
                    Ok(())
                })
                .map_or_else(|error| panic!("{error}"), drop);
                assert_eq!(rx.try_recv(cx), Err(RecvError::Empty));
            }
        })
        .unwrap();
    });
}

#[test]
fn waiting_senders_are_served_in_order() {
    on(1, |cx| {
        let (tx, rx) = channel::<usize>(0);
        cx.nursery(|n| {
            for number in 0..20 {
                let tx = tx.clone();
                let sender = n.spawn(move |cx| tx.send(cx, number).unwrap());
                common::until(cx, || sender.state() == TaskState::Blocked);
            }
            assert_eq!(
                (0..20).map(|_| rx.recv(cx).unwrap()).collect::<Vec<_>>(),
                (0..20).collect::<Vec<_>>()
            );
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn four_senders_and_four_receivers_pass_each_message_exactly_once_and_each_sender_in_order() {
    everywhere(|rt| {
        const EACH: usize = 1500;
        for capacity in [0, 1, 16] {
            let seen: Vec<AtomicUsize> = (0..4 * EACH).map(|_| AtomicUsize::new(0)).collect();
            rt.run(|cx| {
                let (tx, rx) = channel::<usize>(capacity);
                cx.nursery_with(free(), |n| {
                    for sender in 0..4 {
                        let tx = tx.clone();
                        let body =
                            move |cx: &Cx| (0..EACH).for_each(|m| tx.send(cx, sender * EACH + m).unwrap());
                        drop(n.spawn(body));
                        let (rx, seen) = (rx.clone(), &seen);
                        let body = move |cx: &Cx| {
                            let mut last = [None; 4];
                            while let Ok(message) = rx.recv(cx) {
                                seen[message].fetch_add(1, Ordering::Relaxed);
                                let of = &mut last[message / EACH];
                                assert!(*of < Some(message), "one sender's messages overtake each other");
                                *of = Some(message);
                            }
                        };
                        drop(n.spawn(body));
                    }
                    drop((tx, rx));
                    Ok(())
                })
                .unwrap();
            })
            .unwrap();
            assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    });
}

#[test]
fn receivers_get_what_is_left_and_then_the_end() {
    everywhere(|rt| {
        rt.run(|cx| {
            let (tx, rx) = channel::<u8>(4);
            let other = tx.clone();
            tx.send(cx, 1).unwrap();
            drop(tx);
            other.send(cx, 2).unwrap();
            drop(other);
            assert_eq!((rx.recv(cx), rx.try_recv(cx)), (Ok(1), Ok(2)));
            assert_eq!((rx.recv(cx), rx.try_recv(cx)), (Err(RecvError::Closed), Err(RecvError::Closed)));
            assert_eq!(rx.recv_timeout(cx, LONG), Err(RecvError::Closed));
            // A waiting task is woken by it.
            let (tx, rx) = channel::<u8>(0);
            let ends = cx.nursery(|n| {
                let waiters = [0; 3].map(|_| {
                    let rx = rx.clone();
                    n.spawn(move |cx| rx.recv(cx))
                });
                common::until(cx, || waiters.iter().all(|waiter| waiter.state() == TaskState::Blocked));
                drop(tx);
                Ok(waiters.map(|waiter| waiter.join(cx).unwrap()))
            });
            assert_eq!(ends.unwrap(), [Err(RecvError::Closed); 3]);
        })
        .unwrap();
    });
}

#[test]
fn senders_get_their_messages_back_and_unread_ones_are_dropped() {
    everywhere(|rt| {
        let tally = Tally::default();
        rt.run(|cx| {
            let (tx, rx) = channel(2);
            for _ in 0..2 {
                assert!(tx.send(cx, tally.token()).is_ok());
            }
            cx.nursery(|n| {
                let (tx, tally) = (&tx, &tally);
                let waiting =
                    n.spawn(move |cx| matches!(tx.send(cx, tally.token()), Err(SendError::Closed(_))));
                common::until(cx, || waiting.state() == TaskState::Blocked);
                drop(rx);
                assert!(waiting.join(cx).unwrap());
                Ok(())
            })
            .map_or_else(|error| panic!("{error}"), drop);
            assert!(matches!(tx.send(cx, tally.token()), Err(SendError::Closed(_))));
            assert!(matches!(tx.try_send(cx, tally.token()), Err(SendError::Closed(_))));
            assert_eq!(tally.made(), 5);
            tally.assert_even();
        })
        .unwrap();
    });
}

#[test]
fn a_timed_receive_ends_or_succeeds() {
    everywhere(|rt| {
        rt.run(|cx| {
            let (tx, rx) = channel::<u8>(1);
            let before = cx.now();
            assert_eq!(rx.recv_timeout(cx, SHORT), Err(RecvError::Empty));
            assert!(cx.now() - before >= SHORT);
            assert_eq!(rx.recv_timeout(cx, Duration::ZERO), Err(RecvError::Empty));
            cx.nursery(|n| {
                let sender = n.spawn(|cx| tx.send(cx, 3));
                assert_eq!(rx.recv_timeout(cx, LONG), Ok(3));
                assert_eq!(sender.join(cx).unwrap(), Ok(()));
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn foreign_threads_send_and_receive() {
    everywhere(|rt| {
        let ((tx, rx), (back, answers)) = (channel::<u64>(0), channel::<u64>(1));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..200 {
                    tx.send_blocking(number).unwrap();
                    assert_eq!(answers.recv_blocking(), Ok(number * 2));
                }
                drop(tx);
                assert_eq!(answers.recv_blocking(), Err(RecvError::Closed));
            });
            rt.run(|cx| {
                while let Ok(number) = rx.recv(cx) {
                    back.send(cx, number * 2).unwrap();
                }
                drop(back);
            })
            .unwrap();
        });
        let (tx, rx) = channel::<u64>(0);
        drop(rx);
        assert_eq!(tx.send_blocking(4), Err(SendError::Closed(4)));
    });
}

#[test]
fn select_does_exactly_one_arm() {
    on(1, |cx| {
        let ((tx_a, rx_a), (tx_b, rx_b)) = (channel::<u8>(1), channel::<u8>(1));
        // Nothing is ready but the send.
        let (mut recv, mut send) = (rx_a.arm(), tx_b.arm(9));
        assert_eq!(cx.select(&mut [&mut recv, &mut send], None), Ok(Selected::Arm(1)));
        assert_eq!((recv.into_result(), send.into_result()), (Err(RecvError::Empty), Ok(())));
        // Now the other is full, and this one has a message.
        tx_a.send(cx, 1).unwrap();
        let (mut recv, mut send) = (rx_a.arm(), tx_b.arm(8));
        assert_eq!(cx.select(&mut [&mut recv, &mut send], None), Ok(Selected::Arm(0)));
        assert_eq!((recv.into_result(), send.into_result()), (Ok(1), Err(SendError::Full(8))));
        assert_eq!((rx_b.recv(cx), rx_b.try_recv(cx)), (Ok(9), Err(RecvError::Empty)));
        // Neither in time, and neither at once.
        for timeout in [SHORT, Duration::ZERO] {
            let (mut a, mut b) = (rx_a.arm(), rx_b.arm());
            assert_eq!(cx.select(&mut [&mut a, &mut b], Some(timeout)), Ok(Selected::Timeout));
        }
        assert_eq!(cx.select(&mut [], Some(SHORT)), Ok(Selected::Timeout));
        // Closed is an end too.
        drop(tx_a);
        let mut a = rx_a.arm();
        assert_eq!(cx.select(&mut [&mut a], None), Ok(Selected::Arm(0)));
        assert_eq!(a.into_result(), Err(RecvError::Closed));
        drop(rx_b);
        let mut b = tx_b.arm(7);
        assert_eq!(cx.select(&mut [&mut b], None), Ok(Selected::Arm(0)));
        assert_eq!(b.into_result(), Err(SendError::Closed(7)));
    });
}

#[test]
fn a_waiting_select_is_served_closed_or_timed_out() {
    everywhere(|rt| {
        rt.run(|cx| {
            let ((tx, rx), (full, _rest)) = (channel::<u8>(0), channel::<u8>(0));
            cx.nursery(|n| {
                let (rx, full) = (&rx, &full);
                let wait = move |cx: &Cx| {
                    let (mut recv, mut send) = (rx.arm(), full.arm(4));
                    let selected = cx.select(&mut [&mut recv, &mut send], None);
                    assert_eq!(
                        (selected, send.into_result()),
                        (Ok(Selected::Arm(0)), Err(SendError::Full(4)))
                    );
                    recv.into_result()
                };
                let served = n.spawn(wait);
                common::until(cx, || served.state() == TaskState::Blocked);
                tx.send(cx, 6).unwrap();
                assert_eq!(served.join(cx).unwrap(), Ok(6));
                let closed = n.spawn(wait);
                common::until(cx, || closed.state() == TaskState::Blocked);
                drop(tx);
                assert_eq!(closed.join(cx).unwrap(), Err(RecvError::Closed));
                Ok(())
            })
            .map_or_else(|error| panic!("{error}"), drop);
        })
        .unwrap();
    });
}

#[test]
fn two_arms_of_one_channel_and_selects_on_both_sides() {
    everywhere(|rt| {
        rt.run(|cx| {
            const EACH: usize = 500;
            let ((tx_a, rx_a), (tx_b, rx_b)) = (channel::<usize>(0), channel::<usize>(0));
            let (sent, got) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
            cx.nursery_with(free(), |n| {
                let (sent, got) = (&sent, &got);
                for sender in 0..2 {
                    let (tx_a, tx_b) = (tx_a.clone(), tx_b.clone());
                    let send = move |cx: &Cx| {
                        for number in (0..EACH).map(|number| sender * EACH + number) {
                            let mut arms = (tx_a.arm(number), tx_b.arm(number), tx_a.arm(number));
                            let arms_list: &mut [&mut dyn janus::Arm] =
                                &mut [&mut arms.0, &mut arms.1, &mut arms.2];
                            assert!(matches!(cx.select(arms_list, None), Ok(Selected::Arm(_))));
                            let results = [arms.0.into_result(), arms.1.into_result(), arms.2.into_result()];
                            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
                            sent.lock().unwrap().push(number);
                        }
                    };
                    drop(n.spawn(send));
                    let (rx_a, rx_b) = (rx_a.clone(), rx_b.clone());
                    let receive = move |cx: &Cx| loop {
                        let (mut a, mut b) = (rx_a.arm(), rx_b.arm());
                        let selected = cx.select(&mut [&mut a, &mut b], None).unwrap();
                        let result =
                            if selected == Selected::Arm(0) { a.into_result() } else { b.into_result() };
                        match result {
                            Ok(number) => got.lock().unwrap().push(number),
                            Err(error) => break assert_eq!(error, RecvError::Closed),
                        }
                    };
                    drop(n.spawn(receive));
                }
                drop((tx_a, tx_b, rx_a, rx_b));
                Ok(())
            })
            .unwrap();
            let (mut sent, mut got) = (sent.into_inner().unwrap(), got.into_inner().unwrap());
            sent.sort_unstable();
            got.sort_unstable();
            assert_eq!(sent, (0..2 * EACH).collect::<Vec<_>>());
            assert_eq!(got, sent);
        })
        .unwrap();
    });
}

#[test]
fn select_is_fair_among_ready_arms() {
    on(1, |cx| {
        let ((tx_a, rx_a), (tx_b, rx_b)) = (channel::<u8>(1), channel::<u8>(1));
        let mut counts = [0; 2];
        for _ in 0..1000 {
            let _ = (tx_a.try_send(cx, 0), tx_b.try_send(cx, 0));
            let (mut a, mut b) = (rx_a.arm(), rx_b.arm());
            match cx.select(&mut [&mut a, &mut b], None) {
                Ok(Selected::Arm(arm)) => counts[arm] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
    });
}

#[test]
fn no_message_is_lost_when_senders_and_receivers_are_cancelled() {
    within(|| {
        let rt = moving(2);
        for round in 0..150_u32 {
            let (sent, back, got) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
            let tally = Tally::default();
            rt.run(|cx| {
                let (tx, rx) = channel(round as usize % 3);
                let result = cx.nursery_with(free(), |n| {
                    let (sent, back, got, tally) = (&sent, &back, &got, &tally);
                    for task in 0..3 {
                        let tx = tx.clone();
                        let send = move |cx: &Cx| loop {
                            let result = if task == 0 {
                                let mut arm = tx.arm(tally.token());
                                let _ = cx.select(&mut [&mut arm], None);
                                arm.into_result()
                            } else {
                                tx.send(cx, tally.token())
                            };
                            match result {
                                Ok(()) => sent.fetch_add(1, Ordering::Relaxed),
                                Err(_) => break back.fetch_add(1, Ordering::Relaxed),
                            };
                        };
                        drop(n.spawn(send));
                        let rx = rx.clone();
                        let receive = move |cx: &Cx| loop {
                            let result = match task {
                                0 => rx.recv_timeout(cx, SHORT),
                                1 => rx.recv(cx),
                                _ => {
                                    let mut arm = rx.arm();
                                    let _ = cx.select(&mut [&mut arm], Some(SHORT));
                                    arm.into_result()
                                }
                            };
                            match result {
                                Ok(_) => drop(got.fetch_add(1, Ordering::Relaxed)),
                                Err(_) if cx.is_cancelled() => break,
                                Err(_) => {}
                            }
                        };
                        drop(n.spawn(receive));
                    }
                    cx.sleep(Duration::from_micros(u64::from(round * 3))).unwrap();
                    n.cancel();
                    Ok(())
                });
                assert!(result.is_err());
                let mut rest = 0;
                while rx.try_recv(cx).is_ok() {
                    rest += 1;
                }
                let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
                assert_eq!(count(&sent), count(&got) + rest, "sent, and received or still there");
                assert_eq!(tally.made(), count(&sent) + count(&back));
            })
            .unwrap();
            tally.assert_even();
        }
    });
}
