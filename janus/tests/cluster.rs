//! Evidence for J-14: actors with bounded mailboxes, and supervisors that restart and recharge them. Every strategy,
//! intensity, exit, budgets that run out, floods, links, monitors and the order of things.

mod common;

use common::{Tally, everywhere, seeded, within};
use janus::cluster::{
    Address, CallError, Child, End, Exit, GaveUp, Inbox, LinkError, Notice, Plan, Reply, Restart, Strategy,
    What,
};
use janus::{Budget, Cancelled, Config, Cx, Profile, Resource, Runtime, SendError, TaskError, budgeted};
use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

type Failure = Box<dyn Error + Send + Sync>;

const LONG: Duration = Duration::from_secs(20);

/// What happened, one word an event: `+a1` started, `-a1:why` ended, `$a2` recharged for the second time, `!a` gave up.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, notice: &Notice<'_>) {
        let Notice { child, incarnation, .. } = *notice;
        let word = match notice.what {
            What::Started => format!("+{child}{incarnation}"),
            What::Recharged(times) => format!("${child}{times}"),
            What::Ended(exit) => format!("-{child}{incarnation}:{}", short(exit)),
            What::GaveUp(_) => format!("!{child}"),
        };
        self.0.lock().unwrap().push(word);
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().join(" ")
    }
}

fn short(exit: &Exit) -> &'static str {
    match exit {
        Exit::Normal => "normal",
        Exit::Failed(_) => "failed",
        Exit::Panicked(_) => "panicked",
        Exit::Overflow => "overflow",
        Exit::Budget(_) => "budget",
        Exit::Cancelled => "cancelled",
        Exit::Stopped => "stopped",
        Exit::Linked(_) => "linked",
        Exit::NotStarted(_) => "not-started",
        Exit::Runtime => "runtime",
    }
}

/// What an actor can be told.
enum Do {
    Panic,
    Fail,
    Return,
    Cancel,
    Overflow,
    Spin,
    Ping(Reply<u64>),
    /// Takes its time.
    Nap(Duration),
}

#[budgeted]
fn spin(cx: &Cx) {
    loop {}
}

fn overflow(depth: u64) -> u64 {
    if depth == u64::MAX { 0 } else { std::hint::black_box(overflow(depth + 1)) + 1 }
}

/// Does what it is told, and counts the pings of this incarnation.
fn obey(cx: &Cx, inbox: &Inbox<Do>) -> Result<(), Failure> {
    let mut pings = 0;
    loop {
        match inbox.recv(cx)? {
            Do::Panic => std::panic::resume_unwind(Box::new("told to")),
            Do::Fail => return Err("told to".into()),
            Do::Return => return Ok(()),
            Do::Cancel => return Err(Cancelled.into()),
            Do::Overflow => drop(overflow(0)),
            Do::Spin => spin(cx),
            Do::Ping(reply) => {
                pings += 1;
                reply.send(cx, pings);
            }
            Do::Nap(time) => cx.sleep(time)?,
        }
    }
}

fn ping(cx: &Cx, actor: &Address<Do>) -> Result<u64, CallError> {
    actor.call(cx, LONG, Do::Ping)
}

fn cast(cx: &Cx, actor: &Address<Do>, order: Do) {
    assert!(actor.cast(cx, order).is_ok(), "{} is gone", actor.name());
}

/// Three obedient children, with `body` in the task beside them; returns what happened, and how the plan ended.
fn three(
    runtime: &Runtime,
    strategy: Strategy,
    body: impl FnOnce(&Cx, [&Address<Do>; 3]) + Send,
) -> (String, Result<End, TaskError>) {
    let log = Log::default();
    let end = runtime.run(|cx| {
        let mut plan = Plan::new(strategy).watch(|notice| log.note(notice));
        let [a, b, c] = ["a", "b", "c"].map(|name| plan.actor(Child::new(name), obey));
        let mut end = None;
        let _ = cx.nursery(|n| {
            let tree = plan.start(cx, n);
            // All are there when the last answers.
            assert_eq!(ping(cx, &c), Ok(1));
            body(cx, [&a, &b, &c]);
            tree.cancel();
            end = Some(tree.join(cx));
            Ok(())
        });
        end.expect("the body ran")
    });
    (log.text(), end.unwrap())
}

