//! What the runtime relies on of the actor framework, a test a fact: an upgrade that changes
//! one of them is noticed here first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Message};
use futures_util::FutureExt;

#[derive(Message)]
#[rtype(result = "usize")]
struct Count(usize);

#[derive(Message)]
#[rtype(result = "()")]
struct Flush;

/// Counts messages, and notes how many had come when its own message to itself was handled.
#[derive(Default)]
struct Counter {
    seen: usize,
    armed: bool,
    at_flush: Arc<AtomicUsize>,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

impl Handler<Count> for Counter {
    type Result = usize;

    fn handle(&mut self, count: Count, ctx: &mut Context<Self>) -> usize {
        if !self.armed {
            self.armed = true;
            ctx.notify(Flush);
        }
        self.seen += count.0;
        self.seen
    }
}

impl Handler<Flush> for Counter {
    type Result = ();

    fn handle(&mut self, _: Flush, _: &mut Context<Self>) {
        self.at_flush.store(self.seen, Ordering::SeqCst);
    }
}

#[test]
fn a_message_to_oneself_comes_after_all_that_waits() {
    actix_rt::System::new().block_on(async {
        let at_flush = Arc::new(AtomicUsize::new(0));
        let addr = Counter { at_flush: at_flush.clone(), ..Counter::default() }.start();
        // Far more than the mailbox is said to hold: nothing that is sent so is refused.
        for _ in 0..1_000 {
            addr.do_send(Count(1));
        }
        assert_eq!(addr.send(Count(0)).await.unwrap(), 1_000);
        assert!(addr.send(Flush).now_or_never().is_none());
        assert_eq!(at_flush.load(Ordering::SeqCst), 1_000);
    });
}

#[test]
fn a_panic_in_a_task_leaves_the_thread_and_its_other_tasks_alone() {
    actix_rt::System::new().block_on(async {
        let beside = actix_rt::spawn(async {
            tokio::task::yield_now().await;
            7
        });
        let panicked = actix_rt::spawn(async { panic!("in a task") }).await;
        assert!(panicked.unwrap_err().is_panic());
        assert_eq!(beside.await.unwrap(), 7);
    });
}

#[test]
fn an_aborted_task_is_dropped_on_its_own_thread_from_another() {
    struct Told(mpsc::Sender<std::thread::ThreadId>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }
    let (sender, dropped) = mpsc::channel();
    let (abort_sender, aborts) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        actix_rt::System::new().block_on(async {
            let told = Told(sender);
            let task = actix_rt::spawn(async move {
                let _told = told;
                std::future::pending::<()>().await;
            });
            abort_sender.send(task.abort_handle()).unwrap();
            assert!(task.await.unwrap_err().is_cancelled());
        });
    });
    let id = thread.thread().id();
    aborts.recv().unwrap().abort();
    assert_eq!(dropped.recv_timeout(Duration::from_secs(60)).unwrap(), id);
    thread.join().unwrap();
}

#[test]
fn a_system_that_stops_takes_no_other_systems_arbiter_with_it() {
    let (sender, ours) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runner = actix_rt::System::new();
        sender.send(actix_rt::Arbiter::current()).unwrap();
        runner.block_on(async { stopped.await.unwrap() });
    });
    let ours = ours.recv().unwrap();
    let host = actix_rt::System::new();
    actix_rt::System::current().stop();
    host.run().unwrap();
    let (sender, answer) = mpsc::channel();
    assert!(ours.spawn_fn(move || sender.send(7).unwrap()), "it still takes work");
    assert_eq!(answer.recv_timeout(Duration::from_secs(60)).unwrap(), 7);
    stop.send(()).unwrap();
    thread.join().unwrap();
}
