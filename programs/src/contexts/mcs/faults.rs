//! Timeout faults: plain ones, in servers and along chains; and woken threads that bring their own CPU time.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use rt::sync::Mutex;
use rt::{Answer, Fallback, NotificationKind as Kind, SchedulingContext, Timeout, thread, time};

use super::{Marks, Player, Stage, Test, endpoint, quiet};
use crate::contexts::{Lend, burn, copy, new_context};
use crate::ensure;
use crate::kit::MS;
use crate::proof::Outcome;

/// The tests of this module.
pub const TESTS: [Test; 5] = [
    ("timeout-plain", timeout_plain),
    ("timeout-server", timeout_server),
    ("timeout-nested", timeout_nested),
    ("fault-on-loan", fault_on_loan),
    ("notify-carries", notify_carries),
];

/// The context of the threads here: 2 ms in 40 ms.
const BUDGET_NS: u64 = 2 * MS;
const PERIOD_NS: u64 = 40 * MS;

/// A thread that is stopped in the middle of its work counts up to this much of the pause as its own time.
const BREAK_NS: u64 = MS / 10;

/// A handler that gives all timeout faults the same answer, and records them.
struct Handler {
    lend: Lend,
    heard: Arc<Mutex<Vec<Timeout>>>,
}

impl Handler {
    fn start(answer: Answer<'static>) -> Outcome<Handler> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&heard);
        let lend = Lend::start(move |call| {
            told.lock().extend(Timeout::of(call));
            answer
        })?;
        Ok(Handler { lend, heard })
    }

    /// A context whose timeout faults are reported to this handler.
    fn context(&self, stage: &Stage) -> Outcome<SchedulingContext> {
        new_context(&stage.spec(BUDGET_NS, PERIOD_NS, 1).fault(&self.lend.endpoint))
    }

    /// The threads that were stopped, in order, and whether each was on a loan; fails unless all were on context `id`.
    fn heard(&self, id: u64) -> Outcome<Vec<(u32, bool)>> {
        let heard = self.heard.lock();
        ensure!(
            heard.iter().all(|fault| fault.context_id == id),
            "of other contexts: {:?}",
            heard.as_slice()
        );
        Ok(heard.iter().map(|fault| (fault.tid, fault.is_donated)).collect())
    }
}

fn id_of(context: &SchedulingContext) -> Outcome<u64> {
    Ok(context.info()?.ok()?.id)
}

/// A thread that uses up its own budget is reported each time, and goes on after the refill.
fn timeout_plain(stage: &Stage) -> Outcome<String> {
    let handler = Handler::start(Timeout::WAIT)?;
    let own = handler.context(stage)?;
    let id = id_of(&own)?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    stage.burn(2 * BUDGET_NS + MS);
    let took = time::now_ns()? - start;
    own.unbind()?.ok()?;
    let heard = handler.heard(id)?;
    ensure!(heard == [(thread::id(), false); 2], "heard of {heard:?}");
    ensure!(took >= 2 * PERIOD_NS - BUDGET_NS, "it did not wait for refills: {took} ns");
    let news = own.drain()?.ok()?;
    let cell = news.get(Kind::DeadlineOrTimeout);
    ensure!(cell.is_some_and(|cell| cell.coalesced >= 2 && !cell.is_donated), "not noted: {news:?}");
    handler.lend.stop()?;
    Ok(format!("faults={} took_ns={took}", heard.len()))
}

/// When a server uses up its caller's budget, the server is reported; the caller waits, and gets its context back.
fn timeout_server(stage: &Stage) -> Outcome<String> {
    let scale = stage.scale;
    let handler = Handler::start(Timeout::WAIT)?;
    let lend = Lend::start(move |_| {
        burn(BUDGET_NS + MS, scale);
        Answer::Words([1, 0])
    })?;
    let own = handler.context(stage)?;
    let id = id_of(&own)?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    ensure!(lend.endpoint.call(1, [0; 2])?[0] == 1, "another answer");
    let took = time::now_ns()? - start;
    let info = own.info()?.ok()?;
    own.unbind()?.ok()?;
    let heard = handler.heard(id)?;
    ensure!(heard == [(lend.tid, true)], "heard of {heard:?}, the server is {}", lend.tid);
    ensure!(took >= PERIOD_NS - BUDGET_NS, "it did not wait for the refill: {took} ns");
    ensure!(info.lent_depth == 0 && info.consumed_ns + BREAK_NS >= BUDGET_NS + MS, "not back: {info:?}");
    lend.stop()?;
    handler.lend.stop()?;
    Ok(format!("faults={} took_ns={took}", heard.len()))
}

