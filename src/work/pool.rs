//! The threads that handlers run on.
//!
//! Async handlers share a few threads, each an arbiter; a thread takes the next job from one
//! queue when it is not busy polling, so that a handler that blocks its thread keeps nobody
//! from being started but by that thread. Where nobody takes a job for a while, another thread
//! is added. Blocking handlers have a thread each while they run.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::around::{self, Call};
use crate::handler::{self, JobResult, Locals, Starter};
use crate::home::{Home, Thread};
use crate::rules::settle::Settle;

use super::run::Run;
use super::session::Session;

/// How long an idle thread beyond the usual number stays.
const IDLE: Duration = Duration::from_secs(10);
/// How long a job may wait for a thread before another is added, in milliseconds.
const PATIENCE: i64 = 100;

/// The threads.
pub(crate) struct Pool {
    /// Threads for async handlers when all is well.
    base: usize,
    home: Home,
    queue: Mutex<VecDeque<(i64, Arc<Run>)>>,
    arrived: Notify,
    closed: std::sync::atomic::AtomicBool,
    threads: AtomicUsize,
    /// The usual threads.
    serving: Mutex<Vec<Thread>>,
    blocking: Arc<Blocking>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool whose threads live where `home` says.
    pub(crate) fn new(base: usize, home: Home) -> Self {
        Self {
            base,
            home,
            queue: Mutex::default(),
            arrived: Notify::new(),
            closed: std::sync::atomic::AtomicBool::new(false),
            threads: AtomicUsize::new(0),
            serving: Mutex::default(),
            blocking: Arc::default(),
        }
    }

    /// Starts the usual threads.
    pub(crate) fn open(&self, session: &Arc<Session>) {
        for _ in 0..self.base {
            self.add_thread(session);
        }
    }

    /// Starts a handler, on the sort of thread that it wants.
    pub(crate) fn start(&self, session: &Arc<Session>, run: Arc<Run>) {
        match session.starters.get(&run.claimed.kind) {
            Some(Starter::Local(_)) | None => {
                let now = session.host.clock.monotonic();
                locked(&self.queue).push_back((now, run));
                self.arrived.notify_one();
            }
            Some(Starter::Blocking(_)) if self.home.is_here() => {
                run_blocking(session, &run, &Locals::default(), "here");
            }
            Some(Starter::Blocking(_)) => self.blocking.start(session, run),
            Some(Starter::Hosted(host, start)) => {
                let future =
                    around::run(session.around.clone(), Call::of(&run), start(run.clone()));
                let end = EndGuard::new(session, &run, "the host's runtime");
                let task = host.spawn(caught(future, end));
                run.state().abort = Some(task.abort_handle());
            }
        }
    }

    fn add_thread(&self, session: &Arc<Session>) {
        let number = self.threads.fetch_add(1, Ordering::SeqCst);
        let thread = self.home.thread();
        let session = session.clone();
        let spare = number >= self.base;
        thread.run(move || {
            actix_rt::spawn(async move {
                serve(&session, number, spare).await;
                if spare {
                    session.pool.threads.fetch_sub(1, Ordering::SeqCst);
                    session.pool.home.leave();
                }
            });
        });
        // A spare thread ends by itself, and a handle to it would keep its stack.
        if !spare {
            locked(&self.serving).push(thread);
        }
    }

    /// Adds a thread where a job has waited too long for one. Runs on the control thread.
    pub(crate) fn relieve(&self, session: &Arc<Session>, now: i64, most: usize) {
        let oldest = locked(&self.queue).front().map(|(at, _)| *at);
        let late = oldest.is_some_and(|at| now.saturating_sub(at) >= PATIENCE);
        if late && self.threads.load(Ordering::SeqCst) < most {
            log::warn!("a job has waited {PATIENCE} ms for a thread; one is added");
            self.add_thread(session);
        }
    }

    /// Attempts that no thread has taken yet.
    pub(super) fn waiting(&self) -> usize {
        locked(&self.queue).len() + locked(&self.blocking.state).queue.len()
    }

    /// Threads beyond the usual number.
    pub(super) fn added(&self) -> usize {
        self.threads.load(Ordering::SeqCst).saturating_sub(self.base)
    }

    /// Takes back what no thread has taken yet.
    pub(crate) fn unstarted(&self) -> Vec<Arc<Run>> {
        let mut runs: Vec<_> = locked(&self.queue).drain(..).map(|(_, run)| run).collect();
        runs.extend(locked(&self.blocking.state).queue.drain(..).map(|(_, run)| run));
        runs
    }

    /// Ends the threads that are not busy; who is busy ends with its handler.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.arrived.notify_waiters();
        for thread in locked(&self.serving).drain(..) {
            thread.stop();
        }
        locked(&self.blocking.state).closed = true;
        self.blocking.arrived.notify_all();
    }
}

