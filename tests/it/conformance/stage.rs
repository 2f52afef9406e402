//! The store of a scenario while its steps go on, and the names that they have given.

use std::collections::HashMap;

use leasehold::testing::Bench;
use leasehold::{Error, JobId, Lease, Refusal};

use super::args::{Args, Stop};
use super::hooks::Told;
use super::value::Value;

/// What a step came to, if it came to anything.
pub type Ran = Result<Value, Stop>;

/// A scenario's store and its names.
pub struct Stage {
    pub bench: Bench,
    pub hooks: HashMap<String, Told>,
    jobs: Vec<(String, JobId)>,
    leases: HashMap<String, Lease>,
}

impl Stage {
    pub fn new(bench: Bench, hooks: HashMap<String, Told>) -> Self {
        Self { bench, hooks, jobs: Vec::new(), leases: HashMap::new() }
    }

    /// Gives a job a name; a name is given once, a job may have several.
    pub fn name_job(&mut self, name: &str, id: &JobId) -> Result<(), Stop> {
        if self.jobs.iter().any(|job| job.0 == name) {
            return Err(Stop::Broken(format!("a job is called {name:?} already")));
        }
        self.jobs.push((name.to_owned(), id.clone()));
        Ok(())
    }

    pub fn name_lease(&mut self, name: &str, lease: Lease) -> Result<(), Stop> {
        match self.leases.insert(name.to_owned(), lease) {
            Some(_) => Err(Stop::Broken(format!("a lease is called {name:?} already"))),
            None => Ok(()),
        }
    }

    /// The job that a word means: the one with that name, or else with that id.
    pub fn job(&self, word: &str) -> JobId {
        match self.jobs.iter().find(|job| job.0 == word) {
            Some((_, id)) => id.clone(),
            None => JobId::new(word),
        }
    }

    /// The job in a field of a verb's arguments.
    pub fn job_of(&self, args: &Args<'_>) -> Result<JobId, Stop> {
        let word = args.needed("job")?;
        let word = word.as_text().ok_or_else(|| Stop::Broken(format!("{word} is no job")))?;
        Ok(self.job(word))
    }

    /// A job as answers show it: by its first name, or else by its id.
    pub fn shown(&self, id: &JobId) -> Value {
        match self.jobs.iter().find(|job| job.1 == *id) {
            Some((name, _)) => Value::text(name),
            None => Value::text(id),
        }
    }

    pub fn lease(&self, name: &Value) -> Result<&Lease, Stop> {
        name.as_text()
            .and_then(|name| self.leases.get(name))
            .ok_or_else(|| Stop::Broken(format!("no lease is called {name}")))
    }

    /// An error of the crate: a refusal with its code, or trouble.
    pub fn stop(&self, error: Error) -> Stop {
        match error {
            Error::Refused(refusal) => Stop::Refused(self.refusal(&refusal)),
            other => Stop::Broken(format!("the store is in trouble: {other}")),
        }
    }

    /// A refusal as scenarios write it.
    pub fn refusal(&self, refusal: &Refusal) -> Value {
        let mut fields = vec![("code".to_owned(), Value::text(refusal.code()))];
        let mut add = |name: &str, value| fields.push((name.to_owned(), value));
        match refusal {
            Refusal::NotRunning { status, epoch }
            | Refusal::Terminal { status, epoch }
            | Refusal::Live { status, epoch, .. } => {
                add("status", Value::text(status));
                add("epoch", Value::number(epoch));
            }
            Refusal::Superseded { held_epoch, current_epoch, .. } => {
                add("held_epoch", Value::number(held_epoch));
                add("current_epoch", Value::number(current_epoch));
            }
            Refusal::EpochMoved { expected_epoch, current_epoch } => {
                add("expected_epoch", Value::number(expected_epoch));
                add("current_epoch", Value::number(current_epoch));
            }
            Refusal::Expired { by_ms } => add("by_ms", Value::number(by_ms)),
            Refusal::LockHeld { by } | Refusal::DedupHeld { by } => add("by", self.shown(by)),
            Refusal::UnknownReason { reason } => add("reason", Value::text(reason)),
            Refusal::Invalid { field, .. } => add("field", Value::text(field)),
            Refusal::HookFailed { error, failures } => {
                add("error", Value::text(error));
                add("failures", Value::number(failures));
            }
            Refusal::Unrepresentable { error } => {
                add("error", Value::text(error));
            }
            _ => {}
        }
        Value::Object(fields)
    }
}
