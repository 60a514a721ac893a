//! `janus_compiler.h`: the exports for compiled code, SPEC-021 [SCHED:12.1.1], and the context switch [SCHED:5.4.1].
//! Thin adapters over the same things as `janus.h`. Comments here are the header's.

use crate::frozen::{RuntimeConfig, TaskFn, opaque, spawn};
use crate::guard::{Body, entered, entered_deep};
use crate::handles;
use janus::Cx;
use janus::raw::with_task;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The same as for the global runtime.
pub type SchedulerConfig = RuntimeConfig;

/// What a task may use. Counters are 64 bits wide inside: one that is larger than its field, or without end, is the
/// field's maximum here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Abstract instructions.
    pub ops: u32,
    /// Bytes.
    pub memory: usize,
    /// Children.
    pub spawn_count: u16,
    /// Sends and receives.
    pub channel_ops: u16,
    /// System calls.
    pub syscalls: u16,
}

/// The callee-saved registers of the System V ABI but `rsp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SavedRegisters {
    /// Offset 8 of the context.
    pub rbx: u64,
    /// Offset 16.
    pub rbp: u64,
    /// Offset 24; in a new context the function to call.
    pub r12: u64,
    /// Offset 32; in a new context that function's argument.
    pub r13: u64,
    /// Offset 40.
    pub r14: u64,
    /// Offset 48.
    pub r15: u64,
}

/// Where a suspended flow of control goes on, 56 bytes. MXCSR and the x87 control word are on its stack.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Stack pointer; the word that it points to is the address at which to go on.
    pub sp: usize,
    /// Callee-saved registers.
    pub regs: SavedRegisters,
}

unsafe extern "C" {
    /// Saves the caller in `from` and goes on with `to`; returns when somebody switches to `from`.
    ///
    /// `to` was saved by this function, or is new: `sp` points to the address of `janus_fiber_entry`, above which lies the
    /// address to go on at when the function returns, and is 16-byte aligned; r12 is the function and r13 its argument.
    /// For stacks of your own: a task of the runtime is never switched by hand.
    pub fn janus_context_switch(from: *mut Context, to: *const Context);
    /// Where a new context begins; never called. See `janus_context_switch`.
    pub fn janus_fiber_entry();
}

const _: () = {
    use janus::context as inside;
    assert!(size_of::<Context>() == size_of::<inside::Context>());
    assert!(std::mem::offset_of!(Context, regs.r12) == std::mem::offset_of!(inside::Context, regs.r12));
    assert!(std::mem::offset_of!(Context, regs.r15) == std::mem::offset_of!(inside::Context, regs.r15));
};

/// An isolated runtime, beside the global one and others; NULL: refused (see `janus_rt_init`).
#[unsafe(no_mangle)]
pub extern "C" fn janus_scheduler_create(config: SchedulerConfig) -> *mut c_void {
    let created = || handles::create_scheduler(&config).map_or(null_mut(), |made| made.as_ptr().cast());
    entered_deep(null_mut(), created)
}

/// Stops it and frees it; with nurseries open on it, when the last of them has been awaited. Does nothing for a pointer
/// that is not a scheduler, or no longer.
#[unsafe(no_mangle)]
pub extern "C" fn janus_scheduler_shutdown(scheduler: *mut c_void) {
    entered_deep((), || handles::shut_down_scheduler(scheduler.cast()));
}

/// `janus_nursery_create` on this scheduler. NULL: it is none. In a task of another runtime the children still live on
/// the task's budget.
#[unsafe(no_mangle)]
pub extern "C" fn janus_nursery_create_on(scheduler: *mut c_void) -> *mut c_void {
    entered(null_mut(), || opaque(handles::open(Some(scheduler.cast_const().cast()))))
}

/// `janus_nursery_spawn` for a child to which everything that `arg` leads to belongs from now on: nobody else reads or
/// writes it until the child has returned it, by its result or otherwise. Should it overflow its stack, it fails alone, and
/// all of that is lost.
///
/// # Safety
/// `fn` may be called with `arg`, on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_nursery_spawn_owned(r#fn: TaskFn, arg: *mut c_void) -> c_int {
    // SAFETY: the same function; it may be called as one that unwinds, since that ends the process.
    let body = r#fn
        .map(|body| unsafe { std::mem::transmute::<unsafe extern "C" fn(*mut c_void) -> i64, Body>(body) });
    // SAFETY: the caller's.
    unsafe { spawn(body, arg, true) }
}

/// `janus_nursery_spawn` with the function, an `int64_t (*)(void *)`, as a plain pointer.
///
/// # Safety
/// `func` is NULL or such a function, and may be called with `arg`, on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_scheduler_spawn(func: *mut c_void, arg: *mut c_void) -> c_int {
    // SAFETY: NULL is None; the rest is the caller's.
    let body = unsafe { std::mem::transmute::<*mut c_void, Option<Body>>(func) };
    // SAFETY: the caller's.
    unsafe { spawn(body, arg, arg.is_null()) }
}

/// Lets other tasks run, if there are any. It costs nothing. 0; -1: the task was cancelled, or the caller is none.
#[unsafe(no_mangle)]
pub extern "C" fn janus_scheduler_yield() -> c_int {
    suspending(|cx| cx.yield_now().is_ok())
}

/// Charges one operation, and lets others run when the task's turn is over. Call it in loops that run long.
///
/// 0; -1: the task was cancelled and should return, or the caller is none.
#[unsafe(no_mangle)]
pub extern "C" fn janus_budget_check() -> c_int {
    suspending(|cx| cx.check().is_ok())
}

/// Charges `ops` operations at once, as `janus_budget_check` does one.
#[unsafe(no_mangle)]
pub extern "C" fn janus_budget_charge(ops: u64) -> c_int {
    suspending(|cx| cx.charge_ops(ops).is_ok())
}

/// What is left of the calling task's budget; all zeros outside of tasks.
#[unsafe(no_mangle)]
pub extern "C" fn janus_budget_get_current() -> Budget {
    let narrow = |left: janus::Budget| Budget {
        ops: left.ops.try_into().unwrap_or(u32::MAX),
        memory: left.memory.try_into().unwrap_or(usize::MAX),
        spawn_count: left.spawn_count.try_into().unwrap_or(u16::MAX),
        channel_ops: left.channel_ops.try_into().unwrap_or(u16::MAX),
        syscalls: left.syscalls.try_into().unwrap_or(u16::MAX),
    };
    entered(Budget::default(), || {
        // SAFETY: C has no context to pass.
        unsafe { with_task(|cx| narrow(cx.budget())) }.unwrap_or_default()
    })
}

/// Adds to the calling task's budget. 0; -1: it has no capability to (in `:service` every task has that was given no limits; see
/// janus_task.h), or is none.
#[unsafe(no_mangle)]
pub extern "C" fn janus_budget_recharge(amount: Budget) -> c_int {
    let amount = janus::Budget {
        ops: amount.ops.into(),
        memory: amount.memory as u64,
        spawn_count: amount.spawn_count.into(),
        channel_ops: amount.channel_ops.into(),
        syscalls: amount.syscalls.into(),
    };
    suspending(|cx| cx.cap_budget(amount).is_ok_and(|capability| cx.recharge(&capability, &amount).is_ok()))
}

/// 0 if the calling task's `act` went well, -1 if not or if there is no task.
fn suspending(act: impl FnOnce(&Cx) -> bool) -> c_int {
    // SAFETY: as above.
    entered(-1, || if unsafe { with_task(act) } == Some(true) { 0 } else { -1 })
}
