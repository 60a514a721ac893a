//! Evidence for J-09 and J-15: closures and results are dropped exactly once, whatever becomes of the task; user code that
//! panics at an unlikely place harms nobody.

mod common;

use common::{Tally, Token, everywhere, on, within};
use janus::{
    Budget, Cancelled, Config, Cx, NurseryOptions, Recharge, Runtime, SpawnError, TaskError, TaskState,
};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A token in a body of the given size and alignment.
struct Sized<'a, P> {
    _token: Token<'a>,
    pad: P,
}

#[derive(Clone, Copy)]
struct Small;
#[derive(Clone, Copy)]
struct Big([u8; 100]);
#[derive(Clone, Copy)]
struct Huge([u8; 5000]);
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned([u8; 64]);
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page(u8);

trait Pad: Copy + Send + Sync {
    fn make() -> Self;
    fn whole(&self) -> bool;
}

macro_rules! pads {
    ($($type:ty: $make:expr, $whole:expr;)*) => {$(
        impl Pad for $type {
            fn make() -> Self { $make }
            fn whole(&self) -> bool {
                let whole: fn(&$type) -> bool = $whole;
                whole(self) && std::ptr::from_ref(self).addr().is_multiple_of(align_of::<$type>())
            }
        }
    )*};
}

pads! {
    Small: Small, |_| true;
    Big: Big([7; 100]), |pad| pad.0 == [7; 100];
    Huge: Huge([8; 5000]), |pad| pad.0 == [8; 5000];
    Aligned: Aligned([9; 64]), |pad| pad.0 == [9; 64];
    Page: Page(10), |pad| pad.0 == 10;
}

/// Calls a generic function for every kind of body.
macro_rules! for_all_sizes {
    ($function:ident($($argument:expr),*)) => {
        $function::<Small>($($argument),*);
        $function::<Big>($($argument),*);
        $function::<Huge>($($argument),*);
        $function::<Aligned>($($argument),*);
        $function::<Page>($($argument),*);
    };
}

/// A roomy stack: the bodies of 5,000 bytes lie on it.
fn roomy(workers: usize) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(workers).watchdog(None).stack(janus::StackClass::Huge)) }
        .unwrap()
}

#[test]
fn closures_and_results_that_are_used() {
    fn used<P: Pad>(cx: &Cx) {
        let tally = Tally::default();
        cx.nursery(|n| {
            let body = Sized { _token: tally.token(), pad: P::make() };
            let tally = &tally;
            let child = n.spawn(move |_| {
                assert!(body.pad.whole());
                drop(body);
                Sized { _token: tally.token(), pad: P::make() }
            });
            let result = child.join(cx).unwrap();
            assert!(result.pad.whole());
            assert_eq!((tally.made(), tally.dropped()), (2, 1));
            Ok(())
        })
        .unwrap();
        assert_eq!(tally.made(), 2);
        tally.assert_even();
    }
    within(|| {
        for rt in [roomy(1), roomy(2)] {
            rt.run(|cx| {
                for _ in 0..50 {
                    for_all_sizes!(used(cx));
                }
            })
            .unwrap();
        }
    });
}

#[test]
fn results_that_nobody_wants() {
    fn unwanted<P: Pad>(cx: &Cx) {
        let tally = Tally::default();
        cx.nursery(|n| {
            for early in [true, false] {
                let tally = &tally;
                let child = n.spawn(move |_| Sized { _token: tally.token(), pad: P::make() });
                if early {
                    drop(child);
                } else {
                    common::until(cx, || child.is_finished());
                    drop(child);
                }
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(tally.made(), 2);
        tally.assert_even();
    }
    within(|| {
        for rt in [roomy(1), roomy(2)] {
            rt.run(|cx| {
                for_all_sizes!(unwanted(cx));
            })
            .unwrap();
        }
    });
}

#[test]
fn closures_that_never_run() {
    fn never<P: Pad>(cx: &Cx) {
        let tally = Tally::default();
        // Cancelled before the start.
        let result = cx.nursery(|n| {
            for _ in 0..3 {
                let body = Sized { _token: tally.token(), pad: P::make() };
                drop(n.spawn(move |_| assert!(body.pad.whole())));
            }
            n.cancel();
            // Refused.
            let body = Sized { _token: tally.token(), pad: P::make() };
            assert_eq!(n.try_spawn(move |_| assert!(body.pad.whole())).map(drop), Err(SpawnError::Cancelled));
            Ok(())
        });
        assert!(result.is_err());
        assert_eq!(tally.made(), 4);
        tally.assert_even();
    }
    within(|| {
        for rt in [roomy(1), roomy(2)] {
            rt.run(|cx| {
                for_all_sizes!(never(cx));
            })
            .unwrap();
        }
    });
}

#[test]
fn closures_of_tasks_that_panic_or_are_cancelled_or_spent() {
    fn ended<P: Pad>(cx: &Cx) {
        let tally = Tally::default();
        let result = cx.nursery_with(NurseryOptions::new().keep_going().recharge(Recharge::Manual), |n| {
            let body = || Sized { _token: tally.token(), pad: P::make() };
            let (one, two, three) = (body(), body(), body());
            drop(n.spawn(move |_| assert!(!one.pad.whole(), "on purpose")));
            let asleep = n.spawn(move |cx| {
                let two = two;
                let end = cx.sleep(std::time::Duration::from_secs(3600));
                assert!(end.is_err());
                // A result that is made after the cancellation is dropped with its handle.
                two
            });
            common::until(cx, || asleep.state() == TaskState::Blocked);
            asleep.cancel();
            // The result of a task that ran out of its budget is not taken.
            let spent = n.task().budget(Budget { ops: 3, ..Budget::ZERO }).spawn(move |cx| {
                while cx.check().is_ok() {}
                three
            });
            drop(spent);
            Ok(())
        });
        assert!(result.is_err());
        assert_eq!(tally.made(), 3);
        tally.assert_even();
    }
    within(|| {
        for rt in [roomy(1), roomy(2)] {
            rt.run(|cx| {
                for_all_sizes!(ended(cx));
            })
            .unwrap();
        }
    });
}

#[test]
fn handles_and_ends_that_race() {
    everywhere(|rt| {
        let tally = Tally::default();
        rt.run(|cx| {
            for round in 0..500_usize {
                let _ = cx.nursery(|n| {
                    let (body, tally) = (tally.token(), &tally);
                    let child = n.spawn(move |_| (body, tally.token()));
                    for _ in 0..round % 7 {
                        std::hint::spin_loop();
                    }
                    match round % 3 {
                        0 => drop(child),
                        1 => drop(child.join(cx)),
                        _ => {
                            child.cancel();
                            drop(child);
                        }
                    }
                    Ok(())
                });
            }
        })
        .unwrap();
        assert!(tally.made() >= 500);
        tally.assert_even();
    });
}

struct PanicsOnDrop<'a>(&'a AtomicUsize);

impl Drop for PanicsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("a destructor panics, on purpose");
    }
}

