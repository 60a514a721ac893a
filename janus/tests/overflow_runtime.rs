//! J-06: a task that overflows while the runtime itself works for it (it spawns, sends, sleeps, yields at every level of a
//! recursion) leaves no lock of the runtime locked and no queue half changed.

use janus::{Config, Cx, Runtime, TaskError, channel};
use std::hint::black_box;
use std::time::Duration;

type Each<'a> = &'a (dyn Fn(&Cx) + Sync);

#[inline(never)]
fn deep(cx: &Cx, levels: usize, each: Each<'_>) -> usize {
    each(cx);
    if levels == 0 { 0 } else { black_box(deep(cx, black_box(levels - 1), each)) + 1 }
}

/// Padding moves the fault to another instruction.
#[inline(never)]
fn padded(cx: &Cx, bytes: usize, each: Each<'_>) -> usize {
    if bytes < 16 {
        return deep(cx, 1 << 30, each);
    }
    let pad = black_box([bytes; 2]);
    black_box(padded(cx, bytes - 16, each)) + pad[0]
}

/// Overflows tasks in `each`, and runs others beside and after them that use the same.
fn overflow_in(each: Each<'_>) {
    for workers in [1, 2] {
        // SAFETY: no task here keeps anything of its thread over a suspension, and only children refer to frames.
        let rt = unsafe { Runtime::new(Config::new().workers(workers)) }.expect("a runtime");
        for round in 0..60 {
            let result = rt.run(|cx| {
                cx.nursery(|n| {
                    let task = || n.task().children(1 << 20);
                    drop(task().spawn(move |cx| padded(cx, round * 16, each)));
                    drop(task().spawn(move |cx| (0..20).for_each(|_| each(cx))));
                    Ok(())
                })
            });
            assert!(
                matches!(result, Ok(Err(TaskError::StackOverflow))),
                "round {round} on {workers}: {result:?}"
            );
            let after = rt.run(|cx| cx.nursery(|n| Ok(n.task().children(9).spawn(each).join(cx).is_ok())));
            assert!(matches!(after, Ok(Ok(true))), "round {round} on {workers}: {after:?}");
        }
    }
}

#[test]
fn while_it_yields() {
    overflow_in(&|cx| {
        let _ = cx.yield_now();
    });
}

#[test]
fn while_it_checks() {
    overflow_in(&|cx| {
        let _ = cx.charge_ops(1024);
    });
}

#[test]
fn while_it_spawns_and_joins() {
    overflow_in(&|cx| {
        let _ = cx.nursery(|n| Ok(n.spawn(|_| 1).join(cx).is_ok()));
    });
}

#[test]
fn while_it_sleeps() {
    overflow_in(&|cx| {
        let _ = cx.sleep(Duration::from_nanos(1));
    });
}

#[test]
fn while_it_sends_and_receives() {
    let (tx, rx) = channel::<u8>(2);
    let (tx, rx) = (&tx, &rx);
    overflow_in(&move |cx| {
        let _ = tx.try_send(cx, 1);
        let _ = rx.try_recv(cx);
    });
}

#[test]
fn while_it_selects() {
    let (tx, rx) = channel::<u8>(2);
    let (tx, rx) = (&tx, &rx);
    overflow_in(&move |cx| {
        let _ = tx.try_send(cx, 1);
        let _ = cx.select(&mut [&mut rx.arm()], Some(Duration::from_nanos(1)));
    });
}

#[test]
fn while_it_cancels() {
    overflow_in(&|cx| {
        let _ = cx.nursery(|n| {
            let child = n.spawn(|cx| while cx.yield_now().is_ok() {});
            child.cancel();
            n.cancel();
            Ok(())
        });
    });
}

#[test]
fn while_it_waits_for_a_message_of_another() {
    overflow_in(&|cx| {
        let (tx, rx) = channel::<[u64; 8]>(0);
        let got = cx.nursery(|n| {
            drop(n.spawn(move |cx| tx.send(cx, [7; 8]).is_ok()));
            Ok(rx.recv(cx).is_ok())
        });
        assert!(got.expect("the grandchild ends well"));
    });
}

/// What the runtime counts on below its caller: `HEADROOM` in `cx.rs`.
const HEADROOM: usize = 3 * 1024 * if cfg!(sanitized) { 4 } else { 1 + cfg!(unoptimized) as usize };

/// How deep `each` goes: paints the stack below, calls it, and looks how much of the paint is left.
#[inline(never)]
fn depth(cx: &Cx, each: Each<'_>) -> usize {
    const PAINTED: usize = 24 * 1024;
    let here = {
        let mark = 0_u8;
        (&raw const mark).addr()
    };
    let low = (here - PAINTED - 256) as *mut u8;
    for i in 0..PAINTED {
        // SAFETY: below our own frame, on a stack that is large enough; nothing lives there.
        unsafe { low.add(i).write_volatile(0xA5) };
    }
    each(cx);
    // SAFETY: as above.
    let left = (0..PAINTED).take_while(|&i| unsafe { low.add(i).read_volatile() } == 0xA5).count();
    if left == PAINTED { 0 } else { PAINTED - left + 256 }
}

#[test]
fn every_operation_fits_into_the_headroom() {
    let (tx, rx) = channel::<u8>(2);
    let (tx, rx) = (&tx, &rx);
    let operations: [(&str, Each<'_>); 9] = [
        ("yield", &|cx| {
            let _ = cx.nursery(|n| {
                (0..100).for_each(|_| drop(n.spawn(|cx| cx.yield_now().is_ok())));
                (0..100).for_each(|_| cx.yield_now().expect("nobody cancels"));
                Ok(())
            });
        }),
        ("check", &|cx| assert!(cx.charge_ops(1 << 20).is_ok())),
        ("spawn", &|cx| {
            let _ = cx.nursery(|n| {
                (0..600).for_each(|_| drop(n.spawn(|_| 1)));
                Ok(())
            });
        }),
        ("join", &|cx| {
            let _ = cx.nursery(|n| Ok(n.spawn(|_| 1).join(cx).is_ok()));
        }),
        ("sleep", &|cx| assert!(cx.sleep(Duration::from_micros(1)).is_ok())),
        ("send", &|cx| assert!(tx.try_send(cx, 1).is_ok())),
        ("receive", &|cx| assert!(rx.try_recv(cx).is_ok())),
        ("timeout", &|cx| assert!(rx.recv_timeout(cx, Duration::from_micros(1)).is_err())),
        ("select", &|cx| assert!(cx.select(&mut [&mut rx.arm()], Some(Duration::from_micros(1))).is_ok())),
    ];
    for plain in [false, true] {
        let config = Config::new().workers(2);
        let config = if plain { config.plain_guards() } else { config };
        // SAFETY: as in `overflow_in`.
        let rt = unsafe { Runtime::new(config) }.expect("a runtime");
        for (name, each) in operations {
            let used = rt.run(|cx| depth(cx, each)).expect("the main task");
            println!("{name}: {used} bytes");
            assert!(used < HEADROOM, "{name} takes {used} bytes");
        }
    }
}
