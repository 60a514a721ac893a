//! A worker's I/O: what its tasks have under way in the kernel. There is one driver per worker, made by the first
//! operation there; only the worker's own thread touches it, so it needs no lock. Other threads leave requests in
//! `cancels` and wake the worker.
//!
//! Where tasks may migrate (unless `Config::pinned`) there is one exception, and so a lock: while a worker is stuck in
//! a task that never checks, the spare that the watchdog has called takes the answers of its driver (`stand_in`), and
//! with them the tasks, whose next operations are the spare's own.

use super::Backend;
use super::epoll::Epoll;
use super::op::{Name, Op, Request};
use super::uring::Uring;
use crate::alloc::Quiet;
use crate::worker::Worker;
use std::cell::UnsafeCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// See the module.
pub(crate) struct Io {
    /// Accessed by the holder of `taken`, where tasks may migrate; otherwise only on the worker's own thread.
    driver: UnsafeCell<Option<Driver>>,
    taken: AtomicBool,
    kind: AtomicU8,
    /// A copy of the driver's count, for threads that do not hold the driver.
    under_way: AtomicUsize,
    /// The stuck worker whose answers this one takes too.
    covers: AtomicU16,
    /// Operations whose tasks have migrated to other workers and want them cancelled.
    cancels: Mutex<Vec<Name>>,
    cancels_left: AtomicUsize,
}

/// Values of `kind`: there was no I/O yet, or which driver there is.
const CLOSED: u8 = 0;
const URING: u8 = 1;
const EPOLL: u8 = 2;

/// In `covers`: stands in for no worker.
const NOBODY: u16 = u16::MAX;

// The ring is boxed because it is large and would only bloat the worker.
enum Driver {
    Uring(Box<Uring>),
    Epoll(Epoll),
}

impl Driver {
    /// `alone`: only the calling thread will use the driver.
    fn new(backend: Backend, alone: bool) -> io::Result<Driver> {
        let ring = || Uring::new(alone).map(|ring| Driver::Uring(Box::new(ring)));
        match backend {
            Backend::Uring => ring(),
            Backend::Epoll => Epoll::new().map(Driver::Epoll),
            Backend::Auto => ring().or_else(|_| Epoll::new().map(Driver::Epoll)),
        }
    }

    fn under_way(&self) -> usize {
        match self {
            Driver::Uring(ring) => ring.under_way,
            Driver::Epoll(epoll) => epoll.under_way,
        }
    }

    fn bell(&self) -> i32 {
        match self {
            Driver::Uring(ring) => ring.bell(),
            Driver::Epoll(epoll) => epoll.bell(),
        }
    }

    /// Takes what the kernel has answered; with `wait`, waits for the first answer, for at most the inner duration.
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

/// Exclusive access to the driver of one `Io`, for a moment.
struct Held<'a> {
    io: &'a Io,
    driver: &'a mut Option<Driver>,
    locked: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let under_way = self.driver.as_ref().map_or(0, Driver::under_way);
        self.io.under_way.store(under_way, Ordering::Relaxed);
        if self.locked {
            self.io.taken.store(false, Ordering::Release);
        }
    }
}

impl Io {
    pub(crate) fn new() -> Io {
        Io {
            driver: UnsafeCell::new(None),
            taken: AtomicBool::new(false),
            kind: AtomicU8::new(CLOSED),
            under_way: AtomicUsize::new(0),
            covers: AtomicU16::new(NOBODY),
            cancels: Mutex::new(Vec::new()),
            cancels_left: AtomicUsize::new(0),
        }
    }

