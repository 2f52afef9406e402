//! The stop: bounded whatever handlers do, and it says what it left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock;
use crate::handler::Starter;
use crate::job::JobId;
use crate::rules::settle::Settle;

use super::run::Run;
use super::session::Session;

/// How long handlers that were cut off are waited for, and then the store, in real time.
const CUT: Duration = Duration::from_millis(70);
const LAND: Duration = Duration::from_millis(20);

/// What a stop came to.
///
/// Specified in SEMANTICS.md, “Stop”.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Every handler ended by itself within the grace.
    pub drained: bool,
    /// Attempts that still hold their job: their code runs on, or the store did not answer.
    /// The reaper of another process, or of the next start, takes their jobs.
    pub in_flight: Vec<InFlight>,
    /// Attempts that were settled during the stop.
    pub settled: u64,
    /// Attempts that were handed back during the stop, at no cost.
    pub handed_back: u64,
    /// Application code that sits in the store's transaction and does not return.
    pub stuck_in_store: Option<String>,
}

/// An attempt that a stop left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// The job.
    pub job: JobId,
    /// Its kind.
    pub kind: Arc<str>,
    /// How long its handler has been running.
    pub running_for: Duration,
}

impl InFlight {
    fn of(run: &Run) -> Self {
        let running_for = Duration::from_millis(run.running_for().unsigned_abs());
        Self { job: run.claimed.id.clone(), kind: run.claimed.kind.clone(), running_for }
    }
}

/// Stops a session within `grace` and a moment.
pub(crate) async fn stop(session: &Arc<Session>, grace: Duration) -> StopReport {
    let mut late = session.host.clock.sleep(grace);
    session.begin_stop();
    for run in session.pool.unstarted() {
        session.finish(&run, Settle::Release);
    }
    let drained = tokio::select! {
        biased;
        () = until(session, || session.runs().is_empty()) => true,
        () = &mut late => false,
    };
    if !drained {
        cut_off(session).await;
    }
    // A store that is stuck is waited for once, and not again for its log.
    if session.host.inside.inside().is_none() {
        let too_late = async {
            if drained {
                (&mut late).await;
            }
            clock::moment(LAND).await;
        };
        tokio::select! {
            biased;
            () = session.host.store.see_to_log(true) => {}
            () = too_late => {}
        }
    }
    let mut in_flight: Vec<_> = session.runs().iter().map(|run| InFlight::of(run)).collect();
    in_flight.extend(session.zombies().iter().map(|run| InFlight::of(run)));
    in_flight.sort_by(|a, b| a.job.cmp(&b.job));
    in_flight.dedup_by(|a, b| a.job == b.job);
    let stuck = session.host.inside.inside().filter(|_| !in_flight.is_empty());
    StopReport {
        drained: drained && in_flight.is_empty(),
        in_flight,
        settled: session.counters.settled.load(Ordering::Relaxed),
        handed_back: session.counters.handed_back.load(Ordering::Relaxed),
        stuck_in_store: stuck.map(|inside| inside.what),
    }
}

/// Drops the handlers that have not ended; what cannot be dropped loses its handle.
async fn cut_off(session: &Arc<Session>) {
    // What was being handed out when the stop began, and has found no thread.
    for run in session.pool.unstarted() {
        session.finish(&run, Settle::Release);
    }
    for run in session.runs() {
        if let Some(abort) = run.state().abort.take() {
            abort.abort();
        }
    }
    let all_cut = || session.runs().iter().all(|run| run.is_settling());
    tokio::select! {
        biased;
        () = until(session, all_cut) => {}
        () = clock::moment(CUT) => {}
    }
    for run in session.runs() {
        // Its code runs on a thread: it keeps its row until the reaper takes it.
        if run.take_settle() {
            run.revoke();
        }
    }
    let landed = || session.runs().iter().all(|run| run.is_revoked());
    tokio::select! {
        biased;
        () = until(session, landed) => {}
        () = clock::moment(LAND) => {}
    }
}

/// Drops what runs as the death of its process does: nothing is settled or released. Code that
/// blocks its thread goes on, and what it writes is refused.
pub(crate) async fn cut_short(session: &Arc<Session>) {
    /// How long handlers that were cut off are waited for, in real time.
    const GONE: Duration = Duration::from_secs(5);
    session.quiet();
    session.host.faults.kill();
    let _dead = session.host.store.die().await;
    let all_gone = || {
        for run in session.pool.unstarted() {
            forget(session, &run);
            session.finish(&run, Settle::Release);
        }
        let blocks = |run: &Run| {
            matches!(session.starters.get(&run.claimed.kind), Some(Starter::Blocking(_)))
        };
        let (mut left, zombies) = (false, session.zombies());
        for run in session.runs() {
            forget(session, &run);
            if let Some(abort) = run.state().abort.take() {
                abort.abort();
            }
            left |= !blocks(&run) && !zombies.iter().any(|zombie| zombie.number == run.number);
        }
        !left
    };
    let gone = async {
        while !all_gone() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = gone => {}
        () = session.host.moment(GONE) => log::warn!("a handler blocks its thread, and goes on"),
    }
    // What nobody waits for any more is dropped.
    let _finished = session.host.store.finish().await;
}

/// Nothing more is sent for an attempt, however its code ends.
fn forget(session: &Session, run: &Run) {
    let _taken = run.take_settle();
    run.revoke();
    session.forget(run);
}

/// Ends when `condition` holds; looks again whenever something has changed.
async fn until(session: &Session, condition: impl Fn() -> bool) {
    loop {
        let changed = session.changed.notified();
        let mut changed = std::pin::pin!(changed);
        changed.as_mut().enable();
        if condition() {
            return;
        }
        changed.await;
    }
}
