//! Jobs in the application's own transactions: by a closure on the store's connection, in hooks
//! and fenced writes. The job and the application's row are both there, or neither is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold::rusqlite::Connection;
use leasehold::testing::{Faults, Lab, Point};
use leasehold::{
    Builder, By, Client, Ctx, Error, FencedError, Hooks, Job, JobRecord, JobResult, NewJob,
    Operator, Outcome, Refusal, Runtime, Scope, Status, StoreFault, TransactionError, Tx, Was,
};
use serde::{Deserialize, Serialize};

use crate::support::{Act, Bystander, Signals, act, record};

const PATIENCE: Duration = Duration::from_secs(60);

/// A file with a table of the application's, a client, and a bystander.
struct Shop {
    _dir: tempfile::TempDir,
    app: Connection,
    lab: Lab,
    client: Client,
    bystander: Bystander,
    world: World,
}

/// What handlers can reach.
#[derive(Clone)]
struct World {
    path: PathBuf,
    faults: Faults,
    said: Arc<Mutex<Vec<String>>>,
}

impl Shop {
    async fn open() -> Self {
        Self::with(|builder, _| builder.state(Signals::default()).handle(act)).await
    }

    /// Nothing is claimed but where `settle` is called, or where work rides in a commit.
    async fn with<S: Clone + 'static>(build: impl FnOnce(Builder, World) -> Builder<S>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.db");
        let world = World { path, faults: Faults::default(), said: Arc::default() };
        let builder = Runtime::builder(&world.path).faults(world.faults.clone());
        let lab = Lab::start(build(builder, world.clone())).await.unwrap();
        let app = Connection::open(&world.path).unwrap();
        app.execute_batch(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY);
             CREATE TABLE lines (n INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED);",
        )
        .unwrap();
        let client = lab.client();
        let bystander = Bystander::enqueue(&client).await;
        Self { _dir: dir, app, lab, client, bystander, world }
    }

    /// How many orders there are, and jobs besides the bystander.
    async fn there(&self) -> (i64, i64) {
        self.bystander.check().await;
        let count = |sql| self.app.query_row(sql, [], |row| row.get(0)).unwrap();
        (
            count("SELECT count(*) FROM orders"),
            count("SELECT count(*) FROM leasehold_jobs WHERE kind <> 'bystander'"),
        )
    }
}

fn job() -> NewJob {
    NewJob::raw("invoice", None)
}

fn order(tx: &mut Tx<'_>) -> Result<i64, Error> {
    tx.execute("INSERT INTO orders DEFAULT VALUES", [])?;
    Ok(tx.last_insert_rowid())
}

#[tokio::test]
async fn a_row_of_the_application_and_its_job_land_together() {
    let shop = Shop::open().await;
    let both = |tx: &mut Tx<'_>| {
        let order = order(tx)?;
        let enqueued = tx.enqueue(job().subject_id(order.to_string()))?;
        Ok::<_, Error>((order, tx.now(), enqueued))
    };
    let (first, now, enqueued) = shop.lab.runtime.transaction(both).await.unwrap();
    assert_eq!((first, enqueued.was), (1, Was::New));
    let made = record(&shop.client, &enqueued.id).await;
    assert_eq!((made.subject_id.as_deref(), made.created_at), (Some("1"), now));
    assert_eq!(shop.client.transaction(both).await.unwrap().0, 2);
    assert_eq!(shop.there().await, (2, 2));
}

#[tokio::test]
async fn after_an_error_a_panic_or_a_broken_constraint_neither_is_there() {
    let shop = Shop::open().await;
    let error = shop.client.transaction(|tx| {
        order(tx).unwrap();
        tx.enqueue(job()).unwrap();
        Err::<(), _>("by its own will")
    });
    let error = error.await.unwrap_err();
    assert!(matches!(error, TransactionError::Application("by its own will")), "{error:?}");
    let panic = shop.client.transaction(|tx| -> Result<(), Error> {
        order(tx)?;
        tx.enqueue(job())?;
        panic!("at the wrong moment")
    });
    let panic = panic.await.unwrap_err();
    let TransactionError::Store(StoreFault::Panicked(text)) = panic else { panic!("{panic:?}") };
    assert!(text.contains("at the wrong moment"));
    for sql in ["INSERT INTO lines VALUES (99)", "INSERT OR ROLLBACK INTO orders VALUES (1), (1)"] {
        let broken = shop.client.transaction(move |tx| {
            tx.enqueue(job())?;
            tx.execute(sql, [])?;
            Ok::<_, Error>(())
        });
        assert!(broken.await.is_err(), "{sql}");
    }
    assert_eq!(shop.there().await, (0, 0));
    assert!(shop.lab.runtime.health().is_healthy());
}

