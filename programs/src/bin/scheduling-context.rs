//! Scheduling contexts: created, bound, charged, throttled, lent along calls and returned, revoked and watched (S-01 to
//! S-08).
//!
//! Every `name=value` line is derived from values that were asserted; `capos` fails the run if one of them is missing.
#![no_std]
#![no_main]

extern crate alloc;

use programs::contexts::{
    self, bands, burn, context, lives, loans, misses, new_context, queues, rooms, watch,
};
use programs::kit::{MS, raised};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::ticks::{self, Scale};
use programs::{ensure, markers};
use rt::abi::{Exception, Overrun};
use rt::{
    CpuMask, DispatchEffect, Fallback, NotificationKind, OperationResult as R, SchedulingContext, Spec, caps,
    time,
};

rt::main!(run);

/// The markers that must have been printed; each is derived from values that were asserted.
const MARKERS: [&str; 37] = [
    "context_identity",
    "context_revoke",
    "context_release",
    "context_refusals",
    "context_bands",
    "dispatch_effect",
    "throttled_window_ns",
    "replenished",
    "notification_coalescing",
    "notification_ends",
    "throttled_state",
    "calls_by_urgency",
    "revoke_notification",
    "stale_notification",
    "endpoint_donated_notification",
    "overrun_throttle",
    "overrun_demote",
    "overrun_fault",
    "endpoint_donation",
    "endpoint_return",
    "endpoint_donation_server",
    "endpoint_donation_after",
    "endpoint_exception_return",
    "endpoint_exception_return_after",
    "endpoint_invalid_return",
    "endpoint_invalid_return_after",
    "endpoint_nested",
    "endpoint_nested_after",
    "endpoint_depth_rejected",
    "endpoint_cycle_rejected",
    "endpoint_donor_block",
    "endpoint_donor_block_elapsed_ns",
    "endpoint_donor_block_after",
    "endpoint_donor_fast",
    "endpoint_donor_fast_elapsed_ns",
    "endpoint_donor_fast_after",
    "endpoint_hosted",
];

fn run() -> i64 {
    if rt::args::args().any(|arg| arg == "template") {
        return prove("scheduling-context child", lives::in_template);
    }
    if rt::args::args().next() == Some("band") {
        return prove("scheduling-context band", || {
            bands::reaches(rt::args::number(1, 0).doing("the band is no number")? as u8)
        });
    }
    prove("scheduling-context", || {
        let scale = Scale::measure()?;
        step("identities, generations, refusals (S-01, S-02)", identities)?;
        step("a budget is enforced and comes back (S-03)", || budget(scale))?;
        step("what happens at the end of a budget (S-05)", || watch::overruns(scale))?;
        step("who is told (S-08)", || watch::notifications(scale))?;
        step("once (S-08)", || watch::after_a_drain(scale))?;
        step("who watches keeps nothing (S-08, K-18)", watch::unkept)?;
        step("throttled, not waiting (S-15)", || misses::throttled(scale))?;
        step("a loan is charged and returned (S-06)", || loans::plain(scale))?;
        step("whatever the answer is (S-06)", || loans::other_answers(scale))?;
        step("the lender waits (S-06)", || loans::lender_waits(scale))?;
        step("a call that waited lends too (S-06)", || loans::queued(scale))?;
        step("the next call is not on the last one's account (S-06)", || {
            loans::next_call_returns_the_loan(scale)
        })?;
        step("loans nest, up to a depth and not in circles (S-07)", || loans::nested(scale))?;
        step("no circles (S-07)", || loans::circle(scale))?;
        step("a server elsewhere is met on a CPU of both (S-07)", || loans::hosted(scale))?;
        step("calls wait by band, deadline, arrival (S-15)", queues::by_urgency)?;
        step("other threads are bound (S-02)", || lives::bind_others(scale))?;
        step("a change keeps what was used (S-02)", || lives::reconfigure(scale))?;
        step("giving way (S-02)", || lives::yield_to(scale))?;
        step("masks (S-04)", || lives::masks(scale))?;
        step("templates (S-02)", lives::template)?;
        step("bands are given, not taken (S-17)", bands::given)?;
        step("refused contexts use nothing up (K-29)", rooms::refused)?;
        step("faults that nobody hears cost nothing (K-30)", rooms::unheard)?;
        contexts::all_printed(&MARKERS)
    })
}

