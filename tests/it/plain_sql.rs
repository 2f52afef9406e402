//! Enqueuing by plain SQL: the view does what the library does, row for row and rule for rule.

use std::time::Duration;

use leasehold::rusqlite::types::Value;
use leasehold::rusqlite::{self, Connection, params_from_iter};
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{Client, Enqueued, Error, Json, NewJob, Refusal, Settings, Was};

const NOW: i64 = 1_000_000;
const UUID: &str = "0190f5b2-7c1e-7abc-8def-0123456789ab";

/// What a column is given.
pub type Column = (&'static str, Value);

pub fn text(column: &'static str, value: impl Into<String>) -> Column {
    (column, Value::Text(value.into()))
}

pub fn whole(column: &'static str, value: i64) -> Column {
    (column, Value::Integer(value))
}

/// A job by plain SQL.
pub fn insert(app: &Connection, columns: &[Column]) -> rusqlite::Result<usize> {
    let (names, values): (Vec<_>, Vec<_>) = columns.iter().cloned().unzip();
    let places: Vec<_> = (1..=names.len()).map(|n| format!("?{n}")).collect();
    let (names, places) = (names.join(", "), places.join(", "));
    let sql = format!("INSERT INTO leasehold_enqueue ({names}) VALUES ({places})");
    app.execute(&sql, params_from_iter(values))
}

/// The same job for the library.
fn new_job(columns: &[Column]) -> NewJob {
    let kind = columns.iter().find(|column| column.0 == "kind").expect("a kind");
    let Value::Text(kind) = &kind.1 else { panic!("{kind:?}") };
    columns.iter().fold(NewJob::raw(kind, None), |job, column| match column {
        ("kind" | "created_at", _) | (_, Value::Null) => job,
        ("payload", Value::Text(json)) => {
            let whole = NewJob::raw(kind, Some(Json::parse(json).unwrap()));
            assert_eq!(columns.get(1).map(|column| column.0), Some("payload"), "comes second");
            whole
        }
        ("meta", Value::Text(json)) => job.meta(Json::parse(json).unwrap()),
        (name, Value::Text(value)) => with_text(job, name, value),
        (name, Value::Integer(value)) => with_number(job, name, *value),
        other => panic!("{other:?}"),
    })
}

fn with_text(job: NewJob, name: &str, value: &str) -> NewJob {
    match name {
        "id" => job.id(value),
        "idempotency_key" => job.idempotency_key(value),
        "dedup_key" => job.dedup_key(value),
        "lock_key" => job.lock_key(value),
        "limit_key" => job.limit_key(value),
        "tenant" => job.tenant(value),
        "organization" => job.organization(value),
        "reason" => job.reason(value),
        "subject_type" => job.subject_type(value),
        "subject_id" => job.subject_id(value),
        "trace_context" => job.trace_context(value),
        other => panic!("{other}"),
    }
}

fn with_number(job: NewJob, name: &str, value: i64) -> NewJob {
    let period = || Duration::from_millis(value.try_into().unwrap());
    match name {
        "run_at" => job.run_at(value),
        "priority" => job.priority(value),
        "max_attempts" => job.max_attempts(value),
        "delay" => job.delay(period()),
        "keep_key_for" => job.keep_key_for(period()),
        "unique_for" => job.unique_for(period()),
        other => panic!("{other}"),
    }
}

/// A file that is enqueued into by the library, and one by plain SQL.
struct Both {
    _dir: tempfile::TempDir,
    clients: [Client; 2],
    apps: [Connection; 2],
}

/// What the two said: the job's own field that broke a rule, or whether a job was made.
type Said = Result<bool, String>;

impl Both {
    async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut clients, mut apps) = (Vec::new(), Vec::new());
        for name in ["library.db", "plain.db"] {
            let path = dir.path().join(name);
            let settings = BenchSettings { path: Some(path.clone()), ..BenchSettings::default() };
            let client = Bench::start(settings).await.unwrap().client;
            let mail =
                Settings::new().queue("post").retry(leasehold::Retry::standard().attempts(7));
            client.register("mail", mail).await.unwrap();
            clients.push(client);
            apps.push(Connection::open(path).unwrap());
        }
        let (clients, apps) = (clients.try_into().unwrap(), apps.try_into().unwrap());
        Self { _dir: dir, clients, apps }
    }

    async fn library(&self, columns: &[Column]) -> Said {
        match self.clients[0].enqueue(new_job(columns)).await {
            Ok(Enqueued { was, .. }) => Ok(was == Was::New),
            Err(Error::Refused(Refusal::Invalid { field, .. })) => Err(field.to_owned()),
            Err(Error::Refused(Refusal::UnknownReason { .. })) => Err("reason".to_owned()),
            Err(Error::Refused(refusal)) => Err(refusal.code().to_owned()),
            Err(other) => panic!("{columns:?}: {other}"),
        }
    }

    fn plain(&self, columns: &[Column]) -> Said {
        let before = self.rows(1, "SELECT count(*) FROM leasehold_job");
        let mut columns = columns.to_vec();
        if columns.iter().all(|column| column.0 != "created_at") {
            columns.push(whole("created_at", NOW));
        }
        match insert(&self.apps[1], &columns) {
            Ok(_) => Ok(before != self.rows(1, "SELECT count(*) FROM leasehold_job")),
            Err(error) => {
                let error = error.to_string();
                let named = error.strip_prefix("leasehold: ").unwrap_or(&error);
                Err(named.split([' ', ';']).next().unwrap_or_default().to_owned())
            }
        }
    }

    /// Enqueues by both, and sees that they said and wrote the same.
    async fn same(&self, columns: &[Column]) -> Said {
        let (library, plain) = (self.library(columns).await, self.plain(columns));
        assert_eq!(library, plain, "{columns:?}");
        self.compare(columns);
        library
    }

    fn rows(&self, of: usize, sql: &str) -> String {
        let mut statement = self.apps[of].prepare(sql).unwrap();
        let columns = statement.column_count();
        let read = |row: &rusqlite::Row<'_>| {
            (0..columns).map(|n| row.get::<_, Value>(n)).collect::<rusqlite::Result<Vec<_>>>()
        };
        let rows: Vec<_> = statement.query_map([], read).unwrap().map(Result::unwrap).collect();
        format!("{rows:?}")
    }

    /// Every row of every table, but for the times of the schema's own.
    fn compare(&self, after: &[Column]) {
        let tables = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') \
                      AND name LIKE 'leasehold%' AND name <> 'leasehold_bytes'";
        let mut names = self.apps[0].prepare(tables).unwrap();
        let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap();
        for name in names.map(Result::unwrap) {
            let sql = format!("SELECT * FROM {name}");
            assert_eq!(self.rows(0, &sql), self.rows(1, &sql), "{name} after {after:?}");
        }
    }
}

