//! Where a thread goes when it becomes runnable: to an idle CPU as near as possible to where it ran, else where it ran.

use crate::{CpuId, CpuMask, Level, PLACE_SCAN_CPUS, Topology};

/// What is known of all CPUs when a thread is placed. May be stale: a wrong guess is mended by stealing and balancing.
#[derive(Clone, Copy)]
pub struct CpuMap<'a> {
    /// Which CPUs are near each other.
    pub topology: &'a Topology,
    /// CPUs that take threads.
    pub online: CpuMask,
    /// CPUs with nothing to run.
    pub idle: CpuMask,
    /// CPUs that have been told to look at their queue and have not done so: already spoken for.
    pub pending: CpuMask,
}

/// The CPU for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The CPU to run on.
    pub cpu: CpuId,
    /// Whether it was idle, so that it must be told.
    pub was_idle: bool,
}

/// Chooses a CPU. `previous` is where the thread ran last, `waker` where the event happened, `load` the weight on a CPU.
/// `None` if no online CPU is allowed.
///
/// Reads at most one group mask a level, and at most two loads; a thread that has never run looks at `PLACE_SCAN_CPUS` of
/// them, because a good first home saves many moves.
pub fn place(
    land: &CpuMap<'_>,
    allowed: &CpuMask,
    previous: Option<CpuId>,
    waker: Option<CpuId>,
    load: impl Fn(CpuId) -> u64,
) -> Option<Placement> {
    let candidates = land.online.and(allowed);
    let usable = |cpu: &CpuId| candidates.contains(*cpu);
    let waker = waker.filter(usable);
    let anchor = previous.filter(usable).or(waker).or(candidates.first())?;
    let idle = candidates.and(&land.idle).without(&land.pending);
    if idle.contains(anchor) {
        return Some(Placement { cpu: anchor, was_idle: true });
    }
    if !idle.is_empty() {
        for level in Level::ALL {
            let near = idle.and(&land.topology.group(anchor, level));
            // A whole idle core beats a sibling of a busy one, except on the anchor's own core, where there is none.
            let whole = near.iter().find(|cpu| {
                land.topology.group(*cpu, Level::Core).without(&land.idle).is_empty() && level != Level::Core
            });
            let any = if level == Level::Core && wider_idle_core(land, &idle, anchor) {
                None
            } else {
                near.first()
            };
            if let Some(cpu) = whole.or(any) {
                return Some(Placement { cpu, was_idle: true });
            }
        }
    }
    let cpu = if previous.is_none() {
        let (after, before) = (candidates.iter().filter(|cpu| *cpu >= anchor), candidates.iter());
        let scanned = after.chain(before.take_while(|cpu| *cpu < anchor)).take(PLACE_SCAN_CPUS);
        // The first of the least: comparing loads alone keeps the scan short.
        scanned.min_by_key(|cpu| load(*cpu)).unwrap_or(anchor)
    } else {
        match waker {
            Some(waker) if load(waker) < load(anchor) => waker,
            _ => anchor,
        }
    };
    Some(Placement { cpu, was_idle: false })
}

/// Is there a wholly idle core under the anchor's cache? Then its SMT sibling is second choice.
fn wider_idle_core(land: &CpuMap<'_>, idle: &CpuMask, anchor: CpuId) -> bool {
    let near = idle.and(&land.topology.group(anchor, Level::Cache));
    near.iter().any(|cpu| land.topology.group(cpu, Level::Core).without(&land.idle).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: &[usize]) -> CpuMask {
        let mut mask = CpuMask::EMPTY;
        numbers.iter().filter_map(|n| CpuId::new(*n)).for_each(|cpu| mask.insert(cpu));
        mask
    }

    fn choose(
        idle: &[usize],
        pending: &[usize],
        allowed: CpuMask,
        previous: Option<usize>,
    ) -> Option<(usize, bool)> {
        // Two sockets of two cores of two threads: cores {0,1} {2,3} | {4,5} {6,7}.
        let topology = Topology::regular(2, 2, 2, 1).unwrap();
        let land = CpuMap {
            topology: &topology,
            online: CpuMask::first_n(8),
            idle: cpus(idle),
            pending: cpus(pending),
        };
        let load = |cpu: CpuId| 100 - cpu.index() as u64;
        place(&land, &allowed, previous.and_then(CpuId::new), None, load).map(|p| (p.cpu.index(), p.was_idle))
    }

    /// F-08, F-12: the previous CPU, then a whole core near it, then its sibling, then further away.
    #[test]
    fn f_12_near_and_whole_cores_first() {
        assert_eq!(choose(&[0, 3], &[], CpuMask::ALL, Some(0)), Some((0, true)));
        assert_eq!(choose(&[1, 2, 3], &[], CpuMask::ALL, Some(0)), Some((2, true)));
        assert_eq!(choose(&[1, 3], &[], CpuMask::ALL, Some(0)), Some((1, true)));
        assert_eq!(choose(&[3, 6, 7], &[], CpuMask::ALL, Some(0)), Some((3, true)));
        assert_eq!(choose(&[5, 6, 7], &[], CpuMask::ALL, Some(0)), Some((6, true)));
    }

    /// F-08: a CPU that was already told to look is skipped.
    #[test]
    fn f_08_pending_cpus_are_skipped() {
        assert_eq!(choose(&[0, 3], &[0], CpuMask::ALL, Some(0)), Some((3, true)));
        assert_eq!(choose(&[0], &[0], CpuMask::ALL, Some(0)), Some((0, false)));
    }

    /// S-04: the mask is obeyed, also when it excludes every idle CPU or all CPUs.
    #[test]
    fn s_04_masks_are_obeyed() {
        assert_eq!(choose(&[0, 1, 2], &[], cpus(&[5]), Some(0)), Some((5, false)));
        assert_eq!(choose(&[0], &[], cpus(&[200]), Some(0)), None);
    }

    /// A new thread goes to the least loaded CPU when none is idle.
    #[test]
    fn new_threads_find_the_least_load() {
        assert_eq!(choose(&[], &[], CpuMask::ALL, None), Some((7, false)));
    }
}
