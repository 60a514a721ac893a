//! SchedulingContext's methods: Cap'n Proto in, an operation result out (S-01, S-02).

use super::{MethodCall, Outcome, Refusal};
use crate::context::bind::{self, BindError, Bound};
use crate::context::change::{self, Unchanged};
use crate::context::notify::{self, Cell, Watch};
use crate::context::{CreateError, Ctx, Handle, Record, at, create, end, handle, leaving, look, seize};
use crate::dispatch;
use crate::endpoint::FaultRoom;
use crate::object::{Cap, Object};
use crate::ops::Reply;
use crate::planted::{self, Bug};
use crate::preempt::{self, Pacer};
use crate::ring::{Completion, Waitable};
use crate::thread::{self, Thread};
use ::sched::{AdmissionError, ContextInfo, CpuMask, Overrun, Reason, Spec, Witness};
use abi::{CapId, Exception, TransportError, rights};
use alloc::sync::Arc;
use kcore::generation::ThreadRef;
use kcore::loans::Refused;
use schema::messages_capnp as m;
use schema::words;

use m::{DispatchEffect, OperationResult as R};

/// Calls a method of the context that `handle` names; `held` is the generation that the capability remembers.
pub fn call(c: &MethodCall<'_>, handle: &Arc<Handle>, held: u64, params: &[u8]) -> Outcome {
    let needed = match c.call.method {
        1..=4 | 10 => rights::WRITE,
        5 => rights::REVOKE,
        _ => rights::CALL,
    };
    if c.rights & needed == 0 {
        return Err(TransportError::NotPermitted.into());
    }
    match c.call.method {
        0 => info(c, handle, held),
        1 => create_another(c, handle, held, params),
        2 => bind_caller(c, handle, held, params),
        3 => unbind(c, handle, held),
        4 => reconfigure(c, handle, held, params),
        5 => revoke(c, handle, held),
        6 => drain(c, handle, held),
        7 => watch(c, handle, held),
        8 => consumed(c, handle, held),
        9 => yield_to(c, handle, held),
        _ => bind_thread(c, handle, held, params),
    }
}

/// The answer to a capability of generation `held` that is stale or revoked; `Ok` if it is not.
fn standing(record: &Record, held: u64) -> R {
    said(record.book.standing(held))
}

/// The book's answer as the schema's result.
fn said(answer: Result<(), Refused>) -> R {
    match answer {
        Ok(()) => R::Ok,
        Err(Refused::Stale) => R::StaleGeneration,
        Err(Refused::Revoked) => R::Revoked,
        Err(Refused::NoTime) => R::InvalidSpec,
        Err(Refused::Bound) => R::AlreadyBound,
        Err(Refused::NotBound) => R::NotBound,
        // Lent, or in transit to another thread, which passes.
        Err(_) => R::Lent,
    }
}

fn effect(record: &Record) -> DispatchEffect {
    effect_of(*record.book.owner() != ThreadRef::NONE)
}

fn effect_of(is_owned: bool) -> DispatchEffect {
    if is_owned { DispatchEffect::BudgetEnforced } else { DispatchEffect::InfoOnlyNoDispatchChange }
}

/// Sends the answer that most methods have.
fn say(c: &MethodCall<'_>, (result, effect): (R, DispatchEffect)) -> Outcome {
    c.reply::<m::scheduling_context_result::Owned>(0, |mut r| {
        r.set_result(result);
        r.set_dispatch_effect(effect);
    })
}

/// As [`say`], when nothing was done.
fn refuse(c: &MethodCall<'_>, ctx: &'static Ctx, result: R) -> Outcome {
    let effect = effect(&ctx.record.lock());
    say(c, (result, effect))
}

// ---- looking --------------------------------------------------------------------------------------------------------------

