//! The ladder for handlers that do not end in time, and when a lease is renewed.

/// How far up the ladder an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Within its time limit.
    Running,
    /// Its signal has fired.
    Signalled,
    /// Failed with `timeout`, its handle revoked, its task aborted.
    Aborted,
    /// Its code still does not end: it blocks its thread.
    Zombie,
}

/// How long an aborted task is waited for before its thread counts as blocked.
const ABORT_GRACE: i64 = 1_000;

/// The grace after the signal, in milliseconds.
pub(crate) fn grace(lease: i64) -> i64 {
    lease.min(5_000)
}

/// The stage that an attempt has reached after `running_for`, both in milliseconds; a
/// `limit` of 0 is none.
pub(crate) fn stage(running_for: i64, limit: i64, lease: i64) -> Stage {
    let abort = limit.saturating_add(grace(lease));
    if limit == 0 || running_for < limit {
        Stage::Running
    } else if running_for < abort {
        Stage::Signalled
    } else if running_for < abort.saturating_add(ABORT_GRACE) {
        Stage::Aborted
    } else {
        Stage::Zombie
    }
}

/// How often a lease is renewed: every third of it, a minute at the most.
pub(crate) fn beat(lease: i64) -> i64 {
    (lease / 3).clamp(1, 60_000)
}

/// How long before its end a holder that could not renew stops trusting its lease.
pub(crate) fn margin(lease: i64) -> i64 {
    (lease / 10).min(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rung_follows_the_one_before() {
        let at = |ms| stage(ms, 10_000, 30_000);
        assert_eq!(at(9_999), Stage::Running);
        assert_eq!(at(10_000), Stage::Signalled);
        assert_eq!(at(15_000), Stage::Aborted);
        assert_eq!(at(16_000), Stage::Zombie);
        assert_eq!(stage(i64::MAX, 0, 30_000), Stage::Running);
        assert_eq!(stage(300, 100, 200), Stage::Aborted, "the grace is a lease at the most");
    }

    #[test]
    fn every_lease_is_renewed_before_it_stops_being_trusted() {
        for lease in [3, 30, 300, 3_000, 30_000, 600_000, 21_660_000] {
            assert!(2 * beat(lease) <= lease - margin(lease), "{lease}");
        }
    }
}
