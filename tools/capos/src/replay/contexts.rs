//! The part of a replay that is about contexts: the contexts themselves, the threads that hold them, and the CPUs that promised them.

use sched::{AdmissionError, Context, ContextId, CpuMask, Overrun, Proposal, Spec};
use std::collections::BTreeMap;
use trace::{Kind, SPEC_PARTS};

use super::{Fault, Replayer, id};

/// What is known of contexts outside the cores.
#[derive(Default)]
pub(super) struct Contexts {
    /// Contexts that no thread is bound to.
    idle: BTreeMap<u32, Box<Context>>,
    /// Contexts that a thread gets when it is next queued, because the thread does not exist yet or runs on another CPU than the
    /// context's. Also those of threads that have ended.
    promised: BTreeMap<u32, Box<Context>>,
    /// Specifications under construction.
    specs: BTreeMap<u32, [u32; SPEC_PARTS as usize]>,
}

fn name(context: &Context) -> u32 {
    context.identity().id as u32
}

fn refused(context: u32, what: &'static str) -> Fault {
    Fault::Context { what, context }
}

fn why(error: AdmissionError) -> &'static str {
    match error {
        AdmissionError::Invalid(_) => "a specification that no CPU takes",
        AdmissionError::WrongCpu(_) => "promised by a CPU outside its mask",
        AdmissionError::Refused(_) => "more is promised than there is, or somebody would be late",
        AdmissionError::Stale => "it was judged before something else was promised",
        AdmissionError::TooMany => "more contexts than a CPU takes",
        AdmissionError::Elsewhere(_) => "it is at another CPU",
    }
}

fn spec_of(parts: &[u32; SPEC_PARTS as usize]) -> Result<Spec, Fault> {
    let long = |at: usize| u64::from(parts[at]) | u64::from(parts[at + 1]) << 32;
    let mut spec = Spec::new(long(0), long(2));
    spec.relative_deadline_ns = long(4);
    let [overrun, criticality, refills, _] = parts[6].to_le_bytes();
    (spec.criticality, spec.max_refills) = (criticality, refills);
    spec.overrun = match overrun {
        0 => Overrun::Throttle,
        1 => Overrun::Fault,
        2 => Overrun::Demote,
        _ => return Err(Fault::Grammar { what: "an overrun policy that does not exist" }),
    };
    spec.cpu_mask = CpuMask::from_words(std::array::from_fn(|word| long(7 + 2 * word)));
    Ok(spec)
}

impl Contexts {
    fn take(&mut self, context: u32) -> Result<Box<Context>, Fault> {
        let left = self.promised.iter().find(|(_, it)| name(it) == context).map(|(thread, _)| *thread);
        let left = left.and_then(|thread| self.promised.remove(&thread));
        let found = left.or_else(|| self.idle.remove(&context));
        found.ok_or(refused(context, "somebody runs on it, or nobody promised it"))
    }

    fn keep(&mut self, context: Box<Context>) {
        self.idle.insert(name(&context), context);
    }

    /// The specification, and the number of the template that the context comes from.
    fn spec(&mut self, context: u32) -> Result<(Spec, u32), Fault> {
        let parts = self.specs.remove(&context);
        let parts = parts.ok_or(Fault::Grammar { what: "a promise without a specification" })?;
        Ok((spec_of(&parts)?, parts[usize::from(SPEC_PARTS) - 1]))
    }

    /// The context that the thread gets when it is queued.
    pub(super) fn promised_to(&mut self, thread: u32) -> Option<Box<Context>> {
        self.promised.remove(&thread)
    }

    /// Keeps the context of a thread that has ended.
    pub(super) fn left_by(&mut self, thread: u32, context: Option<Box<Context>>) {
        self.promised.extend(context.map(|context| (thread, context)));
    }
}

