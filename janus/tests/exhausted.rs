//! Evidence for J-20: a used-up budget ends what it paid for if that was asked for, and the reason is never
//! masked.

mod common;

use common::{everywhere, on_every_backend, until};
use janus::io::IoError;
use janus::net::{TcpListener, TcpStream};
use janus::{
    Budget, ChargeError, Cx, NurseryOptions, OnExhausted, Operation, Recharge, Resource, TaskError, TaskState,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TEN: Budget = Budget { ops: 10, ..Budget::ZERO };

fn manual() -> NurseryOptions {
    NurseryOptions::new().recharge(Recharge::Manual)
}

fn spins(cx: &Cx) -> Result<(), TaskError> {
    loop {
        cx.check()?;
    }
}

/// Its calls are used up: the server closes the connection, and its client learns it instead of waiting for ever.
#[test]
fn j_20_a_connection_that_used_its_calls_is_closed() {
    on_every_backend(|rt| {
        let end = rt.run(|cx| {
            let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
            let address = listener.local_addr()?;
            cx.nursery(|n| {
                let client = n.spawn(move |cx| -> std::io::Result<usize> {
                    let stream = TcpStream::connect(cx, address)?;
                    let mut echoed = 0;
                    loop {
                        let mut byte = [0];
                        // Closed, or reset because a byte was not read: either is an end.
                        if stream.write_all(cx, b"x").is_err() || stream.read(cx, &mut byte).unwrap_or(0) == 0
                        {
                            return Ok(echoed);
                        }
                        echoed += 1;
                    }
                });
                let (stream, _) = listener.accept(cx)?;
                let calls = Budget { syscalls: 7, ..Budget::UNLIMITED };
                let told = Arc::new(Mutex::new((None, None)));
                let why = told.clone();
                let served = cx.nursery_with(manual(), |n| {
                    let task = n.task().budget(calls).on_exhausted(OnExhausted::End).owned();
                    let serve = task.spawn_try(move |cx| -> std::io::Result<()> {
                        loop {
                            let mut byte = [0];
                            let io =
                                stream.read_exact(cx, &mut byte).and_then(|()| stream.write_all(cx, &byte));
                            if let Err(error) = io {
                                // Asserted outside: a panic in here would be overruled by the budget.
                                *why.lock().unwrap() = (IoError::of(&error), cx.ended_by());
                                return Err(error);
                            }
                        }
                    });
                    serve.join(cx)
                });
                assert!(matches!(served, Err(TaskError::BudgetExceeded(Resource::Syscalls))), "{served:?}");
                let syscalls = (Some(IoError::BudgetExceeded(Resource::Syscalls)), Some(Resource::Syscalls));
                assert_eq!(*told.lock().unwrap(), syscalls);
                let echoed = client.join(cx)??;
                assert!((1..=3).contains(&echoed), "{echoed} of 7 calls");
                Ok(())
            })
        });
        end.unwrap().unwrap();
    });
}

/// The result of a charge, reported outside of the task that its budget ends.
static CHARGED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[test]
fn j_20_the_reason_is_not_masked_by_what_the_task_returns() {
    everywhere(|rt| {
        rt.run(|cx| {
            let end_with = |body: fn(&Cx) -> Result<(), TaskError>| {
                let mut by_handle = None;
                let by_nursery = cx.nursery_with(manual(), |n| {
                    let child = n.task().budget(TEN).on_exhausted(OnExhausted::End).spawn_try(body);
                    by_handle = Some(child.join(cx));
                    Ok(())
                });
                for end in [by_handle.unwrap(), by_nursery] {
                    assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Ops))), "{end:?}");
                }
            };
            end_with(spins);
            // An error of its own, a panic, a value: it was told to end for its budget.
            end_with(|cx| spins(cx).map_err(|_| TaskError::failed("something went wrong")));
            end_with(|cx| {
                spins(cx).expect("it never ends");
                Ok(())
            });
            end_with(|cx| {
                let _ = spins(cx);
                Ok(())
            });
            end_with(|cx| {
                let charged = (0..20).find_map(|_| cx.charge(Operation::FunctionCall).err());
                CHARGED.store(
                    charged == Some(ChargeError::BudgetExceeded(Resource::Ops)),
                    std::sync::atomic::Ordering::Relaxed,
                );
                Err(charged.map_or(TaskError::Cancelled, TaskError::from))
            });
            assert!(CHARGED.load(std::sync::atomic::Ordering::Relaxed));
            // A shield does not help a task that cannot pay.
            end_with(|cx| cx.shield(Duration::from_secs(3600), || spins(cx)));
            // Nor is it a time-out.
            end_with(|cx| cx.timeout(Duration::from_secs(3600), || spins(cx)));
        })
        .unwrap();
    });
}

#[test]
fn j_20_who_is_to_wait_is_not_ended_by_a_guess() {
    everywhere(|rt| {
        rt.run(|cx| {
            let rule = |rule| manual().on_exhausted(rule).keep_going();
            let end = cx.nursery_with(rule(OnExhausted::Wait), |n| {
                let child = n.task().budget(TEN).spawn(|cx| (0..15).filter(|_| cx.check().is_ok()).count());
                until(cx, || child.state() == TaskState::BudgetExhausted);
                // The parent waits, and nobody else is there: by the specification's rule this is the end of it.
                let child = child.join_timeout(cx, Duration::from_millis(2)).expect_err("it waits");
                assert_eq!(child.state(), TaskState::BudgetExhausted);
                child.recharge(&TEN).unwrap();
                child.join(cx)
            });
            assert_eq!(end.unwrap(), 15);
            let end = cx.nursery_with(rule(OnExhausted::EndIfStuck), |n| {
                let child = n.task().budget(TEN).spawn(|cx| (0..15).filter(|_| cx.check().is_ok()).count());
                child.join_timeout(cx, Duration::from_secs(3600)).expect("it is ended")
            });
            assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Ops))), "{end:?}");
            // A child's own rule goes before that of its nursery.
            let end = cx.nursery_with(rule(OnExhausted::Wait), |n| {
                n.task().budget(TEN).on_exhausted(OnExhausted::End).spawn_try(spins).join(cx)
            });
            assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Ops))), "{end:?}");
            // A cancellation reaches a waiting task.
            let end = cx.nursery_with(rule(OnExhausted::Wait), |n| {
                let child = n.task().budget(TEN).spawn_try(spins);
                until(cx, || child.state() == TaskState::BudgetExhausted);
                child.cancel();
                child.join(cx)
            });
            assert!(matches!(end, Err(TaskError::Cancelled)), "{end:?}");
        })
        .unwrap();
    });
}
