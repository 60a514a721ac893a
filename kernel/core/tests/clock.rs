//! K-03: `kcore::clock` is accurate within a tick, follows its reference, and never goes back.

use kcore::clock::*;
use proptest::prelude::*;

const GHZ: u64 = 1_000_000_000;

fn clock(hz: u64) -> Clock {
    Clock::new(1_000, 500, Scale::from_hz(hz).unwrap())
}

#[test]
fn half_a_tick_reads_as_half_a_tick() {
    let clock = clock(3 * GHZ);
    let tick = 3 * GHZ / 1000;
    assert_eq!(clock.now(1_000), 500);
    assert_eq!(clock.now(1_000 + tick), 1_000_499, "rounded down");
    assert_eq!(clock.now(1_000 + tick / 2) - 500, 499_999);
    let next = clock.discipline(1_000 + tick, 1_000_500);
    let half = next.now(1_000 + tick + tick / 2) - next.now(1_000 + tick);
    assert!((499_990..=500_010).contains(&half), "{half}");
    assert_eq!(clock.now(0), 500, "before the base time stands still");
}

#[test]
fn an_hour_is_exact_to_the_nanosecond() {
    for hz in [HZ_MIN, 19_200_000, 2_893_412_377, 5 * GHZ] {
        let scale = Scale::from_hz(hz).unwrap();
        let hour = scale.ns(hz * 3600);
        assert!(hour.abs_diff(3600 * GHZ) <= 40, "{hz} Hz: {hour}");
    }
    assert_eq!(Scale::from_hz(HZ_MIN - 1), None);
    assert_eq!(Scale::from_hz(HZ_MAX + 1), None);
}

#[test]
fn the_correction_has_a_limit_and_does_not_step() {
    let clock = clock(GHZ);
    let at = 1_000 + GHZ / 100;
    for reference in [0, u64::MAX, 20_000_500] {
        let next = clock.discipline(at, reference);
        assert_eq!(next.now(at), clock.now(at));
        let second = next.now(at + GHZ) - next.now(at);
        assert!(second.abs_diff(GHZ) <= GHZ / 1_000_000 * SLEW_PPM_MAX + 1, "{second}");
    }
    assert!(clock.discipline(at, 0).now(at + GHZ) < clock.now(at) + GHZ);
}

/// A host that stops the machine in the middle of a reading makes one interval slow and the next one fast; for longer than the reference's round, fast.
#[test]
fn k_03_intervals_that_a_busy_host_spoilt_are_not_believed() {
    let good = |n: u64| (3_000_000 + n * 1_000, 1_000_000);
    assert_eq!(believed::<3>(&[good(0), good(2), good(1)]), Some([0, 1, 2]), "the first is the slowest");
    assert_eq!(believed::<3>(&[good(1), good(0)]), None, "not enough");
    let slow = (2_900_000, 1_000_000);
    assert_eq!(believed::<3>(&[slow, good(0), good(1)]), None, "two agree, and one stands alone");
    assert_eq!(believed::<3>(&[slow, good(0), good(1), good(2)]), Some([1, 2, 3]), "a slow one comes first");
    let fast = |n: u64| (9_000_000 + n * 1_000, 1_000_000);
    let mixed = [fast(0), fast(1), good(0), fast(2), good(1), good(2)];
    assert_eq!(believed::<3>(&mixed), Some([2, 4, 5]), "the slowest group is right");
    // Each agrees with its neighbour, and the ends do not.
    let chain = [(3_000_000, 1_000_000), (3_014_000, 1_000_000), (3_028_000, 1_000_000)];
    assert_eq!(believed::<3>(&chain), None);
    assert_eq!(believed::<3>(&[(0, 5); 3]), Some([0, 1, 2]), "one that stands still agrees with itself");
    assert_eq!(calibrate(&[(0, 5); 3]), Err(CalibrationError::Zero { sample: 0 }), "and is refused for that");
}

#[test]
fn calibration_refuses_nonsense() {
    assert_eq!(calibrate(&[]), Err(CalibrationError::NoSamples));
    assert_eq!(calibrate(&[(30, 10), (0, 10)]), Err(CalibrationError::Zero { sample: 1 }));
    assert_eq!(calibrate(&[(30, 0)]), Err(CalibrationError::Zero { sample: 0 }));
    assert_eq!(calibrate(&[(1, 2_000)]), Err(CalibrationError::OutOfRange { hz: 500_000 }));
    assert_eq!(calibrate(&[(u64::MAX, 1)]), Err(CalibrationError::OutOfRange { hz: u64::MAX }));
    let spread = calibrate(&[(3_000_000, 1_000_000), (3_031_000, 1_000_000)]);
    assert_eq!(spread, Err(CalibrationError::Spread { hz_min: 3 * GHZ, hz_max: 3_031_000_000 }));
    assert_eq!(calibrate(&[(3_000_000, 1_000_000), (3_010_000, 1_000_000)]), Ok(3_005_000_000));
    assert!(spread.unwrap_err().to_string().contains("ppm"));
}

#[test]
fn a_cpu_that_is_out_of_step_is_found_and_corrected() {
    let step =
        [Exchange { before: 100, boot: 150, after: 220 }, Exchange { before: 300, boot: 301, after: 390 }];
    assert_eq!(CpuClock::estimate(&step), CpuClock::IN_STEP);
    assert_eq!(CpuClock::estimate(&[]), CpuClock::IN_STEP);
    let behind = [
        Exchange { before: 100, boot: 5_150, after: 220 },
        Exchange { before: 300, boot: 5_340, after: 380 },
    ];
    let cpu = CpuClock::estimate(&behind);
    assert!(!cpu.is_in_step());
    assert_eq!(cpu.boot_tsc(1_000), 6_000);
    let ahead = [Exchange { before: 5_100, boot: 100, after: 5_140 }];
    assert_eq!(CpuClock::estimate(&ahead).boot_tsc(5_120), 100);
}

