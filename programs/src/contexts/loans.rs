//! Steps of the proof `scheduling-context` about loans: every way in which a loan ends, nesting, refusals, the lender that waits (S-06,
//! S-07).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Exception, TransportError};
use rt::{Answer, Endpoint, Error, Factory, Fallback, SchedulingContext, Spec, caps, time};

use super::{Lend, all_back, burn, new_context};
use crate::kit::{MS, raised, refused};
use crate::proof::{Doing, Outcome};
use crate::ticks::Scale;
use crate::{ensure, markers};

/// How much CPU time the servers of these steps use for a call.
const WORK_NS: u64 = 3 * MS;

/// A context with a large budget, bound to the calling thread.
fn own() -> Outcome<SchedulingContext> {
    let own = new_context(&Spec::new(40 * MS, 200 * MS))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    Ok(own)
}

fn remaining_ns(context: &SchedulingContext) -> Outcome<u64> {
    Ok(context.info()?.ok()?.remaining_ns)
}

/// Fails unless at least `used_ns` of the budget are used and the caller runs on the rest again; returns what is left.
fn spent(context: &SchedulingContext, before: u64, used_ns: u64, scale: Scale) -> Outcome<u64> {
    let info = context.info()?.ok()?;
    ensure!(info.lent_depth == 0, "still lent: {info:?}");
    ensure!(
        info.remaining_ns + used_ns <= before,
        "{before} ns before and {} after: the server's {used_ns} are not in it",
        info.remaining_ns
    );
    burn(MS / 2, scale);
    let after = remaining_ns(context)?;
    ensure!(
        after + MS / 4 <= info.remaining_ns,
        "the caller runs, and not on its budget: {after} ns after {info:?}"
    );
    Ok(after)
}

/// The caller has budget again when the call has returned, less what the server used.
pub fn plain(scale: Scale) -> Outcome {
    let lend = Lend::start(move |call| {
        burn(WORK_NS, scale);
        Answer::Words([call.message.words()[0] + 1, 0])
    })?;
    let own = own()?;
    burn(2 * MS, scale);
    let before = remaining_ns(&own)?;
    let answer = lend.endpoint.call(1, [41, 0])?;
    let after = spent(&own, before, WORK_NS, scale)?;
    ensure!(answer[0] == 42, "answered {answer:?}");
    markers!("endpoint_donation=ok endpoint_return=ok");
    markers!(
        "endpoint_donation_before={before} endpoint_donation_server={WORK_NS} endpoint_donation_after={after}"
    );
    own.unbind()?.ok()?;
    lend.stop()
}

/// An exception, and an answer for which the caller has no room, end the loan, too.
pub fn other_answers(scale: Scale) -> Outcome {
    let lend = Lend::start(move |call| {
        burn(WORK_NS, scale);
        match call.method {
            1 => Answer::Raise(Exception::Failed, "not today"),
            _ => Answer::Bytes(b"much more than eight bytes"),
        }
    })?;
    let own = own()?;
    let before = remaining_ns(&own)?;
    raised("an exception under a loan", lend.endpoint.call(1, [0; 2]), Exception::Failed)?;
    let after = spent(&own, before, WORK_NS, scale)?;
    markers!("endpoint_exception_return=ok endpoint_exception_return_after={after}");
    let mut room = [0; 8];
    let answer = lend.endpoint.call_bytes(2, &[], &mut room);
    refused("an answer that does not fit", answer, TransportError::TooLong)?;
    let after = spent(&own, after, WORK_NS, scale)?;
    markers!("endpoint_invalid_return=ok endpoint_invalid_return_after={after}");
    own.unbind()?.ok()?;
    lend.stop()
}

/// Servers each of which calls the next one; the last one only works.
struct Chain {
    servers: Vec<Lend>,
}

impl Chain {
    fn start(length: usize, scale: Scale) -> Outcome<Chain> {
        let mut servers: Vec<Lend> = Vec::new();
        for _ in 0..length {
            let next = servers.last().map(|server| Arc::clone(&server.endpoint));
            servers.push(Lend::start(move |call| {
                burn(MS / 2, scale);
                let deeper = next.as_ref().map_or(Ok([0; 2]), |next| next.call(1, call.message.words()));
                match deeper {
                    Ok([depth, error]) => Answer::Words([depth + 1, error]),
                    Err(error) => Answer::Words([1, error.transport().map_or(1, |kind| kind as i32 as u64)]),
                }
            })?);
        }
        Ok(Chain { servers })
    }

