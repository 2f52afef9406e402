//! Enqueuing by plain SQL: keys that name a job, every form of statement, and who hears of it.

use std::time::Duration;

use leasehold::rusqlite::{self, Connection, params};
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{
    Client, Clock, JobId, ManualClock, NewJob, Operator, Runtime, Settings, Status, Was,
};

use crate::plain_sql::{Column, insert, text, whole};
use crate::support::{Bystander, Signals, act, record};

const PATIENCE: Duration = Duration::from_secs(60);

struct Shop {
    _dir: tempfile::TempDir,
    app: Connection,
    client: Client,
    clock: ManualClock,
    bystander: Bystander,
}

impl Shop {
    async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.db");
        let settings = BenchSettings { path: Some(path.clone()), ..BenchSettings::default() };
        let Bench { client, clock, .. } = Bench::start(settings).await.unwrap();
        client.register("mail", Settings::new()).await.unwrap();
        let bystander = Bystander::enqueue(&client).await;
        let app = Connection::open(path).unwrap();
        Self { _dir: dir, app, client, clock, bystander }
    }

    /// Enqueues a job of the view's, or finds that one is there.
    fn enqueue(&self, columns: &[Column]) -> rusqlite::Result<bool> {
        let mut all = vec![text("kind", "mail"), whole("created_at", self.clock.now())];
        all.extend_from_slice(columns);
        let before = self.jobs();
        insert(&self.app, &all)?;
        Ok(self.jobs() > before)
    }

    fn count(&self, sql: &str) -> i64 {
        self.app.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn jobs(&self) -> i64 {
        self.count("SELECT count(*) FROM leasehold_jobs WHERE kind <> 'bystander'")
    }

    /// Claims a job and completes it.
    async fn complete(&self, id: &str) {
        let lease = self.client.claim_by_id(id, "hand").await.unwrap().unwrap();
        lease.complete(None).await.unwrap();
    }

    async fn all_well(&self) {
        self.bystander.check().await;
        assert_eq!(self.count("SELECT count(*) FROM leasehold_new"), 0);
        assert_eq!(self.count("SELECT count(*) FROM leasehold_jobs WHERE id IS NULL"), 0);
    }
}

#[tokio::test]
async fn a_key_that_names_a_job_leaves_it_as_it_is_and_adds_none() {
    let shop = Shop::open().await;
    let uuid = "0190f5b2-7c1e-7abc-8def-0123456789ab";
    let keys = [text("idempotency_key", "i"), text("dedup_key", "d"), text("lock_key", "l")];
    assert_eq!(shop.enqueue(&[&[text("id", uuid)][..], &keys].concat()), Ok(true));
    let before = record(&shop.client, &uuid.into()).await;
    for key in [text("id", uuid), keys[0].clone(), keys[1].clone()] {
        // Whatever else it is given, an unfree lock among that.
        let columns = [key, whole("priority", 7), text("lock_key", "l"), whole("run_at", 1)];
        assert_eq!(shop.enqueue(&columns), Ok(false), "{columns:?}");
    }
    let held = shop.enqueue(&keys[2..]).unwrap_err().to_string();
    assert!(held.starts_with("leasehold: lock_held"), "{held}");
    assert_eq!(record(&shop.client, &uuid.into()).await, before);
    // Not those of another tenant.
    let other = [&[text("tenant", "t")][..], &keys].concat();
    assert_eq!(shop.enqueue(&other), Ok(true));
    // Once it has ended, two of the three are free.
    shop.complete(uuid).await;
    assert_eq!(shop.enqueue(&keys[..1]), Ok(false));
    assert_eq!(shop.enqueue(&keys[1..]), Ok(true));
    shop.all_well().await;
}

#[tokio::test]
async fn a_kept_key_is_kept_by_the_library_and_by_the_view_to_the_millisecond() {
    let shop = Shop::open().await;
    let keys = [text("idempotency_key", "i"), text("dedup_key", "d")];
    let kept = [whole("keep_key_for", 1000), whole("unique_for", 2000), text("id", "first")];
    assert_eq!(shop.enqueue(&[&keys[..], &kept].concat()), Ok(true));
    shop.complete("first").await;
    shop.client.delete("first", Operator::named("ann")).await.unwrap();
    let again = || NewJob::raw("mail", None);
    for (after, idempotent, unique) in [(999, true, true), (1, false, true), (999, false, true)] {
        shop.clock.advance(after);
        for (key, taken) in [(&keys[0], idempotent), (&keys[1], unique)] {
            if !taken {
                continue;
            }
            assert_eq!(shop.enqueue(std::slice::from_ref(key)), Ok(false), "{after} {key:?}");
        }
        let enqueued = shop.client.enqueue(again().dedup_key("d")).await.unwrap();
        assert_eq!((enqueued.id, enqueued.was == Was::New), ("first".into(), false));
    }
    assert_eq!(shop.enqueue(&keys[..1]), Ok(true), "free, and taken anew");
    shop.clock.advance(1);
    assert_eq!(shop.enqueue(&keys[1..]), Ok(true));
    shop.all_well().await;
}

