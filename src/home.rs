//! Where loops live: on threads of their own, or all on the one that starts them, where a seed
//! tells in which order they go on.

use std::future::Future;

use actix_rt::{Arbiter, System};

/// Where a host's loops live.
#[derive(Clone)]
pub(crate) enum Home {
    /// On threads of this System.
    Apart(System),
    /// On the thread that starts them, in the `LocalSet` that they are started in.
    Here,
}

/// A thread for loops.
pub(crate) struct Thread(Option<Arbiter>);

impl Home {
    /// Whether all loops share one thread.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self, Self::Here)
    }

    /// Runs a task on the control thread.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Apart(system) => {
                system.arbiter().spawn(task);
            }
            Self::Here => {
                tokio::task::spawn_local(task);
            }
        }
    }

    /// Runs code on the control thread; at once, where that is this one.
    pub(crate) fn run(&self, code: impl FnOnce() + Send + 'static) {
        match self {
            Self::Apart(system) => {
                system.arbiter().spawn_fn(code);
            }
            Self::Here => code(),
        }
    }

    /// One more thread.
    pub(crate) fn thread(&self) -> Thread {
        match self {
            Self::Apart(system) => {
                System::set_current(system.clone());
                Thread(Some(Arbiter::new()))
            }
            Self::Here => Thread(None),
        }
    }

    /// Ends the thread that this is called on, which is not the control thread.
    pub(crate) fn leave(&self) {
        if let Self::Apart(_) = self {
            Arbiter::current().stop();
        }
    }

    /// Ends the control thread.
    pub(crate) fn end(&self) {
        if let Self::Apart(system) = self {
            system.stop();
        }
    }
}

impl Thread {
    /// Runs code on it.
    pub(crate) fn run(&self, code: impl FnOnce() + Send + 'static) {
        match &self.0 {
            Some(arbiter) => {
                arbiter.spawn_fn(code);
            }
            None => code(),
        }
    }

    /// Ends it once its tasks wait.
    pub(crate) fn stop(&self) {
        if let Some(arbiter) = &self.0 {
            arbiter.stop();
        }
    }
}
