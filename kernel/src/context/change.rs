//! Changing a context's specification: its CPU promises what it judged, the session pays for it, and the thread that had the time goes on.

use super::{Handle, Record, give, leaving, seize};
use crate::context::Ctx;
use crate::dispatch;
use crate::dispatch::percpu;
use crate::endpoint::FaultRoom;
use crate::session::{Denied, Stake};
use ::sched::{AdmissionError, Reason, Spec, Verdict, Witness};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;
use kcore::quota::Growth;

/// Whether the session could pay for `spec` in place of what the context has now.
pub fn could_pay(ctx: &'static Ctx, spec: &Spec) -> Result<(), Denied> {
    let mut record = ctx.record.lock();
    let Some(stake) = &mut record.stake else { return Ok(()) };
    let growth = stake.grow(spec)?;
    stake.settle(growth, false);
    Ok(())
}

/// Why a context was not changed.
pub enum Unchanged {
    /// It is lent, or its capability is stale.
    Lent,
    /// The quotas of its session do not allow it.
    Quota(Denied),
    /// Its CPU cannot promise it.
    Refused(AdmissionError),
}

/// Changes a context to `spec`, which `verdict` has judged. The endpoint that was told of timeouts before is left in `timeout`, to be dropped
/// without a lock.
pub fn change(
    handle: &Handle,
    held: u64,
    spec: Spec,
    verdict: &Verdict,
    timeout: &mut Option<Arc<FaultRoom>>,
) -> Result<(), Unchanged> {
    let still = |record: &Record| record.book.may_change(held).is_ok();
    let Some((mut record, time)) = seize(handle.ctx, still) else { return Err(Unchanged::Lent) };
    let home = record.cpu;
    let mut left = None;
    let (time, result) = match Payment::take(&mut record, &spec) {
        Err(denied) => (time, Err(Unchanged::Quota(denied))),
        Ok(payment) => {
            let template = time.template();
            match dispatch::readmit(home, time, spec, verdict, payment.may_leave()) {
                Ok((time, departed)) => {
                    let old = payment.settle(&mut record);
                    left = old.zip(departed).map(|(stake, number)| (number, template, stake));
                    (time, Ok(()))
                }
                Err((why, time)) => (time, Err(payment.give_back(&mut record, why))),
            }
        }
    };
    if result.is_ok() {
        handle.ctx.band.store(spec.criticality, Ordering::Relaxed);
        core::mem::swap(&mut record.timeout, timeout);
    }
    // The `Context` goes back to the thread that had it.
    record.book.put(time);
    let holder = *record.book.holder();
    let is_to_wake = holder != ThreadRef::NONE && give(&mut record, holder);
    drop(record);
    if let (Some(home), Some((number, template, stake))) = (percpu::get(home), left) {
        leaving::keep(home, number, template, stake);
    }
    if is_to_wake {
        dispatch::wake(&holder, false);
    }
    result
}

/// How the new specification is paid for.
enum Payment {
    /// With a stake of its own: the old one pays for the used time until that is back.
    Beside(Stake),
    /// With the old stake, grown or shrunk. Only possible if no used time is left to pay for; otherwise the caller gets this refusal of the quota.
    InPlace(Option<Growth>, Denied),
}

impl Payment {
    fn take(record: &mut Record, spec: &Spec) -> Result<Payment, Denied> {
        let Record { session: Some(session), stake: Some(stake), .. } = record else {
            unreachable!("a context with time has a session and a stake in it")
        };
        match Stake::take(session, spec) {
            Ok(new) => Ok(Payment::Beside(new)),
            Err(denied) => Ok(Payment::InPlace(stake.grow(spec)?, denied)),
        }
    }

    fn may_leave(&self) -> bool {
        matches!(self, Payment::Beside(_))
    }

    /// The context was changed: returns the stake that it does not need any more.
    fn settle(self, record: &mut Record) -> Option<Stake> {
        match self {
            Payment::Beside(new) => record.stake.replace(new),
            Payment::InPlace(growth, _) => {
                if let Some(stake) = &mut record.stake {
                    stake.settle(growth, true);
                }
                None
            }
        }
    }

    /// The context was not changed: undoes the payment, and says why.
    fn give_back(self, record: &mut Record, why: AdmissionError) -> Unchanged {
        let Payment::InPlace(growth, denied) = self else { return Unchanged::Refused(why) };
        if let Some(stake) = &mut record.stake {
            stake.settle(growth, false);
        }
        match why {
            AdmissionError::Refused(Witness { reason: Reason::BusyLeaving, .. }) => Unchanged::Quota(denied),
            why => Unchanged::Refused(why),
        }
    }
}
