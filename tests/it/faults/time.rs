//! K04: arithmetic on times that overflows, clocks that step, dates that are far away.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::testing::{Bench, BenchSettings, Lab};
use leasehold::{
    Clock, Ctx, Failed, Job, JobError, JobResult, ManualClock, Outcome, Phase, Refusal, Retry,
    Runtime, Settings, Status, Waiting,
};
use serde::{Deserialize, Serialize};

use super::{LEASE, START, bench, by_hand, hand, place, seconds};
use crate::support::{Act, Bystander, Signals, act, record};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// The first instant that no job may be due at: the year 2200.
const END: i64 = 7_258_118_400_000;

/// The delay came from two to the power of the attempt in 64 bits: at the 64th it was nonsense,
/// and the job ran again at once (`alob-mtc/runnerq#54`).
#[tokio::test]
async fn k04_time_a_delay_grows_to_its_cap_and_stays_there_whatever_the_attempt() {
    let attempts = [1, 2, 12, 13, 31, 32, 62, 63, 64, 65, 1_000, u32::MAX.into(), i64::MAX - 1_000];
    for draw in [0.0, 0.5, 0.999_999] {
        let (_dir, path) = place();
        let settings = BenchSettings {
            now: START,
            draws: vec![draw],
            path: Some(path.clone()),
            ..BenchSettings::default()
        };
        let lab = Bench::start(settings).await.unwrap();
        let hourly = Retry::exponential(seconds(1)).cap(seconds(3_600));
        lab.client.register("hand", Settings::new().retry(hourly)).await.unwrap();
        let bystander = Bystander::enqueue(&lab.client).await;
        for attempt in attempts {
            let id = format!("attempt-{attempt}");
            lab.client.enqueue(hand(&id)).await.unwrap();
            by_hand(
                &path,
                &format!(
                    "UPDATE leasehold_job SET attempts = {}, max_attempts = {} WHERE id = '{id}'",
                    attempt - 1,
                    attempt + 1
                ),
            );
            let lease = lab.client.claim_by_id(&*id, "w1").await.unwrap().unwrap();
            let status = lease.fail(Failed::transient("again")).await.unwrap();
            let job = record(&lab.client, &id.into()).await;
            assert_eq!((status, job.attempts), (Status::Pending, attempt));
            let whole = if attempt > 12 { HOUR } else { 1_000 << (attempt - 1) };
            #[allow(clippy::cast_precision_loss, reason = "an hour in milliseconds")]
            let half = whole as f64 / 2.0;
            #[allow(clippy::cast_possible_truncation, reason = "an hour in milliseconds")]
            let expected = (half + draw * half).round() as i64;
            assert_eq!(job.run_at - START, expected, "attempt {attempt}, draw {draw}");
        }
        bystander.check().await;
    }
}

/// Waits that nobody will see the end of, each in its own way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Endless {
    Backoff,
    RetryAfter,
    Snooze,
    RateLimited,
}

impl Job for Endless {
    const KIND: &'static str = "endless";

    fn settings() -> Settings {
        let longest = Retry::exponential(Duration::MAX).cap(Duration::MAX).no_jitter();
        Settings::new().retry(longest).defer(Duration::MAX, Duration::MAX, 3)
    }
}

async fn endless(job: Endless, ctx: Ctx<Arc<AtomicU32>>) -> JobResult {
    ctx.state().fetch_add(1, Ordering::SeqCst);
    match job {
        Endless::Backoff => Err("after the longest delay that there is")?,
        Endless::RetryAfter => Err(JobError::retry_after("later", Duration::MAX)),
        Endless::Snooze => Ok(Outcome::Snooze(Duration::MAX)),
        Endless::RateLimited => Err(JobError::rate_limited("slow", Some(Duration::MAX))),
    }
}

