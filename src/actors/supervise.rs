//! Supervision that survives a panic: the framework's own does not.
//!
//! An actor's context runs inside a future of ours, which catches the unwind of one poll,
//! waits, and restarts the same actor behind the same address: of what waits in its mailbox
//! only the message that panicked is lost. An actor that panics too often is given up, and
//! the runtime is unhealthy.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use actix::dev::ContextFut;
use actix::{Actor, Addr, Context, Supervised};

use crate::clock::Sleep;
use crate::health::Health;
use crate::rules::budget::Restarts;
use crate::rules::text;

/// Starts `actor` on this thread's arbiter, supervised.
pub(crate) fn start<A>(name: &'static str, health: Arc<Health>, actor: A) -> Addr<A>
where
    A: Actor<Context = Context<A>> + Supervised,
{
    let context = Context::<A>::new();
    let addr = actix::AsyncContext::address(&context);
    let future = Box::pin(context.into_future(actor));
    let restarts = Restarts::default();
    actix_rt::spawn(Supervision { name, health, future, restarts, pause: None });
    addr
}

struct Supervision<A>
where
    A: Actor<Context = Context<A>> + Supervised,
{
    name: &'static str,
    health: Arc<Health>,
    future: Pin<Box<ContextFut<A, Context<A>>>>,
    restarts: Restarts,
    pause: Option<Sleep>,
}

impl<A> Future for Supervision<A>
where
    A: Actor<Context = Context<A>> + Supervised,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(cx));
                // In this order: whoever looks sees the clock ring, or the loop go on.
                self.health.goes_on(self.name);
                self.pause = None;
                if !self.future.restart() {
                    return Poll::Ready(());
                }
            }
            match catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(cx))) {
                Ok(poll) => return poll,
                Err(panic) => {
                    let error = text::of_panic(panic);
                    let now = self.health.clock.monotonic();
                    let Some(pause) = self.restarts.next(now) else {
                        self.health.gave_up(self.name, &error);
                        return Poll::Ready(());
                    };
                    let pause = Duration::from_millis(pause.unsigned_abs());
                    self.pause = Some(self.health.clock.sleep(pause));
                    self.health.pauses(self.name);
                    self.health.restarted(self.name, &error);
                }
            }
        }
    }
}
