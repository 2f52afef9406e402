//! K04: clocks that jump, and processes on one file whose clocks differ.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::rusqlite::Connection;
use leasehold::testing::Lab;
use leasehold::{
    Builder, Client, Clock, Ctx, Durability, Job, JobRecord, JobResult, ManualClock, NewJob,
    Outcome, Refusal, Runtime, Settings, Status, SystemClock, Verdict, Waiting,
};
use serde::{Deserialize, Serialize};

use super::time::Stepped;
use super::{LEASE, PATIENCE, START, bench, outcomes, place, query, say, scale, seconds};
use crate::support::{Bystander, CHILD, child_folder, record};

const HOUR: i64 = 3_600_000;

/// How often each job was begun, by whichever runtime.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<BTreeMap<String, u32>>>);

impl Begun {
    fn times(&self, id: &str) -> u32 {
        self.0.lock().unwrap().get(id).copied().unwrap_or_default()
    }

    fn all(&self) -> BTreeMap<String, u32> {
        self.0.lock().unwrap().clone()
    }
}

/// Sleeps for so many milliseconds of its runtime's time, or until it is told that it is lost.
#[derive(Serialize, Deserialize)]
struct Naps(u64);

impl Job for Naps {
    const KIND: &'static str = "naps";

    fn settings() -> Settings {
        Settings::new().no_timeout()
    }
}

async fn naps(job: Naps, ctx: Ctx<Begun>) -> JobResult {
    *ctx.state().0.lock().unwrap().entry(ctx.id().to_string()).or_default() += 1;
    tokio::select! {
        biased;
        () = ctx.sleep(Duration::from_millis(job.0)) => Ok(Outcome::Done),
        _ = ctx.cancelled() => Ok(Outcome::Yield),
    }
}

/// As many a second as its kind may begin.
#[derive(Serialize, Deserialize)]
struct Rated;

impl Job for Rated {
    const KIND: &'static str = "rated";

    fn settings() -> Settings {
        Settings::new().rate(5, seconds(2))
    }
}

async fn rated(_: Rated, ctx: Ctx<Begun>) -> JobResult {
    naps(Naps(0), ctx).await
}

/// A process of several on one file, with a clock of its own.
struct Site {
    runtime: Runtime,
    client: Client,
    clock: ManualClock,
}

impl Site {
    async fn open(path: &Path, begun: &Begun, now: i64, change: fn(Builder) -> Builder) -> Self {
        let clock = ManualClock::at(now);
        let builder = change(Runtime::builder(path).durability(Durability::Normal));
        let builder = builder.state(begun.clone()).handle(naps).slots(4);
        let runtime = builder.clock(clock.clone()).start().await.unwrap();
        Self { client: runtime.client(), runtime, clock }
    }
}

/// Lets the same time pass in all of them, until it is so; answers for how long. It passes no
/// faster than they renew what they hold: a process that does not is as good as dead.
async fn together(sites: &[Site], what: &str, mut is_so: impl AsyncFnMut() -> bool) -> i64 {
    let mut passed = 0;
    let mut alive: Vec<_> = sites.iter().map(|_| (0, 0)).collect();
    let passing = async {
        while !is_so().await {
            let mut step = 200;
            for (site, (seen, at)) in sites.iter().zip(&mut alive) {
                let (stats, now) = (site.runtime.stats(), site.clock.monotonic());
                let signs = stats.renewals + stats.lost;
                if stats.in_flight == 0 || signs != *seen {
                    (*seen, *at) = (signs, now);
                } else if now - *at > LEASE / 2 {
                    step = 1;
                }
            }
            for site in sites {
                site.clock.advance(step);
                match step {
                    // Something that is written takes as long as a renewal.
                    1 => site.client.limit_key("some", 1).await.unwrap(),
                    _ => drop(site.client.counts().await.unwrap()),
                }
            }
            passed += step;
        }
    };
    tokio::time::timeout(PATIENCE, passing).await.unwrap_or_else(|_| panic!("never: {what}"));
    passed
}

