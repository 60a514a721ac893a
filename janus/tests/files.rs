//! Evidence for J-13: pipes, files and calls that can only block, on both back ends.

mod common;

use common::{on_every_backend, until};
use janus::fs::{self, File};
use janus::io::{IoError, With, pipe, unblock};
use janus::{Budget, Config, Runtime, TaskState};
use std::io::{BufRead, BufReader, ErrorKind, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A folder of its own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("janus-files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn j_13_a_file_is_written_and_read() {
    on_every_backend(|rt| {
        let folder = Folder::new();
        rt.run(|cx| {
            let path = folder.0.join("a file");
            let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
            fs::write(cx, &path, &bytes).unwrap();
            assert_eq!(fs::read(cx, &path).unwrap(), bytes);
            let options = std::fs::OpenOptions::new().read(true).write(true).clone();
            let file = File::open_with(cx, &path, &options).unwrap();
            let mut some = [0; 5];
            assert_eq!(file.read_at(cx, &mut some, 251).unwrap(), 5);
            assert_eq!(some, [0, 1, 2, 3, 4]);
            assert_eq!(file.write_at(cx, b"xyz", 252).unwrap(), 3);
            assert_eq!(file.seek(SeekFrom::Start(250)).unwrap(), 250);
            file.read_exact(cx, &mut some).unwrap();
            assert_eq!(&some, &[250, 0, b'x', b'y', b'z']);
            assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 255, "a read moves on");
            file.sync_data(cx).unwrap();
            file.sync_all(cx).unwrap();
            file.set_len(cx, 253).unwrap();
            assert_eq!(file.metadata(cx).unwrap().len(), 253);
            assert_eq!(file.read(cx, &mut some).unwrap(), 0, "the end");
            drop(file);
            let other = folder.0.join("below").join("other");
            fs::create_dir_all(cx, other.parent().unwrap()).unwrap();
            fs::rename(cx, &path, &other).unwrap();
            assert_eq!(fs::metadata(cx, &path).unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(fs::read_dir(cx, folder.0.join("below")).unwrap().len(), 1);
            fs::remove_file(cx, &other).unwrap();
            assert_eq!(File::open(cx, &other).unwrap_err().kind(), ErrorKind::NotFound);
        })
        .unwrap();
    });
}

#[test]
fn j_13_text_is_read_through_the_buffers_of_std() {
    on_every_backend(|rt| {
        let folder = Folder::new();
        rt.run(|cx| {
            let path = folder.0.join("lines");
            fs::write(cx, &path, "one\ntwo\nthree").unwrap();
            let file = File::open(cx, &path).unwrap();
            let lines: Vec<String> =
                BufReader::new(With::new(cx, &file)).lines().map(Result::unwrap).collect();
            assert_eq!(lines, ["one", "two", "three"]);
            assert_eq!(fs::read_to_string(cx, &path).unwrap().len(), 13);
        })
        .unwrap();
    });
}

#[test]
fn j_13_pipes_wait_for_their_other_end() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let (reader, writer) = pipe(cx).unwrap();
            cx.nursery(|n| {
                let reader = n.spawn(move |cx| {
                    let mut all = Vec::new();
                    reader.read_to_end(cx, &mut all).unwrap();
                    all.len()
                });
                until(cx, || reader.state() == TaskState::Blocked);
                // More than a pipe holds.
                writer.write_all(cx, &vec![1; 300_000]).unwrap();
                drop(writer);
                assert_eq!(reader.join(cx).unwrap(), 300_000);
                Ok(())
            })
            .unwrap();
            let (reader, writer) = pipe(cx).unwrap();
            drop(reader);
            assert_eq!(writer.write(cx, b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        })
        .unwrap();
    });
}