#[test]
fn destructors_that_panic_harm_nobody() {
    within(|| {
        // Lean too: the message, and a backtrace if one is printed, come out on the reserve.
        // SAFETY: no task here keeps anything of its thread over a suspension.
        for rt in [&roomy(2), &unsafe { Runtime::new(Config::new().workers(2)) }.unwrap()] {
            destructors_that_panic(rt);
        }
    });
}

fn destructors_that_panic(rt: &Runtime) {
    let drops = AtomicUsize::new(0);
    rt.run(|cx| {
        // A result that nobody wants, a closure that never runs, a payload.
        let _ = cx.nursery(|n| {
            drop(n.spawn(|_| PanicsOnDrop(&drops)));
            Ok(())
        });
        let _ = cx.nursery(|n| {
            let body = PanicsOnDrop(&drops);
            let child = n.spawn(move |_| std::mem::forget(body));
            child.cancel();
            let _ = child.join(cx);
            Ok(())
        });
    })
    .unwrap();
    assert!(drops.load(Ordering::Relaxed) >= 1);
    static PAYLOADS: AtomicUsize = AtomicUsize::new(0);
    let error = rt.run(|_| std::panic::panic_any(PanicsOnDrop(&PAYLOADS))).unwrap_err();
    assert!(matches!(error, janus::RuntimeError::Task(TaskError::Panicked(_))), "{error}");
    assert_eq!(rt.run(|_| 6).unwrap(), 6);
}

/// An error whose conversion panics.
struct Unconvertible;

impl From<Unconvertible> for Box<dyn Error + Send + Sync> {
    fn from(_: Unconvertible) -> Self {
        panic!("the conversion of an error panics, on purpose");
    }
}

#[test]
fn the_conversion_of_an_error_may_panic() {
    everywhere(|rt| {
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                let child = n.spawn_try(|_| -> Result<(), Unconvertible> { Err(Unconvertible) });
                assert!(matches!(child.join(cx), Err(TaskError::Panicked(_))));
                Ok(())
            })
        });
        assert!(result.unwrap().is_err());
    });
}

/// Does everything that could suspend.
struct Restless<'a>(&'a Cx, &'a AtomicBool);

impl Drop for Restless<'_> {
    fn drop(&mut self) {
        let cx = self.0;
        let (_tx, rx) = janus::channel::<u8>(0);
        for _ in 0..5000 {
            let _ = cx.check();
        }
        let _ = cx.yield_now();
        assert!(rx.recv(cx).is_err());
        assert_eq!(cx.sleep(std::time::Duration::from_secs(3600)), Err(Cancelled));
        let nursery = cx.nursery(|n| {
            drop(n.spawn(|_| ()));
            Ok(())
        });
        assert!(nursery.is_err());
        self.1.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_unwinds_keeps_its_worker() {
    // The count of panics is the thread's. If others ran meanwhile, a panic of theirs would end the process.
    on(1, |cx| {
        let unwound = AtomicBool::new(false);
        let result = cx.nursery_with(NurseryOptions::new().keep_going().recharge(Recharge::Manual), |n| {
            for _ in 0..3 {
                drop(n.spawn(|_| panic!("a bystander")));
            }
            let restless = n.task().budget(Budget { ops: 2000, ..Budget::UNLIMITED }).spawn(|cx| {
                let _restless = Restless(cx, &unwound);
                panic!("unwinding");
            });
            drop(restless);
            for _ in 0..3 {
                drop(n.spawn(|_| panic!("a bystander")));
            }
            Ok(())
        });
        assert!(result.is_err());
        assert!(unwound.load(Ordering::Relaxed));
    });
}
