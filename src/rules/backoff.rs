//! Delays: (policy, count, draw) to milliseconds. All arithmetic saturates.

use crate::facts::{Backoff, DeferFacts, RetryFacts, Strategy};

/// `min(cap, base * 2^(n-1))`, stopping at the cap.
fn doubled(base: i64, cap: i64, n: i64) -> i64 {
    let mut delay = base.min(cap);
    let mut left = n.saturating_sub(1);
    while left > 0 && delay < cap && delay > 0 {
        delay = delay.saturating_mul(2).min(cap);
        left -= 1;
    }
    delay.max(0)
}

/// `round(e/2 + r * e/2)`, halves up.
fn jittered(e: i64, draw: f64) -> i64 {
    #[allow(clippy::cast_precision_loss, reason = "exact below 2^53 ms, some 285 000 years")]
    let half = e as f64 / 2.0;
    #[allow(clippy::cast_possible_truncation, reason = "a float that is too large saturates")]
    let rounded = (half + draw * half + 0.5).floor() as i64;
    rounded
}

/// The wait after failed attempt `attempts`. Draws once where there is jitter.
pub(crate) fn retry(
    policy: &RetryFacts,
    attempts: i64,
    retry_after: Option<i64>,
    draw: &mut dyn FnMut() -> f64,
) -> i64 {
    let e = match policy.strategy {
        Strategy::Exponential => doubled(policy.base, policy.cap, attempts),
        Strategy::Fixed => policy.base,
    };
    let delay = if policy.jitter { jittered(e, draw()) } else { e };
    delay.max(retry_after.unwrap_or(0))
}

/// The wait after rate limit number `hits`; always jittered.
pub(crate) fn defer(
    policy: &DeferFacts,
    hits: i64,
    retry_after: Option<i64>,
    draw: &mut dyn FnMut() -> f64,
) -> i64 {
    jittered(doubled(policy.base, policy.cap, hits), draw()).max(retry_after.unwrap_or(0))
}

/// The wait before a job whose holder was lost runs again, after `stalls` earlier ones.
pub(crate) fn orphan(policy: &Backoff, stalls: i64) -> i64 {
    doubled(policy.base, policy.cap, stalls.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryFacts =
        RetryFacts { strategy: Strategy::Exponential, base: 1_000, cap: 60_000, jitter: true };

    #[test]
    fn delays_stay_between_a_half_and_the_whole_for_every_count_and_draw() {
        for n in [1, 2, 5, 6, 7, 31, 32, 62, 63, 64, 65, 1_000, i64::from(u32::MAX), i64::MAX] {
            let whole = doubled(POLICY.base, POLICY.cap, n);
            assert!((1_000..=60_000).contains(&whole));
            for draw in [0.0, 0.25, 0.5, 0.999_999_999] {
                let delay = retry(&POLICY, n, None, &mut || draw);
                assert!(delay >= whole / 2 && delay <= whole, "{n} {draw} {delay}");
            }
        }
    }

    #[test]
    fn nothing_overflows() {
        let wild = RetryFacts { base: i64::MAX - 1, cap: i64::MAX, jitter: false, ..POLICY };
        assert_eq!(retry(&wild, 9, None, &mut || 0.0), i64::MAX);
        let wild = RetryFacts { jitter: true, ..wild };
        assert!(retry(&wild, 9, None, &mut || 0.99) > 0);
        assert_eq!(orphan(&Backoff { base: 15_000, cap: 600_000 }, i64::MAX), 600_000);
        assert_eq!(orphan(&Backoff { base: 0, cap: 600_000 }, 7), 0);
    }

    #[test]
    fn a_delay_without_jitter_draws_nothing() {
        let plain = RetryFacts { jitter: false, ..POLICY };
        let delay = retry(&plain, 3, None, &mut || panic!("a draw was taken"));
        assert_eq!(delay, 4_000);
    }
}
