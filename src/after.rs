//! Hooks that run after a commit, on a thread of their own: one that does not end holds up no
//! job, and no commit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::hooks::Hooks;
use crate::record::JobRecord;
use crate::rules::text;
use crate::store::txn::AfterHook;

/// Hooks that may wait.
const WAITING: usize = 10_000;

type Call = (Hooks, AfterHook, JobRecord);

/// Runs hooks one after the other. Its thread starts with the first, and ends with it.
#[derive(Default)]
pub(crate) struct After {
    /// Each is run at once, by whoever brings it.
    here: bool,
    thread: Mutex<Option<SyncSender<Call>>>,
    /// Hooks that have not ended.
    pending: Arc<Pending>,
}

#[derive(Default)]
struct Pending {
    count: AtomicU64,
    none: tokio::sync::Notify,
}

impl After {
    pub(crate) fn new(here: bool) -> Self {
        Self { here, ..Self::default() }
    }

    /// Has a hook run; drops it where too many wait.
    pub(crate) fn run(&self, call: Call) {
        if self.here {
            run(&call.0, call.1, &call.2);
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*thread {
            Some(sender) => sender.clone(),
            None => match self.start() {
                Ok(sender) => thread.insert(sender).clone(),
                Err(error) => {
                    log::error!(error:% = error; "no thread for hooks after the commit");
                    return;
                }
            },
        };
        self.pending.count.fetch_add(1, Ordering::SeqCst);
        match sender.try_send(call) {
            Ok(()) => {}
            Err(TrySendError::Full((_, _, job)) | TrySendError::Disconnected((_, _, job))) => {
                self.pending.done();
                log::error!(job:% = job.id; "a hook after the commit was dropped: too many wait");
            }
        }
    }

    fn start(&self) -> std::io::Result<SyncSender<Call>> {
        let (sender, receiver) = sync_channel::<Call>(WAITING);
        let pending = self.pending.clone();
        std::thread::Builder::new().name("leasehold-after".into()).spawn(move || {
            for (hooks, which, record) in receiver {
                run(&hooks, which, &record);
                pending.done();
            }
        })?;
        Ok(sender)
    }

    /// Hooks that have not ended.
    pub(crate) fn waiting(&self) -> usize {
        usize::try_from(self.pending.count.load(Ordering::SeqCst)).unwrap_or(usize::MAX)
    }

    /// Ends when no hook waits or runs.
    pub(crate) async fn idle(&self) {
        loop {
            let none = self.pending.none.notified();
            if self.pending.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            none.await;
        }
    }
}

impl Pending {
    fn done(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.none.notify_waiters();
        }
    }
}

fn run(hooks: &Hooks, which: AfterHook, record: &JobRecord) {
    let hook = match which {
        AfterHook::Transition => &hooks.after_transition,
        AfterHook::Redrive => &hooks.after_redrive,
    };
    let Some(hook) = hook else { return };
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hook(record)));
    if let Err(panic) = ran {
        let error = text::of_panic(panic);
        log::error!(job:% = record.id, error:% = error; "a hook after the commit panicked");
    }
}
