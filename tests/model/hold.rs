//! The commands of holders: renewals, settles, saves, fenced writes, and each of them once more.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{AttemptOutcome, ErrorClass, Failed, JobRecord, Json, Lease, Refusal, Status};

use super::app::{self, Answer, Code};
use super::compare::{No, Played, same};
use super::profile::Way;
use super::rules::{self, ANY, ERROR, End};
use super::stage::now;
use super::world::{Held, World};

/// A write of a holder that can be asked for again.
#[derive(Clone, Debug)]
pub enum Write {
    End(End),
    Checkpoint(&'static str, String),
    Progress(i64, Option<i64>),
    /// A fenced write, with a checkpoint or without.
    Fenced(Code, Option<String>),
}

fn ms(ms: i64) -> Duration {
    Duration::from_millis(ms.try_into().unwrap())
}

impl World<'_> {
    /// Takes a lease out of the history, to be put back.
    fn some_lease(&mut self) -> Option<Held> {
        let (n, late) = (self.leases.len(), self.rng.one_in(3));
        let holds = |held: &Held| self.jobs[held.job].holder == Some(held.serial);
        let at = if late { None } else { self.leases.iter().rposition(holds) };
        let back = self.rng.below(n.max(1));
        (n > 0).then(|| self.leases.remove(at.unwrap_or(n - 1 - back)))
    }

    pub fn renew(&mut self) -> Played {
        let Some(mut held) = self.some_lease() else { return Ok(()) };
        self.say(|| format!("renew j{} epoch {}", held.job, held.epoch));
        held.number += 1;
        let now = self.now;
        let expected = if let Some(refusal) = self.refusal(&held) {
            Err(refusal)
        } else {
            let job = &mut self.jobs[held.job];
            let record = job.record.as_mut().unwrap();
            let until = record.lease_until.unwrap_or(i64::MIN);
            if until <= now {
                Err(Refusal::Expired { by_ms: now - until })
            } else {
                rules::renewed(record, &self.facts[job.kind], now);
                Ok(record.lease_until.unwrap())
            }
        };
        let lease = held.lease.clone();
        // A write of another number was the last.
        held.last = None;
        self.leases.push(held);
        self.ask("the renewal", async move { lease.renew().await }, expected.map_err(No::Refused))
    }

    fn some_end(&mut self) -> End {
        let floor = self.rng.of(&[None, None, Some(0), Some(700), Some(400_000)]);
        match self.rng.of(&self.profile.ways) {
            Way::Done => End::Complete(self.rng.one_in(2).then(|| "[1]".to_owned())),
            Way::Retry => End::Fail(ErrorClass::Transient, floor),
            Way::RateLimited => {
                let floor = self.rng.of(&[None, Some(700), Some(60_000), Some(400_000)]);
                End::Fail(ErrorClass::RateLimited, floor)
            }
            Way::Terminal => End::Fail(ErrorClass::Terminal, floor),
            Way::Unrecoverable => End::Fail(ErrorClass::Unrecoverable, floor),
            Way::Yield => End::Yield,
            Way::Interrupt => End::Interrupt,
            Way::Snooze => End::Snooze(self.rng.between(0, 20_000)),
            Way::Release => End::Release,
            Way::Cancelled => End::Cancelled,
        }
    }

    pub fn settle(&mut self) -> Played {
        let Some(held) = self.some_lease() else { return Ok(()) };
        let write = Write::End(self.some_end());
        let times = if self.rng.one_in(5) { 2 } else { 1 };
        if times == 2 {
            // Another write of the same sort, with a number of its own.
            let serial = held.serial;
            self.write(held, write.clone(), false)?;
            let at = self.leases.iter().position(|held| held.serial == serial).unwrap();
            let held = self.leases.remove(at);
            return self.write(held, write, false);
        }
        self.write(held, write, false)
    }

    pub fn save(&mut self) -> Played {
        let Some(held) = self.some_lease() else { return Ok(()) };
        let value = format!("{}", self.rng.below(1_000));
        let (job, epoch, lease) = (held.job, held.epoch, held.lease.clone());
        let write = match self.rng.below(8) {
            0..2 => Write::Progress(self.rng.between(0, 9), self.rng.of(&[None, Some(10)])),
            2..5 => Write::Checkpoint(self.rng.of(&["", "a", "b"]), value),
            _ => {
                use Code::{Fails, Panics, RollsBack, Violates, Writes};
                let well = !self.profile.trouble || self.rng.one_in(2);
                let codes = [Fails, Panics, RollsBack, Violates, Violates];
                let code = if well { Writes } else { self.rng.of(&codes) };
                Write::Fenced(code, self.rng.one_in(2).then_some(value))
            }
        };
        self.write(held, write, false)?;
        if self.in_batch() {
            return Ok(());
        }
        self.look_at_saved(job, epoch, &lease)
    }

