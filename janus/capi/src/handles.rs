//! The objects that C holds: the global runtime, schedulers by pointer, and the thread's stack of nurseries [SCHED:3.3.3].
//!
//! A runtime is stopped when it was shut down and its last open nursery has been awaited, because each nursery holds a
//! reference to it. So no order of calls frees something that is still in use.

use crate::frozen::{
    JANUS_PROFILE_CLUSTER, JANUS_PROFILE_CORE, JANUS_PROFILE_DEFAULT, JANUS_PROFILE_SERVICE,
    JANUS_PROFILE_SOVEREIGN, JANUS_WATCHDOG_OFF, RuntimeConfig,
};
use crate::guard::{self, Body};
use janus::raw::{Asked, RawNursery, with_task};
use janus::{Config, MAX_WORKERS, Profile, Runtime, StackClass};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The stack of a task if the configuration does not say: C code calls libraries, which need a lot of stack.
const STACK: StackClass = StackClass::Medium;
/// A watchdog interval of more than a day is taken for a mistake.
const LONGEST_WATCH_MS: u64 = 24 * 60 * 60 * 1000;

/// The global runtime.
enum Global {
    /// It will be made when it is first needed.
    Unmade,
    Made(Arc<Runtime>),
    /// Its configuration was refused: none is made until it is initialised again or shut down.
    Refused,
}

static GLOBAL: Mutex<Global> = Mutex::new(Global::Unmade);
/// Names of children, kept for the life of the process: a dump, or the report of a hog, may name a child that has long
/// ended.
static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
/// The most names, and the longest: a program that makes up names as it goes must not fill the memory with them.
const NAMES_MOST: usize = 4096;
const NAME_BYTES_MOST: usize = 63;
static SCHEDULERS: Mutex<Vec<Arc<Runtime>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a runtime; `None` if the configuration is impossible, or the system refused a thread.
fn start(config: &RuntimeConfig) -> Option<Arc<Runtime>> {
    let stack = match config.stack_size {
        0 => STACK,
        bytes => StackClass::for_bytes(bytes)?,
    };
    let profile = match config.profile {
        JANUS_PROFILE_DEFAULT | JANUS_PROFILE_SERVICE => Profile::Service,
        JANUS_PROFILE_CORE => Profile::Core,
        JANUS_PROFILE_CLUSTER => Profile::Cluster,
        JANUS_PROFILE_SOVEREIGN => Profile::Sovereign,
        _ => return None,
    };
    let mut made = Config::new().stack(stack).profile(profile);
    match config.worker_count as usize {
        0 => {}
        count if count <= MAX_WORKERS => made = made.workers(count),
        _ => return None,
    }
    if config.deterministic {
        made = made.seed(config.deterministic_seed);
    }
    match config.watchdog_ms {
        0 => {}
        JANUS_WATCHDOG_OFF => made = made.watchdog(None),
        ms if ms <= LONGEST_WATCH_MS => made = made.watchdog(Some(Duration::from_millis(ms))),
        _ => return None,
    }
    // SAFETY: the header asks of every C task what `Runtime::new` asks of a Rust task.
    unsafe { Runtime::new(made) }.ok().map(Arc::new)
}

/// Makes the global runtime, unless there is one.
pub(crate) fn init_global(config: &RuntimeConfig) {
    let mut global = lock(&GLOBAL);
    if !matches!(*global, Global::Made(_)) {
        *global = start(config).map_or(Global::Refused, Global::Made);
    }
}

/// Shuts the global runtime down; the next use makes a new one.
pub(crate) fn shut_down_global() {
    let before = std::mem::replace(&mut *lock(&GLOBAL), Global::Unmade);
    // Dropped outside of the lock, because this waits for the workers.
    drop(before);
}

pub(crate) fn global() -> Option<NonNull<Runtime>> {
    match &*lock(&GLOBAL) {
        Global::Made(runtime) => Some(NonNull::from(&**runtime)),
        _ => None,
    }
}

/// The global runtime, which is made with defaults if there is none.
fn global_or_default() -> Option<Arc<Runtime>> {
    let mut global = lock(&GLOBAL);
    if matches!(*global, Global::Unmade) {
        *global = start(&RuntimeConfig::default()).map_or(Global::Refused, Global::Made);
    }
    match &*global {
        Global::Made(runtime) => Some(runtime.clone()),
        _ => None,
    }
}