#[tokio::test]
async fn a_closure_that_fails_takes_no_neighbour_of_its_batch_with_it() {
    let shop = Shop::open().await;
    let (open, gate) = mpsc::channel::<()>();
    // Sits in the store until all the others wait behind it, so that they share a transaction.
    let first = shop.client.transaction(move |_| {
        let _open = gate.recv();
        Ok::<_, Error>(())
    });
    let good = join_all((0..8).map(|_| {
        shop.client.transaction(|tx| {
            order(tx)?;
            tx.enqueue(job())
        })
    }));
    let bad = join_all((0..4).map(|n| {
        shop.client.transaction(move |tx| {
            tx.enqueue(job())?;
            match n {
                0 => Err(Refusal::NotFound.into()),
                1 => panic!("as it was told"),
                2 => Ok(tx.execute("INSERT INTO lines VALUES (99)", [])?),
                _ => Ok(tx.execute("INSERT OR ROLLBACK INTO orders VALUES (1), (1)", [])?),
            }
        })
    }));
    let plain = join_all((0..8).map(|_| shop.client.enqueue(job())));
    let release = async { drop(open) };
    let (first, (bad, (good, (plain, ())))) =
        join(first, join(bad, join(good, join(plain, release)))).await;
    first.unwrap();
    assert!(good.iter().all(|answer| answer.as_ref().is_ok_and(|made| made.was == Was::New)));
    assert!(plain.iter().all(|answer| answer.as_ref().is_ok_and(|made| made.was == Was::New)));
    assert!(bad.iter().all(|answer: &Result<usize, TransactionError<Error>>| answer.is_err()));
    assert_eq!(shop.there().await, (8, 16));
}

#[tokio::test]
async fn a_lost_answer_of_a_transaction_is_unknown_and_is_not_asked_for_again() {
    let shop = Shop::open().await;
    shop.lab.runtime.quiet();
    shop.lab.faults.arm(Point::Commit, 1);
    let unsure = shop.client.transaction(|tx| {
        order(tx)?;
        tx.enqueue(job())
    });
    let unsure = unsure.await.unwrap_err();
    assert!(matches!(unsure, TransactionError::Store(StoreFault::Unknown(_))), "{unsure:?}");
    assert_eq!(shop.there().await, (1, 1));
}

#[tokio::test]
async fn after_a_refused_job_the_transaction_may_go_on() {
    let shop = Shop::open().await;
    let first = shop.client.enqueue(job().lock_key("one").id("first")).await.unwrap().id;
    let refusals = shop.client.transaction(move |tx| {
        let mut refusals = Vec::new();
        for bad in [
            NewJob::raw("Not a kind", None),
            job().lock_key("one"),
            job().reason("nobody_knows_it"),
            job().delay(Duration::from_secs(1 << 33)),
        ] {
            refusals.push(tx.enqueue(bad).unwrap_err().refusal().unwrap().code());
        }
        let known = tx.enqueue(job().id("first"))?;
        let made = tx.enqueue(job().lock_key("two"))?;
        assert_eq!(tx.enqueue(job().id(made.id.clone()))?.was, Was::Existing { by: By::Id });
        order(tx)?;
        Ok::<_, Error>((refusals, known))
    });
    let (refusals, known) = refusals.await.unwrap();
    assert_eq!(refusals, ["invalid", "lock_held", "unknown_reason", "invalid"]);
    assert_eq!((known.id, known.was), (first, Was::Existing { by: By::Id }));
    assert_eq!(shop.there().await, (1, 2));
}

