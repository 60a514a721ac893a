//! What observers of a context are told (S-08): one fixed cell per kind of event, with counters that saturate, and one observer that may sleep.
//!
//! The dispatcher keeps an event in its own CPU's memory, and writes it into the cells after the switch, when it holds no lock: while a CPU switches
//! threads it takes no lock that other CPUs use (`shared_locks_in_dispatch`). Nothing here allocates.

use super::{Ctx, Record, complete};
use crate::dispatch::News;
use crate::lock::Guard;
use crate::ring::{Completion, Waiter, Withdraw};
use crate::thread;
use ::sched::Noted;
use kcore::generation::ThreadRef;
use schema::messages_capnp::NotificationKind;

/// Events of one kind.
#[derive(Clone, Copy)]
pub struct Cell {
    /// The kind of event.
    pub kind: NotificationKind,
    /// How many there ever were.
    pub sequence: u64,
    /// How many there were since the last drain.
    pub coalesced: u64,
    /// The thread that ran on the context at the last event.
    pub holder: ThreadRef,
    /// The budget that could be used at that time.
    pub remaining_ns: u64,
    /// The next refill, or the deadline that passed.
    pub next_ns: u64,
    /// Whether the holder had the context on loan.
    pub donated: bool,
}

impl Cell {
    const fn empty(kind: NotificationKind) -> Cell {
        Cell {
            kind,
            sequence: 0,
            coalesced: 0,
            holder: ThreadRef::NONE,
            remaining_ns: 0,
            next_ns: 0,
            donated: false,
        }
    }

    fn count(&mut self) {
        self.sequence = self.sequence.saturating_add(1);
        self.coalesced = self.coalesced.saturating_add(1);
    }
}

/// The cells of one context.
pub struct Cells {
    /// Number and generation of the context.
    pub identity: (u64, u64),
    all: [Cell; 3],
    observer: Option<Waiter>,
}

impl Cells {
    /// Nothing has happened.
    pub const EMPTY: Cells = Cells {
        identity: (0, 0),
        all: [
            Cell::empty(NotificationKind::BudgetDepleted),
            Cell::empty(NotificationKind::DeadlineOrTimeout),
            Cell::empty(NotificationKind::ExplicitRevoke),
        ],
        observer: None,
    };

    fn has_news(&self) -> bool {
        self.all.iter().any(|cell| cell.coalesced > 0)
    }
}

/// Counts the event in its cells, and tells the observer. The caller holds no lock.
pub fn post(news: &News) {
    let Some(ctx) = Ctx::at_head(news.context) else { return };
    let mut cells = ctx.cells.lock();
    // The context may have ended since, and the record may belong to another one.
    if cells.identity.0 != news.id {
        return;
    }
    for (kind, noted) in [Noted::DEPLETED, Noted::LATE].into_iter().enumerate() {
        if news.noted.has(noted) {
            let cell = &mut cells.all[kind];
            cell.count();
            cell.holder = news.holder;
            cell.remaining_ns = news.remaining_ns;
            cell.next_ns = news.next_ns;
            cell.donated = news.donated;
        }
    }
    drop(cells);
    tell(ctx);
}

/// Counts a timeout fault, which is about to be reported.
pub fn note_timeout(ctx: &'static Ctx, record: &Record, holder: &ThreadRef) {
    let mut cells = ctx.cells.lock();
    let cell = &mut cells.all[1];
    cell.count();
    cell.holder = *holder;
    cell.remaining_ns = 0;
    cell.donated = record.book.owner() != holder;
}

/// Counts the end of the context's life.
pub fn revoked(ctx: &'static Ctx, record: &Record) {
    let mut cells = ctx.cells.lock();
    cells.identity = (record.id, record.book.generation());
    cells.all[2].count();
}

/// Completes the wait of the observer, if one sleeps and there is something to tell it. The caller holds no lock.
pub fn tell(ctx: &'static Ctx) {
    let observer = {
        let mut cells = ctx.cells.lock();
        if cells.has_news() { cells.observer.take() } else { None }
    };
    if let Some(observer) = observer {
        complete::operation(&observer, &Completion::OK, false);
    }
}

/// All cells, with what happened since the last drain; the counts since then start again at 0.
pub fn drain(ctx: &'static Ctx) -> ((u64, u64), [Cell; 3]) {
    let mut cells = ctx.cells.lock();
    let told = (cells.identity, cells.all);
    cells.all.iter_mut().for_each(|cell| cell.coalesced = 0);
    told
}

/// The answer to a thread that wants to sleep until something happens.
pub enum Watch {
    /// Something has happened already.
    News,
    /// The observer sleeps.
    Sleeps,
    /// Another observer sleeps already.
    Taken,
    /// The thread has no operation to spare.
    NoRoom,
}

/// Registers the observer. `register` accepts its operation, which takes its ring's lock; the cells' lock is a leaf, and therefore released before.
pub fn watch(ctx: &'static Ctx, register: impl FnOnce() -> Option<Waiter>) -> Watch {
    let look = |cells: &Guard<'_, Cells>| {
        if cells.has_news() {
            Some(Watch::News)
        } else {
            cells
                .observer
                .is_some_and(|w| thread::get(w.thread.tid).is_some_and(|t| t.is(&w.thread)))
                .then_some(Watch::Taken)
        }
    };
    if let Some(answer) = look(&ctx.cells.lock()) {
        return answer;
    }
    let Some(waiter) = register() else { return Watch::NoRoom };
    let mut cells = ctx.cells.lock();
    let Some(answer) = look(&cells) else {
        cells.observer = Some(waiter);
        return Watch::Sleeps;
    };
    drop(cells);
    let completion = match answer {
        Watch::News => Completion::OK,
        _ => Completion::error(abi::TransportError::NoSpace),
    };
    complete::operation(&waiter, &completion, false);
    Watch::Sleeps
}

/// The record is free: nothing of its last life may be left. Returns the observer that still sleeps there.
pub fn forget(ctx: &'static Ctx) -> Option<Waiter> {
    core::mem::replace(&mut *ctx.cells.lock(), Cells::EMPTY).observer
}

impl Withdraw for Ctx {
    /// Removes the observer.
    fn withdraw(&self, waiter: &Waiter) -> bool {
        let mut cells = self.cells.lock();
        cells.observer.take_if(|w| w.thread == waiter.thread && w.op == waiter.op).is_some()
    }
}
