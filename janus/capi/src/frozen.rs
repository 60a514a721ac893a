//! `janus.h`: the frozen exports, SPEC-021 [SCHED:2.6.1] and [SCHED:3.5.1]. Comments here are the header's.

use crate::guard::{Body, entered, entered_deep, entered_surely};
use crate::handles;
use janus::raw::{Asked, RawNursery};
use std::ffi::{c_int, c_long, c_void};
use std::ptr::{NonNull, null_mut};

/// `janus_runtime_config.profile`: `:service`.
pub const JANUS_PROFILE_DEFAULT: u32 = 0;
/// `janus_runtime_config.profile`: `:core` has no scheduler, so it is refused.
pub const JANUS_PROFILE_CORE: u32 = 1;
/// `janus_runtime_config.profile`: capabilities are implicit, budgets recharge from the nursery's pool.
pub const JANUS_PROFILE_SERVICE: u32 = 2;
/// `janus_runtime_config.profile`: supervisors recharge.
pub const JANUS_PROFILE_CLUSTER: u32 = 3;
/// `janus_runtime_config.profile`: nothing is implicit; a task can neither spawn nor recharge itself, unless it was
/// granted the capability (janus_task.h).
pub const JANUS_PROFILE_SOVEREIGN: u32 = 4;

/// `janus_runtime_config.watchdog_ms`: there is no watchdog.
pub const JANUS_WATCHDOG_OFF: u64 = u64::MAX;

/// `janus_nursery_await_all`: every child returned 0 or more.
pub const JANUS_OK: c_long = 0;
/// `janus_nursery_await_all`: the nursery was cancelled. (A child that returns -1 looks the same.)
pub const JANUS_CANCELLED: c_long = -1;
/// `janus_nursery_await_all`: a child overflowed its stack, or the runtime panicked in it.
pub const JANUS_PANIC: c_long = -2;
/// `janus_nursery_await_all`: a child's budget was spent and nobody was left to recharge it.
pub const JANUS_BUDGET_EXCEEDED: c_long = -3;
/// `janus_nursery_await_all`: there was no open nursery to await.
pub const JANUS_PENDING: c_long = -4;

/// A runtime. Opaque.
pub struct Runtime(());

/// How a runtime is made. All zeros is the default of everything.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeConfig {
    /// Worker threads, 1 to 960; 0: one for each CPU that the process may use.
    pub worker_count: u32,
    /// One of JANUS_PROFILE_*.
    pub profile: u32,
    /// If `deterministic`: decides who runs when.
    pub deterministic_seed: u64,
    /// Workers and time are virtual: the same seed, worker count and input give the same order.
    pub deterministic: bool,
    /// Bytes of stack of a task, at most 1 MiB; rounded up to 8, 16, 64, 256 or 1024 KiB. 0: 64 KiB.
    /// The last 3 KiB are the library's: a task that calls it with less left has overflowed. To start or stop a runtime
    /// takes 14 KiB.
    pub stack_size: usize,
    /// A task that runs so long without a check is reported and served around; 0: 100; JANUS_WATCHDOG_OFF: never;
    /// at most a day.
    pub watchdog_ms: u64,
}

/// What a task runs. A negative result is its error code.
///
/// A task may go on with another thread after any call that can suspend it (`janus_nursery_spawn`,
/// `janus_nursery_await_all`, `janus_scheduler_yield`, `janus_budget_check`, `janus_budget_charge`, a sleep, a send, a
/// receive). Across such a call it may not keep what belongs to its thread: a pthread mutex that it locked, the address
/// of `errno` or of a thread-local, a C++ exception that is being handled. C++ exceptions may not leave it: that ends the process.
pub type TaskFn = Option<unsafe extern "C" fn(arg: *mut c_void) -> i64>;

/// Makes the global runtime. Does nothing if there is one.
///
/// If the configuration is refused (a size that cannot be, the profile `:core`) or the system has no threads to give,
/// `janus_rt_get` and `janus_nursery_create` answer NULL until another `janus_rt_init` succeeds or `janus_rt_shutdown` is
/// called.
#[unsafe(no_mangle)]
pub extern "C" fn janus_rt_init(config: RuntimeConfig) {
    entered_deep((), || handles::init_global(&config));
}

