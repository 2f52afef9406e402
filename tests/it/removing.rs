//! What is removed and what is left of it: deletes that are refused, jobs that go once they have
//! succeeded, retention, how many there were; and how large what is given may be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::rusqlite::Connection;
use leasehold::testing::{Bench, BenchSettings, Lab};
use leasehold::{
    AttemptOutcome, Builder, BulkAction, Client, Clock, Failed, Filter, Hooks, Json, NewBulk,
    NewJob, Operator, Redrive, Refusal, Runtime, Settings, Sizes, Status, Target, Totals,
};

use crate::support::{Act, Bystander, Signals, act, record};

const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn ann() -> Operator {
    Operator::named("ann")
}

fn mail() -> NewJob {
    NewJob::raw("mail", None)
}

/// Ends a new job of a kind in one way.
async fn ended(client: &Client, kind: &str, status: Status) -> leasehold::JobId {
    let job = NewJob::raw(kind, None).max_attempts(1);
    let id = client.enqueue(job).await.unwrap().id;
    let lease = client.claim_by_id(&id, "hand").await.unwrap().unwrap();
    let ended = match status {
        Status::Completed => lease.complete(None).await,
        Status::Cancelled => lease.cancelled().await,
        _ => lease.fail(Failed::transient("once")).await,
    };
    assert_eq!(ended.unwrap(), status);
    id
}

const ENDS: [Status; 3] = [Status::Completed, Status::Failed, Status::Cancelled];

/// A file, and a client that has hooks.
async fn shop(hooks: Hooks) -> (tempfile::TempDir, Bench) {
    let dir = tempfile::tempdir().unwrap();
    let path = Some(dir.path().join("shop.db"));
    let hooks = vec![("mail".to_owned(), hooks)];
    let settings = BenchSettings { path, hooks, ..BenchSettings::default() };
    let bench = Bench::start(settings).await.unwrap();
    bench.client.register("mail", Settings::new()).await.unwrap();
    (dir, bench)
}

async fn refusal(client: &Client, id: &leasehold::JobId) -> String {
    match client.delete(id, ann()).await.unwrap_err().refusal() {
        Some(Refusal::Vetoed { error }) => error.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_kind_keeps_a_job_from_being_deleted_and_says_why() {
    let asked = Arc::new(Mutex::new("no"));
    let how = asked.clone();
    let hooks = Hooks::new().on_delete(move |job, tx| {
        tx.execute("INSERT INTO asked VALUES (?1)", [job.id.to_string()])?;
        let how = *how.lock().unwrap();
        match how {
            "no" => Err("the books are open".into()),
            "panic" => panic!("the books are lost"),
            "back" => {
                tx.execute("INSERT OR ROLLBACK INTO asked VALUES ('same'), ('same')", [])?;
                Ok(())
            }
            _ => Ok(()),
        }
    });
    let (dir, Bench { client, .. }) = shop(hooks).await;
    let app = Connection::open(dir.path().join("shop.db")).unwrap();
    app.execute("CREATE TABLE asked (id TEXT UNIQUE)", []).unwrap();
    let count = |sql: &str| app.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let bystander = Bystander::enqueue(&client).await;
    let id = ended(&client, "mail", Status::Completed).await;
    let before = record(&client, &id).await;
    for (answer, text) in
        [("no", "the books are open"), ("panic", "the books are lost"), ("back", "UNIQUE")]
    {
        *asked.lock().unwrap() = answer;
        let error = refusal(&client, &id).await;
        assert!(error.contains(text), "{answer}: {error}");
        assert_eq!(record(&client, &id).await, before);
        let written =
            count("SELECT count(*) FROM asked") + count("SELECT count(*) FROM leasehold_actions");
        assert_eq!((written, client.totals().await.unwrap()["mail"].completed), (0, 1));
    }
    // A process without the code can neither ask nor delete.
    let other = Client::open(dir.path().join("shop.db")).await.unwrap();
    let error = refusal(&other, &id).await;
    assert!(error.contains("in another process"), "{error}");
    // A live job is refused as such, and nobody is asked.
    let live = client.enqueue(mail()).await.unwrap().id;
    let refused = client.delete(&live, ann()).await.unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::Live { .. })));
    client.cancel(&live, ann()).await.unwrap();
    // A sweep asks nobody.
    assert_eq!(client.sweep(before.finished_at.unwrap() + 1, 1, ann()).await.unwrap(), 1);
    assert_eq!(client.job(&id).await.unwrap(), None);
    *asked.lock().unwrap() = "yes";
    client.delete(&live, ann()).await.unwrap();
    assert_eq!(count("SELECT count(*) FROM asked"), 1, "what it wrote has landed with the delete");
    bystander.check().await;
}

