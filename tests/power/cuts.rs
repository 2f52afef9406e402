//! Power cuts: a history is played once, and then cut off after each of its changes, with several
//! variants of what of them has reached the disk.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use leasehold::rusqlite::Connection;
use leasehold::{
    Client, Durability, Filter, JobSummary, ManualClock, NewJob, Order, Paging, Settings, Status,
};

use crate::book::{Answer, Book, Entry, JobSeen, Seen, What, broken, look};
use crate::disk::{Disk, FILES, Op};
use crate::history::{Play, START};
use crate::platter::{Image, Kept, Platter, lay_out};
use crate::rng::Rng;
use crate::{block_on, folder, recover};

/// A history that was played.
pub struct Played {
    log: Vec<(usize, Op)>,
    entries: Vec<Entry>,
    /// Before this change all is safe, and nothing is cut.
    begin: usize,
    durability: Durability,
}

impl Played {
    /// From the first open of a new file to the stop.
    pub fn whole(durability: Durability) -> Self {
        Self::play(durability, None, async |play| {
            play.prepare().await;
            play.go_on().await;
            0
        })
    }

    /// A commit that has `SQLite` write the log back by itself, and the next, with which the log
    /// begins anew.
    pub fn written_back(durability: Durability) -> Self {
        // Small pages, so that many of them are few bytes.
        let sql = "PRAGMA page_size = 512; CREATE TABLE applications_own (x)";
        Self::play(durability, Some(sql), async |play| {
            play.prepare().await;
            play.fill_log().await;
            let begin = play.book.disk().len();
            play.write_back().await;
            assert!(play.book.disk().log_pages(begin).1, "the log is written back");
            begin
        })
    }

    /// The files where cuts begin.
    pub fn base(&self) -> Image {
        let mut platter = Platter::with(Image::default(), true);
        self.log[..self.begin].iter().for_each(|(file, op)| platter.take(*file, op));
        platter.image(Kept::All, &mut Rng::new(0))
    }

    /// What was so already.
    pub fn before(&self) -> impl Iterator<Item = What> {
        let before = self.entries.iter().filter(|entry| entry.asked < self.begin);
        before.map(|entry| entry.what.clone())
    }

    fn play(
        durability: Durability,
        first: Option<&str>,
        history: impl AsyncFnOnce(&Play) -> usize,
    ) -> Self {
        let dir = folder();
        let path = dir.path().join("jobs.db");
        let disk = Disk::of(&path);
        let book = Book::new(disk.clone());
        if let Some(sql) = first {
            Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        }
        let begin = block_on(async {
            let clock = ManualClock::at(START);
            let play = Play::start(&path, &book, &clock, durability).await.unwrap();
            let begin = history(&play).await;
            play.stop().await;
            begin
        });
        disk.let_go();
        assert!(book.errors().is_empty(), "{:?}", book.errors());
        Self { log: disk.take_log(), entries: book.entries(), begin, durability }
    }
}

/// What cuts have come to.
#[derive(Debug, Default)]
pub struct Figures {
    /// Places where the history was cut.
    pub points: usize,
    /// Variants of them.
    pub cuts: usize,
    /// Different images that were recovered.
    pub images: usize,
    /// Images on which a runtime went on.
    pub went_on: usize,
    /// Points at which the process was killed, and the power cut when another had gone on.
    pub killed: usize,
    /// Cuts after which something is missing that was acknowledged.
    pub lossy: usize,
    /// Cuts that left a database that is damaged or was never so.
    pub corrupt: usize,
    /// What must not be; a few.
    pub findings: Vec<String>,
}

impl Figures {
    fn found(&mut self, finding: String) {
        if self.findings.len() < 10 {
            self.findings.push(finding);
        }
    }

    pub fn add(&mut self, other: Self) {
        self.points += other.points;
        self.cuts += other.cuts;
        self.images += other.images;
        self.went_on += other.went_on;
        self.killed += other.killed;
        self.lossy += other.lossy;
        self.corrupt += other.corrupt;
        self.findings.extend(other.findings);
    }
}

/// The databases that were found.
struct Found {
    dir: tempfile::TempDir,
    /// What is in them, each once.
    seen: Vec<Result<Seen, String>>,
    /// The number of each by its pages.
    pages: Vec<(Vec<u8>, usize)>,
    laid_out: usize,
}

impl Found {
    fn with<T>(&mut self, image: &Image, work: impl FnOnce(&mut Self, &Path) -> T) -> T {
        self.laid_out += 1;
        let path = lay_out(image, self.dir.path(), &format!("{}.db", self.laid_out));
        let answer = work(self, &path);
        for end in FILES.into_iter().chain(["-shm"]) {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            let _not_there = std::fs::remove_file(name);
        }
        // What a runtime keeps beside it.
        let mut beside = path.into_os_string();
        beside.push("-leasehold");
        let _not_there = std::fs::remove_dir_all(beside);
        answer
    }

