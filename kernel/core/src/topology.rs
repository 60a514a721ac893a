//! Which bits of an APIC number say core, cache and package: from CPUID, as recorded or as it is.

/// One leaf: EAX, EBX, ECX, EDX.
pub type Registers = [u32; 4];

/// How far an APIC number is shifted to the right to name what its CPU shares with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shifts {
    /// To the core.
    pub core: u32,
    /// To the last-level cache.
    pub cache: u32,
    /// To the package.
    pub package: u32,
    /// The leaf that said so.
    pub leaf: u32,
}

const LEAF_CACHE: u32 = 4;
const LEAF_TOPOLOGY: u32 = 0xb;
const LEAF_TOPOLOGY_V2: u32 = 0x1f;
const LEAF_EXTENDED: u32 = 0x8000_0000;
const LEAF_AMD_FEATURES: u32 = 0x8000_0001;
const LEAF_AMD_SIZES: u32 = 0x8000_0008;
const LEAF_AMD_CACHE: u32 = 0x8000_001d;
const LEAF_AMD_TOPOLOGY: u32 = 0x8000_001e;
/// AMD's: the two leaves above are there.
const TOPOEXT: u32 = 1 << 22;
/// The package has several logical CPUs.
const HTT: u32 = 1 << 28;
const LEVEL_SMT: u32 = 1;
/// Levels and caches that are looked at.
const SUBLEAVES_MAX: u32 = 8;

