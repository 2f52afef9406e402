//! Chance: the only file that draws it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

/// Where a runtime gets its randomness from.
pub trait Entropy: Send + Sync + 'static {
    /// A draw from `[0, 1)`. A jittered delay takes exactly one.
    fn unit(&self) -> f64;

    /// Random bytes: claim tokens and owners.
    fn bytes(&self) -> [u8; 16];

    /// A new job's id: a UUIDv7 of this instant.
    fn uuid(&self, now: i64) -> Uuid {
        let mut random = [0; 10];
        random.copy_from_slice(&self.bytes()[..10]);
        let ms = u64::try_from(now).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }
}

/// The system's randomness, fetched in blocks.
pub struct SystemEntropy {
    pool: Mutex<Pool>,
}

struct Pool {
    bytes: [u8; 4096],
    used: usize,
}

impl SystemEntropy {
    /// The system's randomness.
    #[must_use]
    pub fn new() -> Self {
        Self { pool: Mutex::new(Pool { bytes: [0; 4096], used: 4096 }) }
    }
}

impl Default for SystemEntropy {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SystemEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SystemEntropy")
    }
}

impl Entropy for SystemEntropy {
    fn unit(&self) -> f64 {
        let mut wide = [0; 8];
        wide.copy_from_slice(&self.bytes()[..8]);
        unit_from(u64::from_le_bytes(wide))
    }

    #[allow(clippy::disallowed_methods, reason = "the one place that draws randomness")]
    fn bytes(&self) -> [u8; 16] {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.used + 16 > pool.bytes.len() {
            // A system without randomness cannot mint a token that proves anything.
            #[allow(clippy::expect_used, reason = "there is nothing sane to go on with")]
            getrandom::fill(&mut pool.bytes).expect("the system has randomness");
            pool.used = 0;
        }
        let mut out = [0; 16];
        let used = pool.used;
        out.copy_from_slice(&pool.bytes[used..used + 16]);
        pool.bytes[used..used + 16].fill(0);
        pool.used += 16;
        out
    }
}

fn unit_from(bits: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "53 bits are kept, which a float holds")]
    let top = (bits >> 11) as f64;
    top / 9_007_199_254_740_992.0
}

/// Randomness for tests: draws handed out in order, the last one for ever, and bytes that
/// follow from a seed.
pub struct FixedEntropy {
    state: Mutex<(Vec<f64>, u64)>,
}

impl FixedEntropy {
    /// Draws to hand out in order; the last repeats, and 0.5 where there are none. The bytes
    /// follow from `seed`.
    #[must_use]
    pub fn new(draws: &[f64], seed: u64) -> Self {
        Self { state: Mutex::new((draws.to_vec(), seed)) }
    }

    /// The bytes follow from this seed from here on.
    pub(crate) fn reseed(&self, seed: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = seed;
    }

    /// Replaces the draws.
    pub fn set_draws(&self, draws: &[f64]) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = draws.to_vec();
    }
}

impl fmt::Debug for FixedEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FixedEntropy")
    }
}

impl Entropy for FixedEntropy {
    fn unit(&self) -> f64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.0.len() {
            0 => 0.5,
            1 => state.0[0],
            _ => state.0.remove(0),
        }
    }

    fn bytes(&self) -> [u8; 16] {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = [0; 16];
        for half in out.chunks_mut(8) {
            // splitmix64: every seed gives a stream of its own.
            state.1 = state.1.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state.1;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            half.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_below_one() {
        assert!(unit_from(u64::MAX) < 1.0);
        assert!(unit_from(0).abs() < f64::EPSILON);
    }

    #[test]
    fn bytes_do_not_repeat_and_ids_carry_their_time() {
        let entropy = SystemEntropy::new();
        let mut seen: Vec<_> = (0..600).map(|_| entropy.bytes()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 600);
        let id = entropy.uuid(1_700_000_000_000);
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_timestamp().map(|t| t.to_unix().0), Some(1_700_000_000));
    }

    #[test]
    fn fixed_draws_come_in_order_and_the_last_repeats() {
        let entropy = FixedEntropy::new(&[0.0, 0.25], 1);
        let draws: Vec<f64> = (0..3).map(|_| entropy.unit()).collect();
        assert_eq!(draws, [0.0, 0.25, 0.25]);
        assert_ne!(entropy.bytes(), entropy.bytes());
    }
}
