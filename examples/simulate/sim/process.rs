//! A process: a runtime with its producers, which can be stopped, resumed and killed.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use leasehold::testing::{Faults, Machine, Point};
use leasehold::{
    By, Durability, Event, Events, Operator, Redrive, Runtime, Status, Target, TransactionError,
    Was, What,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

use super::clock::SimClock;
use super::history::Asked;
use super::job::{self, Hooked, Stage, answer};
use super::rng::Rng;

/// What a process is asked to do.
pub enum Order {
    Cancel(String),
    Redrive(String),
    Pause,
    Resume,
    Stop(Duration),
}

pub struct Process {
    set: LocalSet,
    pub stage: Stage,
    pub faults: Faults,
    orders: UnboundedSender<Order>,
    /// It does not go on before this moment.
    pub stalled_until: u64,
    /// It was told to stop.
    pub is_stopped: bool,
    /// It dies where it gets to this point: before it writes, or when the write has landed and
    /// nobody is told.
    pub doom: Option<Point>,
}

impl Process {
    /// Starts one; it enqueues until `until`.
    pub fn start(
        (machine, clock): (&Machine, &SimClock),
        path: &Path,
        stage: Stage,
        until: u64,
    ) -> Self {
        let (set, faults) = (LocalSet::new(), Faults::default());
        let (orders, received) = unbounded_channel();
        let parts = (machine.clone(), clock.clone(), faults.clone());
        set.spawn_local(run(parts, path.to_owned(), stage.clone(), until, received));
        Self { set, stage, faults, orders, stalled_until: 0, is_stopped: false, doom: None }
    }

    pub fn tell(&self, order: Order) {
        // A process that could not start hears nothing.
        let _gone = self.orders.send(order);
    }

    /// Goes on until all of it waits; answers whether it lives.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        // It never ends by itself.
        let _pending = Future::poll(Pin::new(&mut self.set), cx);
        self.doom.is_none_or(|point| self.faults.left(point) > 0)
    }
}

async fn run(
    (machine, clock, faults): (Machine, SimClock, Faults),
    path: std::path::PathBuf,
    stage: Stage,
    until: u64,
    mut orders: UnboundedReceiver<Order>,
) {
    let (seed, process) = (stage.seed, stage.process as u64);
    let mut tries = 0;
    let runtime = loop {
        let builder = Runtime::builder(&path)
            .state(stage.clone())
            .faults(faults.clone())
            .durability(Durability::Normal)
            .no_ballast()
            .slots(3)
            .threads(2)
            .handle(job::quick)
            .handle(job::sliced)
            .handle(job::slow)
            .handle(job::hooked)
            .hooks::<Hooked>(job::hooks(seed))
            .limit_key("narrow", 1);
        let bytes = Rng::of(seed, &[2, process, tries]).next();
        match machine.start(builder, Arc::new(clock.clone()), bytes).await {
            Ok(runtime) => break runtime,
            Err(error) => stage.note(format_args!("could not start: {error}")),
        }
        tries += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    stage.note(format_args!("is up as {}", runtime.owner()));
    spawn_local(listen(runtime.events(), stage.clone()));
    spawn_local(produce(runtime.clone(), stage.clone(), until));
    while let Some(order) = orders.recv().await {
        spawn_local(obey(runtime.clone(), stage.clone(), order));
    }
}

/// Hears of completions.
async fn listen(mut events: Events, stage: Stage) {
    while let Some(event) = events.next().await {
        let Event::Job(event) = event else { continue };
        stage.note(format_args!("hears {} {} {:?}", event.id, event.what, event.outcome));
        if event.what == What::Settled && event.status == Status::Completed {
            let id = event.id.to_string();
            stage.history().settled.entry(id).or_default().push(event.epoch);
        }
    }
}

async fn produce(runtime: Runtime, stage: Stage, until: u64) {
    let mut rng = Rng::of(stage.seed, &[3, stage.process as u64]);
    for n in 0..20 {
        tokio::time::sleep(Duration::from_millis(rng.between(5, 1_000))).await;
        if stage.at() >= until {
            return;
        }
        spawn_local(enqueue(
            runtime.clone(),
            stage.clone(),
            20 * stage.process as u64 + n,
            rng.clone(),
        ));
        rng.next();
    }
}

async fn enqueue(runtime: Runtime, stage: Stage, n: u64, mut rng: Rng) {
    let mut new = job::new_job(rng.below(job::KINDS), n);
    if rng.percent(60) {
        new = new.id(format!("j{n}"));
    }
    if rng.percent(20) {
        new = new.dedup_key(*rng.pick(&["a", "b"]));
    }
    if rng.percent(25) {
        new = new.limit_key("narrow");
    }
    if rng.percent(30) {
        new = new.delay(Duration::from_millis(rng.between(1, 1_500)));
    }
    if rng.percent(20) {
        new = new.priority(5 - i64::try_from(rng.below(10)).unwrap_or_default());
    }
    stage.history().asked.insert(n, Asked::Unknown);
    let enqueued = if rng.percent(25) {
        let enqueued = runtime.transaction(move |tx| tx.enqueue(new.clone())).await;
        enqueued.map_err(|error| match error {
            TransactionError::Application(error) => error,
            TransactionError::Store(fault) => fault.into(),
            other => leasehold::Error::Setup(other.to_string()),
        })
    } else {
        runtime.enqueue(new).await
    };
    stage.note(format_args!("enqueues {n}: {}", answer(&enqueued)));
    let enqueued = match enqueued {
        Ok(enqueued) => enqueued,
        Err(leasehold::Error::Store(fault)) if job::says_no(&fault) => {
            stage.history().asked.insert(n, Asked::Refused);
            return;
        }
        Err(_) => return,
    };
    // Asked again after a lost answer, it finds itself by the id that it was given.
    let ours = matches!(enqueued.was, Was::New | Was::Existing { by: By::Id });
    let asked = if ours { Asked::Acked } else { Asked::Refused };
    stage.history().asked.insert(n, asked);
}

async fn obey(runtime: Runtime, stage: Stage, order: Order) {
    let client = runtime.client();
    let by = || Operator::named("ann");
    let all = || Target::Queue("default".into());
    let (what, answer) = match order {
        Order::Cancel(id) => {
            let status = client.cancel(id.as_str(), by()).await;
            if let Ok(status) = status {
                let asked = (stage.at(), status == Status::Running);
                stage.history().cancels.entry(id.clone()).or_default().push(asked);
            }
            (format!("cancels {id}"), answer(&status))
        }
        Order::Redrive(id) => {
            // Where the answer is lost it may have landed, or lands later.
            let at = stage.at();
            let place = {
                let mut history = stage.history();
                let all = history.redrives.entry(id.clone()).or_default();
                all.push((at, u64::MAX));
                all.len() - 1
            };
            let how = Redrive::default().force().allow_finished();
            let done = client.redrive(id.as_str(), how, by()).await;
            let to = match &done {
                Ok(()) => stage.at(),
                // Never.
                Err(leasehold::Error::Refused(_)) => 0,
                Err(_) => u64::MAX,
            };
            if let Some(all) = stage.history().redrives.get_mut(&id) {
                all[place].1 = to;
            }
            (format!("redrives {id}"), answer(&done))
        }
        Order::Pause => ("pauses".to_owned(), answer(&client.pause(all(), by()).await)),
        Order::Resume => ("resumes".to_owned(), answer(&client.resume(all(), by()).await)),
        Order::Stop(grace) => ("stops".to_owned(), format!("{:?}", runtime.stop(grace).await)),
    };
    stage.note(format_args!("{what}: {answer}"));
}
