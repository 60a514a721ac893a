//! Evidence for J-13: child processes, on both back ends.

mod common;

use common::{on_every_backend, until};
use janus::TaskState;
use janus::io::IoError;
use janus::process::{Command, Stdio};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

#[test]
fn j_13_a_program_is_run_to_its_end() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let output =
                Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).output(cx).unwrap();
            assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
            assert_eq!(output.status.code(), Some(3));
            assert!(Command::new("true").env("A", "b").current_dir("/").status(cx).unwrap().success());
            assert_eq!(Command::new("no such program").spawn(cx).unwrap_err().kind(), ErrorKind::NotFound);
        })
        .unwrap();
    });
}

/// It prints more to both pipes than they hold, in turns: who reads one to its end first would wait for ever.
#[test]
fn j_13_output_takes_both_pipes_as_they_come() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let script = "i=0; while [ $i -lt 30 ]; do head -c 20000 /dev/zero; head -c 20000 /dev/zero >&2; i=$((i+1)); done";
            let output = Command::new("sh").args(["-c", script]).output(cx).unwrap();
            assert_eq!((output.stdout.len(), output.stderr.len()), (600_000, 600_000));
        })
        .unwrap();
    });
}

#[test]
fn j_13_a_program_is_talked_to() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let mut child =
                Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn(cx).unwrap();
            let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let mut buffer = [0; 8];
            for word in [&b"one"[..], b"two"] {
                stdin.write_all(cx, word).unwrap();
                assert_eq!(stdout.read(cx, &mut buffer).unwrap(), word.len());
                assert_eq!(&buffer[..word.len()], word);
            }
            assert!(child.try_wait().unwrap().is_none());
            drop(stdin);
            assert_eq!(stdout.read(cx, &mut buffer).unwrap(), 0);
            assert!(child.wait(cx).unwrap().success());
        })
        .unwrap();
    });
}

#[test]
fn j_13_a_wait_is_cancelled_and_the_program_killed_when_nobody_else_has_it() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let start = Instant::now();
            let mut kept = Command::new("sleep").arg("1000").spawn(cx).unwrap();
            cx.nursery(|n| {
                let owner = n.spawn(|cx| Command::new("sleep").arg("1000").output(cx).map(drop));
                let kept = &mut kept;
                let waiter = n.spawn(move |cx| kept.wait(cx).map(drop));
                until(cx, || {
                    owner.state() == TaskState::Blocked
                        && waiter.state() == TaskState::Blocked
                        && start.elapsed() > Duration::from_millis(20)
                });
                for task in [owner, waiter] {
                    task.cancel();
                    let error = task.join(cx).unwrap().unwrap_err();
                    assert_eq!(IoError::of(&error), Some(IoError::Cancelled));
                }
                Ok(())
            })
            .unwrap();
            // As with std, a handle that is kept decides.
            assert!(kept.try_wait().unwrap().is_none());
            kept.kill().unwrap();
            assert!(!kept.wait(cx).unwrap().success());
            assert!(start.elapsed() < Duration::from_secs(20));
        })
        .unwrap();
    });
}
