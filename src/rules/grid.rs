//! Every state with every event: what comes of each, and what must hold whatever comes.

#![allow(clippy::wildcard_enum_match_arm, reason = "the table itself notices a new state")]

use std::fmt::Write as _;

use crate::error::Refusal;
use crate::facts::{Facts, Orphan};
use crate::job::{Action, ErrorClass, JobId, Preset, State, Status, Verdict};
use crate::json::Json;

use super::claim::{Claimant, Met, meet};
use super::operate::{Redrive, cancel, delete, redrive, run_again};
use super::row::{Detail, Row, WriteMark};
use super::settle::{Failure, Settle, commit, fence, is_repeat, renew, settle};
use super::table::{Allowed, allowed};
use super::{Change, Holder, reap};

const NOW: i64 = 1_000_000;
const TOKEN: [u8; 16] = [7; 16];

fn pending() -> Row {
    Row {
        key: 1,
        id: JobId::new("a"),
        kind: "mail".into(),
        queue: "default".into(),
        status: Status::Pending,
        priority: 0,
        run_at: NOW,
        created_at: 5,
        updated_at: 5,
        started_at: None,
        finished_at: None,
        attempts: 0,
        max_attempts: 5,
        epoch: 0,
        stalls: 0,
        seq: 0,
        token: None,
        owner: None,
        lease_until: None,
        heartbeat_at: None,
        settled_epoch: None,
        last_committed_at: None,
        commit_epoch: 0,
        commits: 0,
        last_write: WriteMark::default(),
        ahead: false,
        limit_key: None,
        detail: Detail::default(),
    }
}

/// The states of the grid: a name and a row in each.
fn states() -> Vec<(&'static str, Row)> {
    let pending = pending();
    let later = Row { run_at: NOW + 1, ..pending.clone() };
    let spent = Row { attempts: 5, epoch: 5, ..pending.clone() };
    let running = Row {
        status: Status::Running,
        attempts: 1,
        epoch: 1,
        token: Some(TOKEN),
        owner: Some("w".into()),
        lease_until: Some(NOW + 1),
        heartbeat_at: Some(5),
        started_at: Some(5),
        ..pending.clone()
    };
    let last = Row { attempts: 5, epoch: 5, ..running.clone() };
    let saved = Row { commit_epoch: 1, commits: 1, last_committed_at: Some(6), ..running.clone() };
    let stalled = Row { stalls: 3, ..running.clone() };
    let ahead = Row { ahead: true, ..running.clone() };
    let mut asked = running.clone();
    asked.detail.cancel_requested_at = Some(6);
    asked.detail.cancel_requested_by = Some("ann".into());
    let mut limited = running.clone();
    limited.detail.rate_limit_hits = 10;
    let mut owed_cancel = pending.clone();
    owed_cancel.detail.cancel_requested_at = Some(6);
    let mut owed = running.clone();
    owed.token = None;
    owed.lease_until = None;
    owed.detail.verdict = Some(Verdict::Poison);
    let ended = |status| Row {
        status,
        token: None,
        lease_until: None,
        finished_at: Some(9),
        settled_epoch: Some(1),
        ..running.clone()
    };
    let mut dead = ended(Status::Failed);
    dead.detail.verdict = Some(Verdict::Unrecoverable);
    let mut spent_all = ended(Status::Failed);
    spent_all.detail.verdict = Some(Verdict::AttemptsExhausted);
    vec![
        ("pending", pending),
        ("pending, later", later),
        ("pending, spent", spent),
        ("pending, owed a cancel", owed_cancel),
        ("running", running.clone()),
        ("running, last attempt", last),
        ("running, saved", saved),
        ("running, stalled", stalled),
        ("running, ahead", ahead),
        ("running, asked to stop", asked),
        ("running, limited often", limited),
        ("running, owed an ending", owed),
        ("completed", ended(Status::Completed)),
        ("failed", spent_all),
        ("failed, unrecoverable", dead),
        ("cancelled", ended(Status::Cancelled)),
    ]
}

