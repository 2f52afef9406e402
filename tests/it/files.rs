//! Files that cannot be opened, or that go bad: a typed error that names the file and a way
//! out, and nothing written where nothing may be.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::rusqlite::Connection;
use leasehold::{Client, Error, NewJob, StoreFault};

fn mail() -> NewJob {
    NewJob::raw("mail", None)
}

/// Opens what cannot be opened; answers the fault and the error's text, which names the file.
async fn refused(path: &Path) -> (StoreFault, String) {
    let started = Instant::now();
    let error = Client::open(path).await.unwrap_err();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "{error} came after {took:?}");
    let text = error.to_string();
    println!("{text}");
    assert!(text.contains(&path.display().to_string()), "{text}");
    assert!(text.contains("; "), "no way out: {text}");
    match error {
        Error::Open { path: named, fault } if named == path => (fault, text),
        other => panic!("{other:?}"),
    }
}

/// A database with a job in it, closed.
async fn database(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("jobs.db");
    let client = Client::open(&path).await.unwrap();
    client.enqueue(mail().id("a")).await.unwrap();
    drop(client);
    // The last connection takes the log away when it closes.
    while folder.join("jobs.db-wal").exists() {
        tokio::task::yield_now().await;
    }
    path
}

#[tokio::test]
async fn files_a_directory_and_a_missing_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("nowhere").join("jobs.db")] {
        let (fault, _) = refused(&path).await;
        assert!(matches!(fault, StoreFault::Io(_)), "{fault:?}");
    }
    assert!(!folder.path().join("nowhere").exists());
}

#[tokio::test]
async fn files_garbage_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    for garbage in [b"no database".repeat(1_000), vec![0xff; 5], b"SQLite format 3\0".to_vec()] {
        std::fs::write(&path, &garbage).unwrap();
        let (fault, _) = refused(&path).await;
        assert!(matches!(fault, StoreFault::Corrupt(_)), "{fault:?}");
        assert_eq!(std::fs::read(&path).unwrap(), garbage);
    }
}

#[tokio::test]
async fn files_a_truncated_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path()).await;
    let whole = std::fs::read(&path).unwrap();
    for kept in [50, 4_096, whole.len() / 2, whole.len() - 4_096] {
        std::fs::write(&path, &whole[..kept]).unwrap();
        let (fault, _) = refused(&path).await;
        assert!(matches!(fault, StoreFault::Corrupt(_)), "{kept} bytes: {fault:?}");
    }
}

#[tokio::test]
async fn files_of_a_newer_schema_are_refused_with_no_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path()).await;
    let conn = Connection::open(&path).unwrap();
    conn.execute("UPDATE leasehold_schema SET version = 999, oldest_compatible = 999", []).unwrap();
    drop(conn);
    let before = std::fs::read(&path).unwrap();
    let (fault, _) = refused(&path).await;
    assert_eq!(fault, StoreFault::TooNew { oldest_compatible: 999 });
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn files_that_lack_some_of_the_tables_are_refused() {
    for gone in ["TABLE leasehold_job", "TABLE leasehold_schema", "INDEX leasehold_dedup"] {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path()).await;
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch(&format!("DROP {gone}")).unwrap();
        drop(conn);
        let (fault, text) = refused(&path).await;
        assert!(matches!(fault, StoreFault::Corrupt(_)), "without {gone}: {fault:?}");
        let name = gone.split(' ').next_back().unwrap();
        assert!(text.contains(name), "without {gone}: {text}");
    }
}

/// Opens a file of somebody else's that is locked all the while.
async fn refused_for_the_lock(path: &Path, mode: &str, lock: &str) {
    let conn = Connection::open(path).unwrap();
    conn.pragma_update_and_check(None, "journal_mode", mode, |_| Ok(())).unwrap();
    conn.execute_batch("CREATE TABLE other (n); INSERT INTO other VALUES (1), (2)").unwrap();
    conn.execute_batch(lock).unwrap();
    let mut read = conn.prepare("SELECT n FROM other").unwrap();
    let mut rows = read.query([]).unwrap();
    rows.next().unwrap();
    let (fault, _) = refused(path).await;
    assert_eq!(fault, StoreFault::Busy, "{mode}, {lock}");
}

#[tokio::test]
async fn files_locked_by_somebody_else_are_refused_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c, d] = ["a.db", "b.db", "c.db", "d.db"].map(|name| folder.path().join(name));
    tokio::join!(
        refused_for_the_lock(&a, "delete", "BEGIN"),
        refused_for_the_lock(&b, "delete", "BEGIN IMMEDIATE"),
        refused_for_the_lock(&c, "delete", "BEGIN EXCLUSIVE"),
        refused_for_the_lock(&d, "wal", "BEGIN IMMEDIATE"),
    );
}

/// Jobs must not go into a file that nobody will ever open again.
#[cfg(unix)]
#[tokio::test]
async fn files_that_are_taken_away_take_no_more_jobs() {
    for taken in ["jobs.db", "jobs.db-wal", "jobs.db-shm"] {
        let folder = tempfile::tempdir().unwrap();
        let link = tempfile::tempdir().unwrap();
        let path = link.path().join("link.db");
        std::os::unix::fs::symlink(folder.path().join("jobs.db"), &path).unwrap();
        let client = Client::open(&path).await.unwrap();
        client.enqueue(mail().id("a")).await.unwrap();
        std::fs::rename(folder.path().join(taken), folder.path().join("away")).unwrap();
        for _ in 0..2 {
            let error = client.enqueue(mail().id("b")).await.unwrap_err();
            let text = error.to_string();
            println!("{text}");
            assert!(matches!(error, Error::Store(StoreFault::Io(_))), "{error:?}");
            assert!(text.contains(&folder.path().join(taken).display().to_string()), "{text}");
        }
        assert!(!folder.path().join(taken).exists(), "nothing new takes its place");
        std::fs::rename(folder.path().join("away"), folder.path().join(taken)).unwrap();
        client.enqueue(mail().id("b")).await.unwrap();
        assert!(client.job("b").await.unwrap().is_some());
    }
}

