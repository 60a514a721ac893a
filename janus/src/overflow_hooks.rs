//! What `overflow.rs` asks the scheduler: which task runs on this thread, on which stack, and where the thread
//! continues without that task. All of it runs inside a signal handler, so it reads a thread-local and memory that is
//! certain to exist, and allocates nothing.

use crate::family::{self, Cause};
use crate::overflow::{self, AltStack, Hooks, Running};
use crate::worker::{Worker, current_worker};

/// Installs the handler for the whole process, once.
pub(crate) fn install() -> std::io::Result<()> {
    overflow::install(Hooks { current, abandoned, stuck })
}

/// Installs the signal stack of a worker's thread, as long as the returned value lives.
pub(crate) fn on_this_thread() -> Option<AltStack> {
    AltStack::install().ok()
}

fn current() -> Option<Running> {
    let worker = current_worker()?;
    let task = worker.task()?;
    // SAFETY: the running task has a stack, and only its own thread, which is in this handler, would take it away.
    let stack = unsafe { (*task.stack.get()).as_ref() }?;
    // Every allocation under a lock of the runtime is quiet (invariant 4 of `alloc.rs`).
    let inside = task.quiet.get() > 0;
    Some(Running { stack, overflowed: &raw const task.overflowed, resume: worker.context(), inside })
}

fn stuck(prints: bool) -> ! {
    let cause = if prints { Cause::Printing } else { Cause::InsideLibrary };
    match current_worker().and_then(Worker::task) {
        Some(task) => family::abort(task, cause),
        None => std::process::abort(),
    }
}

fn abandoned() {
    if let Some(worker) = current_worker() {
        worker.abandon_current();
    }
}
