//! Sessions: whom processes work for, and what they may use together (K-29).
//!
//! A session is made inside the one of whoever makes it, and its quotas are part of that one's: what its processes use counts there too. A process
//! stays in its session when its parent is gone, and whoever holds the session lists and ends it.

use crate::arch::percpu;
use crate::context::MAX_CONTEXTS;
use crate::mm::frames::{self, FRAME_BYTES};
use crate::object::fresh_id;
use crate::process::{MAX_PROCESSES, Name};
use crate::thread::MAX_THREADS;
use ::sched::{MAX_CONTEXTS_PER_CPU, Spec};
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kcore::quota::{self, Account, KINDS, Kind, Member};

/// Sessions around the innermost one.
const MAX_DEPTH: u32 = 8;
/// Endpoints that the machine may have.
const MAX_ENDPOINTS: u64 = 1 << 16;
/// Of a CPU.
const MILLION: u64 = 1_000_000;

/// Whom processes work for.
pub struct Session {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: Name,
    /// Not logged out.
    pub live: AtomicBool,
    /// Moves on when capabilities to it are revoked.
    pub epoch: AtomicU64,
    /// It may not use the memory that is kept for operators.
    pub is_guest: bool,
    /// What it was made in.
    outer: Option<Arc<Session>>,
    depth: u32,
    account: Account,
}

impl Member for Session {
    fn account(&self) -> &Account {
        &self.account
    }
    fn outer(&self) -> Option<&Session> {
        self.outer.as_deref()
    }
    fn is_guest(&self) -> bool {
        self.is_guest
    }
}

/// A quota that is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied {
    kind: Kind,
    session: Name,
    limit: u64,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}: its {} {} are used up", self.session.as_str(), self.limit, self.kind.name())
    }
}

impl Session {
    /// The first one: the whole machine.
    pub fn of_machine(name: Name) -> Session {
        let cpus = percpu::count() as u64;
        let contexts = (cpus * MAX_CONTEXTS_PER_CPU as u64).min(MAX_CONTEXTS as u64);
        let limits: [u64; KINDS] = [
            frames::total() * FRAME_BYTES,
            u64::from(MAX_THREADS),
            MAX_PROCESSES as u64,
            MAX_ENDPOINTS,
            contexts,
            cpus * MILLION,
        ];
        Session::with(name, None, false, Account::new(limits))
    }

    /// One in `outer`, with at most `asked` of each kind (0: what there is). `None` if that is inside too many already. What a guest makes
    /// are guests.
    pub fn inside(outer: &Arc<Session>, name: Name, is_guest: bool, asked: [u64; KINDS]) -> Option<Session> {
        (outer.depth < MAX_DEPTH).then(|| {
            Session::with(name, Some(outer.clone()), is_guest || outer.is_guest, outer.account.inner(asked))
        })
    }

    fn with(name: Name, outer: Option<Arc<Session>>, is_guest: bool, account: Account) -> Session {
        let depth = outer.as_ref().map_or(0, |outer| outer.depth + 1);
        let (live, epoch) = (AtomicBool::new(true), AtomicU64::new(1));
        Session { id: fresh_id(), name, live, epoch, is_guest, outer, depth, account }
    }

    /// Ends it. Was it live?
    pub fn logout(&self) -> bool {
        self.live.swap(false, Ordering::AcqRel)
    }

    /// Is `other` this one, or inside it?
    pub fn holds(&self, other: &Session) -> bool {
        let mut at = Some(other);
        while let Some(one) = at {
            if core::ptr::eq(one, self) {
                return true;
            }
            at = one.outer();
        }
        false
    }

    /// Charges it and those around it.
    pub fn take(&self, kind: Kind, amount: u64) -> Result<(), Denied> {
        quota::take(self, kind, amount).map_err(|by| Denied {
            kind,
            session: by.name,
            limit: by.account.limit(kind),
        })
    }

    /// Gives back what was taken.
    pub fn release(&self, kind: Kind, amount: u64) {
        quota::release(self, kind, amount);
    }

    /// What it uses and what it may, by name.
    pub fn quotas(&self) -> [(&'static str, u64, u64); KINDS] {
        Kind::ALL.map(|kind| (kind.name(), self.account.used(kind), self.account.limit(kind)))
    }
}

/// A context's place in the quotas of a session, until this is dropped. The machine's own session has none: there the CPUs themselves say what
/// they can promise.
pub struct Stake {
    session: Option<Arc<Session>>,
    ppm: u64,
}

fn ppm(spec: &Spec) -> u64 {
    let wide = u128::from(spec.budget_ns) * u128::from(MILLION);
    u64::try_from(wide.div_ceil(u128::from(spec.period_ns.max(1)))).unwrap_or(u64::MAX)
}

impl Stake {
    /// For a context of `spec`.
    pub fn take(session: &Arc<Session>, spec: &Spec) -> Result<Stake, Denied> {
        let ppm = ppm(spec);
        if session.outer.is_none() {
            return Ok(Stake { session: None, ppm });
        }
        session.take(Kind::Contexts, 1)?;
        if let Err(denied) = session.take(Kind::Bandwidth, ppm) {
            session.release(Kind::Contexts, 1);
            return Err(denied);
        }
        Ok(Stake { session: Some(session.clone()), ppm })
    }

    /// For `spec` instead, as far as that is more; how much it was before. [`Stake::shrink`] follows.
    pub fn grow(&mut self, spec: &Spec) -> Result<u64, Denied> {
        let (before, wanted) = (self.ppm, ppm(spec));
        if wanted > before {
            if let Some(session) = &self.session {
                session.take(Kind::Bandwidth, wanted - before)?;
            }
            self.ppm = wanted;
        }
        Ok(before)
    }

    /// For as much as it is now, or was.
    pub fn shrink(&mut self, to: u64) {
        if let Some(session) = &self.session {
            session.release(Kind::Bandwidth, self.ppm - to);
        }
        self.ppm = to;
    }

    /// What a context of `spec` costs.
    pub fn cost(spec: &Spec) -> u64 {
        ppm(spec)
    }
}

impl Drop for Stake {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.release(Kind::Bandwidth, self.ppm);
            session.release(Kind::Contexts, 1);
        }
    }
}
