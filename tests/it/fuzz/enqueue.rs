//! What is enqueued: hostile texts, numbers and JSON through the two doors, the library's and the
//! view's. Both take the same, make the same row of it, and what is refused leaves nothing.

use std::time::Duration;

use leasehold::rusqlite::types::Value;
use leasehold::rusqlite::{Connection, params_from_iter};
use leasehold::testing::{Bench, BenchSettings};
use leasehold::{Error, JobRecord, Json, NewJob, Refusal, Settings, Status, Was};

use super::{Case, NOW, Tape, folder, fuzz};

/// Columns that are texts, each with the setter of the same name.
const TEXTS: [&str; 11] = [
    "id",
    "idempotency_key",
    "dedup_key",
    "lock_key",
    "limit_key",
    "tenant",
    "organization",
    "reason",
    "subject_type",
    "subject_id",
    "trace_context",
];

/// Parts of texts that somebody has tripped over before.
const PARTS: [&str; 24] = [
    "a",
    "A",
    "0",
    "-",
    ".",
    "_",
    " ",
    "\0",
    "\n",
    "'",
    "\"",
    "\\",
    "%",
    "é",
    "e\u{301}",
    "ß",
    "\u{feff}",
    "\u{fffd}",
    "\u{fffe}",
    "\u{ffff}",
    "\u{202e}",
    "\u{1f4a9}",
    "\u{10ffff}",
    "٣",
];

/// A text; the first are those that are good everywhere.
pub fn text(tape: &mut Tape) -> String {
    const WHOLE: [&str; 16] = [
        "mail",
        "taken",
        "bystander",
        "",
        "1",
        "01",
        "-0",
        "1e3",
        "9223372036854775808",
        "0x10",
        "null",
        "0190a5b2-7c3d-7e4f-8a1b-2c3d4e5f6071",
        "0190A5B2-7C3D-7E4F-8A1B-2C3D4E5F6071",
        "0190a5b27c3d7e4f8a1b2c3d4e5f6071",
        "{0190a5b2-7c3d-7e4f-8a1b-2c3d4e5f6071}",
        "urn:uuid:0190a5b2-7c3d-7e4f-8a1b-2c3d4e5f6071",
    ];
    match tape.below(8) {
        0..4 => (*tape.pick(&WHOLE)).to_owned(),
        4..7 => (0..tape.below(12)).map(|_| *tape.pick(&PARTS)).collect(),
        _ => {
            let part = *tape.pick(&PARTS);
            // Around the longest that a key and a name may be.
            let bytes = *tape.pick(&[99, 100, 101, 511, 512, 513, 70_000]);
            part.repeat(bytes / part.len()) + &"x".repeat(bytes % part.len())
        }
    }
}

/// A text that is JSON, or nearly.
pub fn json(tape: &mut Tape) -> String {
    const WHOLE: [&str; 30] = [
        "null",
        "1",
        "\"a\"",
        "-0",
        "1E-5",
        "1e400",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
        " {} ",
        "\t[\r\n]",
        "{\"a\":1,\"a\":2}",
        "{\"\":{\"\\u0000\":[]}}",
        "\"\\ud83d\\udca9\"",
        "\"\\ud800\"",
        "\"\\udc00\\ud800\"",
        "\"\\/\\b\\f\"",
        "\"\u{7f}\u{80}\u{2028}\"",
        "",
        "{",
        "nul",
        "01",
        "+1",
        ".5",
        "1.",
        "NaN",
        "'a'",
        "[1,]",
        "{a:1}",
        "1 2",
        "\"\t\"",
    ];
    match tape.below(8) {
        0..4 => (*tape.pick(&WHOLE)).to_owned(),
        4 => {
            let inner: Vec<_> = (0..tape.below(4)).map(|_| *tape.pick(&WHOLE)).collect();
            format!("[{}]", inner.join(","))
        }
        5 => serde_json::to_string(&text(tape)).unwrap(),
        6 => {
            // Around the deepest that is taken; brackets in a text are none.
            let (depth, text) = (*tape.pick(&[1, 127, 128, 129, 200]), tape.once_in(2));
            let (open, close) = *tape.pick(&[("[", "]"), ("{\"a\":", "}")]);
            let inner = if text {
                format!("\"{}\"", open.replace('"', "").repeat(200))
            } else {
                "1".into()
            };
            open.repeat(depth) + &inner + &close.repeat(depth)
        }
        _ => {
            let bytes = *tape.pick(&[65_536, 65_537, 1_048_576, 1_048_577]);
            format!("\"{}\"", "x".repeat(bytes - 2))
        }
    }
}

fn number(tape: &mut Tape) -> i64 {
    const EDGES: [i64; 16] = [
        0,
        1,
        -1,
        1_000,
        -1_000,
        1_001,
        -1_001,
        1_000_000,
        1_000_001,
        NOW,
        7_258_118_399_999,
        7_258_118_400_000,
        7_258_118_400_000 - NOW,
        i64::MAX,
        i64::MIN,
        1 << 53,
    ];
    let edge = *tape.pick(&EDGES);
    edge.saturating_add(i64::from(tape.once_in(4)))
}

