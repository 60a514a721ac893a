//! Scheduling contexts: CPU time that can be created, bound to a thread, lent along a call, taken back and watched.
//!
//! Every method has an [`Outcome`]: the kernel's result, and what came with it. `?` handles exceptions and transport errors, and
//! [`Outcome::ok`] every result that is not `ok`:
//!
//! ```no_run
//! # use rt::{Fallback, Result, SchedulingContext, Spec};
//! # fn f(any: &SchedulingContext) -> Result<()> {
//! let context = any.create(&Spec::new(2_000_000, 10_000_000))?.context()?;
//! context.bind(Fallback::BestEffort)?.ok()?;
//! # Ok(())
//! # }
//! ```

use alloc_crate::vec::Vec;
use core::fmt;

use abi::{CapId, Cqe, Op, Sqe, TransportError};
use capnp::traits::{FromPointerBuilder, HasStructSize, Owned};
use schema::messages_capnp::{
    AdmissionReason, DispatchEffect, NotificationKind, OperationResult, admission_witness, context_listing,
    notification, scheduling_context_bind_params, scheduling_context_consumed_results,
    scheduling_context_create_params, scheduling_context_create_results, scheduling_context_info,
    scheduling_context_info_results, scheduling_context_notifications_results,
    scheduling_context_reconfigure_params, scheduling_context_reconfigure_results, scheduling_context_result,
};
use schema::methods::scheduling_context as methods;

use super::call::{RESULTS_BYTES, Results, call, read};
use super::{Answer, Incoming, Message, Spec, ThreadHandle};
use crate::caps::{Client, entry};
use crate::error::{Error, Result};
use crate::pending::Pending;
use crate::tls;

super::client!(SchedulingContext, "CPU time: a budget in every period, or only the right to create some.");

/// Room for the parameters of any method: a specification with its mask.
const PARAMS_BYTES: usize = 160;

/// The result of a method that ran: the second of the three planes of errors.
#[must_use = "the method may have refused: see `result`, or `ok()`"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome<T> {
    /// Whether the method did it, or why not.
    pub result: OperationResult,
    /// What came with the result. Some methods return something even if they refuse.
    pub value: T,
}

impl<T> Outcome<T> {
    /// The value if the result is `ok`; otherwise [`Error::Operation`].
    pub fn ok(self) -> Result<T> {
        if self.result == OperationResult::Ok { Ok(self.value) } else { Err(Error::Operation(self.result)) }
    }
}

/// What a bound thread does when it loses its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// It runs on at its weight.
    BestEffort,
    /// It stops until it is bound again.
    Stop,
}

/// The result of a `create`.
#[derive(Debug)]
pub struct Created {
    /// The context's number; 0 if there is none.
    pub id: u64,
    /// Its generation; 0 if there is none.
    pub generation: u64,
    /// What the CPU that has most left can still promise, if the result is `resourceExhausted`.
    pub free_ppm: u64,
    /// Why there is no context, if the result is `resourceExhausted`.
    pub witness: Option<Witness>,
    context: Option<SchedulingContext>,
}

/// The result of a `reconfigure`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconfigured {
    /// Whether a thread runs on it, so that its budget is enforced.
    pub effect: DispatchEffect,
    /// Why nothing was changed, if the result is `resourceExhausted`.
    pub witness: Option<Witness>,
}

/// Why a CPU cannot keep a promise (S-14): within an interval of `stretch_ns`, `demand_ns` are due in `band`, and `supply_ns` can be
/// supplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Witness {
    /// Why it was refused.
    pub reason: AdmissionReason,
    /// The CPU that refused.
    pub cpu: u32,
    /// The band in which a context would be late.
    pub band: u8,
    /// The length of the interval that shows it.
    pub stretch_ns: u64,
    /// What is due within that interval.
    pub demand_ns: u64,
    /// What the CPU can supply within that interval.
    pub supply_ns: u64,
    /// The context that contributes most; 0: the one that was asked for.
    pub largest: u64,
    /// What is left of the CPU.
    pub free_ppm: u64,
    /// When there will be room, if it is only taken by what contexts used before they left; on the timer's clock.
    pub until_ns: u64,
}

