//! Evidence for J-03 (budget, cost table, exhaustion, recharge) and J-04 in part (checks, quantum, ticker, yield).

mod common;

use common::{everywhere, moving, on, within};
use janus::budget::UNLIMITED;
use janus::{
    Budget, ChargeError, Config, Cx, NurseryOptions, Operation, Profile, Recharge, RechargeError, Resource,
    Runtime, SpawnError, channel,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PLENTY: Budget =
    Budget { ops: 50_000, memory: 50_000, spawn_count: 100, channel_ops: 500, syscalls: 500 };

/// A nursery whose children are recharged only explicitly.
fn manual() -> NurseryOptions {
    NurseryOptions::new().recharge(Recharge::Manual)
}

/// Runs `body` in a child that has exactly this budget.
fn with_budget<T: Send + 'static>(budget: Budget, body: impl FnOnce(&Cx) -> T + Send + 'static) -> T {
    let result = std::sync::Arc::new(std::sync::Mutex::new(None));
    let slot = result.clone();
    on(1, move |cx| {
        let child = |cx: &Cx| *slot.lock().unwrap() = Some(body(cx));
        cx.nursery_with(manual(), |n| n.task().budget(budget).spawn(child).join(cx)).unwrap();
    });
    result.lock().unwrap().take().unwrap()
}

/// How much `body` uses of each component.
fn spent(cx: &Cx, body: impl FnOnce()) -> [i64; 5] {
    let before = cx.budget();
    body();
    let after = cx.budget();
    Resource::ALL.map(|r| before.get(r) as i64 - after.get(r) as i64)
}

#[test]
fn the_runtime_charges_every_cell_of_the_table_by_its_own_operations() {
    with_budget(PLENTY, |cx| {
        let (tx, rx) = channel::<u8>(8);
        // The first operation of each kind draws from the meter, the later ones from what is in hand. Both must be
        // exact.
        for round in 0..3 {
            assert_eq!(spent(cx, || cx.check().unwrap()), [1, 0, 0, 0, 0], "loop iteration or call, {round}");
            assert_eq!(spent(cx, || cx.charge_ops(7).unwrap()), [7, 0, 0, 0, 0], "several, {round}");
            assert_eq!(spent(cx, || tx.send(cx, 1).unwrap()), [1, 0, 0, 1, 0], "send, {round}");
            assert_eq!(spent(cx, || tx.try_send(cx, 1).unwrap()), [1, 0, 0, 1, 0], "try_send, {round}");
            assert_eq!(spent(cx, || assert_eq!(rx.recv(cx), Ok(1))), [1, 0, 0, 1, 0], "recv, {round}");
            assert_eq!(
                spent(cx, || assert_eq!(rx.try_recv(cx), Ok(1))),
                [1, 0, 0, 1, 0],
                "try_recv, {round}"
            );
            let select = || {
                let _ = cx.select(&mut [&mut rx.arm()], Some(std::time::Duration::ZERO));
            };
            assert_eq!(spent(cx, select), [1, 0, 0, 1, 0], "select, {round}");
            let spawn = || cx.nursery(|n| n.spawn(|_| ()).join(cx)).unwrap();
            assert_eq!(spent(cx, spawn), [1, 0, 1, 0, 0], "spawn, {round}");
            assert_eq!(spent(cx, || cx.yield_now().unwrap()), [0; 5], "an explicit yield is free, {round}");
        }
    });
}

#[test]
fn charge_takes_every_cell_of_the_table() {
    with_budget(PLENTY, |cx| {
        let table = [
            (Operation::LoopIteration, [1, 0, 0, 0, 0]),
            (Operation::FunctionCall, [1, 0, 0, 0, 0]),
            (Operation::Allocation(123), [1, 123, 0, 0, 0]),
            (Operation::Spawn, [1, 0, 1, 0, 0]),
            (Operation::ChannelSend, [1, 0, 0, 1, 0]),
            (Operation::ChannelRecv, [1, 0, 0, 1, 0]),
            (Operation::FileIo, [1, 0, 0, 0, 1]),
            (Operation::NetworkIo, [1, 0, 0, 0, 1]),
        ];
        for (operation, cells) in table.into_iter().chain(table) {
            assert_eq!(spent(cx, || cx.charge(operation).unwrap()), cells, "{operation:?}");
        }
        let held = cx.hold_memory(100).unwrap();
        assert_eq!(spent(cx, || drop(held)), [0, -100, 0, 0, 0], "freed memory comes back");
    });
}

