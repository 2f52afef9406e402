//! Bugs on demand, for the project's own tests: each makes one place wrong, so that it can be
//! seen whether a test finds out. Without the feature `__bugs` there are none.

/// Declares the bugs, each with what it does wrong.
macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What can be made wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            not(feature = "__bugs"),
            allow(dead_code, unreachable_pub, reason = "nothing makes one")
        )]
        #[non_exhaustive]
        pub enum Bug { $($(#[doc = $doc])+ $name,)+ }

        #[cfg(feature = "__bugs")]
        impl Bug {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// What it does wrong, in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii_start(),)+ }
            }
        }
    };
}

bugs! {
    /// A completion is not asked for its token.
    UnfencedCompletion,
    /// A save is not asked for its token.
    UnfencedSave,
    /// A claim mints the owner's token and not its own: the fence is by owner.
    FencedByOwner,
    /// A claim does not raise the epoch.
    EpochKept,
    /// A lease that has ended is renewed.
    ExpiredRenewed,
    /// A settle of an attempt that a redrive has cut off lands.
    LateAfterRedrive,
    /// A completion after another attempt's completion lands.
    CompletedTwice,
    /// A fail whose retry is scheduled already is taken for a repeat.
    RetryRepeated,
    /// A yield does not give its attempt back.
    YieldCharged,
    /// A snooze does not give its attempt back.
    SnoozeCharged,
    /// A deferral does not give its attempt back.
    DeferCharged,
    /// A release does not give its attempt back.
    ReleaseCharged,
    /// An interruption is a stall.
    InterruptStalls,
    /// One attempt more than allowed.
    AttemptsOffByOne,
    /// A commit leaves the attempts as they are.
    CommitKeepsAttempts,
    /// A commit leaves the stalls as they are.
    CommitKeepsStalls,
    /// A completion leaves the rate limit hits as they are.
    CompletionKeepsHits,
    /// A yield after a commit is a stall too.
    CommittedYieldStalls,
    /// A yield without a commit never parks.
    YieldNeverPoison,
    /// Saves extend a lease that has ended.
    SaveRevivesLease,
    /// A completion leaves what was saved.
    CheckpointsKept,
    /// An attempt sees what later ones saved.
    CheckpointsOfLater,
    /// The reaper does not look at cancel requests.
    ReaperIgnoresCancel,
    /// The reaper gives the last attempt another.
    LastAttemptRequeued,
    /// A lost attempt that had committed is a stall.
    CommittedLossStalls,
    /// The reaper does not raise the epoch.
    ReaperKeepsEpoch,
    /// A lease is lost at its last millisecond.
    LostAtTheEnd,
    /// The reaper sets `settled_epoch`.
    ReaperSettles,
    /// An ending by the reaper asks no hook.
    ReaperSkipsHooks,
    /// A hook that has not agreed is not counted.
    HookFailureUncounted,
    /// An ending waits for its hook for ever.
    HooksUnbounded,
    /// A completion that a hook refused stays owed, its handler is not run again.
    RefusedCompletionOwed,
    /// A redrive asks no hook.
    RedriveSkipsHook,
    /// An ending lands although its hook has not agreed.
    DisagreementIgnored,
    /// A cancel ends a running job at once.
    CancelEndsRunning,
    /// A completion after a cancel request is a cancel.
    DoneCancelled,
    /// A failed attempt after a cancel request is tried again.
    CancelForgotten,
    /// The second who asks for a cancel is recorded.
    LastRequesterKept,
    /// A redrive keeps the verdict.
    RedriveKeepsVerdict,
    /// A redrive does not raise the epoch.
    RedriveKeepsEpoch,
    /// A redrive of a completed job needs no option.
    FinishedRedriven,
    /// A requeue gives no attempt to a spent budget.
    RequeueSpent,
    /// A claim takes what is due a second later.
    ClaimedEarly,
    /// Among kinds the oldest goes first, whatever its priority.
    PriorityIgnored,
    /// A claim goes through the pause of a queue.
    PauseIgnored,
    /// The limit of a key has a place more.
    KeyLimitOffByOne,
    /// The limit of a kind has a place more.
    KindLimitOffByOne,
    /// A start counts for a millisecond too long.
    RateOffByOne,
    /// A failed job is claimed by its id.
    TerminalClaimed,
    /// A claim takes all suspects at once.
    SuspectsTogether,
    /// A gate opens sooner where a later deferral is shorter.
    GateShortened,
    /// A completion opens no gate.
    GateStaysClosed,
    /// A dedup key outlives its job.
    DedupKept,
    /// A job that has the idempotency key already is not found.
    KeysForgotten,
    /// A lock of nobody's holds for every tenant, and no tenant's for itself.
    LockIgnoresTenant,
    /// A key that is kept for a period is free at its last millisecond.
    KeptKeyOffByOne,
    /// A refused item ends the batch that it is in.
    ConflictEndsBatch,
    /// An id outside of the scope is shown.
    ScopeIgnored,
    /// A write whose number has landed runs again.
    WriteRepeated,
    /// A foreign key that is left violated takes the whole batch along.
    NeighbourRolledBack,
    /// What was rolled back at the commit is answered as if it had landed.
    AnsweredBeforeCommit,
    /// What a kind is registered as is not looked at again.
    StaleFacts,
    /// What other processes have written is not looked at again.
    StaleCache,
    /// Failed jobs are kept no longer than cancelled ones.
    FailedSweptEarly,
    /// A sweep takes what ended at its horizon.
    SweepOffByOne,
    /// A refused late result is not kept in the history.
    LateForgotten,
}

#[cfg(feature = "__bugs")]
std::thread_local! {
    static NOW: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Makes something wrong on this thread, or nothing.
#[cfg(feature = "__bugs")]
pub fn plant(bug: Option<Bug>) {
    NOW.set(bug);
}

/// Whether a bug is there.
#[cfg(feature = "__bugs")]
#[inline]
pub(crate) fn on(bug: Bug) -> bool {
    NOW.get() == Some(bug)
}

/// There is none.
#[cfg(not(feature = "__bugs"))]
#[inline]
pub(crate) const fn on(_: Bug) -> bool {
    false
}

/// Whether a batch that has met trouble is not run again.
pub(crate) fn give_up() -> bool {
    on(Bug::NeighbourRolledBack) || on(Bug::AnsweredBeforeCommit)
}
