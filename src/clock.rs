//! Time: the only file that reads it.
//!
//! Semantic time is UTC milliseconds from [`Clock::now`]. Deadlines inside the process use
//! [`Clock::monotonic`], which no step of the wall clock moves. Timers are only ticks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A future that ends when a time has passed.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a runtime gets its time from.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, in UTC milliseconds.
    fn now(&self) -> i64;

    /// Milliseconds since some moment in the past; never goes back.
    fn monotonic(&self) -> i64;

    /// Ends after `duration` of monotonic time. Polled on a tokio runtime with timers.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// The system's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// The system's clock; its monotonic time counts from here.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the time")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the time")]
    fn now(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn monotonic(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A short wait in real time, whatever the runtime's clock: for what must not hang with it.
pub(crate) fn moment(duration: Duration) -> Sleep {
    Box::pin(tokio::time::sleep(duration))
}

/// A clock that stands still until it is told to advance.
///
/// ```
/// use leasehold::{Clock, ManualClock};
///
/// let clock = ManualClock::at(1_000_000);
/// clock.advance(250);
/// assert_eq!(clock.now(), 1_000_250);
/// clock.advance(-1_000); // the wall clock is set back; monotonic time is not
/// assert_eq!((clock.now(), clock.monotonic()), (999_250, 250));
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<Hands>>);

struct Hands {
    now: i64,
    monotonic: i64,
    next: u64,
    sleepers: Vec<(u64, i64, Option<Waker>)>,
}

impl ManualClock {
    /// A clock that shows `utc_ms`.
    #[must_use]
    pub fn at(utc_ms: i64) -> Self {
        let hands = Hands { now: utc_ms, monotonic: 0, next: 0, sleepers: Vec::new() };
        Self(Arc::new(Mutex::new(hands)))
    }

    /// Moves the wall clock by `ms`, and monotonic time too where `ms` is positive; then
    /// wakes all sleepers whose time has come.
    pub fn advance(&self, ms: i64) {
        let mut due = Vec::new();
        {
            let mut hands = self.hands();
            hands.now = hands.now.saturating_add(ms);
            hands.monotonic = hands.monotonic.saturating_add(ms.max(0));
            let monotonic = hands.monotonic;
            for (_, at, waker) in &mut hands.sleepers {
                if *at <= monotonic {
                    due.extend(waker.take());
                }
            }
        }
        due.into_iter().for_each(Waker::wake);
    }

    /// Whether somebody whose time has come has not gone on yet.
    pub(crate) fn is_ringing(&self) -> bool {
        let hands = self.hands();
        hands.sleepers.iter().any(|(_, at, _)| *at <= hands.monotonic)
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({})", self.hands().now)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> i64 {
        self.hands().now
    }

    fn monotonic(&self) -> i64 {
        self.hands().monotonic
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let mut hands = self.hands();
        let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let at = hands.monotonic.saturating_add(ms);
        let id = hands.next;
        hands.next += 1;
        hands.sleepers.push((id, at, None));
        Box::pin(Sleeper { clock: self.clone(), id, at })
    }
}

struct Sleeper {
    clock: ManualClock,
    id: u64,
    at: i64,
}

impl Future for Sleeper {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut hands = self.clock.hands();
        if hands.monotonic >= self.at {
            return Poll::Ready(());
        }
        if let Some(sleeper) = hands.sleepers.iter_mut().find(|sleeper| sleeper.0 == self.id) {
            sleeper.2 = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.clock.hands().sleepers.retain(|sleeper| sleeper.0 != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_sleeper_ends_when_its_time_has_come_and_leaves_nothing_behind() {
        let clock = ManualClock::at(0);
        let mut short = clock.sleep(Duration::from_millis(10));
        let mut long = clock.sleep(Duration::from_millis(20));
        assert!((&mut short).now_or_never().is_none());
        clock.advance(10);
        assert!((&mut short).now_or_never().is_some());
        assert!((&mut long).now_or_never().is_none());
        clock.advance(-100);
        clock.advance(10);
        assert!((&mut long).now_or_never().is_some(), "a step back delays no timer");
        drop((short, long));
        assert!(clock.hands().sleepers.is_empty());
    }
}
