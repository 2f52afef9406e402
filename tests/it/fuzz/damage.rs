//! Files that are damaged: bits flipped, ranges overwritten, ends cut off, pages swapped, in the
//! database or in its log; opened anew, or while a runtime is on them.
//!
//! Whatever is asked is answered or is a typed error, in time, and what was accepted after the
//! damage is there. What was there before may be lost with its page: `SQLite` has no checksums.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use leasehold::testing::{Bench, BenchSettings};
use leasehold::{
    Client, Durability, Error, Failed, Filter, Job, Json, NewJob, Operator, Order, Paging, Redrive,
    Runtime, Settings, Status, StoreFault, Target,
};

use super::{Case, NOW, Tape, folder, fuzz, in_time};
use crate::support::{Act, Signals, act};

const PAGE: usize = 4_096;

/// A database as a killed process leaves it: its bytes, and those of its log.
pub struct Image {
    database: Vec<u8>,
    log: Vec<u8>,
}

impl Image {
    /// Writes its files, the database under this name.
    pub fn lay_out(&self, path: &Path) {
        std::fs::write(path, &self.database).unwrap();
        std::fs::write(format!("{}-wal", path.display()), &self.log).unwrap();
    }
}

pub fn by() -> Operator {
    Operator::named("ann").because("to see")
}

pub fn bench_settings(path: &Path, seed: u64) -> BenchSettings {
    let path = Some(path.to_owned());
    BenchSettings { now: NOW, path, seed, ..BenchSettings::default() }
}

/// Jobs in every state, with all that can hang on them.
async fn jobs_of_all_sorts(client: &Client, path: &Path) {
    for kind in ["mail", "report"] {
        client.register(kind, Settings::new().queue(kind)).await.unwrap();
    }
    client.limit_key("narrow", 1).await.unwrap();
    client.pause(Target::Queue("report".into()), by()).await.unwrap();
    for n in 0..60 {
        if n == 40 {
            // The rest is in the log alone.
            let conn = leasehold::rusqlite::Connection::open(path).unwrap();
            conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        }
        let payload = Json::of(&"x".repeat(n * n)).unwrap();
        let job = NewJob::raw(if n % 3 == 0 { "report" } else { "mail" }, Some(payload));
        let job = job.id(format!("old-{n}")).dedup_key(format!("key-{n}")).subject_id("s");
        let job = if n % 5 == 0 { job.limit_key("narrow").tenant("t") } else { job };
        let job = if n % 7 == 0 { job.run_at(NOW + 60_000) } else { job };
        client.enqueue(job).await.unwrap();
    }
    for (n, lease) in client.claim(&["mail"], "gone", 20).await.unwrap().into_iter().enumerate() {
        lease.checkpoint("", Json::of(&n).unwrap()).await.unwrap();
        match n % 4 {
            0 => drop(lease.complete(Some(Json::of("done").unwrap())).await.unwrap()),
            1 => drop(lease.fail(Failed::transient("again")).await.unwrap()),
            2 => drop(lease.cancelled().await.unwrap()),
            _ => {}
        }
    }
}

pub fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        std::thread::spawn(|| {
            let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            rt.block_on(async {
                let dir = folder();
                let path = dir.path().join("jobs.db");
                let bench = Bench::start(bench_settings(&path, 1)).await.unwrap();
                jobs_of_all_sorts(&bench.client, &path).await;
                let read =
                    |suffix: &str| std::fs::read(format!("{}{suffix}", path.display())).unwrap();
                Image { database: read(""), log: read("-wal") }
            })
        })
        .join()
        .unwrap()
    })
}

/// A place in a file, more often where it hurts.
fn place(tape: &mut Tape, length: usize) -> usize {
    let page = tape.below(length.div_ceil(PAGE)) * PAGE;
    let at = match tape.below(4) {
        0 => tape.below(100),
        1 => page + tape.below(12),
        2 => page + tape.below(200),
        _ => tape.below(length),
    };
    at.min(length.saturating_sub(1))
}

