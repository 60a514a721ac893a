//! Chains of calls: A calls B, which calls C, on A's context; and links of the chain end, in order and out of
//! order.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::ops::ControlFlow::Continue;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::{Exception, rights};
use rt::{
    Answer, Child, Client, Endpoint, Error, OperationResult as R, ParkSpace, SchedulingContext, caps, time,
};

use super::{Player, Stage, Test, endpoint, wait_lent};
use crate::contexts::{burn, copy};
use crate::ensure;
use crate::fair;
use crate::kit::{self, MS};
use crate::proof::{Doing, Outcome};
use crate::ticks::Scale;

/// The tests of this module.
pub const TESTS: [Test; 3] = [
    ("revoke-replies-in-order", in_order),
    ("revoke-replies-out-of-order", out_of_order),
    ("revoke-on-chain", revoke_on_chain),
];

/// The main function of process B, which runs until it is killed: works a little, and calls the next server.
pub fn link() -> Outcome {
    let scale = Scale::measure()?;
    let (served, next) = (caps::get::<Endpoint>("served")?, caps::get::<Endpoint>("next")?);
    served.serve(|_| {
        burn(MS, scale);
        Continue(next.call(1, [0; 2]).unwrap_or([99, 0]))
    })?;
    Ok(())
}

/// How A's call ended, for the thread that watches.
const ANSWERED: u64 = 1;
const DISCONNECTED: u64 = 2;

/// A chain with all three links made, and A's context lent to C.
struct Chain {
    caller: Player,
    context: SchedulingContext,
    id: u64,
    middle: Child,
    last: Player,
    /// C goes on when this becomes 1, and again when it becomes 2.
    step: Arc<AtomicU32>,
    ended: Arc<AtomicU64>,
    /// A ends when this becomes 1, and its context with it.
    curtain: Arc<AtomicU32>,
}

