//! What the processes acknowledge, and who hears it.
//!
//! A line goes into the pipe by one write, before anything else is done: what a process has said
//! is read to the end although the process is gone, and the last line is there whole or not at
//! all.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{AttemptOutcome, Event, Events, Status, What};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    /// A runtime runs, under this name.
    Ready { owner: String },
    /// An enqueue has answered.
    Queued { job: String },
    /// A handler has been entered, or a job was claimed by hand.
    Started { job: String, epoch: i64 },
    /// A fenced write has answered.
    Wrote { job: String, epoch: i64, piece: i64 },
    /// An event of the runtime: something has ended an attempt or a job, and is committed.
    Told { job: String, epoch: i64, what: What, status: Status, outcome: Option<AttemptOutcome> },
    /// Somebody who holds jobs by hand wrote, not before `asked` in UTC milliseconds.
    ByHand { job: String, epoch: i64, asked: i64, write: ByHand },
    /// Somebody asks for the job to be cancelled.
    Cancelling { job: String },
    /// An operator has redriven the job, which had ended with this epoch.
    Redriven { job: String, epoch: i64 },
}

/// What became of a write by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ByHand {
    Saved,
    Settled(Status),
    Refused,
}

impl Said {
    /// Which job it is about.
    pub fn job(&self) -> Option<&str> {
        match self {
            Self::Ready { .. } => None,
            Self::Queued { job }
            | Self::Started { job, .. }
            | Self::Wrote { job, .. }
            | Self::Told { job, .. }
            | Self::ByHand { job, .. }
            | Self::Cancelling { job }
            | Self::Redriven { job, .. } => Some(job),
        }
    }
}

/// A worker's end of the pipe.
#[derive(Clone)]
pub struct Pipe(Arc<File>);

impl Pipe {
    /// Standard output without a buffer.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self(Arc::new(File::from(stdout().as_fd().try_clone_to_owned()?))))
    }

    pub fn say(&self, said: &Said) {
        let mut line = serde_json::to_string(said).unwrap_or_default();
        line.push('\n');
        if (&*self.0).write_all(line.as_bytes()).is_err() {
            // Whoever has started it is gone.
            std::process::exit(1);
        }
    }
}

/// Something that was said: when, by the monotonic clock, and by which process; 0 is this one.
pub struct Heard {
    pub at: Duration,
    pub by: u32,
    pub said: Said,
}

/// All that was heard.
#[derive(Clone)]
pub struct Log {
    pub begun: Instant,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Log {
    pub fn new() -> Self {
        Self { begun: Instant::now(), heard: Arc::default() }
    }

    pub fn heard(&self) -> MutexGuard<'_, Vec<Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what this process says.
    pub fn say(&self, said: Said) {
        self.note(0, said);
    }

    fn note(&self, by: u32, said: Said) {
        let mut heard = self.heard();
        heard.push(Heard { at: self.begun.elapsed(), by, said });
    }

    /// Hears a process to its end. A line that the process died in the middle of does not count.
    pub fn hear(&self, by: u32, pipe: impl Read) {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(said) => self.note(by, said),
                Err(error) => eprintln!("worker {by} said {line:?}: {error}"),
            }
        }
    }
}

/// Says which attempts and jobs end here, as the runtime's events tell it.
pub async fn tell(mut events: Events, say: impl Fn(Said)) {
    while let Some(event) = events.next().await {
        let Event::Job(event) = event else { continue };
        if !matches!(event.what, What::Enqueued | What::Claimed | What::Lost | What::Redriven) {
            say(Said::Told {
                job: event.id.to_string(),
                epoch: event.epoch,
                what: event.what,
                status: event.status,
                outcome: event.outcome,
            });
        }
    }
}
