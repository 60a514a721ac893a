//! CPU numbers and sets of CPUs, with the canonical byte form of the ABI.

use core::fmt;

/// The most CPUs that one system may have.
pub const MAX_CPUS: usize = 256;
const WORDS: usize = MAX_CPUS / 64;

/// The number of a CPU, below [`MAX_CPUS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(u8);

impl CpuId {
    /// The first CPU, which always exists.
    pub const FIRST: CpuId = CpuId(0);

    /// The CPU with this number, if there can be one.
    pub const fn new(number: usize) -> Option<CpuId> {
        if number < MAX_CPUS { Some(CpuId(number as u8)) } else { None }
    }

    /// The number, for indexing.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu{}", self.0)
    }
}

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CpuMask([u64; WORDS]);

/// Bytes that are not a canonical CPU mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskError {
    /// The last byte is zero: the canonical form drops it. Carries the length that was found.
    TrailingZero(usize),
    /// More bytes than [`MAX_CPUS`] needs. Carries the length that was found.
    TooLong(usize),
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaskError::TrailingZero(len) => {
                write!(f, "CPU mask of {len} bytes ends in a zero byte; the canonical form omits it")
            }
            MaskError::TooLong(len) => {
                write!(f, "CPU mask of {len} bytes; at most {} are allowed", MAX_CPUS / 8)
            }
        }
    }
}

impl core::error::Error for MaskError {}

impl CpuMask {
    /// No CPU.
    pub const EMPTY: CpuMask = CpuMask([0; WORDS]);
    /// Every CPU that there can be.
    pub const ALL: CpuMask = CpuMask([u64::MAX; WORDS]);

    /// From words, CPU 0 the lowest bit of the first.
    pub const fn from_words(words: [u64; WORDS]) -> CpuMask {
        CpuMask(words)
    }

    /// The first `count` CPUs.
    pub fn first_n(count: usize) -> CpuMask {
        let mut mask = CpuMask::EMPTY;
        for cpu in (0..count.min(MAX_CPUS)).filter_map(CpuId::new) {
            mask.insert(cpu);
        }
        mask
    }

    /// Just this CPU.
    pub const fn only(cpu: CpuId) -> CpuMask {
        let mut words = [0; WORDS];
        words[cpu.index() / 64] = 1 << (cpu.index() % 64);
        CpuMask(words)
    }

    /// Adds a CPU.
    pub const fn insert(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] |= 1 << (cpu.index() % 64);
    }

    /// Removes a CPU.
    pub const fn remove(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] &= !(1 << (cpu.index() % 64));
    }

    /// Is this CPU in the set?
    pub const fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64] & (1 << (cpu.index() % 64)) != 0
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        *self == CpuMask::EMPTY
    }

    /// How many CPUs are in the set.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The CPU with the lowest number.
    pub fn first(&self) -> Option<CpuId> {
        let word = self.0.iter().position(|&word| word != 0)?;
        CpuId::new(word * 64 + self.0[word].trailing_zeros() as usize)
    }

    /// The CPUs of the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = CpuId> {
        let (mut words, mut at) = (self.0, 0);
        core::iter::from_fn(move || {
            while words.get(at)? == &0 {
                at += 1;
            }
            let bit = words[at].trailing_zeros() as usize;
            words[at] &= words[at] - 1;
            CpuId::new(at * 64 + bit)
        })
    }

    /// Both sets' common CPUs.
    #[must_use]
    pub fn and(mut self, other: &CpuMask) -> CpuMask {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a &= b);
        self
    }

    /// The CPUs of either set.
    #[must_use]
    pub fn or(mut self, other: &CpuMask) -> CpuMask {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
        self
    }

    /// The CPUs of this set that are not in the other.
    #[must_use]
    pub fn without(mut self, other: &CpuMask) -> CpuMask {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a &= !b);
        self
    }

    /// Reads the ABI's form: CPU `n` is bit `n % 8` of byte `n / 8`; no trailing zero byte; empty means no CPU.
    pub fn from_bytes(bytes: &[u8]) -> Result<CpuMask, MaskError> {
        if bytes.len() > MAX_CPUS / 8 {
            return Err(MaskError::TooLong(bytes.len()));
        }
        if bytes.last() == Some(&0) {
            return Err(MaskError::TrailingZero(bytes.len()));
        }
        let mut mask = CpuMask::EMPTY;
        for (at, &byte) in bytes.iter().enumerate() {
            mask.0[at / 8] |= u64::from(byte) << (at % 8 * 8);
        }
        Ok(mask)
    }

    /// Writes the ABI's form into `out` and returns how many bytes it has.
    pub fn to_bytes(self, out: &mut [u8; MAX_CPUS / 8]) -> usize {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = (self.0[at / 8] >> (at % 8 * 8)) as u8;
        }
        out.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
    }
}

impl fmt::Debug for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(CpuId::index)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-01: canonical masks only; every other byte string is refused by name.
    #[test]
    fn s_01_canonical_masks() {
        assert_eq!(CpuMask::from_bytes(&[]), Ok(CpuMask::EMPTY));
        assert_eq!(CpuMask::from_bytes(&[0]), Err(MaskError::TrailingZero(1)));
        assert_eq!(CpuMask::from_bytes(&[1, 0]), Err(MaskError::TrailingZero(2)));
        assert_eq!(CpuMask::from_bytes(&[1; 33]), Err(MaskError::TooLong(33)));
        let mask = CpuMask::from_bytes(&[0b101, 0, 0, 0, 0, 0, 0, 0, 0b10]).unwrap();
        assert!(mask.iter().map(CpuId::index).eq([0, 2, 65]));
    }

    #[test]
    fn bytes_round_trip() {
        let mut seed = 1u64;
        for _ in 0..2_000 {
            let mut mask = CpuMask::EMPTY;
            for _ in 0..seed % 9 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                mask.insert(CpuId::new((seed >> 33) as usize % MAX_CPUS).unwrap());
            }
            seed = seed.wrapping_add(0x9e37_79b9);
            let mut bytes = [0; MAX_CPUS / 8];
            let len = mask.to_bytes(&mut bytes);
            assert_eq!(CpuMask::from_bytes(&bytes[..len]), Ok(mask));
        }
    }

    #[test]
    fn sets() {
        let low = CpuMask::first_n(70);
        assert_eq!(low.count(), 70);
        assert_eq!(low.without(&CpuMask::first_n(69)).first(), CpuId::new(69));
        assert!(CpuMask::EMPTY.first().is_none());
        assert_eq!(CpuId::new(MAX_CPUS), None);
    }
}
