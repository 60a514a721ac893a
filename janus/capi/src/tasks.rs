//! `janus_task.h`: what a task in C has beyond the specification's exports: children with a budget, a name, a stack and
//! capabilities of their own; sleep; channels. Comments here are the header's.

use crate::frozen::TaskFn;
use crate::guard::{Body, entered};
use crate::handles::{self, intern};
use janus::raw::{self, Asked};
use janus::{CapBudget, Cx, Priority, Receiver, RecvError, SendError, Sender, StackClass};
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::time::Duration;

/// Calls `body` with the context of the task that runs here, if one does.
fn with_task<R>(body: impl FnOnce(&Cx) -> R) -> Option<R> {
    // SAFETY: C has no context to pass.
    unsafe { raw::with_task(body) }
}

/// A part of `janus_limits` that has no end.
pub const JANUS_UNLIMITED: u64 = u64::MAX;

/// `janus_child_options.grants`: the child may spawn. In `:service` every task may.
pub const JANUS_GRANT_SPAWN: u32 = 1;
/// `janus_child_options.grants`: the child may recharge itself, and make capabilities to recharge. In `:service` every task
/// may, unless it or one above it has limits.
pub const JANUS_GRANT_BUDGET: u32 = 2;

/// `janus_child_options.priority`: as others.
pub const JANUS_PRIORITY_NORMAL: u32 = 0;
/// `janus_child_options.priority`: before others of its worker. A hint.
pub const JANUS_PRIORITY_HIGH: u32 = 1;
/// `janus_child_options.priority`: after others of its worker. A hint.
pub const JANUS_PRIORITY_LOW: u32 = 2;

/// A time-out: there is none.
pub const JANUS_FOREVER: u64 = u64::MAX;

/// `janus_channel_send` and `janus_channel_receive`: the channel was closed.
pub const JANUS_CLOSED: c_long = -5;
/// `janus_channel_send` and `janus_channel_receive`: the time was over.
pub const JANUS_TIMED_OUT: c_long = -6;

/// What a child may use, 64 bits wide; JANUS_UNLIMITED is without end. See `janus_budget` in janus_compiler.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Abstract instructions.
    pub ops: u64,
    /// Bytes.
    pub memory: u64,
    /// Children.
    pub spawn_count: u64,
    /// Sends and receives.
    pub channel_ops: u64,
    /// System calls.
    pub syscalls: u64,
}

impl Limits {
    fn budget(self) -> janus::Budget {
        janus::Budget {
            ops: self.ops,
            memory: self.memory,
            spawn_count: self.spawn_count,
            channel_ops: self.channel_ops,
            syscalls: self.syscalls,
        }
    }

    fn of(budget: janus::Budget) -> Limits {
        Limits {
            ops: budget.ops,
            memory: budget.memory,
            spawn_count: budget.spawn_count,
            channel_ops: budget.channel_ops,
            syscalls: budget.syscalls,
        }
    }
}

/// How a child is made. All zeros is what `janus_nursery_spawn` does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChildOptions {
    /// For messages and dumps; NULL: none. UTF-8, 63 bytes at most. It is copied, and kept for the life of the process: the
    /// first 4096 names are, children with others have none.
    pub name: *const c_char,
    /// Exactly this, out of the nursery's pool, and no more: no pool adds to it. A child that has spent a part of it stops,
    /// until nobody is left who could go on: then it ends, and `janus_nursery_await_all` answers -3. NULL: a share of the
    /// pool, as long as that has something.
    pub limits: *const Limits,
    /// The right to have so many children; the larger of this and of what the limits say.
    pub children: u64,
    /// Bytes of stack, as in `janus_runtime_config`; 0: what that says.
    pub stack_size: usize,
    /// One of JANUS_PRIORITY_*.
    pub priority: u32,
    /// JANUS_GRANT_* together. A task passes on what it has; a thread that runs no task has everything.
    pub grants: u32,
    /// Everything that `arg` leads to belongs to the child from now on: see `janus_nursery_spawn_owned`.
    pub owned: bool,
}

impl ChildOptions {
    /// None: it asks for what cannot be.
    ///
    /// # Safety
    /// Its pointers are NULL or valid.
    unsafe fn asked(&self, arg: *mut c_void) -> Option<Asked> {
        let name = match self.name.is_null() {
            true => None,
            // SAFETY: the caller's.
            false => intern(unsafe { CStr::from_ptr(self.name) })?,
        };
        let stack = match self.stack_size {
            0 => None,
            bytes => Some(StackClass::for_bytes(bytes)?),
        };
        let priority = match self.priority {
            JANUS_PRIORITY_NORMAL => Priority::Normal,
            JANUS_PRIORITY_HIGH => Priority::High,
            JANUS_PRIORITY_LOW => Priority::Low,
            _ => return None,
        };
        if self.grants & !(JANUS_GRANT_SPAWN | JANUS_GRANT_BUDGET) != 0 {
            return None;
        }
        Some(Asked {
            owned: self.owned || arg.is_null(),
            // SAFETY: the caller's.
            budget: unsafe { self.limits.as_ref() }.map(|limits| limits.budget()),
            children: self.children,
            stack,
            priority,
            name,
            may_spawn: self.grants & JANUS_GRANT_SPAWN != 0,
            may_recharge: self.grants & JANUS_GRANT_BUDGET != 0,
        })
    }
}