/// A runtime whose jobs go once they have succeeded.
async fn forgetful(path: &std::path::Path) -> (Lab, Signals) {
    let signals = Signals::default();
    let builder: Builder<Signals> = Runtime::builder(path).state(signals.clone());
    let builder = builder.handle(act).configure::<Act>(Settings::delete_on_success);
    (Lab::start(builder).await.unwrap(), signals)
}

fn once(act: Act) -> NewJob {
    NewJob::from(act).max_attempts(1)
}

#[tokio::test]
async fn a_job_that_is_deleted_on_success_goes_with_the_next_pass() {
    let dir = tempfile::tempdir().unwrap();
    let (lab, _) = forgetful(&dir.path().join("shop.db")).await;
    let client = lab.client();
    let bystander = Bystander::enqueue(&client).await;
    let done = lab.enqueue(Act::Done).await.unwrap();
    let (ran, seen) = tokio::join!(lab.run(&done), client.wait(&done, PATIENCE));
    assert_eq!(ran.unwrap().outcome, Some(AttemptOutcome::Completed));
    assert_eq!(seen.unwrap().status, Status::Completed, "whoever waits for it sees it");
    let failed = lab.enqueue(once(Act::Fail)).await.unwrap();
    lab.run(&failed).await.unwrap();
    assert_eq!(client.reap_once().await.unwrap().swept, 1);
    assert_eq!(client.job(&done).await.unwrap(), None);
    assert_eq!(record(&client, &failed).await.status, Status::Failed);
    assert_eq!(client.reap_once().await.unwrap().swept, 0);
    let totals = client.totals().await.unwrap()["act"];
    assert_eq!((totals.completed, totals.failed, totals.cancelled), (1, 1, 0));
    assert_eq!(client.counts().await.unwrap().completed, 0);
    bystander.check().await;
}

#[tokio::test]
async fn a_job_that_is_redriven_before_the_pass_is_still_there_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (lab, signals) = forgetful(&dir.path().join("shop.db")).await;
    let client = lab.client();
    let bystander = Bystander::enqueue(&client).await;
    let id = lab.enqueue(Act::Done).await.unwrap();
    lab.run(&id).await.unwrap();
    client.pause(leasehold::Target::Kind("act".into()), ann()).await.unwrap();
    client.redrive(&id, Redrive::default().allow_finished(), ann()).await.unwrap();
    assert_eq!(client.reap_once().await.unwrap().swept, 0);
    assert_eq!(record(&client, &id).await.status, Status::Pending);
    // It goes when it has succeeded again.
    client.resume(leasehold::Target::Kind("act".into()), ann()).await.unwrap();
    lab.run(&id).await.unwrap();
    assert_eq!((signals.times(), client.reap_once().await.unwrap().swept), (2, 1));
    assert_eq!(client.job(&id).await.unwrap(), None);
    assert_eq!(client.totals().await.unwrap()["act"].completed, 1, "once, though it ran twice");
    bystander.check().await;
}

#[tokio::test]
async fn more_jobs_than_a_pass_removes_go_with_the_passes_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (lab, _) = forgetful(&dir.path().join("shop.db")).await;
    let bystander = Bystander::enqueue(&lab.client()).await;
    let jobs = (0..250).map(|_| NewJob::from(Act::Done));
    lab.client().enqueue_many(jobs).await.unwrap();
    lab.settle().await;
    lab.settle().await;
    assert_eq!(lab.client().counts().await.unwrap().completed, 0);
    assert_eq!(lab.client().totals().await.unwrap()["act"].completed, 250);
    bystander.check().await;
}