    /// Has `SQLite` recover an image; answers the number of the database that comes of it.
    fn recover(&mut self, image: &Image) -> usize {
        self.with(image, |found, path| {
            let opened = recover(path);
            // Its last connection has written the log back.
            let pages = std::fs::read(path).unwrap_or_default();
            let known = found.pages.iter().rev().find(|(known, _)| *known == pages);
            if let Some((_, number)) = known.filter(|_| opened.is_ok()) {
                return *number;
            }
            let seen = opened.and_then(|()| look(path));
            let known = found.seen.iter().position(|known| *known == seen);
            let number = known.unwrap_or(found.seen.len());
            if known.is_none() {
                found.seen.push(seen);
            }
            found.pages.push((pages, number));
            number
        })
    }
}

/// Cuts a history.
pub struct Cutter<'p> {
    played: &'p Played,
    platter: Platter<'p>,
    found: Found,
    /// The databases that there were, each with the change from which on it was there.
    commits: Vec<(usize, usize)>,
    /// The images of the last point, each with its database.
    last: Vec<(Image, usize)>,
    /// What is wrong with a database, by how much of the book counts.
    judged: HashMap<(usize, usize, usize), Vec<String>>,
    figures: Figures,
    runtime: tokio::runtime::Runtime,
}

impl<'p> Cutter<'p> {
    /// On a disk that heeds syncs, or does not.
    pub fn of(played: &'p Played, heeds_syncs: bool) -> Self {
        let platter = Platter::with(played.base(), heeds_syncs);
        let (seen, pages) = (Vec::new(), Vec::new());
        let mut found = Found { dir: folder(), seen, pages, laid_out: 0 };
        let first = found.recover(&platter.image(Kept::All, &mut Rng::new(0)));
        let commits = vec![(played.begin, first)];
        let (last, judged, figures) = (Vec::new(), HashMap::new(), Figures::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { played, platter, found, commits, last, judged, figures, runtime }
    }

    /// Cuts at every point, or at every so many, with every variant for each of so many seeds. A
    /// runtime goes on with each image, or each so many; with none where that is 0.
    pub fn cut(mut self, every: usize, seeds: u64, going_on: usize) -> Figures {
        let played = self.played;
        for point in played.begin..=played.log.len() {
            if point > played.begin {
                let (file, op) = &played.log[point - 1];
                self.platter.take(*file, op);
                if commits(&played.log[..point]) {
                    let next = self.platter.image(Kept::All, &mut Rng::new(0));
                    let next = self.found.recover(&next);
                    self.commits.push((point, next));
                }
            }
            if (point - played.begin).is_multiple_of(every) {
                self.cut_at(point, seeds, going_on);
            }
        }
        self.figures
    }

    fn cut_at(&mut self, point: usize, seeds: u64, going_on: usize) {
        self.figures.points += 1;
        let mut images: Vec<(Image, usize)> = Vec::new();
        for seed in 1..=seeds {
            for kept in Kept::ALL {
                let image = self.platter.image(kept, &mut Rng::new(seed << 32 | point as u64));
                self.figures.cuts += 1;
                let known = images.iter().chain(&self.last).find(|(known, _)| *known == image);
                let known = known.map(|(_, number)| *number);
                let number = known.unwrap_or_else(|| {
                    self.figures.images += 1;
                    self.found.recover(&image)
                });
                for finding in self.judge(point, number) {
                    self.figures.found(format!("cut {point}, {kept:?}, seed {seed}: {finding}"));
                }
                images.push((image, number));
            }
        }
        for (n, (image, number)) in images.iter().enumerate() {
            // Another variant at each point.
            if going_on > 0
                && (point + n).is_multiple_of(going_on)
                && let Err(finding) = self.goes_on(image, *number)
            {
                let kept = Kept::ALL[n % Kept::ALL.len()];
                self.figures.found(format!("cut {point}, {kept:?}, going on: {finding}"));
            }
        }
        if going_on > 0
            && point.is_multiple_of(going_on)
            && let Err(finding) = self.kill_at(point)
        {
            self.figures.found(format!("cut {point}, killed before: {finding}"));
        }
        self.last = images;
    }

    /// Kills the process at this point, which loses nothing of what is written, has another ask
    /// again for all jobs, and cuts the power: what was acknowledged is there.
    fn kill_at(&mut self, point: usize) -> Result<(), String> {
        self.figures.killed += 1;
        let entries = &self.played.entries;
        let asked = || entries.iter().filter(|entry| entry.asked <= point).map(|entry| &entry.what);
        let gone = |id: &String| asked().any(|what| *what == What::Gone(id.clone()));
        let jobs = asked().filter_map(|what| match what {
            What::Enqueued(id) if !gone(id) => Some(id.clone()),
            _ => None,
        });
        let jobs: BTreeSet<_> = jobs.collect();
        let image = self.platter.image(Kept::All, &mut Rng::new(0));
        let (platter, runtime) = (&self.platter, &self.runtime);
        self.found.with(&image, |found, path| {
            let disk = Disk::of(path);
            let asked: leasehold::Result<_> = runtime.block_on(async {
                let client = Client::open(path).await?;
                for id in &jobs {
                    client.enqueue(NewJob::raw("hand", None).id(id.as_str())).await?;
                }
                Ok((client, disk.take_log()))
            });
            disk.let_go();
            let (_client, log) = asked.map_err(|error| error.to_string())?;
            let mut platter = platter.clone();
            for (file, op) in &log {
                platter.take(*file, op);
            }
            let left = platter.image(Kept::Nothing, &mut Rng::new(0));
            let seen = found.with(&left, |_, path| look(path))?;
            match jobs.iter().find(|id| !seen.jobs.contains_key(*id)) {
                Some(id) => Err(format!("lost: {id}")),
                None => Ok(()),
            }
        })
    }

    /// What is wrong with a database that was found after a cut.
    fn judge(&mut self, point: usize, number: usize) -> Vec<String> {
        let entries = &self.played.entries;
        let seen = match &self.found.seen[number] {
            Ok(seen) => seen,
            Err(error) => {
                self.figures.corrupt += 1;
                return vec![format!("damaged: {error}")];
            }
        };
        // The last time that it was so.
        let Some((at, _)) = self.commits.iter().rev().find(|(_, known)| *known == number) else {
            self.figures.corrupt += 1;
            return vec!["a database that there never was".to_owned()];
        };
        let said = |entry: &Entry| match entry.answer {
            Answer::Yes(when) if when <= point => Some(when),
            _ => None,
        };
        let last = entries.iter().filter_map(said).max().unwrap_or_default();
        let due = self.commits.iter().rev().find(|(at, _)| *at <= last).map_or(0, |(at, _)| *at);
        self.figures.lossy += usize::from(*at < due);
        // What is lost without syncs is the end: all is as it was then.
        let then = if self.played.durability == Durability::Full { point } else { point.min(*at) };
        let asked = entries.iter().filter(|entry| entry.asked <= then).count();
        let answered = entries.iter().filter_map(said).filter(|when| *when <= then).count();
        let judged = self.judged.entry((number, asked, answered));
        judged.or_insert_with(|| broken(entries, seen, then)).clone()
    }

    /// Whether a runtime finds the same jobs in an image, and goes on with them.
    fn goes_on(&mut self, image: &Image, number: usize) -> Result<(), String> {
        let Ok(seen) = &self.found.seen[number] else { return Ok(()) };
        let job = |(id, job): (&String, &JobSeen)| (id.clone(), job.status.clone(), job.epoch);
        let jobs = seen.jobs.iter().map(job).collect();
        self.figures.went_on += 1;
        let runtime = &self.runtime;
        self.found.with(image, |_, path| {
            runtime.block_on(go_on(path, jobs)).map_err(|error| error.to_string())
        })
    }
}

async fn go_on(path: &Path, jobs: BTreeSet<(String, String, i64)>) -> leasehold::Result<()> {
    let client = Client::open(path).await?;
    let page = client.list(&Filter::new(), Paging::first(Order::Oldest, 1_000)).await?;
    let job = |job: JobSummary| (job.id.to_string(), job.status.to_string(), job.epoch);
    assert_eq!(page.jobs.into_iter().map(job).collect::<BTreeSet<_>>(), jobs);
    client.register("after", Settings::new()).await?;
    let id = client.enqueue(NewJob::raw("after", None)).await?.id;
    for lease in client.claim(&["after"], "after", 1).await? {
        lease.complete(None).await?;
    }
    let job = client.job(&id).await?.expect("the job that was enqueued");
    assert_eq!(job.status, Status::Completed);
    Ok(())
}

/// Whether the last change ends a commit: the page behind the header of a frame that says so.
fn commits(log: &[(usize, Op)]) -> bool {
    match log {
        [.., (1, Op::Write { bytes, .. }), _] => bytes.len() == 24 && bytes[4..8] != [0; 4],
        _ => false,
    }
}