/// Jobs that both take. Each has an id, which is all that chance would decide.
fn good() -> Vec<Vec<Column>> {
    let long = "k".repeat(512);
    let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
    let brackets = format!("{{\"a\":\"{}\"}}", "[".repeat(400));
    let mut good: Vec<Vec<Column>> = vec![
        vec![],
        vec![text("id", UUID)],
        vec![text("id", UUID.to_uppercase())],
        vec![text("id", "00000000-0000-0000-0000-000000000000")],
        vec![text("id", "ffffffff-ffff-ffff-ffff-ffffffffffff")],
        vec![text("id", UUID.replace('-', ""))],
        vec![text("id", format!("{UUID}0"))],
        vec![text("id", UUID.replace('a', "g"))],
        vec![text("id", "ключ 🔑 'quoted' \"twice\" %_*?[")],
        vec![text(
            "id",
            "é🔑\u{80}\u{7ff}\u{800}\u{fffd}\u{fffe}\u{ffff}\u{10000}\u{10ffff}\u{1}\n",
        )],
        vec![text("id", long.clone())],
        vec![text("payload", "null")],
        vec![text("payload", " { \"b\" : 1, \"a\":18446744073709551615, \"a\":1e400 } ")],
        vec![text("payload", "\"\\u0000 \\ud800 é 🔑\"")],
        vec![text("payload", deep.clone())],
        vec![text("payload", format!("[{brackets},{{\"x\":[[[{brackets}]]]}}]"))],
        vec![text("payload", format!("\"{}\"", "x".repeat((1 << 20) - 2)))],
        vec![text("meta", deep)],
        vec![text("meta", format!("\"{}\"", "é".repeat((32 << 10) - 1)))],
        vec![whole("run_at", 0)],
        vec![whole("run_at", NOW)],
        vec![whole("run_at", NOW + 1)],
        vec![whole("run_at", 7_258_118_399_999)],
        vec![whole("delay", 0)],
        vec![whole("delay", 1), whole("run_at", 5)],
        vec![whole("delay", 7_258_118_399_999 - NOW)],
        vec![whole("priority", -1000), whole("max_attempts", 1)],
        vec![whole("priority", 1000), whole("max_attempts", 1_000_000)],
        vec![text("reason", "manual")],
        vec![text("subject_type", "order"), text("subject_id", "7"), text("trace_context", "t")],
        vec![text("idempotency_key", "a"), whole("keep_key_for", 1)],
        vec![text("dedup_key", "a"), whole("unique_for", 7_258_118_400_000)],
    ];
    for column in TEXTS {
        good.push(vec![text(column, long.clone())]);
        good.push(vec![text(column, "é🔑\u{fffd}\u{ffff}\u{1}")]);
    }
    // The same keys again, for others.
    for (tenant, organization) in [(Some("t"), None), (None, Some("t")), (Some("t"), Some("t"))] {
        let mut job =
            vec![text("idempotency_key", "a"), text("dedup_key", "a"), text("lock_key", "a")];
        job.extend(tenant.map(|tenant| text("tenant", tenant)));
        job.extend(organization.map(|organization| text("organization", organization)));
        good.push(job);
    }
    let with = |(n, job): (usize, Vec<Column>)| {
        let kind = ["mail", "never.registered", "0"][n % 3];
        let id = job.iter().all(|column| column.0 != "id").then(|| text("id", format!("job-{n}")));
        let (payload, others): (Vec<_>, Vec<_>) =
            job.into_iter().partition(|column| column.0 == "payload");
        [text("kind", kind)].into_iter().chain(payload).chain(others).chain(id).collect()
    };
    good.into_iter().enumerate().map(with).collect()
}

