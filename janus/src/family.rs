//! Giving up a task that can neither go on nor be unwound.
//!
//! A task that ran over its stack, or allocated beyond its reserve, stops between any two instructions: what it was
//! changing is half done. Nothing may see that. So the task is leaked for ever, with its frames, heap and locks, and
//! with it every task that lent it something: its *family*.
//!
//! ```text
//!   task that called `run`
//!    '- nursery                         returns, with the typed error of the root
//!        '- root: spawned as owned      ends when all of its family stand still
//!            |- nursery, doomed         nobody passes its end
//!            |   |- culprit             abandoned where it was
//!            |   |- borrower            abandoned at its next check or wait
//!            |   '- owned               cancelled, and ends in order
//!            '- nursery ...
//! ```
//!
//! Invariants:
//! 1. A family reaches up to the nearest task that was spawned as owned, which borrows from no other task. If there is
//!    none, the process ends, with a message that names the task and the remedy.
//! 2. Every nursery between the culprit and the root is doomed before the culprit leaves the first of them, and no task
//!    passes a doomed nursery: neither its end nor a join of the culprit returns to code that could look at what was
//!    lent.
//! 3. A member that stands still is *buried*: on another stack it dooms the nurseries that it has open, waits until
//!    their children have left, and leaves its own nursery. So the root's parent goes on when the whole family stands
//!    still.
//! 4. Stacks, tasks and their runtime's memory stay as long as the process: other threads may refer to them.

use crate::alloc::Quiet;
use crate::nursery::Nursery;
use crate::runtime::Shared;
use crate::task::{Task, TaskRef, flag};
use crate::waiter::wake_task;
use crate::worker::Worker;
use std::fmt::{self, Write};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// Why a task cannot go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Stack,
    Memory,
    /// It used up its stack inside a library, or inside the runtime: what is half done there is shared by the whole
    /// process.
    InsideLibrary,
    /// As `InsideLibrary`, inside `print!` and the like, which hold the lock of an output.
    Printing,
    /// It allocated beyond its reserve while it printed.
    PrintingMemory,
    /// It was given up while it held the lock of an output, for whatever cause: see `output.rs`.
    Output,
    /// A member of its family waits for a lock, outside of the runtime, and will not stand still.
    Locked,
    /// There is no stack to bury it on.
    NoStack,
}

fn nursery_of(task: &Task) -> Option<&Nursery> {
    // SAFETY: a task's nursery is there until the task has left it; the pointer was written before the task first ran.
    unsafe { task.nursery.get().as_ref() }
}

/// Whether the task belongs to a family that is given up. Called on the task's own fiber, or while the task cannot end.
pub(crate) fn is_doomed(task: TaskRef) -> bool {
    let flags = task.flags.load(Ordering::Acquire);
    let lent = flags & flag::OWNED == 0;
    flags & flag::DOOMED != 0 || (lent && nursery_of(&task).is_some_and(Nursery::is_doomed))
}

/// Gives up the family of `culprit`, which was abandoned (invariants 1 and 2). On the thread's own stack.
pub(crate) fn give_up(culprit: TaskRef, cause: Cause, here: &Worker) {
    let parent = |member: &TaskRef| nursery_of(member).and_then(Nursery::opener);
    let mut root = culprit;
    while !root.has(flag::OWNED) {
        match parent(&root) {
            Some(above) => root = above,
            None => abort(culprit, cause),
        }
    }
    let mark = flag::DOOMED | if cause == Cause::Memory { flag::BY_MEMORY } else { 0 };
    let mut member = culprit;
    loop {
        member.set(mark);
        if member != culprit {
            wake_task(member, Some(here));
        }
        if member == root {
            return;
        }
        if let Some(nursery) = nursery_of(&member) {
            nursery.doom(Some(here));
        }
        match parent(&member) {
            Some(above) => member = above,
            None => return,
        }
    }
}

/// A nursery whose opener was given up, and waits for the children that do not stand still yet.
pub(crate) struct Burial {
    /// The address of the nursery, which stays there for ever.
    nursery: usize,
    since_ns: u64,
}

/// Lives until a nursery of a buried task is empty: it tells the watchdog which children are waited for.
pub(crate) struct Waits<'a>(&'a Shared, usize);

impl<'a> Waits<'a> {
    pub(crate) fn new(shared: &'a Shared, nursery: &Nursery) -> Waits<'a> {
        let _quiet = Quiet::new();
        let nursery = std::ptr::from_ref(nursery).addr();
        shared.burials().push(Burial { nursery, since_ns: shared.now_ns() });
        Waits(shared, nursery)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.burials().retain(|burial| burial.nursery != self.1);
    }
}

impl Shared {
    fn burials(&self) -> MutexGuard<'_, Vec<Burial>> {
        self.burials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when this running task has been waited for to stand still, if it is.
    pub(crate) fn awaited_since(&self, task: TaskRef) -> Option<u64> {
        let burials = self.burials();
        if burials.is_empty() {
            return None;
        }
        // The pointer is compared, and not dereferenced: the nursery may be gone.
        let nursery = task.nursery.get().addr();
        burials.iter().find(|burial| burial.nursery == nursery).map(|burial| burial.since_ns)
    }

