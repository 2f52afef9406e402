//! What happens, as it happens: a stream of events after their commits.

use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::client::Client;
use crate::job::{AttemptOutcome, JobId, Status};
use crate::rules::History;
use crate::rules::row::Row;
use crate::words::words;

/// Events that a slow listener may be behind.
const KEPT: usize = 1_024;

words! {
    /// What happened to a job.
    What {
        /// It is new.
        Enqueued = "enqueued",
        /// A worker has taken it.
        Claimed = "claimed",
        /// Its holder has ended the attempt.
        Settled = "settled",
        /// A late result was refused: the job was somebody else's by then.
        Lost = "lost",
        /// It failed in a way that asks for a person.
        Parked = "parked",
        /// An operator has made it live again.
        Redriven = "redriven",
        /// It has ended because somebody asked.
        Cancelled = "cancelled",
        /// The reaper, or a claim that met it, has decided about it.
        Reaped = "reaped",
    }
}

/// Something that happened to a job, in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobEvent {
    /// What.
    pub what: What,
    /// The job.
    pub id: JobId,
    /// The name of its kind.
    pub kind: Arc<str>,
    /// The attempt, or the one that was refused.
    pub epoch: i64,
    /// The job's status after it.
    pub status: Status,
    /// How the attempt ended, where one did.
    pub outcome: Option<AttemptOutcome>,
    /// When, in UTC milliseconds.
    pub at: i64,
}

/// Something that happened in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// To a job, after the commit; once for each write that ends one.
    Job(JobEvent),
    /// A loop of the runtime's own was restarted.
    Restarted {
        /// Which.
        name: String,
        /// Why.
        error: String,
    },
    /// The listener was too slow.
    Missed {
        /// So many events are gone for it.
        events: u64,
    },
}

impl JobEvent {
    /// What a write of a row came to, if anything happened.
    pub(crate) fn of(old: &Row, new: &Row, history: Option<&History>, at: i64) -> Option<Self> {
        if new.status == Status::Running
            || (old.status, new.status) == (Status::Pending, old.status)
        {
            return None;
        }
        let outcome = history.map(|history| history.outcome);
        let ended_by_holder = old.status == Status::Running && old.token.is_some();
        let what = match new.status {
            Status::Cancelled => What::Cancelled,
            _ if new.detail.parked_at.is_some() => What::Parked,
            Status::Pending if !old.status.is_live() => What::Redriven,
            _ if ended_by_holder && outcome != Some(AttemptOutcome::Lost) => What::Settled,
            _ => What::Reaped,
        };
        let outcome = match (what, new.status) {
            // The first try is in no history.
            (What::Settled, Status::Completed) => Some(AttemptOutcome::Completed),
            _ => outcome,
        };
        Some(Self {
            what,
            id: new.id.clone(),
            kind: new.kind.clone(),
            epoch: old.epoch,
            status: new.status,
            outcome,
            at,
        })
    }
}

/// Where events go.
#[derive(Clone, Debug)]
pub(crate) struct Hub(broadcast::Sender<Event>);

impl Default for Hub {
    fn default() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }
}

impl Hub {
    /// Whether anybody listens.
    pub(crate) fn is_heard(&self) -> bool {
        self.0.receiver_count() > 0
    }

    pub(crate) fn send(&self, event: Event) {
        // Nobody may listen.
        let _nobody = self.0.send(event);
    }
}

/// A stream of events, from the moment it was asked for; see [`Client::events`].
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// The next event; nothing once the database is closed here.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(events)) => Some(Event::Missed { events }),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next event if there is one.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.0.try_recv() {
            Ok(event) => Some(event),
            Err(broadcast::error::TryRecvError::Lagged(events)) => Some(Event::Missed { events }),
            Err(_) => None,
        }
    }
}

impl Client {
    /// What happens from now on, in this process: each event after its commit. A listener that
    /// falls more than 1024 events behind loses the oldest and is told how many; it never slows a
    /// job. What other processes do is not heard here, nor what a commit did whose answer was lost;
    /// the rows tell of both.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use leasehold::{Client, Event, NewJob, What};
    ///
    /// let client = Client::open(dir.path().join("jobs.db")).await?;
    /// let mut events = client.events();
    /// client.enqueue(NewJob::raw("mail", None)).await?;
    /// let Some(Event::Job(event)) = events.next().await else { panic!("no event") };
    /// assert_eq!((event.what, &*event.kind), (What::Enqueued, "mail"));
    /// # Ok(()) }
    /// ```
    ///
    /// Specified in SEMANTICS.md, “Events”.
    #[must_use]
    pub fn events(&self) -> Events {
        Events(self.host.events.0.subscribe())
    }
}