type Event = (Action, &'static str, fn(&Row) -> Result<Row, Refusal>);

fn holder() -> Holder {
    Holder { token: TOKEN, epoch: 1 }
}

fn by_holder(row: &Row, how: &Settle) -> Result<Row, Refusal> {
    if is_repeat(row, &holder(), how) {
        return Ok(row.clone());
    }
    let row = fence(Some(row), &holder(), how.action())?;
    Ok(settle(row, &Facts::default(), how, NOW, &mut || 0.5).row)
}

fn failure(class: ErrorClass) -> Settle {
    Settle::Fail(Failure { class, ..Failure::transient("boom".into()) })
}

fn again(row: &Row, how: Redrive) -> Result<Row, Refusal> {
    redrive(row, how, None, NOW).map(|change| change.row)
}

fn events() -> Vec<Event> {
    vec![
        (Action::Claim, "claim", |row| {
            if row.status != Status::Pending {
                return Err(Refusal::NotFound);
            }
            let by = Claimant { owner: "w2".into(), token: [8; 16], early: false };
            match meet(row, &Facts::default(), by, NOW) {
                Met::Taken(new) => Ok(*new),
                Met::Ended(change) => Ok(change.row),
                Met::NotDue => Err(Refusal::NotFound),
            }
        }),
        (Action::Complete, "complete", |row| {
            by_holder(row, &Settle::Complete(Some(Json::of(&1).unwrap())))
        }),
        (Action::Fail, "fail", |row| by_holder(row, &failure(ErrorClass::Transient))),
        (Action::Fail, "fail terminal", |row| by_holder(row, &failure(ErrorClass::Terminal))),
        (Action::Fail, "fail unrecoverable", |row| {
            by_holder(row, &failure(ErrorClass::Unrecoverable))
        }),
        (Action::Defer, "defer", |row| by_holder(row, &failure(ErrorClass::RateLimited))),
        (Action::Yield, "yield", |row| by_holder(row, &Settle::Yield)),
        (Action::Interrupt, "interrupt", |row| by_holder(row, &Settle::Interrupt)),
        (Action::Snooze, "snooze", |row| by_holder(row, &Settle::Snooze(10))),
        (Action::Release, "release", |row| by_holder(row, &Settle::Release)),
        (Action::Stop, "stopped", |row| by_holder(row, &Settle::Cancelled)),
        (Action::Lose, "lost", |row| match row.status {
            Status::Running => Ok(reap::reap(row, &Facts::default(), NOW).row),
            status => Err(Refusal::NotRunning { status, epoch: row.epoch }),
        }),
        (Action::Lose, "lost, parking kind", |row| match row.status {
            Status::Running => {
                let facts = Facts { orphan: Orphan::Park, ..Facts::default() };
                Ok(reap::reap(row, &facts, NOW).row)
            }
            status => Err(Refusal::NotRunning { status, epoch: row.epoch }),
        }),
        (Action::Renew, "renew", |row| {
            let row = fence(Some(row), &holder(), Action::Renew)?;
            let until = renew(row, &Facts::default(), false, NOW)?;
            Ok(Row { lease_until: Some(until), ..row.clone() })
        }),
        (Action::Save, "save", |row| {
            let row = fence(Some(row), &holder(), Action::Save)?;
            Ok(commit(row, &Facts::default(), true, NOW))
        }),
        (Action::RunAgain, "run again", |row| run_again(row).map(|()| row.clone())),
        (Action::Cancel, "cancel", |row| cancel(row, "bob", NOW).map(|change: Change| change.row)),
        (Action::Redrive, "redrive", |row| again(row, Redrive::default())),
        (Action::Redrive, "redrive, forced", |row| again(row, Redrive::default().force())),
        (Action::Redrive, "redrive, finished", |row| {
            again(row, Redrive::default().allow_finished())
        }),
        (Action::Redrive, "requeue, forced", |row| {
            again(row, Redrive::new(Preset::Requeue).force())
        }),
        (Action::Delete, "delete", |row| delete(row).map(|()| row.clone())),
    ]
}

/// One line a state: what each event makes of it; a refusal is its code in brackets.
const EXPECTED: &str = "\
pending: claim running | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again (live) | cancel cancelled | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
pending, later: claim (not_found) | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again (live) | cancel cancelled | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
pending, spent: claim failed attempts_exhausted | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again (live) | cancel cancelled | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
pending, owed a cancel: claim cancelled | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again (live) | cancel cancelled | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running: claim (not_found) | complete completed | fail pending | fail terminal failed terminal | fail unrecoverable failed unrecoverable | defer pending | yield pending | interrupt pending | snooze pending | release pending | stopped cancelled | lost pending | lost, parking kind failed orphaned | renew running | save running | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running, last attempt: claim (not_found) | complete completed | fail failed attempts_exhausted | fail terminal failed terminal | fail unrecoverable failed unrecoverable | defer pending | yield pending | interrupt pending | snooze pending | release pending | stopped cancelled | lost failed attempts_exhausted | lost, parking kind failed attempts_exhausted | renew running | save running | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running, saved: claim (not_found) | complete completed | fail pending | fail terminal failed terminal | fail unrecoverable failed unrecoverable | defer pending | yield pending | interrupt pending | snooze pending | release pending | stopped cancelled | lost pending | lost, parking kind failed orphaned | renew running | save running | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running, stalled: claim (not_found) | complete completed | fail pending | fail terminal failed terminal | fail unrecoverable failed unrecoverable | defer pending | yield failed poison | interrupt pending | snooze pending | release pending | stopped cancelled | lost failed poison | lost, parking kind failed orphaned | renew running | save running | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running, ahead: claim (not_found) | complete completed | fail pending | fail terminal failed terminal | fail unrecoverable failed unrecoverable | defer pending | yield pending | interrupt pending | snooze pending | release pending | stopped cancelled | lost pending | lost, parking kind pending | renew running | save running | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running, asked to stop: claim (not_found) | complete completed | fail cancelled | fail terminal cancelled | fail unrecoverable cancelled | defer cancelled | yield cancelled | interrupt cancelled | snooze cancelled | release cancelled | stopped cancelled | lost cancelled | lost, parking kind cancelled | renew running | save running | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running, limited often: claim (not_found) | complete completed | fail pending | fail terminal failed terminal | fail unrecoverable failed unrecoverable | defer failed rate_limit_exhausted | yield pending | interrupt pending | snooze pending | release pending | stopped cancelled | lost pending | lost, parking kind failed orphaned | renew running | save running | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
running, owed an ending: claim (not_found) | complete (superseded) | fail (superseded) | fail terminal (superseded) | fail unrecoverable (superseded) | defer (superseded) | yield (superseded) | interrupt (superseded) | snooze (superseded) | release (superseded) | stopped (superseded) | lost failed poison | lost, parking kind failed poison | renew (superseded) | save (superseded) | run again (live) | cancel running | redrive (live) | redrive, forced (live) | redrive, finished (live) | requeue, forced (live) | delete (live)
completed: claim (not_found) | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again completed | cancel (terminal) | redrive (not_redrivable) | redrive, forced (not_redrivable) | redrive, finished pending | requeue, forced (not_redrivable) | delete completed
failed: claim (not_found) | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again failed attempts_exhausted | cancel (terminal) | redrive pending | redrive, forced pending | redrive, finished pending | requeue, forced pending | delete failed attempts_exhausted
failed, unrecoverable: claim (not_found) | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again failed unrecoverable | cancel (terminal) | redrive (needs_force) | redrive, forced pending | redrive, finished (needs_force) | requeue, forced pending | delete failed unrecoverable
cancelled: claim (not_found) | complete (not_running) | fail (not_running) | fail terminal (not_running) | fail unrecoverable (not_running) | defer (not_running) | yield (not_running) | interrupt (not_running) | snooze (not_running) | release (not_running) | stopped (not_running) | lost (not_running) | lost, parking kind (not_running) | renew (not_running) | save (not_running) | run again cancelled | cancel (terminal) | redrive pending | redrive, forced pending | redrive, finished pending | requeue, forced pending | delete cancelled
";

#[test]
fn every_state_with_every_event_comes_to_what_the_table_says() {
    let mut table = String::new();
    for (name, row) in states() {
        let mut cells = Vec::new();
        for (_, event, apply) in events() {
            cells.push(match apply(&row) {
                Ok(new) => match new.detail.verdict.filter(|_| new.status == Status::Failed) {
                    Some(verdict) => format!("{event} {} {verdict}", new.status),
                    None => format!("{event} {}", new.status),
                },
                Err(refusal) => format!("{event} ({})", refusal.code()),
            });
        }
        writeln!(table, "{name}: {}", cells.join(" | ")).unwrap();
    }
    for (line, expected) in table.lines().zip(EXPECTED.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(table.lines().count(), EXPECTED.lines().count());
}

#[test]
fn whatever_comes_the_row_keeps_the_promises() {
    for (name, row) in states() {
        for (_, event, apply) in events() {
            let Ok(new) = apply(&row) else { continue };
            let what = format!("{name}, {event}");
            assert!(new.epoch >= row.epoch, "{what}: an epoch never goes back");
            assert_eq!(new.status.is_live(), new.finished_at.is_none(), "{what}");
            assert!(new.status == Status::Running || new.token.is_none(), "{what}");
            assert!(new.status == Status::Running || new.lease_until.is_none(), "{what}");
            assert!(!new.status.is_live() || new.settled_epoch.is_none(), "{what}");
            assert!((0..=new.max_attempts).contains(&new.attempts), "{what}");
            assert_eq!((new.key, &new.id), (row.key, &row.id), "{what}");
            assert_eq!((&new.kind, &new.queue), (&row.kind, &row.queue), "{what}");
            assert_eq!((new.created_at, new.priority), (row.created_at, row.priority), "{what}");
            let parked = new.detail.parked_at.is_some();
            assert!(!parked || new.status == Status::Failed, "{what}");
            let verdict = new.detail.verdict.is_some();
            assert!(new.status != Status::Failed || verdict, "{what}: a failure has a verdict");
            let claimed = row.status == Status::Pending && new.status == Status::Running;
            assert!(!claimed || (new.epoch == row.epoch + 1 && new.token.is_some()), "{what}");
        }
    }
}

#[test]
fn a_settle_is_repeated_only_by_the_attempt_that_made_it_and_in_the_same_way() {
    let mark = WriteMark::new(&TOKEN, 3);
    for (name, row) in states().into_iter().filter(|(_, row)| row.settled_epoch.is_some()) {
        let row = Row { last_write: mark, ..row };
        let other = Holder { token: [9; 16], epoch: 1 };
        for (how, same) in [
            (Settle::Complete(None), Status::Completed),
            (failure(ErrorClass::Transient), Status::Failed),
            (Settle::Cancelled, Status::Cancelled),
        ] {
            assert_eq!(is_repeat(&row, &holder(), &how), row.status == same, "{name}");
            assert!(!is_repeat(&row, &other, &how), "{name}: another attempt");
        }
        assert!(!is_repeat(&row, &holder(), &Settle::Release), "{name}");
    }
}

fn state(row: &Row) -> State {
    State::of(row.status, row.detail.verdict)
}

#[test]
fn the_table_of_what_can_be_done_when_says_what_the_rules_do() {
    let mut seen: Vec<(State, Action, Status)> = Vec::new();
    for (name, row) in states() {
        for (action, event, apply) in events() {
            let what = format!("{name}, {event}");
            match (allowed(state(&row), action), apply(&row)) {
                (Allowed::To(after) | Allowed::With(_, after), Ok(new)) => {
                    assert!(after.contains(&new.status), "{what}: {}", new.status);
                    seen.push((state(&row), action, new.status));
                }
                (Allowed::Gone, answer) => assert!(answer.is_ok(), "{what}"),
                (Allowed::Refused(code), Err(refusal)) => {
                    assert_eq!(refusal.code(), code, "{what}");
                }
                (Allowed::With("force", _), Err(refusal)) => {
                    assert_eq!(refusal.code(), "needs_force", "{what}");
                }
                (Allowed::With(..), Err(refusal)) => {
                    assert_eq!(refusal.code(), "not_redrivable", "{what}");
                }
                (Allowed::PassesBy, answer) => assert!(answer.is_err(), "{what}"),
                // What the state allows, the time or the lease may still refuse.
                (Allowed::To(_), Err(refusal)) => assert!(
                    matches!(refusal.code(), "superseded" | "expired" | "not_found"),
                    "{what}: {refusal}"
                ),
                (allowed, answer) => panic!("{what}: {allowed:?}, and {answer:?}"),
            }
        }
    }
    for state in State::ALL {
        for action in Action::ALL {
            if let Allowed::To(after) | Allowed::With(_, after) = allowed(*state, *action) {
                for status in after {
                    let met = seen.contains(&(*state, *action, *status));
                    assert!(met, "nothing that is {state} becomes {status} by {action}");
                }
            }
        }
    }
}

/// The table as the documentation shows it.
fn in_words() -> String {
    let mut text = String::from("| |");
    for state in State::ALL {
        write!(text, " {state} |").unwrap();
    }
    write!(text, "\n|---|{}\n", "---|".repeat(State::ALL.len())).unwrap();
    for action in Action::ALL {
        write!(text, "| `{action}` |").unwrap();
        for state in State::ALL {
            let words = |after: &[Status]| {
                after.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ")
            };
            let cell = match allowed(*state, *action) {
                Allowed::To(after) => words(after),
                Allowed::With(option, after) => format!("with `{option}`: {}", words(after)),
                Allowed::Gone => "(gone)".to_owned(),
                Allowed::Refused(code) => format!("`{code}`"),
                Allowed::PassesBy => "-".to_owned(),
            };
            write!(text, " {cell} |").unwrap();
        }
        text.push('\n');
    }
    text
}

/// Prints the table into the documentation where `LEASEHOLD_WRITE_DOCS` is set.
#[test]
fn the_documentation_shows_the_table_of_what_can_be_done_when() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/SEMANTICS.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- table: what can be done when -->\n", "<!-- end of the table -->");
    let from = document.find(begin).expect("the table begins") + begin.len();
    let to = from + document[from..].find(end).expect("the table ends");
    if std::env::var_os("LEASEHOLD_WRITE_DOCS").is_some() {
        let document = format!("{}{}{}", &document[..from], in_words(), &document[to..]);
        return std::fs::write(path, document).unwrap();
    }
    let way_out = "run the tests once with LEASEHOLD_WRITE_DOCS=1";
    assert_eq!(document[from..to], in_words(), "{way_out}");
}
