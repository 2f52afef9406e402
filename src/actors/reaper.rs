//! `ReaperActor`: takes what dead holders left behind.
//!
//! Owns      what it has seen of leases that look lost, the locks of dead owners it decides on
//! Receives  nothing
//! Sends     Reap, Slice and Checkpoint to the store
//! Never     decides about a row (the store does), trusts the wall clock about a holder whose
//!           lock says that it is alive
//! Stops     with the control thread, or when the session stops
//! Panics    restarts it; a pass that was under way lands or not, as a whole

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorFutureExt, AsyncContext, Context, Supervised};

use crate::faults::Point;
use crate::owner::{Alive, Probe};
use crate::store::messages::{Reap, Slice};
use crate::store::reaper::{Known, Pass, Sighting};
use crate::work::session::Session;

/// How often the locks of other owners are probed, in milliseconds.
const PROBE: i64 = 200;
/// How often a pass is made, in milliseconds.
const PASS: i64 = 1_000;

/// The actor.
pub(crate) struct ReaperActor(pub(crate) Arc<Session>);

impl Actor for ReaperActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let reaping = reap(self.0.clone());
        ctx.spawn(wrap_future::<_, Self>(reaping).map(|(), _, _| ()));
    }
}

impl Supervised for ReaperActor {}

/// What is remembered from pass to pass: since when, by the monotonic clock, a row of an
/// owner that is alive has looked lost.
#[derive(Default)]
struct Memory(HashMap<Sighting, i64>);

impl Memory {
    /// Takes over what a pass saw; answers what has stood still for a whole lease.
    fn update(&mut self, doubtful: HashMap<Sighting, i64>, now: i64) -> Vec<Sighting> {
        self.0.retain(|sighting, _| doubtful.contains_key(sighting));
        let mut confirmed = Vec::new();
        for (sighting, lease) in doubtful {
            let since = *self.0.entry(sighting).or_insert(now);
            if now.saturating_sub(since) >= lease {
                confirmed.push(sighting);
            }
        }
        confirmed
    }
}

async fn reap(session: Arc<Session>) {
    let clock = session.host.clock.clone();
    let mut memory = Memory::default();
    let mut confirmed = Vec::new();
    let mut unswept = false;
    let mut next_bulk = None;
    let mut next_pass = clock.monotonic();
    while !session.is_stopping() {
        session.host.faults.panic(Point::Reaper);
        let path = session.host.path.as_deref();
        let probe = path.map(|path| session.host.locks.probe(path, &session.owner));
        let mut probe = probe.unwrap_or_default();
        // Whose reaper this is lives, also where there is no lock that could be probed.
        probe.alive.insert(session.owner.clone());
        if clock.monotonic() >= next_pass || !probe.dead.is_empty() {
            let known = Known {
                alive: probe.alive.clone(),
                dead: probe.dead.iter().map(|dead| dead.owner.clone()).collect(),
                newcomers: path.map(|path| Alive {
                    locks: session.host.locks.clone(),
                    database: path.to_owned(),
                }),
                confirmed: confirmed.drain(..).collect(),
                unswept,
            };
            // Ends that the store could not take go before it judges their leases, in one batch.
            session.send_again(i64::MAX);
            match session.host.store.ask(Reap(known)).await {
                Ok(pass) => {
                    next_pass = clock.monotonic() + pause(&pass, clock.now());
                    unswept = pass.unswept;
                    next_bulk = pass.next_bulk;
                    session.host.health.unserved(&pass.unserved);
                    forget_decided(probe, &pass);
                    session.host.store.see_to_log(false).await;
                    confirmed = memory.update(pass.doubtful, clock.monotonic());
                }
                Err(error) => {
                    log::debug!(error:% = error; "a pass of the reaper failed");
                    next_pass = clock.monotonic() + PASS;
                }
            }
        }
        if next_bulk.is_some_and(|at| at <= clock.now()) {
            next_bulk = session.host.store.ask(Slice).await.unwrap_or_else(|error| {
                log::warn!(error:% = error; "a slice of an operation on many jobs failed");
                None // Until the next pass.
            });
        }
        let bulk = next_bulk.map_or(PROBE, |at| at.saturating_sub(clock.now()));
        let pause = (next_pass - clock.monotonic()).min(bulk).clamp(1, PROBE);
        clock.sleep(Duration::from_millis(pause.unsigned_abs())).await;
    }
}

/// How long until the next pass: sooner where a lease ends sooner.
fn pause(pass: &Pass, now: i64) -> i64 {
    if pass.more || pass.unswept {
        return 0;
    }
    pass.next_lease.map_or(PASS, |at| at.saturating_sub(now).saturating_add(1).clamp(10, PASS))
}

/// Removes the files of dead owners that have no row left.
fn forget_decided(probe: Probe, pass: &Pass) {
    for dead in probe.dead {
        if !pass.undecided.contains(&dead.owner) {
            dead.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_pass_is_made_at_once_where_something_is_left() {
        let pass =
            |more, unswept, next_lease| Pass { next_lease, more, unswept, ..Pass::default() };
        assert_eq!(pause(&pass(false, false, None), 5), PASS);
        assert_eq!(pause(&pass(false, false, Some(105)), 5), 101);
        assert_eq!(pause(&pass(true, false, None), 5), 0);
        assert_eq!(pause(&pass(false, true, None), 5), 0);
    }

    #[test]
    fn a_row_of_a_living_owner_is_taken_only_after_a_lease_without_a_sign() {
        let seen = |heartbeat_at| Sighting { key: 1, epoch: 1, heartbeat_at };
        let mut memory = Memory::default();
        assert!(memory.update(HashMap::from([(seen(5), 30_000)]), 0).is_empty());
        assert!(memory.update(HashMap::from([(seen(5), 30_000)]), 29_999).is_empty());
        let moved = memory.update(HashMap::from([(seen(6), 30_000)]), 30_000);
        assert!(moved.is_empty(), "a heartbeat starts the wait anew");
        assert_eq!(memory.update(HashMap::from([(seen(6), 30_000)]), 60_000), [seen(6)]);
        assert!(memory.update(HashMap::new(), 60_001).is_empty());
        assert!(memory.0.is_empty(), "nothing is kept of what has gone");
    }
}
