//! J-20: `#[janus::main]`: what a program says, and with which code it ends, whatever becomes of its first task. Each case runs in a
//! process of its own. What the attribute refuses is in `compile-fail`.

mod common;

use common::{alone, case};
use janus::prelude::*;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;

#[inline(never)]
fn deep(n: u64) -> u64 {
    let frame = black_box([n; 32]);
    if n == u64::MAX { 0 } else { deep(n + 1) + frame[3] }
}

// SAFETY: nothing of a thread is kept across a wait, here and below.
#[janus::main(unsafe(no_thread_state_across_waits))]
fn ends_well(cx: &Cx) -> Result<usize, TaskError> {
    cx.nursery(|n| Ok(n.spawn(|_| 40).join(cx)? + 2))
}

// SAFETY: as above.
#[janus::main(unsafe(no_thread_state_across_waits), config = Config::new().workers(1))]
fn returns_an_error(_cx: &Cx) -> Result<(), TaskError> {
    Err(TaskError::TimedOut)
}

// SAFETY: as above.
#[janus::main(config = Config::new().workers(1), unsafe(no_thread_state_across_waits))]
fn panics(_cx: &Cx) {
    panic!("no cheese");
}

// SAFETY: as above.
#[janus::main(unsafe(no_thread_state_across_waits))]
fn overflows(_cx: &Cx) {
    deep(0);
}

// SAFETY: as above.
#[janus::main(unsafe(no_thread_state_across_waits))]
fn a_borrower_overflows(cx: &Cx) {
    let text = String::from("lent");
    let _ = cx.nursery(|n| {
        n.spawn(|_| deep(text.len() as u64));
        Ok(())
    });
}

// SAFETY: as above.
#[janus::main(unsafe(no_thread_state_across_waits))]
fn overflows_with_an_output(_cx: &Cx) {
    let _held = std::io::stderr().lock();
    deep(0);
}

// SAFETY: as above.
#[janus::main(unsafe(no_thread_state_across_waits), config = Config::new().workers(0))]
fn has_no_workers(_cx: &Cx) {}

#[test]
#[ignore = "run by the others in a process of its own"]
fn main_of() {
    match case().as_deref() {
        Some("ends well") => assert_eq!(ends_well().unwrap(), 42),
        Some("returns an error") => assert!(matches!(returns_an_error(), Err(TaskError::TimedOut))),
        Some("panics") => panics(),
        Some("overflows") => overflows(),
        Some("a borrower overflows") => a_borrower_overflows(),
        Some("overflows with an output") => overflows_with_an_output(),
        Some("has no workers") => has_no_workers(),
        _ => return,
    }
    println!("main returned");
}

#[test]
fn j_20_main_passes_on_what_its_task_returns() {
    for case in ["ends well", "returns an error"] {
        let (status, text) = alone("main_of", case);
        assert!(status.success() && text.contains("main returned"), "{case}: {status:?} {text}");
    }
}

/// The last message is there, and it is the last, whatever the task left behind: it was one that waited for ever.
#[test]
fn j_20_a_first_task_that_fails_has_the_last_word_and_code_101() {
    let cases = [
        ("panics", "janus: the task panicked: no cheese\n"),
        ("overflows", "janus: the task overflowed its stack; give it more"),
        ("a borrower overflows", "janus: the task overflowed its stack; give it more"),
        ("has no workers", "janus: a runtime needs at least one worker\n"),
    ];
    for (case, last) in cases {
        let (status, text) = alone("main_of", case);
        assert_eq!(status.code(), Some(101), "{case}: {text}");
        assert!(text.contains(last), "{case}: {text}");
        assert!(!text.contains("main returned"), "{case}: {text}");
    }
    // Code 101 as well, or ended by name before that: the output stays locked.
    let (status, text) = alone("main_of", "overflows with an output");
    assert!(status.code() == Some(101) || status.signal() == Some(libc::SIGABRT), "{status:?} {text}");
    assert!(text.contains("overflowed its stack"), "{text}");
}