#[tokio::test]
async fn each_kind_is_kept_as_long_as_it_says() {
    let (_dir, Bench { client, clock, .. }) = shop(Hooks::new()).await;
    client.register("brief", Settings::new().keep(DAY, 2 * DAY)).await.unwrap();
    client.register("long", Settings::new().keep(100 * DAY, 100 * DAY)).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    let mut jobs = HashMap::new();
    for kind in ["mail", "brief", "long"] {
        for status in ENDS {
            jobs.insert((kind, status), ended(&client, kind, status).await);
        }
    }
    let start = clock.now();
    let days = |days: i64| start + days * 24 * 3600 * 1000;
    // When the last jobs of a kind that ended in these ways are there, and when they are not.
    let (succeeded, dead) = ([Status::Completed, Status::Cancelled], [Status::Failed]);
    for (day, kind, ways) in [
        (1, "brief", &succeeded[..]),
        (2, "brief", &dead[..]),
        (7, "mail", &succeeded[..]),
        (30, "mail", &dead[..]),
        (100, "long", &ENDS[..]),
    ] {
        clock.advance(days(day) - clock.now());
        assert_eq!(client.reap_once().await.unwrap().swept, 0, "{kind} at the end of day {day}");
        // A pass of retention is at most once a minute.
        clock.advance(59_999);
        assert_eq!(client.reap_once().await.unwrap().swept, 0);
        clock.advance(1);
        let swept = client.reap_once().await.unwrap().swept;
        assert_eq!(usize::try_from(swept).unwrap(), ways.len(), "{kind} after day {day}");
        for status in ways {
            let id = jobs.remove(&(kind, *status)).unwrap();
            assert_eq!(client.job(id).await.unwrap(), None);
        }
        for id in jobs.values() {
            assert!(client.job(id).await.unwrap().is_some());
        }
    }
    bystander.check().await;
}

#[tokio::test]
async fn whatever_removes_a_job_it_stays_counted() {
    let (_dir, Bench { client, clock, .. }) = shop(Hooks::new()).await;
    let totals = async || client.totals().await.unwrap().get("mail").copied().unwrap_or_default();
    let all = async |each: i64| {
        let Totals { completed, failed, cancelled, .. } = totals().await;
        assert_eq!([completed, failed, cancelled], [each; 3]);
    };
    all(0).await;
    let bystander = Bystander::enqueue(&client).await;
    for (round, way) in ["stays", "delete", "sweep", "retention"].into_iter().enumerate() {
        let mut ids = Vec::new();
        for status in ENDS {
            ids.push(ended(&client, "mail", status).await);
        }
        let each = i64::try_from(round).unwrap() + 1;
        all(each).await;
        clock.advance(1);
        match way {
            "delete" => {
                for id in ids {
                    client.delete(id, ann()).await.unwrap();
                }
            }
            "sweep" => {
                // Oldest first, and no more than it may.
                assert_eq!(client.sweep(clock.now(), 2, ann()).await.unwrap(), 2);
                all(each).await;
                assert_eq!(client.sweep(clock.now(), 100, ann()).await.unwrap(), 4);
            }
            "retention" => {
                clock.advance(31 * 24 * 3600 * 1000);
                assert_eq!(client.reap_once().await.unwrap().swept, 3);
            }
            _ => {}
        }
        all(each).await;
    }
    // A job that is redriven is counted where it ends last.
    let id = ended(&client, "mail", Status::Failed).await;
    assert_eq!(totals().await.failed, 5);
    client.redrive(&id, Redrive::default(), ann()).await.unwrap();
    assert_eq!(totals().await.failed, 4);
    assert_eq!(client.counts().await.unwrap().dead, 0);
    bystander.check().await;
}

