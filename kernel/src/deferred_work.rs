//! Work that a dropped capability leaves behind (K-26).
//!
//! With the last right to serve an endpoint everybody who waits there has to be told, and one of their messages may carry the last right to serve
//! the next endpoint; with the last hold on a memory object thousands of frames go back. A destructor runs anywhere, also in the middle of
//! something else, so it does none of that: it closes the endpoint to newcomers, or takes the frames out of everybody's reach, and leaves the
//! rest in a list of the thread that runs. That one does it before its operation is answered, and before it waits or ends: in its own time, at
//! its own weight, in pieces between which interrupts are served and others run. The lists run through what is in them: nothing is allocated.

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

/// What one thread has to do. Touched by the thread itself only.
pub struct DeferredWork {
    /// Endpoints to be closed.
    closing: Cell<Option<Arc<Endpoint>>>,
    /// Memory to be freed.
    remains: Cell<Option<Box<Remains>>>,
    /// There may be something in one of the two.
    any: Cell<bool>,
}

/// The memory of an object, and who pays for it.
pub struct Remains {
    /// Its frames.
    pub frames: Vec<Frame>,
    /// Their count is charged there.
    pub payer: Arc<Process>,
    /// The next of those to be freed.
    next: Option<Box<Remains>>,
}

impl Remains {
    /// Of an object that lives.
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
    /// Nothing.
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

    /// Is there anything to do?
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.get()
    }
}

/// An endpoint that was closed to newcomers: those who wait there are told soon. Its link to the next is `link`, under its own lock.
pub fn close(endpoint: &Arc<Endpoint>, link: &mut Option<Arc<Endpoint>>) {
    // While the machine boots nobody waits anywhere.
    if let Some(thread) = thread::current_or_none() {
        *link = thread.deferred().closing.replace(Some(endpoint.clone()));
        thread.deferred().any.set(true);
    }
}

/// Memory that nobody can reach any more goes back soon; at once while the machine boots, when there is nobody else.
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

/// Does what the current thread has to do. It holds no lock.
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
