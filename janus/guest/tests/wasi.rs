//! J-12: what WASI gives a guest: every function, waiting for clocks and input, and output that blocks only the guest.

use janus::io::Backend;
use janus::{
    Budget, Config, Cx, NurseryOptions, Profile, Recharge, Resource, Runtime, StackClass, TaskError,
};
use janus_guest::{End, Grant, Grants, GuestError, Input, Options, Output, Program, Tally, World, offers};
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;
const CLOCK: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;
const BADF: u16 = 8;
const INVAL: u16 = 28;
const NOTCAPABLE: u16 = 76;

fn program(wat: &str, grants: Grants) -> Program {
    Program::new(&wat::parse_str(wat).expect("a test's own text"), grants).expect("a program")
}

/// Every function of preview 1, by its specification: `links.c` is compiled against their types.
#[test]
fn j_12_wasi_is_all_there() {
    let all = "args_get args_sizes_get clock_res_get clock_time_get environ_get environ_sizes_get fd_advise fd_allocate
        fd_close fd_datasync fd_fdstat_get fd_fdstat_set_flags fd_fdstat_set_rights fd_filestat_get fd_filestat_set_size
        fd_filestat_set_times fd_pread fd_prestat_dir_name fd_prestat_get fd_pwrite fd_read fd_readdir fd_renumber fd_seek
        fd_sync fd_tell fd_write path_create_directory path_filestat_get path_filestat_set_times path_link path_open
        path_readlink path_remove_directory path_rename path_symlink path_unlink_file poll_oneoff proc_exit proc_raise
        random_get sched_yield sock_accept sock_recv sock_send sock_shutdown";
    let mut offered: Vec<&str> = offers()
        .into_iter()
        .filter(|(module, ..)| module.starts_with("wasi"))
        .map(|(_, name, _)| name)
        .collect();
    offered.sort_unstable();
    assert_eq!(offered, all.split_whitespace().collect::<Vec<_>>());
}

/// A subscription in the layout of a guest's memory.
fn subscription(user: u64, kind: u8, on: u32, time: u64, absolute: bool) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[..8].copy_from_slice(&user.to_le_bytes());
    bytes[8] = kind;
    bytes[16..20].copy_from_slice(&on.to_le_bytes());
    bytes[24..32].copy_from_slice(&time.to_le_bytes());
    bytes[40] = u8::from(absolute);
    bytes
}

fn after(user: u64, time: u64) -> Vec<u8> {
    subscription(user, CLOCK, MONOTONIC, time, false)
}

/// A module that polls once and returns its error number; on success it writes the number of events, and the events, to its
/// output.
fn poller(subscriptions: &[Vec<u8>], count: u64) -> String {
    let data: String = subscriptions.concat().iter().map(|byte| format!("\\{byte:02x}")).collect();
    format!(
        r#"(module
        (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (memory 1) (data (i32.const 64) "{data}")
        (func (export "main") (result i32) (local $error i32)
          (local.set $error (call $poll (i32.const 64) (i32.const 32772) (i32.const {count}) (i32.const 32768)))
          (i32.store (i32.const 0) (i32.const 32768))
          (i32.store (i32.const 4) (i32.add (i32.const 4) (i32.mul (i32.const 32) (i32.load (i32.const 32768)))))
          (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
          (local.get $error)))"#
    )
}

/// User, error, kind, bytes and flags of an event.
type Event = (u64, u16, u8, u64, u8);

#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Polls once in this task; returns the error number and the events.
fn poll(cx: &Cx, subscriptions: &[Vec<u8>], input: Input) -> (Option<i64>, Vec<Event>) {
    let both = Grants::NONE.with(Grant::Clock).with(Grant::Io);
    let program = program(&poller(subscriptions, subscriptions.len() as u64), both);
    let output = Bytes::default();
    let epoch = Duration::from_secs(1_000);
    let world =
        World { input: Mutex::new(input), output: Output::direct(output.clone()), epoch, ..World::default() };
    let options = Options { world: Arc::new(world), ..Options::default() };
    let end = program.call(cx, "main", options).expect("no guest error");
    let bytes = output.0.lock().expect("no panic").clone();
    let events = bytes[4..].chunks_exact(32).map(|event| {
        let long = |at: usize| u64::from_le_bytes(event[at..at + 8].try_into().expect("eight bytes"));
        (long(0), u16::from_le_bytes([event[8], event[9]]), event[10], long(16), event[24])
    });
    (end.value, events.collect())
}

/// Runs in a task with room for a guest; with a seed, where time is virtual.
fn seeded<T: Send>(body: impl FnOnce(&Cx) -> T + Send) -> T {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(2).seed(7)) }
        .expect("a runtime")
        .run(body)
        .expect("no task error")
}