/// What a context's info says, copied out of the record.
pub struct View {
    result: R,
    id: u64,
    generation: u64,
    depth: usize,
    effect: DispatchEffect,
    told_ns: u64,
    owner: ThreadRef,
    holder: ThreadRef,
    /// `None` if the context has no time.
    time: Option<ContextInfo>,
}

fn view(ctx: &'static Ctx, id: u64, held: Option<u64>) -> View {
    look(ctx, id, |record, time| {
        let result = standing(record, held.unwrap_or(record.book.generation()));
        View {
            result,
            id: record.id,
            generation: record.book.generation(),
            depth: record.book.loans().len(),
            effect: if result == R::Ok { effect(record) } else { DispatchEffect::InfoOnlyNoDispatchChange },
            told_ns: record.told_ns,
            owner: *record.book.owner(),
            holder: *record.book.holder(),
            time: time.filter(|_| result == R::Ok).copied(),
        }
    })
}

/// Bytes of the longest CPU mask.
const MASK_BYTES: usize = ::sched::MAX_CPUS / 8;

/// Words of a context's info in a message.
fn info_words() -> usize {
    words::structure::<m::scheduling_context_info::Owned>()
        + words::structure::<m::scheduling_context_spec::Owned>()
        + words::data(MASK_BYTES)
}

fn fill_info(mut r: m::scheduling_context_info::Builder<'_>, view: &View) {
    r.set_context_id(view.id);
    r.set_generation(view.generation);
    r.set_lent_depth(view.depth as u32);
    r.set_dispatch_effect(view.effect);
    let Some(time) = &view.time else { return };
    r.set_home(time.home.index() as u32);
    r.set_remaining_ns(time.available_ns);
    r.set_next_refill_ns(time.ready_at_ns);
    r.set_consumed_ns(time.consumed_ns);
    r.set_depletions(time.depletions);
    r.set_overrun_max_ns(time.overrun_max_ns);
    let mut spec = r.init_spec();
    spec.set_budget_ns(time.spec.budget_ns);
    spec.set_period_ns(time.spec.period_ns);
    spec.set_relative_deadline_ns(time.spec.relative_deadline_ns);
    spec.set_overrun_policy(match time.spec.overrun {
        Overrun::Throttle => m::OverrunPolicy::Throttle,
        Overrun::Fault => m::OverrunPolicy::Fault,
        Overrun::Demote => m::OverrunPolicy::Demote,
    });
    spec.set_criticality(time.spec.criticality);
    spec.set_max_refills(time.spec.max_refills);
    let mut bytes = [0; MASK_BYTES];
    let used = time.spec.cpu_mask.to_bytes(&mut bytes);
    spec.set_cpu_mask(&bytes[..used]);
}

fn info(c: &MethodCall<'_>, handle: &Handle, held: u64) -> Outcome {
    let view = view(handle.ctx, handle.id, Some(held));
    c.reply_long::<m::scheduling_context_info_results::Owned>(info_words(), |mut r| {
        r.set_result(view.result);
        fill_info(r.init_info(), &view);
    })
}

fn consumed(c: &MethodCall<'_>, handle: &Handle, held: u64) -> Outcome {
    let view = view(handle.ctx, handle.id, Some(held));
    let total_ns = view.time.map_or(0, |time| time.consumed_ns);
    if view.time.is_some() {
        let mut record = handle.ctx.record.lock();
        if record.id == handle.id {
            record.told_ns = total_ns;
        }
    }
    c.reply::<m::scheduling_context_consumed_results::Owned>(0, |mut r| {
        r.set_result(view.result);
        r.set_total_ns(total_ns);
        r.set_since_last_ns(total_ns.saturating_sub(view.told_ns));
    })
}

// ---- making ---------------------------------------------------------------------------------------------------------------

