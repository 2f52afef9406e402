//! Budgets: how often something may be tried again, and how soon.

/// Restarts allowed in a window.
const MOST: usize = 10;
/// The window, in milliseconds.
const WINDOW: i64 = 60_000;
/// The first pause before a restart, doubling up to [`CAP`], in milliseconds.
const BASE: i64 = 100;
const CAP: i64 = 10_000;

/// The restarts of one loop, by the monotonic clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restarts {
    times: Vec<i64>,
}

impl Restarts {
    /// The pause before the next restart, or nothing where there were too many.
    pub(crate) fn next(&mut self, now: i64) -> Option<i64> {
        self.times.retain(|at| now.saturating_sub(*at) < WINDOW);
        if self.times.len() >= MOST {
            return None;
        }
        let before = u32::try_from(self.times.len()).unwrap_or(u32::MAX);
        self.times.push(now);
        Some(BASE.saturating_mul(1_i64.checked_shl(before).unwrap_or(i64::MAX)).min(CAP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_ten_in_a_minute_are_the_most() {
        let mut restarts = Restarts::default();
        let pauses: Vec<_> = (0..11).map(|n| restarts.next(n)).collect();
        let expected = [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000];
        assert_eq!(pauses[..10], expected.map(Some));
        assert_eq!(pauses[10], None);
        assert_eq!(restarts.next(60_010), Some(100), "a quiet minute starts the budget anew");
    }
}