/// Waits that do not fit into their number ended at once, or in the past.
#[tokio::test]
async fn k04_time_a_wait_without_end_is_waited_for_and_overflows_nowhere() {
    let times = Arc::new(AtomicU32::new(0));
    let builder = Runtime::in_memory().state(times.clone()).handle(endless);
    let lab = Lab::start(builder).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let jobs = [Endless::Backoff, Endless::RetryAfter, Endless::Snooze, Endless::RateLimited];
    for job in jobs {
        lab.enqueue(job.into_new().id(format!("{job:?}"))).await.unwrap();
    }
    lab.settle().await;
    for _ in 0..50 {
        lab.advance(Duration::from_secs(365 * 24 * 3_600)).await;
    }
    assert_eq!(times.load(Ordering::SeqCst), 4, "each has run once");
    for job in jobs {
        let found = lab.job(format!("{job:?}")).await.unwrap();
        assert_eq!(found.status, Status::Pending, "{job:?}");
        assert!(found.run_at >= END, "{job:?} is due at {}", found.run_at);
        assert_eq!(lab.client().why_waiting(&found.id).await.unwrap().reason, Waiting::Scheduled);
    }
    let counts = lab.client().counts().await.unwrap();
    assert_eq!((counts.scheduled + counts.retrying, counts.ready), (4, 1));
    bystander.check().await;
}

/// A delay of more than 24.8 days overflowed a timer of 32 bits, and the job ran at once
/// (`OptimalBits/bull#244`).
#[tokio::test]
async fn k04_time_a_job_for_a_far_day_waits_for_it_and_one_that_is_late_runs_now() {
    let signals = Signals::default();
    let century = seconds(100 * 365 * 24 * 3_600);
    let builder = Runtime::in_memory().state(signals.clone()).handle(act);
    let kept = builder.configure::<Act>(move |settings| settings.keep(century, century));
    let lab = Lab::start(kept).await.unwrap();
    let at = |id: &str, run_at| Act::Done.into_new().id(id).run_at(run_at);
    for (id, run_at) in [
        ("in 30 days", START + 30 * DAY),
        ("in 2199", END - 1),
        ("in 1970", 0),
        ("ten years ago", START - 3_652 * DAY),
    ] {
        lab.enqueue(at(id, run_at)).await.unwrap();
        assert_eq!(lab.job(id).await.unwrap().run_at, run_at);
    }
    for (id, delay) in [("2^31", 1 << 31), ("2^32", 1_u64 << 32)] {
        let delay = Duration::from_millis(delay);
        lab.enqueue(Act::Done.after(delay).id(id)).await.unwrap();
    }
    lab.settle().await;
    let phases = async |expected: [(&str, Phase); 4]| {
        for (id, phase) in expected {
            assert_eq!(lab.job(id).await.unwrap().phase, phase, "{id}");
        }
    };
    for id in ["in 1970", "ten years ago"] {
        assert_eq!(lab.job(id).await.unwrap().status, Status::Completed, "{id}");
    }
    let (later, done) = (Phase::Scheduled, Phase::Completed);
    lab.advance(Duration::from_millis((1 << 31) - 1)).await;
    phases([("2^31", later), ("2^32", later), ("in 30 days", later), ("in 2199", later)]).await;
    lab.advance(Duration::from_millis(1)).await;
    phases([("2^31", done), ("2^32", later), ("in 30 days", later), ("in 2199", later)]).await;
    lab.advance(Duration::from_millis((30 * DAY).unsigned_abs() - (1 << 31))).await;
    phases([("2^31", done), ("2^32", later), ("in 30 days", done), ("in 2199", later)]).await;
    lab.advance(Duration::from_millis(1 << 32)).await;
    phases([("2^31", done), ("2^32", done), ("in 30 days", done), ("in 2199", later)]).await;
    assert_eq!(signals.times(), 5);
}

/// The same report: times that cannot be kept are refused by their field.
#[tokio::test]
async fn k04_time_a_time_out_of_range_is_refused_by_its_field_and_nothing_is_written() {
    let lab = Lab::start(Runtime::in_memory().state(Signals::default()).handle(act)).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let field = async |job: leasehold::NewJob| match lab.enqueue(job).await {
        Err(leasehold::Error::Refused(Refusal::Invalid { field, .. })) => field,
        other => panic!("{other:?}"),
    };
    let year_9999 = 253_370_764_800_000;
    for run_at in [END, year_9999, i64::MAX, -1, i64::MIN] {
        assert_eq!(field(Act::Done.into_new().run_at(run_at)).await, "run_at", "{run_at}");
    }
    let to_the_end = Duration::from_millis((END - START).unsigned_abs());
    for delay in [to_the_end, Duration::from_millis(u64::MAX), Duration::MAX] {
        assert_eq!(field(Act::Done.after(delay)).await, "delay", "{delay:?}");
    }
    let counts = lab.client().counts().await.unwrap();
    assert_eq!((counts.scheduled, counts.ready, counts.completed), (0, 1, 0));
    bystander.check().await;
}