/// Reads a specification and checks it as far as that is possible without a CPU. An `Err` is the answer to the caller.
pub fn spec_of(
    c: &MethodCall<'_>,
    r: &m::scheduling_context_spec::Reader<'_>,
) -> Result<(Spec, Option<Arc<FaultRoom>>), Outcome> {
    let wrong = |why: &'static str| Err(Refusal::Exception(Exception::InvalidArgument, why));
    let mask = match r.get_cpu_mask() {
        Ok(bytes) => CpuMask::from_bytes(bytes),
        Err(error) => return Err(Err(error.into())),
    };
    let Ok(cpu_mask) = mask else { return Err(wrong("the CPU mask is not canonical")) };
    let overrun = match r.get_overrun_policy() {
        Ok(m::OverrunPolicy::Throttle) => Overrun::Throttle,
        Ok(m::OverrunPolicy::Fault) => Overrun::Fault,
        Ok(m::OverrunPolicy::Demote) => Overrun::Demote,
        Err(_) => return Err(wrong("the overrun policy is not 0 throttle, 1 fault or 2 demote")),
    };
    let timeout = match (overrun, r.get_timeout_endpoint()) {
        (Overrun::Fault, 0) => return Err(wrong("a context that faults names a timeout endpoint")),
        (Overrun::Fault, raw) => Some(timeout_endpoint(c, raw).map_err(|refused| Err(refused.into()))?),
        (_, 0) => None,
        _ => return Err(wrong("only a context that faults names a timeout endpoint")),
    };
    let mut spec = Spec::new(r.get_budget_ns(), r.get_period_ns());
    spec.cpu_mask = cpu_mask;
    spec.overrun = overrun;
    spec.criticality = r.get_criticality();
    if r.get_relative_deadline_ns() != 0 {
        spec.relative_deadline_ns = r.get_relative_deadline_ns();
    }
    if r.get_max_refills() != 0 {
        spec.max_refills = r.get_max_refills();
    }
    match spec.validate() {
        Ok(()) => Ok((spec, timeout)),
        Err(error) => Err(c.refuse(Exception::InvalidArgument, format_args!("{error}"))),
    }
}

fn timeout_endpoint(c: &MethodCall<'_>, raw: u32) -> Result<Arc<FaultRoom>, (Exception, &'static str)> {
    let wrong = |why: &'static str| (Exception::InvalidArgument, why);
    let caps = c.process.caps.lock();
    let cap = caps.get(CapId(raw)).ok_or(wrong("the timeout endpoint does not exist"))?;
    let endpoint =
        cap.endpoint(rights::CALL).ok_or(wrong("the timeout endpoint is no endpoint that may be called"))?;
    let (endpoint, badge) = (endpoint.clone(), cap.badge);
    drop(caps);
    // Room for the message is reserved now: when it is sent nothing may be allocated.
    FaultRoom::reserve(endpoint, badge)
        .ok_or((Exception::Overloaded, "the timeout endpoint has no room for one more context"))
}

/// Whether `raw` is a context of the caller that may create others in `band`.
pub fn may_create(c: &MethodCall<'_>, raw: u32, band: u8) -> Result<(), (Exception, &'static str)> {
    let caps = c.process.caps.lock();
    let cap =
        caps.get(CapId(raw)).ok_or((Exception::Failed, "a template needs the caller's SchedulingContext"))?;
    let Ok(Object::SchedulingContext(handle)) = cap.object() else {
        return Err((Exception::InvalidArgument, "the capability for the template is no SchedulingContext"));
    };
    if cap.rights & rights::WRITE == 0 {
        return Err((Exception::Failed, "the SchedulingContext may not create"));
    }
    if !rights::allow_band(cap.rights, band) {
        return Err((Exception::Failed, "the SchedulingContext may not create in this band"));
    }
    match standing(&handle.ctx.record.lock(), cap.epoch()) {
        R::Ok => Ok(()),
        _ => Err((Exception::Disconnected, "the SchedulingContext is stale or was revoked")),
    }
}

