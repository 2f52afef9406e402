//! The judge: what is in the database, held against what was seen to happen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use leasehold::rusqlite::Connection;

use super::history::{Asked, End, Figures, History, Start};
use super::job::{SHORT_TIMEOUT, TIMEOUT};

/// A job as it is at the end.
struct Row {
    id: String,
    n: u64,
    kind: String,
    status: String,
    redrives: i64,
    settled_epoch: Option<i64>,
    result: Option<String>,
    hook_failures: i64,
}

/// What was found, under the heading it counts under.
struct Verdict<'h> {
    history: &'h History,
    figures: Figures,
    broken: Vec<String>,
}

/// Judges a schedule.
pub fn judge(history: &History, conn: &Connection) -> anyhow::Result<(Figures, Vec<String>)> {
    let rows = rows(conn)?;
    let mut verdict = Verdict { history, figures: Figures::default(), broken: Vec::new() };
    verdict.figures.schedules = 1;
    verdict.figures.jobs = rows.len() as u64;
    verdict.jobs(&rows);
    for row in &rows {
        verdict.repeats(row);
        verdict.settlement(row);
    }
    verdict.effects(conn)?;
    verdict.endings(conn, &rows)?;
    let redriven: usize = history.redrives.keys().map(|id| history.redriven(id).count()).sum();
    let lives: i64 = rows.iter().map(|row| row.redrives).sum();
    verdict.figures.rescues = lives.unsigned_abs().saturating_sub(redriven as u64);
    Ok((verdict.figures, verdict.broken))
}

fn rows(conn: &Connection) -> anyhow::Result<Vec<Row>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, payload, kind, status, redrives, settled_epoch, result, hook_failures \
         FROM leasehold_jobs ORDER BY id",
    )?;
    let mut found = statement.query([])?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let n: String = row.get(1)?;
        rows.push(Row {
            id: row.get(0)?,
            n: n.parse()?,
            kind: row.get(2)?,
            status: row.get(3)?,
            redrives: row.get(4)?,
            settled_epoch: row.get(5)?,
            result: row.get(6)?,
            hook_failures: row.get(7)?,
        });
    }
    Ok(rows)
}

