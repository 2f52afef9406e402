//! The words of jobs, the same in Rust, in SQL, in JSON and on the command line.

/// Declares an enum whose values are words: in Rust, in SQL, in JSON and on the command line.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word for it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// The value with this word.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(
                &self,
                serializer: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> std::result::Result<Self, D::Error> {
                let word = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&word).ok_or_else(|| {
                    <D::Error as serde::de::Error>::unknown_variant(&word, &[$($word,)+])
                })
            }
        }
    };
}

pub(crate) use words;

words! {
    /// The stored status of a job.
    Status {
        /// Waiting, due or not.
        Pending = "pending",
        /// Held by an attempt, or by nobody since its lease was lost.
        Running = "running",
        /// Ended with a result.
        Completed = "completed",
        /// Ended without one.
        Failed = "failed",
        /// Ended because somebody asked.
        Cancelled = "cancelled",
    }
}

impl Status {
    /// Pending or running.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

words! {
    /// What a job is doing, derived from its row and the time; never stored.
    Phase {
        /// Pending, not yet due, no attempt spent.
        Scheduled = "scheduled",
        /// Pending, not yet due, with attempts spent.
        Retrying = "retrying",
        /// Pending and due.
        Ready = "ready",
        /// Running under a lease that has not ended.
        Leased = "leased",
        /// Running, and its lease has ended.
        Orphaned = "orphaned",
        /// Ended with a result.
        Completed = "completed",
        /// Ended because somebody asked.
        Cancelled = "cancelled",
        /// Failed.
        Dead = "dead",
        /// Failed in a way that asks for a person.
        Parked = "parked",
    }
}

words! {
    /// Why a job failed for good.
    Verdict {
        /// Its attempts were used up.
        AttemptsExhausted = "attempts_exhausted",
        /// The handler said to stop.
        Terminal = "terminal",
        /// The handler said that it can never work; a redrive needs `force`.
        Unrecoverable = "unrecoverable",
        /// Its deferrals were used up.
        RateLimitExhausted = "rate_limit_exhausted",
        /// Too many attempts in a row ended without progress.
        Poison = "poison",
        /// Its holder was lost and the kind parks such jobs.
        Orphaned = "orphaned",
        /// No handler is registered for its kind.
        NoHandler = "no_handler",
        /// Its payload does not decode.
        Undecodable = "undecodable",
    }
}

words! {
    /// How an error is to be treated.
    ErrorClass {
        /// Try again.
        Transient = "transient",
        /// Stop now; a plain redrive is allowed.
        Terminal = "terminal",
        /// Stop now; a redrive needs `force`.
        Unrecoverable = "unrecoverable",
        /// Try later, at no cost of attempts.
        RateLimited = "rate_limited",
    }
}

words! {
    /// What an enqueue found in its place.
    By {
        /// A job with the same id.
        Id = "id",
        /// A job with the same idempotency key.
        IdempotencyKey = "idempotency_key",
        /// A live job with the same dedup key.
        DedupKey = "dedup_key",
    }
}

words! {
    /// Why a pending job is not running.
    Waiting {
        /// Its time has not come.
        Scheduled = "scheduled",
        /// Nobody has registered its kind.
        NotRegistered = "not_registered",
        /// Its queue is paused.
        QueuePaused = "queue_paused",
        /// Its kind is paused.
        KindPaused = "kind_paused",
        /// A limit on running jobs is full.
        LimitFull = "limit_full",
        /// A rate or a provider's gate is closed.
        RateLimited = "rate_limited",
        /// Nothing: a claim would take it when its turn comes.
        Next = "next",
    }
}

words! {
    /// What a redrive keeps of a job's history.
    Preset {
        /// Budgets and checkpoints stay; one more attempt is allowed.
        Requeue = "requeue",
        /// Budgets start anew, checkpoints stay.
        Redrive = "redrive",
        /// Budgets start anew, checkpoints and progress are dropped.
        Restart = "restart",
    }
}

words! {
    /// Where a job stands, as far as it decides what can be done with it.
    State {
        /// Waiting, due or not.
        Pending = "pending",
        /// Held by an attempt, or by nobody since its lease was lost.
        Running = "running",
        /// Ended with a result.
        Completed = "completed",
        /// Failed in a way that may pass.
        Failed = "failed",
        /// Failed in a way that the handler called unrecoverable.
        Unrecoverable = "unrecoverable",
        /// Ended because somebody asked.
        Cancelled = "cancelled",
    }
}

impl State {
    /// The state of a job with this status and verdict.
    #[must_use]
    pub const fn of(status: Status, verdict: Option<Verdict>) -> Self {
        match status {
            Status::Pending => Self::Pending,
            Status::Running => Self::Running,
            Status::Completed => Self::Completed,
            Status::Failed => match verdict {
                Some(Verdict::Unrecoverable) => Self::Unrecoverable,
                _ => Self::Failed,
            },
            Status::Cancelled => Self::Cancelled,
        }
    }
}

words! {
    /// How an attempt ended, in a job's history.
    AttemptOutcome {
        /// The job is done.
        Completed = "completed",
        /// It failed, and the job is tried again.
        Retried = "retried",
        /// It failed, and so did the job.
        Failed = "failed",
        /// It met a rate limit, and the job is tried later.
        Deferred = "deferred",
        /// It handed back after a slice.
        Yielded = "yielded",
        /// A stop cut it short.
        Interrupted = "interrupted",
        /// It wanted the job later.
        Snoozed = "snoozed",
        /// It handed back unstarted.
        Released = "released",
        /// The job has ended because somebody asked.
        Cancelled = "cancelled",
        /// It handed back without progress once too often.
        Poison = "poison",
        /// Its holder was lost, or came too late.
        Lost = "lost",
        /// In a word that this version does not know.
        Unknown = "unknown",
    }
}

words! {
    /// What can happen to a job: by a worker, its holder, the reaper, or an operator.
    Action {
        /// A worker takes it.
        Claim = "claim",
        /// Its holder extends the lease.
        Renew = "renew",
        /// Its holder saves something, or runs a fenced write.
        Save = "save",
        /// Its holder is done.
        Complete = "complete",
        /// Its holder failed.
        Fail = "fail",
        /// Its holder met a rate limit.
        Defer = "defer",
        /// Its holder hands it back after a slice.
        Yield = "yield",
        /// A stop cuts its attempt short.
        Interrupt = "interrupt",
        /// Its holder wants it later.
        Snooze = "snooze",
        /// Its holder hands it back unstarted.
        Release = "release",
        /// Its holder stopped before the end.
        Stop = "stop",
        /// The reaper finds its lease lost.
        Lose = "lose",
        /// An operator does not want it any more.
        Cancel = "cancel",
        /// An operator wants it to run again.
        Redrive = "redrive",
        /// An operator wants a new job like it.
        RunAgain = "run_again",
        /// An operator wants its row gone.
        Delete = "delete",
    }
}

#[allow(clippy::derivable_impls, reason = "derived, it would be of every word")]
impl Default for Preset {
    fn default() -> Self {
        Self::Redrive
    }
}