/// The answer to the caller when a creation is refused.
pub fn refused(c: &MethodCall<'_>, error: CreateError) -> Outcome {
    match error {
        CreateError::Spec(error) => c.refuse(Exception::InvalidArgument, format_args!("{error}")),
        CreateError::NoCpu => Err((Exception::InvalidArgument, "no CPU of the mask is online").into()),
        CreateError::Full(witness) => c.refuse(Exception::Overloaded, format_args!("{witness}")),
        CreateError::Quota(denied) => Err(Refusal::Quota(denied)),
        CreateError::Memory => Err((Exception::Overloaded, "no memory or record for a context").into()),
    }
}

/// Whether the capability that was called allows the band of `spec` (S-17).
fn may_use_band(c: &MethodCall<'_>, spec: &Spec) -> bool {
    rights::allow_band(c.rights, spec.criticality) || planted::is(Bug::AnyBand)
}

/// Words that a witness adds to its result.
fn witness_words(witness: Option<&Witness>) -> usize {
    witness.map_or(0, |_| words::structure::<m::admission_witness::Owned>())
}

/// Fills in why a promise could not be made (S-14).
fn fill_witness(mut r: m::admission_witness::Builder<'_>, witness: &Witness) {
    r.set_reason(match witness.reason {
        Reason::Utilisation => m::AdmissionReason::Utilisation,
        Reason::Demand => m::AdmissionReason::Demand,
        Reason::LowerBandLate => m::AdmissionReason::LowerBandLate,
        Reason::NoHome => m::AdmissionReason::NoHome,
        Reason::AnalysisLimit => m::AdmissionReason::AnalysisLimit,
        Reason::BusyLeaving => m::AdmissionReason::BusyLeaving,
    });
    r.set_cpu(witness.cpu.index() as u32);
    r.set_band(witness.band);
    r.set_stretch_ns(witness.t_ns);
    r.set_demand_ns(witness.demand_ns);
    r.set_supply_ns(witness.supply_ns);
    r.set_largest_context_id(witness.largest);
    r.set_free_ppm(witness.free_ppm);
    r.set_until_ns(witness.until_ns);
}

fn create_another(c: &MethodCall<'_>, held_by: &Handle, held: u64, params: &[u8]) -> Outcome {
    let answer = |result: R, id: u64, witness: Option<&Witness>| {
        c.reply::<m::scheduling_context_create_results::Owned>(witness_words(witness), |mut r| {
            r.set_result(result);
            r.set_context_id(id);
            r.set_generation(u64::from(id != 0));
            if let Some(witness) = witness {
                r.set_free_ppm(witness.free_ppm);
                fill_witness(r.init_witness(), witness);
            }
        })
    };
    let message = schema::decode(params)?;
    let p = message.root::<m::scheduling_context_create_params::Reader<'_>>()?.get_spec()?;
    let result = standing(&held_by.ctx.record.lock(), held);
    if result != R::Ok {
        return answer(result, 0, None);
    }
    let (spec, timeout) = match spec_of(c, &p) {
        Ok(good) => good,
        Err(answer) => return answer,
    };
    if !may_use_band(c, &spec) {
        return answer(R::Unauthorized, 0, None);
    }
    // The result's buffer and the slot first: nothing is created that could not be handed to the caller.
    c.expects::<m::scheduling_context_create_results::Owned>()?;
    let slot = c.process.reserve_cap()?;
    let made =
        create(spec, timeout, &c.process.session, 0).and_then(|ctx| handle(ctx).ok_or(CreateError::Memory));
    match made {
        Ok(new) => {
            let id = new.id;
            // The new capability allows bands up to the context's own, so bands only go down from creator to created (S-17).
            let given = rights::ALL & !rights::RECV | rights::up_to_band(spec.criticality);
            let cap = Cap::new(Object::SchedulingContext(new), given, 0);
            let cap = c.process.caps.lock().commit(slot, cap);
            match answer(R::Ok, id, None)? {
                Reply::Now(completion) => Ok(Completion { cap: cap.0, ..completion }.into()),
                other => Ok(other),
            }
        }
        Err(error) => {
            c.process.caps.lock().abort(slot);
            match error {
                CreateError::Full(witness) => answer(R::ResourceExhausted, 0, Some(&witness)),
                error => refused(c, error),
            }
        }
    }
}

