//! The threads that handlers run on: whatever one of them does to its thread, every slot has
//! another.

use std::time::Duration;

use leasehold::testing::Lab;
use leasehold::{Job, Runtime, Status};

use crate::support::{Act, Signals, act};

const PATIENCE: Duration = Duration::from_secs(60);

/// Moves the clock on, looking at all that is due, for as long as somebody waits.
async fn moving(lab: &Lab, ms: i64, wait: impl Future<Output = ()>) {
    let move_on = async {
        loop {
            lab.clock.advance(ms);
            lab.look().await;
        }
    };
    let either = async {
        tokio::select! { biased; () = wait => {}, () = move_on => {} }
    };
    tokio::time::timeout(PATIENCE, either).await.unwrap();
}

#[tokio::test]
async fn a_handler_that_waits_on_an_added_thread_keeps_it_however_idle_it_is() {
    let signals = Signals::default();
    let builder = Runtime::in_memory().state(signals.clone()).handle(act).threads(1).slots(2);
    let lab = Lab::start(builder).await.unwrap();
    lab.enqueue(Act::Block).await.unwrap();
    lab.look().await;
    signals.entered(1).await;
    let id = lab.enqueue(Act::Sleep(60_000)).await.unwrap();
    moving(&lab, 100, signals.entered(2)).await;
    let ended = async {
        while lab.job(&id).await.unwrap().finished_at.is_none() {
            tokio::task::yield_now().await;
        }
    };
    moving(&lab, 1_000, ended).await;
    signals.open();
    let job = lab.job(&id).await.unwrap();
    assert_eq!((job.status, job.epoch), (Status::Completed, 1));
}

#[tokio::test]
async fn every_slot_has_a_thread_however_many_handlers_block_theirs_for_ever() {
    let signals = Signals::default();
    let builder = Runtime::in_memory().state(signals.clone()).handle(act).threads(1).slots(1);
    let lab = Lab::start(builder.max_zombies(0)).await.unwrap();
    for times in 1..=6 {
        lab.enqueue(Act::Block.into_new().max_attempts(1)).await.unwrap();
        moving(&lab, 10_000, signals.entered(times)).await;
    }
    let health = lab.runtime.health();
    signals.open();
    assert_eq!(health.zombies, 5);
    assert!(!health.is_healthy(), "above the limit it says so, and goes on");
}