/// A calls B, which calls C: C uses up the budget, goes on after the refill, and all calls are answered.
fn timeout_nested(stage: &Stage) -> Outcome<String> {
    let scale = stage.scale;
    let handler = Handler::start(Timeout::WAIT)?;
    let last = Lend::start(move |_| {
        burn(BUDGET_NS, scale);
        Answer::Words([1, 0])
    })?;
    let next = Arc::clone(&last.endpoint);
    let middle = Lend::start(move |_| {
        burn(MS / 2, scale);
        let deeper = next.call(1, [0; 2]).map_or(0, |answer| answer[0]);
        // C has left too little of the budget for this.
        burn(BUDGET_NS, scale);
        Answer::Words([deeper + 1, 0])
    })?;
    let own = handler.context(stage)?;
    let id = id_of(&own)?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    let answer = middle.endpoint.call(1, [0; 2])?;
    let took = time::now_ns()? - start;
    own.unbind()?.ok()?;
    ensure!(answer[0] == 2, "answered {answer:?}");
    let heard = handler.heard(id)?;
    ensure!(heard == [(last.tid, true), (middle.tid, true)], "heard of {heard:?}");
    ensure!(took >= 2 * PERIOD_NS - BUDGET_NS, "they did not wait for refills: {took} ns");
    middle.stop()?;
    last.stop()?;
    handler.lend.stop()?;
    Ok(format!("faults={} took_ns={took}", heard.len()))
}

/// A server on a loan uses up the budget, and the handler takes the loan away: the server goes on at its weight, and the caller has its
/// context.
fn fault_on_loan(stage: &Stage) -> Outcome<String> {
    const WORK_NS: u64 = BUDGET_NS + 3 * MS;
    let scale = stage.scale;
    let handler = Handler::start(Timeout::DEMOTE)?;
    let lend = Lend::start(move |_| {
        burn(WORK_NS, scale);
        Answer::Words([time::now_ns().unwrap_or(0), 0])
    })?;
    let own = handler.context(stage)?;
    let id = id_of(&own)?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    let [served, _] = lend.endpoint.call(1, [0; 2])?;
    let info = own.info()?.ok()?;
    let heard = handler.heard(id)?;
    ensure!(heard == [(lend.tid, true)], "heard of {heard:?}, the server is {}", lend.tid);
    ensure!(served < start + PERIOD_NS / 2, "it waited for a refill: {} ns", served - start);
    ensure!(info.lent_depth == 0, "still lent: {info:?}");
    ensure!(info.consumed_ns < WORK_NS, "all of it was charged, though the loan was taken from it: {info:?}");
    ensure!(info.consumed_ns >= BUDGET_NS, "not charged: {info:?}");
    own.unbind()?.ok()?;
    lend.stop()?;
    handler.lend.stop()?;
    Ok(format!("used_ns={} work_ns={WORK_NS}", info.consumed_ns))
}

/// A woken thread that has a context runs at once, before the best-effort thread that woke it: whether it is woken by a park word, by the
/// clock, by an answer, or by an event of a context.
fn notify_carries(stage: &Stage) -> Outcome<String> {
    let ran = Marks::new();
    let marks = |who: u32| {
        let ran = Arc::clone(&ran);
        move || ran.mark(who)
    };
    stage.enter()?;
    let mark = marks(1);
    let parked = Player::start(&stage.part(1), move || {
        mark();
        Ok(())
    })?;
    parked.go()?;
    ran.mark(2);
    parked.join()?;
    // Woken by the clock, while this thread computes.
    let mark = marks(3);
    let sleeps = Player::start(&stage.part(1), move || {
        time::sleep(2 * MS)?;
        mark();
        Ok(())
    })?;
    sleeps.go()?;
    stage.burn(4 * MS);
    ran.mark(4);
    sleeps.join()?;
    // Woken by an answer.
    let talk = endpoint()?;
    let (theirs, mark) = (Arc::clone(&talk), marks(5));
    let calls = Player::start(&stage.part(1), move || {
        theirs.call(1, [0; 2])?;
        mark();
        Ok(())
    })?;
    // The server has a context of its own, so nothing is lent, and the caller keeps its context.
    calls.go_and_wait()?;
    let (theirs, its) = (Arc::clone(&talk), marks(6));
    let serves = Player::start(&stage.part(0), move || {
        let call = theirs.recv(&mut [])?;
        theirs.reply(call.token, Answer::Words([0; 2]))?;
        its();
        Ok(())
    })?;
    serves.go()?;
    ran.mark(7);
    calls.join()?;
    serves.join()?;
    // Woken by an event of a context.
    let observed = new_context(&stage.part(0))?;
    let (seen, mark) = (copy(&observed)?, marks(8));
    let watches = Player::start(&stage.part(1), move || {
        seen.wait_notification()?;
        mark();
        Ok(())
    })?;
    watches.go_and_wait()?;
    observed.revoke()?.ok()?;
    ran.mark(9);
    watches.join()?;
    stage.leave()?;
    let found = ran.list();
    ensure!(found == [1, 2, 3, 4, 5, 6, 7, 8, 9], "they ran in the order {found:?}");
    quiet()
}