fn text(bytes: usize) -> Json {
    Json::parse(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap()
}

#[tokio::test]
async fn sizes_are_of_the_database_and_hold_for_every_client_and_for_plain_sql() {
    let (dir, Bench { client, .. }) = shop(Hooks::new()).await;
    let path = dir.path().join("shop.db");
    for sizes in [
        Sizes::default().payload(0),
        Sizes::default().result(0),
        Sizes::default().meta(257 << 20),
        Sizes::default().key(0),
    ] {
        let refused = client.set_sizes(sizes).await.unwrap_err();
        assert!(matches!(refused.refusal(), Some(Refusal::Invalid { .. })), "{refused}");
    }
    let before = Client::open(&path).await.unwrap();
    let bystander = Bystander::enqueue(&client).await;
    client.enqueue(mail().id("before")).await.unwrap();
    let small = Sizes::default().payload(10).result(20).meta(30).key(40);
    client.set_sizes(small).await.unwrap();
    let after = Client::open(&path).await.unwrap();
    let app = Connection::open(&path).unwrap();
    for (n, client) in [&client, &before, &after].into_iter().enumerate() {
        for (limit, field, make) in [
            (10, "payload", (|n| NewJob::raw("mail", Some(text(n)))) as fn(usize) -> NewJob),
            (30, "meta", |n| mail().meta(text(n))),
            (40, "tenant", |n| mail().tenant("t".repeat(n))),
            (40, "id", |n| mail().id(&*"i".repeat(n))),
        ] {
            client.enqueue(make(limit)).await.unwrap();
            let refused = client.enqueue(make(limit + 1)).await.unwrap_err();
            let Some(Refusal::Invalid { field: named, .. }) = refused.refusal() else {
                panic!("{refused}")
            };
            assert_eq!(*named, field, "client {n}");
            let (column, quoted) = (field, matches!(field, "payload" | "meta"));
            let value = |n: usize| if quoted { text(n).to_string() } else { "k".repeat(n) };
            let sql = format!("INSERT INTO leasehold_enqueue (kind, {column}) VALUES ('mail', ?1)");
            app.execute(&sql, [value(limit)]).unwrap();
            let refused = app.execute(&sql, [value(limit + 1)]).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("leasehold: {field}")), "{refused}");
        }
        let id = client.enqueue(mail()).await.unwrap().id;
        let lease = client.claim_by_id(&id, "hand").await.unwrap().unwrap();
        let refused = lease.checkpoint("", text(21)).await.unwrap_err();
        assert!(matches!(refused.refusal(), Some(Refusal::Invalid { field: "value", .. })));
        let refused = lease.complete(Some(text(21))).await.unwrap_err();
        assert!(matches!(refused.refusal(), Some(Refusal::Invalid { field: "result", .. })));
        assert_eq!(lease.complete(Some(text(20))).await.unwrap(), Status::Completed);
    }
    // What was there before is there, and larger again is larger.
    assert!(client.job("before").await.unwrap().is_some());
    before.set_sizes(Sizes::default().key(10)).await.unwrap();
    // A job is asked for by its id, and so that it is not longer than a key may be, in any form.
    let uuid = "0190f5b2-7c1e-7abc-8def-0123456789ab";
    let library = after.enqueue(mail().id(uuid)).await.is_ok();
    let plain = "INSERT INTO leasehold_enqueue (kind, id) VALUES ('mail', ?1)";
    assert_eq!(library, app.execute(plain, [uuid]).is_ok());
    after.enqueue(mail()).await.unwrap();
    bystander.check().await;
}

#[tokio::test]
async fn who_acts_and_who_claims_has_a_name_that_can_be_kept() {
    let bench = Bench::start(BenchSettings::default()).await.unwrap();
    let client = &bench.client;
    client.register("mail", Settings::new()).await.unwrap();
    client.enqueue(NewJob::raw("mail", None).id("a")).await.unwrap();
    let long = "x".repeat(513);
    for wrong in ["", "a\0b", &*long] {
        let by = || Operator::named(wrong);
        let all = Filter::new().kind("mail");
        let refused = [
            client.cancel("a", by()).await.map(drop),
            client.delete("a", by()).await,
            client.sweep(0, 1, by()).await.map(drop),
            client.pause(Target::Kind("mail".into()), by()).await,
            client.start_bulk(NewBulk::new(BulkAction::Cancel, all), by()).await.map(drop),
            client.claim(&["mail"], wrong, 1).await.map(drop),
            client.claim_by_id("a", wrong).await.map(drop),
        ];
        for refused in refused {
            let refused = refused.unwrap_err();
            let code = refused.refusal().map(Refusal::code);
            assert_eq!(code, Some("invalid"), "{wrong:?}: {refused}");
        }
    }
    let why = Operator::named("ann").because("y".repeat(4_097));
    assert!(client.cancel("a", why).await.unwrap_err().to_string().starts_with("reason is"));
    client.register_reason("tidy_up", "Tidying up").await.unwrap();
    let reasons = client.reasons().await.unwrap();
    assert_eq!(reasons.get("tidy_up").map(String::as_str), Some("Tidying up"));
    assert_eq!(reasons.len(), 4, "three are built in");
    assert!(client.limit_queue("No Queue", 1).await.unwrap_err().to_string().starts_with("queue"));
    let job = client.job("a").await.unwrap().unwrap();
    assert_eq!((job.status, job.epoch), (Status::Pending, 0), "nothing was done");
    assert!(client.actions(i64::MAX, 9).await.unwrap().is_empty(), "and nothing is recorded");
}