fn identities() -> Outcome {
    let alpha: SchedulingContext = caps::get("alpha").doing("alpha")?;
    let beta: SchedulingContext = caps::get("beta").doing("beta")?;
    let (a, b) = (alpha.info()?.ok()?, beta.info()?.ok()?);
    ensure!(a.id != b.id && a.id != 0, "two contexts with number {}", a.id);
    ensure!(a.effect == DispatchEffect::InfoOnlyNoDispatchChange, "nobody runs on it: {:?}", a.effect);
    let made = alpha.create(&Spec::new(2 * MS, 20 * MS))?.context()?;
    let info = made.info()?.ok()?;
    ensure!(info.id != a.id && info.id != b.id, "a new context with an old number");
    ensure!(info.remaining_ns == 2 * MS && info.spec.period_ns == 20 * MS, "another specification: {info:?}");
    // Bind, bind again, unbind, bind.
    ensure!(made.bind(Fallback::BestEffort)?.ok()? == DispatchEffect::BudgetEnforced, "not enforced");
    ensure!(made.bind(Fallback::BestEffort)?.result == R::AlreadyBound, "bound twice");
    ensure!(alpha.bind(Fallback::BestEffort)?.result == R::AlreadyBound, "two contexts for one thread");
    made.unbind()?.ok()?;
    ensure!(made.unbind()?.result == R::NotBound, "unbound twice");
    made.bind(Fallback::BestEffort)?.ok()?;
    // Revoked through one capability, stale for the other.
    let copy: SchedulingContext = contexts::copy(&made)?;
    made.revoke()?.ok()?;
    ensure!(made.info()?.result == R::Revoked, "the one that revoked is told so");
    let stale = copy.info()?;
    ensure!(
        stale.result == R::StaleGeneration && stale.value.remaining_ns == 0,
        "a stale context with budget"
    );
    ensure!(stale.value.effect == DispatchEffect::InfoOnlyNoDispatchChange, "a stale context is enforced");
    ensure!(copy.bind(Fallback::BestEffort)?.result == R::StaleGeneration, "a stale context is bound");
    ensure!(copy.create(&Spec::new(MS, 10 * MS))?.result == R::StaleGeneration, "a stale context creates");
    ensure!(copy.revoke()?.result == R::StaleGeneration, "a stale context revokes");
    ensure!(made.revoke()?.result == R::Revoked, "revoked twice");
    // Dropped: the thread is free again.
    let other = new_context(&Spec::new(2 * MS, 20 * MS))?;
    other.bind(Fallback::BestEffort)?.ok()?;
    drop(other);
    let other = new_context(&Spec::new(2 * MS, 20 * MS))?;
    other.bind(Fallback::BestEffort)?.ok().doing("bind after a release")?;
    other.unbind()?.ok()?;
    markers!("context_identity=ok context_revoke=ok context_release=ok");
    refusals()
}

fn refusals() -> Outcome {
    let any = context()?;
    let good = Spec::new(2 * MS, 20 * MS);
    let bad = [
        ("no budget", Spec { budget_ns: 0, ..good }),
        ("a budget too small", Spec { budget_ns: 1, ..good }),
        ("a budget above the period", Spec { budget_ns: 30 * MS, ..good }),
        ("a period too long", Spec { period_ns: u64::MAX, ..good }),
        ("a deadline below the budget", good.deadline(MS)),
        ("a deadline above the period", good.deadline(21 * MS)),
        ("no CPU", good.mask(CpuMask::of([]))),
        ("a mask that ends with 0", good.mask(CpuMask::raw(&[1, 0]))),
        ("a mask that is too long", good.mask(CpuMask::raw(&[1; 64]))),
        ("a CPU that is not there", good.cpus([63])),
        ("a criticality too high", Spec { criticality: 8, ..good }),
        ("too few refills", Spec { refills: 1, ..good }),
        ("too many refills", Spec { refills: 9, ..good }),
        ("a fault without an endpoint", Spec { overrun: Overrun::Fault, ..good }),
    ];
    for (what, spec) in bad {
        raised(what, any.create(&spec), Exception::InvalidArgument)?;
    }
    let greedy = any.create(&Spec::new(96 * MS, 100 * MS))?;
    ensure!(
        greedy.result == R::ResourceExhausted && greedy.value.free_ppm > 0,
        "95 % is the most: {greedy:?}"
    );
    refusals_have_witnesses(&any)?;
    markers!("context_refusals=ok");
    Ok(())
}

