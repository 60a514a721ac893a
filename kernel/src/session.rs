//! Sessions: whom processes belong to, and what they may use together (K-29).
//!
//! A session is created inside that of its creator, and its quotas are part of the outer one's: what its processes use counts there, too. A process
//! stays in its session when its parent is gone, and a holder of the session can list and end it.

use crate::context::{MAX_CONTEXTS, leaving};
use crate::dispatch::percpu;
use crate::mm::frames::{self, FRAME_BYTES};
use crate::mm::heap;
pub use crate::mm::payer::Denied;
use crate::mm::payer::Payer;
use crate::name::{Name, fresh_id};
use crate::process::MAX_PROCESSES;
use crate::thread::MAX_THREADS;
use ::sched::{MAX_CONTEXTS_PER_CPU, Spec};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kcore::quota::{self, Account, Growth, KINDS, Kind, Member};

/// How many sessions may be around the innermost one.
const MAX_DEPTH: u32 = 8;
/// Endpoints that the machine may have.
const MAX_ENDPOINTS: u64 = 1 << 16;
/// The bandwidth of one CPU, in parts per million.
const MILLION: u64 = 1_000_000;

/// An owner of processes, with quotas.
pub struct Session {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: Name,
    /// Whether it was not logged out.
    pub live: AtomicBool,
    /// Moves on when capabilities to it are revoked.
    pub epoch: AtomicU64,
    /// Whether it may not use the memory that is kept back for operators.
    pub is_guest: bool,
    /// The session that it was created in.
    outer: Option<Arc<Session>>,
    /// The charge to that session for the record of this one.
    _charge: Option<Charge>,
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

impl Payer for Session {
    fn take_memory(&self, bytes: u64) -> Result<(), Denied> {
        self.take(Kind::Memory, bytes)
    }
    fn release_memory(&self, bytes: u64) {
        self.release(Kind::Memory, bytes);
    }
}

impl Session {
    /// The first session, whose quotas are the whole machine.
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

    /// A session inside `outer`, with at most `asked` of each kind (0: as much as there is). Its record is charged to `outer` as long as anybody
    /// holds it. Sessions that a guest creates are guests.
    pub fn inside(
        outer: &Arc<Session>,
        name: Name,
        is_guest: bool,
        asked: [u64; KINDS],
    ) -> Result<Session, NoSession> {
        if outer.depth >= MAX_DEPTH {
            return Err(NoSession::TooDeep);
        }
        let bytes = heap::arc_bytes::<Session>();
        let charge = Charge::take(outer, Kind::Memory, bytes).or_else(|_| {
            // Stakes of contexts that have left may be the last that hold some session: sweeping frees them.
            leaving::sweep_all();
            Charge::take(outer, Kind::Memory, bytes)
        });
        let _charge = Some(charge.map_err(NoSession::Quota)?);
        let account = outer.account.inner(asked);
        let is_guest = is_guest || outer.is_guest;
        Ok(Session { _charge, ..Session::with(name, Some(outer.clone()), is_guest, account) })
    }

    fn with(name: Name, outer: Option<Arc<Session>>, is_guest: bool, account: Account) -> Session {
        let depth = outer.as_ref().map_or(0, |outer| outer.depth + 1);
        let (live, epoch) = (AtomicBool::new(true), AtomicU64::new(1));
        Session { id: fresh_id(), name, live, epoch, is_guest, outer, _charge: None, depth, account }
    }

    /// Ends the session. False if it had ended already.
    pub fn logout(&self) -> bool {
        self.live.swap(false, Ordering::AcqRel)
    }

    /// Whether `other` is this session, or inside it.
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

    /// Charges this session and those around it.
    pub fn take(&self, kind: Kind, amount: u64) -> Result<(), Denied> {
        quota::take(self, kind, amount).map_err(|by| by.denies(kind))
    }

    fn denies(&self, kind: Kind) -> Denied {
        Denied { kind, session: self.name, limit: self.account.limit(kind) }
    }

    /// Gives back what was taken.
    pub fn release(&self, kind: Kind, amount: u64) {
        quota::release(self, kind, amount);
    }

    /// What it uses and what it may use, by name.
    pub fn quotas(&self) -> [(&'static str, u64, u64); KINDS] {
        Kind::ALL.map(|kind| (kind.name(), self.account.used(kind), self.account.limit(kind)))
    }
}

/// Why no session was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSession {
    /// It would be inside too many others.
    TooDeep,
    /// The session around it does not have enough memory left.
    Quota(Denied),
}

/// An amount that is charged to a session, until this is dropped.
pub struct Charge {
    session: Arc<Session>,
    kind: Kind,
    amount: u64,
}

impl Charge {
    /// Charges `session` and those around it.
    pub fn take(session: &Arc<Session>, kind: Kind, amount: u64) -> Result<Charge, Denied> {
        session.take(kind, amount)?;
        Ok(Charge { session: session.clone(), kind, amount })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.session.release(self.kind, self.amount);
    }
}

/// A context's place in the quotas of a session, until this is dropped. The machine's own session is not charged: there the admission by the CPUs
/// is the limit.
pub struct Stake {
    session: Option<Arc<Session>>,
    ppm: u64,
}

fn ppm(budget_ns: u64, period_ns: u64) -> u64 {
    let wide = u128::from(budget_ns) * u128::from(MILLION);
    u64::try_from(wide.div_ceil(u128::from(period_ns.max(1)))).unwrap_or(u64::MAX)
}

impl Stake {
    /// Charges `session` for a context of `spec`.
    pub fn take(session: &Arc<Session>, spec: &Spec) -> Result<Stake, Denied> {
        let ppm = Stake::cost(spec);
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

    /// Begins a change to `spec`: the larger of both amounts is charged until [`Stake::settle`] says whether the change was made.
    pub fn grow(&self, spec: &Spec) -> Result<Option<Growth>, Denied> {
        let wanted = Stake::cost(spec);
        match &self.session {
            Some(session) => {
                let kind = Kind::Bandwidth;
                Growth::begin(&**session, kind, self.ppm, wanted).map(Some).map_err(|by| by.denies(kind))
            }
            None => Ok(None),
        }
    }

    /// Ends that change: it was made, or it was refused.
    pub fn settle(&mut self, growth: Option<Growth>, is_changed: bool) {
        if let (Some(session), Some(growth)) = (&self.session, growth) {
            self.ppm = growth.settle(&**session, is_changed);
        }
    }

    /// The bandwidth that a context of `spec` takes, in parts per million of a CPU.
    pub fn cost(spec: &Spec) -> u64 {
        ppm(spec.budget_ns, spec.period_ns)
    }

    /// The context has left: from now on the stake pays for what its CPU still holds, `budget_ns` in every period, and never for more than before.
    pub fn pay_for(&mut self, budget_ns: u64, period_ns: u64) {
        let less = self.ppm - ppm(budget_ns, period_ns).min(self.ppm);
        if let Some(session) = &self.session {
            session.release(Kind::Bandwidth, less);
        }
        self.ppm -= less;
    }

    /// Whether a session is charged for it.
    pub fn is_charged(&self) -> bool {
        self.session.is_some()
    }

    /// Whether `session` is the one that is charged.
    pub fn is_of(&self, session: &Arc<Session>) -> bool {
        self.session.as_ref().is_some_and(|payer| Arc::ptr_eq(payer, session))
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
