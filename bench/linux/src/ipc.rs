//! Round trips between two threads: by pipe, eventfd and futex, on one CPU and across two.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::machine::{self, Policy, checked, pin};
use crate::measure::row;

/// Round trips of a batch.
const COUNT: u64 = 50;
/// The last message: the other side ends.
const LAST: u64 = 2;
/// Bytes of a message by pipe: two words, as capOS's calls have.
const MESSAGE: usize = 16;

/// A descriptor that is closed at the end.
struct Fd(i32);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: ours, and used nowhere after this.
        unsafe { libc::close(self.0) };
    }
}

impl Fd {
    fn read<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: N bytes that are ours.
        let got = unsafe { libc::read(self.0, bytes.as_mut_ptr().cast(), N) };
        assert_eq!(got, N as isize, "read: {}", std::io::Error::last_os_error());
        bytes
    }

    fn write<const N: usize>(&self, bytes: &[u8; N]) {
        // SAFETY: N bytes that live as long as the call.
        let put = unsafe { libc::write(self.0, bytes.as_ptr().cast(), N) };
        assert_eq!(put, N as isize, "write: {}", std::io::Error::last_os_error());
    }
}

/// Two threads, one on each of `cpus`, that exchange messages of `N` bytes: a message there and one back is a round trip.
fn pair<const N: usize>(name: &str, cpus: [usize; 2], there: [&Fd; 2], back: [&Fd; 2]) -> Result<(), String> {
    let message = |word: u64| {
        let mut bytes = [0; N];
        bytes[..8].copy_from_slice(&word.to_ne_bytes());
        bytes
    };
    pin(cpus[0])?;
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            pin(cpus[1])?;
            while there[0].read::<N>() != message(LAST) {
                back[1].write(&message(1));
            }
            Ok(())
        });
        row(name, COUNT, 1, || {
            there[1].write(&message(1));
            back[0].read::<N>();
        });
        there[1].write(&message(LAST));
        server.join().unwrap_or_else(|_| Err("the other side panicked".to_owned()))
    })
}

fn pipe() -> Result<[Fd; 2], String> {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    checked("pipe", unsafe { libc::pipe(ends.as_mut_ptr()) })?;
    Ok(ends.map(Fd))
}

fn eventfd() -> Result<Fd, String> {
    // SAFETY: makes a descriptor.
    checked("eventfd", unsafe { libc::eventfd(0, 0) }).map(|fd| Fd(fd as i32))
}

fn futex(word: &AtomicU32, op: i32, value: u32) {
    let none: *const libc::timespec = core::ptr::null();
    // SAFETY: a word that lives as long as the call; no time limit.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op | libc::FUTEX_PRIVATE_FLAG, value, none) };
}

/// Two threads that take turns: each wakes the other and sleeps until it is its turn again.
fn turns(name: &str, cpus: [usize; 2]) -> Result<(), String> {
    const STOP: u32 = 9;
    let turn = AtomicU32::new(0);
    let pass = |next: u32| {
        turn.store(next, Ordering::Release);
        futex(&turn, libc::FUTEX_WAKE, 1);
        while turn.load(Ordering::Acquire) == next {
            futex(&turn, libc::FUTEX_WAIT, next);
        }
    };
    pin(cpus[0])?;
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(cpus[1])?;
            while turn.load(Ordering::Acquire) == 0 {
                futex(&turn, libc::FUTEX_WAIT, 0);
            }
            while turn.load(Ordering::Acquire) != STOP {
                pass(0);
            }
            Ok(())
        });
        row(name, COUNT, 1, || pass(1));
        turn.store(STOP, Ordering::Release);
        futex(&turn, libc::FUTEX_WAKE, 1);
        other.join().unwrap_or_else(|_| Err("the other side panicked".to_owned()))
    })
}

/// The round trips as row `name`, under each policy: the same pair is fast or slow by who preempts whom.
fn trips(name: &str, cpus: [usize; 2]) -> Result<(), String> {
    for policy in Policy::ALL {
        policy.set()?;
        let way = policy.name();
        let (there, back) = (pipe()?, pipe()?);
        pair::<MESSAGE>(&format!("{name}/pipe-{way}"), cpus, [&there[0], &there[1]], [&back[0], &back[1]])?;
        let (there, back) = (eventfd()?, eventfd()?);
        pair::<8>(&format!("{name}/eventfd-{way}"), cpus, [&there; 2], [&back; 2])?;
        turns(&format!("{name}/futex-{way}"), cpus)?;
    }
    Policy::Other.set()
}

/// Round trips on one CPU; those by futex are a park and an unpark each way too.
pub(crate) fn one_cpu() -> Result<(), String> {
    trips("ipc-one-cpu", [0, 0])?;
    for policy in Policy::ALL {
        policy.set()?;
        turns(&format!("park-unpark/futex-{}", policy.name()), [0, 0])?;
    }
    Policy::Other.set()
}

/// Round trips between two CPUs: the work of both, since under icount they take turns on one clock.
pub(crate) fn across() -> Result<(), String> {
    machine::online(1)?;
    trips("ipc-across-cpus", [0, 1])
}