impl Witness {
    /// The inner `None`: nothing was refused.
    fn of(witness: admission_witness::Reader<'_>) -> Option<Option<Witness>> {
        let reason = witness.get_reason().ok()?;
        Some((reason != AdmissionReason::None).then(|| Witness {
            reason,
            cpu: witness.get_cpu(),
            band: witness.get_band(),
            stretch_ns: witness.get_stretch_ns(),
            demand_ns: witness.get_demand_ns(),
            supply_ns: witness.get_supply_ns(),
            largest: witness.get_largest_context_id(),
            free_ppm: witness.get_free_ppm(),
            until_ns: witness.get_until_ns(),
        }))
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Witness { cpu, band, stretch_ns, demand_ns, supply_ns, largest, free_ppm, .. } = self;
        let why = match self.reason {
            AdmissionReason::Utilisation => "all promises together would be too much",
            AdmissionReason::Demand => "somebody in its band would be late",
            AdmissionReason::LowerBandLate => "somebody in a lower band would be late",
            AdmissionReason::NoHome => "no CPU of several takes it",
            AdmissionReason::AnalysisLimit => "the test would take too long",
            AdmissionReason::BusyLeaving => "others have left, and what they used is not back",
            AdmissionReason::None => "it fits",
        };
        write!(
            f,
            "{why}: of {stretch_ns} ns on CPU {cpu}, {demand_ns} would be due in band {band} and {supply_ns} can be had; "
        )?;
        match largest {
            0 => write!(f, "what is asked for takes most")?,
            id => write!(f, "context {id} takes most")?,
        }
        write!(f, "; {free_ppm} ppm are free")
    }
}

impl Outcome<Created> {
    /// The new context.
    pub fn context(self) -> Result<SchedulingContext> {
        self.ok()?.context.ok_or(Error::BadReply)
    }
}

/// A context as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextInfo {
    /// Its number.
    pub id: u64,
    /// Its generation, which moves on when it is revoked.
    pub generation: u64,
    /// Its specification, without the timeout endpoint.
    pub spec: Spec,
    /// The CPU that promised the time.
    pub home: u32,
    /// Budget that is usable now.
    pub remaining_ns: u64,
    /// When the next refill becomes, or became, usable; on the timer's clock.
    pub next_refill_ns: u64,
    /// Used since it was made.
    pub consumed_ns: u64,
    /// How often the budget was used up.
    pub depletions: u64,
    /// The largest overrun.
    pub overrun_max_ns: u64,
    /// Calls that it is lent along.
    pub lent_depth: u32,
    /// Whether a thread runs on it, so that its budget is enforced.
    pub effect: DispatchEffect,
}

impl ContextInfo {
    fn of(info: scheduling_context_info::Reader<'_>) -> Option<ContextInfo> {
        Some(ContextInfo {
            id: info.get_context_id(),
            generation: info.get_generation(),
            spec: Spec::of(info.get_spec().ok()?)?,
            home: info.get_home(),
            remaining_ns: info.get_remaining_ns(),
            next_refill_ns: info.get_next_refill_ns(),
            consumed_ns: info.get_consumed_ns(),
            depletions: info.get_depletions(),
            overrun_max_ns: info.get_overrun_max_ns(),
            lent_depth: info.get_lent_depth(),
            effect: info.get_dispatch_effect().ok()?,
        })
    }
}

/// A context, and which threads have it: as [`super::SystemInfo::contexts`] lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextListing {
    /// The context.
    pub info: ContextInfo,
    /// The thread that it is bound to: process and thread.
    pub bound: Option<(u32, u32)>,
    /// The thread that has it on loan: process and thread.
    pub lent_to: Option<(u32, u32)>,
}

impl ContextListing {
    pub(super) fn of(listing: context_listing::Reader<'_>) -> Option<ContextListing> {
        let thread = |pid: u32, tid: u32| (pid != 0).then_some((pid, tid));
        Some(ContextListing {
            info: ContextInfo::of(listing.get_info().ok()?)?,
            bound: thread(listing.get_pid(), listing.get_tid()),
            lent_to: thread(listing.get_lent_to_pid(), listing.get_lent_to_tid()),
        })
    }

