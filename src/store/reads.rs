//! Reading: a few read-only connections on threads of their own, so that no question waits
//! for a commit, and no answer holds a transaction open.

use std::sync::{Arc, Mutex, PoisonError, mpsc};

use r2d2::ManageConnection as _;
use rusqlite::{Connection, OptionalExtension};

use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::error::StoreFault;

use super::cache::Cache;
use super::engine::Pending;
use super::open::{Manager, Place};
use super::questions::Work;
use super::spares::Spare;
use super::txn::{AppFence, Effects, Txn};
use super::{StoreSettings, statements as sql};

const THREADS: u32 = 2;

/// Sends questions to whichever reader is free.
#[derive(Clone)]
pub(crate) enum Readers {
    /// On threads of their own.
    Apart(mpsc::Sender<Box<dyn Pending>>),
    /// One, on the thread of whoever asks.
    Here(Arc<Mutex<Reader>>),
}

impl Readers {
    /// Readers of a file. Their threads end when the last handle is gone.
    pub(crate) fn start(
        path: &std::path::Path,
        settings: &StoreSettings,
        clock: &Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
        here: bool,
    ) -> Result<Self, StoreFault> {
        let reader = |source| Reader {
            source,
            clock: clock.clone(),
            entropy: entropy.clone(),
            settings: settings.clone(),
            fence: AppFence::new(settings.code_limit),
        };
        if here {
            let place = Place::File(path.to_owned());
            let conn = match settings.spares.take(&place, false) {
                Some(spare) => spare.conn,
                None => Manager::readers(path, settings.busy_timeout).connect()?,
            };
            return Ok(Self::Here(Arc::new(Mutex::new(reader(Source::One(
                place,
                Some(Box::new(conn)),
            ))))));
        }
        let pool = r2d2::Pool::builder()
            .max_size(THREADS)
            .min_idle(Some(0))
            .test_on_check_out(false)
            // Nothing to do by the clock, so that the pool's threads end with it.
            .idle_timeout(None)
            .max_lifetime(None)
            // For as long it is tried again, where the file cannot be opened.
            .connection_timeout(std::time::Duration::from_secs(2))
            .build(Manager::readers(path, settings.busy_timeout))
            .map_err(|error| StoreFault::Io(error.to_string()))?;
        let (sender, receiver) = mpsc::channel::<Box<dyn Pending>>();
        let receiver = Arc::new(Mutex::new(receiver));
        for n in 0..THREADS {
            let reader = reader(Source::Pool(pool.clone()));
            let receiver = receiver.clone();
            std::thread::Builder::new()
                .name(format!("leasehold-reader-{n}"))
                .spawn(move || {
                    loop {
                        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(question) = next else { break };
                        reader.ask(question);
                    }
                })
                .map_err(|error| StoreFault::Io(error.to_string()))?;
        }
        Ok(Self::Apart(sender))
    }

    /// Asks a question.
    pub(crate) fn ask(&self, question: Box<dyn Pending>) {
        match self {
            Self::Apart(sender) => {
                if let Err(mpsc::SendError(question)) = sender.send(question) {
                    question.answer(Err(StoreFault::Stopped));
                }
            }
            Self::Here(reader) => {
                reader.lock().unwrap_or_else(PoisonError::into_inner).ask(question);
            }
        }
    }
}

/// Where a reader has its connection from.
enum Source {
    Pool(r2d2::Pool<Manager>),
    /// One of its own, until it ends.
    One(Place, Option<Box<Connection>>),
}

/// Answers questions.
pub(crate) struct Reader {
    source: Source,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    settings: StoreSettings,
    fence: AppFence,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Source::One(place, conn) = &mut self.source
            && let Some(conn) = conn.take()
        {
            self.settings.spares.keep(place, Spare { conn: *conn, fence: None });
        }
    }
}

impl Reader {
    fn ask(&self, mut question: Box<dyn Pending>) {
        let outcome = match &self.source {
            Source::One(_, Some(conn)) => self.read(conn, &mut question),
            Source::One(_, None) => Err(StoreFault::Stopped),
            Source::Pool(pool) => match pool.get() {
                Ok(conn) => self.read(&conn, &mut question),
                Err(error) => Err(StoreFault::Io(error.to_string())),
            },
        };
        question.answer(outcome);
    }

    fn read(&self, conn: &Connection, question: &mut Box<dyn Pending>) -> Result<(), StoreFault> {
        // One snapshot for all of a question's statements; it ends before the answer.
        let snapshot = conn.unchecked_transaction()?;
        let mut cache = Cache::default();
        let mut txn = Txn {
            conn: &snapshot,
            cache: &mut cache,
            now: self.clock.now(),
            monotonic: self.clock.monotonic(),
            entropy: &*self.entropy,
            settings: &self.settings,
            fence: &self.fence,
            effects: Effects::default(),
            scope: None,
        };
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| question.run(&mut txn)));
        match ran {
            Ok(outcome) => outcome,
            Err(panic) => Err(StoreFault::Panicked(crate::rules::text::of_panic(panic))),
        }
    }
}

/// Sees that the file has been changed, by whichever process.
pub(crate) struct FileWatch {
    conn: Connection,
    version: i64,
}

impl FileWatch {
    /// A watch on a file; nothing where it cannot be opened, and looks by the clock must do.
    pub(crate) fn open(path: &std::path::Path) -> Option<Self> {
        let conn = Manager::readers(path, 0).connect().ok()?;
        Some(Self { conn, version: 0 })
    }

    /// Whether anything was committed since the last look.
    pub(crate) fn changed(&mut self) -> bool {
        let version = self
            .conn
            .prepare_cached(sql::DATA_VERSION)
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)));
        // What cannot be told is looked at.
        let version = version.unwrap_or(self.version.wrapping_add(1));
        std::mem::replace(&mut self.version, version) != version
    }
}

impl Txn<'_> {
    /// Whether a claim of these kinds would find something now, and when the next job of any
    /// kind is due.
    pub(super) fn work(&mut self, kinds: &[Arc<str>]) -> Result<Work, StoreFault> {
        let mut numbers = Vec::with_capacity(kinds.len());
        for kind in kinds {
            numbers.extend(self.cache.known_id(self.conn, kind)?);
        }
        let list = serde_json::to_string(&numbers).unwrap_or_default();
        let mut now = false;
        for statement in [sql::ANY_READY, sql::ANY_SUSPECT] {
            now = now || self.conn.prepare_cached(statement)?.exists([&list])?;
        }
        let next: Option<i64> =
            self.conn.prepare_cached(sql::NEXT_DUE)?.query_row([], |row| row.get(0)).optional()?;
        let now = now || next.is_some_and(|at| at <= self.now);
        Ok(Work { now, next_due: next })
    }
}