#[tokio::test]
async fn a_transaction_of_a_scoped_client_enqueues_within_the_scope() {
    let shop = Shop::open().await;
    let acme = shop.client.scoped(Scope::tenant("acme"));
    shop.client.enqueue(job().id("theirs")).await.unwrap();
    let made = acme.transaction(|tx| {
        let outside = tx.enqueue(job().tenant("other")).unwrap_err();
        assert!(matches!(outside.refusal(), Some(Refusal::Invalid { field: "tenant", .. })));
        let taken = tx.enqueue(job().id("theirs")).unwrap_err();
        assert_eq!(taken.refusal(), Some(&Refusal::IdTaken));
        tx.enqueue(job())
    });
    let id = made.await.unwrap().id;
    assert_eq!(record(&shop.client, &id).await.tenant.as_deref(), Some("acme"));
    // And the next of a client without one is without one.
    let id = shop.client.transaction(|tx| tx.enqueue(job())).await.unwrap().id;
    assert_eq!(record(&shop.client, &id).await.tenant, None);
    assert_eq!(shop.there().await, (0, 3));
}

#[tokio::test]
async fn code_in_a_transaction_writes_no_table_of_leaseholds_by_sql() {
    let shop = Shop::open().await;
    for sql in [
        "INSERT INTO leasehold_kept_keys (sort, key, id, until) VALUES ('dedup_key', 1, 1, 1)",
        "DELETE FROM leasehold_job",
        "DROP VIEW leasehold_enqueue",
        "COMMIT",
    ] {
        let denied = shop.client.transaction(move |tx| tx.execute(sql, [])).await.unwrap_err();
        assert!(denied.to_string().contains("not authorized"), "{sql}: {denied}");
        // Also once leasehold's own statements have run in it.
        let denied = shop.client.transaction(move |tx| {
            tx.enqueue(job())?;
            Ok::<_, Error>(tx.execute(sql, [])?)
        });
        let denied = denied.await.unwrap_err();
        assert!(denied.to_string().contains("not authorized"), "{sql}: {denied}");
    }
    assert_eq!(shop.there().await, (0, 0));
}

#[tokio::test]
async fn a_hook_enqueues_what_comes_next_or_the_job_has_not_ended() {
    let agrees = Arc::new(Mutex::new(false));
    let asked = agrees.clone();
    let hooks = Hooks::new()
        .on_transition(move |ended, tx| {
            tx.enqueue(job().subject_id(ended.id.to_string()))?;
            if *asked.lock().unwrap() { Ok(1) } else { Err("not yet".into()) }
        })
        .on_redrive(|_, _| Ok(1));
    let shop =
        Shop::with(|builder, _| builder.state(Signals::default()).handle(act).hooks::<Act>(hooks));
    let shop = shop.await;
    let acme = shop.client.scoped(Scope::tenant("acme"));
    let hour = Duration::from_secs(3600);
    let id = acme.enqueue(Act::Done.into_new().delay(hour)).await.unwrap().id;
    let refused = acme.cancel(&id, Operator::named("ann")).await.unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::HookFailed { failures: 1, .. })));
    assert_eq!(shop.there().await, (0, 1));
    *agrees.lock().unwrap() = true;
    assert_eq!(acme.cancel(&id, Operator::named("ann")).await.unwrap(), Status::Cancelled);
    assert_eq!(shop.there().await, (0, 2));
    // A hook is the application's own code, whoever has made it run: it enqueues for anybody.
    let next = "SELECT count(*) FROM leasehold_jobs WHERE tenant IS NULL AND subject_id = ?1";
    let next: i64 = shop.app.query_row(next, [id.to_string()], |row| row.get(0)).unwrap();
    assert_eq!(next, 1);
}

/// What a handler enqueues.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Parent {
    /// One by itself, whose lease is first taken away where it says so.
    One { lost: bool },
    /// One by itself, after so many answers of commits are lost.
    Unsure { times: u32 },
    /// Three in one fenced write, beside a row.
    Three,
    /// What breaks a rule.
    Refused,
}

impl Job for Parent {
    const KIND: &'static str = "parent";
}