#[tokio::test]
async fn every_form_of_insert_enqueues_and_none_replaces() {
    let shop = Shop::open().await;
    let run = |sql: &str| shop.app.execute(sql, []);
    run("CREATE TABLE orders (n INTEGER, key TEXT)").unwrap();
    run("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'a'), (4, 'c')").unwrap();
    // A row whose key is taken is passed by, and those after it are not.
    run("INSERT INTO leasehold_enqueue (kind, subject_id, dedup_key)
         SELECT 'mail', CAST(n AS TEXT), key FROM orders ORDER BY n")
    .unwrap();
    let subjects = "SELECT group_concat(subject_id, ' ' ORDER BY subject_id) FROM leasehold_jobs";
    let subjects = || shop.app.query_row(subjects, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(subjects(), "1 2 4");
    run("INSERT INTO leasehold_enqueue (kind, id) VALUES ('mail', 'x'), ('mail', 'x'), ('mail', 'y')")
        .unwrap();
    assert_eq!(shop.jobs(), 5);
    for or in ["REPLACE", "IGNORE", "ABORT", "FAIL"] {
        let same = format!(
            "INSERT OR {or} INTO leasehold_enqueue (kind, id, priority, dedup_key, \
             idempotency_key, unique_for) VALUES ('mail', 'x', 5, 'a', '{or}', 5)"
        );
        run(&same).unwrap();
        assert_eq!(shop.jobs(), 5, "{or}");
        assert_eq!(record(&shop.client, &"x".into()).await.priority, 0, "{or}");
        // Of a statement that is refused, no row is there.
        let refused = format!(
            "INSERT OR {or} INTO leasehold_enqueue (kind, priority) VALUES ('mail', 1), ('Mail', 2)"
        );
        let refused = run(&refused).unwrap_err().to_string();
        assert!(refused.starts_with("leasehold: kind"), "{or}: {refused}");
        assert_eq!(shop.jobs(), 5, "{or}");
    }
    for other in [
        "INSERT INTO leasehold_enqueue DEFAULT VALUES",
        "UPDATE leasehold_enqueue SET kind = 'mail'",
        "DELETE FROM leasehold_enqueue",
        "INSERT INTO leasehold_enqueue (kind) VALUES ('mail') ON CONFLICT DO NOTHING",
    ] {
        assert!(run(other).is_err(), "{other}");
    }
    assert_eq!((shop.count("SELECT count(*) FROM leasehold_enqueue"), shop.jobs()), (0, 5));
    let given = "INSERT INTO leasehold_enqueue (kind, id) VALUES ('mail', 'z') RETURNING id";
    assert_eq!(shop.app.query_row(given, [], |row| row.get(0)), Ok("z".to_owned()));
    shop.all_well().await;
}

#[tokio::test]
async fn a_job_is_there_if_and_only_if_the_applications_transaction_commits() {
    let shop = Shop::open().await;
    for (end, jobs) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        shop.app.execute_batch("BEGIN").unwrap();
        shop.app.execute("INSERT INTO leasehold_enqueue (kind) VALUES ('fax')", []).unwrap();
        let refused = shop.app.execute("INSERT INTO leasehold_enqueue (kind) VALUES ('')", []);
        assert!(refused.is_err(), "and the transaction stands");
        shop.app.execute_batch(end).unwrap();
        assert_eq!(shop.jobs(), jobs);
        assert_eq!(
            shop.client.counts().await.unwrap().kinds.get("fax").copied(),
            (jobs > 0).then_some(1)
        );
    }
    shop.all_well().await;
}

#[tokio::test]
async fn an_id_that_is_left_out_is_a_uuid_of_the_time_and_no_two_are_alike() {
    let shop = Shop::open().await;
    let many = "INSERT INTO leasehold_enqueue (kind, created_at)
        WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 300)
        SELECT 'mail', ?1 FROM n";
    let times: [i64; 3] = [0x0123_4567_89ab, 0, 7_258_118_399_999];
    for at in times {
        shop.app.execute(many, [at]).unwrap();
    }
    let mut ids =
        shop.app.prepare("SELECT id, created_at FROM leasehold_jobs WHERE kind = 'mail'").unwrap();
    let ids =
        ids.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))).unwrap();
    let mut seen = std::collections::HashSet::new();
    for (id, at) in ids.map(Result::unwrap) {
        let uuid = JobId::new(&id).as_uuid().expect("kept as one");
        assert_eq!((uuid.get_version_num(), uuid.get_variant()), (7, uuid::Variant::RFC4122));
        assert_eq!(uuid.as_u128() >> 80, u128::try_from(at).unwrap(), "{id}");
        assert!(seen.insert(id));
    }
    assert_eq!(seen.len(), 900);
    // By the clock of the machine where no time is given.
    shop.app
        .execute("INSERT INTO leasehold_enqueue (kind, id) VALUES ('mail', 'now')", [])
        .unwrap();
    let now = record(&shop.client, &"now".into()).await;
    assert!(now.created_at > 1_700_000_000_000 && now.run_at == now.created_at, "{now:?}");
    shop.all_well().await;
}