/// Makes a runtime beside the global one.
pub(crate) fn create_scheduler(config: &RuntimeConfig) -> Option<NonNull<Runtime>> {
    let runtime = start(config)?;
    let pointer = NonNull::from(&*runtime);
    lock(&SCHEDULERS).push(runtime);
    Some(pointer)
}

/// Shuts a scheduler down; does nothing for a pointer that is no live scheduler.
pub(crate) fn shut_down_scheduler(pointer: *const Runtime) {
    let found = {
        let mut schedulers = lock(&SCHEDULERS);
        let index = schedulers.iter().position(|runtime| std::ptr::eq(&**runtime, pointer));
        index.map(|index| schedulers.swap_remove(index))
    };
    // Dropped outside of the lock, because this waits for the workers.
    drop(found);
}

fn scheduler(pointer: *const Runtime) -> Option<Arc<Runtime>> {
    lock(&SCHEDULERS).iter().find(|runtime| std::ptr::eq(&***runtime, pointer)).cloned()
}

/// The open nurseries of a thread that runs no task, innermost last.
struct Stack(RefCell<Vec<NonNull<RawNursery>>>);

impl Drop for Stack {
    /// When the thread ends, its nurseries are cancelled and awaited, because their children may use what is about to be
    /// freed.
    fn drop(&mut self) {
        while let Some(left) = self.0.get_mut().pop() {
            // SAFETY: it is open and innermost, and a thread's end is no task.
            unsafe { RawNursery::abandon(left) };
        }
    }
}

thread_local! {
    static STACK_OF_THREAD: Stack = const { Stack(RefCell::new(Vec::new())) };
}

/// Never inlined, so that no code keeps the address of a thread-local across a switch. Only called outside of tasks.
#[inline(never)]
fn on_thread<R>(body: impl FnOnce(&mut Vec<NonNull<RawNursery>>) -> R) -> Option<R> {
    STACK_OF_THREAD.try_with(|stack| body(&mut stack.0.borrow_mut())).ok()
}

fn in_task() -> bool {
    // SAFETY: C has no context to pass.
    unsafe { with_task(|_| ()) }.is_some()
}

/// Opens a nursery on the task's runtime, or the global one, or the named scheduler.
pub(crate) fn open(on: Option<*const Runtime>) -> Option<NonNull<RawNursery>> {
    let in_task = in_task();
    let runtime = match on {
        Some(pointer) => Some(scheduler(pointer)?),
        None if in_task => None,
        None => Some(global_or_default()?),
    };
    if in_task {
        return RawNursery::open(runtime.as_ref());
    }
    on_thread(|stack| {
        let opened = RawNursery::open(runtime.as_ref())?;
        stack.push(opened);
        Some(opened)
    })?
}

/// The innermost open nursery.
pub(crate) fn innermost() -> Option<NonNull<RawNursery>> {
    if in_task() { RawNursery::innermost() } else { on_thread(|stack| stack.last().copied())? }
}

/// Waits for the innermost open nursery and closes it; `None` if there is none.
pub(crate) fn await_innermost() -> Option<i64> {
    let opened = if in_task() { RawNursery::innermost() } else { on_thread(Vec::pop)? };
    // SAFETY: it is open and innermost, and ours.
    opened.map(|nursery| unsafe { RawNursery::await_all(nursery) })
}

/// Keeps a name for the life of the process; `Some(None)` if there are too many already, `None` if it is not valid.
pub(crate) fn intern(name: &CStr) -> Option<Option<&'static str>> {
    let name = name.to_str().ok().filter(|name| name.len() <= NAME_BYTES_MOST)?;
    let mut names = lock(&NAMES);
    let names = names.get_or_insert_with(HashSet::new);
    if let Some(known) = names.get(name) {
        return Some(Some(known));
    }
    Some((names.len() < NAMES_MOST).then(|| {
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        kept
    }))
}

/// Starts a child of the innermost open nursery: 0, or -1.
///
/// # Safety
/// `body` may be called with `arg`, on another thread; what `arg` leads to stays valid until the nursery has been awaited,
/// or belongs to the child.
pub(crate) unsafe fn spawn(asked: &Asked, body: Body, arg: *mut c_void) -> c_int {
    let Some(nursery) = innermost() else { return -1 };
    // SAFETY: the nursery is open; the rest is the caller's.
    match unsafe { RawNursery::spawn(nursery, asked, move || guard::run(body, arg)) } {
        Ok(()) => 0,
        Err(_) => -1,
    }
}