/// Jumps of the wall clock, back and forth, by an hour, by the second of a leap, by a day.
const JUMPS: [i64; 8] = [HOUR, -HOUR, -HOUR, HOUR, -1_000, 1_000, 24 * HOUR, -24 * HOUR];

async fn jumps_while_jobs_flow(builder: Builder) {
    let (begun, clock) = (Begun::default(), Stepped(ManualClock::at(START), Arc::default()));
    let builder = builder.state(begun.clone()).handle(naps).handle(rated).slots(8);
    let runtime = builder.clock(clock.clone()).start().await.unwrap();
    let (client, steps) = (runtime.client(), clock.1.clone());
    let site = [Site { runtime: runtime.clone(), client: client.clone(), clock: clock.0 }];
    let bystander = Bystander::enqueue(&client).await;
    // Runs through all of it.
    let ages = HOUR.unsigned_abs() * 1_000_000;
    let long = client.enqueue(Naps(ages).into_new().id("long")).await.unwrap().id;
    for (round, jump) in JUMPS.iter().cycle().take(scale(16, 400)).enumerate() {
        // In the middle of what runs.
        let mut ids = Vec::new();
        for n in 0..20 {
            let id = format!("{round}-{n}");
            let job = if n < 8 { Rated.into_new() } else { Naps(n * 20).into_new() };
            client.enqueue(job.id(&*id)).await.unwrap();
            ids.push(id);
            if n == 10 {
                steps.fetch_add(*jump, Ordering::SeqCst);
            }
        }
        if *jump < 0 {
            // What is due by the clock as it was waits for it; all else must not.
            ids.drain(..11);
        }
        let ended = async || {
            while let Some(id) = ids.last() {
                if record(&client, &id.as_str().into()).await.status != Status::Completed {
                    return false;
                }
                ids.pop();
            }
            true
        };
        let took = together(&site, "all that is due has run", ended).await;
        assert!(took < HOUR / 2, "round {round}: {took} ms for jobs that were due");
    }
    let job = record(&client, &long).await;
    assert_eq!((job.status, job.epoch), (Status::Running, 1));
    for (id, times) in begun.all() {
        assert_eq!(times, 1, "{id}");
    }
    assert_eq!((runtime.stats().lost, runtime.health().restarts), (0, 0));
    bystander.check().await;
}

#[tokio::test]
async fn k04_clock_jumps_while_jobs_flow_run_none_twice_and_keep_none_that_is_due() {
    let (_dir, path) = place();
    jumps_while_jobs_flow(Runtime::builder(&path).durability(Durability::Normal)).await;
}

#[tokio::test]
async fn k04_clock_jumps_in_memory_run_none_twice_and_keep_none_that_is_due() {
    jumps_while_jobs_flow(Runtime::in_memory()).await;
}

/// The clock of one process was far off, and it took what others held, or they what it held.
/// Where each can tell that the others live, their clocks decide nothing.
#[tokio::test]
async fn k04_clock_of_one_process_of_several_is_far_off_and_none_runs_twice_or_starves() {
    let (_dir, path) = place();
    let begun = Begun::default();
    let mut sites = Vec::new();
    for off in [0, HOUR, -HOUR, 3 * 24 * HOUR] {
        sites.push(Site::open(&path, &begun, START + off, |builder| builder).await);
    }
    let bystander = Bystander::enqueue(&sites[0].client).await;
    let mut ids = Vec::new();
    for (n, site) in sites.iter().enumerate() {
        let long = format!("long-{n}");
        site.client.enqueue(Naps(3 * LEASE.unsigned_abs()).into_new().id(&*long)).await.unwrap();
        ids.push(long);
    }
    for round in 0..scale(10, 500) {
        for (n, site) in sites.iter().enumerate() {
            let id = format!("short-{n}-{round}");
            site.client.enqueue(Naps(50 * round as u64).into_new().id(&*id)).await.unwrap();
            ids.push(id);
        }
    }
    let client = sites[0].client.clone();
    let ended = async || client.counts().await.unwrap().completed == ids.len() as i64;
    let took = together(&sites, "all have completed", ended).await;
    assert!(took < HOUR / 2, "{took} ms");
    for id in &ids {
        let job = record(&client, &id.as_str().into()).await;
        assert_eq!((job.epoch, job.stalls, begun.times(id)), (1, 0, 1), "{id}");
    }
    for site in &sites {
        assert_eq!((site.runtime.stats().lost, site.runtime.health().restarts), (0, 0));
    }
    bystander.check().await;
}