// ---- binding --------------------------------------------------------------------------------------------------------------

fn bind_params(params: &[u8]) -> Result<(bool, u32), Refusal> {
    let message = schema::decode(params)?;
    let p = message.root::<m::scheduling_context_bind_params::Reader<'_>>()?;
    Ok((p.get_context_only(), p.get_thread()))
}

fn bind_caller(c: &MethodCall<'_>, handle: &Handle, held: u64, params: &[u8]) -> Outcome {
    let (context_only, other) = bind_params(params)?;
    if other != 0 {
        return Err((Exception::InvalidArgument, "bindCallerThread takes no thread; bindThread does").into());
    }
    c.expects::<m::scheduling_context_result::Owned>()?;
    bind(c, handle, held, c.thread, c.thread.reference(), context_only)
}

fn bind_thread(c: &MethodCall<'_>, handle: &Handle, held: u64, params: &[u8]) -> Outcome {
    let (context_only, raw) = bind_params(params)?;
    let target = {
        let caps = c.process.caps.lock();
        let cap =
            caps.get(CapId(raw)).ok_or((Exception::InvalidArgument, "the thread handle does not exist"))?;
        match cap.object() {
            Ok(Object::ThreadHandle(exit)) => exit.clone(),
            _ => return Err((Exception::InvalidArgument, "the capability is no thread handle").into()),
        }
    };
    c.expects::<m::scheduling_context_result::Owned>()?;
    let who = target.target();
    let Some(thread) = thread::get(who.tid).filter(|thread| thread.is(&who)) else {
        return refuse(c, handle.ctx, R::DeadThread);
    };
    bind(c, handle, held, thread, who, context_only)
}

fn bind(
    c: &MethodCall<'_>,
    handle: &Handle,
    held: u64,
    thread: &'static Thread,
    who: ThreadRef,
    context_only: bool,
) -> Outcome {
    match bind::bind(handle, held, thread, who, context_only) {
        Ok(Bound { standing, is_owned }) => say(c, (said(standing), effect_of(is_owned))),
        Err(why) => {
            let result = match why {
                BindError::Refused(why) => said(Err(why)),
                BindError::NoCommonCpu => R::NoCommonCpu,
                BindError::Dead => R::DeadThread,
                BindError::Bound => R::AlreadyBound,
            };
            refuse(c, handle.ctx, result)
        }
    }
}

fn unbind(c: &MethodCall<'_>, handle: &Handle, held: u64) -> Outcome {
    c.expects::<m::scheduling_context_result::Owned>()?;
    let result = said(handle.ctx.record.lock().book.may_unbind(held));
    if result != R::Ok {
        return refuse(c, handle.ctx, result);
    }
    let still = |record: &Record| record.book.may_unbind(held).is_ok();
    let Some((mut record, time)) = seize(handle.ctx, still) else {
        // It was lent, unbound or revoked at this very moment.
        return refuse(c, handle.ctx, R::Lent);
    };
    record.book.put(time);
    record.unbind();
    let answer = (R::Ok, effect(&record));
    drop(record);
    say(c, answer)
}

/// Sends the answer of `reconfigure`.
fn say_changed(c: &MethodCall<'_>, ctx: &'static Ctx, result: R, witness: Option<&Witness>) -> Outcome {
    let effect = effect(&ctx.record.lock());
    c.reply::<m::scheduling_context_reconfigure_results::Owned>(witness_words(witness), |mut r| {
        r.set_result(result);
        r.set_dispatch_effect(effect);
        if let Some(witness) = witness {
            fill_witness(r.init_witness(), witness);
        }
    })
}

