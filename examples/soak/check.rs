//! Compares what was acknowledged with what is in the file.
//!
//! Every repeat is accounted for, job by job. A claim raises the epoch, and so does each time that
//! a job is taken from a lost holder or redriven, which the row counts in `redrives`. So
//!
//! ```text
//! attempts of a job = epoch - redrives
//! ```
//!
//! Each attempt ended in one way, by the history, and each but the last went back to wait: it was
//! rescued, it failed and is tried again, it handed back, or an operator redrove it. The last one
//! ended the job, unless the job was cancelled while it waited for the next: then what sent it back
//! explains no repeat, and is left out. So
//!
//! ```text
//! attempts - jobs that were ever claimed = rescues + retries + yields + redrives
//! ```
//!
//! On the other side is what was heard. Each attempt was said to start, once, or it has no line and
//! was lost by a process that was killed: between the claim's commit and the handler's first line.
//! `repeats` is counted on this side, `rescues` and `retries` on the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold::{AttemptOutcome, Status, What};

use crate::drive::{Killed, Plan, Run};
use crate::figures::Figures;
use crate::job::{self, Ending, Known, Row, Then};
use crate::kinds;
use crate::said::{ByHand, Said};

/// The longest time in which 99 of 100 rescues must be done.
const SOON: u128 = 1_000;

/// The processes that ran jobs.
struct Processes {
    /// The names of their runtimes.
    owners: BTreeMap<Arc<str>, u32>,
    killed: BTreeMap<u32, Killed>,
    /// Names that nobody has said: of processes that were killed before they could.
    unsaid: BTreeSet<Arc<str>>,
}

impl Processes {
    /// The worker with this name, where it was killed.
    fn killed(&self, owner: Option<&Arc<str>>) -> Option<(u32, &Killed)> {
        let number = self.owners.get(owner?)?;
        Some((*number, self.killed.get(number)?))
    }
}

/// What is being compared, and what came of it.
struct Check {
    processes: Processes,
    figures: Figures,
    findings: Vec<String>,
    rescues: Vec<Duration>,
    took: Duration,
}

#[tokio::main(flavor = "current_thread")]
pub async fn compare(plan: &Plan, run: Run) -> anyhow::Result<(Figures, Vec<String>)> {
    let jobs = job::all(&plan.db, &run.heard).await?;
    let owners = run.heard.iter().filter_map(|heard| match &heard.said {
        Said::Ready { owner } => Some((Arc::from(&**owner), heard.by)),
        _ => None,
    });
    let figures = Figures {
        processes: plan.processes,
        kills: u32::try_from(run.killed.len())?,
        stuck: run.stuck,
        seconds: (run.took.as_secs_f64() * 10.0).round() / 10.0,
        seed: plan.seed,
        ..Figures::default()
    };
    let processes =
        Processes { owners: owners.collect(), killed: run.killed, unsaid: BTreeSet::new() };
    let (findings, rescues, took) = (Vec::new(), Vec::new(), run.took);
    let mut check = Check { processes, figures, findings, rescues, took };
    for (id, job) in &jobs {
        check.job(id, job);
    }
    check.end();
    Ok((check.figures, check.findings))
}

impl Check {
    fn find(&mut self, id: &str, what: impl std::fmt::Display) {
        self.findings.push(format!("job {id}: {what}"));
    }

    fn job(&mut self, id: &str, job: &Known<'_>) {
        let attempts = job.attempts();
        let acked = job.heard.iter().filter(|heard| matches!(heard.said, Said::Queued { .. }));
        self.figures.acked += acked.count() as u64;
        self.figures.jobs += u64::from(job.row.is_some());
        if let Some(what) = lost(job, &attempts) {
            self.figures.lost += 1;
            self.find(id, format_args!("lost: {what}"));
        }
        if let Some(what) = doubled(job) {
            self.figures.double_settled += 1;
            self.find(id, format_args!("settled twice: {what}"));
        }
        for what in stale(job, &attempts) {
            self.figures.stale_accepted += 1;
            self.find(id, format_args!("a stale write was accepted: {what}"));
        }
        let refused = |said: &Said| matches!(said, Said::ByHand { write: ByHand::Refused, .. });
        let refused = job.heard.iter().filter(|heard| refused(&heard.said)).count();
        self.figures.stale_refused += refused as u64;
        if let Some(row) = job.row.as_ref().filter(|row| !row.status.is_live()) {
            self.account(id, job, row, &attempts);
        }
        self.time(job, &attempts);
    }