/// What is due is due by the clock of whoever looks: a job from a process whose clock is ahead
/// waits in the others for the difference, and no longer; it is said for what.
#[tokio::test]
async fn k04_clock_ahead_of_the_others_makes_its_jobs_wait_there_for_the_difference() {
    let (_dir, path) = place();
    let begun = Begun::default();
    let builder = Runtime::builder(&path).state(begun.clone()).handle(naps);
    let lab = Lab::start(builder).await.unwrap();
    let ahead = bench(&path, START + HOUR).await;
    ahead.client.enqueue(Naps(0).into_new().id("a")).await.unwrap();
    lab.settle().await;
    let why = lab.client().why_waiting("a").await.unwrap();
    assert_eq!((why.reason, why.until), (Waiting::Scheduled, Some(START + HOUR)));
    lab.advance(Duration::from_millis(HOUR.unsigned_abs() - 1)).await;
    assert_eq!(begun.times("a"), 0);
    lab.advance(Duration::from_millis(1)).await;
    assert_eq!((begun.times("a"), lab.job("a").await.unwrap().status), (1, Status::Completed));
}

/// Ways in which a holder's lock cannot be looked at.
#[derive(Clone, Copy, Debug)]
enum Unseen {
    /// It has none.
    NoFiles,
    /// It is of another host, as far as anybody can tell.
    OfAnotherHost,
}

impl Unseen {
    async fn sites(self, path: &Path, begun: &Begun, off: i64) -> [Site; 2] {
        let own = match self {
            Self::NoFiles => |builder: Builder| builder.no_owner_files(),
            Self::OfAnotherHost => |builder: Builder| builder,
        };
        let first = Site::open(path, begun, START, own).await;
        self.hide(path);
        let second = Site::open(path, begun, START + off, own).await;
        self.hide(path);
        [first, second]
    }

    fn hide(self, path: &Path) {
        let folder = PathBuf::from(format!("{}-leasehold", path.display()));
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let locks = files.filter(|file| file.file_name().len() == 32).collect::<Vec<_>>();
        assert_eq!(locks.is_empty(), matches!(self, Self::NoFiles));
        for lock in locks {
            std::fs::write(lock.path(), "boot another\nhost another\n").unwrap();
        }
    }
}

/// The history of a job, and how often its holders were told that they had lost it.
async fn lost(sites: &[Site], job: &JobRecord) -> (usize, u64) {
    let history = outcomes(&sites[0].client, &job.id.to_string()).await;
    let told = sites.iter().map(|site| site.runtime.stats().lost).sum();
    (history.iter().filter(|outcome| *outcome == "lost").count(), told)
}