impl Replayer {
    /// Replays an event about a context.
    pub(super) fn context_event(&mut self, at: usize, kind: Kind, now: u64) -> Result<(), Fault> {
        let queue = &mut self.cores[at].queue;
        let contexts = &mut self.contexts;
        match kind {
            Kind::Spec { part, context, value } => {
                let parts = contexts.specs.entry(context).or_default();
                let slot = parts.get_mut(usize::from(part));
                *slot.ok_or(Fault::Grammar { what: "a part that specifications do not have" })? = value;
            }
            Kind::Admit { context } => {
                let identity = ContextId { id: context.into(), generation: 0 };
                let (spec, template) = contexts.spec(context)?;
                let proposal = Proposal::new(identity, spec).of_template(template.into());
                let admitted = queue.admit(proposal, now);
                contexts.keep(admitted.map_err(|no| refused(context, why(no.why)))?);
            }
            Kind::Readmit { context } => {
                let (old, (spec, _)) = (contexts.take(context)?, contexts.spec(context)?);
                let new = queue.readmit(old, spec, now);
                contexts.keep(new.map_err(|(no, _)| refused(context, why(no)))?);
            }
            Kind::Retire { context } => {
                let retired = queue.retire(contexts.take(context)?, now);
                retired.map_err(|_| refused(context, "given back to another CPU than promised it"))?;
            }
            Kind::Host { context } => {
                let hosted = queue.host(contexts.take(context)?, now);
                contexts.keep(hosted.map_err(|(no, _)| refused(context, why(no)))?);
            }
            Kind::Unhost { context } => {
                let guest = contexts.take(context)?;
                if !guest.is_hosted() || guest.home() != queue.id() {
                    return Err(refused(context, "it is no guest here"));
                }
                contexts.keep(queue.unhost(guest, now));
            }
            Kind::Bind { thread, context } => self.bind(at, thread, context, now)?,
            Kind::Unbind { thread } => self.unbind(at, thread, now)?,
            Kind::ContextOnly { thread, only } => {
                if queue.current() == Some(id(thread)) {
                    queue.set_current_context_only(only);
                } else if let Some(blocked) = self.blocked.get_mut(&thread) {
                    blocked.set_context_only(only);
                } else {
                    self.births.entry(thread).or_default().context_only = only;
                }
            }
            other => return Err(Fault::Unsupported { event: other.name() }),
        }
        Ok(())
    }

    fn bind(&mut self, at: usize, thread: u32, context: u32, now: u64) -> Result<(), Fault> {
        let queue = &mut self.cores[at].queue;
        let box_of_time = self.contexts.take(context)?;
        if queue.current() == Some(id(thread)) && box_of_time.home() == queue.id() {
            let bound = queue.bind_current(box_of_time, now);
            let _ = bound.map_err(|_| refused(context, "bound to a thread that has one"))?;
        } else if let Some(blocked) = self.blocked.get_mut(&thread) {
            let bound = blocked.bind(box_of_time);
            if bound.map_err(|_| refused(context, "bound to a thread that may not run there"))?.is_some() {
                return Err(refused(context, "bound to a thread that has one"));
            }
        } else if self.contexts.promised.insert(thread, box_of_time).is_some() {
            return Err(refused(context, "promised to a thread that has one coming"));
        }
        Ok(())
    }

    fn unbind(&mut self, at: usize, thread: u32, now: u64) -> Result<(), Fault> {
        let nothing = Fault::Refused { what: "loses a context, and has none here", thread };
        if let Some(promised) = self.contexts.promised_to(thread) {
            self.contexts.keep(promised);
            return Ok(());
        }
        let taken = if let Some(blocked) = self.blocked.get_mut(&thread) {
            blocked.unbind().ok_or(nothing)?
        } else {
            let ticket = self.cores[at].queue.find(id(thread));
            let taken = self.cores[at].queue.take_context(&ticket, now).ok_or(nothing)?;
            self.blocked.extend(taken.stopped.map(|stopped| (thread, stopped)));
            taken.context
        };
        self.contexts.keep(taken);
        Ok(())
    }
}