#[test]
fn j_14_one_for_one_restarts_the_one() {
    everywhere(|runtime| {
        let (log, end) = three(runtime, Strategy::OneForOne, |cx, [a, b, c]| {
            assert_eq!((ping(cx, a), ping(cx, a), ping(cx, b)), (Ok(1), Ok(2), Ok(1)));
            cast(cx, a, Do::Panic);
            // A new incarnation begins anew; its siblings go on.
            assert_eq!((ping(cx, a), ping(cx, b), ping(cx, c)), (Ok(1), Ok(2), Ok(2)));
        });
        assert_eq!(log, "+a1 +b1 +c1 -a1:panicked +a2 -c1:stopped -b1:stopped -a2:stopped");
        assert_eq!(end.unwrap(), End::Stopped);
    });
}

#[test]
fn j_14_one_for_all_restarts_all() {
    everywhere(|runtime| {
        let (log, _) = three(runtime, Strategy::OneForAll, |cx, [a, b, c]| {
            assert_eq!(ping(cx, a), Ok(1));
            cast(cx, b, Do::Fail);
            assert_eq!(ping(cx, b), Ok(1));
            assert_eq!((ping(cx, a), ping(cx, c)), (Ok(1), Ok(1)));
        });
        let all = "+a1 +b1 +c1 -b1:failed -c1:stopped -a1:stopped +a2 +b2 +c2";
        assert_eq!(log, format!("{all} -c2:stopped -b2:stopped -a2:stopped"));
    });
}

#[test]
fn j_14_rest_for_one_restarts_the_later_ones() {
    everywhere(|runtime| {
        let (log, _) = three(runtime, Strategy::RestForOne, |cx, [a, b, c]| {
            assert_eq!(ping(cx, a), Ok(1));
            cast(cx, b, Do::Panic);
            assert_eq!(ping(cx, b), Ok(1));
            assert_eq!((ping(cx, a), ping(cx, c)), (Ok(2), Ok(1)));
        });
        let rest = "+a1 +b1 +c1 -b1:panicked -c1:stopped +b2 +c2";
        assert_eq!(log, format!("{rest} -c2:stopped -b2:stopped -a1:stopped"));
    });
}