fn reconfigure(c: &MethodCall<'_>, handle: &Handle, held: u64, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let p = message.root::<m::scheduling_context_reconfigure_params::Reader<'_>>()?.get_spec()?;
    c.expects::<m::scheduling_context_reconfigure_results::Owned>()?;
    let answer = |result: R| say_changed(c, handle.ctx, result, None);
    let result = said(handle.ctx.record.lock().book.may_change(held));
    if result != R::Ok {
        return answer(result);
    }
    let (spec, mut timeout) = match spec_of(c, &p) {
        Ok(good) => good,
        Err(raised) => return raised,
    };
    // A context may keep the band that it has; a higher one needs the right.
    let is_raised = look(handle.ctx, handle.id, |_, time| {
        time.is_none_or(|time| spec.criticality > time.spec.criticality)
    });
    if is_raised && !may_use_band(c, &spec) {
        return answer(R::Unauthorized);
    }
    let home = handle.ctx.record.lock().cpu;
    if !::sched::CpuId::new(home).is_some_and(|home| spec.cpu_mask.contains(home)) {
        return answer(R::NoCommonCpu);
    }
    // A refusal by the quotas comes before one by the CPU. The quota itself is taken with the change.
    if let Err(denied) = change::could_pay(handle.ctx, &spec) {
        leaving::sweep_all();
        change::could_pay(handle.ctx, &spec).map_err(|_| Refusal::Quota(denied))?;
    }
    let mut why = AdmissionError::Stale;
    for _ in 0..dispatch::TRIES {
        // Judged while the thread still has its time; when the change is made the CPU says whether the verdict still holds.
        let verdict = match dispatch::judge_change(home, handle.id, &spec) {
            Ok(verdict) => verdict,
            Err(refused) => {
                why = refused;
                break;
            }
        };
        match change::change(handle, held, spec, &verdict, &mut timeout) {
            Ok(()) => return answer(R::Ok),
            Err(Unchanged::Lent) => return answer(R::Lent),
            Err(Unchanged::Quota(denied)) => return Err(Refusal::Quota(denied)),
            Err(Unchanged::Refused(refused)) => why = refused,
        }
        if why != AdmissionError::Stale {
            break;
        }
        // Each test may be too short to pause by itself, but eight in a row are long: see `create` (K-26).
        preempt::point();
    }
    let witness = match why {
        AdmissionError::Refused(witness) => witness,
        _ => Witness::unfinished(::sched::CpuId::new(home).unwrap_or(::sched::CpuId::FIRST)),
    };
    say_changed(c, handle.ctx, R::ResourceExhausted, Some(&witness))
}

fn revoke(c: &MethodCall<'_>, handle: &Handle, held: u64) -> Outcome {
    c.expects::<m::scheduling_context_result::Owned>()?;
    let result = standing(&handle.ctx.record.lock(), held);
    let ended = result == R::Ok && end(handle.ctx, |record| record.book.generation() == held);
    if !ended {
        let result = if result == R::Ok { R::StaleGeneration } else { result };
        return refuse(c, handle.ctx, result);
    }
    // The caller's own capability takes over the new generation.
    let mut caps = c.process.caps.lock();
    if let Some(cap) = caps.get_mut(CapId(c.call.cap)) {
        cap.follow(handle, held + 1);
    }
    drop(caps);
    say(c, (R::Ok, DispatchEffect::InfoOnlyNoDispatchChange))
}

// ---- watching -------------------------------------------------------------------------------------------------------------