/// Takes jobs and starts their handlers, for as long as the thread lives.
async fn serve(session: &Arc<Session>, number: usize, spare: bool) {
    let locals = Rc::new(Locals::default());
    let name: Arc<str> = format!("leasehold-handlers-{number}").into();
    loop {
        let pool = &session.pool;
        // Before the look, so that a close after it is heard.
        let arrived = pool.arrived.notified();
        if pool.closed.load(Ordering::SeqCst) {
            return;
        }
        let next = locked(&pool.queue).pop_front();
        match next {
            Some((_, run)) => {
                start_local(session, &run, &locals, &name);
                // The handler is polled before the next job is taken.
                tokio::task::yield_now().await;
            }
            None if spare => {
                let idle = session.host.sleep(IDLE);
                tokio::select! {
                    biased;
                    () = arrived => {}
                    // Its handlers that wait for something go with the thread: they stay.
                    () = idle => if Rc::strong_count(&locals) == 1 { return },
                }
            }
            None => arrived.await,
        }
    }
}

fn start_local(session: &Arc<Session>, run: &Arc<Run>, locals: &Rc<Locals>, thread: &str) {
    let Some(Starter::Local(start)) = session.starters.get(&run.claimed.kind) else {
        session.finish(run, Settle::Release);
        return;
    };
    let end = EndGuard::new(session, run, thread);
    let future = around::run(session.around.clone(), Call::of(run), start(run.clone(), locals));
    let on_thread = locals.clone();
    let task = actix_rt::spawn(async move {
        caught(future, end).await;
        drop(on_thread);
    });
    run.state().abort = Some(task.abort_handle());
}

/// Tells the session how a handler ended, also where its task was dropped.
struct EndGuard(Option<(Arc<Session>, Arc<Run>)>);

impl EndGuard {
    fn new(session: &Arc<Session>, run: &Arc<Run>, thread: &str) -> Self {
        let mut state = run.state();
        state.started = Some(session.host.clock.monotonic());
        state.thread = Some(thread.to_owned());
        drop(state);
        Self(Some((session.clone(), run.clone())))
    }

    fn finish(mut self, result: JobResult) {
        if let Some((session, run)) = self.0.take() {
            session.finish(&run, handler::settle_of(result, run.claimed.sizes));
        }
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some((session, run)) = self.0.take() {
            session.dropped(&run);
        }
    }
}

/// Threads for handlers that block.
#[derive(Default)]
struct Blocking {
    state: Mutex<BlockingState>,
    arrived: Condvar,
}

#[derive(Default)]
struct BlockingState {
    queue: VecDeque<(Arc<Session>, Arc<Run>)>,
    idle: usize,
    started: usize,
    closed: bool,
}

impl Blocking {
    fn start(self: &Arc<Self>, session: &Arc<Session>, run: Arc<Run>) {
        let number = {
            let mut state = locked(&self.state);
            state.queue.push_back((session.clone(), run));
            if state.idle >= state.queue.len() {
                self.arrived.notify_one();
                return;
            }
            state.started += 1;
            state.started
        };
        let name = format!("leasehold-blocking-{number}");
        let pool = self.clone();
        let spawned = std::thread::Builder::new().name(name.clone()).spawn(move || {
            pool.serve(&name);
        });
        if let Err(error) = spawned {
            log::error!(error:% = error; "no thread could be started for a blocking handler");
            let unserved = locked(&self.state).queue.pop_back();
            if let Some((session, run)) = unserved {
                session.finish(&run, Settle::Snooze(1_000));
            }
        }
    }

    fn serve(&self, name: &str) {
        let locals = Locals::default();
        let mut state = locked(&self.state);
        loop {
            if let Some((session, run)) = state.queue.pop_front() {
                drop(state);
                run_blocking(&session, &run, &locals, name);
                state = locked(&self.state);
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                let waited = self.arrived.wait_timeout(state, IDLE);
                let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = next;
                state.idle -= 1;
                if timeout.timed_out() && state.queue.is_empty() {
                    return;
                }
            }
        }
    }
}

fn run_blocking(session: &Arc<Session>, run: &Arc<Run>, locals: &Locals, thread: &str) {
    let Some(Starter::Blocking(start)) = session.starters.get(&run.claimed.kind) else {
        session.finish(run, Settle::Release);
        return;
    };
    let end = EndGuard::new(session, run, thread);
    let result = match &session.around {
        None => start(run.clone(), locals),
        Some(around) => {
            let handler = async { start(run.clone(), locals) };
            let future = around::run(Some(around.clone()), Call::of(run), handler);
            let future = AssertUnwindSafe(future).catch_unwind();
            crate::block_on(future).unwrap_or_else(handler::panicked)
        }
    };
    end.finish(result);
}

/// A handler with the code around it, to its end. The handler's own panic is caught nearer to
/// it; this one catches those of the code around.
async fn caught(future: impl Future<Output = JobResult>, end: EndGuard) {
    let result = AssertUnwindSafe(future).catch_unwind().await;
    end.finish(result.unwrap_or_else(handler::panicked));
}