#[tokio::test]
async fn a_runtime_hears_of_the_commit_and_runs_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shop.db");
    let builder = Runtime::builder(&path).state(Signals::default()).handle(act);
    let runtime = builder.start().await.unwrap();
    let bystander = Bystander::enqueue(&runtime.client()).await;
    let app = Connection::open(&path).unwrap();
    for (id, delay) in [("now", 0), ("soon", 1)] {
        let sql = "INSERT INTO leasehold_enqueue (kind, payload, id, delay) VALUES ('act', '\"Done\"', ?1, ?2)";
        app.execute(sql, params![id, delay]).unwrap();
        let ended = runtime.wait(id, PATIENCE).await.unwrap();
        // As the kind's own settings say.
        assert_eq!((ended.status, ended.epoch, ended.max_attempts), (Status::Completed, 1, 3));
    }
    bystander.check().await;
}

#[tokio::test]
async fn whole_numbers_may_come_as_floats() {
    let shop = Shop::open().await;
    // Some drivers know no other numbers.
    let sql = "INSERT INTO leasehold_enqueue (kind, id, priority, max_attempts, delay, created_at) \
        VALUES ('mail', 'a', -3.0, 7.0, 250.0, 1000000.0)";
    shop.app.execute(sql, []).unwrap();
    let job = record(&shop.client, &"a".into()).await;
    assert_eq!((job.priority, job.max_attempts), (-3, 7));
    assert_eq!((job.created_at, job.run_at), (1_000_000, 1_000_250));
    shop.all_well().await;
}

#[tokio::test]
async fn a_key_or_a_subject_may_be_a_number_of_the_applications() {
    let shop = Shop::open().await;
    let columns = ["dedup_key", "lock_key", "limit_key", "tenant", "subject_type", "subject_id"];
    let numbers = columns.map(|column| whole(column, 7));
    assert!(shop.enqueue(&[&numbers[..], &[text("id", "a")]].concat()).unwrap());
    let job = record(&shop.client, &"a".into()).await;
    let seen =
        [job.dedup_key, job.lock_key, job.limit_key, job.tenant, job.subject_type, job.subject_id];
    assert_eq!(seen, [const { Some("7") }; 6].map(|seven| seven.map(str::to_owned)));
    let same = [whole("dedup_key", 7), whole("tenant", 7)];
    assert!(!shop.enqueue(&same).unwrap(), "it is the key that the library knows as a text");
    let text = NewJob::raw("mail", None).tenant("7").dedup_key("7");
    assert_ne!(shop.client.enqueue(text).await.unwrap().was, Was::New);
    shop.all_well().await;
}

#[tokio::test]
async fn a_trigger_of_the_applications_enqueues_inside_a_transaction_of_leaseholds() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("shop.db")).state(Signals::default());
    let runtime = builder.handle(act).start().await.unwrap();
    let bystander = Bystander::enqueue(&runtime.client()).await;
    let ordered = |order: &'static str| {
        runtime.transaction(move |tx| {
            tx.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT)", [])?;
            tx.execute(
                "CREATE TRIGGER IF NOT EXISTS ordered AFTER INSERT ON orders BEGIN \
                 INSERT INTO leasehold_enqueue (kind, payload, id) \
                 VALUES ('act', '\"Done\"', NEW.id); END",
                [],
            )?;
            tx.execute("INSERT INTO orders VALUES (?1)", [order])
        })
    };
    for order in ["first", "second"] {
        ordered(order).await.unwrap();
        let job = runtime.wait(order, PATIENCE).await.unwrap();
        assert_eq!((job.status, job.attempts), (Status::Completed, 1), "{order}");
    }
    bystander.check().await;
}