#[test]
fn j_12_poll_waits_for_clocks() {
    let start = Instant::now();
    seeded(|cx| {
        let passed = |subscriptions: &[Vec<u8>]| {
            let before = cx.now();
            let found = poll(cx, subscriptions, Input::Empty);
            assert_eq!(found.0, Some(0));
            (cx.now() - before, found.1)
        };
        let hour = 3_600_000 * MS;
        // Only the earliest of them.
        let (time, events) = passed(&[after(1, 2 * hour), after(2, hour), after(3, u64::MAX)]);
        assert_eq!(events, [(2, 0, CLOCK, 0, 0)]);
        assert!(time >= Duration::from_secs(3_600) && time < Duration::from_secs(3_601), "{time:?}");
        // By the runtime's clock, and by the wall clock, which began a thousand seconds before.
        for (clock, began) in [(MONOTONIC, 0), (REALTIME, 1_000_000 * MS)] {
            let to = cx.now() + Duration::from_secs(30);
            let at = began + to.as_nanos() as u64;
            let (_, events) = passed(&[subscription(5, CLOCK, clock, at, true)]);
            assert_eq!(events, [(5, 0, CLOCK, 0, 0)]);
            assert!(
                cx.now() >= to && cx.now() < to + Duration::from_secs(1),
                "{:?} and not {to:?}",
                cx.now()
            );
        }
        // A time that has passed is reported at once; an unknown clock is an error of its own.
        let (time, events) = passed(&[subscription(6, CLOCK, REALTIME, 5, true), after(7, hour)]);
        assert_eq!((events, time < Duration::from_secs(1)), (vec![(6, 0, CLOCK, 0, 0)], true));
        let (_, events) = passed(&[subscription(8, CLOCK, 9, 5, false), after(9, hour)]);
        assert_eq!(events, [(8, INVAL, CLOCK, 0, 0)]);
    });
    assert!(start.elapsed() < Duration::from_secs(600), "virtual time is not waited for");
}

#[test]
fn j_12_poll_waits_for_input() {
    let long = || after(9, 3_600_000 * MS);
    let read = || subscription(1, READ, 0, 0, false);
    // Available input, and the end of the input.
    let there = seeded(|cx| poll(cx, &[read(), long()], Input::Bytes(b"abc".to_vec())));
    assert_eq!(there, (Some(0), vec![(1, 0, READ, 3, 0)]));
    let over = seeded(|cx| poll(cx, &[long(), read()], Input::Empty));
    assert_eq!(over, (Some(0), vec![(1, 0, READ, 0, 1)]));
    // Input that is sent later, or never.
    let later = seeded(|cx| {
        let (to, pieces) = janus::channel(1);
        let mut found = None;
        cx.nursery(|nursery| {
            let sender = nursery.spawn(move |cx: &Cx| {
                cx.sleep(Duration::from_secs(5))
                    .and_then(|()| to.send(cx, b"late".to_vec()).map_err(|_| janus::Cancelled))
            });
            found = Some(poll(cx, &[long(), read()], Input::Pieces(pieces)));
            sender.join(cx).expect("no task error").expect("it is not cancelled");
            Ok(())
        })
        .expect("a nursery");
        (found.expect("it was polled"), cx.now() < Duration::from_secs(60))
    });
    assert_eq!(later, ((Some(0), vec![(1, 0, READ, 4, 0)]), true));
    let never = seeded(|cx| {
        let (to, pieces) = janus::channel::<Vec<u8>>(1);
        let found = poll(cx, &[after(2, 20 * MS), read()], Input::Pieces(pieces));
        drop(to);
        found
    });
    assert_eq!(never, (Some(0), vec![(2, 0, CLOCK, 0, 0)]));
}

