//! The statements, each held to its plan, and what a claim costs.

use std::sync::{Arc, Mutex};

use rusqlite::{Connection, StatementStatus};

use super::claim::{Batch, Want};
use super::engine::{Engine, Pending};
use super::messages::{Claim, Enqueue, Envelope, Message, Register, SettleOne};
use super::open::{Place, writer};
use super::{StoreSettings, statements};
use crate::clock::ManualClock;
use crate::entropy::{Entropy, FixedEntropy};
use crate::error::Error;
use crate::faults::{Faults, Point};
use crate::job::{JobId, Status};
use crate::kind::Settings;
use crate::new_job::NewJob;
use crate::rules::settle::Settle;
use crate::store::holder::Write;

const NOW: i64 = 1_000_000;

/// An engine in memory, driven without actors.
struct Rig {
    engine: Engine,
    entropy: Arc<FixedEntropy>,
    clock: ManualClock,
    faults: Faults,
}

impl Rig {
    fn new() -> Self {
        let clock = ManualClock::at(NOW);
        let entropy = Arc::new(FixedEntropy::new(&[0.5], 1));
        let faults = Faults::default();
        let engine = Engine::open(
            Place::Memory,
            StoreSettings::default(),
            Arc::new(clock.clone()),
            entropy.clone(),
            faults.clone(),
        );
        let mut rig = Self { engine: engine.unwrap(), entropy, clock, faults };
        let kinds = ["mail", "report", "other"].map(|kind| (kind.to_owned(), Settings::new()));
        rig.ask(Register { kinds: kinds.into(), ..Register::default() }).unwrap();
        rig
    }

    fn ask<M: Message>(&mut self, message: M) -> Result<M::Reply, Error> {
        let answer = Arc::new(Mutex::new(None));
        let slot = answer.clone();
        let message = Envelope::seal(message, move |outcome| {
            *slot.lock().unwrap() = Some(outcome);
        });
        self.engine.run(vec![message], None);
        let answer = answer.lock().unwrap().take();
        answer.unwrap()
    }

    fn enqueue(&mut self, jobs: impl IntoIterator<Item = NewJob>) -> Vec<JobId> {
        let jobs = jobs.into_iter().map(|job| (job, JobId::minted(self.entropy.uuid(NOW))));
        let answers = self.ask(Enqueue(jobs.collect())).unwrap();
        answers.into_iter().map(|answer| answer.unwrap().id).collect()
    }

    fn claim(&mut self, limit: usize) -> Batch {
        let kinds = vec!["mail".into(), "report".into()];
        let suspects = usize::MAX;
        self.ask(Claim(Want { owner: "w".into(), kinds, limit, suspects, ..Want::default() }))
            .unwrap()
    }

    fn conn(&self) -> &Connection {
        self.engine.connection()
    }

    /// Steps of the virtual machine that all our statements have taken.
    fn steps(&self) -> i64 {
        let steps = |(_, sql): &(&str, &str)| {
            let statement = self.conn().prepare_cached(sql).unwrap();
            i64::from(statement.reset_status(StatementStatus::VmStep))
        };
        statements::ALL.iter().map(steps).sum()
    }
}

fn raw(kind: &str) -> NewJob {
    NewJob::raw(kind, None)
}

fn fresh() -> Connection {
    writer(&Place::Memory, &StoreSettings::default()).unwrap()
}

