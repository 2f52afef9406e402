//! Code around every handler: for spans, for measuring, for what all handlers share.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::handler::{JobError, JobResult};
use crate::job::JobId;
use crate::work::run::Run;

type Sent = Pin<Box<dyn Future<Output = JobResult> + Send>>;

/// Which attempt is about to run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Arc<str>,
    /// Which attempt since the last progress, from 1.
    pub attempt: i64,
    /// The epoch that names the attempt.
    pub epoch: i64,
}

impl Call {
    pub(crate) fn of(run: &Run) -> Self {
        let claimed = &run.claimed;
        Self {
            id: claimed.id.clone(),
            kind: claimed.kind.clone(),
            attempt: claimed.attempt,
            epoch: claimed.holder.epoch,
        }
    }
}

/// The handler, or the next code around it: await it to run it. A panic of the handler is an
/// error here.
pub struct Next(Kind);

enum Kind {
    /// The handler runs beside, in the same task: it need not be `Send`, and this is.
    Beside {
        start: Option<oneshot::Sender<()>>,
        answer: oneshot::Receiver<JobResult>,
    },
    Within(Sent),
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

impl Future for Next {
    type Output = JobResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<JobResult> {
        match &mut self.0 {
            Kind::Within(future) => future.as_mut().poll(cx),
            Kind::Beside { start, answer } => {
                if let Some(start) = start.take() {
                    // It waits for this as long as the task lives.
                    let _gone = start.send(());
                }
                let dropped = || Err(JobError::retry("the handler was dropped"));
                Pin::new(answer).poll(cx).map(|answer| answer.unwrap_or_else(|_| dropped()))
            }
        }
    }
}

/// Code around every handler of a runtime.
pub(crate) type Around = Arc<dyn Fn(Call, Next) -> Sent + Send + Sync>;

/// Makes one of a function; where there is one already, it runs within that.
pub(crate) fn add<F, Fut>(outer: Option<Around>, inner: F) -> Around
where
    F: Fn(Call, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = JobResult> + Send + 'static,
{
    let inner: Around = Arc::new(move |call, next| Box::pin(inner(call, next)));
    match outer {
        None => inner,
        Some(outer) => Arc::new(move |call, next| {
            let within = Next(Kind::Within(inner(call.clone(), next)));
            outer(call, within)
        }),
    }
}

/// Runs a handler with the code around it, in one task.
pub(crate) async fn run<H>(around: Option<Around>, call: Call, handler: H) -> JobResult
where
    H: Future<Output = JobResult>,
{
    let Some(around) = around else { return handler.await };
    let (start, started) = oneshot::channel();
    let (answer, answered) = oneshot::channel();
    let mut outer = around(call, Next(Kind::Beside { start: Some(start), answer: answered }));
    let beside = async move {
        if started.await.is_ok() {
            let _gone = answer.send(handler.await);
        }
    };
    let mut beside = std::pin::pin!(beside);
    let mut ended = false;
    loop {
        tokio::select! {
           biased;
            result = &mut outer => return result,
            () = &mut beside, if !ended => ended = true,
        }
    }
}
