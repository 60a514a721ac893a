//! Which CPUs share what: SMT siblings, caches, memory (F-12).

use alloc::vec::Vec;
use core::fmt;

use crate::{CpuId, CpuMask, MAX_CPUS};

/// Where one CPU sits, in the numbers that CPUID and ACPI give: equal numbers mean shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CpuIds {
    /// Memory node.
    pub node: u32,
    /// Last-level cache, unique in the system.
    pub cache: u32,
    /// Core, unique in the system.
    pub core: u32,
}

/// How close two CPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Threads of one core.
    Core,
    /// Cores that share the last-level cache.
    Cache,
    /// CPUs of one memory node.
    Node,
    /// All CPUs.
    System,
}

impl Level {
    /// Nearest first.
    pub const ALL: [Level; 4] = [Level::Core, Level::Cache, Level::Node, Level::System];
}

/// A description that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// No CPU, or more than [`MAX_CPUS`].
    Count(usize),
    /// Two CPUs of one core claim different caches, or two of one cache different nodes. Carries the second CPU's number.
    Contradiction(usize),
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologyError::Count(found) => write!(f, "{found} CPUs; 1 to {MAX_CPUS} are possible"),
            TopologyError::Contradiction(cpu) => {
                write!(f, "cpu{cpu} shares a core or a cache with a CPU of another cache or node")
            }
        }
    }
}

impl core::error::Error for TopologyError {}

/// The groups of every CPU, computed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    groups: Vec<[CpuMask; 4]>,
}

impl Topology {
    /// Groups CPUs `0..ids.len()` by what they share.
    pub fn new(ids: &[CpuIds]) -> Result<Topology, TopologyError> {
        if ids.is_empty() || ids.len() > MAX_CPUS {
            return Err(TopologyError::Count(ids.len()));
        }
        let mut groups = Vec::with_capacity(ids.len());
        for (number, mine) in ids.iter().enumerate() {
            let mut masks = [CpuMask::EMPTY; 4];
            for (other, theirs) in ids.iter().enumerate() {
                let Some(cpu) = CpuId::new(other) else { continue };
                let (core, cache, node) =
                    (theirs.core == mine.core, theirs.cache == mine.cache, theirs.node == mine.node);
                if (core && !cache) || (cache && !node) {
                    return Err(TopologyError::Contradiction(number.max(other)));
                }
                for (mask, shared) in masks.iter_mut().zip([core, cache, node, true]) {
                    if shared {
                        mask.insert(cpu);
                    }
                }
            }
            groups.push(masks);
        }
        Ok(Topology { groups })
    }

    /// `sockets` × `cores` × `threads`, numbered threads first, as QEMU's `-smp` does; one cache a socket, and the
    /// sockets spread over `nodes` memory nodes.
    pub fn regular(sockets: u32, cores: u32, threads: u32, nodes: u32) -> Result<Topology, TopologyError> {
        let count = u64::from(sockets) * u64::from(cores) * u64::from(threads);
        if count == 0 || count > MAX_CPUS as u64 || nodes == 0 {
            return Err(TopologyError::Count(count.min(usize::MAX as u64) as usize));
        }
        let per_node = sockets.div_ceil(nodes);
        let ids: Vec<CpuIds> = (0..count as u32)
            .map(|cpu| {
                let (core, socket) = (cpu / threads, cpu / threads / cores);
                CpuIds { node: socket / per_node, cache: socket, core }
            })
            .collect();
        Topology::new(&ids)
    }

    /// `count` cores that share one cache.
    pub fn flat(count: usize) -> Result<Topology, TopologyError> {
        let count = u32::try_from(count).map_err(|_| TopologyError::Count(count))?;
        Topology::regular(1, count, 1, 1)
    }

    /// How many CPUs there are.
    pub fn cpus(&self) -> usize {
        self.groups.len()
    }

    /// The CPUs that share `level` with `cpu`, itself included.
    pub fn group(&self, cpu: CpuId, level: Level) -> CpuMask {
        self.groups[cpu.index()][level as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F-12: two sockets of two cores of two threads, one node a socket.
    #[test]
    fn f_12_regular_groups() {
        let topology = Topology::regular(2, 2, 2, 2).unwrap();
        let group = |cpu, level| topology.group(CpuId::new(cpu).unwrap(), level);
        assert!(group(3, Level::Core).iter().map(CpuId::index).eq([2, 3]));
        assert!(group(3, Level::Cache).iter().map(CpuId::index).eq([0, 1, 2, 3]));
        assert!(group(5, Level::Node).iter().map(CpuId::index).eq([4, 5, 6, 7]));
        assert_eq!(group(0, Level::System).count(), 8);
    }

    /// F-12: a recorded part: one socket, two chiplets with a cache each, one memory node, siblings 0+4, 1+5, 2+6, 3+7.
    #[test]
    fn f_12_recorded_chiplets() {
        let ids: Vec<CpuIds> =
            (0..8).map(|cpu| CpuIds { node: 0, cache: cpu % 4 / 2, core: cpu % 4 }).collect();
        let topology = Topology::new(&ids).unwrap();
        let group = |cpu, level| topology.group(CpuId::new(cpu).unwrap(), level);
        assert!(group(1, Level::Core).iter().map(CpuId::index).eq([1, 5]));
        assert!(group(1, Level::Cache).iter().map(CpuId::index).eq([0, 1, 4, 5]));
        assert_eq!(group(1, Level::Node).count(), 8);
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Topology::flat(0), Err(TopologyError::Count(0)));
        assert_eq!(Topology::flat(257), Err(TopologyError::Count(257)));
        let ids = [CpuIds { node: 0, cache: 0, core: 0 }, CpuIds { node: 0, cache: 1, core: 0 }];
        assert_eq!(Topology::new(&ids), Err(TopologyError::Contradiction(1)));
    }
}
