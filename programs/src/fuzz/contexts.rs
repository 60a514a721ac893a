//! Messages to scheduling contexts: mostly valid, so that there are contexts to work with; the rest nearly valid.

use alloc::vec::Vec;

use rt::abi::{CapId, Interface, rights};
use rt::{Client, SchedulingContext, Spec, caps};
use schema::messages_capnp as m;
use schema::methods::scheduling_context as methods;

use super::generate::{TEMPLATE_WORDS, encoded};
use crate::proof::{Doing, Outcome};
use crate::random::Random;

/// The contexts that each process has at the start: some with time, a revoked one, and a capability made stale by the revocation.
pub fn prepare() -> Outcome<Vec<CapId>> {
    let mut found = Vec::new();
    // Without them, the fuzzer fuzzes the rest.
    let Ok(any) = caps::any::<SchedulingContext>() else { return Ok(found) };
    for is_revoked in [false, false, true] {
        let made = any.create(&Spec::new(200_000, 2_000_000).demote()).doing("a context")?;
        // The other processes may have all the time that there is.
        let Ok(context) = made.context() else { continue };
        if is_revoked {
            let stale =
                context.cap().copy(rights::CALL | rights::WRITE | rights::GRANT, 0).doing("a copy")?;
            context.revoke().doing("revoke")?.ok().doing("revoke")?;
            found.push(stale.into_id());
        }
        found.push(context.into_cap().into_id());
    }
    Ok(found)
}

/// Makes the kernel's table of contexts as large as it will get; see [`crate::machine::warm_up`].
pub fn warm_up() -> Outcome {
    let Ok(any) = caps::any::<SchedulingContext>() else { return Ok(()) };
    let mut made = Vec::with_capacity(RECORDS);
    while made.len() < RECORDS {
        // As many as possible: the smallest budget in the longest period.
        let outcome = any.create(&Spec::new(20_000, 60_000_000_000)).doing("a context")?;
        let Ok(context) = outcome.context() else { break };
        made.push(context);
    }
    Ok(())
}

/// How many contexts were ever created on this machine, judged by the number of a new one; 0 if this process may create none.
pub fn made() -> Outcome<u64> {
    let Ok(any) = caps::any::<SchedulingContext>() else { return Ok(0) };
    let outcome = any.create(&Spec::new(20_000, 60_000_000_000)).doing("a context")?;
    Ok(outcome.ok().doing("a context")?.id)
}

/// The most contexts that all fuzzers together have: each thread remembers 32 capabilities, and others come with the messages of calls.
const RECORDS: usize = 200;

/// Methods without parameters.
pub const PLAIN: [(Interface, u32); 7] = [
    (Interface::SchedulingContext, methods::INFO),
    (Interface::SchedulingContext, methods::UNBIND),
    (Interface::SchedulingContext, methods::REVOKE),
    (Interface::SchedulingContext, methods::DRAIN_NOTIFICATIONS),
    (Interface::SchedulingContext, methods::WAIT_NOTIFICATION),
    (Interface::SchedulingContext, methods::CONSUMED),
    (Interface::SchedulingContext, methods::YIELD_TO),
];

/// CPU masks; the last three are not canonical.
const MASKS: [&[u8]; 9] = [&[1], &[2], &[3], &[0xff; 32], &[0, 0, 0, 0x80], &[], &[0], &[1, 0], &[1; 33]];

/// Writes a message into `words` for a method that takes one; returns the method and the message's length in words. The message may name
/// `endpoint` and `thread`.
pub fn message(
    random: &mut Random,
    words: &mut [u64; TEMPLATE_WORDS],
    endpoint: u32,
    thread: u32,
) -> (u32, usize) {
    let method = random.one_of(&[
        methods::CREATE,
        methods::CREATE,
        methods::CREATE,
        methods::RECONFIGURE,
        methods::BIND_CALLER_THREAD,
        methods::BIND_THREAD,
    ]);
    let len = match method {
        methods::CREATE => encoded::<m::scheduling_context_create_params::Owned>(words, SPEC_WORDS, |p| {
            fill(random, p.init_spec(), endpoint);
        }),
        methods::RECONFIGURE => {
            encoded::<m::scheduling_context_reconfigure_params::Owned>(words, SPEC_WORDS, |p| {
                fill(random, p.init_spec(), endpoint);
            })
        }
        _ => encoded::<m::scheduling_context_bind_params::Owned>(words, 0, |mut p| {
            // A thread that stops without a context does nothing any more; the supervisor kills a process of such threads.
            p.set_context_only(random.below(100) == 0);
            p.set_thread(thread);
        }),
    };
    (method, len)
}

/// Whether the method binds a thread.
pub fn is_binding(method: u32) -> bool {
    matches!(method, methods::BIND_CALLER_THREAD | methods::BIND_THREAD)
}

/// The words of a specification with the longest mask.
const SPEC_WORDS: usize = 5 + 5;

fn fill(random: &mut Random, mut spec: m::scheduling_context_spec::Builder<'_>, endpoint: u32) {
    let is_odd = random.below(4) == 0;
    if is_odd {
        spec.set_budget_ns(random.one_of(&[0, 19_999, 20_000, 950_000, 1_000_000, 1 << 40, u64::MAX]));
        spec.set_period_ns(random.one_of(&[0, 20_000, 1_000_000, 60_000_000_000, 60_000_000_001, u64::MAX]));
        spec.set_relative_deadline_ns(random.one_of(&[0, 1, 20_000, 500_000, 1_000_000, u64::MAX]));
        spec.set_criticality(random.below(10) as u8);
        spec.set_max_refills(random.below(10) as u8);
    } else {
        spec.set_budget_ns(random.one_of(&[20_000, 50_000, 100_000]));
        spec.set_period_ns(random.one_of(&[1_000_000, 2_000_000]));
    }
    // Threads that are not demoted wait a lot, and so submit little.
    let (overrun, timeout) = match random.below(12) {
        0 => (m::OverrunPolicy::Throttle, 0),
        1 => (m::OverrunPolicy::Fault, endpoint),
        2 => (m::OverrunPolicy::Fault, 0),
        3 => (m::OverrunPolicy::Demote, endpoint),
        _ => (m::OverrunPolicy::Demote, 0),
    };
    spec.set_overrun_policy(overrun);
    spec.set_timeout_endpoint(timeout);
    let masks = if random.below(8) == 0 { &MASKS[..] } else { &MASKS[..4] };
    spec.set_cpu_mask(random.one_of(masks));
}