/// `janus_nursery_spawn` with options; NULL: none. They are read, and not kept.
///
/// 0: started. -1: not, for the reasons of `janus_nursery_spawn`, or as the options ask for what cannot be: a name that is too
/// long or not UTF-8, a stack above 1 MiB, an unknown priority or grant, a grant that the calling task does not have itself,
/// limits that the pool does not have.
///
/// # Safety
/// `options` and the pointers in it are NULL or valid. `fn` may be called with `arg`, on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_nursery_spawn_with(
    options: *const ChildOptions,
    r#fn: TaskFn,
    arg: *mut c_void,
) -> c_int {
    entered(-1, || {
        // SAFETY: the caller's.
        let asked = match unsafe { options.as_ref() } {
            // SAFETY: the caller's.
            Some(options) => unsafe { options.asked(arg) },
            None => Some(Asked { owned: arg.is_null(), ..Asked::default() }),
        };
        // SAFETY: the same function; it may be called as one that unwinds, since that ends the process.
        let body = r#fn.map(|body| unsafe {
            std::mem::transmute::<unsafe extern "C" fn(*mut c_void) -> i64, Body>(body)
        });
        let (Some(asked), Some(body)) = (asked, body) else { return -1 };
        // SAFETY: the caller's.
        unsafe { handles::spawn(&asked, body, arg) }
    })
}

/// What one or more tasks may recharge themselves with, in all. To have the pointer is the right to use it: a task that has
/// one needs no other capability.
pub struct CapabilityToRecharge(CapBudget);

/// Makes one with so much in it. NULL: the calling task may not recharge itself, so it cannot let others either. A thread that
/// runs no task may.
#[unsafe(no_mangle)]
pub extern "C" fn janus_cap_budget_create(limits: Limits) -> *mut CapabilityToRecharge {
    let made =
        || raw::cap_budget(limits.budget()).map(|made| Box::into_raw(Box::new(CapabilityToRecharge(made))));
    entered(null_mut(), || made().unwrap_or(null_mut()))
}

/// Adds `amount` to the calling task's budget, out of the capability: all of it, or nothing. 0; -1: there is not so much left,
/// or the caller is no task.
///
/// # Safety
/// `capability` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_cap_budget_recharge(
    capability: *const CapabilityToRecharge,
    amount: Limits,
) -> c_int {
    entered(-1, || {
        // SAFETY: the caller's.
        let Some(capability) = (unsafe { capability.as_ref() }) else { return -1 };
        match with_task(|cx| cx.recharge(&capability.0, &amount.budget())) {
            Some(Ok(())) => 0,
            _ => -1,
        }
    })
}

/// What is left in it.
///
/// # Safety
/// `capability` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_cap_budget_left(capability: *const CapabilityToRecharge) -> Limits {
    entered(Limits::default(), || {
        // SAFETY: the caller's.
        unsafe { capability.as_ref() }.map_or(Limits::default(), |capability| Limits::of(capability.0.left()))
    })
}

/// Frees it. What was left in it is gone.
///
/// # Safety
/// `capability` is NULL, or one that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_cap_budget_free(capability: *mut CapabilityToRecharge) {
    if !capability.is_null() {
        // SAFETY: the caller's.
        entered((), || drop(unsafe { Box::from_raw(capability) }));
    }
}

/// Waits so long, at least, and lets others run. It costs an operation. In deterministic mode the time is virtual.
///
/// 0; -1: the task was cancelled and should return, or the caller is none.
#[unsafe(no_mangle)]
pub extern "C" fn janus_task_sleep(nanoseconds: u64) -> c_int {
    let slept = || with_task(|cx| cx.sleep(Duration::from_nanos(nanoseconds)).is_ok());
    entered(-1, || if slept() == Some(true) { 0 } else { -1 })
}

/// A pointer on its way to whoever receives it. What it leads to is the sender's business and the receiver's.
struct Message(*mut c_void);

// SAFETY: nothing here looks at what it points to; the header says that it goes to another thread.
unsafe impl Send for Message {}