impl Chain {
    /// Makes a chain. C asks for the next call at step 1 if it `asks_again`; at step 2 it works for 2 ms and
    /// answers.
    fn make(stage: &Stage, asks_again: bool) -> Outcome<Chain> {
        let (first, second) = (endpoint()?, endpoint()?);
        let grants = [("served", first.cap(), rights::ALL, 0), ("next", second.cap(), rights::CALL, 0)];
        let middle = kit::again(&["--link"], &grants)?;
        let (step, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let (steps, theirs, scale) = (Arc::clone(&step), Arc::clone(&second), stage.scale);
        let last = Player::plain(move || {
            let call = theirs.recv(&mut [])?;
            burn(MS, scale);
            fair::wait_for(&steps)?;
            let other = if asks_again { Some(theirs.recv_start(0)?) } else { None };
            let space: ParkSpace = caps::any()?;
            while steps.load(Ordering::Acquire) == 1 {
                space.park(&steps, 1, u64::MAX)?;
            }
            burn(2 * MS, scale);
            // The caller may not wait for the answer any more.
            let _ = theirs.reply(call.token, Answer::Words([7, 0]));
            drop(other);
            Ok(())
        })?;
        last.go_and_wait()?;
        let curtain = Arc::new(AtomicU32::new(0));
        let (how, waits) = (Arc::clone(&ended), Arc::clone(&curtain));
        let caller = Player::start(&stage.spec(30 * MS, 100 * MS, 2), move || {
            let found = match first.call(1, [0; 2]) {
                Ok([7, _]) => ANSWERED,
                Err(Error::Exception { kind: Exception::Disconnected, .. }) => DISCONNECTED,
                other => {
                    ensure!(false, "A's call ended with {other:?}");
                    0
                }
            };
            how.store(found, Ordering::Release);
            fair::wait_for(&waits)
        })?;
        let context = copy(caller.its()?)?;
        let id = context.info()?.ok()?.id;
        // Time for B's process to start and to receive.
        time::sleep(20 * MS)?;
        caller.go()?;
        let chain = Chain { caller, context, id, middle, last, step, ended, curtain };
        let to = wait_lent(chain.id, 2)?;
        ensure!(to == Some((rt::boot_info().pid, chain.last.tid)), "lent to {to:?}");
        Ok(chain)
    }

    fn go_on(&self, step: u32) -> Outcome {
        self.step.store(step, Ordering::Release);
        caps::any::<ParkSpace>()?.unpark(&self.step, 1)?;
        Ok(())
    }

    fn used_ns(&self) -> Outcome<u64> {
        Ok(self.context.consumed()?.ok()?.total_ns)
    }

    fn kill_middle(&self) -> Outcome {
        self.middle.handle.kill().doing("kill B")?;
        self.middle.wait().doing("wait for B")?;
        Ok(())
    }

    /// Waits until A's call has ended as expected, with A's context back at A.
    fn wait_end(&self, how: u64) -> Outcome {
        kit::wait_until("A's call ends", || Ok(self.ended.load(Ordering::Acquire) != 0))?;
        let ended = self.ended.load(Ordering::Acquire);
        ensure!(ended == how, "A's call ended otherwise: {ended}");
        kit::wait_blocked(self.caller.tid)
    }

    /// Checks that A has its context, and that C's work is not charged to it.
    fn is_back(&self) -> Outcome {
        let found = super::listed(self.id)?;
        let own = Some((rt::boot_info().pid, self.caller.tid));
        ensure!(found.is_some_and(|f| f.info.lent_depth == 0 && f.holder() == own), "not back: {found:?}");
        let before = self.used_ns()?;
        self.go_on(2)?;
        kit::wait_until("C ends", || Ok(self.last.has_ended()))?;
        let after = self.used_ns()?;
        ensure!(after == before, "C works on for {} ns of A's", after - before);
        Ok(())
    }

    fn join(self) -> Outcome {
        self.last.join()?;
        self.curtain.store(1, Ordering::Release);
        caps::any::<ParkSpace>()?.unpark(&self.curtain, 1)?;
        self.caller.join()
    }
}

/// C's reply goes first, then B's: the context returns from C to B to A.
fn in_order(stage: &Stage) -> Outcome<String> {
    let chain = Chain::make(stage, true)?;
    chain.go_on(1)?;
    let to = wait_lent(chain.id, 1)?;
    ensure!(to.is_some_and(|(pid, _)| pid == chain.middle.pid), "C's loan went to {to:?}, not to B");
    ensure!(chain.ended.load(Ordering::Acquire) == 0, "A goes on while B has its context");
    let used = chain.used_ns()?;
    ensure!(used >= 2 * MS, "{used} ns used by B and C");
    chain.kill_middle()?;
    chain.wait_end(DISCONNECTED)?;
    chain.is_back()?;
    chain.join()?;
    Ok(format!("used_ns={used}"))
}

/// B's reply goes first: A has its context back at once, and C works on at its own weight.
fn out_of_order(stage: &Stage) -> Outcome<String> {
    let chain = Chain::make(stage, false)?;
    let before = chain.used_ns()?;
    chain.kill_middle()?;
    chain.wait_end(DISCONNECTED)?;
    chain.is_back()?;
    chain.join()?;
    Ok(format!("used_ns={before}"))
}

/// The context is revoked from the whole chain: all threads go on at their weights, and every answer arrives.
fn revoke_on_chain(stage: &Stage) -> Outcome<String> {
    let chain = Chain::make(stage, false)?;
    let used = chain.used_ns()?;
    chain.context.revoke()?.ok()?;
    ensure!(chain.context.info()?.result == R::Revoked, "not revoked");
    let stale = chain.caller.its()?.info()?;
    ensure!(
        stale.result == R::StaleGeneration && stale.value.lent_depth == 0,
        "the chain's is still one: {stale:?}"
    );
    ensure!(super::listed(chain.id)?.is_none(), "still listed");
    chain.go_on(2)?;
    chain.wait_end(ANSWERED)?;
    chain.kill_middle()?;
    chain.join()?;
    Ok(format!("used_ns={used}"))
}
