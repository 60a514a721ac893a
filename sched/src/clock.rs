//! The virtual clock of one CPU: the weighted average position of its fair threads.
//!
//! For threads `i` with weight `w` and position `v`, the average is `sum(w*v) / sum(w)`. Kept as `origin + weighted /
//! weight`, with `origin` moved along so that the sums stay small: `w * (v - average)` is 64 times a thread's real lag,
//! and that is bounded by a few slices.
//!
//! *The clock* that joining threads are measured against is moved by service alone: service of `w * v`, to whichever thread, moves the clock
//! by `w * v / sum(w)`, which is what every thread here was due in that time. It never goes back (I3). Joining and leaving move the average,
//! not the clock: a clock that jumped along would forgive threads that are ahead when others leave, and forget what threads that left ahead
//! took. A thread that ends ahead has run at the cost of those that stay; the clock has moved on meanwhile, so they are behind it by just
//! that, and go before the next newcomer.
//!
//! *Credit* is not service. A thread that slept comes back further behind the clock than it left, and no thread was served for that. If it
//! were ignored, every wake-up would put all other threads a little further behind the clock, for ever. So the clock stands still until as
//! much service was given as credit, but only while the average is behind the clock: credit that its thread took away again holds up nothing.
//! The lag that a thread brings from another CPU is credit, too.
//!
//! Clocks of different CPUs are compared in the *common frame*: `local + skew`. Balancing keeps them within
//! `MAX_SKEW_NS` of each other.

use crate::Weight;
use crate::fair::Fair;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VirtualClock {
    origin: i64,
    weighted: i64,
    weight: u64,
    high: i64,
    /// Service (weight times virtual time) that has not moved the clock yet; below zero, credit that is not paid back yet.
    served: i64,
    skew: i64,
}

impl VirtualClock {
    pub(crate) const fn new() -> VirtualClock {
        VirtualClock { origin: 0, weighted: 0, weight: 0, high: 0, served: 0, skew: 0 }
    }

    /// Total weight of the fair threads on this CPU, the running one included.
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// The clock in this CPU's frame (as of the last `settle`).
    pub(crate) fn now(&self) -> i64 {
        self.high
    }

    /// The clock in the common frame.
    pub(crate) fn common(&self) -> i64 {
        self.high + self.skew
    }

    /// Up to which position threads are owed service (EEVDF). The average lies at or above at least one of the positions it
    /// is made of, so among threads that are all counted here one is always eligible.
    #[inline]
    pub(crate) fn eligible_until(&mut self) -> i64 {
        self.anchor();
        // floor(average): integer positions at or below the average are exactly those at or below its floor, and that
        // is what an anchored origin is.
        if self.weight == 0 { i64::MAX } else { self.origin }
    }