/// Carries pointers from task to task, first come first served; any number of senders and receivers. Opaque.
pub struct Channel {
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

/// Makes a channel for so many messages in transit; 0 is a rendezvous: a send returns when the message was received.
/// `SIZE_MAX`: any number.
#[unsafe(no_mangle)]
pub extern "C" fn janus_channel_create(capacity: usize) -> *mut Channel {
    entered(null_mut(), || {
        let (sender, receiver) = janus::channel(capacity);
        Box::into_raw(Box::new(Channel { sender, receiver }))
    })
}

/// Sends, and waits so many nanoseconds at most, or JANUS_FOREVER, until there is room, or a receiver. 0: not at all.
///
/// 0: sent, and the message is the receiver's. JANUS_CLOSED. JANUS_TIMED_OUT. -1: the task was cancelled and should return.
/// Outside of tasks it waits for ever or not at all: another time-out is -1.
///
/// # Safety
/// `channel` is one, and whoever receives may have `message`, on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_channel_send(
    channel: *const Channel,
    message: *mut c_void,
    timeout_ns: u64,
) -> c_int {
    entered(-1, || {
        // SAFETY: the caller's.
        let Some(channel) = (unsafe { channel.as_ref() }) else { return -1 };
        let (sender, message) = (&channel.sender, Message(message));
        let timeout = Duration::from_nanos(timeout_ns);
        let in_task = with_task(|_| ()).is_some();
        let sent = match timeout_ns {
            JANUS_FOREVER if !in_task => sender.send_blocking(message),
            0 if !in_task => sender.try_send_blocking(message),
            _ if !in_task => return -1,
            // In a task: `None` cannot be.
            JANUS_FOREVER => with_task(|cx| sender.send(cx, message)).unwrap_or(Ok(())),
            0 => with_task(|cx| sender.try_send(cx, message)).unwrap_or(Ok(())),
            _ => with_task(|cx| sender.send_timeout(cx, message, timeout)).unwrap_or(Ok(())),
        };
        match sent {
            Ok(()) => 0,
            Err(SendError::Closed(_)) => JANUS_CLOSED as c_int,
            Err(SendError::Full(_)) => JANUS_TIMED_OUT as c_int,
            Err(SendError::Cancelled(_)) => -1,
        }
    })
}

/// Receives into `*message`, and waits so many nanoseconds at most, or JANUS_FOREVER, until there is one. 0: not at all.
///
/// 0: received. JANUS_CLOSED: there is none, and none will come. JANUS_TIMED_OUT. -1: the task was cancelled and should
/// return. Outside of tasks it waits for ever or not at all: another time-out is -1.
///
/// # Safety
/// `channel` is one, and `message` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_channel_receive(
    channel: *const Channel,
    message: *mut *mut c_void,
    timeout_ns: u64,
) -> c_int {
    entered(-1, || {
        // SAFETY: the caller's.
        let Some(channel) = (unsafe { channel.as_ref() }) else { return -1 };
        if message.is_null() {
            return -1;
        }
        let receiver = &channel.receiver;
        let timeout = Duration::from_nanos(timeout_ns);
        let in_task = with_task(|_| ()).is_some();
        let received = match timeout_ns {
            JANUS_FOREVER if !in_task => receiver.recv_blocking(),
            0 if !in_task => receiver.try_recv_blocking(),
            _ if !in_task => return -1,
            JANUS_FOREVER => with_task(|cx| receiver.recv(cx)).unwrap_or(Err(RecvError::Cancelled)),
            0 => with_task(|cx| receiver.try_recv(cx)).unwrap_or(Err(RecvError::Cancelled)),
            _ => with_task(|cx| receiver.recv_timeout(cx, timeout)).unwrap_or(Err(RecvError::Cancelled)),
        };
        match received {
            Ok(Message(pointer)) => {
                // SAFETY: the caller's.
                unsafe { message.write(pointer) };
                0
            }
            Err(RecvError::Closed) => JANUS_CLOSED as c_int,
            Err(RecvError::Empty) => JANUS_TIMED_OUT as c_int,
            Err(RecvError::Cancelled) => -1,
        }
    })
}

/// Nobody sends any more: whoever waits to, and whoever tries, gets JANUS_CLOSED and keeps the message. What is in transit is
/// still received; then receivers get JANUS_CLOSED too.
///
/// # Safety
/// `channel` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_channel_close(channel: *const Channel) {
    entered((), || {
        // SAFETY: the caller's.
        if let Some(channel) = unsafe { channel.as_ref() } {
            channel.receiver.close();
        }
    });
}

/// Frees it. Messages that nobody received are lost with it: receive them first, if something belongs to them.
///
/// # Safety
/// `channel` is NULL, or one that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn janus_channel_free(channel: *mut Channel) {
    if !channel.is_null() {
        // SAFETY: the caller's.
        entered((), || drop(unsafe { Box::from_raw(channel) }));
    }
}
