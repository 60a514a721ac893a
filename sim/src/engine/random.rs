//! The only source of chance: a seeded generator, so that a run is a function of scenario and seed.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for this seed; different seeds give unrelated sequences.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..below`; 0 for an empty range.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(below)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True this many times in a thousand.
    pub fn permille(&mut self, chance: u32) -> bool {
        chance > 0 && self.below(1000) < u64::from(chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept_and_reached() {
        let mut random = Random::new(3);
        let mut seen = [false; 7];
        for _ in 0..1_000 {
            seen[random.between(2, 6) as usize] = true;
        }
        assert_eq!(seen, [false, false, true, true, true, true, true]);
        assert_eq!(random.below(0), 0);
        assert!((0..1_000).all(|_| !random.permille(0) && random.permille(1000)));
    }
}
