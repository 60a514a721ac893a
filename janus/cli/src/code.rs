//! What the exit code of `janus run` says. A guest's own codes are 0 to 63; ours begin above.

use janus::{Resource, TaskError};
use janus_guest::{GuestError, Used};

/// The largest code that a guest can give; larger ones become this one.
pub(crate) const GUEST_MAX: u32 = 63;
pub(crate) const USAGE: u8 = 64;
pub(crate) const BAD_MODULE: u8 = 65;
pub(crate) const CANNOT_READ: u8 = 66;
pub(crate) const OPS: u8 = 70;
pub(crate) const MEMORY: u8 = 71;
pub(crate) const SPAWN: u8 = 72;
pub(crate) const MESSAGES: u8 = 73;
pub(crate) const IO: u8 = 74;
pub(crate) const NOT_GRANTED: u8 = 75;
pub(crate) const TRAPPED: u8 = 76;
pub(crate) const TIMED_OUT: u8 = 77;
pub(crate) const RUNTIME: u8 = 78;

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes of `janus run`:
  0 to 63   what the guest said (larger codes of a guest, and negative ones, become 63)
  64        the command line is wrong
  65        the module is malformed, too large, or its imports cannot be linked
  66        a file cannot be read, or the output not written
  70        the guest ran out of ops
  71        ... of memory: it was refused some, and then failed
  72        ... of spawn: it was refused a child, and then failed
  73        ... of messages
  74        ... of io
  75        the module needs a grant that it was not given
  76        the guest trapped
  77        the guest was stopped by --timeout
  78        the runtime could not be started, or the task failed
A function that returns an integer has the row `result` in the table; that is no exit code, which only `proc_exit` gives.";

fn of(resource: Resource) -> u8 {
    match resource {
        Resource::Ops => OPS,
        Resource::Memory => MEMORY,
        Resource::Spawn => SPAWN,
        Resource::Channel => MESSAGES,
        Resource::Syscalls => IO,
    }
}

/// Which part of the budget a task ended for.
pub(crate) fn of_task(error: &TaskError) -> u8 {
    match error {
        TaskError::BudgetExceeded(resource) => of(*resource),
        TaskError::Cancelled => TIMED_OUT,
        _ => RUNTIME,
    }
}

/// Why a guest failed: a refusal before it is the better answer.
pub(crate) fn of_guest(error: &GuestError, used: &Used) -> u8 {
    match error {
        GuestError::NotGranted { .. } => NOT_GRANTED,
        GuestError::NoMemory { .. } => MEMORY,
        GuestError::Trap { .. } => refused(used).unwrap_or(TRAPPED),
        GuestError::Cancelled => TIMED_OUT,
        _ => BAD_MODULE,
    }
}

/// What a guest that failed was refused.
pub(crate) fn refused(used: &Used) -> Option<u8> {
    used.refused().map(of)
}
