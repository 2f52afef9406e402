//! A whole runtime with a frozen clock.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::builder::{Builder, Parts};
use crate::client::Client;
use crate::clock::ManualClock;
use crate::entropy::{Entropy as _, FixedEntropy};
use crate::error::Result;
#[cfg(doc)]
use crate::error::StoreFault;
use crate::faults::Faults;
use crate::job::JobId;
use crate::new_job::NewJob;
use crate::owner::Probe;
use crate::record::JobRecord;
use crate::runtime::Runtime;
use crate::store::messages::{Reap, Slice};
use crate::store::questions::CountAll;
use crate::store::reaper::{Known, Pass, ReapReport};
use crate::store::{Place, Spares};
use crate::work::session::Session;
use crate::work::stop::StopReport;

/// A whole runtime with a frozen clock: nothing that waits for time moves until it is told to,
/// and no job is claimed but in [`Lab::settle`], [`Lab::advance`], [`Lab::look`] and
/// [`Lab::run`].
///
/// ```
/// # #[tokio::main] async fn main() -> leasehold::Result<()> {
/// use leasehold::testing::Lab;
/// use leasehold::{Ctx, Job, JobResult, Outcome, Phase, Retry, Runtime, Settings};
/// use std::time::Duration;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Flaky;
/// impl Job for Flaky {
///     const KIND: &'static str = "flaky";
///     fn settings() -> Settings {
///         Settings::new().retry(Retry::fixed(Duration::from_secs(2)).no_jitter())
///     }
/// }
///
/// async fn flaky(_: Flaky, ctx: Ctx) -> JobResult {
///     match ctx.attempt() {
///         1 => Err("not yet")?,
///         _ => Ok(Outcome::Done),
///     }
/// }
///
/// let lab = Lab::start(Runtime::in_memory().handle(flaky)).await?;
/// let id = lab.enqueue(Flaky).await?;
/// lab.settle().await;
/// assert_eq!(lab.job(&id).await?.phase, Phase::Retrying);
/// lab.advance(Duration::from_secs(2)).await;
/// assert_eq!(lab.job(&id).await?.phase, Phase::Completed);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// Nothing in it hangs: a call that has not ended after [`Lab::patience`] of real time panics, and
/// says what it has waited for.
#[derive(Clone)]
pub struct Lab {
    /// The runtime; another after a crash.
    pub runtime: Runtime,
    /// Its clock, which shows 2020-01-01 00:00 UTC at first.
    pub clock: ManualClock,
    /// Its draws: 0.5 each unless set.
    pub entropy: Arc<FixedEntropy>,
    /// Failures on demand.
    pub faults: Faults,
    /// How long a call may take in real time before it panics; a minute unless set.
    pub patience: Duration,
    /// What each of its processes is made of.
    pub(super) parts: Parts,
    /// The runtimes that settle together.
    pub(super) group: Group,
    /// Owners that have crashed in memory, where no lock can tell.
    pub(super) gone: Vec<Arc<str>>,
}

/// Runtimes with one clock.
#[derive(Clone, Default)]
pub(super) struct Group(Arc<Mutex<Vec<Weak<Session>>>>);

impl Group {
    fn locked(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, runtime: &Runtime) {
        self.locked().push(Arc::downgrade(runtime.session()));
    }

    /// Those that have not stopped.
    fn sessions(&self) -> Vec<Arc<Session>> {
        let sessions: Vec<_> = self.locked().iter().filter_map(Weak::upgrade).collect();
        sessions.into_iter().filter(|session| !session.has_stopped()).collect()
    }
}

impl fmt::Debug for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Lab");
        shown.field("runtime", &self.runtime).field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// What a lab's clock shows at first: 2020-01-01 00:00 UTC.
const START: i64 = 1_577_836_800_000;
/// How long a call may take in real time.
const PATIENCE: Duration = Duration::from_mins(1);

