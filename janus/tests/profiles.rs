//! Evidence for J-11: the profiles, `CapSpawn` and `CapBudget`; no capability, no spawn.

mod common;

use common::within;
use janus::{Budget, Config, Cx, Profile, RechargeError, Runtime, RuntimeError, SpawnError};

fn runtime(profile: Profile) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(2).watchdog(None).profile(profile)) }.unwrap()
}

/// What a child that was granted nothing, but the budget for children, can do.
fn ungranted(cx: &Cx) -> (Result<(), SpawnError>, bool, Option<RechargeError>) {
    cx.nursery(|n| {
        let child = |cx: &Cx| {
            let spawned = cx.nursery(|n| Ok(n.try_spawn(|_| ()).map(drop))).unwrap();
            (spawned, cx.cap_spawn().is_some(), cx.cap_budget(Budget::ZERO).err())
        };
        Ok(n.task().children(1).spawn(child).join(cx).unwrap())
    })
    .unwrap()
}

#[test]
fn core_has_no_scheduler() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let refused = unsafe { Runtime::new(Config::new().workers(1).profile(Profile::Core)) };
    assert!(matches!(refused, Err(RuntimeError::CoreProfile)));
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let refused = unsafe { Runtime::new(Config::new().workers(1).profile(Profile::Core).seed(1)) };
    assert!(matches!(refused, Err(RuntimeError::CoreProfile)));
}

#[test]
fn a_runtime_has_a_sensible_number_of_workers() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    assert!(matches!(unsafe { Runtime::new(Config::new().workers(0)) }, Err(RuntimeError::NoWorkers)));
    let many = janus::MAX_WORKERS + 1;
    assert!(
        // SAFETY: no task here keeps anything of its thread over a suspension.
        matches!(unsafe { Runtime::new(Config::new().workers(many)) }, Err(RuntimeError::TooManyWorkers(n)) if n == many)
    );
}

#[test]
fn service_grants_to_all() {
    within(|| {
        let outcome = runtime(Profile::Service).run(ungranted).unwrap();
        assert_eq!(outcome, (Ok(()), true, None));
    });
}

#[test]
fn cluster_and_sovereign_grant_nothing_by_themselves() {
    within(|| {
        for profile in [Profile::Cluster, Profile::Sovereign] {
            let outcome = runtime(profile).run(ungranted).unwrap();
            let nothing = (Err(SpawnError::NoCapability), false, Some(RechargeError::NoCapability));
            assert_eq!(outcome, nothing, "{}", profile.name());
        }
    });
}

#[test]
fn a_granted_capability_is_enough_and_is_not_inherited() {
    within(|| {
        for profile in [Profile::Cluster, Profile::Sovereign] {
            runtime(profile)
                .run(|cx| {
                    let cap = cx.cap_spawn().expect("the main task has it");
                    let child = |cx: &Cx| {
                        assert!(cx.cap_spawn().is_some() && cx.cap_budget(Budget::ZERO).is_err());
                        // Its own child has nothing, and cannot be given what this one lacks.
                        cx.nursery(|n| {
                            assert_eq!(n.task().grant_budget(cx).err(), Some(RechargeError::NoCapability));
                            Ok(n.spawn(|cx| cx.cap_spawn().is_none()).join(cx).unwrap())
                        })
                        .unwrap()
                    };
                    cx.nursery(|n| {
                        let child = n.task().children(1).grant_spawn(cap).spawn(child);
                        assert!(child.join(cx).unwrap());
                        let budget =
                            |cx: &Cx| cx.cap_budget(Budget::ZERO).is_ok() && cx.cap_spawn().is_none();
                        let child = n.task().grant_budget(cx).unwrap().spawn(budget);
                        assert!(child.join(cx).unwrap());
                        Ok(())
                    })
                    .unwrap();
                })
                .unwrap();
        }
    });
}

#[test]
fn a_capability_is_no_budget() {
    within(|| {
        runtime(Profile::Sovereign)
            .run(|cx| {
                let cap = cx.cap_spawn().unwrap();
                let child = |cx: &Cx| cx.nursery(|n| Ok(n.try_spawn(|_| ()).map(drop))).unwrap();
                let child = cx.nursery(|n| n.task().grant_spawn(cap).spawn(child).join(cx));
                assert_eq!(child.unwrap(), Err(SpawnError::SpawnBudgetExhausted));
            })
            .unwrap();
    });
}

#[test]
fn the_profile_sets_the_interval_of_checks() {
    within(|| {
        for (profile, interval) in
            [(Profile::Service, 1024), (Profile::Cluster, 512), (Profile::Sovereign, 1024)]
        {
            assert_eq!(profile.yield_interval(), interval);
            let budget = Budget { ops: 10_000, ..Budget::UNLIMITED };
            let config = Config::new().workers(1).watchdog(None).profile(profile).root_budget(budget);
            assert_eq!(first_charge(config.clone()), interval);
            assert_eq!(first_charge(config.yield_interval(100)), 100, "user-defined");
        }
    });
}

/// After how many iterations a ticker charges, which is also what it charges.
fn first_charge(config: Config) -> u64 {
    let count = |cx: &Cx| {
        let before = cx.budget().ops;
        let mut ticker = cx.ticker();
        for iteration in 1.. {
            ticker.tick().unwrap();
            if cx.budget().ops != before {
                assert_eq!(before - cx.budget().ops, iteration);
                return iteration;
            }
        }
        unreachable!()
    };
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(config) }.unwrap().run(count).unwrap()
}

#[test]
fn a_cap_budget_is_shared_by_reference_and_its_limit_is_for_all() {
    within(|| {
        let rt = runtime(Profile::Sovereign);
        rt.run(|cx| {
            let cap = cx.cap_budget(Budget { ops: 100, ..Budget::ZERO }).unwrap();
            let one = Budget { ops: 1, ..Budget::ZERO };
            let taken: u64 = cx
                .nursery(|n| {
                    let body = |cx: &Cx| (0..60).filter(|_| cx.recharge(&cap, &one).is_ok()).count() as u64;
                    let children: Vec<_> = (0..3).map(|_| n.spawn(body)).collect();
                    Ok(children.into_iter().map(|child| child.join(cx).unwrap()).sum())
                })
                .unwrap();
            assert_eq!((taken, cap.left()), (100, Budget::ZERO));
        })
        .unwrap();
    });
}
