//! Admission outside the CPU's lock (S-14): the promises of a CPU are copied under its lock and tested without it; then the new promise is made under
//! the lock, if the CPU has made no other one meanwhile.

use super::Queue;
use crate::dispatch::percpu::{self, PerCpu};
use crate::planted::{self, Bug};
use crate::preempt;
use crate::time;
use crate::tracing::{self, Promise};
use ::sched::{
    AdmissionError, Context, CpuId, Overheads, Proposal, Reason, Refused, Spec, Successor, Survey, Verdict,
    Witness,
};
use alloc::boxed::Box;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A CPU's preallocated copy of promises ([`Survey`]), in which it tests a newcomer. It is absent while another test that began on this CPU is
/// paused; then a new one is allocated.
pub struct Desk(Cell<Option<Survey>>);

impl Desk {
    /// With an empty survey. Called at boot, so it may allocate (K-30).
    pub fn new() -> Desk {
        Desk(Cell::new(Some(Survey::default())))
    }
}

/// A new run queue for CPU `id`, which knows the overheads of this kernel.
pub(super) fn queue(id: CpuId) -> Queue {
    let mut queue = Queue::new(id, super::policy(), time::now_ns());
    let is_overload_taken = IS_OVERLOAD_TAKEN.load(Ordering::Relaxed);
    queue.set_overheads(Overheads { is_overload_taken, ..Overheads::KERNEL });
    queue
}

static IS_OVERLOAD_TAKEN: AtomicBool = AtomicBool::new(false);

/// The boot option `overload`: CPUs may promise more than they can keep, so that deadlines are missed. Called before any CPU has a run queue.
pub fn take_overload() {
    IS_OVERLOAD_TAKEN.store(true, Ordering::Relaxed);
}

/// How often a test is tried, if the CPU makes another promise while it runs.
pub const TRIES: usize = 8;

/// Called between two pieces of a test that holds no lock: serves interrupts and lets other threads run (K-26). If one of these is promised something
/// by the same CPU, the test begins again.
pub fn pause() -> bool {
    preempt::point();
    true
}

/// Copies the promises of `home` and judges them. Usually nothing is allocated, because every CPU keeps one survey.
fn judged(
    home: &PerCpu,
    successor: Successor,
    judge: impl FnOnce(&mut Survey) -> Result<Verdict, AdmissionError>,
) -> Result<Verdict, AdmissionError> {
    let survey = percpu::this().desk.0.take();
    let Some(mut survey) = survey.or_else(Survey::try_new) else { return Err(AdmissionError::Stale) };
    let mut queue = home.dispatch.queue.lock();
    if planted::is(Bug::ForgetsLeaving) {
        queue.forget_leaving();
    }
    queue.survey(successor, time::now_ns(), &mut survey);
    drop(queue);
    let verdict = judge(&mut survey);
    // This may be another CPU by now; then its own survey is replaced, and freed.
    percpu::this().desk.0.set(Some(survey));
    verdict
}

/// Admits a proposal on CPU `home`: tests it, and makes the promise.
pub fn admit(home: &PerCpu, proposal: Proposal) -> Result<Box<Context>, Refused> {
    let is_planted = planted::is(Bug::SuccessorOfNobody);
    let successor = if is_planted { Successor::OfNobody } else { Successor::OfTemplate(proposal.template()) };
    let spec = *proposal.spec();
    let mut proposal = proposal;
    for _ in 0..TRIES {
        let verdict = match judged(home, successor, |survey| survey.judge_in_pieces(&spec, &mut pause)) {
            Ok(verdict) => verdict,
            Err(why) => return Err(Refused { why, proposal }),
        };
        let mut queue = home.dispatch.queue.lock();
        let now = time::now_ns();
        let admitted = queue.admit_judged(proposal, &verdict, now);
        if let Ok(time) = &admitted {
            tracing::promised(home, time, Promise::Admit, now);
        }
        drop(queue);
        match admitted {
            Ok(time) => return Ok(time),
            Err(refused) if refused.why == AdmissionError::Stale => {
                proposal = refused.proposal;
                // Several short tests in a row are as long as one long test, so there is a preemption point between them (K-26).
                pause();
            }
            Err(refused) => return Err(refused),
        }
    }
    Err(Refused { why: AdmissionError::Stale, proposal })
}

/// Judges whether CPU number `cpu` may promise `spec` to the context `id`, in place of its present promise. No lock is held.
pub fn judge_change(cpu: usize, id: u64, spec: &Spec) -> Result<Verdict, AdmissionError> {
    let Some(home) = percpu::get(cpu) else { return Err(AdmissionError::Stale) };
    judged(home, Successor::OfNobody, |survey| survey.judge_change(id, spec, &mut pause))
}

/// Changes a context's promise on its CPU, as it was judged, or returns the context unchanged. Also returns the number under which the CPU holds what
/// was used of the old promise, if anything. Unless `may_leave` is set, a change that would leave something to be held is refused.
pub fn readmit(
    cpu: usize,
    time: Box<Context>,
    spec: Spec,
    verdict: &Verdict,
    may_leave: bool,
) -> Changed<(Box<Context>, Option<u64>)> {
    let mut departed = None;
    let changed = promise(cpu, time, Promise::Readmit, |queue, time, now| {
        if !may_leave && queue.would_leave(&time, now) {
            let busy = Witness { reason: Reason::BusyLeaving, ..Witness::unfinished(time.home()) };
            return Err((AdmissionError::Refused(busy), time));
        }
        let changed = queue.readmit_judged(time, spec, verdict, now);
        departed = queue.departed();
        changed
    });
    changed.map(|time| (time, departed))
}

/// How many pieces of tests one call may take to find a host for the context that it lends. Locks are held all the while, so they are few; if none
/// was found by then, the context is not lent.
pub const HOST_PIECES: u32 = 2;

/// Has CPU number `cpu` host a context of another home, if the test says so within `pieces` pieces; otherwise the context is returned unchanged.
pub fn host(cpu: usize, time: Box<Context>, pieces: &mut u32) -> Changed {
    let (successor, spec) = (Successor::OfItself(time.identity().id), *time.spec());
    let Some(at) = percpu::get(cpu) else { return Err((AdmissionError::Elsewhere(time.home()), time)) };
    let mut is_left = || {
        *pieces = pieces.saturating_sub(1);
        *pieces > 0
    };
    match judged(at, successor, |survey| survey.judge_in_pieces(&spec, &mut is_left)) {
        Ok(verdict) => {
            promise(cpu, time, Promise::Host, |queue, time, now| queue.host_judged(time, &verdict, now))
        }
        Err(why) => Err((why, time)),
    }
}

type Changed<T = Box<Context>> = Result<T, (AdmissionError, Box<Context>)>;

fn promise(
    cpu: usize,
    time: Box<Context>,
    what: Promise,
    commit: impl FnOnce(&mut Queue, Box<Context>, u64) -> Changed,
) -> Changed {
    let Some(at) = percpu::get(cpu) else { return Err((AdmissionError::Elsewhere(time.home()), time)) };
    let mut queue = at.dispatch.queue.lock();
    let now = time::now_ns();
    let changed = commit(&mut queue, time, now);
    if let Ok(time) = &changed {
        tracing::promised(at, time, what, now);
    }
    changed
}