/// Stops the global runtime and frees it; with nurseries open on it, when the last of them has been awaited.
/// The next `janus_nursery_create` makes a new one.
#[unsafe(no_mangle)]
pub extern "C" fn janus_rt_shutdown() {
    entered_deep((), handles::shut_down_global);
}

/// The global runtime; NULL: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn janus_rt_get() -> *mut Runtime {
    entered(null_mut(), || handles::global().map_or(null_mut(), |runtime| runtime.as_ptr().cast()))
}

/// Opens a nursery and makes it the current one of the calling task, or, outside of tasks, of the calling thread.
///
/// In a task it belongs to the task's runtime, and its children live on the task's budget. A task has no right to spawn
/// (`spawn_count` is 0) unless it is given some (`janus_nursery_spawn_with` in janus_task.h, `janus_budget_recharge` in
/// janus_compiler.h), and needs memory in its budget for each child. Outside it belongs to the global runtime, which is
/// made if there is none, and the pool is without end. A child gets at most 1000000 ops, 16 MiB of memory, 10000 channel operations and 1000 system calls at a time.
///
/// NULL: there is no runtime.
///
/// A task that returns, or a thread that ends, with nurseries open cancels them and waits for them.
#[unsafe(no_mangle)]
pub extern "C" fn janus_nursery_create() -> *mut c_void {
    entered(null_mut(), || opaque(handles::open(None)))
}

/// Starts a child of the current nursery. `arg` stays valid until it has been awaited.
///
/// A child that overflows its stack cannot be unwound: what it was changing stays half changed. If `arg` is NULL the child
/// has borrowed nothing, and fails alone: -2. Otherwise whoever lent it something is given up with it, up to the nearest
/// task that was spawned with NULL, or with `janus_nursery_spawn_owned` of janus_compiler.h; if there is none, the process
/// ends with a message.
///
/// 0: started. -1: not, as there is no current nursery, it or the task is cancelled, `fn` is NULL, or the task has
/// neither the capability nor the budget.
///
/// # Safety
/// `fn` may be called with `arg`, on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_nursery_spawn(r#fn: TaskFn, arg: *mut c_void) -> c_int {
    // SAFETY: the same function; it may be called as one that unwinds, since that ends the process.
    let body = r#fn
        .map(|body| unsafe { std::mem::transmute::<unsafe extern "C" fn(*mut c_void) -> i64, Body>(body) });
    // SAFETY: the caller's.
    unsafe { spawn(body, arg, arg.is_null()) }
}

/// Waits until every child of the current nursery has ended, and closes it; the one outside of it is current again.
///
/// 0: all returned 0 or more. -1: cancelled. -2: a child overflowed its stack or panicked. -3: a child's budget was spent
/// and nobody was left to recharge it. -4: there is no current nursery. Any other negative number: the error code of the
/// first child that failed; LONG_MIN: there was no memory for a child's stack.
///
/// A child's own code may be one of -1 to -4 too; choose others to tell them apart.
#[unsafe(no_mangle)]
pub extern "C" fn janus_nursery_await_all() -> c_long {
    entered_surely(JANUS_PANIC, || handles::await_innermost().unwrap_or(JANUS_PENDING))
}

/// Asks every child of the current nursery to end: their calls that can suspend answer -1, children that have not begun
/// never do, and `janus_nursery_await_all` answers -1.
#[unsafe(no_mangle)]
pub extern "C" fn janus_nursery_cancel() {
    entered((), || {
        if let Some(nursery) = handles::innermost() {
            // SAFETY: it is open.
            unsafe { RawNursery::cancel(nursery) };
        }
    });
}

/// What the spawns without options do.
///
/// # Safety
/// As for [`janus_nursery_spawn`].
pub(crate) unsafe fn spawn(body: Option<Body>, arg: *mut c_void, owned: bool) -> c_int {
    let asked = Asked { owned, ..Asked::default() };
    // SAFETY: the caller's.
    entered(-1, || body.map_or(-1, |body| unsafe { handles::spawn(&asked, body, arg) }))
}

/// As C gets it.
pub(crate) fn opaque(nursery: Option<NonNull<RawNursery>>) -> *mut c_void {
    nursery.map_or(null_mut(), |nursery| nursery.as_ptr().cast())
}