/// Where no lock can be looked at the lease alone decides, by the clock of whoever looks: a jump
/// of that clock repeats what runs, once.
#[tokio::test]
async fn k04_clock_that_jumps_repeats_a_job_once_where_no_lock_can_be_looked_at() {
    for unseen in [Unseen::NoFiles, Unseen::OfAnotherHost] {
        let (_dir, path) = place();
        let begun = Begun::default();
        let sites = unseen.sites(&path, &begun, 0).await;
        let [first, second] = &sites;
        // The second only looks on.
        second.runtime.quiet();
        let bystander = Bystander::enqueue(&first.client).await;
        first.client.enqueue(Naps(60_000).into_new().id("a")).await.unwrap();
        together(&sites, "it has begun", async || begun.times("a") == 1).await;
        together(&sites, "a heartbeat", async || first.runtime.stats().renewals > 0).await;
        assert_eq!(begun.times("a"), 1, "{unseen:?}: clocks that agree repeat nothing");
        second.clock.advance(HOUR);
        together(&sites, "it was taken", async || {
            record(&first.client, &"a".into()).await.stalls == 1
        })
        .await;
        second.clock.advance(-HOUR);
        // It is due an hour later, as its time was written by the clock that was ahead.
        let job = record(&first.client, &"a".into()).await;
        assert_eq!((job.status, job.epoch, job.redrives), (Status::Pending, 2, 1), "{unseen:?}");
        let away = job.run_at - first.clock.now();
        assert!((HOUR - 60_000..=HOUR).contains(&away), "{away}");
        first.clock.advance(HOUR);
        second.clock.advance(HOUR);
        together(&sites, "its end", async || {
            record(&first.client, &"a".into()).await.status == Status::Completed
        })
        .await;
        let job = record(&first.client, &"a".into()).await;
        assert_eq!((begun.times("a"), job.epoch, job.stalls), (2, 3, 1), "{unseen:?}");
        let (entries, told) = lost(&sites, &job).await;
        assert!(entries >= 1 && told >= 1, "{unseen:?}: {entries} entries, told {told} times");
        bystander.check().await;
    }
}

/// The same where a clock is off all the time: a job longer than a pass is repeated, each time
/// counted as a loss, until it has been lost as often as its kind allows, and is parked.
#[tokio::test]
async fn k04_clock_that_is_always_off_repeats_a_job_as_often_as_its_kind_allows() {
    for unseen in [Unseen::NoFiles, Unseen::OfAnotherHost] {
        let (_dir, path) = place();
        let begun = Begun::default();
        let sites = unseen.sites(&path, &begun, -HOUR).await;
        let client = sites[0].client.clone();
        let bystander = Bystander::enqueue(&client).await;
        for (site, id) in sites.iter().zip(["of the first", "of the second"]) {
            site.client.enqueue(Naps(600_000).into_new().id(id)).await.unwrap();
        }
        let all_parked = async || client.counts().await.unwrap().parked == 2;
        let took = together(&sites, "both are parked", all_parked).await;
        assert!(took < 2 * HOUR, "{took} ms");
        for id in ["of the first", "of the second"] {
            let job = record(&client, &id.into()).await;
            assert_eq!((job.verdict, job.stalls), (Some(Verdict::Poison), 3), "{unseen:?} {id}");
            // One that was taken before it began is counted all the same.
            let times = begun.times(id);
            assert!(job.redrives == 3 && times <= 4, "{unseen:?} {id}: {times} times, {job:?}");
            let (entries, _) = lost(&sites, &job).await;
            assert!(entries >= 4, "{unseen:?} {id}: {entries}");
        }
        bystander.check().await;
    }
}

/// Owners that are no names of locks are never looked for, whatever they say: their leases alone
/// decide, and nothing beside the database is touched.
#[tokio::test]
async fn k04_clock_and_a_lease_decide_about_an_owner_of_which_nothing_can_be_known() {
    let (dir, path) = place();
    let hands = bench(&path, START).await;
    hands.client.register("hand", Settings::new()).await.unwrap();
    let bystander = Bystander::enqueue(&hands.client).await;
    std::fs::write(dir.path().join("precious"), "boot another").unwrap();
    let owners = ["../precious", "0123456789abcdef0123456789abcdef", ".", "\u{202e}\u{7f}"];
    let mut leases = Vec::new();
    for owner in owners {
        hands.client.enqueue(NewJob::raw("hand", None).id(owner)).await.unwrap();
        leases.push(hands.client.claim_by_id(owner, owner).await.unwrap().unwrap());
    }
    let site = Site::open(&path, &Begun::default(), START, |builder| builder).await;
    let taken = async || site.client.counts().await.unwrap().ready == 1 + owners.len() as i64;
    let took = together(std::slice::from_ref(&site), "they are taken", taken).await;
    assert!(took > LEASE, "taken after {took} ms, while their leases lived");
    for (lease, owner) in leases.into_iter().zip(owners) {
        let refused = lease.complete(None).await.unwrap_err();
        let waits = Refusal::NotRunning { status: Status::Pending, epoch: 2 };
        assert_eq!(refused.refusal(), Some(&waits), "{owner:?}");
        assert_eq!(record(&site.client, &owner.into()).await.stalls, 1, "{owner:?}");
    }
    let precious = std::fs::read_to_string(dir.path().join("precious")).unwrap();
    assert_eq!(precious, "boot another");
    bystander.check().await;
}

