//! What a CPU has promised: who is admitted, and what those who have gone still hold (S-13, S-14).
//!
//! **Leaving keeps the share.** What a context used comes back to it a period later; if it goes before, somebody else must not have that time
//! earlier. So its promise stays, as *leaving*: with what was used, until its last refill is due. That keeps shares. Deadlines need more: the test
//! is about sets that stay the same, and somebody who was put off by the one who left may be put off once more by a newcomer. Where the CPU has
//! had a moment with no budget to serve, nobody is put off any more; so until then (a moment after its last use) the whole promise stays.
//! A context that has not run leaves nothing.
//!
//! **Leaving keeps the place.** A promise that leaves stays one of the [`MAX_PROMISES_PER_CPU`], as it is: two that became one would hold more than
//! both, and whoever made them could deny a CPU to others with next to nothing. Where no place is left, nobody is admitted until one has left
//! ([`Reason::BusyLeaving`]). Whose quota pays for it is the caller's affair: [`Cpu::departed`] names what leaves, [`Cpu::held`] says what it holds.
//!
//! **Outside the lock.** `survey` copies the promises, `Survey::judge` tests them with a newcomer, and the verdict is good as long as nothing
//! was promised meanwhile: what left only makes room.

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
    /// What counts of it.
    pub(crate) demand: Demand,
    /// What that is of a CPU, so that whoever adds up all promises under the CPU's lock divides nothing.
    share: Utilisation,
    /// Of which line of contexts it is; 0: of none.
    template: u64,
    /// No other promise of the CPU has this number.
    number: u64,
    // Of those that leave:
    /// What counted when it went, and how much of that was for the machine.
    full_ns: u64,
    extra_ns: u64,
    /// What it had used, and when the last of that is back.
    held_ns: u64,
    until_ns: u64,
    /// When it ran last.
    used_at_ns: u64,
}

impl Promise {
    /// Whether nothing is left of one that leaves a CPU that had no budget to serve at `relaxed_ns`; what counts of it from now on.
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

/// What a promise that leaves holds of a CPU: so much in every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// What was used, or the whole budget as long as somebody may have been put off by it.
    pub budget_ns: u64,
    /// In every period of this length.
    pub period_ns: u64,
}

/// Whose place a newcomer takes, of those that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// Nobody's.
    OfNobody,
    /// That of one of its line, and of its kind.
    OfTemplate(u64),
    /// Its own: it comes back.
    OfItself(u64),
}

/// A copy of what a CPU has promised, to be judged where no lock is held. It has room for all that a CPU may promise, from the beginning on:
/// nothing is allocated when it is filled.
#[derive(Clone, Debug)]
pub struct Survey {
    cpu: CpuId,
    generation: u64,
    overheads: Overheads,
    contexts: usize,
    leaving: usize,
    /// When the last of those that leave has left, and the first.
    until_ns: u64,
    soonest_ns: u64,
    inherited: Option<(usize, Demand)>,
    demands: Vec<Demand>,
}