/// Damages the bytes of a file; answers how.
fn damage(tape: &mut Tape, bytes: &mut Vec<u8>) -> String {
    if bytes.is_empty() {
        return "it is empty already".into();
    }
    let at = place(tape, bytes.len());
    match tape.below(7) {
        0 | 1 => {
            let flips = 1 + tape.below(4);
            for n in 0..flips {
                let at = if n == 0 { at } else { place(tape, bytes.len()) };
                bytes[at] ^= 1 << tape.below(8);
            }
            format!("{flips} bits flipped, the first at {at}")
        }
        2 | 3 => {
            let end = (at + 1 + tape.below(5_000)).min(bytes.len());
            let with = *tape.pick(&[0, 0xff, 1, 0x41]);
            bytes[at..end].fill(with);
            format!("{at} to {end} overwritten with {with}")
        }
        4 => {
            bytes.truncate(at);
            format!("cut off at {at}")
        }
        5 => {
            let more = tape.below(10_000);
            bytes.extend((0..=250).cycle().take(more));
            format!("{more} bytes added")
        }
        _ => {
            let (one, other) = (at / PAGE * PAGE, place(tape, bytes.len()) / PAGE * PAGE);
            for n in 0..PAGE.min(bytes.len() - one.max(other)) {
                bytes.swap(one + n, other + n);
            }
            format!("the page at {one} swapped with that at {other}")
        }
    }
}

/// Whether an answer is one that can be given of a damaged file.
pub fn typed<T>(what: &str, answer: Result<T, Error>) -> Result<Option<T>, String> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Error::Refused(_) | Error::Open { .. }) => Ok(None),
        Err(Error::Store(fault)) => match fault {
            StoreFault::Panicked(_)
            | StoreFault::TimedOut
            | StoreFault::Application(_)
            | StoreFault::Stopped => Err(format!("{what}: {fault:?}")),
            _ => Ok(None),
        },
        Err(other) => Err(format!("{what}: {other:?}")),
    }
}

/// Something that is asked or done; a job that is accepted is noted.
async fn act_upon(tape: &mut Tape, client: &Client, accepted: &mut Vec<String>) -> Case {
    let id = format!("old-{}", tape.below(60));
    match tape.below(12) {
        0..=2 => {
            let id = format!("new-{}", accepted.len());
            let payload = Json::of(&id).unwrap();
            let job = NewJob::raw("mail", Some(payload)).id(&*id).subject_id("s").tenant("t");
            if typed("enqueue", client.enqueue(job).await)?.is_some() {
                accepted.push(id);
            }
        }
        3 => drop(typed("job", client.job(&*id).await)?),
        4 => {
            let orders = [Order::Newest, Order::Oldest, Order::EndedNewest, Order::EndedOldest];
            let paging = Paging::first(*tape.pick(&orders), 50);
            drop(typed("list", client.list(&Filter::new(), paging).await)?);
        }
        5 => {
            drop(typed("counts", client.counts().await)?);
            drop(typed("totals", client.totals().await)?);
        }
        6 => {
            let leases = typed("claim", client.claim(&["mail", "report"], "w", 3).await)?;
            for lease in leases.unwrap_or_default() {
                let held = lease.job().to_string();
                if held.starts_with("new-") {
                    typed("release", lease.release().await)?;
                    continue;
                }
                typed("checkpoint", lease.checkpoint("", Json::of(&1).unwrap()).await)?;
                if typed("complete", lease.complete(None).await)? == Some(Status::Completed) {
                    let job = typed("job", client.job(&*held).await)?.flatten();
                    if job.is_some_and(|job| job.status != Status::Completed) {
                        return Err(format!("{held} has completed, and has not"));
                    }
                }
            }
        }
        7 => drop(typed("cancel", client.cancel(&*id, by()).await)?),
        8 => drop(typed("redrive", client.redrive(&*id, Redrive::default(), by()).await)?),
        9 => drop(typed("reap_once", client.reap_once().await)?),
        10 => {
            typed("delete", client.delete(&*id, by()).await)?;
            typed("sweep", client.sweep(NOW + 1, 10, by()).await)?;
        }
        _ => {
            drop(typed("attempts", client.attempts(&*id).await)?);
            drop(typed("why_waiting", client.why_waiting(&*id).await)?);
        }
    }
    Ok(())
}