const TEXTS: [&str; 9] = [
    "idempotency_key",
    "dedup_key",
    "lock_key",
    "limit_key",
    "tenant",
    "organization",
    "subject_type",
    "subject_id",
    "trace_context",
];

#[tokio::test]
async fn the_view_writes_the_rows_that_the_library_writes() {
    let both = Both::open().await;
    for columns in good() {
        assert_eq!(both.same(&columns).await, Ok(true), "{columns:?}");
        // And again, by the same id, neither writes anything.
        assert_eq!(both.same(&columns).await, Ok(false), "{columns:?}");
    }
}

/// Jobs that neither takes, and the column that both name.
fn bad() -> Vec<(&'static str, Vec<Column>)> {
    let too_long = "k".repeat(513);
    let too_deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let objects = format!("{}1{}", "{\"a\":".repeat(129), "}".repeat(129));
    let too_large = |bytes: usize| format!("\"{}\"", "é".repeat(bytes / 2));
    let mut bad = vec![
        ("payload", vec![text("payload", too_deep.clone())]),
        ("payload", vec![text("payload", objects.clone())]),
        ("payload", vec![text("payload", format!("[0,\"[\",{too_deep}]"))]),
        ("payload", vec![text("payload", too_large(1 << 20))]),
        ("meta", vec![text("meta", too_deep)]),
        ("meta", vec![text("meta", objects)]),
        ("meta", vec![text("meta", too_large(64 << 10))]),
        ("id", vec![text("id", too_long.clone())]),
        ("id", vec![text("id", "")]),
        ("id", vec![text("id", "a\0b")]),
        ("id", vec![text("id", format!("{UUID}\0"))]),
        ("run_at", vec![whole("run_at", -1)]),
        ("run_at", vec![whole("run_at", i64::MIN)]),
        ("run_at", vec![whole("run_at", i64::MAX)]),
        ("run_at", vec![whole("run_at", 7_258_118_400_000)]),
        ("delay", vec![whole("delay", 7_258_118_400_000 - NOW)]),
        ("delay", vec![whole("delay", i64::MAX)]),
        // Also where a key names a job that is there: what is given is looked at first.
        ("delay", vec![whole("delay", 7_258_118_400_000 - NOW), text("id", "there")]),
        ("reason", vec![text("reason", "nobody_knows_it"), text("id", "there")]),
        ("priority", vec![whole("priority", 1001), text("id", "there")]),
        ("priority", vec![whole("priority", -1001)]),
        ("priority", vec![whole("priority", i64::MIN)]),
        ("max_attempts", vec![whole("max_attempts", 0)]),
        ("max_attempts", vec![whole("max_attempts", 1_000_001)]),
        ("max_attempts", vec![whole("max_attempts", i64::MIN)]),
        ("keep_key_for", vec![whole("keep_key_for", 1)]),
        ("unique_for", vec![whole("unique_for", 1), text("idempotency_key", "k")]),
        ("keep_key_for", vec![whole("keep_key_for", 0), text("idempotency_key", "k")]),
        ("keep_key_for", vec![whole("keep_key_for", i64::MAX), text("idempotency_key", "k")]),
        ("unique_for", vec![whole("unique_for", 0), text("dedup_key", "k")]),
        ("unique_for", vec![whole("unique_for", 7_258_118_400_001), text("dedup_key", "k")]),
        ("reason", vec![text("reason", "")]),
        ("reason", vec![text("reason", "manual\0")]),
        ("reason", vec![text("reason", "MANUAL")]),
        ("lock_held", vec![text("lock_key", "held")]),
    ];
    for column in TEXTS {
        bad.push((column, vec![text(column, too_long.clone())]));
        bad.push((column, vec![text(column, "é".repeat(257))]));
        bad.push((column, vec![text(column, "")]));
        bad.push((column, vec![text(column, "\0")]));
        bad.push((column, vec![text(column, "a\0")]));
    }
    let mut bad: Vec<_> = bad
        .into_iter()
        .map(|(field, columns)| {
            (field, [text("kind", "mail")].into_iter().chain(columns).collect::<Vec<_>>())
        })
        .collect();
    let too_long = "k".repeat(101);
    for kind in [
        "", "Mail", "-mail", "_", ".", "ma il", "mäil", "mail\0", "\0", "a\0b", "mail\n", &too_long,
    ] {
        bad.push(("kind", vec![text("kind", kind)]));
    }
    bad
}