/// The child: another process, which enqueues by plain SQL.
#[cfg(unix)]
#[test]
fn child_that_enqueues_by_plain_sql() {
    let Some(folder) = crate::support::child_folder() else { return };
    let conn = Connection::open(folder.join("jobs.db")).unwrap();
    for n in 0..50 {
        let sql = "INSERT INTO leasehold_enqueue (kind, id) VALUES ('mail', 'other-' || ?1)";
        conn.execute(sql, [n]).unwrap();
    }
}

/// Without the index of the log two processes do not see each other, and each would write over
/// what the other has committed.
#[cfg(unix)]
#[tokio::test]
async fn files_whose_index_is_taken_away_lose_nothing_of_others_and_nothing_of_before() {
    for comes_back in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let client = Client::open(&path).await.unwrap();
        client.enqueue(mail().id("a")).await.unwrap();
        std::fs::remove_file(folder.path().join("jobs.db-shm")).unwrap();
        if comes_back {
            let refused = client.enqueue(mail().id("b")).await.unwrap_err();
            assert!(matches!(refused, Error::Store(StoreFault::Io(_))), "{refused:?}");
        }
        child("files::child_that_enqueues_by_plain_sql", folder.path(), "exec");
        if comes_back {
            let refused = client.enqueue(mail().id("b")).await.unwrap_err();
            assert!(matches!(refused, Error::Store(StoreFault::Io(_))), "{refused:?}");
        }
        drop(client);
        // Its threads end in a moment, and then the file is as they leave it.
        let open = || std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let held = |file: std::fs::DirEntry| {
            std::fs::read_link(file.path()).is_ok_and(|file| file.starts_with(folder.path()))
        };
        while open().any(held) {
            tokio::task::yield_now().await;
        }
        let client = Client::open(&path).await.unwrap();
        assert_eq!(client.counts().await.unwrap().ready, 51, "{comes_back}");
        assert!(client.job("a").await.unwrap().is_some());
        let check = Connection::open(&path).unwrap();
        let check: String =
            check.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
    }
}

/// A child with this test's binary, under a shell that has set it up; answers what it printed.
#[cfg(unix)]
fn child(test: &str, folder: &Path, setup: &str) -> String {
    let this = std::env::current_exe().unwrap();
    let run = format!("{setup} \"$0\" --exact {test} --nocapture --test-threads=1");
    let output = std::process::Command::new("sh")
        .args(["-c", &run])
        .arg(this)
        .env(crate::support::CHILD, folder)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// Every write past a size of file fails, as on a disk that is full or broken.
#[cfg(unix)]
#[tokio::test]
async fn files_that_cannot_grow_are_a_fault_and_nothing_is_lost() {
    let Some(folder) = crate::support::child_folder() else {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        drop(Client::open(&path).await.unwrap());
        let test = "files::files_that_cannot_grow_are_a_fault_and_nothing_is_lost";
        let printed = child(test, folder.path(), "trap '' XFSZ; ulimit -f 800; exec");
        let client = Client::open(&path).await.unwrap();
        let answered: Vec<_> =
            printed.lines().filter_map(|line| line.strip_prefix("job ")).collect();
        assert!(answered.len() > 2, "{printed}");
        for id in answered {
            assert!(client.job(id).await.unwrap().is_some(), "{id} is lost");
        }
        client.enqueue(mail()).await.unwrap();
        return;
    };
    let client = Client::open(folder.join("jobs.db")).await.unwrap();
    let text = leasehold::Json::of(&"x".repeat(50_000)).unwrap();
    let mut faults = 0;
    for n in 0..30 {
        let id = format!("j{n}");
        match client.enqueue(NewJob::raw("mail", Some(text.clone())).id(&*id)).await {
            Ok(_) => println!("\njob {id}"),
            Err(Error::Store(
                fault @ (StoreFault::Io(_) | StoreFault::Full | StoreFault::Unknown(_)),
            )) if !fault.to_string().contains("taken away") => faults += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(faults > 0);
    assert!(client.job("j0").await.unwrap().is_some(), "what is there can be read");
}

/// As a user who may only read.
#[cfg(unix)]
#[tokio::test]
async fn files_that_may_only_be_read_are_refused() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let Some(folder) = crate::support::child_folder() else {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path()).await;
        let root = std::fs::metadata(&path).unwrap().uid() == 0;
        let setup =
            if root { "exec setpriv --reuid=65534 --regid=65534 --clear-groups" } else { "exec" };
        let test = "files::files_that_may_only_be_read_are_refused";
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let tries = std::process::Command::new("sh")
            .args(["-c", &format!("{setup} \"$0\" --list >/dev/null 2>&1")])
            .arg(std::env::current_exe().unwrap())
            .status();
        if !tries.unwrap().success() {
            println!("skipped: there is no other user to run this binary as");
            return;
        }
        for (file, holder) in [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)] {
            mode(&path, file);
            mode(folder.path(), holder);
            println!("{file:o} in {holder:o}: {}", child(test, folder.path(), setup));
            mode(folder.path(), 0o700);
        }
        return;
    };
    let (fault, _) = refused(&folder.join("jobs.db")).await;
    assert!(matches!(fault, StoreFault::ReadOnly | StoreFault::Io(_)), "{fault:?}");
}
