//! A worker process: runs jobs, enqueues more, and says what was acknowledged, until it is killed.

use std::io::stdin;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{Client, Runtime, TransactionError};
use tokio::sync::Notify;

use crate::dice::Dice;
use crate::kinds::{self, Next};
use crate::said::{Pipe, Said, tell};

/// How long handlers get at the end.
const GRACE: Duration = Duration::from_secs(5);

/// What it was asked for by a line on standard input, or by its end.
#[derive(Default)]
struct Asked {
    /// Enqueue no more.
    drain: AtomicBool,
    stop: Notify,
}

impl Asked {
    /// Listens on a thread of its own, which ends with the process.
    fn listen() -> Arc<Self> {
        let asked = Arc::new(Self::default());
        let heard = asked.clone();
        std::thread::spawn(move || {
            for _line in stdin().lines().map_while(Result::ok) {
                heard.drain.store(true, Ordering::SeqCst);
            }
            heard.stop.notify_one();
        });
        asked
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn run(db: &Path, seed: u64, number: u32) -> anyhow::Result<()> {
    let (asked, pipe) = (Asked::listen(), Pipe::open()?);
    let runtime: Runtime = kinds::builder(db, &pipe).start().await?;
    pipe.say(&Said::Ready { owner: runtime.owner().to_owned() });
    let (client, mut dice) = (runtime.client(), Dice::new(seed, number.into()));
    let told = pipe.clone();
    tokio::spawn(tell(client.events(), move |said| told.say(&said)));
    let enqueuing = async {
        while !asked.drain.load(Ordering::SeqCst) {
            if let Some(job) = enqueue(&client, &mut dice).await {
                pipe.say(&Said::Queued { job });
            }
            tokio::time::sleep(Duration::from_millis(10 + dice.below(30))).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = enqueuing => {}
        () = asked.stop.notified() => {}
    }
    runtime.stop(GRACE).await;
    Ok(())
}

/// Enqueues what comes next; answers its id where that was acknowledged.
pub async fn enqueue(client: &Client, dice: &mut Dice) -> Option<String> {
    let enqueued = match kinds::next(dice) {
        Next::Plain(job) => client.enqueue(job).await.map(|enqueued| enqueued.id.to_string()),
        Next::WithRow(job) => {
            let enqueued = client.transaction(move |tx| kinds::with_row(tx, &job)).await;
            enqueued.map_err(|error| match error {
                TransactionError::Application(error) => error,
                TransactionError::Store(fault) => fault.into(),
                other => leasehold::Error::Setup(other.to_string()),
            })
        }
    };
    enqueued.inspect_err(|error| log::error!("an enqueue was not acknowledged: {error}")).ok()
}