async fn parent(parent: Parent, ctx: Ctx<World>) -> JobResult {
    let world = ctx.state().clone();
    match parent {
        Parent::One { lost } => {
            if lost {
                let app = Connection::open(&world.path)?;
                let taken = "UPDATE leasehold_job SET token = randomblob(16) WHERE status = 1";
                assert_eq!(app.execute(taken, [])?, 1);
            }
            let answer = ctx.enqueue(job()).await;
            world.said.lock().unwrap().push(format!("{answer:?}"));
            answer.map_err(|error| error.to_string())?;
        }
        Parent::Unsure { times } => {
            world.faults.arm(Point::Commit, times);
            let made = ctx.enqueue(job()).await.map_err(|error| error.to_string())?;
            return Ok(Outcome::done_with(&made.id));
        }
        Parent::Three => {
            ctx.fenced(|tx| {
                order(tx)?;
                (0..3).try_for_each(|_| tx.enqueue(job()).map(drop))
            })
            .await
            .map_err(|error| error.to_string())?;
        }
        Parent::Refused => {
            let kind = ctx.enqueue(NewJob::raw("", None)).await;
            let Err(FencedError::Application(Refusal::Invalid { field: "kind", .. })) = kind else {
                Err(format!("{kind:?}"))?
            };
            let lock = ctx.enqueue(job().lock_key("held")).await;
            let Err(FencedError::Application(Refusal::LockHeld { .. })) = lock else {
                Err(format!("{lock:?}"))?
            };
            let known = ctx.enqueue(job().id("holder")).await.map_err(|error| error.to_string())?;
            assert_eq!(known.was, Was::Existing { by: By::Id });
        }
    }
    Ok(Outcome::Done)
}

impl Shop {
    async fn of_parents() -> Self {
        Self::with(|builder, world| builder.state(world).handle(parent)).await
    }

    async fn run(&self, job: Parent) -> JobRecord {
        let id = self.client.enqueue(job).await.unwrap().id;
        self.lab.run(id).await.unwrap().job
    }
}

#[tokio::test]
async fn a_handler_enqueues_while_it_holds_its_job_and_not_after() {
    let shop = Shop::of_parents().await;
    let ended = shop.run(Parent::One { lost: false }).await;
    assert_eq!((ended.status, shop.there().await), (Status::Completed, (0, 2)));
    let id = shop.client.enqueue(Parent::One { lost: true }).await.unwrap().id;
    shop.lab.look().await;
    while shop.world.said.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(shop.there().await, (0, 3), "the job itself, and none of its own");
    let said = shop.world.said.lock().unwrap().clone();
    assert!(said[0].contains("was: New"), "{said:?}");
    assert!(said[1].starts_with("Err(Lost(Superseded"), "{said:?}");
    assert_eq!(record(&shop.client, &id).await.status, Status::Running);
}

#[tokio::test]
async fn an_enqueue_of_a_handler_whose_answer_was_lost_makes_one_job() {
    let shop = Shop::of_parents().await;
    for times in 1..=4 {
        let ended = shop.run(Parent::Unsure { times }).await;
        assert_eq!((ended.status, ended.epoch), (Status::Completed, 1), "{times}");
        let made: String = ended.result.unwrap().to().unwrap();
        assert_eq!(record(&shop.client, &made.into()).await.kind.as_ref(), "invoice");
        assert_eq!(shop.there().await, (0, 2 * i64::from(times)));
    }
}

#[tokio::test]
async fn a_fenced_write_enqueues_several_jobs_beside_its_row() {
    let shop = Shop::of_parents().await;
    let ended = shop.run(Parent::Three).await;
    assert_eq!((ended.status, shop.there().await), (Status::Completed, (1, 4)));
}

#[tokio::test]
async fn what_a_handler_may_not_enqueue_is_refused_in_words_of_the_refusal() {
    let shop = Shop::of_parents().await;
    shop.client.enqueue(job().lock_key("held").id("holder")).await.unwrap();
    let ended = shop.run(Parent::Refused).await;
    assert_eq!((ended.status, ended.last_error), (Status::Completed, None));
    assert_eq!(shop.there().await, (0, 2));
}

#[tokio::test]
async fn a_job_of_a_transaction_runs_once_the_transaction_has_landed() {
    let shop = Shop::open().await;
    let made = shop.lab.runtime.transaction(|tx| tx.enqueue(Act::Done)).await.unwrap();
    shop.lab.settle().await;
    let ended = shop.client.wait(made.id, PATIENCE).await.unwrap();
    assert_eq!((ended.status, ended.epoch), (Status::Completed, 1));
    assert_eq!(shop.there().await, (0, 1));
}