    fn call(&self) -> Outcome<[u64; 2]> {
        let first = self.servers.last().map(|server| Arc::clone(&server.endpoint));
        first.map_or(Ok([0; 2]), |first| first.call(1, [0; 2]).doing("call a chain"))
    }

    fn stop(self) -> Outcome {
        self.servers.into_iter().rev().try_for_each(Lend::stop)
    }
}

/// A loan goes from A to B to C and back; then through as many servers as allowed, and one more.
pub fn nested(scale: Scale) -> Outcome {
    let own = own()?;
    let chain = Chain::start(3, scale)?;
    let before = remaining_ns(&own)?;
    ensure!(chain.call()? == [3, 0], "three servers");
    let after = spent(&own, before, 3 * MS / 2, scale)?;
    chain.stop()?;
    markers!("endpoint_nested=ok endpoint_nested_after={after}");
    let deepest = Chain::start(8, scale)?;
    ensure!(deepest.call()? == [8, 0], "eight servers");
    deepest.stop()?;
    let too_deep = Chain::start(9, scale)?;
    let answer = too_deep.call()?;
    ensure!(answer == [8, TransportError::LoanTooDeep as i32 as u64], "nine servers answered {answer:?}");
    spent(&own, after, 8 * MS / 2, scale)?;
    too_deep.stop()?;
    markers!("endpoint_depth_rejected=ok");
    own.unbind()?.ok()?;
    Ok(())
}

/// A call to a server that waits for this very answer is refused, and the rest goes on.
pub fn circle(scale: Scale) -> Outcome {
    let own = own()?;
    let mine = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let theirs = Arc::clone(&mine);
    let lend = Lend::start(move |_| {
        burn(MS, scale);
        let refusal = theirs.call(1, [0; 2]).err();
        Answer::Words([refusal.as_ref().and_then(Error::transport).map_or(0, |kind| kind as i32 as u64), 0])
    })?;
    let mut incoming = mine.recv_start(0)?;
    let before = remaining_ns(&own)?;
    let answer = lend.endpoint.call(1, [0; 2])?;
    ensure!(answer[0] == TransportError::LoanCycle as i32 as u64, "the circle was answered {answer:?}");
    spent(&own, before, MS, scale)?;
    ensure!(incoming.poll().is_none(), "the refused call arrived");
    markers!("endpoint_cycle_rejected=ok");
    drop(incoming);
    own.unbind()?.ok()?;
    lend.stop()
}

/// A lender that submits a call without asking to wait waits nevertheless.
pub fn lender_waits(scale: Scale) -> Outcome {
    const DELAY_NS: u64 = 20 * MS;
    let lend = Lend::start(move |call| {
        if call.method == 1 {
            // Without using the CPU: only the waiting time is measured.
            let _ = time::sleep(DELAY_NS);
        }
        burn(MS / 2, scale);
        Answer::Words([7, 0])
    })?;
    let own = own()?;
    let before = remaining_ns(&own)?;
    let start = time::now_ns()?;
    let mut call = lend.endpoint.call_start(1, [0; 2])?;
    let elapsed = time::now_ns()? - start;
    ensure!(elapsed >= DELAY_NS, "the lender was back in user mode after {elapsed} ns");
    let answer = call.poll();
    ensure!(
        matches!(&answer, Some(Ok(reply)) if reply.words()[0] == 7),
        "the answer is not there: {answer:?}"
    );
    let after = spent(&own, before, MS / 2, scale)?;
    markers!(
        "endpoint_donor_block=ok endpoint_donor_block_elapsed_ns={elapsed} endpoint_donor_block_after={after}"
    );
    let start = time::now_ns()?;
    let mut call = lend.endpoint.call_start(2, [0; 2])?;
    let elapsed = time::now_ns()? - start;
    ensure!(call.poll().is_some_and(|answer| answer.is_ok()), "the quick answer is not there");
    let after = spent(&own, after, MS / 2, scale)?;
    markers!(
        "endpoint_donor_fast=ok endpoint_donor_fast_elapsed_ns={elapsed} endpoint_donor_fast_after={after}"
    );
    own.unbind()?.ok()?;
    lend.stop()
}

