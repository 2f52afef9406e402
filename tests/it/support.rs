//! What tests share: a job whose handler does as its payload says, a bystander that must not
//! change, and the test binary as a child process.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{
    Client, Ctx, Job, JobId, JobRecord, JobResult, NewJob, Outcome, Retry, Settings, StopReason,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// A job whose handler does as it says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Act {
    Done,
    Fail,
    Panic,
    /// Waits for ever at an await.
    Hang,
    /// Waits until it is asked to stop, then hands back.
    UntilAsked,
    /// Blocks its thread until the gate opens.
    Block,
    /// Keeps its thread busy until the gate opens.
    Spin,
    /// Sits in the store's transaction until the gate opens.
    StickInStore,
    /// Sleeps on the runtime's clock for so many milliseconds.
    Sleep(u64),
}

impl Job for Act {
    const KIND: &'static str = "act";

    fn settings() -> Settings {
        Settings::new().retry(Retry::fixed(Duration::from_secs(1)).no_jitter().attempts(3))
    }
}

/// What handlers and tests tell each other.
#[derive(Clone, Default)]
pub struct Signals(Arc<Shared>);

#[derive(Default)]
struct Shared {
    entered: AtomicU32,
    on_entry: Notify,
    open: std::sync::Mutex<bool>,
    on_open: std::sync::Condvar,
    reasons: std::sync::Mutex<Vec<StopReason>>,
}

impl Signals {
    pub fn enter(&self) {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        self.0.on_entry.notify_waiters();
    }

    /// Waits until handlers have been entered so many times in all.
    pub async fn entered(&self, times: u32) {
        loop {
            let entry = self.0.on_entry.notified();
            if self.0.entered.load(Ordering::SeqCst) >= times {
                return;
            }
            entry.await;
        }
    }

    pub fn times(&self) -> u32 {
        self.0.entered.load(Ordering::SeqCst)
    }

    /// Opens the gate for handlers that do not end by themselves.
    pub fn open(&self) {
        *self.0.open.lock().unwrap() = true;
        self.0.on_open.notify_all();
    }

    fn is_open(&self) -> bool {
        *self.0.open.lock().unwrap()
    }

    pub fn wait_for_gate(&self) {
        let mut open = self.0.open.lock().unwrap();
        while !*open {
            open = self.0.on_open.wait(open).unwrap();
        }
    }

    pub fn note(&self, reason: StopReason) {
        self.0.reasons.lock().unwrap().push(reason);
    }

    /// Why handlers were asked to stop, in order.
    pub fn reasons(&self) -> Vec<StopReason> {
        self.0.reasons.lock().unwrap().clone()
    }
}

/// The handler of [`Act`].
pub async fn act(job: Act, ctx: Ctx<Signals>) -> JobResult {
    ctx.state().enter();
    match job {
        Act::Done => Ok(Outcome::Done),
        Act::Fail => Err("as it was told")?,
        Act::Panic => panic!("as it was told"),
        Act::Hang => std::future::pending().await,
        Act::UntilAsked => {
            let reason = ctx.cancelled().await;
            ctx.state().0.reasons.lock().unwrap().push(reason);
            Ok(Outcome::Yield)
        }
        Act::Block => {
            ctx.state().wait_for_gate();
            Ok(Outcome::Done)
        }
        Act::Spin => {
            while !ctx.state().is_open() {
                std::hint::spin_loop();
            }
            Ok(Outcome::Done)
        }
        Act::StickInStore => {
            let signals = ctx.state().clone();
            let stuck = ctx.fenced(move |_| -> Result<(), std::io::Error> {
                signals.wait_for_gate();
                Ok(())
            });
            Ok(stuck.await.map(|()| Outcome::Done)?)
        }
        Act::Sleep(ms) => {
            ctx.sleep(Duration::from_millis(ms)).await;
            Ok(Outcome::Done)
        }
    }
}

/// A job beside the one under test, which must not change.
pub struct Bystander {
    client: Client,
    before: JobRecord,
}

impl Bystander {
    /// A job of a kind that nobody serves.
    pub async fn enqueue(client: &Client) -> Self {
        let job = NewJob::raw("bystander", None).dedup_key("bystander");
        let id = client.enqueue(job).await.unwrap().id;
        let before = client.job(id).await.unwrap().unwrap();
        Self { client: client.clone(), before }
    }

    pub fn id(&self) -> &JobId {
        &self.before.id
    }

    /// Fails if it has changed in any way.
    pub async fn check(&self) {
        self.check_by(&self.client).await;
    }

    /// The same, as another process sees it.
    pub async fn check_by(&self, client: &Client) {
        let after = client.job(&self.before.id).await.unwrap().unwrap();
        assert_eq!(format!("{after:?}"), format!("{:?}", self.before));
    }
}

/// A job's record.
pub async fn record(client: &Client, id: &JobId) -> JobRecord {
    client.job(id).await.unwrap().unwrap()
}

/// Set in a child process: the folder that it works in.
pub const CHILD: &str = "LEASEHOLD_TEST_CHILD";

/// The folder, where this process is a child started by [`spawn_child`].
pub fn child_folder() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Runs one test of this binary as a process of its own.
pub fn spawn_child(test: &str, folder: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