    /// Accounts for every attempt of a job that has ended.
    fn account(&mut self, id: &str, job: &Known<'_>, row: &Row, attempts: &BTreeMap<i64, Ending>) {
        let mut unexplained = Vec::new();
        let granted = row.epoch - row.redrives;
        let known = attempts.len();
        if i64::try_from(known) != Ok(granted) {
            unexplained.push(format!("claimed {granted} times, with {known} known attempts"));
        }
        let mut said = BTreeSet::new();
        for epoch in job.starts() {
            if !attempts.contains_key(&epoch) {
                unexplained.push(format!("attempt {epoch} started, and was never claimed"));
            }
            if !said.insert(epoch) {
                unexplained.push(format!("attempt {epoch} started twice"));
            }
        }
        let mut unsaid = 0;
        for (epoch, ending) in attempts.iter().filter(|(epoch, _)| !said.contains(epoch)) {
            unsaid += 1;
            if !self.is_explained(ending) {
                unexplained.push(format!("attempt {epoch} never started, and nobody was killed"));
            }
        }
        for (epoch, ending) in attempts {
            if ending.outcome == AttemptOutcome::Lost && !self.is_explained(ending) {
                unexplained.push(format!("attempt {epoch} was taken from a living process"));
            }
        }
        let mut then: Vec<_> = attempts.values().map(|ending| ending.then).collect();
        let of = |then: &[Then], what| then.iter().filter(|then| **then == what).count();
        let back = of(&then, Then::Rescue) + of(&then, Then::Redrive);
        if i64::try_from(back) != Ok(row.redrives) {
            unexplained.push(format!("{} redrives, by its history {then:?}", row.redrives));
        }
        let last = then.pop().unwrap_or(Then::End);
        let waited = row.status == Status::Cancelled && row.settled_epoch.is_none();
        if then.contains(&Then::End) || (last != Then::End && !waited) {
            unexplained.push(format!("ended as {}, by its history {then:?} {last:?}", row.status));
        }
        let (yields, redriven) = (of(&then, Then::HandBack), of(&then, Then::Redrive));
        let figures = &mut self.figures;
        figures.starts += said.len() as u64;
        figures.unsaid += unsaid;
        figures.yields += yields as u64;
        figures.redriven += redriven as u64;
        figures.rescues += of(&then, Then::Rescue) as u64;
        figures.retries += of(&then, Then::Retry) as u64;
        let beyond = (said.len() as u64 + unsaid).saturating_sub(1);
        figures.repeats += beyond.saturating_sub((yields + redriven) as u64);
        figures.unexplained_repeats += unexplained.len() as u64;
        for what in unexplained {
            self.find(id, format_args!("unexplained: {what}"));
        }
    }

    /// Whether the holder of a lost attempt was killed before the job was taken from it, or holds
    /// its jobs by hand.
    fn is_explained(&mut self, ending: &Ending) -> bool {
        let Some(owner) = &ending.owner else { return false };
        let lost = matches!(ending.outcome, AttemptOutcome::Lost | AttemptOutcome::Cancelled);
        if !lost || owner.starts_with("by hand") {
            return lost;
        }
        if !self.processes.owners.contains_key(owner) {
            self.processes.unsaid.insert(owner.clone());
            return true;
        }
        self.processes.killed(Some(owner)).is_some_and(|(_, killed)| ending.at >= killed.asked)
    }

    /// Takes the time from a kill to when it was heard that the job is taken back, or has ended.
    /// Where whoever did that was killed before it could say so, the file says when.
    fn time(&mut self, job: &Known<'_>, attempts: &BTreeMap<i64, Ending>) {
        let held = job.row.as_ref().filter(|row| row.status == Status::Running);
        if let Some((_, killed)) = self.processes.killed(held.and_then(|row| row.owner.as_ref())) {
            // It has not been taken back at all.
            self.rescues.push(self.took.saturating_sub(killed.dead));
        }
        for (epoch, ending) in attempts {
            let Some((worker, killed)) = self.processes.killed(ending.owner.as_ref()) else {
                continue;
            };
            let lost = match ending.outcome {
                AttemptOutcome::Lost => true,
                AttemptOutcome::Cancelled => ending.at >= killed.asked,
                _ => false,
            };
            if !lost {
                continue;
            }
            let by_others = job.heard.iter().filter(|heard| heard.by != worker);
            let told =
                |said: &Said| matches!(said, Said::Told { epoch: told, .. } if told == epoch);
            let heard = by_others.filter(|heard| told(&heard.said)).map(|heard| heard.at).min();
            let by_the_file = ending.at.saturating_sub(killed.dead_utc);
            self.rescues.push(match heard {
                Some(at) => at.saturating_sub(killed.dead),
                None => Duration::from_millis(u64::try_from(by_the_file).unwrap_or_default()),
            });
        }
    }

    /// What concerns all jobs together.
    fn end(&mut self) {
        let (said, processes) =
            (self.processes.owners.values().collect::<BTreeSet<_>>(), &self.processes);
        let silent = processes.killed.keys().filter(|number| !said.contains(number)).count();
        let unknown = processes.unsaid.len();
        let figures = &mut self.figures;
        if unknown > silent {
            figures.unexplained_repeats += (unknown - silent) as u64;
            let found = format!("{unknown} runtimes that nobody knows, {silent} silent processes");
            self.findings.push(found);
        }
        if figures.repeats != figures.rescues + figures.retries {
            figures.unexplained_repeats += 1;
            self.findings.push("the repeats are not the rescues and the retries".to_owned());
        }
        if figures.stuck > 0 {
            self.findings.push(format!("{} jobs are stuck", figures.stuck));
        }
        figures.time(std::mem::take(&mut self.rescues));
        if figures.rescue_p99_ms >= SOON {
            let found = format!("rescues take {} ms, {SOON} ms are allowed", figures.rescue_p99_ms);
            self.findings.push(found);
        }
    }
}