#[test]
fn j_12_poll_answers_at_once_where_nothing_waits() {
    let long = after(9, 3_600_000 * MS);
    let on = |user, kind, fd| subscription(user, kind, fd, 0, false);
    let found = seeded(|cx| {
        let list =
            [long.clone(), on(1, WRITE, 1), on(2, READ, 77), on(3, READ, 1), on(4, 7, 0), on(5, READ, 0)];
        let (_, pieces) = janus::channel(1);
        let found = poll(cx, &list, Input::Pieces(pieces));
        (found, cx.now() < Duration::from_secs(60))
    });
    let events = vec![
        (1, 0, WRITE, 1, 0),
        (2, BADF, READ, 0, 0),
        (3, NOTCAPABLE, READ, 0, 0),
        (4, INVAL, 7, 0, 0),
        (5, 0, READ, 0, 1),
    ];
    assert_eq!(found, ((Some(0), events), true));
    // The number of subscriptions is bounded, and must not be 0.
    let count = |count: u64| {
        seeded(|cx| {
            let program = program(&poller(&[after(1, 0)], count), Grants::ALL);
            program.call(cx, "main", Options::default()).expect("no guest error").value
        })
    };
    assert_eq!([0, 1, 256, 257, 0xFFFF_FFFF].map(count), [28, 0, 0, 28, 28].map(Some));
}

/// Without the right to its input, a guest does not learn about it by waiting, either.
#[test]
fn j_12_poll_gives_no_rights() {
    let wat = poller(&[subscription(1, READ, 0, 0, false)], 1)
        .replace(r#"(import "wasi_snapshot_preview1" "fd_write" (func $write"#, "(func $write")
        .replace("(param i32 i32 i32 i32) (result i32)))\n        (memory", "(param i32 i32 i32 i32) (result i32) unreachable)\n (memory")
        .replace("(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))\n          (local.get $error)", "(i32.load16_u (i32.const 32780))");
    let end =
        seeded(|cx| program(&wat, Grants::NONE.with(Grant::Clock)).call(cx, "main", Options::default()));
    assert_eq!(end.expect("no guest error").value, Some(i64::from(NOTCAPABLE)));
    let error = Program::new(&wat::parse_str(&wat).expect("text"), Grants::NONE).expect_err("no clock");
    assert!(matches!(error, GuestError::NotGranted { grant: Grant::Clock, .. }), "{error}");
}

/// Writes numbers without end, 1,024 at a time.
const FLOOD: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory 1) (data (i32.const 0) "\10\00\00\00\00\10\00\00")
    (func (export "main") (local $next i32) (local $at i32)
      (loop $more
        (local.set $at (i32.const 16))
        (loop $fill
          (i32.store (local.get $at) (local.get $next))
          (local.set $next (i32.add (local.get $next) (i32.const 1)))
          (br_if $fill (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 4))) (i32.const 4112))))
        (br_if $more (i32.eqz (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))))"#;

/// A pipe that nobody reads blocks the guest that writes, and no other task on its only worker; the guest can be cancelled;
/// and what was written is in order.
#[test]
fn j_12_output_blocks_the_guest_alone() {
    for how in [Output::blocking, Output::descriptor] {
        let (from, to) = std::io::pipe().expect("a pipe");
        flood_a_pipe(from, how(to), Backend::Auto);
    }
    let (from, to) = std::io::pipe().expect("a pipe");
    flood_a_pipe(from, Output::descriptor(to), Backend::Epoll);
    // A descriptor that cannot be opened again; a socket holds more.
    let (from, to) = std::os::unix::net::UnixStream::pair().expect("sockets");
    flood_a_pipe(from, Output::descriptor(to), Backend::Auto);
}