#[test]
fn a_blocked_channel_operation_is_charged_once() {
    on(2, |cx| {
        let (tx, rx) = channel::<u8>(0);
        cx.nursery_with(manual(), |n| {
            let receiver =
                n.task().budget(PLENTY).spawn(move |cx| spent(cx, || assert_eq!(rx.recv(cx), Ok(9))));
            common::until(cx, || receiver.state() == janus::TaskState::Blocked);
            let sender = n.task().budget(PLENTY).spawn(move |cx| spent(cx, || tx.send(cx, 9).unwrap()));
            assert_eq!(receiver.join(cx).unwrap(), [1, 0, 0, 1, 0]);
            assert_eq!(sender.join(cx).unwrap(), [1, 0, 0, 1, 0]);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn a_ticker_charges_its_iterations_the_interval_at_a_time_and_the_rest_at_its_end() {
    with_budget(PLENTY, |cx| {
        let interval = Profile::Service.yield_interval();
        for iterations in [0, 1, 10, interval - 1, interval, interval + 1, 3 * interval + 5, 2, 900, 900, 900]
        {
            let run = || {
                let mut ticker = cx.ticker();
                for _ in 0..iterations {
                    ticker.tick().unwrap();
                }
            };
            assert_eq!(spent(cx, run), [iterations as i64, 0, 0, 0, 0], "{iterations} iterations");
        }
        let mut ticker = cx.ticker();
        let before = cx.budget().ops;
        (0..interval - 1).for_each(|_| ticker.tick().unwrap());
        assert_eq!(cx.budget().ops, before, "nothing is charged before the interval is over");
        ticker.tick().unwrap();
        assert_eq!(cx.budget().ops, before - interval, "then all of it");
    });
}

#[test]
fn a_fresh_task_pays_for_a_short_ticker_too() {
    let left = with_budget(PLENTY, |cx| {
        let mut ticker = cx.ticker();
        (0..500).for_each(|_| ticker.tick().unwrap());
        drop(ticker);
        cx.budget().ops
    });
    assert_eq!(left, PLENTY.ops - 500);
}

/// An operation that spends one of a component.
type Spend = fn(&Cx) -> bool;

const PARKING: [(Resource, Spend); 4] = [
    (Resource::Ops, |cx| cx.check().is_ok()),
    (Resource::Channel, |cx| cx.charge(Operation::ChannelSend).is_ok()),
    (Resource::Syscalls, |cx| cx.charge(Operation::FileIo).is_ok()),
    (Resource::Syscalls, |cx| cx.charge(Operation::NetworkIo).is_ok()),
];

#[test]
fn ops_channel_and_syscall_exhaustion_stops_the_task_until_its_parent_recharges_it() {
    within(|| {
        for workers in [1, 2] {
            let rt = moving(workers);
            for (resource, spend) in PARKING {
                rt.run(|cx| one_exhaustion(&rt, cx, resource, spend)).unwrap();
            }
        }
    });
}

fn one_exhaustion(rt: &Runtime, cx: &Cx, resource: Resource, spend: Spend) {
    let count = AtomicU64::new(0);
    let body = |cx: &Cx| {
        while spend(cx) && count.fetch_add(1, Ordering::Relaxed) < 24 {}
    };
    let options = manual().pool(PLENTY.with(resource, 30));
    cx.nursery_with(options, |n| {
        let budget = PLENTY.with(resource, 10).with(Resource::Spawn, 0);
        let child = n.task().budget(budget).name("spender").spawn(body);
        for round in 1..=2 {
            common::until(cx, || child.state() == janus::TaskState::BudgetExhausted);
            assert_eq!(count.load(Ordering::Relaxed), 10 * round, "{resource}");
            let dump = rt.dump();
            let seen = dump.tasks.iter().find(|task| task.id == child.id()).unwrap();
            assert_eq!(
                (seen.state, seen.name.as_deref()),
                (janus::TaskState::BudgetExhausted, Some("spender"))
            );
            assert_eq!((seen.waits_for, seen.budget.get(resource)), (janus::Wait::Recharge, 0));
            assert!(dump.to_string().contains("BudgetExhausted"), "{dump}");
            child.recharge(&Budget::ZERO.with(resource, 10)).unwrap();
        }
        common::until(cx, || child.is_finished());
        assert_eq!(count.load(Ordering::Relaxed), 25);
        assert_eq!(child.recharge(&Budget::ZERO), Err(RechargeError::Ended));
        child.join(cx).unwrap();
        assert_eq!(n.pool().get(resource), 5, "25 of 30 were used");
        assert!(rt.stats().total.exhaustions >= 2);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_recharge_beyond_the_pool_changes_nothing() {
    on(1, |cx| {
        let pool = Budget { ops: 10, spawn_count: 1, memory: 7, ..Budget::ZERO };
        cx.nursery_with(manual().pool(pool), |n| {
            let child = n.task().budget(Budget { ops: 5, ..Budget::ZERO });
            let child = child.spawn(|cx| while cx.check().is_ok() {});
            common::until(cx, || child.state() == janus::TaskState::BudgetExhausted);
            let left = n.pool();
            assert_eq!(left, Budget { ops: 5, memory: 7, ..Budget::ZERO });
            let ask = Budget { ops: 5, memory: 8, ..Budget::ZERO };
            assert_eq!(child.recharge(&ask), Err(RechargeError::Exhausted(Resource::Memory)));
            assert_eq!((n.pool(), child.state()), (left, janus::TaskState::BudgetExhausted));
            child.cancel();
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn a_supervisor_recharges_and_is_waited_for() {
    on(2, |cx| {
        let (done, recharges) = (AtomicU64::new(0), AtomicU64::new(0));
        let pool = Budget { ops: 100_000, spawn_count: 10, ..Budget::UNLIMITED };
        let result = cx.nursery_with(manual().pool(pool), |n| {
            for _ in 0..3 {
                let worker = n.task().budget(Budget { ops: 100, ..Budget::ZERO });
                let body = |cx: &Cx| {
                    for _ in 0..250 {
                        cx.check().unwrap();
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                };
                drop(worker.spawn(body));
            }
            let supervisor = n.supervisor();
            let body = |cx: &Cx| {
                let supervisor = supervisor;
                while done.load(Ordering::Relaxed) < 3 {
                    for id in supervisor.exhausted() {
                        supervisor.recharge(id, &Budget { ops: 100, ..Budget::ZERO }).unwrap();
                        recharges.fetch_add(1, Ordering::Relaxed);
                    }
                    cx.sleep(std::time::Duration::from_micros(100)).unwrap();
                }
            };
            drop(n.task().budget(Budget { ops: 10_000, ..Budget::ZERO }).spawn(body));
            Ok(())
        });
        result.unwrap();
        assert_eq!((done.into_inner(), recharges.into_inner()), (3, 6), "each needed two recharges");
    });
}

#[test]
fn a_task_recharges_itself_up_to_the_limit_of_its_capability() {
    on(1, |cx| {
        let cap = cx.cap_budget(Budget { ops: 25, ..Budget::ZERO }).unwrap();
        let ten = Budget { ops: 10, ..Budget::ZERO };
        cx.nursery_with(manual(), |n| {
            let child = n.task().budget(ten).spawn(|cx| {
                let mut steps = 0;
                for _ in 0..3 {
                    while cx.budget().ops > 0 {
                        cx.check().unwrap();
                        steps += 1;
                    }
                    if let Err(error) = cx.recharge(&cap, &ten) {
                        return (steps, error);
                    }
                }
                unreachable!("the limit is 25");
            });
            let (steps, error) = child.join(cx).unwrap();
            assert_eq!((steps, error), (30, RechargeError::Exhausted(Resource::Ops)));
            Ok(())
        })
        .unwrap();
        assert_eq!(cap.left().ops, 5);
    });
}

/// J-15: a parent without memory has none for a child, either, and is told so at the spawn.
#[test]
fn a_spawn_without_memory_is_an_error() {
    with_budget(PLENTY.with(Resource::Memory, 0), |cx| {
        let spawned = cx.nursery(|n| Ok(n.try_spawn(|_| ()).map(drop))).unwrap();
        assert_eq!(spawned, Err(SpawnError::MemoryBudgetExhausted));
    });
}

#[test]
fn spawn_and_memory_exhaustion_are_errors_and_stop_nobody() {
    let left = with_budget(PLENTY.with(Resource::Spawn, 1).with(Resource::Memory, 100), |cx| {
        assert_eq!(cx.charge(Operation::Allocation(101)), Err(ChargeError::MemoryBudgetExhausted));
        assert_eq!(cx.charge(Operation::Allocation(u64::MAX)), Err(ChargeError::MemoryBudgetExhausted));
        let (one, rest) = (cx.hold_memory(1).unwrap(), cx.hold_memory(59).unwrap());
        assert_eq!(cx.charge(Operation::Allocation(41)), Err(ChargeError::MemoryBudgetExhausted));
        drop(one);
        let last = cx.hold_memory(41).unwrap();
        cx.charge(Operation::Spawn).unwrap();
        assert_eq!(cx.charge(Operation::Spawn), Err(ChargeError::SpawnBudgetExhausted));
        drop((rest, last));
        let spawned = cx.nursery(|n| Ok(n.try_spawn(|_| ()).map(drop))).unwrap();
        assert_eq!(spawned, Err(SpawnError::SpawnBudgetExhausted));
        cx.budget()
    });
    assert_eq!((left.memory, left.spawn_count), (100, 0));
}

#[test]
fn a_pool_without_memory_takes_no_child() {
    on(1, |cx| {
        let pool = Budget { memory: 0, ..PLENTY };
        let error = cx.nursery_with(manual().pool(pool), |n| Ok(n.try_spawn(|_| ()).map(drop))).unwrap();
        assert_eq!(error, Err(SpawnError::MemoryBudgetExhausted));
        let error = cx.nursery_with(manual().pool(PLENTY), |n| {
            Ok(n.task().budget(Budget { syscalls: 501, ..Budget::ZERO }).try_spawn(|_| ()).map(drop))
        });
        assert_eq!(error.unwrap(), Err(SpawnError::PoolExhausted(Resource::Syscalls)));
    });
}

#[test]
fn a_child_that_may_not_spawn_is_not_exhausted_by_that() {
    everywhere(|rt| {
        rt.run(|cx| {
            cx.nursery(|n| {
                let child = n.spawn(|cx| {
                    assert_eq!(cx.budget().spawn_count, 0);
                    (0..5000).for_each(|_| cx.check().unwrap());
                    assert_eq!(cx.charge(Operation::Spawn), Err(ChargeError::SpawnBudgetExhausted));
                    cx.nursery(|n| Ok(n.try_spawn(|_| ()).map(drop))).unwrap()
                });
                assert_eq!(child.join(cx).unwrap(), Err(SpawnError::SpawnBudgetExhausted));
                let allowed = n.task().children(2).spawn(|cx| {
                    // One after the other: by default each gets all the memory that there is.
                    let join = |child: janus::Handle<'_, ()>| child.join(cx).unwrap();
                    cx.nursery(|n| Ok([1, 2, 3].map(|_| n.try_spawn(|_| ()).map(join)))).unwrap()
                });
                let end = Err(SpawnError::SpawnBudgetExhausted);
                assert_eq!(allowed.join(cx).unwrap(), [Ok(()), Ok(()), end]);
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn the_pool_is_exact_after_every_child() {
    everywhere(|rt| {
        rt.run(|cx| {
            let pool = Budget {
                ops: 1_000_000,
                memory: 1_000_000,
                spawn_count: 50,
                channel_ops: 9_000,
                syscalls: 900,
            };
            let (tx, rx) = channel::<u8>(64);
            let used = AtomicU64::new(0);
            cx.nursery_with(manual().keep_going().pool(pool).share(PLENTY.with(Resource::Spawn, 0)), |n| {
                for child in 0..10_u64 {
                    let (tx, rx, used) = (tx.clone(), rx.clone(), &used);
                    let body = move |cx: &Cx| {
                        for _ in 0..child * 100 {
                            cx.check().unwrap();
                        }
                        tx.send(cx, 1).unwrap();
                        rx.recv(cx).unwrap();
                        cx.charge(Operation::Allocation(50)).unwrap();
                        cx.charge(Operation::FileIo).unwrap();
                        used.fetch_add(child * 100 + 4, Ordering::Relaxed);
                        assert!(child != 7, "this one panics, and pays all the same");
                    };
                    let _ = n.spawn(body).join(cx);
                }
                let used = used.load(Ordering::Relaxed);
                let left = Budget {
                    ops: pool.ops - used,
                    memory: pool.memory - 500,
                    spawn_count: 40,
                    channel_ops: pool.channel_ops - 20,
                    syscalls: pool.syscalls - 10,
                };
                assert_eq!(n.pool(), left);
                Ok(())
            })
            .unwrap_err();
        })
        .unwrap();
    });
}

#[test]
fn a_nurserys_own_pool_comes_out_of_the_task_and_goes_back_to_it() {
    with_budget(PLENTY, |cx| {
        let all = cx.nursery_with(manual().pool(PLENTY.with(Resource::Ops, 50_001)), |_| Ok(()));
        assert!(matches!(all, Err(janus::TaskError::Pool(Resource::Ops))), "{all:?}");
        assert_eq!(cx.budget(), PLENTY, "nothing was taken");
        let pool = Budget { ops: 1000, memory: 1000, spawn_count: 10, channel_ops: 10, syscalls: 10 };
        let nursery = || {
            let body = |cx: &Cx| (0..300).for_each(|_| cx.check().unwrap());
            let share =
                NurseryOptions::new().pool(pool).share(Budget { ops: 400, memory: 1, ..Budget::ZERO });
            cx.nursery_with(share, |n| n.spawn(body).join(cx)).unwrap();
        };
        assert_eq!(spent(cx, nursery), [301, 0, 1, 0, 0], "300 of the child, one for the spawn");
    });
}

#[test]
fn the_pool_feeds_by_itself_in_service_and_only_what_is_there() {
    everywhere(|rt| {
        rt.run(|cx| {
            let pool = Budget { ops: 1_000, memory: 100, spawn_count: 10, channel_ops: 30, syscalls: 30 };
            let share = Budget { ops: 7, memory: 10, channel_ops: 1, syscalls: 1, spawn_count: 0 };
            let options = NurseryOptions::new().pool(pool).share(share);
            cx.nursery_with(options, |n| {
                let body = |cx: &Cx| {
                    (0..500).for_each(|_| cx.check().unwrap());
                    (0..20).for_each(|_| cx.charge(Operation::FileIo).unwrap());
                    (0..20).for_each(|_| cx.charge(Operation::ChannelSend).unwrap());
                    cx.charge(Operation::Allocation(60)).unwrap();
                    assert_eq!(cx.charge(Operation::Allocation(41)), Err(ChargeError::MemoryBudgetExhausted));
                    cx.charge(Operation::Allocation(40)).unwrap();
                };
                n.spawn(body).join(cx).unwrap();
                let left = Budget { ops: 458, memory: 0, spawn_count: 9, channel_ops: 10, syscalls: 10 };
                assert_eq!(n.pool(), left, "542 operations");
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn a_huge_allocation_is_answered_at_once() {
    on(1, |cx| {
        cx.nursery(|n| {
            let child = n.spawn(|cx| {
                assert_eq!(
                    cx.charge(Operation::Allocation(UNLIMITED)),
                    Err(ChargeError::MemoryBudgetExhausted)
                );
                cx.charge(Operation::Allocation(1 << 60)).unwrap();
            });
            child.join(cx).unwrap();
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn unlimited_is_never_used_up() {
    with_budget(Budget::UNLIMITED, |cx| {
        (0..10_000).for_each(|_| cx.check().unwrap());
        cx.charge(Operation::Allocation(u64::MAX - 1)).unwrap();
        cx.charge(Operation::FileIo).unwrap();
        cx.charge(Operation::ChannelRecv).unwrap();
        cx.nursery(|n| n.task().budget(Budget::UNLIMITED).spawn(|_| ()).join(cx)).unwrap();
        assert_eq!(cx.budget(), Budget::UNLIMITED);
    });
}

#[test]
fn a_task_gives_way_after_a_quantum_with_budget_left() {
    within(|| {
        // One worker, and a quantum of 64: two tasks that only check must take turns of about 64.
        let config = Config::new().workers(1).watchdog(None).quantum(64);
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(config) }.unwrap();
        let order = std::sync::Mutex::new(Vec::new());
        rt.run(|cx| {
            cx.nursery(|n| {
                for name in 0..2 {
                    let order = &order;
                    let body = move |cx: &Cx| {
                        for _ in 0..640 {
                            cx.check().unwrap();
                            order.lock().unwrap().push(name);
                        }
                    };
                    drop(n.spawn(body));
                }
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
        let order = order.into_inner().unwrap();
        let runs: Vec<usize> = order.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        assert_eq!(order.len(), 1280);
        assert!(runs.len() >= 18 && runs.iter().all(|run| *run <= 65), "{runs:?}");
    });
}

#[test]
fn an_endless_loop_that_checks_or_ticks_does_not_hold_its_worker() {
    on(1, |cx| {
        for ticks in [false, true] {
            let stop = AtomicBool::new(false);
            cx.nursery(|n| {
                let hog = |cx: &Cx| {
                    let mut ticker = cx.ticker();
                    while !stop.load(Ordering::Relaxed) {
                        if ticks { ticker.tick().unwrap() } else { cx.check().unwrap() }
                    }
                };
                drop(n.task().budget(Budget::UNLIMITED).spawn(hog));
                drop(n.spawn(|_| stop.store(true, Ordering::Relaxed)));
                Ok(())
            })
            .unwrap();
        }
    });
}
