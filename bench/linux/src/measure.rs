//! Medians of warm batches, as capOS's `bench` takes them.

/// Batches of which the median is taken.
const BATCHES: usize = 41;
/// Batches before them, to warm up.
const WARM: usize = 5;

/// Under icount, guest instructions; else time.
pub(crate) fn ticks() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The median cost of `each`, run `count` times in every batch, of which each is `parts` of what is measured.
pub(crate) fn row(name: &str, count: u64, parts: u64, mut each: impl FnMut()) {
    counted(name, || {
        for _ in 0..count {
            each();
        }
        count * parts
    });
}

/// The same for a batch that says how many it was.
pub(crate) fn counted(name: &str, mut batch: impl FnMut() -> u64) {
    let mut costs = Vec::with_capacity(BATCHES);
    for at in 0..WARM + BATCHES {
        let before = ticks();
        let count = batch();
        if at >= WARM {
            costs.push((ticks() - before) / count.max(1));
        }
    }
    costs.sort_unstable();
    println!("bench {name} {} (spread {} to {})", costs[BATCHES / 2], costs[0], costs[BATCHES - 1]);
}