#[test]
fn the_mark_costs_nothing_until_it_is_engaged() {
    let (clock, high) = (clock(GHZ), HighWater::new());
    assert_eq!(CpuClock::IN_STEP.now(&clock, 2_000, &high), 1_500);
    assert_eq!(CpuClock::IN_STEP.now(&clock, 1_900, &high), 1_400);
    assert!(!high.is_engaged());
    high.engage(1_500);
    assert_eq!(CpuClock::IN_STEP.now(&clock, 1_900, &high), 1_500);
    assert_eq!(CpuClock::IN_STEP.now(&clock, 2_100, &high), 1_600);
    assert_eq!(CpuClock::IN_STEP.now(&clock, 2_000, &high), 1_600);
}

proptest! {
    #[test]
    fn the_step_is_monotonic(
        hz in HZ_MIN..=HZ_MAX,
        base in any::<u64>(),
        ticks in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..8),
    ) {
        let mut clock = Clock::new(base >> 1, base >> 3, Scale::from_hz(hz).unwrap());
        let mut tsc = base >> 1;
        for (later, reference, probe) in ticks {
            tsc = tsc.saturating_add(later >> 8);
            let before = clock.now(tsc);
            let next = clock.discipline(tsc, reference);
            prop_assert_eq!(next.now(tsc), before);
            let (early, late) = (tsc.saturating_add(probe >> 9), tsc.saturating_add(probe >> 4));
            prop_assert!(before <= next.now(early) && next.now(early) <= next.now(late));
            clock = next;
        }
    }

    /// A counter that is not as fast as it was calibrated, and ticks that come late: the clock stays with the reference.
    #[test]
    fn the_clock_follows_its_reference(
        hz in 10_000_000u64..10 * GHZ,
        wrong_ppm in -300i64..=300,
        start_ns in -40_000i64..=40_000,
        ticks in prop::collection::vec(1_000_000u64..60_000_000, 200..300),
    ) {
        let real = Scale::from_hz(hz.saturating_add_signed(hz as i64 / 1_000_000 * wrong_ppm)).unwrap();
        let mut clock = Clock::new(0, 1_000_000u64.saturating_add_signed(start_ns), Scale::from_hz(hz).unwrap());
        let mut ns = 0;
        for (index, tick) in ticks.iter().enumerate() {
            ns += tick;
            let tsc = real.ticks(ns);
            if index > 100 {
                // What is left is the calibration's fault, collected within one horizon.
                let error = clock.now(tsc).abs_diff(1_000_000 + ns);
                prop_assert!(error < 300 * (SLEW_HORIZON_NS + 2 * 60_000_000) / 1_000_000 + 1_000, "{}", error);
            }
            clock = clock.discipline(tsc, 1_000_000 + ns);
        }
    }

    #[test]
    fn deadlines_are_not_early_and_hardly_late(
        hz in HZ_MIN..=HZ_MAX,
        slew in any::<(u64, u64)>(),
        ns in 0u64..1 << 45,
    ) {
        let clock = Clock::new(77, 0, Scale::from_hz(hz).unwrap()).discipline(77 + (slew.0 >> 24), slew.1 >> 20);
        let deadline = clock.base_ns() + ns;
        let tsc = clock.tsc_at(deadline);
        prop_assert!(clock.now(tsc) >= deadline);
        let late = clock.now(tsc) - deadline;
        prop_assert!(late <= ns / 1_000_000 + 2 * (GHZ / hz + 1), "{} ns late", late);
    }

    /// CPUs with a hidden error in their offsets read in some order: nobody sees time go back.
    #[test]
    fn time_never_goes_back_across_cpus(
        hidden in prop::collection::vec(-500i64..500, 2..5),
        reads in prop::collection::vec((any::<prop::sample::Index>(), 0u64..300), 1..200),
    ) {
        let cpus: Vec<CpuClock> = hidden
            .iter()
            .map(|skew| {
                let boot = 1_000_050u64.wrapping_add_signed(*skew);
                CpuClock::estimate(&[Exchange { before: 1_000_000, boot, after: 1_000_100 }])
            })
            .collect();
        let (clock, high) = (clock(GHZ), HighWater::new());
        high.engage(0);
        let (mut tsc, mut last) = (2_000_000u64, 0);
        for (pick, later) in reads {
            tsc += later;
            let cpu = pick.index(cpus.len());
            // The CPU's own counter; the estimate has an error of up to half the exchange.
            let now = cpus[cpu].now(&clock, tsc.wrapping_add_signed(-hidden[cpu] + hidden[cpu] % 50), &high);
            prop_assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn calibration_lies_within_its_samples(hz in 2 * HZ_MIN..HZ_MAX / 2, times in prop::collection::vec(10_000_000u64..100_000_000, 1..10)) {
        let samples: Vec<(u64, u64)> =
            times.iter().map(|ns| ((u128::from(hz) * u128::from(*ns) / 1_000_000_000) as u64, *ns)).collect();
        let found = calibrate(&samples).unwrap();
        prop_assert!(found.abs_diff(hz) <= hz / 10_000, "{} instead of {}", found, hz);
    }
}