/// What was accepted is there, or it cannot be said, or `SQLite` itself finds the file damaged:
/// where its list of free pages names one that is in use, what is written there is written over.
async fn all_there(client: &Client, path: &Path, accepted: &[String], when: &str) -> Case {
    for id in accepted {
        let Some(job) = typed("job", client.job(&**id).await)? else { continue };
        let payload = job.and_then(|job| job.payload).and_then(|json| json.to::<String>().ok());
        if payload.as_ref() != Some(id) && is_sound(path) {
            return Err(format!("{id} was accepted, and {when} it has {payload:?}"));
        }
    }
    Ok(())
}

/// Whether `SQLite` finds nothing wrong with a file.
fn is_sound(path: &Path) -> bool {
    let conn = leasehold::rusqlite::Connection::open(path).unwrap();
    let check = conn.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    check.is_ok_and(|check| check == "ok")
}

async fn opened_anew(tape: &mut Tape) -> Case {
    let dir = folder();
    let path = dir.path().join("jobs.db");
    let (mut database, mut log) = (image().database.clone(), image().log.clone());
    let mut how = Vec::new();
    for _ in 0..=tape.below(2) {
        how.push(match tape.below(3) {
            0 => format!("the database: {}", damage(tape, &mut database)),
            1 => format!("the log: {}", damage(tape, &mut log)),
            _ => {
                // Not even there.
                log.clear();
                format!("without a log: {}", damage(tape, &mut database))
            }
        });
    }
    std::fs::write(&path, &database).unwrap();
    if !log.is_empty() {
        std::fs::write(dir.path().join("jobs.db-wal"), &log).unwrap();
    }
    if tape.once_in(4) {
        // What is left of the index is nobody's.
        let mut index = vec![0xa5; 32 << 10];
        how.push(format!("the index: {}", damage(tape, &mut index)));
        std::fs::write(dir.path().join("jobs.db-shm"), &index).unwrap();
    }
    let mut accepted = Vec::new();
    let played = async {
        let Some(bench) = typed("open", Bench::start(bench_settings(&path, 2)).await)? else {
            return Ok(());
        };
        for _ in 0..4 + tape.below(12) {
            act_upon(tape, &bench.client, &mut accepted).await?;
        }
        all_there(&bench.client, &path, &accepted, "at once").await?;
        drop(bench);
        match typed("open again", Bench::start(bench_settings(&path, 3)).await)? {
            Some(again) => all_there(&again.client, &path, &accepted, "after a restart").await,
            None => Ok(()),
        }
    };
    played.await.map_err(|why: String| format!("{why}\n{}", how.join("\n")))
}

/// What a killed process leaves, without its log or its index: what is in the file is there.
#[tokio::test]
async fn files_of_a_killed_process_without_their_log_are_as_they_were_when_it_was_written_back() {
    for (log, jobs) in [(true, 60), (false, 40)] {
        let dir = folder();
        let path = dir.path().join("jobs.db");
        std::fs::write(&path, &image().database).unwrap();
        if log {
            std::fs::write(dir.path().join("jobs.db-wal"), &image().log).unwrap();
        }
        let bench = Bench::start(bench_settings(&path, 2)).await.unwrap();
        let newest = Paging::first(Order::Newest, 100);
        let found = bench.client.list(&Filter::new(), newest).await.unwrap().jobs;
        assert_eq!(found.len(), jobs, "log: {log}");
        assert!(is_sound(&path), "log: {log}");
        let job = NewJob::raw("mail", None).id("new");
        bench.client.enqueue(job).await.unwrap();
        assert!(bench.client.job("new").await.unwrap().is_some());
    }
}