    /// Brings the clock up to date with the service since the last event.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let weight = self.weight as i64;
        if weight > 0 && self.served >= weight {
            let step = self.served / weight;
            self.high += step;
            self.served -= step * weight;
        }
    }

    /// Moves the origin to the average.
    #[inline]
    fn anchor(&mut self) {
        let weight = self.weight as i64;
        if weight <= 0 {
            return; // never negative; but a division by what is known to be positive needs no checks
        }
        if (0..weight).contains(&self.weighted) {
            return; // the usual case, when events follow each other closely
        }
        let step = self.weighted.div_euclid(weight);
        self.origin += step;
        self.weighted -= step * weight;
    }

    /// How far the threads here are behind the clock, taken together (weight times virtual time); below zero, ahead of it.
    #[inline]
    fn behind(&self) -> i64 {
        self.weight as i64 * (self.high - self.origin) - self.weighted
    }

    /// Limits the credit that is still to be paid back: threads that are behind the clock by `behind` together cannot have more.
    #[inline]
    fn hold_for_at_most(&mut self, behind: i64) {
        self.served = self.served.max(-behind.max(0));
    }

    /// Normalises the sums after a thread left. That must not move the clock, not even by the remainder of a division.
    #[inline]
    fn recount(&mut self) {
        self.anchor();
        if self.served < 0 {
            self.hold_for_at_most(self.behind());
        } else if self.served >= self.weight as i64 {
            self.served = (self.weight as i64 - 1).max(0);
        }
    }

    /// A counted thread moved forward.
    pub(crate) fn advance(&mut self, weight: Weight, virtual_ns: i64) {
        let service = i64::from(weight.get()) * virtual_ns;
        self.weighted += service;
        self.served += service;
    }

    /// Counts a thread that is already in this frame.
    fn add(&mut self, fair: &Fair) {
        if self.weight == 0 {
            self.origin = fair.position;
        }
        self.weighted += i64::from(fair.weight().get()) * (fair.position - self.origin);
        self.weight += u64::from(fair.weight().get());
        self.anchor();
    }

    fn subtract(&mut self, fair: &Fair) {
        self.weighted -= i64::from(fair.weight().get()) * (fair.position - self.origin);
        self.weight -= u64::from(fair.weight().get());
        debug_assert!(self.weight != 0 || self.weighted == 0, "I2: sums outlive their threads");
        self.recount();
    }

    /// A thread that has never run joins at the clock: it is owed nothing, and is ahead by the debt that it was created with.
    pub(crate) fn enter_new(&mut self, fair: &mut Fair) {
        self.settle();
        fair.position = self.high - fair.lag.min(0);
        fair.deadline = fair.position;
        self.add(fair);
    }

    /// A thread comes back, from sleep or from another CPU (F-15). It keeps the lag it left with, or what the common
    /// clock says it is owed by now, whichever is more, but never more than one slice. A lag ahead is never forgiven.
    pub(crate) fn enter(&mut self, fair: &mut Fair) {
        self.enter_beyond(fair, fair.lag);
    }

    #[inline]
    fn enter_beyond(&mut self, fair: &mut Fair, booked: i64) {
        self.settle();
        if self.weight == 0 && fair.position > self.common() {
            // No thread is here to compare it with: adopt the newcomer's frame, so that it brings its history along.
            self.skew += fair.position - self.common();
        }
        self.join(fair, booked);
        self.add(fair);
    }

    /// As `enter`, for a runnable thread that was migrated: the threads here know nothing of its lag, so all of that is credit. What it is
    /// owed beyond one slice is not lost: it becomes arrears, at most two more slices. Otherwise each migration would cost the thread a part
    /// of its share whenever the two clocks are more than a slice apart.
    pub(crate) fn enter_moved(&mut self, fair: &mut Fair) {
        let arrears = fair.arrears;
        fair.position -= arrears;
        fair.deadline -= arrears;
        fair.lag += arrears;
        self.settle();
        let owed = (self.common() - fair.position).max(fair.lag);
        self.enter_beyond(fair, 0);
        fair.arrears = (owed - fair.credit_limit()).clamp(0, 2 * fair.credit_limit());
    }

    /// Moves a thread from the common frame to this one, with the lag that it is entitled to. Lag beyond `booked` is credit.
    #[inline]
    fn join(&mut self, fair: &mut Fair, booked: i64) {
        let owed = self.common() - fair.position;
        let lag = owed.max(fair.lag).min(fair.credit_limit());
        if lag > booked && self.weight > 0 {
            let weight = i64::from(fair.weight().get());
            self.served -= weight * (lag - booked);
            self.hold_for_at_most(self.behind() + weight * lag);
        }
        let shift = self.high - lag - fair.position;
        fair.position += shift;
        fair.deadline += shift;
        fair.arrears = 0;
    }

    /// `enter` of one thread and `leave` of another in one step, so that the sums are normalised only once.
    #[inline]
    pub(crate) fn exchange(&mut self, enters: &mut Fair, leaves: &mut Fair) {
        self.settle();
        self.join(enters, enters.lag);
        let (more, less) = (i64::from(enters.weight().get()), i64::from(leaves.weight().get()));
        self.weighted += more * (enters.position - self.origin) - less * (leaves.position - self.origin);
        self.weight = self.weight + more as u64 - less as u64;
        self.recount();
        self.part(leaves);
    }

    /// Moves a thread from this frame to the common one; it remembers how far behind it was.
    #[inline]
    fn part(&self, fair: &mut Fair) {
        fair.lag = self.high - fair.position;
        fair.position += self.skew;
        fair.deadline += self.skew;
    }

    /// A thread leaves this frame; its position becomes comparable everywhere.
    pub(crate) fn leave(&mut self, fair: &mut Fair) {
        self.settle();
        self.subtract(fair);
        self.part(fair);
    }

    /// Changes the weight of a thread that is counted here.
    pub(crate) fn reweigh(&mut self, fair: &mut Fair, weight: Weight) {
        self.settle();
        let behind = self.high - fair.position;
        self.subtract(fair);
        fair.set_weight(weight, behind);
        self.add(fair);
    }

    /// Moves this clock up to `limit` in the common frame if it is behind that; returns by how much.
    pub(crate) fn forgive_below(&mut self, limit: i64) -> i64 {
        let forgiven = (limit - self.common()).max(0);
        self.skew += forgiven;
        forgiven
    }

    /// The sums, for the check of I2: (total weight, sum of weight * position).
    pub(crate) fn sums(&self) -> (u64, i128) {
        (self.weight, i128::from(self.weighted) + i128::from(self.origin) * i128::from(self.weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LatencyClass, SLICE_NS};

    fn fair(weight: u16) -> Fair {
        Fair::new(Weight::new(weight).unwrap(), LatencyClass::Normal)
    }

    /// F-15: a thread that slept for a virtual eternity comes back one slice behind, not more.
    #[test]
    fn f_15_long_sleepers_are_one_slice_behind() {
        let mut clock = VirtualClock::new();
        let (mut hog, mut sleeper) = (fair(64), fair(64));
        clock.enter_new(&mut hog);
        clock.enter_new(&mut sleeper);
        clock.leave(&mut sleeper);
        let step = hog.charge(60_000_000_000);
        clock.advance(hog.weight(), step);
        clock.enter(&mut sleeper);
        assert_eq!(clock.now() - sleeper.position, SLICE_NS as i64);
    }

    /// A thread that left ahead is still ahead when it comes back at once: blocking launders nothing.
    #[test]
    fn f_15_being_ahead_is_not_forgiven() {
        let mut clock = VirtualClock::new();
        let (mut hog, mut greedy) = (fair(64), fair(64));
        clock.enter_new(&mut hog);
        clock.enter_new(&mut greedy);
        let step = greedy.charge(400_000_000);
        clock.advance(greedy.weight(), step);
        clock.leave(&mut greedy);
        clock.enter(&mut greedy);
        assert_eq!(greedy.position - hog.position, 400_000_000);
    }

    /// I3: a thousand threads that join one slice behind do not drag the clock back.
    #[test]
    fn f_15_the_clock_never_goes_back() {
        let mut clock = VirtualClock::new();
        let mut hog = fair(64);
        clock.enter_new(&mut hog);
        let step = hog.charge(1_000_000_000);
        clock.advance(hog.weight(), step);
        let before = {
            clock.settle();
            clock.now()
        };
        for _ in 0..1_000 {
            let mut late = fair(64);
            late.position = 0;
            late.lag = 0;
            clock.enter(&mut late);
            assert_eq!(clock.now(), before);
            assert_eq!(late.position, before - SLICE_NS as i64);
        }
    }

    /// An idle CPU adopts the frame of the thread that comes, so that later arrivals can be compared with it; and a request keeps its length
    /// on the way.
    #[test]
    fn f_15_an_idle_clock_adopts_the_newcomers_frame() {
        let (mut busy, mut idle) = (VirtualClock::new(), VirtualClock::new());
        let mut thread = fair(64);
        busy.enter_new(&mut thread);
        let step = thread.charge(70_000_000);
        busy.advance(thread.weight(), step);
        busy.settle();
        thread.deadline = thread.position + 4_000_000;
        let common = busy.common();
        busy.leave(&mut thread);
        idle.enter(&mut thread);
        assert_eq!(idle.common(), common, "the idle clock has caught up");
        assert_eq!((thread.position, thread.deadline), (idle.now(), idle.now() + 4_000_000));
        idle.leave(&mut thread);
        assert_eq!(
            (thread.position, thread.deadline),
            (common, common + 4_000_000),
            "back in the common frame"
        );
    }

    /// A light thread far ahead is not forgiven because a heavy one sleeps for a moment.
    #[test]
    fn f_15_departures_do_not_move_the_clock() {
        let mut clock = VirtualClock::new();
        let (mut light, mut heavy) = (fair(1), fair(64));
        clock.enter_new(&mut light);
        clock.enter_new(&mut heavy);
        let step = light.charge(SLICE_NS); // 192 ms of its virtual time
        clock.advance(light.weight(), step);
        clock.settle();
        let before = clock.now();
        clock.leave(&mut heavy);
        clock.settle();
        assert_eq!(clock.now(), before);
        clock.enter(&mut heavy);
        assert_eq!(light.position - heavy.position, 192_000_000);
    }

    /// Short threads come and end, one at a time, each ahead of the clock. The clock moves by half of what each takes, and the thread that
    /// stays is behind it by the sum of that: it is not forgotten when they end.
    #[test]
    fn f_15_those_who_end_ahead_leave_the_others_behind() {
        let mut clock = VirtualClock::new();
        let mut hog = fair(64);
        clock.enter_new(&mut hog);
        for ended in 1..=100 {
            let mut short = fair(64);
            clock.enter_new(&mut short);
            let step = short.charge(3_000_000);
            clock.advance(short.weight(), step);
            clock.leave(&mut short);
            assert_eq!(clock.now() - hog.position, ended * 1_500_000);
        }
    }

    /// A sleeper's credit is paid back: the clock stands until it is, so the hog does not fall behind by it at every wake-up.
    #[test]
    fn f_15_credit_is_paid_back() {
        let mut clock = VirtualClock::new();
        let (mut hog, mut sleeper) = (fair(64), fair(64));
        clock.enter_new(&mut hog);
        clock.enter_new(&mut sleeper);
        for _ in 0..100 {
            clock.leave(&mut sleeper);
            let step = hog.charge(1_000_000);
            clock.advance(hog.weight(), step);
            clock.enter(&mut sleeper);
            assert_eq!(clock.now() - sleeper.position, 1_000_000);
            let step = sleeper.charge(1_000_000);
            clock.advance(sleeper.weight(), step);
            clock.settle();
            assert_eq!((clock.now(), clock.now()), (hog.position, sleeper.position), "all is even");
        }
    }

    /// Credit that its thread takes away unused does not hold up the clock.
    #[test]
    fn f_15_credit_that_left_holds_nothing() {
        let mut clock = VirtualClock::new();
        let (mut hog, mut sleeper) = (fair(64), fair(64));
        clock.enter_new(&mut hog);
        clock.enter_new(&mut sleeper);
        clock.leave(&mut sleeper);
        for millisecond in 1..=100 {
            let step = hog.charge(1_000_000);
            clock.advance(hog.weight(), step);
            clock.enter(&mut sleeper);
            clock.leave(&mut sleeper);
            assert_eq!(clock.now(), millisecond * 1_000_000);
        }
    }

    /// Leaving and entering elsewhere keeps the lag, whatever the two clocks show.
    #[test]
    fn f_15_lag_travels() {
        let (mut here, mut there) = (VirtualClock::new(), VirtualClock::new());
        let (mut a, mut b, mut c) = (fair(64), fair(64), fair(64));
        here.enter_new(&mut a);
        here.enter_new(&mut b);
        there.enter_new(&mut c);
        let step = b.charge(4_000_000);
        here.advance(b.weight(), step); // the average moves by 2 ms: a is 2 ms behind, b 2 ms ahead
        here.leave(&mut a);
        assert_eq!(a.lag, 2_000_000);
        there.enter(&mut a);
        assert_eq!(there.now() - a.position, 2_000_000);
    }

    /// F-15, F-16: a move brings one slice along and keeps two more; a further move finds both, a sleep drops what was kept.
    #[test]
    fn f_15_what_a_move_cannot_bring_is_kept() {
        let (mut slow, mut fast) = (VirtualClock::new(), VirtualClock::new());
        let (mut moved, mut hog) = (fair(64), fair(64));
        slow.enter_new(&mut moved);
        fast.enter_new(&mut hog);
        let step = hog.charge(5_000_000);
        fast.advance(hog.weight(), step);
        slow.leave(&mut moved);
        fast.enter_moved(&mut moved);
        assert_eq!((fast.now() - moved.position, moved.arrears), (SLICE_NS as i64, 2_000_000));
        fast.leave(&mut moved);
        fast.enter_moved(&mut moved);
        assert_eq!((fast.now() - moved.position, moved.arrears), (SLICE_NS as i64, 2_000_000));
        fast.leave(&mut moved);
        fast.enter(&mut moved);
        assert_eq!((fast.now() - moved.position, moved.arrears), (SLICE_NS as i64, 0));
    }
}
