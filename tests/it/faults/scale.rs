//! K15: what grows with the number of jobs, and jobs that never come to their turn.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use leasehold::testing::{Bench, BenchSettings, Lab};
use leasehold::{
    Client, Clock, Ctx, Job, JobResult, ManualClock, NewJob, Outcome, Refusal, Runtime, Settings,
    Target,
};
use serde::{Deserialize, Serialize};

use super::{
    LEASE, PATIENCE, START, Talker, bench, by, by_hand, fill, hand, listen, place, query, say,
    scale, seconds,
};
use crate::support::{Act, Bystander, Signals, act, child_folder};

const DAY: i64 = 24 * 3_600_000;

/// A claim that asked for `ready or expired` could use no index, and went through all the rows
/// (`janbjorge/pgqueuer#607`). What a claim costs beside others is counted in the store's own
/// tests; here it finds what is there, and nothing else.
#[tokio::test]
async fn k15_scale_a_claim_beside_masses_of_other_rows_finds_just_what_is_due() {
    let (_dir, path) = place();
    let lab = bench(&path, START).await;
    let client = &lab.client;
    for kind in ["hand", "paused"] {
        let settings = Settings::new().queue(if kind == "paused" { "still" } else { "default" });
        client.register(kind, settings).await.unwrap();
    }
    client.pause(Target::Queue("still".into()), by()).await.unwrap();
    let bystander = Bystander::enqueue(client).await;
    let many = scale(1_000, 100_000);
    client.enqueue_many((0..5).map(|n| hand(&format!("lost-{n}")))).await.unwrap();
    assert_eq!(client.claim(&["hand"], "gone", 5).await.unwrap().len(), 5);
    lab.clock.advance(LEASE + 1);
    fill(&path, "hand", many * 10, START);
    let later = (0..3 * many).map(|_| NewJob::raw("hand", None).run_at(START + 30 * DAY));
    client.enqueue_many(later).await.unwrap();
    let still = (0..many).map(|_| NewJob::raw("paused", None).priority(-1_000));
    client.enqueue_many(still).await.unwrap();
    client.enqueue_many((0..10).map(|n| hand(&format!("ready-{n}")))).await.unwrap();
    by_hand(&path, "ANALYZE");
    let mut claimed = Vec::new();
    for _ in 0..100 {
        for lease in client.claim(&["hand", "paused"], "w", 1).await.unwrap() {
            claimed.push(lease.job().to_string());
            lease.complete(None).await.unwrap();
        }
    }
    claimed.sort_unstable();
    assert_eq!(claimed, (0..10).map(|n| format!("ready-{n}")).collect::<Vec<_>>());
    assert_eq!(client.reap_once().await.unwrap().requeued, 5);
    assert_eq!(client.claim(&["hand", "paused"], "w", 100).await.unwrap().len(), 5);
    let counts = client.counts().await.unwrap();
    let (many, completed) = (many as i64, counts.completed);
    assert_eq!((counts.scheduled, counts.ready, completed), (3 * many, many + 1, 10 * many + 10));
    bystander.check().await;
}