#[test]
fn fuzz_damaged_files_are_refused_or_used_and_what_is_accepted_is_there() {
    fuzz("damage", 60, |tape| in_time(opened_anew(tape)));
}

/// Damages a file that is open. Another process does: to close it here would drop the locks of
/// `SQLite`. The index of the log is left alone: to cut off a file that is mapped kills a process.
fn damage_open(tape: &mut Tape, path: &Path) -> String {
    let suffix = *tape.pick(&["", "-wal"]);
    let file = PathBuf::from(format!("{}{suffix}", path.display()));
    let length = std::fs::metadata(&file).map_or(0, |file| file.len());
    let at = place(tape, usize::try_from(length).unwrap());
    let what = match tape.below(4) {
        0 | 1 => {
            let many = 1 + tape.below(300);
            let how = format!("conv=notrunc bs=1 seek={at} count={many}");
            let from = *tape.pick(&["/dev/zero", "/dev/urandom"]);
            format!("dd if={from} of='{}' {how} status=none", file.display())
        }
        2 => format!("truncate -s {at} '{}'", file.display()),
        _ => format!("rm -f '{}'", file.display()),
    };
    assert!(Command::new("sh").args(["-c", &what]).status().unwrap().success(), "{what}");
    what
}

async fn while_it_is_open(tape: &mut Tape) -> Case {
    let dir = folder();
    let path = dir.path().join("jobs.db");
    image().lay_out(&path);
    let builder = Runtime::builder(&path).durability(Durability::Normal).slots(2);
    let builder = builder.state(Signals::default()).handle(act).handle_blocking(mail);
    let runtime = builder.start().await.map_err(|error| format!("undamaged: {error}"))?;
    let client = runtime.client();
    let (mut accepted, mut how) = (Vec::new(), Vec::new());
    let played = async {
        for _ in 0..3 + tape.below(4) {
            if tape.below(3) > 0 || how.is_empty() {
                how.push(damage_open(tape, &path));
            }
            for _ in 0..tape.below(4) {
                act_upon(tape, &client, &mut accepted).await?;
            }
            let job = Act::Done.into_new();
            if let Some(job) = typed("enqueue", client.enqueue(job).await)? {
                match client.wait(&job.id, Duration::from_millis(100)).await {
                    Err(Error::Deadline { .. }) => {}
                    ended => drop(typed("wait", ended)?),
                }
            }
        }
        all_there(&client, &path, &accepted, "at once").await
    };
    played.await.map_err(|why| format!("{why}\n{}", how.join("\n")))?;
    let restarts = runtime.health().restarts;
    let healthy = runtime.health().is_healthy();
    let report = runtime.stop(Duration::from_secs(2)).await;
    if restarts > 0 || report.stuck_in_store.is_some() {
        return Err(format!("{restarts} restarts, {report:?}\n{}", how.join("\n")));
    }
    drop((runtime, client));
    let Some(again) = typed("open again", Bench::start(bench_settings(&path, 3)).await)? else {
        return Ok(());
    };
    // Where a file was taken away for good, nothing was accepted afterwards, and health is red.
    let there = all_there(&again.client, &path, &accepted, "after a restart").await;
    there.or_else(|why| if healthy { Err(format!("{why}\n{}", how.join("\n"))) } else { Ok(()) })
}

/// The kind of the jobs in the image.
fn mail(_: Mail, _: leasehold::Ctx<Signals>) -> leasehold::JobResult {
    Ok(leasehold::Outcome::Done)
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Mail(String);

impl Job for Mail {
    const KIND: &'static str = "mail";
}

#[test]
fn fuzz_files_that_are_damaged_while_a_runtime_is_on_them_stop_nothing_but_themselves() {
    fuzz("damage_open", 8, |tape| in_time(while_it_is_open(tape)));
}