impl Verdict<'_> {
    fn lost(&mut self, what: impl Display) {
        self.figures.lost += 1;
        self.broken.push(format!("lost: {what}"));
    }

    fn double(&mut self, what: impl Display) {
        self.figures.double_settled += 1;
        self.broken.push(format!("double settled: {what}"));
    }

    fn stale(&mut self, what: impl Display) {
        self.figures.stale_accepted += 1;
        self.broken.push(format!("stale accepted: {what}"));
    }

    fn unexplained(&mut self, what: impl Display) {
        self.figures.unexplained_repeats += 1;
        self.broken.push(format!("unexplained repeat: {what}"));
    }

    /// Every acknowledged job is there, once, and ended; nothing is there that nobody asked for.
    fn jobs(&mut self, rows: &[Row]) {
        let mut seen = BTreeSet::new();
        for row in rows {
            if !seen.insert(row.n) {
                self.double(format_args!("job {} is there twice", row.n));
            }
            match self.history.asked.get(&row.n) {
                Some(Asked::Acked | Asked::Unknown) => {}
                other => self.lost(format_args!("{} is there, asked for as {other:?}", row.id)),
            }
            if row.status == "pending" || row.status == "running" {
                self.figures.stuck += 1;
                self.broken.push(format!("stuck: {} is {}", row.id, row.status));
            }
        }
        for (n, asked) in &self.history.asked {
            if *asked == Asked::Acked {
                self.figures.acked += 1;
                if !seen.contains(n) {
                    self.lost(format_args!("job {n} was acknowledged and is not there"));
                }
            }
        }
    }

    /// Every start but the first has a reason.
    fn repeats(&mut self, row: &Row) {
        let none = Vec::new();
        let mut starts = self.history.starts.get(&row.id).unwrap_or(&none).clone();
        starts.sort_by_key(|start| start.epoch);
        self.figures.starts += starts.len() as u64;
        self.cancelled(row, &starts);
        for pair in starts.windows(2) {
            self.figures.repeats += 1;
            if let Err(why) = self.reason(row, &pair[0], &pair[1]) {
                let (before, next) = (&pair[0], &pair[1]);
                self.unexplained(format_args!("{}: {before:?}, then {next:?}: {why}", row.id));
            }
        }
    }

    /// What was cancelled is not started again; a start that was under way may still come.
    fn cancelled(&mut self, row: &Row, starts: &[Start]) {
        let cancels = self.history.cancels.get(&row.id).into_iter().flatten();
        for (at, running) in cancels {
            let later = starts.iter().filter(|start| start.at > *at).count();
            if later > usize::from(*running) && self.history.redriven(&row.id).next().is_none() {
                self.unexplained(format_args!("{} was cancelled at {at}: {starts:?}", row.id));
            }
        }
    }

    fn reason(&self, row: &Row, before: &Start, next: &Start) -> Result<(), &'static str> {
        if before.epoch == next.epoch {
            return Err("the same attempt was started twice");
        }
        let within = |(from, to)| from <= next.at && before.at <= to;
        let redriven = self.history.redriven(&row.id).any(within);
        let troubled = self.history.troubles.iter().any(|trouble| {
            trouble.process == before.process && trouble.from <= next.at && trouble.to >= before.at
        });
        let limit = if row.kind == "slow" { SHORT_TIMEOUT } else { TIMEOUT };
        // A hook that refused a completion made it a failure.
        let refused = row.kind == "hooked" && row.hook_failures > 0 || redriven;
        match before.end.filter(|end| end.0 <= next.at) {
            Some((_, End::Failed | End::HandedBack)) => Ok(()),
            Some((_, End::Done | End::Over)) if redriven || troubled || refused => Ok(()),
            Some((_, End::Done)) => Err("it was done"),
            Some((_, End::Over)) => Err("it was over"),
            _ if troubled => Ok(()),
            Some((_, End::Dropped)) if next.at - before.at >= limit => Ok(()),
            Some((_, End::Dropped)) => Err("nothing was wrong with its process"),
            None => Err("it was still running, and nothing was wrong with its process"),
        }
    }

    /// A completion is that of an attempt which was done, and lands once for each life.
    fn settlement(&mut self, row: &Row) {
        let none = Vec::new();
        let starts = self.history.starts.get(&row.id).unwrap_or(&none);
        if row.status == "completed" {
            let settled = row.settled_epoch.map(|epoch| epoch.to_string());
            let done = |start: &&Start| {
                Some(start.epoch) == row.settled_epoch
                    && start.end.is_some_and(|end| end.1 == End::Done)
            };
            if !starts.iter().any(|start| done(&start)) {
                self.stale(format_args!(
                    "{} was settled by {settled:?}, which was not done",
                    row.id
                ));
            } else if row.result.is_some() && row.result != settled {
                self.stale(format_args!(
                    "{} was settled by {settled:?}, not {:?}",
                    row.id, row.result
                ));
            }
        }
        let heard = self.history.settled.get(&row.id).map_or(0, Vec::len);
        let lives = 1 + self.history.redriven(&row.id).count();
        self.figures.acked += heard as u64;
        if heard > lives {
            self.double(format_args!("{} completed {heard} times in {lives} lives", row.id));
        }
    }

    /// An effect is there if it was acknowledged, once, and only of who held the job.
    fn effects(&mut self, conn: &Connection) -> anyhow::Result<()> {
        let mut statement = conn.prepare_cached("SELECT job, tag, epoch, held FROM effects")?;
        let mut found = statement.query([])?;
        let mut seen = BTreeSet::new();
        while let Some(row) = found.next()? {
            let key: (String, String) = (row.get(0)?, row.get(1)?);
            let (epoch, held): (i64, Option<i64>) = (row.get(2)?, row.get(3)?);
            if held != Some(epoch) {
                self.stale(format_args!("{key:?} was written while {held:?} held the job"));
            }
            if self.history.refused.contains(&key) {
                self.stale(format_args!("{key:?} was refused and is there"));
            }
            if !seen.insert(key.clone()) {
                self.double(format_args!("{key:?} was written twice"));
            }
        }
        self.figures.acked += self.history.acked.len() as u64;
        for key in self.history.acked.difference(&seen).cloned().collect::<Vec<_>>() {
            self.lost(format_args!("{key:?} was acknowledged and is not there"));
        }
        Ok(())
    }

    /// The application's own rows tell the same story: one end for each life.
    fn endings(&mut self, conn: &Connection, rows: &[Row]) -> anyhow::Result<()> {
        let mut statement =
            conn.prepare_cached("SELECT job, status FROM endings ORDER BY rowid")?;
        let mut found = statement.query([])?;
        let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
        while let Some(row) = found.next()? {
            stories.entry(row.get(0)?).or_default().push(row.get(1)?);
        }
        for row in rows.iter().filter(|row| row.kind == "hooked") {
            let story = stories.remove(&row.id).unwrap_or_default();
            let alternates =
                story.iter().enumerate().all(|(n, status)| (n % 2 == 1) == (status == "redriven"));
            if !alternates {
                self.double(format_args!("the story of {} is {story:?}", row.id));
            } else if story.last() != Some(&row.status) {
                self.lost(format_args!("{} is {}, its story is {story:?}", row.id, row.status));
            }
        }
        Ok(())
    }
}