    /// What an attempt sees of what was saved: its own, and what earlier ones have.
    pub fn look_at_saved(&self, job: usize, epoch: i64, lease: &Lease) -> Played {
        let saved = self.jobs[job].saved.iter().filter(|saved| saved.1.1 <= epoch);
        let expected: Vec<_> = saved.map(|(key, value)| (key.clone(), value.0.clone())).collect();
        let seen = now(lease.load()).map_err(|error| error.to_string())?;
        let seen = seen.into_iter().map(|(key, value)| (key, value.as_str().to_owned()));
        same("what is saved", &seen.collect(), &expected)
    }

    /// The last write of a lease, asked for again with its number.
    pub fn again(&mut self) -> Played {
        let Some(held) = self.some_lease() else { return Ok(()) };
        let Some(write) = held.last.clone() else {
            self.leases.push(held);
            return Ok(());
        };
        self.stage.bench.repeat(&held.lease);
        self.write(held, write, true)
    }

    /// Asks for a write of a holder.
    fn write(&mut self, mut held: Held, write: Write, again: bool) -> Played {
        held.number += u32::from(!again);
        held.last = Some(write.clone());
        self.say(|| {
            let (job, epoch, number) = (held.job, held.epoch, held.number);
            format!("j{job} epoch {epoch} write {number}: {write:?}")
        });
        let (lease, bench, id) =
            (held.lease.clone(), self.stage.bench.clone(), held.lease.job().clone());
        let mark = (held.serial, held.number);
        if let Write::End(how) = write {
            let expected = self.settled(&held, mark, &how);
            self.leases.push(held);
            return self.ask("the settle", send(lease, how), expected);
        }
        let expected = self.saved(&held, mark, &write);
        self.leases.push(held);
        let asked = async move {
            match write {
                Write::Checkpoint(key, value) => {
                    lease.checkpoint(key, Json::parse(value).unwrap()).await
                }
                Write::Progress(done, total) => lease.progress(done, total).await,
                Write::Fenced(code, value) => {
                    let value = value.map(|value| Json::parse(value).unwrap());
                    bench.fenced(&lease, value, app::code(&id, code)).await
                }
                Write::End(_) => Ok(()),
            }
        };
        self.ask("the save", asked, expected)
    }

    fn saved(&mut self, held: &Held, mark: (usize, u32), write: &Write) -> Result<(), No> {
        let (n, now) = (held.job, self.now);
        if self.jobs[n].record.is_some() && self.jobs[n].mark == Some(mark) {
            return Ok(());
        }
        if let Some(refusal) = self.refusal(held) {
            return Err(No::Refused(refusal));
        }
        if let Write::Fenced(code, _) = write {
            self.touch();
            match code {
                Code::Writes => {}
                Code::Fails => return Err(No::Refused(Refusal::Revoked)),
                Code::Panics | Code::Violates | Code::RollsBack => return Err(No::Application),
            }
            self.app.entry(self.jobs[n].id.to_string()).or_default().writes += 1;
        }
        let job = &mut self.jobs[n];
        let facts = &self.facts[job.kind];
        job.mark = Some(mark);
        let Some(record) = &mut job.record else { return Ok(()) };
        let saved = match write {
            Write::Checkpoint(key, value) => Some((*key, value)),
            Write::Fenced(_, Some(value)) => Some(("", value)),
            _ => None,
        };
        if let Some((key, value)) = saved {
            rules::saved(record, facts, now);
            job.committed_epoch = held.epoch;
            job.saved.insert(key.to_owned(), (value.clone(), held.epoch));
        } else {
            rules::touched(record, facts, now);
        }
        if let Write::Progress(done, total) = write {
            (record.progress_done, record.progress_total) = (Some(*done), *total);
        }
        Ok(())
    }

