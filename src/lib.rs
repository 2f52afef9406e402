mod actors;
mod client;
mod clock;
mod entropy;
mod error;
pub mod faults;
mod finite;
mod health;
mod hooks;
mod host;
mod job;
mod json;
mod kind;
mod rules;
mod store;
pub mod testing;
mod validate;
pub use client::*;
pub use clock::*;
pub use entropy::*;
pub use error::*;
pub use hooks::*;
pub use job::*;
pub use json::Json;
pub use kind::*;
pub use rules::operate::Redrive;
pub use store::operator::{Operator, Target};
pub use store::reaper::ReapReport;

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: std::future::Future>(future: F) -> F::Output {
    use std::task::{Context, Poll, Wake, Waker};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
