//! Deferred work: what is left to do when a capability is dropped (K-26).
//!
//! With the last right to serve an endpoint, every thread that waits there has to be told, and one of their messages may carry the last right to
//! serve the next endpoint. With the last hold on a memory object, thousands of frames are freed. A destructor may run anywhere, also in the middle
//! of something else, so it does none of that: it closes the endpoint to new calls, or makes the frames unreachable, and leaves the rest in a list
//! of the running thread. That thread does the work before its operation is answered, and before it blocks or ends: in its own time, at its own
//! weight, in pieces between which interrupts are served and others run. The lists are linked through their elements, so nothing is allocated.

use crate::dispatch::percpu;
use crate::endpoint::Endpoint;
use crate::irqoff::{self, Path};
use crate::mm::frames::{self, Frame};
use crate::preempt::{self, Pacer};
use crate::process::Process;
use crate::process::records::Owned;
use crate::thread::{self, Thread};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;

/// The deferred work of one thread. Touched by the thread itself only.
pub struct DeferredWork {
    /// Endpoints whose waiting threads are to be told that they closed.
    closing: Cell<Option<Arc<Endpoint>>>,
    /// Memory to be freed.
    remains: Cell<Option<Box<Remains>>>,
    /// Whether one of the two may not be empty.
    any: Cell<bool>,
}

/// The memory of an object, and the process that pays for it.
pub struct Remains {
    /// Its frames.
    pub frames: Vec<Frame>,
    /// The process that the frames are charged to.
    pub payer: Arc<Process>,
    /// The next memory in the list of those to be freed.
    next: Option<Box<Remains>>,
}

impl Remains {
    /// The memory of an object that is in use.
    pub fn new(frames: Vec<Frame>, payer: Arc<Process>) -> Remains {
        Remains { frames, payer, next: None }
    }

    fn free(mut self) {
        let count = self.frames.len() as u64;
        let mut pacer = Pacer::of_batches();
        while !self.frames.is_empty() {
            let rest = self.frames.len().saturating_sub(frames::BATCH);
            frames::free_all(&self.frames[rest..]);
            self.frames.truncate(rest);
            pacer.step();
        }
        self.payer.space.release_object(count);
    }
}

impl DeferredWork {
    /// No work.
    pub const fn new() -> DeferredWork {
        DeferredWork { closing: Cell::new(None), remains: Cell::new(None), any: Cell::new(false) }
    }

    fn take_endpoint(&self) -> Option<Arc<Endpoint>> {
        let first = self.closing.take()?;
        self.closing.set(first.take_next());
        Some(first)
    }

    fn take_remains(&self) -> Option<Box<Remains>> {
        let mut first = self.remains.take()?;
        self.remains.set(first.next.take());
        Some(first)
    }

    /// Whether there may be anything to do.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.get()
    }
}

/// Puts a closed endpoint in the current thread's list, to tell those who wait there. `link` is the endpoint's link in that list, under its own lock.
pub fn close(endpoint: &Arc<Endpoint>, link: &mut Option<Arc<Endpoint>>) {
    // While the machine boots no thread waits anywhere.
    if let Some(thread) = thread::current_or_none() {
        *link = thread.deferred().closing.replace(Some(endpoint.clone()));
        thread.deferred().any.set(true);
    }
}

/// Puts memory that nobody can reach any more in the current thread's list, to be freed. At boot, without a thread, it is freed at once.
pub fn free(mut remains: Box<Remains>) {
    match thread::current_or_none() {
        Some(thread) => {
            remains.next = thread.deferred().remains.take();
            thread.deferred().remains.set(Some(remains));
            thread.deferred().any.set(true);
        }
        None => remains.free(),
    }
}

/// Does the deferred work of the current thread, which holds no lock.
#[inline]
pub fn tend(thread: &'static Thread) {
    if thread.deferred().any() {
        tend_to_all(thread);
    }
}

#[cold]
#[inline(never)]
fn tend_to_all(thread: &'static Thread) {
    irqoff::begins(percpu::this(), Path::DeferredWork);
    loop {
        if let Some(endpoint) = thread.deferred().take_endpoint() {
            endpoint.tell_all();
        } else if let Some(remains) = thread.deferred().take_remains() {
            remains.free();
        } else {
            return thread.deferred().any.set(false);
        }
        preempt::point();
        irqoff::note(percpu::this(), Path::DeferredWork);
    }
}