/// An order, and the exit that comes of it.
type Way = (fn() -> Do, &'static str);

/// Each way to end, as a monitor reports it; and how the three kinds of children react to it.
#[test]
fn j_14_exits_have_reasons() {
    everywhere(|runtime| {
        runtime
            .run(|cx| {
                let ways: [Way; 6] = [
                    (|| Do::Panic, "panicked"),
                    (|| Do::Fail, "failed"),
                    (|| Do::Return, "normal"),
                    (|| Do::Cancel, "cancelled"),
                    (|| Do::Overflow, "overflow"),
                    (|| Do::Spin, "budget"),
                ];
                for (way, reason) in ways {
                    for restart in [Restart::Permanent, Restart::Transient, Restart::Temporary] {
                        let mut plan = Plan::new(Strategy::OneForOne);
                        let budget = Budget { ops: 5_000, memory: 1 << 20, channel_ops: 500, ..Budget::ZERO };
                        let child = Child::new("it").restart(restart).budget(budget);
                        let it = plan.owned_actor(child, obey);
                        let _ = cx.nursery(|n| {
                            let tree = plan.start(cx, n);
                            common::until(cx, || it.is_running());
                            let monitor = it.monitor().unwrap();
                            cast(cx, &it, way());
                            let exit = monitor.wait(cx).unwrap();
                            assert_eq!(short(&exit), reason);
                            let again = match restart {
                                Restart::Permanent => true,
                                Restart::Transient => exit.is_abnormal(),
                                Restart::Temporary => false,
                            };
                            let answer = ping(cx, &it);
                            let expected = if again { Ok(1) } else { Err(CallError::Gone) };
                            // One that is over may drop the question that was in time for its mailbox.
                            assert!(
                                answer == expected || (!again && answer == Err(CallError::Unanswered)),
                                "{reason} {restart:?}: {answer:?}"
                            );
                            tree.cancel();
                            let end = tree.join(cx).unwrap();
                            assert!(again || end == End::Finished || end == End::Stopped);
                            Ok(())
                        });
                    }
                }
            })
            .unwrap();
    });
}

/// When no child is left, a plan is finished.
#[test]
fn j_14_a_plan_ends_with_its_last_child() {
    everywhere(|runtime| {
        let end = runtime.run(|cx| {
            let mut plan = Plan::new(Strategy::OneForAll);
            for name in ["one", "two"] {
                let child = Child::new(name).restart(Restart::Transient);
                let _: Address<()> = plan.actor(child, |cx, _: &Inbox<()>| cx.yield_now());
            }
            // In this very task.
            plan.run(cx).map_err(|gave_up| gave_up.to_string())
        });
        assert_eq!(end.unwrap(), Ok(End::Finished));
    });
}

fn gave_up(end: Result<End, TaskError>) -> GaveUp {
    match end {
        Err(TaskError::Failed(error)) => error.downcast_ref::<GaveUp>().expect("it gave up").clone(),
        other => panic!("it did not give up: {other:?}"),
    }
}

/// A crash loop: so many restarts, then the plan gives up, with its siblings stopped and the reason told.
#[test]
fn j_14_a_crash_loop_ends_at_the_intensity() {
    everywhere(|runtime| {
        for restarts in [0, 1, 5] {
            let (log, starts) = (Log::default(), AtomicUsize::new(0));
            let end = runtime.run(|cx| {
                let mut plan =
                    Plan::new(Strategy::OneForOne).intensity(restarts, LONG).watch(|notice| log.note(notice));
                let quiet = plan.actor(Child::new("quiet"), obey);
                let _: Address<()> =
                    plan.actor(Child::new("mad"), |_, _: &Inbox<()>| -> Result<(), Failure> {
                        Err(format!("crash {}", starts.fetch_add(1, Ordering::Relaxed)).into())
                    });
                let mut end = None;
                let _ = cx.nursery(|n| {
                    end = Some(plan.start(cx, n).join(cx));
                    Ok(())
                });
                assert!(!quiet.is_running());
                assert_eq!(ping(cx, &quiet), Err(CallError::Gone));
                end.unwrap()
            });
            let why = gave_up(end.unwrap());
            assert_eq!((why.child, why.restarts), ("mad", restarts));
            assert!(
                matches!(why.exit, Exit::Failed(error) if error.to_string() == format!("crash {restarts}"))
            );
            assert_eq!(starts.load(Ordering::Relaxed), restarts + 1);
            assert!(log.text().ends_with("-quiet1:stopped !mad"), "{}", log.text());
        }
    });
}

/// A plan that says nothing: three restarts in five seconds, in virtual time, and the fourth crash is one too many. If they
/// are further apart there is no end to them.
#[test]
fn j_14_the_default_intensity_is_three_in_five_seconds() {
    within(|| {
        let starts = |every: Duration| {
            let starts = AtomicUsize::new(0);
            let end = seeded(2, 7).run(|cx| {
                let mut plan = Plan::new(Strategy::OneForOne);
                let child = Child::new("mad").restart(Restart::Transient);
                let _: Address<()> = plan.actor(child, |cx, _: &Inbox<()>| {
                    cx.sleep(every).map_err(|error| error.to_string())?;
                    let again = starts.fetch_add(1, Ordering::Relaxed) < 20;
                    if again { Err("again".to_string()) } else { Ok(()) }
                });
                let mut end = None;
                let _ = cx.nursery(|n| {
                    end = Some(plan.start(cx, n).join(cx));
                    Ok(())
                });
                end.unwrap()
            });
            (starts.into_inner(), end.unwrap())
        };
        for every in [Duration::from_micros(1), Duration::from_millis(1_200)] {
            let (starts, end) = starts(every);
            assert_eq!((starts, gave_up(end).restarts), (4, 3));
        }
        let (starts, end) = starts(Duration::from_secs(2));
        assert_eq!((starts, end.unwrap()), (21, End::Finished));
    });
}

/// The window slides, in virtual time: as many crashes as you like, if they are far enough apart.
#[test]
fn j_14_old_restarts_are_forgotten() {
    within(|| {
        let crashes = |every: Duration| {
            let starts = AtomicUsize::new(0);
            let end = seeded(2, 7).run(|cx| {
                let mut plan = Plan::new(Strategy::OneForOne).intensity(2, Duration::from_secs(10));
                let child = Child::new("shaky").restart(Restart::Transient);
                let _: Address<()> = plan.actor(child, |cx, _: &Inbox<()>| {
                    cx.sleep(every).map_err(|error| error.to_string())?;
                    if starts.fetch_add(1, Ordering::Relaxed) < 50 {
                        Err("again".to_string())
                    } else {
                        Ok(())
                    }
                });
                plan.run(cx).is_ok()
            });
            (end.unwrap(), starts.into_inner())
        };
        // Two restarts in 10 s: every 6 s is seldom enough, every 4 s is not.
        assert_eq!(crashes(Duration::from_secs(6)), (true, 51));
        assert_eq!(crashes(Duration::from_secs(4)), (false, 3));
    });
}

/// A supervisor that gives up is a failed child of the one above, which restarts it with all that it has; and gives up in
/// turn.
#[test]
fn j_14_giving_up_escalates() {
    everywhere(|runtime| {
        let (upper_log, lower_log) = (Log::default(), Log::default());
        let end = runtime.run(|cx| {
            let mut lower =
                Plan::new(Strategy::OneForAll).intensity(1, LONG).watch(|notice| lower_log.note(notice));
            let steady = lower.actor(Child::new("s"), obey);
            let mad = lower.actor(Child::new("m"), obey);
            let mut upper =
                Plan::new(Strategy::OneForOne).intensity(1, LONG).watch(|notice| upper_log.note(notice));
            let beside = upper.actor(Child::new("x"), obey);
            upper.supervisor(Child::new("sub"), lower);
            let mut end = None;
            let _ = cx.nursery(|n| {
                let tree = upper.start(cx, n);
                // The mailboxes of the whole tree are open, before any of it has run.
                assert_eq!(ping(cx, &mad), Ok(1));
                for crash in 0..4 {
                    // Between two lives of the lower supervisor its actors are gone.
                    while ping(cx, &steady).is_err() || ping(cx, &mad).is_err() {
                        cx.sleep(Duration::from_micros(50)).unwrap();
                    }
                    assert!(ping(cx, &beside).is_ok(), "crash {crash}");
                    cast(cx, &mad, Do::Panic);
                }
                end = Some(tree.join(cx));
                Ok(())
            });
            end.unwrap()
        });
        let why = gave_up(end.unwrap());
        assert_eq!(why.child, "sub");
        assert!(
            matches!(&why.exit, Exit::Failed(error) if error.downcast_ref::<GaveUp>().unwrap().child == "m")
        );
        assert_eq!(upper_log.text(), "+x1 +sub1 -sub1:failed +sub2 -sub2:failed -x1:stopped !sub");
        let life = |n: u64| {
            let (first, second) = (n, n + 1);
            format!(
                "+s{first} +m{first} -m{first}:panicked -s{first}:stopped +s{second} +m{second} \
                 -m{second}:panicked -s{second}:stopped !m"
            )
        };
        assert_eq!(lower_log.text(), format!("{} {}", life(1), life(3)));
    });
}

/// A spent child is recharged so many times, then ended and restarted with a fresh budget; its neighbour notices nothing.
#[test]
fn j_14_budgets_run_out_and_are_recharged() {
    everywhere(|runtime| {
        let log = Log::default();
        let end = runtime.run(|cx| {
            let some = Budget { ops: 4_000, memory: 1 << 16, channel_ops: 50, ..Budget::ZERO };
            let mut plan = Plan::new(Strategy::OneForOne).intensity(1, LONG).watch(|notice| log.note(notice));
            let child = Child::new("h").budget(some).recharge(Budget { ops: 3_000, ..Budget::ZERO }, 2);
            let hog = plan.actor(child, obey);
            let neighbour = plan.actor(Child::new("n"), obey);
            let mut end = None;
            let _ = cx.nursery(|n| {
                let tree = plan.start(cx, n);
                assert!(ping(cx, &hog).is_ok());
                cast(cx, &hog, Do::Spin);
                assert_eq!(ping(cx, &neighbour), Ok(1));
                // The next incarnation answers; after its end the plan gives up, and the neighbour is stopped with it.
                assert!(ping(cx, &hog).is_ok());
                cast(cx, &hog, Do::Spin);
                end = Some(tree.join(cx));
                Ok(())
            });
            end.unwrap()
        });
        assert!(matches!(gave_up(end.unwrap()).exit, Exit::Budget(Resource::Ops)));
        assert_eq!(log.text(), "+h1 +n1 $h1 $h2 -h1:budget +h2 $h1 $h2 -h2:budget -n1:stopped !h");
    });
}

/// Channel operations are a budget too: an actor that only receives is stopped, recharged, and misses no message.
#[test]
fn j_14_a_recharged_actor_misses_nothing() {
    everywhere(|runtime| {
        let got = runtime.run(|cx| {
            let few = Budget { ops: 100_000, memory: 1 << 16, channel_ops: 10, ..Budget::ZERO };
            let mut plan = Plan::new(Strategy::OneForOne);
            let child =
                Child::new("it").budget(few).recharge(Budget { channel_ops: 10, ..Budget::ZERO }, 1_000);
            let it = plan.actor(child, obey);
            let mut got = Vec::new();
            let _ = cx.nursery(|n| {
                let tree = plan.start(cx, n);
                got = (0..100).map(|_| ping(cx, &it)).collect();
                tree.cancel();
                Ok(())
            });
            got
        });
        assert_eq!(got.unwrap(), (1..=100).map(Ok).collect::<Vec<_>>());
    });
}

/// A flood meets a bounded mailbox: a sender that only tries is refused, one that waits waits, and everything that was
/// accepted arrives, in order.
#[test]
fn j_14_a_flood_meets_back_pressure() {
    everywhere(|runtime| {
        runtime
            .run(|cx| {
                let seen = Mutex::new(Vec::new());
                let most = AtomicUsize::new(0);
                let (sent, room) = (AtomicUsize::new(0), 8);
                let mut plan = Plan::new(Strategy::OneForOne);
                let take = |cx: &Cx, inbox: &Inbox<usize>| -> Result<(), Cancelled> {
                    loop {
                        let message = inbox.recv(cx)?;
                        let waiting = sent.load(Ordering::Acquire).saturating_sub(seen.lock().unwrap().len());
                        most.fetch_max(waiting, Ordering::AcqRel);
                        seen.lock().unwrap().push(message);
                        cx.yield_now()?;
                    }
                };
                let sink = plan.actor(Child::new("sink").mailbox(room), take);
                let _ = cx.nursery(|n| {
                    let tree = plan.start(cx, n);
                    common::until(cx, || sink.is_running());
                    for message in 0..1_000 {
                        sink.cast(cx, message).unwrap();
                        sent.fetch_add(1, Ordering::AcqRel);
                    }
                    common::until(cx, || seen.lock().unwrap().len() == 1_000);
                    tree.cancel();
                    Ok(())
                });
                assert_eq!(*seen.lock().unwrap(), (0..1_000).collect::<Vec<_>>());
                // What is in the mailbox, what the sender just put there, and the one in hand.
                assert!(most.load(Ordering::Acquire) <= room + 2);
            })
            .unwrap();
    });
}

/// No message is taken: a mailbox accepts as many as it has room for, and no more.
#[test]
fn j_14_a_full_mailbox_refuses() {
    everywhere(|runtime| {
        runtime
            .run(|cx| {
                let mut plan = Plan::new(Strategy::OneForOne);
                let it = plan.actor(Child::new("it").mailbox(3), obey);
                assert!(matches!(it.try_cast(cx, Do::Fail), Err(SendError::Closed(_))), "not started yet");
                let _ = cx.nursery(|n| {
                    let tree = plan.start(cx, n);
                    assert_eq!(ping(cx, &it), Ok(1));
                    cast(cx, &it, Do::Nap(LONG));
                    common::until(cx, || it.try_cast(cx, Do::Return).is_err());
                    let short = Duration::from_millis(2);
                    assert!(matches!(it.cast_timeout(cx, Do::Fail, short), Err(SendError::Full(_))));
                    assert_eq!(
                        it.call(cx, short, Do::Ping),
                        Err(CallError::Timeout),
                        "no room for the question"
                    );
                    tree.cancel();
                    assert_eq!(tree.join(cx).unwrap(), End::Stopped);
                    assert_eq!(ping(cx, &it), Err(CallError::Gone));
                    Ok(())
                });
            })
            .unwrap();
    });
}

/// Questions that find no answer: too late, or the actor ended over them. The mailbox outlives the crash.
#[test]
fn j_14_questions_without_an_answer() {
    everywhere(|runtime| {
        runtime
            .run(|cx| {
                let mut plan = Plan::new(Strategy::OneForOne);
                let it = plan.actor(Child::new("it"), |cx, inbox: &Inbox<(u32, Reply<u32>)>| {
                    loop {
                        let (number, reply) = inbox.recv(cx)?;
                        match number {
                            0 => return Err::<(), Failure>("a bad question".into()),
                            1 => drop(reply),
                            2 => {
                                cx.sleep(Duration::from_millis(5))?;
                                reply.send(cx, 2);
                            }
                            other => reply.send(cx, other),
                        }
                    }
                });
                let ask = |number: u32, time| it.call(cx, time, |reply| (number, reply));
                let _ = cx.nursery(|n| {
                    let tree = plan.start(cx, n);
                    common::until(cx, || it.is_running());
                    assert_eq!(ask(7, LONG), Ok(7));
                    assert_eq!(ask(0, LONG), Err(CallError::Unanswered));
                    assert_eq!(ask(8, LONG), Ok(8), "restarted");
                    assert_eq!(ask(1, LONG), Err(CallError::Unanswered));
                    assert_eq!(ask(2, Duration::from_millis(1)), Err(CallError::Timeout));
                    // The late answer goes nowhere, and the next question gets its own.
                    assert_eq!(ask(9, LONG), Ok(9));
                    tree.cancel();
                    Ok(())
                });
            })
            .unwrap();
    });
}

/// Two actors under two supervisors, linked. `first` is told to `end`; how the two ended then.
fn linked(runtime: &Runtime, end: fn() -> Do, tell_left: bool) -> (String, String) {
    let (left_log, right_log) = (Log::default(), Log::default());
    let ran = runtime.run(|cx| {
        let once = |name| Child::new(name).restart(Restart::Temporary);
        let mut right = Plan::new(Strategy::OneForOne).watch(|notice| right_log.note(notice));
        let r = right.actor(once("r"), obey);
        let mut left = Plan::new(Strategy::OneForOne).watch(|notice| left_log.note(notice));
        let friend = r.clone();
        let l = left.actor(once("l"), move |cx, inbox: &Inbox<Do>| {
            inbox.link(&friend)?;
            obey(cx, inbox)
        });
        let _ = cx.nursery(|n| {
            let right = right.start(cx, n);
            assert_eq!(ping(cx, &r), Ok(1));
            let left = left.start(cx, n);
            assert_eq!(ping(cx, &l), Ok(1));
            let (told, other) = if tell_left { (&l, &r) } else { (&r, &l) };
            let (monitor, others) = (told.monitor().unwrap(), other.monitor().unwrap());
            let abnormal = {
                cast(cx, told, end());
                monitor.wait(cx).unwrap().is_abnormal()
            };
            if abnormal {
                others.wait(cx).unwrap();
            } else {
                // It is told nothing, and goes on.
                assert_eq!(ping(cx, other), Ok(2));
            }
            left.cancel();
            right.cancel();
            left.join(cx).unwrap();
            right.join(cx).unwrap();
            Ok(())
        });
    });
    ran.unwrap();
    (left_log.text(), right_log.text())
}

/// Links: a fault takes the other along, across supervisors and both ways; a normal end does not.
#[test]
fn j_14_links_pass_faults_on() {
    everywhere(|runtime| {
        let (left, right) = linked(runtime, || Do::Panic, false);
        assert_eq!((left.as_str(), right.as_str()), ("+l1 -l1:linked", "+r1 -r1:panicked"));
        let (left, right) = linked(runtime, || Do::Fail, true);
        assert_eq!((left.as_str(), right.as_str()), ("+l1 -l1:failed", "+r1 -r1:linked"));
        let (left, right) = linked(runtime, || Do::Return, false);
        assert_eq!((left.as_str(), right.as_str()), ("+l1 -l1:stopped", "+r1 -r1:normal"));
    });
}

/// A link holds for the incarnations that made it: the next incarnation of a restarted actor has no partner.
#[test]
fn j_14_links_end_with_an_incarnation() {
    everywhere(|runtime| {
        let log = Log::default();
        let ran = runtime.run(|cx| {
            let mut plan = Plan::new(Strategy::OneForOne).intensity(9, LONG).watch(|notice| log.note(notice));
            let r = plan.actor(Child::new("r"), obey);
            let (friend, first) = (r.clone(), AtomicUsize::new(0));
            let l = plan.actor(Child::new("l"), move |cx, inbox: &Inbox<Do>| {
                // Only the first incarnation has a partner.
                if first.fetch_add(1, Ordering::Relaxed) == 0 {
                    inbox.link(&friend)?;
                }
                obey(cx, inbox)
            });
            let _ = cx.nursery(|n| {
                let tree = plan.start(cx, n);
                assert_eq!((ping(cx, &l), ping(cx, &r)), (Ok(1), Ok(1)));
                // A normal end: the other one does not know of it.
                cast(cx, &l, Do::Return);
                common::until(cx, || log.text().contains("+l2"));
                assert_eq!((ping(cx, &l), ping(cx, &r)), (Ok(1), Ok(2)));
                cast(cx, &r, Do::Panic);
                common::until(cx, || log.text().contains("+r2"));
                assert_eq!((ping(cx, &l), ping(cx, &r)), (Ok(2), Ok(1)));
                tree.cancel();
                Ok(())
            });
        });
        ran.unwrap();
        let text = log.text();
        assert_eq!(text.matches(":linked").count(), 0, "{text}");
    });
}

#[test]
fn j_14_what_does_not_run_is_not_watched() {
    within(|| {
        seeded(1, 1)
            .run(|cx| {
                let mut plan = Plan::new(Strategy::OneForOne);
                let it = plan.actor(Child::new("it").restart(Restart::Temporary), obey);
                assert_eq!(it.monitor().unwrap_err(), LinkError::NotRunning);
                let _ = cx.nursery(|n| {
                    let tree = plan.start(cx, n);
                    assert_eq!(ping(cx, &it), Ok(1));
                    let monitors: Vec<_> = (0..256).map(|_| it.monitor().unwrap()).collect();
                    assert_eq!(it.monitor().unwrap_err(), LinkError::TooMany);
                    // A monitor that is dropped leaves its place to others.
                    let mut monitors = monitors;
                    monitors.truncate(255);
                    monitors.push(it.monitor().unwrap());
                    cast(cx, &it, Do::Return);
                    for monitor in &monitors {
                        assert!(matches!(monitor.wait(cx).unwrap(), Exit::Normal));
                        let none = monitor.wait_timeout(cx, Duration::from_millis(1));
                        assert!(!matches!(none, Ok(Some(_))), "told twice");
                    }
                    assert_eq!(tree.join(cx).unwrap(), End::Finished);
                    Ok(())
                });
            })
            .unwrap();
    });
}

/// No actor outlives its supervisor, however that ends: stopped, finished, cancelled from above, or by a panic of a watcher.
#[test]
fn j_14_no_actor_outlives_its_supervisor() {
    everywhere(|runtime| {
        for way in 0..3 {
            let (tally, started) = (Tally::default(), AtomicUsize::new(0));
            runtime
                .run(|cx| {
                    let mut plan = Plan::new(Strategy::OneForAll).watch(|notice| {
                        if way == 2 && matches!(notice.what, What::Ended(_)) {
                            std::panic::resume_unwind(Box::new("a watcher's fault"));
                        }
                    });
                    let body = |cx: &Cx, inbox: &Inbox<Do>| {
                        let _token = tally.token();
                        started.fetch_add(1, Ordering::AcqRel);
                        obey(cx, inbox)
                    };
                    let actors = ["a", "b", "c"].map(|name| plan.actor(Child::new(name), body));
                    let _ = cx.nursery(|n| {
                        let tree = plan.start(cx, n);
                        // That the last answers does not mean that the first has begun.
                        for actor in &actors {
                            assert_eq!(ping(cx, actor), Ok(1));
                        }
                        match way {
                            0 => tree.cancel(),
                            1 => n.cancel(),
                            _ => cast(cx, &actors[0], Do::Panic),
                        }
                        let _ = tree.join(cx);
                        tally.assert_even();
                        for actor in &actors {
                            assert_eq!(ping(cx, actor), Err(CallError::Gone));
                        }
                        Ok(())
                    });
                    assert_eq!(started.load(Ordering::Acquire), 3);
                    // The same plan can be run again, by the same addresses.
                    let _ = cx.nursery(|n| {
                        let tree = plan.start(cx, n);
                        assert_eq!(ping(cx, &actors[2]), Ok(1));
                        tree.cancel();
                        let _ = tree.join(cx);
                        Ok(())
                    });
                    tally.assert_even();
                })
                .unwrap();
        }
    });
}

/// A supervisor without the right to spawn, or with too little of it, gives up and says so.
#[test]
fn j_14_a_supervisor_needs_the_right_to_spawn() {
    within(|| {
        let config = Config::new().workers(1).watchdog(None).profile(Profile::Cluster);
        // SAFETY: no task here keeps anything of its thread over a suspension.
        unsafe { Runtime::new(config) }
            .unwrap()
            .run(|cx| {
                let mut plan = Plan::new(Strategy::OneForOne);
                let _ = plan.actor(Child::new("it"), obey);
                let _ = cx.nursery(|n| {
                    let without = n.task().children(9).spawn(|cx| plan.run(cx)).join(cx).unwrap();
                    assert!(matches!(
                        without.unwrap_err().exit,
                        Exit::NotStarted(janus::SpawnError::NoCapability)
                    ));
                    let none = n.task().grant_spawn(cx.cap_spawn().unwrap()).spawn(|cx| plan.run(cx));
                    let none = none.join(cx).unwrap();
                    let spent = janus::SpawnError::SpawnBudgetExhausted;
                    assert!(matches!(none.unwrap_err().exit, Exit::NotStarted(error) if error == spent));
                    Ok(())
                });
            })
            .unwrap();
    });
}