fn drain(c: &MethodCall<'_>, handle: &Handle, held: u64) -> Outcome {
    let result = standing(&handle.ctx.record.lock(), held);
    let (identity, news): (_, [Option<Cell>; 3]) = if result == R::StaleGeneration {
        ((0, 0), [None; 3])
    } else {
        let (identity, cells) = notify::drain(handle.ctx);
        (identity, cells.map(|cell| Some(cell).filter(|cell| cell.coalesced > 0)))
    };
    let count = news.iter().flatten().count() as u32;
    let more = 1 + count as usize * words::structure::<m::notification::Owned>();
    c.reply_long::<m::scheduling_context_notifications_results::Owned>(more, |mut r| {
        r.set_result(result);
        let mut cells = r.init_cells(count);
        for (at, cell) in news.iter().flatten().enumerate() {
            let mut n = cells.reborrow().get(at as u32);
            n.set_kind(cell.kind);
            n.set_context_id(identity.0);
            n.set_generation(identity.1);
            n.set_sequence(cell.sequence);
            n.set_coalesced(cell.coalesced);
            n.set_holder_pid(cell.holder.pid);
            n.set_holder_tid(cell.holder.tid);
            n.set_remaining_ns(cell.remaining_ns);
            n.set_next_ns(cell.next_ns);
            n.set_donated(cell.donated);
        }
    })
}

fn watch(c: &MethodCall<'_>, handle: &Handle, held: u64) -> Outcome {
    if standing(&handle.ctx.record.lock(), held) == R::StaleGeneration {
        return Err((Exception::Disconnected, "the context is stale").into());
    }
    match notify::watch(handle.ctx, || c.register(Waitable::Watch(handle.ctx))) {
        Watch::News => Ok(Completion::OK.into()),
        Watch::Sleeps => Ok(Reply::Later),
        Watch::Taken => Err((Exception::Overloaded, "somebody waits for this context already").into()),
        Watch::NoRoom => Err(TransportError::NoSpace.into()),
    }
}

fn yield_to(c: &MethodCall<'_>, handle: &Handle, held: u64) -> Outcome {
    c.expects::<m::scheduling_context_result::Owned>()?;
    let (result, holder) = {
        let record = handle.ctx.record.lock();
        (standing(&record, held), *record.book.holder())
    };
    let result = match result {
        R::Ok if holder == ThreadRef::NONE => R::NotBound,
        R::Ok if holder == c.thread.reference() => R::NotReady,
        R::Ok => {
            if dispatch::yield_to(&holder) {
                R::Ok
            } else {
                R::NotReady
            }
        }
        other => other,
    };
    refuse(c, handle.ctx, result)
}

// ---- listing --------------------------------------------------------------------------------------------------------------

/// SystemInfo.contexts: a list of all contexts with time.
pub fn list(c: &MethodCall<'_>, start: usize) -> Outcome {
    let entry_words = words::structure::<m::context_listing::Owned>() + info_words();
    let limit = (c.room() / 8).saturating_sub(words::message::<m::system_info_contexts_results::Owned>() + 2)
        / entry_words;
    let mut views = alloc::vec::Vec::new();
    views.try_reserve_exact(limit + 1).map_err(|_| TransportError::NoSpace)?;
    let mut index = 0;
    let mut skipped = 0;
    let mut pacer = Pacer::of_wakes();
    while let Some(ctx) = at(index) {
        index += 1;
        pacer.step();
        let id = {
            let record = ctx.record.lock();
            if !record.book.has_time() {
                continue;
            }
            record.id
        };
        if skipped < start {
            skipped += 1;
            continue;
        }
        if views.len() > limit {
            break;
        }
        views.push(view(ctx, id, None));
    }
    let more = views.len() > limit;
    views.truncate(limit);
    let words = 1 + views.len() * entry_words;
    preempt::point();
    c.reply_long::<m::system_info_contexts_results::Owned>(words, |mut r| {
        r.set_more(more);
        let mut list = r.init_contexts(views.len() as u32);
        for (at, view) in views.iter().enumerate() {
            let mut entry = list.reborrow().get(at as u32);
            entry.set_pid(view.owner.pid);
            entry.set_tid(view.owner.tid);
            if view.depth > 0 {
                entry.set_lent_to_pid(view.holder.pid);
                entry.set_lent_to_tid(view.holder.tid);
            }
            fill_info(entry.init_info(), view);
        }
    })
}