/// What was acknowledged and is not in the file, or ended as nobody asked for.
fn lost(job: &Known<'_>, attempts: &BTreeMap<i64, Ending>) -> Option<String> {
    let Some(row) = &job.row else {
        let known = job.is_acked() || job.orders > 0;
        return known.then(|| "it was enqueued, and has no row".to_owned());
    };
    if row.kind == kinds::ORDER && job.orders == 0 {
        return Some("its order is not there".to_owned());
    }
    let as_asked = match row.status {
        Status::Pending | Status::Running => return Some(format!("it is {} still", row.status)),
        Status::Completed => !kinds::is_doomed(&row.kind),
        Status::Failed => kinds::is_doomed(&row.kind),
        Status::Cancelled => job.is_cancelling(),
    };
    if !as_asked {
        return Some(format!("it ended as {} {:?}, unasked", row.status, row.verdict));
    }
    if let Some(pieces) = kinds::pieces(&row.kind, row.n)
        && row.status == Status::Completed
        && let Some(piece) =
            (0..pieces).find(|n| !job.effects.iter().any(|effect| effect.piece == *n))
    {
        return Some(format!("it completed without its piece {piece}"));
    }
    let redriven = job.redriven();
    job.heard.iter().find_map(|heard| match &heard.said {
        Said::Wrote { epoch, piece, .. } => {
            let mut effects = job.effects.iter();
            let there = effects.any(|effect| (effect.epoch, effect.piece) == (*epoch, *piece));
            (!there).then(|| format!("piece {piece} of attempt {epoch} is not there"))
        }
        Said::Told { epoch, what: What::Settled, outcome, .. } => {
            let found = attempts.get(epoch).map(|ending| ending.outcome);
            (found != *outcome).then(|| format!("attempt {epoch} ended {outcome:?}, now {found:?}"))
        }
        Said::Told { epoch, status, .. } if !status.is_live() => {
            let again = redriven.iter().any(|redriven| redriven >= epoch);
            (row.status != *status && !again)
                .then(|| format!("it had ended as {status}, and is {}", row.status))
        }
        _ => None,
    })
}

/// What landed more than once.
fn doubled(job: &Known<'_>) -> Option<String> {
    let lives = 1 + job.redriven().len();
    let ended = job.heard.iter().filter(|heard| match &heard.said {
        Said::Told { status, .. } => !status.is_live(),
        _ => false,
    });
    let ended = ended.count();
    if ended > lives {
        return Some(format!("it ended {ended} times"));
    }
    let hooked = job.endings.iter().filter(|status| *status != "redriven").count();
    let mirrored =
        job.row.as_ref().is_some_and(|row| row.kind == kinds::MIRRORED && !row.status.is_live());
    if hooked != if mirrored { lives } else { 0 } {
        return Some(format!("its hook wrote down {:?}", job.endings));
    }
    if job.orders > 1 {
        return Some(format!("there are {} orders of it", job.orders));
    }
    let mut pieces = BTreeSet::new();
    let twice = job.effects.iter().find(|effect| !pieces.insert(effect.piece))?;
    Some(format!("piece {} is there twice", twice.piece))
}

/// Writes of attempts that did not hold the job any more.
fn stale(job: &Known<'_>, attempts: &BTreeMap<i64, Ending>) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(row) = &job.row
        && row.status == Status::Completed
        && row.result_of != row.settled_epoch
    {
        let (result, settled) = (row.result_of, row.settled_epoch);
        found.push(format!("the result is of attempt {result:?}, the end of {settled:?}"));
    }
    let mut newest = 0;
    for effect in &job.effects {
        let ended = match attempts.get(&effect.epoch) {
            Some(ending) => effect.at > ending.at,
            None => job.row.as_ref().is_none_or(|row| row.epoch != effect.epoch),
        };
        if ended || effect.epoch < newest {
            found.push(format!("piece {} of attempt {}", effect.piece, effect.epoch));
        }
        newest = newest.max(effect.epoch);
    }
    for heard in &job.heard {
        let Said::ByHand { epoch, asked, write, .. } = &heard.said else { continue };
        let Some(ending) = attempts.get(epoch) else { continue };
        let stale = match write {
            ByHand::Refused => false,
            ByHand::Saved => ending.at < *asked,
            ByHand::Settled(status) => match status {
                Status::Pending => !matches!(ending.then, Then::Retry | Then::HandBack),
                Status::Completed => ending.outcome != AttemptOutcome::Completed,
                Status::Cancelled => ending.outcome != AttemptOutcome::Cancelled,
                Status::Running | Status::Failed => true,
            },
        };
        if stale {
            found.push(format!("attempt {epoch}, by hand: {write:?}"));
        }
    }
    found
}