fn plan(conn: &Connection, sql: &str) -> String {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let nulls = vec![rusqlite::types::Null; statement.parameter_count()];
    let rows = statement
        .query_map(rusqlite::params_from_iter(nulls), |row| row.get::<_, String>(3))
        .unwrap();
    rows.map(Result::unwrap).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_statement_prepares_and_none_changes_a_table_without_a_condition() {
    let conn = fresh();
    for (name, sql) in statements::ALL {
        if let Err(error) = conn.prepare(sql) {
            panic!("{name}: {error}");
        }
        let changes = sql.starts_with("UPDATE") || sql.starts_with("DELETE");
        assert!(!changes || sql.contains(" WHERE "), "{name} has no condition");
        assert!(!sql.contains("LIMIT ?"), "{name} would be planned for each limit");
    }
}

#[test]
fn no_statement_reads_all_rows_but_those_that_count_them() {
    let conn = fresh();
    for (name, sql) in statements::ALL {
        if !sql.contains("leasehold_job") || sql.starts_with("INSERT INTO leasehold_job") {
            continue;
        }
        let plan = plan(&conn, sql);
        let counts = name.starts_with("COUNT_");
        for line in plan.lines().filter(|line| line.starts_with("SCAN")) {
            let bounded = line.contains("USING INDEX leasehold_")
                || line.contains("USING COVERING INDEX leasehold_")
                || line.contains("json_each")
                || line.starts_with("SCAN e ")
                || line.contains("SCAN l")
                || line.contains("SCAN d");
            assert!(bounded || counts, "{name} scans: {plan}");
        }
        let sorts = plan.contains("TEMP B-TREE");
        assert!(!sorts || counts, "{name} sorts: {plan}");
    }
}

#[test]
fn each_hot_statement_uses_the_index_that_is_meant_for_it() {
    let conn = fresh();
    for (sql, index) in [
        (statements::FIND, "leasehold_job_id"),
        (statements::DUE, "leasehold_scheduled"),
        (statements::NEXT_DUE, "leasehold_scheduled"),
        (statements::READY_HEADS, "leasehold_ready"),
        (statements::READY, "leasehold_ready"),
        (statements::SUSPECT_HEADS, "leasehold_suspect"),
        (statements::SUSPECTS, "leasehold_suspect"),
        (statements::HELD, "leasehold_held"),
        (statements::NEXT_HELD_KEY, "leasehold_held"),
        (statements::RUNNING, "leasehold_running"),
        (statements::RUNNING_OF_KIND, "leasehold_running"),
        (statements::RUNNING_OF_KEY, "leasehold_running_limited"),
        (statements::OWED, "leasehold_owed"),
        (statements::ENDED, "leasehold_ended_of_kind"),
        (statements::COUNT_ENDED, "COVERING INDEX leasehold_ended_of_kind"),
        (statements::COUNT_PARKED, "leasehold_parked"),
        (statements::SUBJECT_NEWEST, "leasehold_of_subject"),
        (statements::SUBJECT_OLDEST, "leasehold_of_subject"),
        (statements::TENANT_NEWEST, "leasehold_of_tenant"),
        (statements::TENANT_OLDEST, "leasehold_of_tenant"),
        (statements::NEXT_ENDED_KIND, "COVERING INDEX leasehold_ended_of_kind"),
        (statements::ENDED_NEWEST, "leasehold_ended_of_kind"),
        (statements::ENDED_AFTER, "leasehold_ended_of_kind"),
        (statements::KEPT_KEY, "leasehold_kept_key"),
        (statements::DROP_KEPT_KEYS, "leasehold_kept_until"),
        (statements::BY_IDEMPOTENCY_KEY, "leasehold_idempotency"),
        (statements::BY_DEDUP_KEY, "leasehold_dedup"),
        (statements::BY_LOCK_KEY, "leasehold_lock"),
        (statements::ANY_READY, "leasehold_ready"),
        (statements::ANY_SUSPECT, "leasehold_suspect"),
    ] {
        let plan = plan(&conn, sql);
        assert!(plan.contains(index), "{sql}\nshould use {index}:\n{plan}");
    }
    for sql in [
        statements::LOAD,
        statements::UPDATE,
        statements::RENEW,
        statements::SET_LANE,
        statements::SUMMARY,
        statements::NEWEST,
        statements::OLDEST,
    ] {
        let plan = plan(&conn, sql);
        assert!(plan.contains("INTEGER PRIMARY KEY"), "{sql}\n{plan}");
    }
}

/// Plays a job of each sort through, several times over.
fn exercise(rig: &mut Rig) {
    for round in 0..5_i64 {
        let later = raw("report").run_at(rig.clock_now() + 10);
        let limited = raw("mail").limit_key("k").priority(round);
        let keyed = raw("mail").dedup_key(format!("d{round}")).lock_key(format!("l{round}"));
        rig.enqueue([raw("mail"), later, limited, keyed.idempotency_key(format!("i{round}"))]);
        rig.clock.advance(10);
        for claimed in rig.claim(2).claimed {
            let write = Write { key: claimed.key, holder: claimed.holder, number: 1 };
            let how = match round % 3 {
                0 => Settle::Complete(None),
                1 => Settle::Yield,
                _ => Settle::Snooze(5),
            };
            rig.ask(SettleOne { write, how }).unwrap();
        }
        rig.ask(super::messages::Reap(super::reaper::Known::default())).unwrap();
    }
}

#[test]
fn retention_goes_on_in_slices_and_starts_anew_after_a_minute() {
    let mut rig = Rig::new();
    let ids = rig.enqueue((0..150).map(|_| raw("mail")));
    let by = crate::Operator::named("ann");
    for id in ids {
        rig.ask(super::messages::Cancel { id, by: by.clone() }).unwrap();
    }
    let bystander = rig.enqueue([raw("mail")]).remove(0);
    let pass = |rig: &mut Rig, unswept| {
        let known = super::reaper::Known { unswept, ..Default::default() };
        let pass = rig.ask(super::messages::Reap(known)).unwrap();
        (pass.report.swept, pass.unswept)
    };
    assert_eq!(pass(&mut rig, false), (0, false), "nothing is due");
    rig.clock.advance(8 * super::DAY);
    assert_eq!(pass(&mut rig, false), (100, true));
    assert_eq!(pass(&mut rig, false), (0, false), "a run a minute, but for one that goes on");
    assert_eq!(pass(&mut rig, true), (50, false));
    let left: i64 =
        rig.conn().query_row("SELECT count(*) FROM leasehold_job", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1);
    rig.ask(super::messages::Cancel { id: bystander, by }).unwrap();
}

#[test]
fn an_owner_who_started_after_the_locks_were_looked_at_loses_nothing_to_a_jump_of_the_clock() {
    use crate::owner::{Alive, Locks};
    let mut rig = Rig::new();
    rig.enqueue([raw("mail"), raw("mail")]);
    let owners = ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"];
    for owner in owners {
        let want =
            Want { owner: owner.into(), kinds: vec!["mail".into()], limit: 1, ..Want::default() };
        let batch = rig.ask(Claim(Want { suspects: usize::MAX, ..want })).unwrap();
        assert_eq!(batch.claimed.len(), 1);
    }
    let locks = Locks::Played(std::sync::Arc::default());
    let database = std::path::PathBuf::new();
    let held = locks.take(&database, owners[0]).unwrap();
    rig.clock.advance(10 * 3_600_000);
    let newcomers = Some(Alive { locks, database });
    let known = super::reaper::Known { newcomers, ..Default::default() };
    let pass = rig.ask(super::messages::Reap(known.clone())).unwrap();
    assert_eq!((pass.report.requeued, pass.doubtful.len()), (1, 1), "the other is nowhere");
    drop(held);
    let pass = rig.ask(super::messages::Reap(known)).unwrap();
    assert_eq!((pass.report.requeued, pass.doubtful.len()), (1, 0), "now it has gone");
}

impl Rig {
    fn clock_now(&self) -> i64 {
        crate::clock::Clock::now(&self.clock)
    }
}

#[test]
fn no_statement_is_ever_prepared_a_second_time() {
    let mut rig = Rig::new();
    exercise(&mut rig);
    let mut used = 0;
    for (name, sql) in statements::ALL {
        let statement = rig.conn().prepare_cached(sql).unwrap();
        used += i32::from(statement.get_status(StatementStatus::Run) > 0);
        let again = statement.get_status(StatementStatus::RePrepare);
        assert_eq!(again, 0, "{name} was prepared again");
    }
    assert!(used > 30, "only {used} statements were run");
}

/// The steps of claiming and completing 20 jobs beside whatever `around` puts there.
fn cost(around: impl FnOnce(&mut Rig)) -> i64 {
    let mut rig = Rig::new();
    rig.ask(Register { limits: vec![("limit_key", "full".into(), 0)], ..Register::default() })
        .unwrap();
    around(&mut rig);
    rig.enqueue((0..40).map(|_| raw("mail").priority(-5)));
    // What the first claim clears out of the way is not counted.
    while rig.claim(10).more {}
    rig.steps();
    for claimed in rig.claim(20).claimed {
        let write = Write { key: claimed.key, holder: claimed.holder, number: 1 };
        rig.ask(SettleOne { write, how: Settle::Complete(None) }).unwrap();
    }
    rig.steps()
}

type Around = Box<dyn FnOnce(&mut Rig)>;

#[test]
fn a_claim_costs_the_same_whatever_lies_around_it() {
    const MANY: usize = 3_000;
    let alone = cost(|_| {});
    let soon = NOW + 1_000_000_000;

    let beside: [(&str, Around); 5] = [
        ("ready rows", Box::new(|rig| drop(rig.enqueue((0..MANY).map(|_| raw("mail")))))),
        (
            "scheduled rows of a higher priority",
            Box::new(move |rig| {
                let later = (0..MANY).map(|_| raw("mail").run_at(soon).priority(-1000));
                rig.enqueue(later);
            }),
        ),
        (
            "ready rows of kinds not served",
            Box::new(|rig| drop(rig.enqueue((0..MANY).map(|_| raw("other").priority(-9))))),
        ),
        (
            "ready rows held back by a full limit",
            Box::new(|rig| {
                rig.enqueue((0..MANY).map(|_| raw("mail").limit_key("full").priority(-9)));
            }),
        ),
        (
            "ended rows",
            Box::new(|rig| {
                rig.enqueue((0..MANY).map(|_| raw("mail").priority(-9)));
                for claimed in rig.claim(MANY).claimed {
                    let write = Write { key: claimed.key, holder: claimed.holder, number: 1 };
                    let how = Settle::Complete(None);
                    assert_eq!(rig.ask(SettleOne { write, how }).unwrap(), Status::Completed);
                }
            }),
        ),
    ];
    for (what, around) in beside {
        let cost = cost(around);
        assert!(cost <= alone + alone / 10, "beside {MANY} {what}: {cost} steps, alone {alone}");
    }
}

#[test]
fn the_scope_of_a_message_ends_with_it() {
    let mut rig = Rig::new();
    rig.enqueue([raw("mail")]);
    let answers: Arc<Mutex<Vec<i64>>> = Arc::default();
    let count = |scope: Option<crate::Scope>| {
        let answers = answers.clone();
        let count = super::questions::CountAll;
        let note = move |counts: Result<crate::Counts, Error>| {
            answers.lock().unwrap().push(counts.unwrap().ready);
        };
        match scope {
            None => Envelope::seal(count, note),
            scope => Envelope::seal(super::messages::Scoped { scope, message: count }, note),
        }
    };
    // In one batch: the runtime's own messages have no scope, and none of another's.
    let other = Some(crate::Scope::tenant("other"));
    rig.engine.run(vec![count(None), count(other), count(None)], None);
    assert_eq!(*answers.lock().unwrap(), [1, 0, 1]);
}

#[test]
fn a_message_that_fails_takes_no_other_with_it() {
    let mut rig = Rig::new();
    let bystander = rig.enqueue([raw("mail")]).remove(0);
    let answers = Arc::new(Mutex::new(Vec::new()));
    let batch = (0..3_i64).map(|n| -> Box<dyn Pending> {
        let job = raw("report").priority(n);
        let id = JobId::new(&format!("job-{n}"));
        let answers = answers.clone();
        Envelope::seal(Enqueue(vec![(job, id)]), move |answer| {
            answers.lock().unwrap().push((n, answer.is_ok()));
        })
    });
    let batch = batch.collect();
    // The second message fails once in the batch, and once more when it runs alone.
    rig.faults.arm(Point::Message, 2);
    rig.engine.run(batch, None);
    assert_eq!(*answers.lock().unwrap(), [(0, false), (1, true), (2, true)]);
    let rows: i64 =
        rig.conn().query_row("SELECT count(*) FROM leasehold_job", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 3, "the bystander and the two that ran");
    assert_eq!(rig.claim(9).claimed.iter().filter(|job| job.id == bystander).count(), 1);
}

#[test]
fn a_commit_whose_answer_is_lost_is_said_to_be_unknown_and_asking_again_finds_it() {
    let mut rig = Rig::new();
    let again = || Enqueue(vec![(raw("mail"), JobId::new("0190c6a1-0000-7000-8000-000000000001"))]);
    rig.faults.arm(Point::Commit, 1);
    let lost = rig.ask(again());
    assert!(matches!(lost, Err(Error::Store(crate::StoreFault::Unknown(_)))), "{lost:?}");
    let found = rig.ask(again()).unwrap().remove(0).unwrap();
    assert_eq!(found.was, crate::Was::New, "it is the caller's own new job");
    let rows = "SELECT count(*) FROM leasehold_job";
    assert_eq!(rig.conn().query_row(rows, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
}