/// A frozen clock whose wall clock can be set apart from its monotonic time.
#[derive(Clone)]
pub(super) struct Stepped(pub(super) ManualClock, pub(super) Arc<AtomicI64>);

impl Clock for Stepped {
    fn now(&self) -> i64 {
        self.0.now() + self.1.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> i64 {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> leasehold::Sleep {
        self.0.sleep(duration)
    }
}

/// Loops slept for the difference of two readings of the wall clock: where it was set back, they
/// stood still for as long (`quartznet/quartznet#1508`).
#[tokio::test]
async fn k04_time_steps_of_the_wall_clock_stop_no_heartbeat_and_take_no_job() {
    let (_dir, path) = place();
    let (signals, clock) = (Signals::default(), Stepped(ManualClock::at(START), Arc::default()));
    let builder = Runtime::builder(&path).state(signals.clone()).handle(act).slots(2);
    let runtime = builder.clock(clock.clone()).start().await.unwrap();
    let client = runtime.client();
    client.enqueue(Act::Block.into_new().id("runs")).await.unwrap();
    client.enqueue(Act::Done.after(seconds(5)).id("due")).await.unwrap();
    signals.entered(1).await;
    // The heart beats each third of a lease, whatever the wall clock shows.
    let beats = async |times: u64| {
        for _ in 0..times {
            let before = runtime.stats().renewals;
            clock.0.advance(LEASE / 3);
            while runtime.stats().renewals == before {
                // A moment, in which the other threads go on too.
                clock.0.advance(1);
                record(&client, &"runs".into()).await;
            }
        }
        let job = record(&client, &"runs".into()).await;
        assert_eq!((job.status, job.epoch, job.attempts), (Status::Running, 1, 1));
    };
    let ended = async |id: &str| {
        while record(&client, &id.into()).await.status != Status::Completed {
            clock.0.advance(1);
        }
        let job = record(&client, &id.into()).await;
        assert_eq!((job.epoch, job.attempts), (1, 1), "{id}");
    };
    let step = |ms| clock.1.fetch_add(ms, Ordering::SeqCst);
    step(-HOUR);
    beats(7).await;
    client.enqueue(Act::Done.after(seconds(5)).id("after the step back")).await.unwrap();
    beats(1).await;
    ended("after the step back").await;
    assert_eq!(record(&client, &"due".into()).await.attempts, 0, "its time is an hour away");
    step(2 * HOUR);
    beats(1).await;
    ended("due").await;
    beats(7).await;
    for _ in 0..100 {
        step(-10);
        clock.0.advance(5);
        tokio::task::yield_now().await;
    }
    beats(4).await;
    signals.open();
    ended("runs").await;
    assert_eq!(signals.times(), 3, "none has run twice");
    assert_eq!((runtime.stats().lost, runtime.health().restarts), (0, 0));
}

/// The same report: a lease that was written before the clock was set back ends too far ahead.
#[tokio::test]
async fn k04_time_a_lease_that_ends_further_ahead_than_any_can_is_lost() {
    let (_dir, path) = place();
    let lab = bench(&path, START).await;
    lab.client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client).await;
    lab.client.enqueue(hand("a")).await.unwrap();
    let first = lab.client.claim(&["hand"], "w1", 1).await.unwrap().remove(0);
    // The kinds' longest lease and a minute are allowed.
    lab.clock.advance(-60_000);
    assert_eq!(lab.client.reap_once().await.unwrap().scanned, 0);
    lab.clock.advance(-1);
    assert_eq!(lab.client.reap_once().await.unwrap().requeued, 1);
    assert_eq!(lab.client.job("a").await.unwrap().unwrap().run_at, lab.clock.now());
    let second = lab.client.claim(&["hand"], "w2", 1).await.unwrap().remove(0);
    assert_eq!(second.renew().await.unwrap(), lab.clock.now() + LEASE);
    assert!(first.complete(None).await.unwrap_err().refusal().is_some());
    assert_eq!(second.complete(None).await.unwrap(), Status::Completed);
    assert_eq!(lab.client.counts().await.unwrap().completed, 1);
    lab.clock.advance(60_001);
    bystander.check().await;
}