    /// The thread that runs on it, if one does: process and thread.
    pub fn holder(&self) -> Option<(u32, u32)> {
        self.lent_to.or(self.bound)
    }
}

/// Something that happened to a context, as often as `coalesced` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification {
    /// What happened.
    pub kind: NotificationKind,
    /// The context's number.
    pub id: u64,
    /// The context's generation.
    pub generation: u64,
    /// Events of this kind so far; saturates.
    pub sequence: u64,
    /// Events since the last drain; saturates.
    pub coalesced: u64,
    /// The process of the thread that ran on it.
    pub holder_pid: u32,
    /// The thread that ran on it.
    pub holder_tid: u32,
    /// The budget that was left.
    pub remaining_ns: u64,
    /// The next refill, or the deadline that passed.
    pub next_ns: u64,
    /// Whether the holder had it on loan.
    pub is_donated: bool,
}

impl Notification {
    fn of(cell: notification::Reader<'_>) -> Option<Notification> {
        Some(Notification {
            kind: cell.get_kind().ok()?,
            id: cell.get_context_id(),
            generation: cell.get_generation(),
            sequence: cell.get_sequence(),
            coalesced: cell.get_coalesced(),
            holder_pid: cell.get_holder_pid(),
            holder_tid: cell.get_holder_tid(),
            remaining_ns: cell.get_remaining_ns(),
            next_ns: cell.get_next_ns(),
            is_donated: cell.get_donated(),
        })
    }
}

/// Cells that a context has: one for each kind of event.
const CELLS_MAX: usize = 3;

/// What was drained: a cell for each kind of event that happened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Notifications {
    count: usize,
    cells: [Option<Notification>; CELLS_MAX],
}