impl Lab {
    /// Starts a runtime, with a clock and draws of the lab's in place of its own.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start<S: Clone + 'static, M>(builder: Builder<S, M>) -> Result<Self> {
        Self::start_with(builder, ManualClock::at(START), 1).await
    }

    /// The same with a clock of the caller's, and bytes that follow from `seed`: two labs on one
    /// file have different ones.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start_with<S: Clone + 'static, M>(
        builder: Builder<S, M>,
        clock: ManualClock,
        seed: u64,
    ) -> Result<Self> {
        Self::start_in(builder, clock, seed, Group::default()).await
    }

    /// Starts another runtime, which plays at being another process: on the same file, where its
    /// builder says so, and on this lab's clock. Each of the two settles both.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn beside<S: Clone + 'static, M>(&self, builder: Builder<S, M>) -> Result<Self> {
        let [seed, ..] = self.entropy.bytes().map(u64::from);
        let seed = seed << 32 | self.group.locked().len() as u64;
        Self::start_in(builder, self.clock.clone(), seed, self.group.clone()).await
    }

    async fn start_in<S: Clone + 'static, M>(
        mut builder: Builder<S, M>,
        clock: ManualClock,
        seed: u64,
        group: Group,
    ) -> Result<Self> {
        let entropy = Arc::new(FixedEntropy::new(&[0.5], seed));
        let config = builder.host_mut();
        config.clock = Arc::new(clock.clone());
        config.entropy = entropy.clone();
        config.by_hand = true;
        if config.place == Place::Memory {
            config.store.spares = Spares::new();
        }
        let faults = config.faults.clone();
        let parts = builder.into_parts()?;
        let runtime = Runtime::start(parts.clone()).await?;
        group.add(&runtime);
        let (patience, gone) = (PATIENCE, Vec::new());
        Ok(Self { runtime, clock, entropy, faults, patience, parts, group, gone })
    }

    /// Enqueues a job.
    ///
    /// # Errors
    ///
    /// As [`Client::enqueue`].
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<JobId> {
        Ok(self.within("enqueue", self.runtime.enqueue(job)).await?.id)
    }

    /// A job as it stands.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`](crate::Refusal::NotFound); a [`StoreFault`].
    pub async fn job(&self, id: impl Into<JobId>) -> Result<JobRecord> {
        let job = self.within("job", self.client().job(id)).await?;
        job.ok_or(crate::Refusal::NotFound.into())
    }

    /// The runtime's client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.runtime.client()
    }

    /// Runs all that is due at this moment, until nothing moves: no handler runs but those that
    /// wait for the clock or for a signal. Where the store's own code has panicked, or the process
    /// has died, it ends as nothing can move.
    pub async fn settle(&self) {
        self.within("settle", self.until_still()).await;
    }

    async fn until_still(&self) {
        loop {
            let sessions = self.group.sessions();
            // What has begun or ended since the pass may have made room for more.
            let events = || sessions.iter().map(|one| one.stats().events()).sum::<u64>();
            let (before, mut still) = (events(), true);
            for session in &sessions {
                still &= self.pass(session).await;
            }
            // A handler that begins to sleep tells nobody.
            while self.clock.is_ringing()
                || sessions.iter().any(|one| !self.is_down(one) && !one.stands_still())
            {
                tokio::task::yield_now().await;
            }
            if events() == before && still {
                return sessions.iter().for_each(|session| session.hold(true));
            }
        }
    }

    /// Has every loop look once at what is due, without waiting for what handlers make of it;
    /// answers whether the reaper found nothing to do.
    pub async fn look(&self) -> bool {
        let session = self.runtime.session();
        let still = self.within("look", self.pass(session)).await;
        session.hold(true);
        still
    }

    /// One look of every loop. Claims are let go on.
    async fn pass(&self, session: &Arc<Session>) -> bool {
        let still = self.answered(session, self.pass_up(session)).await;
        still.unwrap_or(true)
    }

    async fn pass_up(&self, session: &Arc<Session>) -> bool {
        session.hold(false);
        tick(session).await;
        let (mut still, mut unswept) = (true, false);
        loop {
            let locks = session.host.path.as_deref();
            let probe = locks.map(|path| session.host.locks.probe(path, &session.owner));
            let probe = probe.unwrap_or_default();
            let dead = probe.dead.iter().map(|dead| dead.owner.clone());
            let dead = dead.chain(self.gone.iter().cloned()).collect();
            let known = Known { dead, unswept, ..Known::default() };
            let pass = session.host.store.ask(Reap(known)).await;
            // A sweep that fails again in each pass would be waited for for ever.
            let moved = pass.as_ref().map(|pass| ReapReport { errors: 0, ..pass.report });
            still &= moved.is_ok_and(|moved| moved == ReapReport::default());
            unswept = pass.as_ref().is_ok_and(|pass| pass.unswept);
            if let Ok(pass) = pass {
                session.host.health.unserved(&pass.unserved);
                clear_away(probe, &pass);
            }
            if !unswept {
                break;
            }
        }
        session.host.store.see_to_log(false).await;
        let _next = session.host.store.ask(Slice).await;
        session.look();
        // Answered in a batch that has claimed.
        let _counts = session.host.store.ask(CountAll).await;
        session.host.listening.after.idle().await;
        still
    }

    /// Moves the clock, then [`Lab::settle`]s.
    pub async fn advance(&self, duration: Duration) {
        self.clock.advance(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX));
        self.within("advance", self.until_still()).await;
    }

    /// Stops the runtime; the clock moves on to the deadline where handlers do not end.
    pub async fn stop(&self, grace: Duration) -> StopReport {
        let stop = async {
            let mut stop = std::pin::pin!(self.runtime.stop(grace));
            let session = self.runtime.session();
            loop {
                tokio::select! {
                    biased;
                    report = &mut stop => return report,
                    () = tokio::task::yield_now() => {
                        if session.stands_still() || self.is_down(session) {
                            self.clock.advance(1);
                        } else {
                            // What is due between two ticks of the control thread.
                            tick(session).await;
                        }
                    }
                }
            }
        };
        self.within("stop", stop).await
    }

    /// Whether the process has died, by [`Faults::die`] or where a point of [`Lab::faults`] says
    /// so; [`Lab::crash`] starts another.
    #[must_use]
    pub fn has_died(&self) -> bool {
        self.faults.is_dead()
    }

    /// Whether a store does nothing until the clock is advanced, or for ever.
    pub(super) fn is_down(&self, session: &Session) -> bool {
        let host = &session.host;
        host.faults.is_dead() || host.health.is_pausing("store") && !self.clock.is_ringing()
    }

    /// What the store answers; nothing where it does nothing.
    pub(super) async fn answered<T>(
        &self,
        session: &Session,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        let mut answer = std::pin::pin!(answer);
        while !self.is_down(session) {
            tokio::select! {
                biased;
                answer = &mut answer => return Some(answer),
                () = tokio::task::yield_now() => {}
            }
        }
        None
    }

    /// Holds a call to its time.
    pub(super) async fn within<T>(&self, call: &str, future: impl Future<Output = T>) -> T {
        let late = self.runtime.session().host.moment(self.patience);
        tokio::select! {
            biased;
            value = future => value,
            () = late => panic!("Lab::{call} has not ended in {:?}: {}", self.patience, self.why()),
        }
    }

    /// What a call waits for, as far as that is known.
    fn why(&self) -> String {
        let sessions = self.group.sessions();
        if sessions.iter().any(|session| session.host.faults.is_dead()) {
            return "the process has died; Lab::crash starts another".to_owned();
        }
        if sessions.iter().any(|session| self.is_down(session)) {
            return "the store has panicked, and waits for the clock to restart".to_owned();
        }
        let moving = sessions.iter().flat_map(|session| session.moving());
        let moving: Vec<_> =
            moving.map(|run| format!("{} {}", run.claimed.kind, run.claimed.id)).collect();
        format!("handlers that neither end nor wait for the clock or a signal: {moving:?}")
    }
}

/// One look of the control thread at everything that has a deadline.
async fn tick(session: &Arc<Session>) {
    let (sender, ticked) = tokio::sync::oneshot::channel();
    let ticking = session.clone();
    session.host.home.spawn(async move {
        ticking.tick();
        let _gone = sender.send(());
    });
    let _ticked = ticked.await;
}

/// Removes the locks of dead owners that have no row left.
fn clear_away(probe: Probe, pass: &Pass) {
    for dead in probe.dead {
        if !pass.undecided.contains(&dead.owner) {
            dead.remove();
        }
    }
}