/// S-14: a refusal says why, so that the admission test can be repeated by hand.
fn refusals_have_witnesses(any: &SchedulingContext) -> Outcome {
    use rt::AdmissionReason::{Demand, NoHome, Utilisation};
    let one_of_several = if rt::boot_info().cpus > 1 { NoHome } else { Utilisation };
    let greedy = any.create(&Spec::new(96 * MS, 100 * MS))?.value;
    let why = greedy.witness.ok_or_else(|| Failure::new("a refusal without a witness"))?;
    ensure!(
        why.reason == one_of_several
            && why.demand_ns > why.supply_ns
            && (949_000..=951_000).contains(&why.supply_ns)
            // What is asked for, and what others have.
            && (960_000..=961_000).contains(&(why.demand_ns + why.free_ppm - why.supply_ns))
            && why.free_ppm == greedy.free_ppm
            && why.largest == 0,
        "96 %: {why}"
    );
    // Within 50 ms, 30 are due to each of the two contexts, beside what others have.
    let tight = Spec::new(30 * MS, 100 * MS).deadline(50 * MS).cpus([0]);
    let first = any.create(&tight)?;
    ensure!(first.value.witness.is_none(), "a witness of nothing: {first:?}");
    let id = first.value.id;
    let first = first.context()?;
    let second = any.create(&tight)?;
    ensure!(second.result == R::ResourceExhausted, "60 ms in 50: {second:?}");
    let why = second.value.witness.ok_or_else(|| Failure::new("a refusal without a witness"))?;
    ensure!(
        (why.reason, why.cpu, why.band, why.supply_ns) == (Demand, 0, 0, why.stretch_ns)
            && (50 * MS..1000 * MS).contains(&why.stretch_ns)
            && (why.stretch_ns + 1..why.stretch_ns + 60 * MS).contains(&why.demand_ns)
            && [0, id].contains(&why.largest)
            && why.until_ns == 0,
        "60 ms in 50: {why}"
    );
    // A refused change has a witness, too, and nothing else has changed.
    let changed = first.reconfigure(&Spec::new(99 * MS, 100 * MS).cpus([0]))?;
    let why = changed.value.witness.ok_or_else(|| Failure::new("a refused change without a witness"))?;
    ensure!(
        changed.result == R::ResourceExhausted && why.reason == Utilisation && why.demand_ns > why.supply_ns,
        "99 %: {changed:?}"
    );
    ensure!(first.info()?.ok()?.spec.budget_ns == 30 * MS, "a refusal changed it");
    let changed = first.reconfigure(&Spec::new(20 * MS, 100 * MS).deadline(50 * MS).cpus([0]))?;
    ensure!(changed.value.witness.is_none(), "a witness of nothing: {changed:?}");
    changed.ok()?;
    Ok(())
}

fn budget(scale: Scale) -> Outcome {
    let own = new_context(&Spec::new(4 * MS, 40 * MS))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let before = own.info()?.ok()?;
    burn(2 * MS, scale);
    let after = own.info()?.ok()?;
    ensure!(after.remaining_ns + MS < before.remaining_ns, "not charged: {before:?} {after:?}");
    markers!("dispatch_effect=budgetEnforced charged_ns={}", before.remaining_ns - after.remaining_ns);
    // Three budgets of work take at least two more periods.
    let start = time::now_ns()?;
    burn(12 * MS, scale);
    let took = time::now_ns()? - start;
    let end = own.info()?.ok()?;
    ensure!(took > 80 * MS, "12 ms of work on 4 ms in 40 ms took {took} ns: not throttled");
    ensure!(end.depletions >= 2, "ran dry {} times", end.depletions);
    // Where instructions are counted, at a nanosecond each, the end of a budget is exact; where time is counted, the host
    // may be away.
    ensure!(!ticks::is_counted() || end.overrun_max_ns <= 5_000, "overdrawn by {} ns", end.overrun_max_ns);
    markers!(
        "throttled_window_ns={took} depletions={} overrun_max_ns={}",
        end.depletions,
        end.overrun_max_ns
    );
    time::sleep(45 * MS)?;
    let full = own.info()?.ok()?;
    ensure!(full.remaining_ns > 2 * MS, "not replenished after a period: {full:?}");
    markers!("replenished=ok");
    let news = own.drain()?.ok()?;
    let dry = news.get(NotificationKind::BudgetDepleted);
    ensure!(dry.is_some_and(|cell| cell.coalesced >= 2 && !cell.is_donated), "not noted: {news:?}");
    let me = (rt::boot_info().pid, rt::thread::id());
    ensure!(dry.is_some_and(|cell| (cell.holder_pid, cell.holder_tid) == me), "not {me:?}: {news:?}");
    ensure!(own.drain()?.ok()?.is_empty(), "drained twice");
    markers!("notification_coalescing=ok");
    own.unbind()?.ok()?;
    Ok(())
}
