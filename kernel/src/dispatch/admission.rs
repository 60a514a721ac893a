//! Admission outside the CPU's lock (S-14): what a CPU has promised is copied under its lock, tested without, and what was judged is promised if
//! nothing else was meanwhile.

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

/// A place for what a CPU has promised, where this one judges a newcomer. Who finds none there, because others judge and pause, makes one.
pub struct Desk(Cell<Option<Survey>>);

impl Desk {
    /// With a survey of nothing on it; at boot (K-30).
    pub fn new() -> Desk {
        Desk(Cell::new(Some(Survey::default())))
    }
}

/// The queue of CPU `id`, which knows what this kernel takes for itself.
pub(super) fn queue(id: CpuId) -> Queue {
    let mut queue = Queue::new(id, super::policy(), time::now_ns());
    let is_overload_taken = IS_OVERLOAD_TAKEN.load(Ordering::Relaxed);
    queue.set_overheads(Overheads { is_overload_taken, ..Overheads::KERNEL });
    queue
}

static IS_OVERLOAD_TAKEN: AtomicBool = AtomicBool::new(false);

/// The boot option `overload`: what is promised may be late. Before any CPU has a queue.
pub fn take_overload() {
    IS_OVERLOAD_TAKEN.store(true, Ordering::Relaxed);
}

/// How often somebody else may be promised something while we compute.
pub const TRIES: usize = 8;

/// Between two pieces of a test that no lock is held for: interrupts are served, and others run (K-26). They may be promised something
/// meanwhile; then the test begins anew.
pub fn pause() -> bool {
    preempt::point();
    true
}

/// Surveys `home` and judges. Usually nothing is allocated: every CPU has a place for one survey.
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
    // It may be another CPU by now, with a survey of its own.
    percpu::this().desk.0.set(Some(survey));
    verdict
}

/// Has CPU `home` promise a proposal.
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
                // Eight short tests are a long one (K-26).
                pause();
            }
            Err(refused) => return Err(refused),
        }
    }
    Err(Refused { why: AdmissionError::Stale, proposal })
}

/// May CPU number `cpu` promise `spec` to the context `id` in place of what it has promised to it? No lock is held.
pub fn judge_change(cpu: usize, id: u64, spec: &Spec) -> Result<Verdict, AdmissionError> {
    let Some(home) = percpu::get(cpu) else { return Err(AdmissionError::Stale) };
    judged(home, Successor::OfNobody, |survey| survey.judge_change(id, spec, &mut pause))
}

/// Changes what was promised, on its CPU, as it was judged; or the box comes back as it was. Says under which number the CPU holds what was used of
/// the old promise. Where that `may_leave` nothing, a context that would is refused.
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

/// Pieces of tests that one call may take to find a host for what it lends. Locks are held all the while, so these are few; what is not
/// judged by then is not lent.
pub const HOST_PIECES: u32 = 2;

/// CPU number `cpu` takes a guest in, if that is found in so many `pieces`; or the box comes back as it was.
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