/// Bits that `count` numbers need.
fn bits(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

/// Reads the shifts. `cpuid` gives a leaf and subleaf; it is not asked for leaves that do not exist.
pub fn shifts(cpuid: impl Fn(u32, u32) -> Registers) -> Shifts {
    let largest = cpuid(0, 0)[0];
    let extended = cpuid(LEAF_EXTENDED, 0)[0];
    let has_topoext = extended >= LEAF_AMD_TOPOLOGY && cpuid(LEAF_AMD_FEATURES, 0)[2] & TOPOEXT != 0;
    let by_leaf = |leaf: u32| {
        if largest < leaf || cpuid(leaf, 0)[1] & 0xffff == 0 {
            return None;
        }
        let mut shifts = Shifts { core: 0, cache: 0, package: 0, leaf };
        for level in 0..SUBLEAVES_MAX {
            let [eax, _, ecx, _] = cpuid(leaf, level);
            match ecx >> 8 & 0xff {
                0 => break,
                LEVEL_SMT => shifts.core = eax & 31,
                _ => {}
            }
            shifts.package = eax & 31;
        }
        Some(shifts)
    };
    let mut shifts = by_leaf(LEAF_TOPOLOGY_V2).or_else(|| by_leaf(LEAF_TOPOLOGY)).unwrap_or_else(|| {
        let leaf1 = cpuid(1, 0);
        let logical = if leaf1[3] & HTT != 0 { leaf1[1] >> 16 & 0xff } else { 1 };
        if has_topoext {
            let threads = (cpuid(LEAF_AMD_TOPOLOGY, 0)[1] >> 8 & 0xff) + 1;
            let size = cpuid(LEAF_AMD_SIZES, 0)[2] >> 12 & 15;
            let package = if size == 0 { bits(logical) } else { size };
            return Shifts { core: bits(threads), cache: 0, package, leaf: LEAF_AMD_TOPOLOGY };
        }
        let cores = if largest >= LEAF_CACHE { (cpuid(LEAF_CACHE, 0)[0] >> 26) + 1 } else { logical };
        let package = bits(logical);
        Shifts { core: package.saturating_sub(bits(cores)), cache: 0, package, leaf: 1 }
    });
    shifts.package = shifts.package.max(shifts.core);
    let caches =
        if has_topoext { Some(LEAF_AMD_CACHE) } else { Some(LEAF_CACHE).filter(|leaf| largest >= *leaf) };
    // Without a word about caches, the cores of a package share one.
    let cache = caches.and_then(|leaf| last_cache(|sub| cpuid(leaf, sub))).unwrap_or(shifts.package);
    shifts.cache = cache.clamp(shifts.core, shifts.package);
    shifts
}

/// The shift of the last-level cache.
fn last_cache(subleaf: impl Fn(u32) -> Registers) -> Option<u32> {
    let caches = (0..SUBLEAVES_MAX).map(|sub| subleaf(sub)[0]).take_while(|eax| eax & 31 != 0);
    caches.max_by_key(|eax| eax >> 5 & 7).map(|eax| bits((eax >> 14 & 0xfff) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recorded CPU: leaf, subleaf, registers; others are 0.
    fn record(leaves: &'static [(u32, u32, Registers)]) -> impl Fn(u32, u32) -> Registers {
        move |leaf, sub| {
            let found = leaves.iter().find(|(known, known_sub, _)| (*known, *known_sub) == (leaf, sub));
            found.map_or([0; 4], |(.., registers)| *registers)
        }
    }

    /// A Xeon: two threads a core, up to 32 cores a package, one L3 a package.
    #[test]
    fn f_12_leaf_b() {
        let cpu = record(&[
            (0, 0, [0x16, 0, 0, 0]),
            (4, 0, [0x7c00_4121, 0, 0, 0]),
            (4, 1, [0x7c00_4122, 0, 0, 0]),
            (4, 2, [0x7c00_4143, 0, 0, 0]),
            (4, 3, [0x7c0f_c163, 0, 0, 0]),
            (0xb, 0, [1, 2, 0x100, 0]),
            (0xb, 1, [6, 40, 0x201, 0]),
            (0xb, 2, [0, 0, 2, 0]),
        ]);
        assert_eq!(shifts(cpu), Shifts { core: 1, cache: 6, package: 6, leaf: 0xb });
    }

    /// A part with dies: leaf 0x1F has more levels, and its last one is the package.
    #[test]
    fn f_12_leaf_1f_with_dies() {
        let cpu = record(&[
            (0, 0, [0x1f, 0, 0, 0]),
            (4, 0, [0x0001_4163, 0, 0, 0]),
            (0xb, 0, [1, 2, 0x100, 0]),
            (0x1f, 0, [1, 2, 0x100, 0]),
            (0x1f, 1, [4, 16, 0x201, 0]),
            (0x1f, 2, [6, 64, 0x502, 0]),
        ]);
        let found = shifts(cpu);
        assert_eq!((found.core, found.package, found.leaf), (1, 6, 0x1f));
    }

    /// A Ryzen: 16 threads a package, eight of them on each of two L3 caches.
    #[test]
    fn f_12_amd_chiplets() {
        let cpu = record(&[
            (0, 0, [1, 0, 0, 0]),
            (1, 0, [0, 16 << 16, 0, HTT]),
            (0x8000_0000, 0, [0x8000_001e, 0, 0, 0]),
            (0x8000_0001, 0, [0, 0, TOPOEXT, 0]),
            (0x8000_0008, 0, [0, 0, 0x400f, 0]),
            (0x8000_001d, 0, [0x0000_4121, 0, 0, 0]),
            (0x8000_001d, 1, [0x0000_4143, 0, 0, 0]),
            (0x8000_001d, 2, [0x0001_c163, 0, 0, 0]),
            (0x8000_001e, 0, [0, 0x100, 0, 0]),
        ]);
        assert_eq!(shifts(cpu), Shifts { core: 1, cache: 3, package: 4, leaf: 0x8000_001e });
    }

    /// Old parts: only the count of logical CPUs, and of cores.
    #[test]
    fn f_12_without_topology_leaves() {
        let cpu = record(&[
            (0, 0, [4, 0, 0, 0]),
            (1, 0, [0, 4 << 16, 0, HTT]),
            (4, 0, [0x0400_0121, 0, 0, 0]),
            (4, 1, [0x0400_4143, 0, 0, 0]),
        ]);
        assert_eq!(shifts(cpu), Shifts { core: 1, cache: 1, package: 2, leaf: 1 });
        assert_eq!(shifts(|_, _| [0; 4]), Shifts { core: 0, cache: 0, package: 0, leaf: 1 });
    }

    /// Whatever is answered, groups lie in each other and shifts are shifts.
    #[test]
    fn nonsense_makes_no_contradiction() {
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let seed = state;
            let found = shifts(|leaf, sub| {
                let mix = |i: u64| {
                    let word = (seed ^ u64::from(leaf) << 20 ^ u64::from(sub) << 7 ^ i)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    (word >> 29) as u32
                };
                [mix(1), mix(2), mix(3), mix(4)]
            });
            assert!(
                found.core <= found.cache && found.cache <= found.package && found.package < 32,
                "{found:?}"
            );
        }
    }
}
