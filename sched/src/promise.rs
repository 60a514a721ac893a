//! What a CPU has promised: to the contexts that are admitted, and to those that have gone and still hold time (S-13, S-14).
//!
//! **Leaving keeps the share.** A context gets back what it used a period later; if it goes before, no other context may have that time earlier. So
//! its promise stays, as *leaving*: with what was used, until its last refill is due. That keeps shares. Deadlines need more: the test is about sets
//! that stay the same, and a context that was delayed by the one that left may be delayed once more by a newcomer. Once the CPU has had a moment
//! with no budget to serve, no context is delayed any more; so until such a moment after its last use, the whole promise stays. A context that has
//! not run leaves nothing.
//!
//! **Leaving keeps the place.** A leaving promise stays one of the [`MAX_PROMISES_PER_CPU`], unchanged: if two were merged, the result would hold
//! more than both, and their owner could deny a CPU to others at next to no cost. When no place is left, no context is admitted until a promise has
//! left ([`Reason::BusyLeaving`]). Whose quota is charged for it is up to the caller: [`Cpu::departed`] names the leaving promise, [`Cpu::held`]
//! says what it holds.
//!
//! **Outside the lock.** `survey` copies the promises, `Survey::judge` tests them with a newcomer, and the verdict is valid as long as nothing was
//! promised meanwhile: a promise that left only makes room.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::cpu::Cpu;
use crate::demand::{self, Demand, Effort, Overheads, Reason, Witness};
use crate::{
    AdmissionError, Context, CpuId, FOREVER, MAX_CONTEXTS_PER_CPU, MAX_PROMISES_PER_CPU, Noted, Payload,
    Policy, Proposal, Refused, Spec, Utilisation,
};

/// One promise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// The demand that the admission test counts for it.
    pub(crate) demand: Demand,
    /// That demand as a share of a CPU, cached so that adding up all promises under the CPU's lock needs no division.
    share: Utilisation,
    /// The template of its context; 0 if there is none.
    template: u64,
    /// No other promise of the CPU has this number.
    number: u64,
    // The rest is for leaving promises only.
    /// The budget that the test counted when the context went, and the part of that for the machine's overheads.
    full_ns: u64,
    extra_ns: u64,
    /// What the context had used when it went, and when the last of that comes back.
    held_ns: u64,
    until_ns: u64,
    /// When the context was last charged.
    used_at_ns: u64,
}

impl Promise {
    /// Whether this leaving promise has left by `now`. If the CPU had no budget to serve at `relaxed_ns`, after the last use, only what was used
    /// counts from now on.
    fn has_left_at(&mut self, relaxed_ns: u64, now: u64) -> bool {
        if relaxed_ns < self.used_at_ns {
            return false;
        }
        let budget_ns = self.held_ns + self.extra_ns;
        if self.demand.budget_ns != budget_ns {
            self.demand.budget_ns = budget_ns;
            self.share = self.demand.utilisation();
        }
        self.until_ns <= now
    }
}

/// The time that a leaving promise holds of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// What was used, or the whole budget as long as that may still delay another context.
    pub budget_ns: u64,
    /// The length of the period in which it holds that much.
    pub period_ns: u64,
}

/// Which leaving promise a newcomer replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// None.
    OfNobody,
    /// One of this template, with the same demand.
    OfTemplate(u64),
    /// Its own: the context with this number comes back.
    OfItself(u64),
}

/// A copy of what a CPU has promised, to be judged where no lock is held. It is created with room for all promises of a CPU, so filling it allocates
/// nothing.
#[derive(Clone, Debug)]
pub struct Survey {
    cpu: CpuId,
    generation: u64,
    overheads: Overheads,
    contexts: usize,
    leaving: usize,
    /// When the last of the leaving promises will have left, and when the first.
    until_ns: u64,
    soonest_ns: u64,
    inherited: Option<(usize, Demand)>,
    demands: Vec<Demand>,
}