    /// Gives an abandoned task another stack, on which it waits for its own children (invariant 3).
    pub(crate) fn bury(&self, task: TaskRef, here: &Worker) {
        self.stay_for_ever();
        // SAFETY: the task is ours and will not go on. A stack handle is only an address: forgetting it leaks the slot
        // (invariant 4).
        let stack = unsafe { (*task.stack.get()).take() }.expect("an abandoned task has a stack");
        self.stacks.retire(stack);
        // The task may have been abandoned in a quiet section.
        task.quiet.set(0);
        task.set(flag::BURIED);
        here.push(task);
    }
}

/// A text of fixed size, made without the allocator, which may be in the middle of an operation.
struct Text {
    bytes: [u8; 1024],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Prints to standard error. It takes no lock and no memory: a task that was given up may hold what it would wait for.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    let mut text = Text { bytes: [0; 1024], length: 0 };
    let _ = text.write_fmt(what);
    // SAFETY: the text is ours; 2 is standard error, and a write to a closed descriptor only fails.
    unsafe { libc::write(libc::STDERR_FILENO, text.bytes.as_ptr().cast(), text.length) };
}

/// A description of a task: number, name and where it was spawned.
pub(crate) struct Described(pub(crate) TaskRef);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Described(task) = self;
        let id = task.id.load(Ordering::Relaxed);
        write!(f, "task #{id}")?;
        if let Some(name) = task.name(id) {
            write!(f, " \"{name}\"")?;
        }
        match Task::location(&task.spawned_at) {
            Some(at) => write!(f, ", spawned at {at},"),
            None => Ok(()),
        }
    }
}

/// Ends the process (invariant 1) with a message, which it prints as `say` does. Also called in a signal handler.
#[cold]
pub(crate) fn abort(task: TaskRef, cause: Cause) -> ! {
    abort_described(&Described(task), cause)
}

/// As `abort`, for a task that may be gone.
#[cold]
pub(crate) fn abort_described(task: &(impl fmt::Display + ?Sized), cause: Cause) -> ! {
    let why = match cause {
        Cause::Stack => {
            " overflowed its stack while it borrowed from its parents, up to the one that called Runtime::run.\n\
             janus: What it was changing must not be seen. Give it more stack (Spawn::stack), call Cx::check or \
             Cx::ensure_stack where it recurses, or spawn it or a parent with Spawn::owned, so that it can fail alone.\n"
        }
        Cause::Memory => {
            " allocated beyond its memory budget and its reserve while it borrowed from its parents, up to the one that \
             called Runtime::run.\n\
             janus: What it was changing must not be seen. Ask Cx::can_allocate before large allocations, raise \
             Config::memory_reserve, or spawn it or a parent with Spawn::owned, so that it can fail alone.\n"
        }
        Cause::InsideLibrary => {
            " overflowed its stack, and the reserve behind it, inside a library, or inside the \
             runtime with a large message.\n\
             janus: What was being changed there is everybody's. Give the task more stack (Spawn::stack).\n"
        }
        Cause::Printing => {
            " overflowed its stack, and the reserve behind it, while it printed.\n\
             janus: The output would stay locked, and whoever prints next would wait for ever. Give the task more stack \
             (Spawn::stack), or format first and print then.\n"
        }
        Cause::PrintingMemory => {
            " allocated beyond its memory budget and its reserve while it printed.\n\
             janus: The output would stay locked, and whoever prints next would wait for ever. Format first and print \
             then, ask Cx::can_allocate, or raise Config::memory_reserve.\n"
        }
        Cause::Output => {
            " was given up (it overflowed its stack, or allocated beyond its reserve) with standard output or standard \
             error locked.\n\
             janus: Whoever prints next would wait for ever. Keep no lock of an output while you recurse or allocate \
             without a check.\n"
        }
        Cause::Locked => {
            " has waited for a lock of another library (std's Mutex, say) ever since its family was given up, and that \
             cannot end.\n\
             janus: A task that was given up keeps its locks. Share locks of janus::sync with tasks that may be given up, \
             or let what runs under the lock call Cx::check or Cx::ensure_stack.\n"
        }
        Cause::NoStack => " was given up, and there is no memory for a stack to wait for its children on.\n",
    };
    say(format_args!("janus: abort: {task}{why}"));
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