#[tokio::test]
async fn every_rule_is_kept_by_both_and_its_column_named() {
    let both = Both::open().await;
    let held = [text("kind", "mail"), text("id", "there"), text("lock_key", "held")];
    assert_eq!(both.same(&held).await, Ok(true));
    for (field, columns) in bad() {
        assert_eq!(both.same(&columns).await, Err(field.to_owned()), "{columns:?}");
    }
    // What the library's types do not let in is no JSON or no whole number in the view either.
    let blob = |column| (column, Value::Blob(b"abc".to_vec()));
    for column in [
        text("payload", ""),
        text("payload", "{"),
        text("payload", "[1,]"),
        text("payload", "{a: 1}"),
        text("payload", "'single'"),
        text("payload", "NaN"),
        text("payload", "+1"),
        text("payload", "1 /* comment */"),
        text("payload", "\"a\u{1}\""),
        text("payload", "1\0"),
        text("meta", "0x10"),
        whole("payload", 1),
        ("payload", Value::Real(1.5)),
        whole("kind", 1),
        whole("id", 1_234_567_890_123_456),
        ("run_at", Value::Real(1.5)),
        ("run_at", Value::Real(f64::INFINITY)),
        text("run_at", "1"),
        text("priority", "1"),
        ("priority", Value::Real(1e300)),
        ("max_attempts", Value::Real(2.5)),
        ("delay", Value::Real(-0.5)),
        whole("delay", -1),
        whole("keep_key_for", -1),
        whole("created_at", -1),
        whole("created_at", 7_258_118_400_000),
        text("created_at", "now"),
    ]
    .into_iter()
    .chain(["kind", "payload", "meta", "id", "run_at", "reason"].map(blob))
    .chain(TEXTS.map(blob))
    {
        let (field, mut columns) = (column.0, vec![column.clone()]);
        if field != "kind" {
            columns.push(text("kind", "mail"));
        }
        assert_eq!(both.plain(&columns), Err(field.to_owned()), "{column:?}");
        both.compare(&columns);
    }
    assert_eq!(both.plain(&[]), Err("kind".to_owned()));
}
