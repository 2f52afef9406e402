//! One job: what the file knows of it, and what was heard of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::rusqlite::{self, Connection};
use leasehold::{Attempt, AttemptOutcome, Client, Status};

use crate::said::{Heard, Said};

/// A job's row.
pub struct Row {
    pub kind: String,
    /// What its payload says.
    pub n: i64,
    pub status: Status,
    pub epoch: i64,
    pub redrives: i64,
    pub settled_epoch: Option<i64>,
    /// The attempt that its result is of.
    pub result_of: Option<i64>,
    pub finished_at: Option<i64>,
    pub verdict: Option<String>,
    pub owner: Option<Arc<str>>,
}

/// A row that a fenced write has left.
pub struct Effect {
    pub piece: i64,
    pub epoch: i64,
    pub at: i64,
}

/// All that is known of a job.
#[derive(Default)]
pub struct Known<'h> {
    pub row: Option<Row>,
    history: Vec<Attempt>,
    /// In the order in which they were written.
    pub effects: Vec<Effect>,
    /// The endings that hooks wrote down, by status.
    pub endings: Vec<String>,
    pub orders: usize,
    pub heard: Vec<&'h Heard>,
}

/// What came after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Its holder was lost, and the job went back to wait.
    Rescue,
    Retry,
    HandBack,
    /// The job had ended, and an operator made it live again.
    Redrive,
    /// The job had ended.
    End,
}

/// How an attempt ended, by the file.
pub struct Ending {
    pub outcome: AttemptOutcome,
    pub owner: Option<Arc<str>>,
    pub at: i64,
    pub then: Then,
}

impl Known<'_> {
    pub fn is_acked(&self) -> bool {
        self.heard.iter().any(|heard| matches!(heard.said, Said::Queued { .. }))
    }

    pub fn is_cancelling(&self) -> bool {
        self.heard.iter().any(|heard| matches!(heard.said, Said::Cancelling { .. }))
    }

    /// The epochs of the attempts that were said to start.
    pub fn starts(&self) -> impl Iterator<Item = i64> {
        self.heard.iter().filter_map(|heard| match heard.said {
            Said::Started { epoch, .. } => Some(epoch),
            _ => None,
        })
    }

    /// The epochs with which the job had ended when an operator redrove it.
    pub fn redriven(&self) -> Vec<i64> {
        let redriven = self.heard.iter().filter_map(|heard| match heard.said {
            Said::Redriven { epoch, .. } => Some(epoch),
            _ => None,
        });
        redriven.collect()
    }

    /// Every attempt that the file knows of, by its epoch, and how it ended.
    ///
    /// The history has an entry for each, but for one that completed at the first try, which the
    /// row itself names. An entry without an owner is a late write that was refused. Further
    /// entries with an epoch are of the waiting job, as are those with the epoch that a rescue or a
    /// redrive gave it: no attempt has that, as a claim comes with one of its own.
    pub fn attempts(&self) -> BTreeMap<i64, Ending> {
        let (mut attempts, redriven) = (BTreeMap::new(), self.redriven());
        let Some(row) = &self.row else { return attempts };
        let mut waits_with = 0;
        for entry in self.history.iter().filter(|entry| entry.owner.is_some()) {
            if entry.epoch == waits_with || attempts.contains_key(&entry.epoch) {
                continue;
            }
            let then = match entry.outcome {
                _ if redriven.contains(&entry.epoch) => Then::Redrive,
                AttemptOutcome::Lost if row.epoch > entry.epoch => Then::Rescue,
                AttemptOutcome::Retried => Then::Retry,
                AttemptOutcome::Yielded
                | AttemptOutcome::Interrupted
                | AttemptOutcome::Snoozed
                | AttemptOutcome::Released
                | AttemptOutcome::Deferred => Then::HandBack,
                _ => Then::End,
            };
            if matches!(then, Then::Rescue | Then::Redrive) {
                waits_with = entry.epoch + 1;
            }
            let (outcome, owner, at) = (entry.outcome, entry.owner.clone(), entry.ended_at);
            attempts.insert(entry.epoch, Ending { outcome, owner, at, then });
        }
        if let (Some(epoch), Some(at)) = (row.settled_epoch, row.finished_at) {
            attempts.entry(epoch).or_insert(Ending {
                outcome: AttemptOutcome::Completed,
                owner: None,
                at,
                then: Then::End,
            });
        }
        attempts
    }
}

/// Reads the file, and puts what was heard to it.
pub async fn all<'h>(
    db: &std::path::Path,
    heard: &'h [Heard],
) -> anyhow::Result<BTreeMap<String, Known<'h>>> {
    let mut jobs: BTreeMap<String, Known<'h>> = BTreeMap::new();
    for heard in heard {
        if let Some(job) = heard.said.job() {
            jobs.entry(job.to_owned()).or_default().heard.push(heard);
        }
    }
    let conn = Connection::open(db)?;
    let sql = "SELECT id, kind, json_extract(payload, '$.n'), status, epoch, redrives, \
        settled_epoch, json_extract(result, '$.epoch'), finished_at, verdict, owner FROM \
        leasehold_jobs";
    each(&conn, sql, |row| {
        jobs.entry(row.get(0)?).or_default().row = Some(read(row)?);
        Ok(())
    })?;
    each(&conn, "SELECT job, piece, epoch, at FROM effects ORDER BY rowid", |row| {
        let effect = Effect { piece: row.get(1)?, epoch: row.get(2)?, at: row.get(3)? };
        jobs.entry(row.get(0)?).or_default().effects.push(effect);
        Ok(())
    })?;
    each(&conn, "SELECT job, status FROM endings ORDER BY rowid", |row| {
        jobs.entry(row.get(0)?).or_default().endings.push(row.get(1)?);
        Ok(())
    })?;
    each(&conn, "SELECT job FROM orders", |row| {
        jobs.entry(row.get(0)?).or_default().orders += 1;
        Ok(())
    })?;
    let client = Client::open(db).await?;
    for (id, job) in jobs.iter_mut().filter(|(_, job)| job.row.is_some()) {
        job.history = client.attempts(id.as_str()).await?;
    }
    Ok(jobs)
}

fn each(
    conn: &Connection,
    sql: &str,
    mut take: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let status: String = row.get(3)?;
    Ok(Row {
        kind: row.get(1)?,
        n: row.get(2)?,
        status: Status::parse(&status).ok_or(rusqlite::Error::InvalidQuery)?,
        epoch: row.get(4)?,
        redrives: row.get(5)?,
        settled_epoch: row.get(6)?,
        result_of: row.get(7)?,
        finished_at: row.get(8)?,
        verdict: row.get(9)?,
        owner: row.get(10)?,
    })
}