/// A CPU can keep a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    cpu: CpuId,
    generation: u64,
    spec: Spec,
    demand: Demand,
    /// Whose place it takes.
    heir_of: Option<u64>,
    /// Of another specification: it fits beside the old one,
    beside: bool,
    /// or in its place, whoever was put off by the old one.
    in_place: bool,
    /// How often all promises were looked at.
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

    /// One of nothing, with room; `None` without memory.
    pub fn try_new() -> Option<Survey> {
        let mut demands = Vec::new();
        demands.try_reserve_exact(MAX_PROMISES_PER_CPU + 1).ok()?;
        Some(Survey::of(demands))
    }

    /// Can the CPU promise `spec` beside what it has promised?
    pub fn judge(&mut self, spec: &Spec) -> Result<Verdict, AdmissionError> {
        self.judge_in_pieces(spec, &mut || true)
    }

    /// As [`Survey::judge`], with `pause` between two pieces (K-26); if that is `false`, the test gives up ([`Reason::AnalysisLimit`]).
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

    /// Can it promise `spec` to the context `id` in place of what it has promised to it? With pauses, as [`Survey::judge_in_pieces`].
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

    /// All places are taken, some by promises that leave.
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

    /// As `judge_set`; a refusal says whether it is for those who leave only.
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

    /// One band, every deadline the end of its period, and nobody so urgent that it matters when the CPU does not listen. Then any mixture of
    /// two sets that fit fits: demand is linear.
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

    /// By band, highest first. There is room for one more than a CPU promises.
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

    /// How many have gone and hold what they used.
    pub fn leaving(&self) -> usize {
        self.promises.len() - self.contexts
    }

    /// The share of this CPU that is promised to contexts.
    pub fn reserved(&self) -> Utilisation {
        self.reserved
    }

    /// The share that is promised, or held by those who have gone.
    pub fn taken(&mut self, now: u64) -> Utilisation {
        self.shed(now);
        self.promises.iter().fold(Utilisation::default(), |sum, promise| sum.plus(promise.share))
    }

    /// Whether somebody of this line has gone and holds time here.
    pub fn has_left(&mut self, template: u64, now: u64) -> bool {
        if template == 0 {
            return false;
        }
        self.shed(now);
        self.promises.iter().any(|it| it.demand.leaving && it.template == template)
    }

    /// The promise that left last, by its number, if the CPU holds it still: of [`Cpu::retire`], [`Cpu::unhost`] or [`Cpu::readmit_judged`],
    /// where it is asked at once.
    pub fn departed(&self) -> Option<u64> {
        self.departed
    }

    /// What the promise that left under this number holds since [`Cpu::shed`]; nothing, when it has left or another context has its place.
    pub fn held(&self, number: u64) -> Option<Held> {
        let left = self.promises.iter().find(|it| it.number == number && it.demand.leaving)?;
        Some(Held { budget_ns: left.demand.budget_ns - left.extra_ns, period_ns: left.demand.period_ns })
    }

    /// Whether an unbound context, if it went now, would leave something to be held.
    pub fn would_leave(&mut self, context: &Context, now: u64) -> bool {
        let now = now.max(self.at_ns);
        self.shed(now);
        let (held_ns, until_ns) = context.booked(now);
        self.is_put_off(context) || held_ns > 0 && until_ns > now
    }

    /// Whether somebody may still wait because this context ran. The last one here put off nobody who is left.
    fn is_put_off(&self, context: &Context) -> bool {
        self.contexts > 1 && self.relaxed_ns < context.used_at_ns
    }

    /// What the machine takes for itself; before anybody is admitted.
    pub fn set_overheads(&mut self, overheads: Overheads) {
        self.overheads = overheads;
    }

    /// Copies what is promised here, for a newcomer that may take somebody's place.
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

    /// Promises CPU time, or says why not (S-11). Everything is checked before anything changes. The test is made here and now, on a
    /// survey that is allocated for it: where a lock is held, use one that was made before, and [`Cpu::admit_judged`].
    pub fn admit(&mut self, proposal: Proposal, now: u64) -> Result<Box<Context>, Refused> {
        let mut survey = Survey::default();
        self.survey(Successor::OfTemplate(proposal.template()), now, &mut survey);
        match survey.judge(proposal.spec()) {
            Ok(verdict) => self.admit_judged(proposal, &verdict, now),
            Err(why) => Err(Refused { why, proposal }),
        }
    }

    /// Promises what was judged, if nothing was promised since.
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

    /// The place of one that leaves is taken: what it had used, and until when that is not back.
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

    /// By band, highest first.
    fn put(&mut self, mut promise: Promise) {
        promise.share = promise.demand.utilisation();
        let at = self.promises.partition_point(|it| it.demand.band >= promise.demand.band);
        self.promises.insert(at, promise);
    }

    /// Another spec for a context that was admitted here, is unbound and not hosted elsewhere. Identity and counters stay, and what was used
    /// stays used ([`crate::Ledger::reconfigure`]). Everything is checked before anything changes. As [`Cpu::admit`], here and now.
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

    /// As [`Cpu::readmit`] of what was judged, if nothing was promised since.
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
            // What it used has no place of its own, or somebody whom it has put off may be put off once more.
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

    /// Takes an unbound context in as a guest: it runs here, beside the promise of its origin, which stays. For a loan to a thread that
    /// may not run there. As [`Cpu::admit`], here and now.
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

    /// As [`Cpu::host`] of what was judged, if nothing was promised since.
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
        // What it used when it was here is in its own books.
        self.take_over(verdict, now.max(self.at_ns));
        context.move_to(self.id);
        self.promise(&context, verdict);
        Ok(context)
    }

    /// Sends an unbound guest home; what it used here is held until it is back. One that is no guest of this CPU comes back as it is.
    pub fn unhost(&mut self, mut context: Box<Context>, now: u64) -> Box<Context> {
        if context.is_hosted() && context.home() == self.id {
            self.depart(&context, now.max(self.at_ns));
            let origin = context.origin();
            context.move_to(origin);
        }
        context
    }

    /// Takes a promise back; the context must be unbound, from here and here. What it used is held until it is back. What is left can be
    /// proposed elsewhere, or dropped when no lock is held.
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
            self.noted = Noted::NOTHING; // its thread blocked, and nobody dispatched since
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
            // In the place that it had.
            self.put(left);
        }
    }

    /// Forgets what those who left had used, as if it were nothing: for tests that show what comes of it, and for nobody else.
    pub fn forget_leaving(&mut self) {
        self.promises.retain(|promise| !promise.demand.leaving);
    }

    /// Forgets those who left and have nothing here any more.
    pub fn shed(&mut self, now: u64) {
        let now = now.max(self.at_ns);
        // Otherwise only dispatches say so, and not whoever looks: a trace tells of what is promised, not of what is refused.
        if self.contexts == 0 {
            self.relaxed_ns = now;
        }
        if self.leaving() == 0 {
            return;
        }
        let relaxed_ns = self.relaxed_ns;
        // In one pass: thirty may go at once, and each would move all behind it, under the CPU's lock (K-26).
        self.promises.retain_mut(|it| !(it.demand.leaving && it.has_left_at(relaxed_ns, now)));
    }
}