fn pages(path: &Path) -> i64 {
    assert_eq!(query::<i64>(path, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    query(path, "PRAGMA page_count")
}

/// Completed jobs left the memory but never the file: it grew to a million rows while the counts
/// showed the cap (`egeominotti/bunqueue#118`).
#[tokio::test]
async fn k15_scale_ended_jobs_leave_the_file_by_their_age_and_their_room_is_used_again() {
    let (_dir, path) = place();
    let (many, clock) = (scale(2_000, 200_000), ManualClock::at(START));
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let kept = builder.configure::<Act>(|settings| settings.keep(seconds(3_600), seconds(7_200)));
    let lab = Lab::start_with(kept, clock.clone(), 1).await.unwrap();
    let bystander = Bystander::enqueue(&lab.client()).await;
    let failed = lab.enqueue(Act::Fail.into_new().max_attempts(1)).await.unwrap();
    lab.settle().await;
    let mut sizes = Vec::new();
    for round in 1..=3_i64 {
        fill(&path, Act::KIND, many, clock.now());
        assert_eq!(lab.client().counts().await.unwrap().completed, many as i64);
        sizes.push(pages(&path));
        lab.advance(seconds(3_601)).await;
        // At most a hundred a pass; the next pass comes at once.
        let expected = (0, i64::from(round == 1));
        let mut counts = lab.client().counts().await.unwrap();
        for _ in 0..many {
            if (counts.completed, counts.dead) != expected {
                lab.advance(std::time::Duration::from_millis(1)).await;
                counts = lab.client().counts().await.unwrap();
            }
        }
        // Failed jobs have their own time.
        assert_eq!((counts.completed, counts.dead), expected, "round {round}");
        let rows = "SELECT count(*) FROM leasehold_job WHERE status = 2";
        assert_eq!(query::<i64>(&path, rows), 0);
    }
    assert!(sizes[2] <= sizes[0] + sizes[0] / 10, "{sizes:?}");
    assert!(lab.client().job(failed).await.unwrap().is_none());
    let totals = "SELECT sum(removed) FROM leasehold_totals";
    assert_eq!(query::<i64>(&path, totals), 3 * many as i64 + 1);
    bystander.check().await;
}

/// The same report: to keep all for ever is not what happens where nothing is said.
#[tokio::test]
async fn k15_scale_what_nobody_says_how_long_to_keep_goes_after_a_week_or_a_month() {
    let lab = Bench::start(BenchSettings { now: START, ..BenchSettings::default() }).await.unwrap();
    let client = &lab.client;
    client.register("hand", Settings::new()).await.unwrap();
    for id in ["completed", "failed", "cancelled"] {
        client.enqueue(hand(id).max_attempts(1)).await.unwrap();
        let lease = client.claim_by_id(id, "w").await.unwrap().unwrap();
        match id {
            "completed" => lease.complete(None).await.unwrap(),
            "failed" => lease.fail(leasehold::Failed::transient("once")).await.unwrap(),
            _ => lease.cancelled().await.unwrap(),
        };
    }
    let bystander = Bystander::enqueue(client).await;
    for (at, kept) in [(7 * DAY, 3), (7 * DAY + 1, 1), (30 * DAY, 1), (30 * DAY + 1, 0)] {
        // Retention starts once a minute: what is past its time by a moment goes a minute later.
        lab.clock.advance(START + at - lab.clock.now());
        client.reap_once().await.unwrap();
        if at % DAY == 1 {
            lab.clock.advance(60_000);
            client.reap_once().await.unwrap();
        }
        let counts = client.counts().await.unwrap();
        assert_eq!(counts.completed + counts.cancelled + counts.dead, kept, "after {at} ms");
    }
    bystander.check().await;
}

/// Entries of a low priority kept on making more of their own, and the lowest never ran
/// (`friendica/friendica#2750`). Here a level of priority is worth a minute of waiting.
#[tokio::test]
async fn k15_fairness_the_lowest_priority_runs_once_it_has_waited_its_minutes() {
    let lab = Bench::start(BenchSettings { now: START, ..BenchSettings::default() }).await.unwrap();
    let client = &lab.client;
    client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(client).await;
    client.enqueue(hand("lowest").priority(1_000)).await.unwrap();
    client.enqueue(hand("middle")).await.unwrap();
    let mut ran = Vec::new();
    let mut minute = 0;
    while ran.len() < 2 {
        // All that can be done in this minute is one job, and there is one of the highest.
        client.enqueue(NewJob::raw("hand", None).priority(-1_000)).await.unwrap();
        let lease = client.claim(&["hand"], "w", 1).await.unwrap().remove(0);
        if ["lowest", "middle"].contains(&&*lease.job().to_string()) {
            ran.push((lease.job().to_string(), minute));
        }
        lease.complete(None).await.unwrap();
        minute += 10;
        lab.clock.advance(600_000);
        assert!(minute < 10_000, "{ran:?}");
    }
    // Where two are even, the one that was enqueued first goes first; when the lowest is even
    // with the highest, one of those is left behind that the middle one has passed.
    assert_eq!(ran, [("middle".to_owned(), 1_000), ("lowest".to_owned(), 2_010)]);
    bystander.check().await;
}

/// The same report: priorities at the ends of their number.
#[tokio::test]
async fn k15_fairness_a_priority_out_of_range_is_refused_and_one_at_its_end_overflows_nothing() {
    let lab = Bench::start(BenchSettings { now: START, ..BenchSettings::default() }).await.unwrap();
    let client = &lab.client;
    client.register("hand", Settings::new()).await.unwrap();
    for priority in [i64::MIN, -1_001, 1_001, i64::MAX] {
        let error = client.enqueue(hand("a").priority(priority)).await.unwrap_err();
        let named = matches!(error.refusal(), Some(Refusal::Invalid { field: "priority", .. }));
        assert!(named, "{priority}: {error:?}");
    }
    let end = 7_258_118_399_999;
    for (id, priority, run_at) in
        [("a", 1_000, end), ("b", -1_000, end), ("c", 1_000, 0), ("d", -1_000, 0), ("e", 0, 0)]
    {
        client.enqueue(hand(id).priority(priority).run_at(run_at)).await.unwrap();
    }
    let order = async || {
        let leases = client.claim(&["hand"], "w", 9).await.unwrap();
        leases.into_iter().map(|lease| lease.job().to_string()).collect::<String>()
    };
    assert_eq!(order().await, "dec");
    lab.clock.advance(end - START);
    assert_eq!(order().await, "ba");
}

/// Enqueues the next of its chain, until there are enough.
#[derive(Serialize, Deserialize)]
struct Link {
    left: usize,
    ballast: String,
}

impl Job for Link {
    const KIND: &'static str = "link";

    fn settings() -> Settings {
        Settings::new().keep(seconds(1), seconds(1))
    }
}

/// What the links of a chain share.
#[derive(Default)]
struct Chain {
    client: OnceLock<Client>,
    ended: tokio::sync::Notify,
}

async fn link(job: Link, ctx: Ctx<Arc<Chain>>) -> JobResult {
    let Some(left) = job.left.checked_sub(1) else {
        ctx.state().ended.notify_one();
        return Ok(Outcome::Done);
    };
    let client = ctx.state().client.get().ok_or("too soon")?;
    let next = || Link { left, ballast: job.ballast.clone() };
    if left % 100 == 50 {
        let cancelled = client.enqueue(next().after(seconds(3_600))).await?.id;
        client.cancel(&cancelled, by()).await?;
    }
    let next = client.enqueue(next()).await?.id;
    if left % 100 == 25 {
        // A caller that waits for it, and goes away.
        let wait = client.wait(&next, PATIENCE);
        drop(futures_util::FutureExt::now_or_never(wait));
    }
    Ok(Outcome::Done)
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// The child: so many jobs, each of which enqueues the next; says how much memory it has.
#[cfg(target_os = "linux")]
#[test]
fn child_with_a_long_chain() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let chain = Arc::new(Chain::default());
        let builder = Runtime::builder(folder.join("jobs.db")).state(chain.clone());
        let builder = builder.durability(leasehold::Durability::Normal).handle(link);
        let runtime = builder.slots(4).start().await.unwrap();
        chain.client.get_or_init(|| runtime.client());
        while let Ok(left) = listen().parse() {
            runtime.enqueue(Link { left, ballast: "x".repeat(1_024) }).await.unwrap();
            chain.ended.notified().await;
            say(&format!("resident {}", resident()));
        }
        assert!(runtime.health().is_healthy());
        assert!(runtime.stop(seconds(5)).await.drained);
    });
}

/// A worker that enqueued onto its own queue kept every job in memory (`taskforcesh/bullmq#282`).
#[cfg(target_os = "linux")]
#[test]
fn k15_memory_of_a_process_does_not_grow_with_the_jobs_that_it_has_run() {
    let (dir, path) = place();
    let mut child = Talker::start("scale::child_with_a_long_chain", dir.path());
    let mut after = |jobs: usize| {
        child.tell(&jobs.to_string());
        child.hear("resident ").unwrap().parse::<usize>().unwrap()
    };
    let (few, many) = (after(scale(300, 100_000)), after(scale(1_500, 900_000)));
    assert!(many < few + (20 << 20), "{few} bytes, then {many}");
    child.tell("stop");
    assert_eq!(child.end(), Some(0));
    let live = "SELECT count(*) FROM leasehold_jobs WHERE status IN ('pending', 'running')";
    assert_eq!(query::<i64>(&path, live), 0);
}
