//! The runtime in each kind of host: under actix-web, under tokio, in a plain thread; with the
//! host's own connection pool, and when the host is told to go.

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Ctx, Job, JobResult, Outcome, Runtime, Status};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Act, Signals, act, child_folder, record, spawn_child};

const PATIENCE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(5);

/// A job whose handler's future cannot be sent between threads.
#[derive(Serialize, Deserialize)]
struct Local {
    n: u64,
}

impl Job for Local {
    const KIND: &'static str = "local";
}

async fn local(job: Local, ctx: Ctx<std::rc::Rc<u64>>) -> JobResult {
    // Held over an await: the future is not `Send`.
    let kept = std::rc::Rc::new(job.n);
    ctx.save(&1).await?;
    actix_web::rt::spawn(async {}).await?;
    Ok(Outcome::done_with(&(*kept + **ctx.state())))
}

async fn through(runtime: &Runtime) {
    let id = runtime.enqueue(Local { n: 40 }).await.unwrap().id;
    let job = runtime.wait(id, PATIENCE).await.unwrap();
    assert_eq!(job.result.unwrap().as_str(), "42");
    assert!(runtime.stop(GRACE).await.drained);
}

#[test]
fn under_actix_web() {
    let dir = tempfile::tempdir().unwrap();
    actix_web::rt::System::new().block_on(async {
        let builder = Runtime::builder(dir.path().join("jobs.db"));
        let made = builder.state_with(|| std::rc::Rc::new(2)).handle(local);
        through(&made.start().await.unwrap()).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_tokio_with_many_threads() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("jobs.db"));
    let made = builder.state_with(|| std::rc::Rc::new(2)).handle(local);
    through(&made.start().await.unwrap()).await;
}

#[test]
fn in_a_plain_thread_without_any_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(dir.path().join("jobs.db"));
    let made = builder.state_with(|| std::rc::Rc::new(2)).handle(local);
    let runtime = made.start_blocking().unwrap();
    let id = runtime.enqueue_blocking(Local { n: 40 }).unwrap().id;
    let job = runtime.client().wait_blocking(id, PATIENCE).unwrap();
    assert_eq!(job.result.unwrap().as_str(), "42");
    assert!(runtime.stop_blocking(GRACE).drained);
}

/// Connections to an echo server, kept by a pool that lives on the host's runtime.
struct Echo(std::net::SocketAddr, Arc<AtomicUsize>);

impl bb8::ManageConnection for Echo {
    type Connection = TcpStream;
    type Error = std::io::Error;

    async fn connect(&self) -> std::io::Result<TcpStream> {
        self.1.fetch_add(1, Ordering::SeqCst);
        TcpStream::connect(self.0).await
    }

    async fn is_valid(&self, _: &mut TcpStream) -> std::io::Result<()> {
        Ok(())
    }

    fn has_broken(&self, _: &mut TcpStream) -> bool {
        false
    }
}

async fn echo_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut byte = [0];
                while stream.read_exact(&mut byte).await.is_ok() {
                    if stream.write_all(&byte).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[derive(Serialize, Deserialize)]
struct Ask {
    byte: u8,
}

impl Job for Ask {
    const KIND: &'static str = "ask";
}

async fn ask(job: Ask, ctx: Ctx<bb8::Pool<Echo>>) -> JobResult {
    let mut stream = ctx.state().get().await?;
    stream.write_all(&[job.byte]).await?;
    let mut answer = [0];
    stream.read_exact(&mut answer).await?;
    ctx.save(&answer[0]).await?;
    Ok(Outcome::done_with(&answer[0]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_on_the_hosts_runtime_use_its_connection_pool() {
    let dir = tempfile::tempdir().unwrap();
    let connected = Arc::new(AtomicUsize::new(0));
    let manager = Echo(echo_server().await, connected.clone());
    let pool = bb8::Pool::builder().max_size(2).build(manager).await.unwrap();
    let runtime = Runtime::builder(dir.path().join("jobs.db"))
        .state(pool)
        .handlers_on(tokio::runtime::Handle::current())
        .handle(ask)
        .slots(8)
        .start()
        .await
        .unwrap();
    let jobs = (0..40).map(|byte| Ask { byte });
    let ids = runtime.client().enqueue_many(jobs).await.unwrap();
    for (byte, id) in ids.into_iter().enumerate() {
        let job = runtime.wait(id.unwrap().id, PATIENCE).await.unwrap();
        assert_eq!((job.status, job.attempts), (Status::Completed, 1));
        assert_eq!(job.result.unwrap().as_str(), byte.to_string());
    }
    assert!(connected.load(Ordering::SeqCst) <= 2, "the pool was shared");
    assert!(runtime.stop(GRACE).await.drained);
}

/// The child: an actix-web service with a job that runs across its end.
#[test]
fn child_under_actix_web() {
    let Some(folder) = child_folder() else { return };
    actix_web::rt::System::new().block_on(async {
        let signals = Signals::default();
        let runtime = Runtime::builder(folder.join("jobs.db"))
            .state(signals.clone())
            .handle(act)
            .start()
            .await
            .unwrap();
        let asked = runtime.enqueue(Act::UntilAsked.into_new().id("asked")).await.unwrap();
        runtime.enqueue(Act::Sleep(600).into_new().id("sleeps")).await.unwrap();
        signals.entered(2).await;
        let server = actix_web::HttpServer::new(actix_web::App::new).workers(1);
        let server = server.bind("127.0.0.1:0").unwrap();
        let address = server.addrs()[0];
        actix_web::rt::spawn(async move {
            // Once it has answered, it hears signals too.
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
            println!("\nserving {}", asked.id);
        });
        let server = server.run();
        // On SIGTERM actix-web ends this, and stops the System that it ran on.
        server.await.unwrap();
        let report = runtime.stop(GRACE).await;
        println!("\ndrained {}", report.drained);
    });
}

#[test]
fn a_sigterm_during_jobs_stops_the_host_and_each_job_ends_or_is_handed_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = spawn_child("hosts::child_under_actix_web", dir.path());
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().starts_with("serving")), "the service came up");
    let killed = std::process::Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let rest: Vec<_> = said.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line == "drained true"), "the stop had its time: {rest:?}");
    assert!(child.wait().unwrap().success());

    let rows = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rows.block_on(async {
        let client = leasehold::Client::open(dir.path().join("jobs.db")).await.unwrap();
        let asked = record(&client, &"asked".into()).await;
        assert_eq!((asked.status, asked.interruptions, asked.attempts), (Status::Pending, 1, 0));
        assert_eq!(record(&client, &"sleeps".into()).await.status, Status::Completed);
    });
}