/// A server that asks for the next call before it has answered loses the loan and works on at its weight: the lender may go on.
pub fn next_call_returns_the_loan(scale: Scale) -> Outcome {
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let (theirs, answered) = (Arc::clone(&endpoint), Arc::new(AtomicBool::new(false)));
    let late = Arc::clone(&answered);
    let server = rt::thread::spawn(move || -> Outcome {
        let first = theirs.recv(&mut [])?;
        burn(MS, scale);
        // Asks for the second call before it has answered the first.
        let second = theirs.recv(&mut [])?;
        burn(WORK_NS, scale);
        late.store(true, Ordering::Relaxed);
        theirs.reply(first.token, Answer::Words([1, 0]))?;
        theirs.reply(second.token, Answer::Words([2, 0]))?;
        Ok(())
    });
    time::sleep(5 * MS)?;
    let own = own()?;
    let before = remaining_ns(&own)?;
    let mut first = endpoint.call_start(1, [0; 2])?;
    // The caller goes on before it is answered, because its loan is back.
    ensure!(!answered.load(Ordering::Relaxed) && first.poll().is_none(), "answered already");
    let after = spent(&own, before, MS, scale)?;
    own.unbind()?.ok()?;
    ensure!(endpoint.call(2, [0; 2])?[0] == 2 && first.wait()?.words()[0] == 1, "other answers");
    let end = remaining_ns(&own)?;
    ensure!(
        end + MS / 10 >= after,
        "{end} ns left of {after}: the second call was on the first one's account"
    );
    markers!("endpoint_recv_returns=ok");
    server.join()?
}

/// A call that waits in the queue lends when the server takes it.
pub fn queued(scale: Scale) -> Outcome {
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let theirs: Arc<Endpoint> = Arc::clone(&endpoint);
    let server = rt::thread::spawn(move || -> Outcome {
        time::sleep(10 * MS)?;
        let call = theirs.recv(&mut [])?;
        burn(WORK_NS, scale);
        theirs.reply(call.token, Answer::Words([5, 0]))?;
        Ok(())
    });
    let own = own()?;
    let before = remaining_ns(&own)?;
    ensure!(endpoint.call(1, [0; 2])?[0] == 5, "another answer");
    let after = spent(&own, before, WORK_NS, scale)?;
    markers!("endpoint_queued_donation=ok endpoint_queued_after={after}");
    own.unbind()?.ok()?;
    server.join()?
}

/// A server that may not run on the context's home CPU is served on another CPU that both may use, or the call is refused.
pub fn hosted(scale: Scale) -> Outcome {
    if rt::boot_info().cpus < 2 {
        markers!("endpoint_hosted=none (one CPU)");
        return Ok(());
    }
    let lend = Lend::start_on(Some(1), move |_| {
        burn(WORK_NS, scale);
        Answer::Words([super::cpu_now().map_or(u64::MAX, u64::from), 0])
    })?;
    // By then the time used by dropped contexts is back (S-13); and a context on the second CPU makes the first one the CPU with the
    // most left.
    all_back()?;
    let ballast = new_context(&Spec::new(20 * MS, 200 * MS).cpus([1]))?;
    let everywhere = new_context(&Spec::new(40 * MS, 200 * MS).cpus([0, 1]))?;
    everywhere.bind(Fallback::BestEffort)?.ok()?;
    ensure!(everywhere.info()?.ok()?.home == 0, "the home is not the first CPU");
    ballast.revoke()?.ok()?;
    let before = remaining_ns(&everywhere)?;
    let answer = lend.endpoint.call(1, [0; 2])?;
    ensure!(answer[0] == 1, "the server ran on CPU {}", answer[0]);
    let after = spent(&everywhere, before, WORK_NS, scale)?;
    ensure!(super::cpu_now()? == 0 && everywhere.info()?.ok()?.home == 0, "the caller is not at home");
    everywhere.unbind()?.ok()?;
    let at_home = new_context(&Spec::new(40 * MS, 200 * MS).cpus([0]))?;
    at_home.bind(Fallback::BestEffort)?.ok()?;
    refused("a server elsewhere", lend.endpoint.call(1, [0; 2]), TransportError::NoCommonCpu)?;
    at_home.unbind()?.ok()?;
    // The fifth of the CPU that was reserved for the server on loan is free again once the used time is back; a tenth belongs to
    // another context of the manifest.
    all_back()?;
    let rest = new_context(&Spec::new(84 * MS, 100 * MS).cpus([1]));
    ensure!(rest.is_ok(), "the host keeps what the guest has left: {:?}", rest.err());
    markers!("endpoint_hosted=ok endpoint_hosted_after={after} endpoint_no_common_cpu=ok");
    lend.stop()
}
