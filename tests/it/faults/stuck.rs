//! K02: running by the row and by nobody, or taken from a holder that lives.

use leasehold::testing::Lab;
use leasehold::{
    Client, Clock, Hooks, Job, ManualClock, NewJob, Orphan, Retry, Runtime, Settings, Status,
    Verdict,
};

use super::{LEASE, START, Talker, bench, by, by_hand, hand, now, outcomes, place, say};
use crate::support::{Act, Bystander, Signals, act, child_folder, record};

/// The child: holds a job in a runtime, and another by hand under a name, until it is killed.
#[test]
fn child_that_holds_two_jobs() {
    let Some(folder) = child_folder() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        let signals = Signals::default();
        let builder = Runtime::builder(folder.join("jobs.db")).state(signals.clone()).handle(act);
        let runtime = builder.start().await.unwrap();
        runtime.enqueue(Act::Hang.into_new().id("in a runtime")).await.unwrap();
        signals.entered(1).await;
        let lease = runtime.client().claim_by_id("by hand", "w1").await.unwrap();
        assert!(lease.is_some());
        say("holds");
        std::future::pending::<()>().await;
    });
}

/// Two jobs whose holder was killed, and when their leases end; the second is the one given.
pub(super) async fn killed_holder(
    folder: &std::path::Path,
    by_hand: NewJob,
) -> [(&'static str, i64); 2] {
    let client = Client::open(folder.join("jobs.db")).await.unwrap();
    client.register("hand", Settings::new()).await.unwrap();
    client.enqueue(by_hand.id("by hand")).await.unwrap();
    let mut child = Talker::start("stuck::child_that_holds_two_jobs", folder);
    child.hear("holds").unwrap();
    child.kill();
    let mut held = [("in a runtime", 0), ("by hand", 0)];
    for (id, until) in &mut held {
        let job = record(&client, &(*id).into()).await;
        assert_eq!((job.status, job.attempts), (Status::Running, 1));
        *until = job.lease_until.unwrap();
    }
    held
}

/// Stalled jobs were found through the table of workers: once the dead worker's row was gone,
/// nobody saw its jobs any more (`procrastinate-org/procrastinate#1518`). Here all that tells of
/// owners is gone, and the row alone says when its holder has lost it.
#[tokio::test]
async fn k02_stuck_running_a_killed_holders_job_is_taken_although_all_trace_of_it_is_gone() {
    let (dir, path) = place();
    let mut held = killed_holder(dir.path(), hand("by hand")).await;
    std::fs::remove_dir_all(dir.path().join("jobs.db-leasehold")).unwrap();
    by_hand(&path, "UPDATE leasehold_job SET owner = NULL");
    held.sort_by_key(|(_, until)| *until);
    let other = bench(&path, held[0].1).await;
    let bystander = Bystander::enqueue(&other.client).await;
    assert_eq!(other.client.reap_once().await.unwrap().scanned, 0, "not a moment too early");
    other.clock.advance(held[1].1 + 1 - held[0].1);
    assert_eq!(other.client.reap_once().await.unwrap().requeued, 2);
    for (id, _) in held {
        let lease = other.client.claim_by_id(id, "w2").await.unwrap().unwrap();
        let job = record(&other.client, lease.job()).await;
        assert_eq!((job.attempts, job.stalls, job.redrives), (2, 1, 1), "{id}");
        assert_eq!(outcomes(&other.client, id).await, ["lost"]);
    }
    bystander.check().await;
}

/// The same report: a worker that came back under the old name kept its predecessor's job
/// looking alive with its fresh heartbeat.
#[tokio::test]
async fn k02_stuck_running_a_new_holder_of_the_same_name_keeps_no_old_job_alive() {
    let (dir, path) = place();
    let [_, (id, until)] = killed_holder(dir.path(), hand("by hand")).await;
    let again = bench(&path, now()).await;
    let bystander = Bystander::enqueue(&again.client).await;
    again.client.enqueue(hand("new work")).await.unwrap();
    let lease = again.client.claim_by_id("new work", "w1").await.unwrap().unwrap();
    while again.clock.now() <= until {
        lease.renew().await.unwrap();
        assert_eq!(record(&again.client, &id.into()).await.status, Status::Running);
        again.clock.advance(LEASE / 3);
    }
    lease.renew().await.unwrap();
    // The runtime's job ended a moment before or after; it is not looked at here.
    again.client.reap_once().await.unwrap();
    let job = record(&again.client, &id.into()).await;
    assert_eq!((job.status, job.epoch, job.owner), (Status::Pending, 2, Some("w1".into())));
    let fresh = record(&again.client, lease.job()).await;
    assert_eq!((fresh.status, fresh.epoch), (Status::Running, 1));
    bystander.check().await;
}

/// The heartbeat was one branch of a select around the job, so that long jobs lost their lease
/// in good health (`maxcountryman/underway#59`).
#[tokio::test]
async fn k02_stuck_running_a_handler_that_waits_blocks_or_spins_keeps_its_lease() {
    let (_dir, path) = place();
    let (signals, clock) = (Signals::default(), ManualClock::at(START));
    let start = |seed| {
        let builder = Runtime::builder(&path).no_owner_files().state(signals.clone()).handle(act);
        Lab::start_with(builder.slots(3).threads(1), clock.clone(), seed)
    };
    let first = start(1).await.unwrap();
    for (id, job) in [("waits", Act::UntilAsked), ("blocks", Act::Block), ("spins", Act::Spin)] {
        first.enqueue(job.into_new().id(id)).await.unwrap();
    }
    // There is one thread, which the first of them keeps: each other gets one in its turn.
    while signals.times() < 3 {
        clock.advance(100);
        first.look().await;
    }
    let second = start(2).await.unwrap();
    let before = first.runtime.stats().renewals;
    for _ in 0..20 {
        clock.advance(LEASE / 3);
        let beat = |job: leasehold::JobRecord| job.heartbeat_at.unwrap() > clock.now() - LEASE / 3;
        for id in ["waits", "blocks", "spins"] {
            while !beat(first.job(id).await.unwrap()) {
                first.look().await;
            }
        }
        second.look().await;
        second.client().reap_once().await.unwrap();
    }
    assert_eq!(first.runtime.stats().renewals - before, 60, "each is renewed each third");
    assert_eq!(second.runtime.stats().claims, 0);
    for id in ["waits", "blocks", "spins"] {
        let job = first.job(id).await.unwrap();
        assert_eq!((job.status, job.epoch, job.attempts), (Status::Running, 1, 1), "{id}");
    }
    signals.open();
    first.client().cancel("waits", by()).await.unwrap();
    first.settle().await;
}

/// Somebody clears the folder of lock files up: a runtime that lives keeps its jobs by their
/// leases.
#[tokio::test]
async fn k02_stuck_running_a_holder_whose_lock_file_was_deleted_keeps_its_job() {
    let (dir, path) = place();
    let (signals, clock) = (Signals::default(), ManualClock::at(START));
    let start = |seed| {
        let builder = Runtime::builder(&path).state(signals.clone()).handle(act);
        Lab::start_with(builder, clock.clone(), seed)
    };
    let first = start(1).await.unwrap();
    first.enqueue(Act::UntilAsked.into_new().id("a")).await.unwrap();
    first.settle().await;
    let second = start(2).await.unwrap();
    let lock = dir.path().join("jobs.db-leasehold").join(first.runtime.owner());
    std::fs::remove_file(lock).unwrap();
    for _ in 0..10 {
        clock.advance(LEASE / 3);
        first.settle().await;
        second.settle().await;
    }
    let job = first.job("a").await.unwrap();
    assert_eq!((job.status, job.epoch), (Status::Running, 1));
    assert_eq!(second.runtime.stats().claims, 0);
    first.client().cancel("a", by()).await.unwrap();
    first.settle().await;
    assert_eq!(first.job("a").await.unwrap().status, Status::Cancelled);
}

/// A full batch of jobs that must not be rescued hid all the others from the reaper
/// (`riverqueue/river#1318`).
#[tokio::test]
async fn k02_stuck_running_a_hundred_rows_that_cannot_be_ended_here_hide_no_other() {
    let (_dir, path) = place();
    let hooked = Hooks::new().on_transition(|_, _| Ok(1)).on_redrive(|_, _| Ok(1));
    let settings = leasehold::testing::BenchSettings {
        now: START,
        path: Some(path.clone()),
        hooks: vec![("a-hooked".to_owned(), hooked)],
        ..Default::default()
    };
    let with_hooks = leasehold::testing::Bench::start(settings).await.unwrap();
    let once = Settings::new().retry(Retry::never());
    with_hooks.client.register("a-hooked", once).await.unwrap();
    // Another process, which lacks the code that must agree to the end of these jobs.
    let other = bench(&path, START).await;
    other.client.register("hand", Settings::new().orphan(Orphan::Park)).await.unwrap();
    let bystander = Bystander::enqueue(&other.client).await;
    let jobs = (0..150).map(|_| NewJob::raw("a-hooked", None));
    other.client.enqueue_many(jobs).await.unwrap();
    other.client.enqueue(hand("behind them")).await.unwrap();
    assert_eq!(other.client.claim(&["a-hooked"], "w1", 150).await.unwrap().len(), 150);
    assert_eq!(other.client.claim(&["hand"], "w1", 1).await.unwrap().len(), 1);
    other.clock.advance(LEASE + 1);
    for expected in [(100, 100, 0), (51, 50, 1), (0, 0, 0)] {
        let pass = other.client.reap_once().await.unwrap();
        assert_eq!((pass.scanned, pass.errors, pass.parked), expected);
    }
    let job = record(&other.client, &"behind them".into()).await;
    assert_eq!((job.status, job.verdict), (Status::Failed, Some(Verdict::Orphaned)));
    // Where their hooks are, they end.
    with_hooks.clock.advance(LEASE + 1);
    for failed in [100, 50] {
        assert_eq!(with_hooks.client.reap_once().await.unwrap().failed, failed);
    }
    bystander.check().await;
}
