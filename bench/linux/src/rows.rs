//! The rows of one CPU.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;

use crate::ipc;
use crate::machine::{Policy, pin};
use crate::measure::{counted, row};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of the stack of a cloned thread or child.
const STACK: usize = 16 * PAGE;
/// The program that does nothing, in the initramfs.
const NOTHING: &core::ffi::CStr = c"/nothing";

/// All of them.
pub(crate) fn one_cpu() -> Result<(), String> {
    pin(0)?;
    row("null-cap-enter/getppid", 100, 1, || {
        // SAFETY: asks for a number.
        unsafe { libc::getppid() };
    });
    nops()?;
    switches()?;
    ipc::one_cpu()?;
    threads()?;
    processes()?;
    map()?;
    sleeps()
}

/// NOPs through io_uring: one by one, and thirty-two by one system call. They complete while they are submitted, so that who only submits
/// finds them done; who also waits is a way of its own.
fn nops() -> Result<(), String> {
    const GET_EVENTS: u32 = 1;
    let mut ring = io_uring::IoUring::new(64).map_err(|error| format!("io_uring: {error}"))?;
    let nop = io_uring::opcode::Nop::new().build();
    let (submitter, mut submissions, mut completions) = ring.split();
    for (way, wanted, flags) in [("submit", 0, 0), ("submit-wait", u32::MAX, GET_EVENTS)] {
        let mut batch = |count: u32| {
            for _ in 0..count {
                // SAFETY: names no memory.
                unsafe { submissions.push(&nop) }.expect("the queue is empty");
            }
            submissions.sync();
            // SAFETY: no argument is passed; no more are waited for than are submitted.
            let done = unsafe { submitter.enter::<libc::sigset_t>(count, wanted.min(count), flags, None) };
            assert_eq!(done.ok(), Some(count as usize), "NOPs are submitted");
            completions.sync();
            assert_eq!(completions.by_ref().count(), count as usize, "NOPs are completed");
        };
        row(&format!("ring-nop-1/io_uring-{way}"), 100, 1, || batch(1));
        row(&format!("ring-nop-32-each/io_uring-{way}"), 1, 32, || batch(32));
    }
    Ok(())
}

/// Switches of the whole process so far, of whatever kind.
fn switch_count() -> u64 {
    // SAFETY: a structure of numbers, filled by the call.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        (usage.ru_nvcsw + usage.ru_nivcsw) as u64
    }
}

/// Two threads that yield to each other. Not every yield is a switch under `SCHED_OTHER`: those that happened are counted.
fn switches() -> Result<(), String> {
    for policy in [Policy::Other, Policy::Fifo] {
        policy.set()?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: names no memory.
                    unsafe { libc::sched_yield() };
                }
            });
            counted(&format!("context-switch/yield-{}", policy.name()), || {
                let before = switch_count();
                for _ in 0..200 {
                    // SAFETY: names no memory.
                    unsafe { libc::sched_yield() };
                }
                switch_count() - before
            });
            stop.store(true, Ordering::Relaxed);
        });
    }
    Policy::Other.set()
}

extern "C" fn end_at_once(_: *mut libc::c_void) -> i32 {
    0
}

extern "C" fn end_thread(_: *mut libc::c_void) -> *mut libc::c_void {
    core::ptr::null_mut()
}

/// A thread made and joined: by pthreads, and by `clone` with a stack that is there already and nothing else around it.
fn threads() -> Result<(), String> {
    row("thread-create-join/pthread", 10, 1, || {
        // SAFETY: the function ignores its argument; the thread is joined.
        unsafe {
            let mut thread: libc::pthread_t = 0;
            let none = core::ptr::null_mut();
            assert_eq!(libc::pthread_create(&raw mut thread, core::ptr::null(), end_thread, none), 0);
            assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
        }
    });
    let mut stack = vec![0u128; STACK / 16];
    let top = stack.as_mut_ptr_range().end;
    let tid = AtomicI32::new(0);
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_CHILD_CLEARTID;
    row("thread-create-join/clone", 10, 1, || {
        tid.store(1, Ordering::Relaxed);
        let none: *mut libc::c_void = core::ptr::null_mut();
        // SAFETY: the stack is the thread's alone until it has ended; it touches nothing of this thread's local data.
        let made = unsafe { libc::clone(end_at_once, top.cast(), flags, none, none, none, tid.as_ptr()) };
        assert!(made > 0, "clone: {}", std::io::Error::last_os_error());
        while tid.load(Ordering::Acquire) != 0 {
            let none: *const libc::timespec = core::ptr::null();
            // SAFETY: a word that outlives the call. The kernel's wake-up at a thread's end is not a private one.
            unsafe { libc::syscall(libc::SYS_futex, tid.as_ptr(), libc::FUTEX_WAIT, 1, none) };
        }
    });
    Ok(())
}

extern "C" fn become_nothing(_: *mut libc::c_void) -> i32 {
    let words = [NOTHING.as_ptr(), core::ptr::null()];
    let none = [core::ptr::null()];
    // SAFETY: strings and lists that end with null.
    unsafe { libc::execve(NOTHING.as_ptr(), words.as_ptr(), none.as_ptr()) };
    1
}

fn wait(pid: i32) {
    let mut status = 0;
    // SAFETY: room for a number.
    let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((ended, status), (pid, 0), "the child did not end well");
}

/// A process made, run and waited for: as `vfork` and `execve` do it, and by `posix_spawn`.
fn processes() -> Result<(), String> {
    let mut stack = vec![0u128; STACK / 16];
    let top = stack.as_mut_ptr_range().end;
    row("process-spawn-wait/vfork", 5, 1, || {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: we are stopped until the child has another program or has ended; the stack is its own.
        wait(unsafe { libc::clone(become_nothing, top.cast(), flags, core::ptr::null_mut()) });
    });
    row("process-spawn-wait/posix_spawn", 5, 1, || {
        let (words, none) = ([NOTHING.as_ptr().cast_mut(), core::ptr::null_mut()], [core::ptr::null_mut()]);
        let mut pid = 0;
        // SAFETY: strings and lists that end with null; no attributes.
        let failed = unsafe {
            let nothing = core::ptr::null();
            libc::posix_spawn(
                &raw mut pid,
                NOTHING.as_ptr(),
                nothing,
                core::ptr::null(),
                words.as_ptr(),
                none.as_ptr(),
            )
        };
        assert_eq!(failed, 0, "posix_spawn");
        wait(pid);
    });
    Ok(())
}

fn map() -> Result<(), String> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    row("map-touch-unmap/mmap", 20, 1, || {
        // SAFETY: a page of our own, used between its calls only.
        unsafe {
            let page = libc::mmap(core::ptr::null_mut(), PAGE, access, kind, -1, 0);
            assert_ne!(page, libc::MAP_FAILED, "mmap");
            page.cast::<u8>().write_volatile(1);
            libc::munmap(page, PAGE);
        }
    });
    Ok(())
}

/// A sleep of 1 µs, alone on the CPU: what it does for it takes longer than the sleep.
fn sleeps() -> Result<(), String> {
    let micro = libc::timespec { tv_sec: 0, tv_nsec: 1000 };
    for policy in [Policy::Other, Policy::Fifo] {
        policy.set()?;
        row(&format!("sleep-1us/nanosleep-{}", policy.name()), 20, 1, || {
            // SAFETY: a structure that lives as long as the call.
            unsafe {
                libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const micro, core::ptr::null_mut())
            };
        });
    }
    Policy::Other.set()
}