/// The result of a test that passed: the CPU can keep this promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    cpu: CpuId,
    generation: u64,
    spec: Spec,
    demand: Demand,
    /// The context whose leaving promise it replaces.
    heir_of: Option<u64>,
    /// For a change of specification: the new one fits beside the old one.
    beside: bool,
    /// For a change of specification: the new one fits in place of the old one, even if that has delayed other contexts.
    in_place: bool,
    /// How many evaluations the test took.
    pub evaluations: u32,
}

impl Default for Survey {
    fn default() -> Survey {
        Survey::of(Vec::with_capacity(MAX_PROMISES_PER_CPU + 1))
    }
}

impl Survey {
    fn of(demands: Vec<Demand>) -> Survey {
        Survey {
            cpu: CpuId::FIRST,
            generation: 0,
            overheads: Overheads::NONE,
            contexts: 0,
            leaving: 0,
            until_ns: 0,
            soonest_ns: FOREVER,
            inherited: None,
            demands,
        }
    }

    /// An empty survey with room for all promises; `None` if there is no memory.
    pub fn try_new() -> Option<Survey> {
        let mut demands = Vec::new();
        demands.try_reserve_exact(MAX_PROMISES_PER_CPU + 1).ok()?;
        Some(Survey::of(demands))
    }

    /// Can the CPU promise `spec` beside what it has promised?
    pub fn judge(&mut self, spec: &Spec) -> Result<Verdict, AdmissionError> {
        self.judge_in_pieces(spec, &mut || true)
    }

