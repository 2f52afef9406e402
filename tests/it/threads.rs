//! The threads that handlers run on: whatever one of them does to its thread, every slot has
//! another.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use leasehold::testing::{self, Lab};
use leasehold::{Ctx, Job, JobResult, Outcome, Runtime, Status};
use serde::{Deserialize, Serialize};

use crate::support::{Act, CHILD, Signals, act, child_folder};

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

/// Blocks its thread until so many times have been let go.
#[derive(Serialize, Deserialize)]
struct UntilLetGo(u32);

impl Job for UntilLetGo {
    const KIND: &'static str = "until-let-go";
}

#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<u32>, Condvar)>, Signals);

async fn until_let_go(job: UntilLetGo, ctx: Ctx<Gate>) -> JobResult {
    let Gate(gate, signals) = ctx.state();
    signals.enter();
    let mut times = gate.0.lock().unwrap();
    while *times < job.0 {
        times = gate.1.wait(times).unwrap();
    }
    Ok(Outcome::Done)
}

/// The child: a thread is added and goes again, so many times; answers with its exit code whether
/// the process has grown by as many stacks.
#[cfg(target_os = "linux")]
#[test]
fn child_whose_threads_come_and_go() {
    if child_folder().is_none() {
        return;
    }
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let gate = Gate::default();
        let builder = Runtime::in_memory().state(gate.clone()).handle(until_let_go);
        let lab = Lab::start(builder.threads(1).slots(2)).await.unwrap();
        let mut before = 0;
        for times in 1..=40 {
            // The first blocks the one thread, so the second comes to one that is added.
            for n in 1..=2 {
                lab.enqueue(UntilLetGo(times)).await.unwrap();
                moving(&lab, 100, gate.1.entered(2 * (times - 1) + n)).await;
            }
            *gate.0.0.lock().unwrap() = times;
            gate.0.1.notify_all();
            let gone = async {
                while testing::kept(&lab.runtime)["added threads"] > 0 {
                    tokio::task::yield_now().await;
                }
            };
            moving(&lab, 1_000, gone).await;
            if times == 10 {
                before = address_space();
            }
        }
        let grown = address_space().saturating_sub(before);
        println!("\ngrown by {} MiB", grown >> 20);
        std::process::exit(if grown < 20 << 20 { 7 } else { 1 });
    });
}

/// How much memory this process has reserved, in bytes.
#[cfg(target_os = "linux")]
fn address_space() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<usize>().unwrap() * 4_096
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_are_added_and_go_again_leave_no_stack_behind() {
    let test = "threads::child_whose_threads_come_and_go";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "");
    // Else the allocator reserves some for a thread, now and then.
    let output = child.env("MALLOC_ARENA_MAX", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{said}");
}
