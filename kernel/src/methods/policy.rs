//! SchedulingPolicy's methods: what a thread may choose about its share (F-05, F-06, F-07).

use super::{MethodCall, Outcome, Refusal};
use crate::dispatch::percpu;
use crate::object::Object;
use crate::policy::Share;
use crate::ring::Completion;
use crate::time;
use crate::tracing;
use abi::{CLASS_INHERIT, CapId, Exception, TransportError, WEIGHT_INHERIT, WEIGHT_MAX, WEIGHT_MIN, rights};
use sched::{LatencyClass, Snapshot, Weight};
use schema::messages_capnp as m;

const _: () = assert!(WEIGHT_MIN == sched::MIN_WEIGHT && WEIGHT_MAX == sched::MAX_WEIGHT);
const _: () = assert!(abi::WEIGHT_DEFAULT == sched::DEFAULT_WEIGHT);
const _: () = {
    let mut i = 0;
    while i < LatencyClass::ALL.len() {
        assert!(LatencyClass::ALL[i] as u16 == abi::LatencyClass::ALL[i] as u16);
        i += 1;
    }
};

fn weight_of(c: &MethodCall<'_>, raw: u32) -> Result<Weight, Outcome> {
    let weight = u16::try_from(raw).ok().and_then(|raw| Weight::new(raw).ok());
    weight.ok_or_else(|| {
        let range = format_args!("weight {raw} is outside {WEIGHT_MIN} to {WEIGHT_MAX}");
        c.refuse(Exception::InvalidArgument, range)
    })
}

fn class_of(c: &MethodCall<'_>, raw: u16) -> Result<LatencyClass, Outcome> {
    LatencyClass::ALL.get(usize::from(raw)).copied().ok_or_else(|| {
        let known = format_args!("class {raw} is not 0 interactive, 1 normal, 2 batch or 3 ipcserver");
        c.refuse(Exception::InvalidArgument, known)
    })
}

/// SchedulingPolicy's methods.
pub fn call(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    match c.call.method {
        0 => {
            let message = schema::decode(params)?;
            let raw = message.root::<m::scheduling_policy_set_weight_params::Reader<'_>>()?.get_weight();
            let weight = match weight_of(c, raw) {
                Ok(weight) => weight,
                Err(refused) => return refused,
            };
            let me = percpu::this();
            let mut queue = me.dispatch.queue.lock();
            let now = time::now_ns();
            if let Some(current) = queue.current() {
                tracing::weighs(me, current, weight, now);
            }
            let set = queue.set_current_weight(weight.get(), now);
            debug_assert!(set.is_ok(), "a weight is a weight");
            Ok(Completion::OK.into())
        }
        1 => {
            let message = schema::decode(params)?;
            let raw =
                message.root::<m::scheduling_policy_set_latency_class_params::Reader<'_>>()?.get_class();
            let class = match class_of(c, raw) {
                Ok(class) => class,
                Err(refused) => return refused,
            };
            let me = percpu::this();
            let mut queue = me.dispatch.queue.lock();
            tracing::ranks(me, class, time::now_ns());
            queue.set_current_class(class);
            Ok(Completion::OK.into())
        }
        _ => {
            let now = crate::dispatch::current_snapshot().ok_or(TransportError::Cancelled)?;
            c.reply::<m::scheduling_policy_snapshot_results::Owned>(0, |r| fill(r, &now))
        }
    }
}

fn fill(mut r: m::scheduling_policy_snapshot_results::Builder<'_>, snapshot: &Snapshot) {
    r.set_weight(snapshot.weight.get().into());
    r.set_class(snapshot.class as u16);
    r.set_runtime_ns(snapshot.runtime_ns);
    r.set_virtual_runtime_ns(snapshot.virtual_runtime_ns);
    r.set_voluntary_blocks(snapshot.voluntary_blocks);
    r.set_preemptions(snapshot.preemptions);
    r.set_runnable_accumulated_ns(snapshot.runnable_accumulated_ns);
    r.set_migrations(snapshot.migrations);
    r.set_throttles(snapshot.throttles);
}

/// The share that a spawn chooses for the child's first thread. An `Err` is the answer to the caller.
pub fn chosen(c: &MethodCall<'_>, p: &m::process_spawner_spawn_params::Reader<'_>) -> Result<Share, Outcome> {
    let (weight, class) = (p.get_weight(), p.get_class());
    if weight == WEIGHT_INHERIT && class == CLASS_INHERIT {
        return Ok(Share::INHERITED);
    }
    holds_policy(c, p.get_policy()).map_err(|(kind, why)| Err(Refusal::Exception(kind, why)))?;
    let weight = if weight == WEIGHT_INHERIT { None } else { Some(weight_of(c, weight)?) };
    let class = if class == CLASS_INHERIT { None } else { Some(class_of(c, class)?) };
    Ok(Share { weight, class })
}

/// Whether `raw` is a SchedulingPolicy that the caller may use.
fn holds_policy(c: &MethodCall<'_>, raw: u32) -> Result<(), (Exception, &'static str)> {
    if raw == CapId::NONE.0 {
        return Err((
            Exception::Failed,
            "a weight or class for the child needs the caller's SchedulingPolicy",
        ));
    }
    let caps = c.process.caps.lock();
    let cap =
        caps.get(CapId(raw)).ok_or((Exception::InvalidArgument, "the policy capability does not exist"))?;
    let object = cap.object().map_err(|_| (Exception::Disconnected, "the policy capability was revoked"))?;
    if !matches!(object, Object::SchedulingPolicy(_)) {
        return Err((Exception::InvalidArgument, "the policy capability is no SchedulingPolicy"));
    }
    if cap.rights & rights::CALL == 0 {
        return Err((Exception::Failed, "the policy capability may not be called"));
    }
    Ok(())
}
