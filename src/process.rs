//! Handlers in a process of their own: for code that must be killable, as no thread is.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::context::Ctx;
use crate::handler::{JobError, JobResult, Outcome};
use crate::json::Json;
use crate::work::run::StopReason;

/// How often to look whether the process has ended, in real time.
const LOOK: Duration = Duration::from_millis(20);
/// How much of what it writes is kept, in bytes.
const KEPT: u64 = 2 << 20;

/// Runs one attempt: the payload goes to the process's standard input. When it has ended well,
/// what it wrote to standard output is the result, as JSON or else as a text; otherwise what
/// it wrote to standard error is the error.
pub(crate) fn run<S>(mut command: Command, payload: Option<&Json>, ctx: &Ctx<S>) -> JobResult {
    command
        .env("LEASEHOLD_JOB", ctx.id().to_string())
        .env("LEASEHOLD_KIND", ctx.kind())
        .env("LEASEHOLD_ATTEMPT", ctx.attempt().to_string())
        .env("LEASEHOLD_IDEMPOTENCY_KEY", ctx.idempotency_key())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let program = command.get_program().to_string_lossy().into_owned();
    let named = |error: io::Error| JobError::retry(format!("{program}: {error}"));
    let mut running = Running(command.spawn().map_err(named)?);
    let child = &mut running.0;
    let input = payload.map_or("null", Json::as_str).to_owned();
    let fed = child.stdin.take().map(|mut pipe| {
        // A process that does not read its input is no failure of it.
        std::thread::spawn(move || pipe.write_all(input.as_bytes()).is_ok())
    });
    let output = child.stdout.take().map(collect);
    let errors = child.stderr.take().map(collect);
    let ended = wait(child, ctx).map_err(named)?;
    drop(running);
    drop(fed);
    match ended {
        Ended::Killed(StopReason::Stopping) => Ok(Outcome::Yield),
        Ended::Killed(StopReason::Cancelled) => Ok(Outcome::Cancelled),
        Ended::Killed(reason) => Err(JobError::retry(format!("{program} was killed: {reason:?}"))),
        Ended::Itself(status) if status.success() => {
            let output = joined(output);
            match output.trim() {
                "" => Ok(Outcome::Done),
                text => Ok(match Json::parse(text) {
                    Ok(json) => Outcome::done_as(json),
                    Err(_) => Outcome::done_with(text),
                }),
            }
        }
        Ended::Itself(status) => {
            let errors = joined(errors);
            Err(JobError::retry(format!("{program} ended with {status}: {}", errors.trim())))
        }
    }
}

/// A process that is killed where its handler is left, by a panic too.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Neither matters for one that has ended by itself.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

enum Ended {
    Itself(ExitStatus),
    Killed(StopReason),
}

/// Waits for the end of the process, and kills it when the handler is asked to stop.
fn wait<S>(child: &mut Child, ctx: &Ctx<S>) -> io::Result<Ended> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Itself(status));
        }
        if let Some(reason) = ctx.stop_reason() {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::Killed(reason));
        }
        ctx.block_on(async {
            tokio::select! {
                biased;
                () = ctx.run().moment(LOOK) => {}
                _ = ctx.cancelled() => {}
            }
        });
    }
}

/// Reads a pipe to its end, and keeps the first part.
fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let read = Read::by_ref(&mut pipe).take(KEPT).read_to_end(&mut kept);
        // The rest is read too, so that the process does not wait for room.
        let rest = read.and_then(|_| io::copy(&mut pipe, &mut io::sink()));
        if let Err(error) = rest {
            log::debug!(error:% = error; "a pipe broke");
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

fn joined(reader: Option<JoinHandle<String>>) -> String {
    reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
}