    /// As [`Survey::judge`], but calls `pause` between two pieces (K-26); if that returns `false`, the test gives up ([`Reason::AnalysisLimit`]).
    pub fn judge_in_pieces(
        &mut self,
        spec: &Spec,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Verdict, AdmissionError> {
        self.fits_at_all(spec)?;
        if self.contexts == MAX_CONTEXTS_PER_CPU {
            return Err(AdmissionError::TooMany);
        }
        let demand = self.overheads.demand(0, spec);
        let heir_of = match self.inherited {
            Some((at, left)) if left == (Demand { id: left.id, leaving: true, ..demand }) => {
                self.remove(at);
                Some(left.id)
            }
            _ => None,
        };
        if self.demands.len() == MAX_PROMISES_PER_CPU {
            return Err(AdmissionError::Refused(self.no_place(demand.band)));
        }
        let mut effort = Effort::new(pause, self.demands.len());
        self.insert(demand);
        self.judge_all(&demand, &mut effort)?;
        Ok(self.verdict(spec, demand, heir_of, &effort))
    }

    /// Can the CPU promise `spec` to the context `id` in place of its present promise? With pauses, as [`Survey::judge_in_pieces`].
    pub fn judge_change(
        &mut self,
        id: u64,
        spec: &Spec,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Verdict, AdmissionError> {
        self.fits_at_all(spec)?;
        let Some(at) = self.listed().iter().position(|it| it.id == id && !it.leaving) else {
            return Err(AdmissionError::Elsewhere(self.cpu));
        };
        let old = self.demands[at];
        let demand = self.overheads.demand(id, spec);
        let mut effort = Effort::new(pause, self.demands.len());
        self.insert(demand);
        let beside = self.judge_set(&demand, &mut effort).is_ok();
        if beside {
            return Ok(Verdict { beside, ..self.verdict(spec, demand, None, &effort) });
        }
        let at = self.listed().iter().position(|it| *it == old).unwrap_or(at);
        let is_plain = self.is_plain();
        self.remove(at);
        effort.again();
        self.judge_all(&demand, &mut effort)?;
        let in_place = is_plain || demand.is_within(&old);
        Ok(Verdict { in_place, ..self.verdict(spec, demand, None, &effort) })
    }

    fn verdict(&self, spec: &Spec, demand: Demand, heir_of: Option<u64>, effort: &Effort<'_>) -> Verdict {
        Verdict {
            cpu: self.cpu,
            generation: self.generation,
            spec: *spec,
            demand,
            heir_of,
            beside: false,
            in_place: false,
            evaluations: effort.evaluations(),
        }
    }

    /// The refusal when all places are taken, some of them by leaving promises.
    fn no_place(&self, band: u8) -> Witness {
        Witness {
            reason: Reason::BusyLeaving,
            band,
            until_ns: self.soonest_ns,
            ..Witness::unfinished(self.cpu)
        }
    }

    fn fits_at_all(&self, spec: &Spec) -> Result<(), AdmissionError> {
        spec.validate().map_err(AdmissionError::Invalid)?;
        if !spec.cpu_mask.contains(self.cpu) {
            return Err(AdmissionError::WrongCpu(self.cpu));
        }
        Ok(())
    }

    fn listed(&self) -> &[Demand] {
        &self.demands
    }

    fn judge_set(&self, newcomer: &Demand, effort: &mut Effort<'_>) -> Result<(), Witness> {
        let judged = demand::judge(self.listed(), newcomer, self.overheads.blocked_ns, self.cpu, effort);
        match judged {
            Err(late) if self.overheads.is_overload_taken && late.reason != Reason::Utilisation => Ok(()),
            judged => judged,
        }
    }

    /// As `judge_set`; a refusal says whether leaving promises are the only cause.
    fn judge_all(&mut self, newcomer: &Demand, effort: &mut Effort<'_>) -> Result<(), AdmissionError> {
        let Err(mut witness) = self.judge_set(newcomer, effort) else { return Ok(()) };
        if self.leaving > 0 {
            self.demands.retain(|demand| !demand.leaving);
            effort.again();
            if self.judge_set(newcomer, effort).is_ok() {
                (witness.reason, witness.until_ns) = (Reason::BusyLeaving, self.until_ns);
            }
        }
        Err(AdmissionError::Refused(witness))
    }

    /// Whether there is one band, every deadline is the end of its period, there are no sections, and no deadline is so short that an interrupts-off
    /// span matters. Then any mixture of two sets that fit fits, because demand is linear.
    fn is_plain(&self) -> bool {
        let Some(first) = self.listed().first() else { return true };
        let soonest_ns = self.listed().iter().map(|it| it.deadline_ns).min().unwrap_or(u64::MAX);
        let reserve = Utilisation::ONE.minus(Utilisation::BOUND);
        self.listed()
            .iter()
            .all(|it| it.band == first.band && it.deadline_ns == it.period_ns && it.section_ns == 0)
            && (self.overheads.blocked_ns == 0
                || Utilisation::of(self.overheads.blocked_ns, soonest_ns) <= reserve)
    }

    /// By band, highest first. There is room for one more demand than a CPU promises.
    fn insert(&mut self, demand: Demand) {
        let at = self.demands.iter().position(|it| it.band < demand.band).unwrap_or(self.demands.len());
        self.demands.insert(at, demand);
    }

    fn remove(&mut self, at: usize) {
        self.demands.remove(at);
    }
}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// How many contexts are promised time here, wherever their threads are.
    pub fn contexts(&self) -> usize {
        self.contexts
    }

    /// How many promises are leaving: their contexts have gone and hold what they used.
    pub fn leaving(&self) -> usize {
        self.promises.len() - self.contexts
    }

    /// The share of this CPU that is promised to contexts.
    pub fn reserved(&self) -> Utilisation {
        self.reserved
    }

    /// The share that is promised to contexts or held by leaving promises.
    pub fn taken(&mut self, now: u64) -> Utilisation {
        self.shed(now);
        self.promises.iter().fold(Utilisation::default(), |sum, promise| sum.plus(promise.share))
    }

    /// Whether a context of this template has gone and holds time here.
    pub fn has_left(&mut self, template: u64, now: u64) -> bool {
        if template == 0 {
            return false;
        }
        self.shed(now);
        self.promises.iter().any(|it| it.demand.leaving && it.template == template)
    }

    /// The number of the promise that began to leave last, if the CPU still held it then: to be asked right after [`Cpu::retire`], [`Cpu::unhost`]
    /// or [`Cpu::readmit_judged`].
    pub fn departed(&self) -> Option<u64> {
        self.departed
    }

    /// What the leaving promise with this number holds, as of the last [`Cpu::shed`]; `None` when it has left or a successor has its place.
    pub fn held(&self, number: u64) -> Option<Held> {
        let left = self.promises.iter().find(|it| it.number == number && it.demand.leaving)?;
        Some(Held { budget_ns: left.demand.budget_ns - left.extra_ns, period_ns: left.demand.period_ns })
    }

    /// Whether an unbound context that went now would leave a promise to be held.
    pub fn would_leave(&mut self, context: &Context, now: u64) -> bool {
        let now = now.max(self.at_ns);
        self.shed(now);
        let (held_ns, until_ns) = context.booked(now);
        self.is_put_off(context) || held_ns > 0 && until_ns > now
    }

    /// Whether another context may still be delayed because this one ran. If this is the only context here, there is no other.
    fn is_put_off(&self, context: &Context) -> bool {
        self.contexts > 1 && self.relaxed_ns < context.used_at_ns
    }

    /// Sets what the machine takes for itself; to be called before any context is admitted.
    pub fn set_overheads(&mut self, overheads: Overheads) {
        self.overheads = overheads;
    }

    /// Copies what is promised here into `survey`, for a newcomer that may replace a leaving promise.
    pub fn survey(&mut self, successor: Successor, now: u64, survey: &mut Survey) {
        self.shed(now);
        survey.cpu = self.id;
        survey.generation = self.admissions;
        survey.overheads = self.overheads;
        survey.contexts = self.contexts;
        survey.leaving = self.leaving();
        (survey.until_ns, survey.soonest_ns) = (0, FOREVER);
        survey.inherited = None;
        survey.demands.clear();
        debug_assert!(survey.demands.capacity() > self.promises.len(), "a survey has room");
        for (at, promise) in self.promises.iter().enumerate() {
            survey.demands.push(promise.demand);
            if promise.demand.leaving {
                survey.until_ns = survey.until_ns.max(promise.until_ns);
                survey.soonest_ns = survey.soonest_ns.min(promise.until_ns);
                let is_its = match successor {
                    Successor::OfNobody => false,
                    Successor::OfTemplate(template) => template != 0 && promise.template == template,
                    Successor::OfItself(id) => promise.demand.id == id,
                };
                if is_its {
                    survey.inherited = Some((at, Demand { budget_ns: promise.full_ns, ..promise.demand }));
                }
            }
        }
    }

    /// Promises CPU time, or says why not (S-11). Everything is checked before anything changes. The test is made here, on a survey that is
    /// allocated for it: a caller that holds a lock uses a survey that was judged before, and [`Cpu::admit_judged`].
    pub fn admit(&mut self, proposal: Proposal, now: u64) -> Result<Box<Context>, Refused> {
        let mut survey = Survey::default();
        self.survey(Successor::OfTemplate(proposal.template()), now, &mut survey);
        match survey.judge(proposal.spec()) {
            Ok(verdict) => self.admit_judged(proposal, &verdict, now),
            Err(why) => Err(Refused { why, proposal }),
        }
    }

    /// Makes the promise that was judged, if nothing else was promised since.
    pub fn admit_judged(
        &mut self,
        proposal: Proposal,
        verdict: &Verdict,
        now: u64,
    ) -> Result<Box<Context>, Refused> {
        if !self.is_good(verdict, proposal.spec()) {
            return Err(Refused { why: AdmissionError::Stale, proposal });
        }
        let now = now.max(self.at_ns);
        let used = self.take_over(verdict, now);
        let context = proposal.admitted(self.id, used, now);
        self.promise(&context, verdict);
        Ok(context)
    }

    fn is_good(&self, verdict: &Verdict, spec: &Spec) -> bool {
        verdict.cpu == self.id && verdict.generation == self.admissions && verdict.spec == *spec
    }

    /// Removes the leaving promise that the newcomer replaces; returns what it had used, and when the last of that comes back.
    fn take_over(&mut self, verdict: &Verdict, now: u64) -> Option<(u64, u64)> {
        self.shed(now);
        let of = verdict.heir_of?;
        let at = self.promises.iter().position(|it| it.demand.leaving && it.demand.id == of)?;
        let left = self.promises.remove(at);
        Some((left.held_ns, left.until_ns))
    }

    fn promise(&mut self, context: &Context, verdict: &Verdict) {
        let demand = Demand { id: context.identity().id, ..verdict.demand };
        let template = context.template();
        self.put(Promise {
            demand,
            share: Utilisation::default(),
            template,
            number: self.admissions,
            full_ns: 0,
            extra_ns: 0,
            held_ns: 0,
            until_ns: 0,
            used_at_ns: 0,
        });
        self.reserved = self.reserved.plus(context.spec().utilisation());
        self.contexts += 1;
        self.admissions += 1;
    }

    /// Inserts a promise: by band, highest first.
    fn put(&mut self, mut promise: Promise) {
        promise.share = promise.demand.utilisation();
        let at = self.promises.partition_point(|it| it.demand.band >= promise.demand.band);
        self.promises.insert(at, promise);
    }

    /// Gives another spec to a context that was admitted here, is unbound and is not hosted elsewhere. Identity and counters stay, and what was used
    /// stays used ([`crate::Ledger::reconfigure`]). Everything is checked before anything changes. Allocates a survey, as [`Cpu::admit`] does.
    pub fn readmit(
        &mut self,
        context: Box<Context>,
        spec: Spec,
        now: u64,
    ) -> Result<Box<Context>, (AdmissionError, Box<Context>)> {
        let mut survey = Survey::default();
        self.survey(Successor::OfNobody, now, &mut survey);
        match survey.judge_change(context.identity().id, &spec, &mut || true) {
            Ok(verdict) => self.readmit_judged(context, spec, &verdict, now),
            Err(why) => Err((why, context)),
        }
    }

    /// As [`Cpu::readmit`], with a verdict that was made before, if nothing was promised since.
    pub fn readmit_judged(
        &mut self,
        mut context: Box<Context>,
        spec: Spec,
        verdict: &Verdict,
        now: u64,
    ) -> Result<Box<Context>, (AdmissionError, Box<Context>)> {
        if context.is_hosted() || context.home() != self.id {
            return Err((AdmissionError::Elsewhere(context.home()), context));
        }
        if !self.is_good(verdict, &spec) || verdict.demand.id != context.identity().id {
            return Err((AdmissionError::Stale, context));
        }
        let now = now.max(self.at_ns);
        self.shed(now);
        let is_full = self.promises.len() == MAX_PROMISES_PER_CPU && self.would_leave(&context, now);
        if is_full || !(verdict.beside || verdict.in_place || self.relaxed_ns >= context.used_at_ns) {
            // There is no place for what it used as a leaving promise, or a context that it has delayed may be delayed once more.
            let (_, until_ns) = context.booked(now);
            let witness = Witness {
                reason: Reason::BusyLeaving,
                band: verdict.demand.band,
                largest: context.identity().id,
                free_ppm: Utilisation::BOUND.minus(self.reserved).ppm(),
                until_ns,
                ..Witness::unfinished(self.id)
            };
            return Err((AdmissionError::Refused(witness), context));
        }
        self.depart(&context, now);
        context.reconfigure(spec, now);
        self.promise(&context, verdict);
        Ok(context)
    }

    /// Takes an unbound context in as a guest: it runs here, and the promise of its origin stays. For a loan to a thread that may not run on the
    /// origin. Allocates a survey, as [`Cpu::admit`] does.
    pub fn host(
        &mut self,
        context: Box<Context>,
        now: u64,
    ) -> Result<Box<Context>, (AdmissionError, Box<Context>)> {
        let mut survey = Survey::default();
        self.survey(Successor::OfItself(context.identity().id), now, &mut survey);
        match survey.judge(context.spec()) {
            Ok(verdict) => self.host_judged(context, &verdict, now),
            Err(why) => Err((why, context)),
        }
    }

    /// As [`Cpu::host`], with a verdict that was made before, if nothing was promised since.
    pub fn host_judged(
        &mut self,
        mut context: Box<Context>,
        verdict: &Verdict,
        now: u64,
    ) -> Result<Box<Context>, (AdmissionError, Box<Context>)> {
        if context.is_hosted() || context.home() == self.id {
            return Err((AdmissionError::Elsewhere(context.home()), context));
        }
        if !self.is_good(verdict, context.spec()) {
            return Err((AdmissionError::Stale, context));
        }
        // What it used when it was here before is in its own ledger, so the result is not needed.
        self.take_over(verdict, now.max(self.at_ns));
        context.move_to(self.id);
        self.promise(&context, verdict);
        Ok(context)
    }

    /// Sends an unbound guest home; what it used here is held until that time has come back. A context that is no guest of this CPU is returned as
    /// it is.
    pub fn unhost(&mut self, mut context: Box<Context>, now: u64) -> Box<Context> {
        if context.is_hosted() && context.home() == self.id {
            self.depart(&context, now.max(self.at_ns));
            let origin = context.origin();
            context.move_to(origin);
        }
        context
    }

    /// Takes a promise back; the context must be unbound, admitted here and not hosted elsewhere. What it used is held until that time has come
    /// back. The rest can be proposed elsewhere, or dropped when no lock is held.
    pub fn retire(&mut self, context: Box<Context>, now: u64) -> Result<Proposal, Box<Context>> {
        if context.is_hosted() || context.home() != self.id {
            return Err(context);
        }
        self.depart(&context, now.max(self.at_ns));
        Ok(Proposal::from_retired(context))
    }

    fn depart(&mut self, context: &Context, now: u64) {
        self.shed(now);
        let id = context.identity().id;
        let Some(at) = self.promises.iter().position(|it| it.demand.id == id && !it.demand.leaving) else {
            debug_assert!(false, "I6: a context without a promise");
            return;
        };
        let mut left = self.promises.remove(at);
        self.reserved = self.reserved.minus(context.spec().utilisation());
        self.contexts -= 1;
        if self.contexts == 0 {
            self.relaxed_ns = now;
            self.noted = Noted::NOTHING; // its thread blocked, and no dispatch has followed
        }
        let (held_ns, until_ns) = context.booked(now);
        left.full_ns = left.demand.budget_ns;
        left.extra_ns = left.full_ns - context.spec().budget_ns;
        left.held_ns = held_ns;
        left.until_ns = if held_ns > 0 { until_ns } else { now };
        left.used_at_ns = context.used_at_ns;
        left.demand.leaving = true;
        let is_held = !left.has_left_at(self.relaxed_ns, now);
        self.departed = is_held.then_some(left.number);
        if is_held {
            // It keeps one of the places of the list, as before.
            self.put(left);
        }
    }

    /// Forgets what contexts that left had used, as if it were nothing: only for tests that show what goes wrong then.
    pub fn forget_leaving(&mut self) {
        self.promises.retain(|promise| !promise.demand.leaving);
    }

    /// Drops the leaving promises that hold nothing here any more.
    pub fn shed(&mut self, now: u64) {
        let now = now.max(self.at_ns);
        // With contexts here, only dispatches move `relaxed_ns`, and never a mere look: a trace records promises, but no refusals.
        if self.contexts == 0 {
            self.relaxed_ns = now;
        }
        if self.leaving() == 0 {
            return;
        }
        let relaxed_ns = self.relaxed_ns;
        // In one pass: thirty may leave at once, and removing each would move all behind it, under the CPU's lock (K-26).
        self.promises.retain_mut(|it| !(it.demand.leaving && it.has_left_at(relaxed_ns, now)));
    }
}
