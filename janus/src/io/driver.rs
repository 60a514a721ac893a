//! A worker's I/O: what its tasks have under way in the kernel. One driver a worker, made by the first operation there; only
//! the worker's own thread touches it, so it needs no lock. Others leave word in `cancels` and wake the worker.

use super::Backend;
use super::epoll::Epoll;
use super::op::{Name, Op, Request};
use super::uring::Uring;
use crate::alloc::Quiet;
use crate::worker::Worker;
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// See the module.
pub(crate) struct Io {
    driver: UnsafeCell<Option<Driver>>,
    under_way: Cell<usize>,
    /// Operations whose tasks have moved to other workers and want them ended.
    cancels: Mutex<Vec<Name>>,
    cancels_left: AtomicUsize,
}

// The ring is large and lives as long as its worker: in the worker it would only be in the way.
enum Driver {
    Uring(Box<Uring>),
    Epoll(Epoll),
}

impl Driver {
    fn new(backend: Backend) -> io::Result<Driver> {
        let ring = || Uring::new().map(|ring| Driver::Uring(Box::new(ring)));
        match backend {
            Backend::Uring => ring(),
            Backend::Epoll => Epoll::new().map(Driver::Epoll),
            Backend::Auto => ring().or_else(|_| Epoll::new().map(Driver::Epoll)),
        }
    }

    fn bell(&self) -> i32 {
        match self {
            Driver::Uring(ring) => ring.bell(),
            Driver::Epoll(epoll) => epoll.bell(),
        }
    }

    /// Takes what the kernel has answered; waits for the first answer so long, if that is asked for.
    fn turn(&mut self, here: &Worker, wait: Option<Option<Duration>>) {
        match self {
            Driver::Uring(ring) => ring.turn(here, wait),
            Driver::Epoll(epoll) => epoll.turn(here, wait),
        }
    }

    fn cancel(&mut self, op: Name, here: &Worker) {
        match self {
            Driver::Uring(ring) => ring.cancel(op, here),
            Driver::Epoll(epoll) => epoll.cancel(op, here),
        }
    }
}

impl Io {
    pub(crate) fn new() -> Io {
        Io {
            driver: UnsafeCell::new(None),
            under_way: Cell::new(0),
            cancels: Mutex::new(Vec::new()),
            cancels_left: AtomicUsize::new(0),
        }
    }

    /// # Safety
    /// Only on the worker's own thread, and not kept across a call that asks again.
    #[allow(clippy::mut_from_ref, reason = "the thread's own")]
    unsafe fn driver(&self) -> Option<&mut Driver> {
        // SAFETY: the caller's.
        unsafe { (*self.driver.get()).as_mut() }
    }

    /// Was there ever I/O here? By the worker itself.
    pub(crate) fn is_open(&self) -> bool {
        // SAFETY: on the worker's own thread.
        unsafe { self.driver() }.is_some()
    }

    /// Are there operations under way? By the worker itself.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.get() > 0
    }

    /// Does this worker's driver carry out operations on files itself? By the worker itself.
    pub(crate) fn takes_files(&self, here: &Worker) -> io::Result<bool> {
        self.open(here).map(|driver| matches!(driver, Driver::Uring(_)))
    }

    /// Is it cheaper to hand an operation over, with those of other tasks, than to try it? By the worker itself.
    pub(crate) fn batches(&self, here: &Worker) -> bool {
        // SAFETY: on the worker's own thread.
        matches!(unsafe { self.driver() }, Some(Driver::Uring(_))) && here.beacon.load() > 0
    }

    #[allow(clippy::mut_from_ref, reason = "the thread's own")]
    fn open(&self, here: &Worker) -> io::Result<&mut Driver> {
        // SAFETY: on the worker's own thread; nobody else has a reference.
        let slot = unsafe { &mut *self.driver.get() };
        if slot.is_none() {
            let _quiet = Quiet::new();
            let driver = Driver::new(here.shared().config.backend)?;
            here.rest.hang_bell(driver.bell());
            *slot = Some(driver);
        }
        Ok(slot.as_mut().expect("it was just made"))
    }

    /// Hands an operation over. On the worker's own thread.
    ///
    /// # Safety
    /// The operation, and what the request refers to, stay until there is an answer.
    pub(super) unsafe fn start(&self, here: &Worker, request: &Request, op: &Op) -> io::Result<()> {
        let driver = self.open(here)?;
        // SAFETY: the caller's.
        unsafe {
            match driver {
                Driver::Uring(ring) => ring.start(request, op, here)?,
                Driver::Epoll(epoll) => epoll.start(op)?,
            }
        }
        self.under_way.set(self.under_way.get() + 1);
        Ok(())
    }

    /// An operation has its answer. By the worker itself.
    #[inline]
    pub(super) fn ended(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }

    /// Asks for the end of an operation, which this worker (of index `home`) carries out; the answer comes as for any other.
    /// `here`: the worker that the caller runs on.
    pub(super) fn cancel(&self, here: &Worker, home: u16, op: &Op) {
        if here.index == home {
            // SAFETY: on the worker's own thread.
            if let Some(driver) = unsafe { self.driver() } {
                driver.cancel(op.name(), here);
            }
            return;
        }
        let _quiet = Quiet::new();
        let mut cancels = self.cancels.lock().unwrap_or_else(PoisonError::into_inner);
        cancels.push(op.name());
        self.cancels_left.store(cancels.len(), Ordering::Release);
        drop(cancels);
        here.shared().workers[usize::from(home)].unpark();
    }

    /// Takes what the kernel has answered, and wakes whom it concerns; true: there was something. On the worker's own
    /// thread.
    #[inline]
    pub(crate) fn turn(&self, here: &Worker) -> bool {
        self.under_way.get() > 0 && self.turn_by(here, None)
    }

    fn turn_by(&self, here: &Worker, wait: Option<Option<Duration>>) -> bool {
        if self.cancels_left.load(Ordering::Acquire) > 0 {
            self.take_cancels(here);
        }
        // SAFETY: on the worker's own thread.
        let Some(driver) = (unsafe { self.driver() }) else { return false };
        let before = self.under_way.get();
        driver.turn(here, wait);
        self.under_way.get() < before
    }

    /// Sleeps until there is an answer, or the bell rings, or so long. False: it has nothing to sleep in.
    pub(crate) fn wait(&self, here: &Worker, timeout: Option<Duration>) -> bool {
        if !self.is_open() {
            return false;
        }
        self.turn_by(here, Some(timeout));
        true
    }

    #[cold]
    fn take_cancels(&self, here: &Worker) {
        let _quiet = Quiet::new();
        let wanted = {
            let mut cancels = self.cancels.lock().unwrap_or_else(PoisonError::into_inner);
            self.cancels_left.store(0, Ordering::Release);
            std::mem::take(&mut *cancels)
        };
        // SAFETY: on the worker's own thread.
        let Some(driver) = (unsafe { self.driver() }) else { return };
        for op in wanted {
            driver.cancel(op, here);
        }
    }
}
