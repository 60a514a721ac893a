//! The virtual clock of one CPU: the weighted average position of its fair threads.
//!
//! For threads `i` with weight `w` and position `v`, the average is `sum(w*v) / sum(w)`. Kept as `origin + weighted /
//! weight`, with `origin` moved along so that the sums stay small: `w * (v - average)` is 64 times a thread's real lag,
//! and that is bounded by a few slices.
//!
//! *The clock* that joining threads are measured against follows the average, with two differences. It never goes back (I3):
//! threads that join behind the average pull it back, and a clock that did the same would let a storm of them push an old
//! thread ever further away. And only service moves it: when a thread leaves, the average jumps to those who stay, perhaps to one that
//! is far ahead, and a clock that jumped along would forgive it.
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
    skew: i64,
}

impl VirtualClock {
    pub(crate) const fn new() -> VirtualClock {
        VirtualClock { origin: 0, weighted: 0, weight: 0, high: 0, skew: 0 }
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
        self.settle();
        // floor(average): integer positions at or below the average are exactly those at or below its floor, and that
        // is what a settled origin is.
        if self.weight == 0 { i64::MAX } else { self.origin }
    }

    /// Brings the clock up to date with the service since the last event.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let served = self.anchor();
        if self.origin > self.high && self.weight > 0 {
            self.high = self.origin.min(self.high + served);
        }
    }

    /// Moves the origin to the average; answers how far that was.
    #[inline]
    fn anchor(&mut self) -> i64 {
        let weight = self.weight as i64;
        if weight <= 0 {
            return 0; // never negative; but a division by what is known to be positive needs no checks
        }
        let step = self.weighted.div_euclid(weight);
        self.origin += step;
        self.weighted -= step * weight;
        step
    }

    /// A counted thread moved forward.
    pub(crate) fn advance(&mut self, weight: Weight, virtual_ns: i64) {
        self.weighted += i64::from(weight.get()) * virtual_ns;
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
        self.anchor();
    }

    /// A thread that has never run takes its place on the clock: it is owed nothing, and owes what it was born with.
    pub(crate) fn enter_new(&mut self, fair: &mut Fair) {
        self.settle();
        fair.position = self.high - fair.lag.min(0);
        fair.deadline = fair.position;
        self.add(fair);
    }

    /// A thread comes back, from sleep or from another CPU (F-15). It keeps the lag it left with, or what the common
    /// clock says it is owed by now, whichever is more, but never more than one slice. A lag ahead is never forgiven.
    pub(crate) fn enter(&mut self, fair: &mut Fair) {
        self.settle();
        if self.weight == 0 && fair.position > self.common() {
            // Nobody here to be compared with: adopt the newcomer's frame, so that it brings its history along.
            self.skew += fair.position - self.common();
        }
        let owed = self.common() - fair.position;
        let lag = owed.max(fair.lag).min(fair.credit_limit());
        let shift = self.high - lag - fair.position;
        fair.position += shift;
        fair.deadline += shift;
        self.add(fair);
    }

    /// A thread leaves this frame; its position becomes comparable everywhere.
    pub(crate) fn leave(&mut self, fair: &mut Fair) {
        self.settle();
        self.subtract(fair);
        fair.lag = self.high - fair.position;
        fair.position += self.skew;
        fair.deadline += self.skew;
    }

    /// Changes the weight of a thread that is counted here.
    pub(crate) fn reweigh(&mut self, fair: &mut Fair, weight: Weight) {
        self.settle();
        let average = self.origin;
        self.subtract(fair);
        fair.set_weight(weight, average - fair.position);
        self.add(fair);
    }

    /// Gives up what this clock is behind `limit` in the common frame.
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

    /// An idle CPU takes over the frame of whoever comes, so that its later neighbours can be compared with it; and a request keeps its
    /// length on the way.
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
        let step = light.charge(10_000_000); // 640 ms of its virtual time
        clock.advance(light.weight(), step);
        clock.settle();
        let before = clock.now();
        clock.leave(&mut heavy);
        clock.settle();
        assert_eq!(clock.now(), before);
        clock.enter(&mut heavy);
        assert_eq!(light.position - heavy.position, 640_000_000);
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
}