/// A pipe with a name: to open it waits for its other end, to read it for bytes, and both can be cancelled.
#[test]
fn j_13_a_pipe_with_a_name_is_no_regular_file() {
    on_every_backend(|rt| {
        let folder = Folder::new();
        let path = folder.0.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        rt.run(|cx| {
            cx.nursery(|n| {
                let path = &path;
                let opener = n.spawn(move |cx| {
                    let file = File::open(cx, path)?;
                    let mut word = [0; 5];
                    file.read_exact(cx, &mut word)?;
                    assert_eq!(&word, b"hello");
                    file.read(cx, &mut word)
                });
                until(cx, || opener.state() == TaskState::Blocked);
                let options = std::fs::OpenOptions::new().write(true).clone();
                let writer = File::open_with(cx, path, &options).unwrap();
                writer.write_all(cx, b"hello").unwrap();
                cx.sleep(Duration::from_millis(2)).unwrap();
                until(cx, || opener.state() == TaskState::Blocked);
                opener.cancel();
                let error = opener.join(cx).unwrap().unwrap_err();
                assert_eq!(IoError::of(&error), Some(IoError::Cancelled));
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_13_blocking_calls_block_their_thread_only() {
    on_every_backend(|rt| {
        rt.run(|cx| {
            let pause = Duration::from_millis(30);
            let start = Instant::now();
            cx.nursery(|n| {
                let calls: Vec<_> = (0..8)
                    .map(|_| n.spawn(move |cx| unblock(cx, move || std::thread::sleep(pause)).unwrap()))
                    .collect();
                // This task runs meanwhile.
                cx.sleep(Duration::from_millis(1)).unwrap();
                assert!(start.elapsed() < pause);
                for call in calls {
                    call.join(cx).unwrap();
                }
                Ok(())
            })
            .unwrap();
            assert!(start.elapsed() >= pause);
            assert!(start.elapsed() < pause * 8, "side by side");
        })
        .unwrap();
    });
}

#[test]
fn j_13_the_pool_is_bounded_and_calls_wait_their_turn() {
    common::within(|| {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(Config::new().workers(2).blocking_threads(2)) }.unwrap();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let counters: &'static (AtomicUsize, AtomicUsize) = Box::leak(Box::new((now, most)));
        rt.run(|cx| {
            cx.nursery(|n| {
                for _ in 0..20 {
                    let call = move || {
                        let here = counters.0.fetch_add(1, Ordering::AcqRel) + 1;
                        counters.1.fetch_max(here, Ordering::AcqRel);
                        std::thread::sleep(Duration::from_millis(1));
                        counters.0.fetch_sub(1, Ordering::AcqRel);
                    };
                    drop(n.spawn(move |cx| unblock(cx, call).unwrap()));
                }
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
        assert_eq!(counters.1.load(Ordering::Acquire), 2);
    });
}

#[test]
fn j_13_a_call_that_panics_is_the_tasks_panic_and_a_cancelled_one_never_begins() {
    common::within(|| {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(Config::new().workers(1).blocking_threads(1)) }.unwrap();
        let begun: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        rt.run(|cx| {
            cx.nursery(|n| {
                let first = n.spawn(|cx| unblock(cx, || std::thread::sleep(Duration::from_millis(50))));
                until(cx, || first.state() == TaskState::Blocked);
                let second = n.spawn(|cx| unblock(cx, || begun.fetch_add(1, Ordering::AcqRel)));
                until(cx, || second.state() == TaskState::Blocked);
                second.cancel();
                let error = second.join(cx).unwrap().unwrap_err();
                assert_eq!(IoError::of(&error), Some(IoError::Cancelled));
                first.join(cx).unwrap().unwrap();
                Ok(())
            })
            .unwrap();
            unblock(cx, || ()).unwrap();
            assert_eq!(begun.load(Ordering::Acquire), 0);
            let failed = cx.nursery(|n| {
                let broken = n.spawn(|cx| unblock(cx, || panic!("no paper")));
                Ok(format!("{}", broken.join(cx).unwrap_err()))
            });
            assert!(failed.is_err());
        })
        .unwrap();
    });
}

#[test]
fn j_13_file_calls_are_charged() {
    on_every_backend(|rt| {
        let folder = Folder::new();
        rt.run(|cx| {
            let path = folder.0.join("charged");
            cx.nursery(|n| {
                let path = &path;
                let budget = Budget { ops: 10_000, syscalls: 100, ..Budget::ZERO };
                let task = n.task().budget(budget).spawn(move |cx| {
                    let file = File::create(cx, path).unwrap();
                    file.write(cx, b"abc").unwrap();
                    file.sync_data(cx).unwrap();
                    100 - cx.budget().syscalls
                });
                assert_eq!(task.join(cx).unwrap(), 3);
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_13_deterministic_mode_refuses_files_and_processes() {
    let rt = common::seeded(2, 7);
    rt.run(|cx| {
        let refusals = [
            File::open(cx, "/dev/null").unwrap_err(),
            pipe(cx).unwrap_err(),
            fs::read(cx, "/dev/null").unwrap_err(),
            janus::process::Command::new("true").status(cx).unwrap_err(),
            File::from_std(std::fs::File::open("/dev/null").unwrap())
                .unwrap()
                .read(cx, &mut [0])
                .unwrap_err(),
        ];
        for refusal in refusals {
            assert_eq!(IoError::of(&refusal), Some(IoError::Deterministic), "{refusal}");
        }
    })
    .unwrap();
}
