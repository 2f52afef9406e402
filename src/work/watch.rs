//! What the control thread does for the attempts: renews their leases, holds them to their
//! limits, and sends again what the store could not take.

use std::sync::Arc;

use crate::error::{Error, Refusal};
use crate::faults::Point;
use crate::rules::ladder::{Stage, stage};
use crate::rules::settle::{Failure, Settle};
use crate::store::messages::{Renewals, Renewed};

use super::run::{Run, StopReason};
use super::session::Session;
use super::stats::add;

/// How soon a renewal is tried again after trouble of the store, in milliseconds.
const AGAIN: i64 = 1_000;

impl Session {
    /// One look at everything that has a deadline.
    pub(crate) fn tick(self: &Arc<Self>) {
        let now = self.host.clock.monotonic();
        let runs = self.runs();
        self.renew(&runs, now);
        for run in &runs {
            self.climb(run, now);
        }
        self.send_again(now);
        // Threads that never come back take no slot's place.
        let most = self.capacity.slots + self.zombies().len() + 1;
        self.pool.relieve(self, now, most);
    }

    /// Sends the renewals that are due, all in one message.
    fn renew(self: &Arc<Self>, runs: &[Arc<Run>], now: i64) {
        let mut due = Vec::new();
        let mut writes = Vec::new();
        for run in runs.iter().filter(|run| !run.has_landed()) {
            let mut state = run.state();
            if now >= state.trusted_until && !state.revoked {
                drop(state);
                run.fire(StopReason::Lost(Refusal::Expired { by_ms: 0 }));
                state = run.state();
            }
            if state.beating || now < state.next_beat || state.revoked && !run.is_settling() {
                continue;
            }
            state.beating = true;
            let trusted = now < state.trusted_until;
            drop(state);
            writes.push((run.renewal(), trusted));
            due.push(run.clone());
        }
        if due.is_empty() || self.host.faults.hit(Point::Heartbeat) {
            for run in due {
                run.state().beating = false;
            }
            return;
        }
        let session = self.clone();
        self.host.store.tell(Renewals(writes), move |answers| session.renewed(&due, answers));
    }

    fn renewed(&self, runs: &[Arc<Run>], answers: Result<Vec<Result<Renewed, Refusal>>, Error>) {
        match answers {
            Ok(answers) => {
                for (run, answer) in runs.iter().zip(answers) {
                    self.renewed_one(run, answer);
                }
            }
            Err(error) => {
                log::debug!(error:% = error; "leases could not be renewed; tried again");
                let now = self.host.clock.monotonic();
                for run in runs {
                    let mut state = run.state();
                    state.beating = false;
                    state.next_beat = now.saturating_add(AGAIN.min(run.claimed.facts.lease / 10));
                }
            }
        }
    }

    fn renewed_one(&self, run: &Run, answer: Result<Renewed, Refusal>) {
        match answer {
            Ok(renewed) => {
                add(&self.counters.renewals);
                run.renewed(renewed.monotonic);
                if renewed.cancel_requested {
                    run.fire(StopReason::Cancelled);
                }
            }
            // It has just been settled.
            Err(_) if run.is_settling() => run.state().beating = false,
            Err(refusal) => {
                log::warn!(job:% = run.claimed.id, epoch = run.claimed.holder.epoch,
                    error:% = refusal; "an attempt has lost its job");
                add(&self.counters.lost);
                run.lost(refusal);
            }
        }
    }

    /// Takes an attempt up the ladder.
    fn climb(self: &Arc<Self>, run: &Arc<Run>, now: i64) {
        let facts = &run.claimed.facts;
        let reached = {
            let mut state = run.state();
            let Some(started) = state.started else { return };
            let reached = stage(now.saturating_sub(started), facts.timeout, facts.lease);
            if reached <= state.stage {
                return;
            }
            state.stage = reached;
            reached
        };
        if reached >= Stage::Signalled {
            run.fire(StopReason::TimedOut);
        }
        if reached >= Stage::Aborted {
            self.time_out(run);
        }
        if reached >= Stage::Zombie {
            self.give_up_on(run);
        }
    }

    /// The attempt fails, and whatever its code still does is refused without a statement.
    fn time_out(self: &Arc<Self>, run: &Arc<Run>) {
        if !run.take_settle() {
            return;
        }
        run.revoke();
        let facts = &run.claimed.facts;
        let error = format!("timeout: the attempt ran longer than {} ms", facts.timeout);
        let failure = Failure { code: Some("timeout".into()), ..Failure::transient(error) };
        self.settle(run, Settle::Fail(failure));
        if let Some(abort) = run.state().abort.take() {
            abort.abort();
        }
    }

    /// The code blocks its thread: its slot goes to another thread.
    pub(crate) fn give_up_on(&self, run: &Arc<Run>) {
        if !self.free_slot(run) {
            return;
        }
        self.inner().zombies.insert(run.number, run.clone());
        let thread = run.state().thread.clone().unwrap_or_default();
        log::error!(job:% = run.claimed.id, kind:% = run.claimed.kind, thread:% = thread,
            running_for_ms = run.running_for(); "a handler blocks its thread and cannot be ended");
        self.look();
    }

    /// Sends settles again whose pause is over at this monotonic time.
    pub(crate) fn send_again(self: &Arc<Self>, now: i64) {
        let due: Vec<_> = {
            let mut inner = self.inner();
            let retries = std::mem::take(&mut inner.retries);
            let (due, later) = retries.into_iter().partition(|retry| retry.at <= now);
            inner.retries = later;
            due
        };
        for retry in due {
            self.send_settle(retry.run, retry.how, retry.write, retry.pause);
        }
    }

    /// Whether nothing moves: no attempt runs but those that sleep on the clock, and none waits
    /// to be settled but those whose pause is not over.
    pub(crate) fn stands_still(&self) -> bool {
        self.moving().is_empty()
    }

    /// Attempts that go on without anybody's help.
    pub(crate) fn moving(&self) -> Vec<Arc<Run>> {
        let now = self.host.clock.monotonic();
        let inner = self.inner();
        let pauses = |run: &Run| {
            let mut retries = inner.retries.iter().filter(|retry| retry.run.number == run.number);
            retries.next().map(|retry| retry.at > now)
        };
        let moves = |run: &&Arc<Run>| match pauses(run) {
            Some(pauses) => !pauses,
            None => !run.stands_still() && !inner.zombies.contains_key(&run.number),
        };
        let mut moving: Vec<_> = inner.runs.values().filter(moves).cloned().collect();
        let due = inner.retries.iter().filter(|retry| retry.at <= now);
        moving.extend(due.map(|retry| retry.run.clone()));
        moving
    }
}