fn flood_a_pipe(mut from: impl Read, output: Output, backend: Backend) {
    let flood = program(FLOOD, Grants::NONE.with(Grant::Io));
    let sum = program(
        r#"(module (func (export "main") (result i32) (local $i i32)
          (loop (br_if 0 (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100000)))) (local.get $i)))"#,
        Grants::NONE,
    );
    let world = World { output, ..World::default() };
    let tally = Arc::new(Tally::default());
    let options = Options { world: Arc::new(world), tally: tally.clone(), ..Options::default() };
    let config = Config::new().workers(1).profile(Profile::Service).io_backend(backend);
    let config = config.watchdog(Some(Duration::from_secs(2)));
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(config) }.expect("a runtime");
    let writer = runtime.run(|cx| {
        let mut writer = None;
        let _ = cx.nursery_with(NurseryOptions::new(), |nursery| {
            let task = nursery.task().stack(StackClass::Medium);
            let guest = task.spawn(|cx: &Cx| flood.call(cx, "main", options));
            // Until the guest makes no progress any more: a pipe holds 64 KiB.
            let mut written = (0, 0);
            while written.0 == 0 || written.0 != written.1 {
                cx.sleep(Duration::from_millis(100)).expect("nobody cancels us");
                written = (tally.used().io, written.0);
            }
            let end: Result<End, GuestError> = sum.call(cx, "main", Options::default());
            assert_eq!(end.expect("it ends").value, Some(100_000));
            nursery.cancel();
            writer = Some(guest.join(cx));
            Ok(())
        });
        writer.expect("it was joined")
    });
    let ended = writer.expect("the first task ends well");
    assert!(matches!(ended, Ok(Err(GuestError::Cancelled)) | Err(_)), "{ended:?}");
    assert_eq!(runtime.hogs(), [], "somebody held the worker");
    drop(runtime);
    // The write that had begun goes on without its task, and then the pipe is closed.
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("what was written");
    let numbers = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    assert!(bytes.len() >= 16 * 4_096, "{} bytes", bytes.len());
    assert!(numbers.eq(0..bytes.len() as u32 / 4), "not in order");
    assert!(tally.used().io >= 16 && tally.used().io <= bytes.len() as u64 / 4_096);
}

/// A program that does not check how much was written loses nothing: a write is complete, however slow the reader is.
#[test]
fn j_12_output_is_written_whole() {
    let twice = program(
        r#"(module (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
          (memory 1) (data (i32.const 0) "\10\00\00\00\60\ea\00\00")
          (func $once (result i32)
            (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (i32.load (i32.const 8)))
          (func (export "main") (result i32) (i32.add (call $once) (call $once))))"#,
        Grants::NONE.with(Grant::Io),
    );
    let (mut from, to) = std::io::pipe().expect("a pipe");
    let world = World { output: Output::descriptor(to), ..World::default() };
    let options = Options { world: Arc::new(world), ..Options::default() };
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let (mut piece, mut count) = ([0; 1_000], 0);
        while let Ok(some @ 1..) = from.read(&mut piece) {
            count += some;
        }
        count
    });
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new().workers(1)) }.expect("a runtime");
    let end = runtime.run(move |cx| twice.call(cx, "main", options)).expect("no task error");
    assert_eq!(end.expect("no guest error").value, Some(120_000));
    assert_eq!(reader.join().expect("no panic"), 120_000);
}

/// Where the runtime has no threads for output, the task writes itself; the charges are the same.
#[test]
fn j_12_output_under_a_seed() {
    let hello = program(
        r#"(module (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
          (memory 1) (data (i32.const 0) "\10\00\00\00\06\00\00\00") (data (i32.const 16) "hello\n")
          (func (export "main") (result i32) (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))"#,
        Grants::NONE.with(Grant::Io),
    );
    let run = |blocks: bool, seed: Option<u64>, syscalls: u64| {
        let output = Bytes::default();
        let to = if blocks { Output::blocking(output.clone()) } else { Output::direct(output.clone()) };
        let world = Arc::new(World { output: to, ..World::default() });
        let options = Options { world, ..Options::default() };
        let config = Config::new().workers(1);
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let runtime = unsafe { Runtime::new(seed.map_or(config.clone(), |seed| config.seed(seed))) }
            .expect("a runtime");
        let mut end = None;
        let first = runtime.run(|cx| {
            let _ = cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |nursery| {
                let budget = Budget { ops: 1_000, memory: 1 << 20, syscalls, ..Budget::ZERO };
                end = Some(hello.spawn(cx, nursery, "main", budget, options).expect("a task").join(cx));
                Ok(())
            });
        });
        first.expect("the first task ends well");
        let text = String::from_utf8(output.0.lock().expect("no panic").clone()).expect("text");
        (end.expect("it was joined"), text)
    };
    let mut used = Vec::new();
    for (blocks, seed) in [(true, Some(3)), (true, None), (false, Some(3)), (false, None)] {
        let (end, text) = run(blocks, seed, 1);
        let end = end.expect("no task error").expect("no guest error");
        assert_eq!((end.value, text.as_str(), end.used.io), (Some(0), "hello\n", 1));
        used.push(end.used);
        let (end, text) = run(blocks, seed, 0);
        assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Syscalls))), "{end:?}");
        assert_eq!(text, "", "it was not paid for");
    }
    assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
}
