//! What other tasks may know about a child, and do to it: whether it lives, which tasks watch it, which actors are
//! linked to it.
//!
//! Invariants:
//! 1. Only the supervisor begins and ends an incarnation. No other task holds the child's handle; a link that strikes
//!    sends the supervisor an order, at most one for an incarnation.
//! 2. Each entry of the lists is told once, when the incarnation ends, and taken out.

use super::exit::Exit;
use crate::alloc::Quiet;
use crate::chan::Sender;
use crate::cx::make_room_here;
use crate::lock::SpinLock;
use std::sync::{Arc, Weak};

/// The most monitors of one actor, and the most links.
const WATCHERS: usize = 256;

/// An order to a supervisor: end this incarnation of your child, because a linked actor failed.
pub(super) struct Strike {
    pub(super) child: usize,
    pub(super) incarnation: u64,
    pub(super) because: &'static str,
}

/// See the module.
pub(super) struct Life {
    pub(super) name: &'static str,
    inner: SpinLock<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The channel to the supervisor and the child's index there, while the child lives.
    supervisor: Option<(Sender<Strike>, usize)>,
    incarnation: u64,
    struck: bool,
    monitors: Vec<Sender<Exit>>,
    links: Vec<(Weak<Life>, u64)>,
}

/// Why a monitor or a link was refused.
pub(super) enum Refused {
    NotRunning,
    TooMany,
}

impl Life {
    pub(super) fn new(name: &'static str) -> Arc<Life> {
        Arc::new(Life { name, inner: SpinLock::new(Inner::default()) })
    }

    /// Under the lock a task must not be stopped, neither by the end of its stack nor by the allocator.
    fn with<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        make_room_here();
        let _quiet = Quiet::new();
        act(&mut self.inner.lock())
    }

    /// The supervisor starts another incarnation; returns its number.
    pub(super) fn begin(&self, orders: Sender<Strike>, child: usize) -> u64 {
        self.with(|inner| {
            inner.supervisor = Some((orders, child));
            inner.struck = false;
            inner.incarnation += 1;
            inner.incarnation
        })
    }

    /// The incarnation has ended: monitors are told, and linked actors are struck if it was a fault.
    pub(super) fn end(&self, exit: &Exit) {
        let (supervisor, monitors, links) = self.with(|inner| {
            (inner.supervisor.take(), std::mem::take(&mut inner.monitors), std::mem::take(&mut inner.links))
        });
        drop(supervisor);
        for monitor in monitors {
            monitor.post(exit.clone());
        }
        if exit.is_abnormal() {
            for (other, incarnation) in links {
                if let Some(other) = other.upgrade() {
                    other.strike(incarnation, self.name);
                }
            }
        }
    }

    /// Orders the supervisor to end this incarnation (invariant 1).
    fn strike(&self, incarnation: u64, because: &'static str) {
        let orders = self.with(|inner| {
            if inner.incarnation != incarnation || inner.struck {
                return None;
            }
            let (orders, child) = inner.supervisor.as_ref()?;
            inner.struck = true;
            Some((orders.clone(), *child))
        });
        if let Some((orders, child)) = orders {
            orders.post(Strike { child, incarnation, because });
        }
    }

    pub(super) fn watch(&self, monitor: Sender<Exit>) -> Result<(), Refused> {
        self.with(|inner| {
            if inner.supervisor.is_none() {
                return Err(Refused::NotRunning);
            }
            inner.monitors.retain(|monitor| !monitor.is_closed());
            if inner.monitors.len() >= WATCHERS {
                return Err(Refused::TooMany);
            }
            inner.monitors.push(monitor);
            Ok(())
        })
    }

    /// Links the current incarnations of the two. The other one's list comes first: if it ends in between, it finds us
    /// there.
    pub(super) fn link(self: &Arc<Life>, other: &Arc<Life>) -> Result<(), Refused> {
        let mine = self.with(|inner| inner.incarnation);
        let theirs = other.add_link((Arc::downgrade(self), mine))?;
        self.add_link((Arc::downgrade(other), theirs)).map(drop)
    }

    fn add_link(&self, link: (Weak<Life>, u64)) -> Result<u64, Refused> {
        self.with(|inner| {
            if inner.supervisor.is_none() {
                return Err(Refused::NotRunning);
            }
            let same = |known: &(Weak<Life>, u64)| Weak::ptr_eq(&known.0, &link.0);
            // A later incarnation replaces an earlier one, so that a long life does not fill the list.
            inner.links.retain(|known| !same(known) && known.0.strong_count() > 0);
            if inner.links.len() >= WATCHERS {
                return Err(Refused::TooMany);
            }
            inner.links.push(link);
            Ok(inner.incarnation)
        })
    }

    pub(super) fn is_running(&self) -> bool {
        self.with(|inner| inner.supervisor.is_some())
    }
}