    /// The worker's own driver. Called by the worker itself, which must not hold it already.
    #[inline]
    fn hold(&self, here: &Worker) -> Held<'_> {
        let locked = here.shared().config.migrates();
        // A spare that stands in only takes answers, so it releases the driver soon.
        while locked && self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: on the worker's own thread, or under the lock; the caller has no other reference.
        Held { io: self, driver: unsafe { &mut *self.driver.get() }, locked }
    }

    /// Whether there was ever I/O here. Called by the worker itself.
    pub(crate) fn is_open(&self) -> bool {
        self.kind.load(Ordering::Relaxed) != CLOSED
    }

    /// Whether operations are under way. Exact only for the worker itself.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Whether this worker's driver carries out operations on files itself. Called by the worker itself.
    pub(crate) fn takes_files(&self, here: &Worker) -> io::Result<bool> {
        if !self.is_open() {
            self.hold(here).open(here)?;
        }
        Ok(self.kind.load(Ordering::Relaxed) == URING)
    }

    /// Whether it is cheaper to submit an operation together with those of other tasks than to try it. Called by the
    /// worker itself.
    pub(crate) fn batches(&self, here: &Worker) -> bool {
        self.kind.load(Ordering::Relaxed) == URING && here.beacon.load() > 0
    }

    /// Submits an operation. On the worker's own thread.
    ///
    /// # Safety
    /// The operation, and what the request refers to, stay until there is an answer.
    pub(super) unsafe fn start(&self, here: &Worker, request: &Request, op: &Op) -> io::Result<()> {
        let mut held = self.hold(here);
        // SAFETY: the caller's.
        unsafe {
            match held.open(here)? {
                Driver::Uring(ring) => ring.start(request, op, here),
                Driver::Epoll(epoll) => epoll.start(op),
            }
        }
    }

    /// Asks for the end of an operation that this worker (of index `home`) carries out; the answer comes as for any
    /// other. `here` is the worker that the caller runs on.
    pub(super) fn cancel(&self, here: &Worker, home: u16, op: &Op) {
        if here.index == home {
            if let Some(driver) = self.hold(here).driver {
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

    /// Takes what the kernel has answered, and wakes the tasks concerned; true if there was something. On the worker's
    /// own thread.
    #[inline]
    pub(crate) fn turn(&self, here: &Worker) -> bool {
        let own = self.is_busy() && self.hold(here).turn(here, None);
        own | (self.covers() && self.stand_in(here))
    }

    /// Sleeps until there is an answer, the bell rings, or the timeout is over. False: there is no driver to sleep in.
    pub(crate) fn wait(&self, here: &Worker, timeout: Option<Duration>) -> bool {
        if !self.is_open() {
            return false;
        }
        self.hold(here).turn(here, Some(timeout));
        true
    }

    /// From now on the worker of this `Io`, a spare, takes the answers of the worker `stuck` too; `None`: no longer.
    pub(crate) fn cover(&self, stuck: Option<u16>) {
        self.covers.store(stuck.unwrap_or(NOBODY), Ordering::Release);
    }

    /// Whether it stands in for another worker.
    #[inline]
    pub(crate) fn covers(&self) -> bool {
        self.covers.load(Ordering::Relaxed) != NOBODY
    }

    /// Whether it stands in for another worker that has operations under way. A stuck worker starts none, and the
    /// watchdog sees when it goes on. So if it has none under way there is nothing to poll for, and a thread that wakes
    /// for nothing would hold the CPU on which the system might have put a worker that was woken for something.
    pub(crate) fn covers_io(&self, here: &Worker) -> bool {
        let covered = usize::from(self.covers.load(Ordering::Acquire));
        here.shared().workers.get(covered).is_some_and(|worker| worker.io.is_busy())
    }

    /// Takes the answers of the stuck worker, if there is one and it has not gone on. Called by the spare.
    #[cold]
    pub(crate) fn stand_in(&self, here: &Worker) -> bool {
        let covered = usize::from(self.covers.load(Ordering::Acquire));
        let Some(stuck) = here.shared().workers.get(covered).map(|worker| &worker.io) else { return false };
        debug_assert!(here.shared().config.migrates(), "else its tasks are not ours");
        if stuck.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        // SAFETY: under the lock.
        let mut held = Held { io: stuck, driver: unsafe { &mut *stuck.driver.get() }, locked: true };
        held.turn(here, None)
    }

    #[cold]
    fn take_cancels(&self) -> Vec<Name> {
        let mut cancels = self.cancels.lock().unwrap_or_else(PoisonError::into_inner);
        self.cancels_left.store(0, Ordering::Release);
        std::mem::take(&mut *cancels)
    }
}

impl Held<'_> {
    /// Makes the driver, at the first use. Called by the worker itself.
    fn open(&mut self, here: &Worker) -> io::Result<&mut Driver> {
        if self.driver.is_none() {
            let _quiet = Quiet::new();
            let config = &here.shared().config;
            let driver = Driver::new(config.backend, !config.migrates())?;
            here.rest.hang_bell(driver.bell());
            let kind = if matches!(driver, Driver::Uring(_)) { URING } else { EPOLL };
            *self.driver = Some(driver);
            self.io.kind.store(kind, Ordering::Relaxed);
        }
        Ok(self.driver.as_mut().expect("it was just made"))
    }

    /// Takes the answers; `here` wakes the tasks concerned. True if there was something.
    fn turn(&mut self, here: &Worker, wait: Option<Option<Duration>>) -> bool {
        let Some(driver) = self.driver else { return false };
        if self.io.cancels_left.load(Ordering::Acquire) > 0 {
            for op in self.io.take_cancels() {
                driver.cancel(op, here);
            }
        }
        let before = driver.under_way();
        driver.turn(here, wait);
        driver.under_way() < before
    }
}