/// A job as it is asked for: what each column is to be.
type Asked = Vec<(&'static str, Value)>;

fn asked(tape: &mut Tape) -> Asked {
    let kind = if tape.once_in(6) { text(tape) } else { "mail".to_owned() };
    let mut asked: Asked = vec![("kind", Value::Text(kind))];
    for column in ["payload", "meta"] {
        if tape.below(3) > 0 {
            asked.push((column, Value::Text(json(tape))));
        }
    }
    for column in TEXTS {
        if tape.once_in(4) {
            let good = tape.below(3) > 0;
            let text = if good { "taken".to_owned() } else { text(tape) };
            asked.push((column, Value::Text(text)));
        }
    }
    for column in ["run_at", "delay", "priority", "max_attempts", "keep_key_for", "unique_for"] {
        if tape.once_in(6) {
            asked.push((column, Value::Integer(number(tape))));
        }
    }
    asked
}

/// The same job for the library; an error where it cannot even be said.
fn new_job(asked: &Asked) -> Result<NewJob, String> {
    let mut job = NewJob::raw("", None);
    for (column, value) in asked {
        job = match value {
            Value::Text(text) => with_text(job, column, text)?,
            Value::Integer(number) => with_number(job, column, *number)?,
            other => return Err(format!("{other:?}")),
        };
    }
    Ok(job)
}

fn with_text(job: NewJob, column: &str, text: &str) -> Result<NewJob, String> {
    Ok(match column {
        // These come first, before any other setter.
        "kind" => NewJob::raw(text, None),
        "payload" => NewJob::raw(job.kind().to_owned(), Some(Json::parse(text)?)),
        "meta" => job.meta(Json::parse(text)?),
        "id" => job.id(text),
        "idempotency_key" => job.idempotency_key(text),
        "dedup_key" => job.dedup_key(text),
        "lock_key" => job.lock_key(text),
        "limit_key" => job.limit_key(text),
        "tenant" => job.tenant(text),
        "organization" => job.organization(text),
        "reason" => job.reason(text),
        "subject_type" => job.subject_type(text),
        "subject_id" => job.subject_id(text),
        "trace_context" => job.trace_context(text),
        other => return Err(format!("no setter {other}")),
    })
}

fn with_number(job: NewJob, column: &str, number: i64) -> Result<NewJob, String> {
    let period =
        || u64::try_from(number).map(Duration::from_millis).map_err(|error| error.to_string());
    Ok(match column {
        "run_at" => job.run_at(number),
        "priority" => job.priority(number),
        "max_attempts" => job.max_attempts(number),
        "delay" => job.delay(period()?),
        "keep_key_for" => job.keep_key_for(period()?),
        "unique_for" => job.unique_for(period()?),
        other => return Err(format!("no setter {other}")),
    })
}

/// What an enqueue came to: a new row, none as there is one, or a refusal, which says of what.
#[derive(Debug, PartialEq)]
enum Came {
    New(Box<JobRecord>),
    Existing,
    Refused(String),
}

/// The database with its two doors.
struct Doors {
    _dir: tempfile::TempDir,
    rt: tokio::runtime::Runtime,
    bench: Bench,
    app: Connection,
}

impl Doors {
    fn open() -> Self {
        let dir = folder();
        let path = dir.path().join("jobs.db");
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let settings = BenchSettings {
            now: NOW,
            path: Some(path.clone()),
            direct: true,
            ..Default::default()
        };
        let bench = rt.block_on(Bench::start(settings)).unwrap();
        rt.block_on(bench.client.register_reason("taken", "It is in the registry")).unwrap();
        let app = Connection::open(path).unwrap();
        app.pragma_update(None, "synchronous", "off").unwrap();
        Self { _dir: dir, rt, bench, app }
    }

    /// Nothing but a job that is in the way of some, and must stay as it is.
    fn clear(&self) -> JobRecord {
        self.rt.block_on(async {
            self.bench.clear(NOW, 1).await.unwrap();
            let bystander = NewJob::raw("other", Some(Json::parse("[1]").unwrap()))
                .id("bystander")
                .idempotency_key("taken")
                .dedup_key("taken")
                .lock_key("taken")
                .limit_key("taken");
            self.bench.client.enqueue(bystander).await.unwrap();
            self.bench.jobs().await.unwrap().remove(0)
        })
    }

    /// The row that there is beside the bystander, which must be as it was.
    fn row(&self, bystander: &JobRecord) -> Result<Option<JobRecord>, String> {
        let mut jobs = self.rt.block_on(self.bench.jobs()).map_err(|error| error.to_string())?;
        if jobs.first() != Some(bystander) || jobs.len() > 2 {
            return Err(format!("beside the bystander: {jobs:?}"));
        }
        Ok((jobs.len() == 2).then(|| jobs.remove(1)))
    }

    fn by_library(&self, asked: &Asked, bystander: &JobRecord) -> Result<Came, String> {
        let job = match new_job(asked) {
            Ok(job) => job,
            Err(error) => return Ok(Came::Refused(error)),
        };
        let answer = self.rt.block_on(self.bench.client.enqueue(job));
        match (answer, self.row(bystander)?) {
            (Ok(answer), Some(row)) if answer.was == Was::New && answer.id == row.id => {
                Ok(Came::New(Box::new(row)))
            }
            (Ok(answer), None) if answer.was != Was::New => Ok(Came::Existing),
            (Err(Error::Refused(refusal)), None) => Ok(Came::Refused(match refusal {
                Refusal::Invalid { field, .. } => field.to_owned(),
                other => other.code().to_owned(),
            })),
            (answer, row) => Err(format!("the library answers {answer:?} and there is {row:?}")),
        }
    }

    fn by_view(&self, asked: &Asked, bystander: &JobRecord) -> Result<Came, String> {
        let columns: Vec<_> = asked.iter().map(|(column, _)| *column).collect();
        let places: Vec<_> = columns.iter().map(|_| "?").collect();
        let sql = format!(
            "INSERT INTO leasehold_enqueue (created_at, {}) VALUES ({NOW}, {})",
            columns.join(", "),
            places.join(", ")
        );
        let answer = self.app.execute(&sql, params_from_iter(asked.iter().map(|one| &one.1)));
        match (answer, self.row(bystander)?) {
            (Ok(_), Some(row)) => Ok(Came::New(Box::new(row))),
            (Ok(_), None) => Ok(Came::Existing),
            (Err(error), None) => {
                let text = error.to_string();
                let rule = text.strip_prefix("leasehold: ");
                rule.map(|rule| Came::Refused(rule.to_owned())).ok_or(text)
            }
            (answer, row) => Err(format!("the view answers {answer:?} and there is {row:?}")),
        }
    }

    /// A job that was taken is found by its id, and goes to a handler and comes back as it was.
    fn runs(&self, row: &JobRecord, asked: &Asked) -> Case {
        self.rt.block_on(async {
            let client = &self.bench.client;
            let at = |what: &'static str| move |error: Error| format!("{what}: {error}");
            let found = client.job(row.id.clone()).await.map_err(at("job"))?;
            if found.as_ref() != Some(row) {
                return Err(format!("asked for by its id it is {found:?}, not {row:?}"));
            }
            client.why_waiting(row.id.clone()).await.map_err(at("why"))?;
            self.bench.clock.advance(row.run_at.saturating_sub(NOW).clamp(0, i64::MAX / 4));
            let lease = client.claim_by_id(row.id.clone(), "w").await.map_err(at("claim"))?;
            let Some(lease) = lease else {
                // The bystander waits too, so its limit key has a place.
                return Err(format!("it cannot be claimed: {row:?}"));
            };
            let given = asked.iter().find(|(column, _)| *column == "payload").map(|one| &one.1);
            let shown = lease.payload().map(|json| Value::Text(json.as_str().to_owned()));
            if given != shown.as_ref() {
                return Err(format!("its handler is given {shown:?}, not {given:?}"));
            }
            let status = lease.complete(row.payload.clone()).await.map_err(at("complete"))?;
            let ended = client.job(row.id.clone()).await.map_err(at("job"))?;
            let result = ended.and_then(|job| job.result);
            if (status, &result) != (Status::Completed, &row.payload) {
                return Err(format!("it ended as {status:?} with {result:?}"));
            }
            Ok(())
        })
    }

    fn case(&self, tape: &mut Tape) -> Case {
        let asked = asked(tape);
        if let (_, Value::Text(kind)) = &asked[0] {
            // Who runs a kind has said so, where it can be one.
            let _refused = self.rt.block_on(self.bench.client.register(kind, Settings::new()));
        }
        let bystander = self.clear();
        let library = self.by_library(&asked, &bystander)?;
        if let Came::New(row) = &library {
            self.runs(row, &asked)?;
        }
        self.clear();
        let view = self.by_view(&asked, &bystander)?;
        if let Came::New(row) = &view {
            self.runs(row, &asked)?;
        }
        same(&asked, library, view)
    }
}

/// Whether both doors came to the same.
fn same(asked: &Asked, library: Came, view: Came) -> Case {
    let differ =
        |library, view| Err(format!("{asked:?}: the library {library:?}, the view {view:?}"));
    match (library, view) {
        (Came::New(mut one), Came::New(other)) => {
            if asked.iter().all(|(column, _)| *column != "id") {
                one.id = other.id.clone();
            }
            if one == other { Ok(()) } else { differ(Came::New(one), Came::New(other)) }
        }
        (Came::Refused(_), Came::Refused(rule)) => {
            // It names a column that was given, and the rule.
            let named = asked.iter().any(|(column, _)| rule.starts_with(column));
            if named || rule.starts_with("lock_held") { Ok(()) } else { Err(rule) }
        }
        (one, other) if one == other => Ok(()),
        (one, other) => differ(one, other),
    }
}

#[test]
fn fuzz_what_is_enqueued_is_taken_whole_or_not_at_all() {
    let doors = Doors::open();
    fuzz("enqueue", 1_500, |tape| doors.case(tape));
}