    /// What a settle must answer, and make of the job.
    fn settled(&mut self, held: &Held, mark: (usize, u32), how: &End) -> Result<Status, No> {
        let n = held.job;
        if let Some(job) = &self.jobs[n].record
            && (self.jobs[n].mark == Some(mark) || rules::is_repeat(job, how, held.epoch))
        {
            return Ok(job.status);
        }
        if let Some(refusal) = self.refusal(held) {
            if self.jobs[n].record.is_some() {
                self.jobs[n].history.push((held.epoch, AttemptOutcome::Lost));
            }
            return Err(No::Refused(refusal));
        }
        let job = &mut self.jobs[n];
        let facts = self.facts[job.kind];
        let before = job.record.clone().unwrap();
        let mut after = before.clone();
        let committed = job.committed_epoch == before.epoch;
        rules::settled(&mut after, &facts, how, committed, self.now);
        if let End::Complete(Some(result)) = how {
            after.result = Some(Json::parse(result.clone()).unwrap());
        }
        let outcome = rules::outcome(&before, &after, how);
        job.mark = Some(mark);
        job.holder = None;
        if after.status.is_live() {
            let deferred = matches!(how, End::Fail(ErrorClass::RateLimited, _));
            if deferred && facts.provider.is_some() && after.status == Status::Pending {
                self.gate = Some(self.gate.unwrap_or(i64::MIN).max(after.run_at));
            }
            job.history.extend(outcome.map(|outcome| (before.epoch, outcome)));
            let status = after.status;
            job.record = Some(after);
            return Ok(status);
        }
        let status = after.status;
        self.end(n, after, outcome)?;
        if facts.provider.is_some() && status == Status::Completed {
            self.gate = None;
        }
        Ok(status)
    }

    /// Ends a job as is intended, where its hooks agree.
    pub fn end(
        &mut self,
        n: usize,
        mut intended: JobRecord,
        outcome: Option<AttemptOutcome>,
    ) -> Result<(), No> {
        let now = self.now;
        let job = &mut self.jobs[n];
        let facts = self.facts[job.kind];
        let record = job.record.as_mut().unwrap();
        job.holder = None;
        if facts.hooks {
            (self.touched, self.stage.written) = (true, true);
            let cancels = intended.status == Status::Cancelled;
            if agrees(self.mood.of(&job.id), cancels) {
                intended.hooked_at = Some(now);
                let row = self.app.entry(job.id.to_string()).or_default();
                intended.status.as_str().clone_into(&mut row.state);
                row.cancels += i64::from(cancels);
            } else if rules::hooks_spent(record) && intended.status != Status::Completed {
                intended.hook_failures += 1;
                if intended.status == Status::Failed {
                    intended.parked_at = Some(now);
                }
            } else {
                record.hook_failures += 1;
                let failures = record.hook_failures;
                if intended.status == Status::Completed {
                    intended = record.clone();
                    let how = End::Fail(ErrorClass::Transient, None);
                    rules::settled(&mut intended, &facts, &how, false, now);
                    intended.last_error = Some(ANY.into());
                }
                if intended.status.is_live() {
                    job.history.push((record.epoch, AttemptOutcome::Retried));
                    *record = intended;
                } else {
                    rules::owed(record, intended, now);
                }
                return Err(No::Hook(failures));
            }
        }
        if intended.status == Status::Completed {
            job.saved.clear();
        }
        job.history.extend(outcome.map(|outcome| (record.epoch, outcome)));
        *record = intended;
        Ok(())
    }
}

/// Whether a kind's hooks agree to an ending.
fn agrees(answer: Answer, cancels: bool) -> bool {
    match answer {
        Answer::Agrees => true,
        Answer::KeepsCancelled => !cancels,
        Answer::Misses | Answer::Fails | Answer::Panics | Answer::Violates => false,
    }
}

async fn send(lease: Arc<Lease>, how: End) -> leasehold::Result<Status> {
    match how {
        End::Complete(result) => {
            lease.complete(result.map(|text| Json::parse(text).unwrap())).await
        }
        End::Fail(class, floor) => {
            let failed = Failed { class, ..Failed::transient(ERROR) };
            lease.fail(Failed { retry_after: floor.map(ms), ..failed }).await
        }
        End::Yield => lease.hand_back().await,
        End::Interrupt => lease.interrupt().await,
        End::Snooze(wait) => lease.snooze(ms(wait)).await,
        End::Release => lease.release().await,
        End::Cancelled => lease.cancelled().await,
    }
}