impl Notifications {
    /// The cell of this kind, if something of it happened.
    pub fn get(&self, kind: NotificationKind) -> Option<&Notification> {
        self.iter().find(|cell| cell.kind == kind)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Notification> {
        self.cells[..self.count].iter().flatten()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What was used of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Consumed {
    /// Since it was made.
    pub total_ns: u64,
    /// Since the last call of this method.
    pub since_last_ns: u64,
}

/// A call that a context's timeout endpoint got from the kernel: a thread has used up its budget and is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeout {
    /// The context's number.
    pub context_id: u64,
    /// The thread's.
    pub tid: u32,
    /// Whether it has the context on loan.
    pub is_donated: bool,
}

impl Timeout {
    /// The thread goes on with the next refill.
    pub const WAIT: Answer<'static> = Answer::Words([abi::TIMEOUT_WAIT, 0]);
    /// The thread goes on at once at its weight, its context unbound or its loan returned.
    pub const DEMOTE: Answer<'static> = Answer::Words([abi::TIMEOUT_DEMOTE, 0]);

    /// What a received call says, if it is such a call.
    pub fn of(call: &Incoming) -> Option<Timeout> {
        match call.message {
            Message::Inline([context_id, thread]) if call.method == abi::TIMEOUT_METHOD => Some(Timeout {
                context_id,
                tid: thread as u32,
                is_donated: thread & abi::TIMEOUT_DONATED != 0,
            }),
            _ => None,
        }
    }
}

/// Parameters that are ready to be sent.
struct Params {
    bytes: [u8; PARAMS_BYTES],
    len: usize,
}

impl Params {
    const NONE: Params = Params { bytes: [0; PARAMS_BYTES], len: 0 };

    fn new<P>(more_words: usize, fill: impl FnOnce(P::Builder<'_>)) -> Result<Params>
    where
        P: Owned,
        for<'b> P::Builder<'b>: HasStructSize + FromPointerBuilder<'b>,
    {
        let mut params = Params::NONE;
        params.len =
            schema::encode::<P>(&mut params.bytes, more_words, fill).map_err(|_| TransportError::TooLong)?;
        Ok(params)
    }

    fn create(spec: &Spec) -> Result<Params> {
        Params::new::<scheduling_context_create_params::Owned>(spec.words(), |params| {
            spec.fill(params.init_spec());
        })
    }

    fn reconfigure(spec: &Spec) -> Result<Params> {
        Params::new::<scheduling_context_reconfigure_params::Owned>(spec.words(), |params| {
            spec.fill(params.init_spec());
        })
    }

    fn bind(thread: CapId, fallback: Fallback) -> Result<Params> {
        Params::new::<scheduling_context_bind_params::Owned>(0, |mut params| {
            params.set_thread(thread.0);
            params.set_context_only(fallback == Fallback::Stop);
        })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Methods that wait for their answer, and the same that start and return a [`Pending`].
macro_rules! methods {
    ($($(#[$about:meta])* $name:ident / $start:ident ($($arg:ident: $type:ty),*) -> $result:ty
        = $method:ident, $params:expr, $decode:ident;)*) => {$(
        $(#[$about])*
        pub fn $name(&self, $($arg: $type),*) -> Result<$result> {
            let mut room = [0; RESULTS_BYTES];
            $decode(self.run(methods::$method, $params.bytes(), &mut room)?)
        }

        #[doc = concat!("Starts [`SchedulingContext::", stringify!($name), "`].")]
        pub fn $start(&self, $($arg: $type),*) -> Result<Pending<$result>> {
            self.start(methods::$method, $params.bytes(), |cqe, room| $decode(Results::of(cqe, room)))
        }
    )*};
}

impl SchedulingContext {
    methods! {
        /// What it is, and how much of it was used. A context that is stale or was revoked still has its number, and no budget.
        info / info_start() -> Outcome<ContextInfo> = INFO, Params::NONE, info;

        /// Creates another context; [`Outcome::context`] has it.
        create / create_start(spec: &Spec) -> Outcome<Created> = CREATE, Params::create(spec)?, created;

        /// From now on the calling thread runs on it.
        bind / bind_start(fallback: Fallback) -> Outcome<DispatchEffect>
            = BIND_CALLER_THREAD, Params::bind(CapId::NONE, fallback)?, effect;

        /// From now on a thread of this process runs on it: at once if it waits, otherwise when it next leaves the kernel.
        bind_thread / bind_thread_start(thread: &ThreadHandle, fallback: Fallback) -> Outcome<DispatchEffect>
            = BIND_THREAD, Params::bind(thread.cap().id(), fallback)?, effect;

        /// As [`SchedulingContext::bind_thread`], with any number that a message can hold.
        bind_thread_raw / bind_thread_raw_start(thread: CapId, fallback: Fallback) -> Outcome<DispatchEffect>
            = BIND_THREAD, Params::bind(thread, fallback)?, effect;

        /// Unbinds it: its thread does not run on it any more.
        unbind / unbind_start() -> Outcome<DispatchEffect> = UNBIND, Params::NONE, effect;

        /// Other numbers for the same context. What was used stays used.
        reconfigure / reconfigure_start(spec: &Spec) -> Outcome<Reconfigured>
            = RECONFIGURE, Params::reconfigure(spec)?, reconfigured;

        /// Takes the context back from whichever thread has it. This capability sees `revoked` from now on, all others
        /// `staleGeneration`.
        revoke / revoke_start() -> Outcome<DispatchEffect> = REVOKE, Params::NONE, effect;

        /// Empties the cells, and says what was in them.
        drain / drain_start() -> Outcome<Notifications> = DRAIN_NOTIFICATIONS, Params::NONE, notifications;

        /// Waits until there is something to drain. Only one caller waits at a time.
        wait_notification / wait_notification_start() -> () = WAIT_NOTIFICATION, Params::NONE, nothing;

        /// What was used of it.
        consumed / consumed_start() -> Outcome<Consumed> = CONSUMED, Params::NONE, consumed;

        /// The calling thread queues behind the thread that runs on this context.
        yield_to / yield_to_start() -> Outcome<DispatchEffect> = YIELD_TO, Params::NONE, effect;
    }

    /// Calls any method with any bytes, to test the kernel. All results begin with the same field; an empty result is `ok`.
    pub fn call_raw(&self, method: u32, message: &[u8]) -> Result<OperationResult> {
        let mut room = [0; RESULTS_BYTES];
        let answer = self.run(method, message, &mut room)?;
        if answer.bytes.is_empty() { Ok(OperationResult::Ok) } else { Ok(effect(answer)?.result) }
    }

    fn run<'a>(&self, method: u32, params: &[u8], room: &'a mut [u8]) -> Result<Results<'a>> {
        call(&tls::current().client, self.0.id(), method, params, room)
    }

    fn start<T>(
        &self,
        method: u32,
        params: &[u8],
        decode: fn(&Cqe, &[u8]) -> Result<T>,
    ) -> Result<Pending<T>> {
        let sqe = Sqe { method, ..entry(Op::Call, self.0.id()) };
        Pending::start(sqe, Vec::from(params), alloc_crate::vec![0; RESULTS_BYTES], decode)
    }
}

fn nothing(_: Results<'_>) -> Result<()> {
    Ok(())
}

fn effect(answer: Results<'_>) -> Result<Outcome<DispatchEffect>> {
    read::<_, scheduling_context_result::Owned>(answer.bytes, |answer| {
        Some(Outcome { result: answer.get_result().ok()?, value: answer.get_dispatch_effect().ok()? })
    })
}

fn reconfigured(answer: Results<'_>) -> Result<Outcome<Reconfigured>> {
    read::<_, scheduling_context_reconfigure_results::Owned>(answer.bytes, |answer| {
        let effect = answer.get_dispatch_effect().ok()?;
        let witness = Witness::of(answer.get_witness().ok()?)?;
        Some(Outcome { result: answer.get_result().ok()?, value: Reconfigured { effect, witness } })
    })
}

fn info(answer: Results<'_>) -> Result<Outcome<ContextInfo>> {
    read::<_, scheduling_context_info_results::Owned>(answer.bytes, |answer| {
        Some(Outcome { result: answer.get_result().ok()?, value: ContextInfo::of(answer.get_info().ok()?)? })
    })
}

fn created(answer: Results<'_>) -> Result<Outcome<Created>> {
    // Made first: whatever the message says, the capability is ours to release.
    let context = answer.cap().ok().map(SchedulingContext);
    read::<_, scheduling_context_create_results::Owned>(answer.bytes, |answer| {
        Some(Outcome {
            result: answer.get_result().ok()?,
            value: Created {
                id: answer.get_context_id(),
                generation: answer.get_generation(),
                free_ppm: answer.get_free_ppm(),
                witness: Witness::of(answer.get_witness().ok()?)?,
                context,
            },
        })
    })
}

fn notifications(answer: Results<'_>) -> Result<Outcome<Notifications>> {
    read::<_, scheduling_context_notifications_results::Owned>(answer.bytes, |answer| {
        let mut found = Notifications { count: 0, cells: [None; CELLS_MAX] };
        for cell in answer.get_cells().ok()? {
            *found.cells.get_mut(found.count)? = Some(Notification::of(cell)?);
            found.count += 1;
        }
        Some(Outcome { result: answer.get_result().ok()?, value: found })
    })
}

fn consumed(answer: Results<'_>) -> Result<Outcome<Consumed>> {
    read::<_, scheduling_context_consumed_results::Owned>(answer.bytes, |answer| {
        let value = Consumed { total_ns: answer.get_total_ns(), since_last_ns: answer.get_since_last_ns() };
        Some(Outcome { result: answer.get_result().ok()?, value })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::CpuMask;
    use schema::words;

    /// The answer `fill` writes, which takes `more` words beside its root, as `decode` reads it from the room of a call.
    fn answered<P, T>(
        more: usize,
        fill: impl FnOnce(P::Builder<'_>),
        decode: fn(Results<'_>) -> Result<T>,
    ) -> T
    where
        P: Owned,
        for<'b> P::Builder<'b>: HasStructSize + FromPointerBuilder<'b>,
    {
        let mut room = [0; RESULTS_BYTES];
        let len = schema::encode::<P>(&mut room, more, fill).expect("the longest answer fits the room");
        let cqe = Cqe { value: len as u64, ..Cqe::default() };
        decode(Results::of(&cqe, &room)).expect("it is what the schema says")
    }

    /// The longest answer there is, a context with a mask of all CPUs, fits the room, and every field is in its place.
    #[test]
    fn s_02_info_of_a_stale_context() {
        let spec = Spec::new(7, 8).deadline(9).demote().criticality(3).refills(4);
        let fill = |mut answer: scheduling_context_info_results::Builder<'_>| {
            answer.set_result(OperationResult::StaleGeneration);
            let mut info = answer.init_info();
            info.set_context_id(10);
            info.set_generation(11);
            info.set_home(12);
            info.set_remaining_ns(13);
            info.set_next_refill_ns(14);
            info.set_consumed_ns(15);
            info.set_depletions(16);
            info.set_overrun_max_ns(17);
            info.set_lent_depth(18);
            info.set_dispatch_effect(DispatchEffect::BudgetEnforced);
            spec.fill(info.init_spec());
        };
        let more = words::structure::<scheduling_context_info::Owned>() + spec.words();
        let found = answered::<scheduling_context_info_results::Owned, _>(more, fill, info);
        let wanted = ContextInfo {
            id: 10,
            generation: 11,
            spec,
            home: 12,
            remaining_ns: 13,
            next_refill_ns: 14,
            consumed_ns: 15,
            depletions: 16,
            overrun_max_ns: 17,
            lent_depth: 18,
            effect: DispatchEffect::BudgetEnforced,
        };
        assert_eq!(found, Outcome { result: OperationResult::StaleGeneration, value: wanted });
        assert_eq!(found.ok(), Err(Error::Operation(OperationResult::StaleGeneration)));
        assert_eq!(found.value.spec.cpus, CpuMask::ALL);
    }

    /// All three cells fit the room; a fourth, which no context has, is not taken for an answer.
    #[test]
    fn s_08_cells() {
        let kinds = [
            NotificationKind::BudgetDepleted,
            NotificationKind::DeadlineOrTimeout,
            NotificationKind::ExplicitRevoke,
        ];
        let fill = |mut answer: scheduling_context_notifications_results::Builder<'_>| {
            answer.set_result(OperationResult::Revoked);
            let mut cells = answer.init_cells(3);
            for (index, kind) in kinds.into_iter().enumerate() {
                let mut cell = cells.reborrow().get(index as u32);
                cell.set_kind(kind);
                cell.set_coalesced(index as u64 + 1);
                cell.set_holder_tid(20 + index as u32);
                cell.set_donated(kind == NotificationKind::DeadlineOrTimeout);
            }
        };
        let more = words::structures::<notification::Owned>(3);
        let found = answered::<scheduling_context_notifications_results::Owned, _>(more, fill, notifications);
        assert_eq!(found.result, OperationResult::Revoked);
        assert!(found.value.iter().map(|cell| cell.kind).eq(kinds));
        for (index, kind) in kinds.into_iter().enumerate() {
            let cell = found.value.get(kind).unwrap();
            assert_eq!((cell.coalesced, cell.holder_tid), (index as u64 + 1, 20 + index as u32));
            assert_eq!(cell.is_donated, index == 1);
        }
        assert_eq!(found.value.get(NotificationKind::None), None);

        let mut room = [0; 2 * RESULTS_BYTES];
        let more = words::structures::<notification::Owned>(4);
        let len =
            schema::encode::<scheduling_context_notifications_results::Owned>(&mut room, more, |answer| {
                answer.init_cells(4);
            })
            .unwrap();
        let cqe = Cqe { value: len as u64, ..Cqe::default() };
        assert_eq!(notifications(Results::of(&cqe, &room)), Err(Error::BadReply));
    }

    /// S-05: the handler of a timeout learns the context, the thread, and whether it is a loan; other calls are no timeouts.
    #[test]
    fn s_05_timeouts() {
        let call = |method, message| Incoming { token: 1, badge: 0, method, message, cap: None };
        let words = Message::Inline([5, 7 | abi::TIMEOUT_DONATED]);
        let found = Timeout::of(&call(abi::TIMEOUT_METHOD, words));
        assert_eq!(found, Some(Timeout { context_id: 5, tid: 7, is_donated: true }));
        let found = Timeout::of(&call(abi::TIMEOUT_METHOD, Message::Inline([5, 7])));
        assert_eq!(found, Some(Timeout { context_id: 5, tid: 7, is_donated: false }));
        assert_eq!(Timeout::of(&call(0, words)), None);
        assert_eq!(Timeout::of(&call(abi::TIMEOUT_METHOD, Message::Bytes(16))), None);
    }
}
