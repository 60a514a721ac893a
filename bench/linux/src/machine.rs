//! The guest around the benchmark: file systems, CPUs, scheduling policies, power.

use std::sync::atomic::{AtomicBool, Ordering};

/// The port that ends QEMU, and the value that means success (`tools/capos/src/qemu.rs`).
const EXIT_PORT: u16 = 0xf4;
const EXIT_GOOD: u32 = 0x10;

/// The system's error for a call that returned a negative number.
pub(crate) fn checked(what: &str, result: impl Into<i64>) -> Result<i64, String> {
    let result = result.into();
    if result < 0 { Err(format!("{what}: {}", std::io::Error::last_os_error())) } else { Ok(result) }
}

/// Mounts what the rows read and write.
pub(crate) fn prepare() -> Result<(), String> {
    for (kind, place) in [(c"proc", c"/proc"), (c"sysfs", c"/sys"), (c"devtmpfs", c"/dev")] {
        // SAFETY: strings that live as long as the call.
        let done = unsafe { libc::mount(kind.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
        checked("mount", done)?;
    }
    // A real-time pair may use the whole CPU while it is measured.
    std::fs::write("/proc/sys/kernel/sched_rt_runtime_us", "-1").map_err(|error| format!("rt: {error}"))?;
    exact_sleeps(true)
}

/// Timers of this thread and those that it makes: to the nanosecond, or with the default slack of 50 µs.
pub(crate) fn exact_sleeps(exact: bool) -> Result<(), String> {
    let slack: libc::c_ulong = if exact { 1 } else { 0 };
    // SAFETY: changes a number of this thread.
    checked("timer slack", unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack) }).map(|_| ())
}

/// Ends the machine by the port that capOS uses too, so that one tool judges both.
pub(crate) fn power_off() -> ! {
    // SAFETY: the process is the first one and ends here; the port is QEMU's exit device.
    unsafe {
        libc::tcdrain(1);
        if libc::iopl(3) == 0 {
            core::arch::asm!("out dx, eax", in("dx") EXIT_PORT, in("eax") EXIT_GOOD);
        }
        libc::reboot(libc::RB_POWER_OFF);
    }
    panic!("the machine does not power off");
}

/// Binds this thread to a CPU.
pub(crate) fn pin(cpu: usize) -> Result<(), String> {
    // SAFETY: a set of bits, filled before it is passed.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        checked("pin", libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)).map(|_| ())
    }
}

/// How a thread is scheduled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// `SCHED_OTHER`: who wakes may preempt.
    Other,
    /// `SCHED_BATCH`: who wakes does not preempt.
    Batch,
    /// `SCHED_FIFO`, priority 1.
    Fifo,
}

impl Policy {
    pub(crate) const ALL: [Policy; 3] = [Policy::Other, Policy::Batch, Policy::Fifo];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::Other => "other",
            Policy::Batch => "batch",
            Policy::Fifo => "fifo",
        }
    }

    /// Sets it for this thread and those that it makes from now on.
    pub(crate) fn set(self) -> Result<(), String> {
        let (policy, sched_priority) = match self {
            Policy::Other => (libc::SCHED_OTHER, 0),
            Policy::Batch => (libc::SCHED_BATCH, 0),
            Policy::Fifo => (libc::SCHED_FIFO, 1),
        };
        let param = libc::sched_param { sched_priority };
        // SAFETY: a structure that lives as long as the call.
        checked("policy", unsafe { libc::sched_setscheduler(0, policy, &raw const param) })?;
        // Whoever was a real-time thread once has the default slack when it is none again.
        exact_sleeps(true)
    }
}

/// Brings up CPUs 1 to `last` that are not up yet, with a thread beside that pauses: under icount a CPU that spins without a pause has all the time, and
/// Linux spins so while it waits for the new CPU.
pub(crate) fn online(last: usize) -> Result<(), String> {
    let is_up = AtomicBool::new(false);
    pin(0)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_up.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        });
        let done = (1..=last).try_for_each(|cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
            if std::fs::read_to_string(&path).is_ok_and(|state| state.trim() == "1") {
                return Ok(());
            }
            std::fs::write(&path, "1").map_err(|error| format!("{path}: {error}"))
        });
        is_up.store(true, Ordering::Relaxed);
        done
    })
}