/// Hours in which clocks on walls are changed, somewhere, and one with a leap second at its end.
const CHANGES: [i64; 4] =
    [1_710_053_940_000, 1_730_610_000_000, 1_729_954_800_000, 1_483_226_400_000];

/// The child: what jobs come to in those hours, printed in full.
#[test]
fn child_in_a_zone_of_time() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        for at in CHANGES {
            let path = folder.join(format!("{at}.db"));
            let builder = Runtime::builder(&path).durability(Durability::Normal).slots(1);
            let builder = builder.state(Begun::default()).handle(naps);
            let lab = Lab::start_with(builder, ManualClock::at(at), 1).await.unwrap();
            let client = lab.client();
            for (id, delay) in [("now", 0), ("half", 1_800), ("hour", 3_600), ("two", 7_200)] {
                client.enqueue(Naps(0).into_new().id(id).delay(seconds(delay))).await.unwrap();
            }
            let app = Connection::open(&path).unwrap();
            let plain = "INSERT INTO leasehold_enqueue (kind, payload, id, delay, created_at)
                         VALUES ('naps', '0', 'plain', 5400000, ?1)";
            app.execute(plain, [at]).unwrap();
            lab.settle().await;
            for _ in 0..9 {
                lab.advance(seconds(900)).await;
            }
            let all = "SELECT group_concat(id || status || created_at || '/' || run_at || '/' ||
                started_at || '/' || finished_at, ' ') FROM leasehold_jobs";
            say(&format!("came to {}", query::<String>(&path, all)));
            // Without a time of the caller's it is SQLite's clock that says when.
            let before = SystemClock::new().now();
            app.execute("INSERT INTO leasehold_enqueue (kind, id) VALUES ('other', 'b')", [])
                .unwrap();
            let created = "SELECT created_at FROM leasehold_jobs WHERE id = 'b'";
            let (created, after) = (query::<i64>(&path, created), SystemClock::new().now());
            assert!((before - 1..=after + 1).contains(&created), "{before} {created} {after}");
        }
        say("done");
    });
}

/// Times are UTC: in whatever zone a process thinks it is, and whatever happens there to the
/// clocks on its walls, it comes to the same.
#[test]
fn k04_clock_changes_of_a_zone_of_time_change_nothing() {
    let mut seen = Vec::new();
    for zone in [
        "UTC0",
        "EST5EDT,M3.2.0,M11.1.0",
        "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
        "<+14>-14",
        "NST3:30NDT,M3.2.0,M11.1.0",
    ] {
        let (dir, _) = place();
        let test = "faults::clocks::child_in_a_zone_of_time";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(CHILD, dir.path())
            .env("TZ", zone)
            .output()
            .unwrap();
        assert!(output.status.success(), "{zone}: {output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let came_to: Vec<_> = said.lines().filter(|line| line.starts_with("came to ")).collect();
        assert!(said.contains("\ndone") && came_to.len() == CHANGES.len(), "{zone}: {said}");
        assert!(came_to.iter().all(|line| line.matches("completed").count() == 5), "{said}");
        seen.push(came_to.join("\n"));
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "{seen:#?}");
}
