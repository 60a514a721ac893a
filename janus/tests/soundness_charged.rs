//! J-19: when a task exceeds its memory budget, no task sees memory in the middle of a change. The reserve lets the task
//! end in order; beyond it, the task is abandoned as after a stack overflow (`soundness.rs`).

mod common;

use common::within;
use janus::{Budget, Charged, Config, Cx, NurseryOptions, Recharge, Resource, Runtime, TaskError};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering};

#[global_allocator]
static ALLOC: Charged = Charged::new();

fn runtime(workers: usize, reserve: Option<u64>) -> Runtime {
    let config = Config::new().workers(workers).watchdog(None);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(reserve.into_iter().fold(config, Config::memory_reserve)) }.expect("a runtime")
}

fn small() -> Budget {
    Budget { ops: 1_000_000, memory: 16 << 10, ..Budget::ZERO }
}

fn manual() -> NurseryOptions {
    NurseryOptions::new().recharge(Recharge::Manual)
}

fn names() -> Vec<String> {
    (0..24_u32).map(|i| format!("{:08x} {}", i.wrapping_mul(0x9E37_79B9), "x".repeat(40))).collect()
}

/// Sorts with a comparison that allocates a megabyte at the fifth call.
fn sort_expensively(list: &mut [String]) {
    let mut calls = 0;
    list.sort_by(|one, other| {
        calls += 1;
        let key = vec![1_u8; if calls == 5 { 1 << 20 } else { 16 }];
        black_box(&key);
        one.cmp(other)
    });
}

fn spent<T: std::fmt::Debug>(end: &Result<T, TaskError>) {
    let memory = matches!(end, Err(TaskError::BudgetExceeded(Resource::Memory)));
    assert!(memory, "{end:?}");
}

/// The reserve: a borrower ends in order, with everything where it belongs.
#[test]
fn j_19_a_borrower_ends_in_order_within_the_reserve() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(workers, None);
            let mut list = names();
            let lent = &mut list;
            let end = rt.run(|cx| {
                cx.nursery_with(manual(), |n| {
                    drop(n.task().budget(small()).spawn(|_| sort_expensively(lent)));
                    Ok(())
                })
            });
            spent(&end.unwrap());
            let mut sorted = names();
            sorted.sort();
            assert_eq!(list, sorted);
        }
    });
}

/// Text that is larger than the budget of the task that prints it.
struct Big;

impl std::fmt::Display for Big {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&" ".repeat(1 << 20)[..1])
    }
}

/// A task whose memory ends inside `print!` gives the lock of the output back.
#[test]
fn j_19_who_passes_its_budget_while_it_prints_leaves_the_output_unlocked() {
    use std::io::Write;
    within(|| {
        let rt = runtime(1, None);
        let end = rt.run(|cx| {
            cx.nursery_with(manual(), |n| {
                // Not `print!`, which goes to the test's capture.
                let body = |_: &Cx| write!(std::io::stdout(), "{Big}").is_ok();
                drop(n.task().budget(small()).stack(janus::StackClass::Medium).spawn(body));
                Ok(())
            })
        });
        spent(&end.unwrap());
        let printed = std::thread::spawn(|| writeln!(std::io::stdout(), "others print").is_ok());
        assert!(printed.join().unwrap());
    });
}

/// Beyond the reserve, with an owned task between: its parent gets the error, at every allocation of a program.
#[test]
fn j_19_every_allocation_may_be_the_last() {
    static ENDS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    fn program(cx: &Cx) {
        let mut list = names();
        let lent = &mut list;
        let _ = cx.nursery(|n| {
            let child = n.spawn(move |cx| {
                lent.sort_by_key(|name| name.clone() + "!");
                let map: std::collections::BTreeMap<_, _> =
                    lent.iter().map(|name| (name.clone(), vec![1_u8; 99])).collect();
                let _ = cx.yield_now();
                map.into_values().map(|value| value.len()).sum::<usize>()
            });
            let _ = child.join(cx);
            Ok(())
        });
    }
    within(|| {
        let rt = runtime(2, Some(0));
        for point in 0..120 {
            let budget = Budget { memory: 64 + 150 * point, spawn_count: 4, ..small() };
            let end = rt.run(|cx| {
                cx.nursery_with(manual(), |n| {
                    let child = n.task().budget(budget).stack(janus::StackClass::Medium).owned();
                    Ok(child.spawn(program).join(cx).is_ok())
                })
            });
            match end.unwrap() {
                Ok(ended) => {
                    assert!(ended);
                    ENDS[0].fetch_add(1, Ordering::Relaxed);
                }
                end => {
                    spent(&end);
                    ENDS[1].fetch_add(1, Ordering::Relaxed);
                }
            }
            assert_eq!(names().len(), 24, "the heap is whole");
        }
        assert!(ENDS.iter().all(|ends| ends.load(Ordering::Relaxed) > 5), "{ENDS:?}");
    });
}

#[test]
#[ignore = "run by the next in a process of its own"]
fn a_borrower_beyond_the_reserve() {
    if std::env::var_os("JANUS_CASE").is_some() {
        let mut list = names();
        let lent = &mut list;
        let rt = runtime(1, Some(64 << 10));
        let end = rt.run(|cx| {
            cx.nursery_with(manual(), |n| {
                drop(n.task().name("sorter").budget(small()).spawn(|_| sort_expensively(lent)));
                Ok(())
            })
        });
        println!("it went on: {end:?}");
    }
}

/// Without an owned task the process ends, and says which task it was and what to do.
#[test]
fn j_19_a_borrower_beyond_the_reserve_ends_the_process_by_name() {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_borrower_beyond_the_reserve", "--ignored", "--nocapture"]);
    let output = command.env("JANUS_CASE", "1").output().expect("a child process");
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("\"sorter\"") && text.contains("Config::memory_reserve"), "{text}");
    assert!(!text.contains("it went on"), "{text}");
}
