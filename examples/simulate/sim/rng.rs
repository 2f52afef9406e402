//! Chance: a stream of numbers that follows from a seed.

/// splitmix64: every seed is a stream of its own.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream for `parts` of the seed's world.
    pub fn of(seed: u64, parts: &[u64]) -> Self {
        let mut rng = Self(seed);
        for part in parts {
            rng.0 = rng.next() ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        }
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// From `low` to `high`, both among them.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let n = self.below(of.len() as u64);
        &of[usize::try_from(n).unwrap_or_default()]
    }
}
