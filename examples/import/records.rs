//! The file: its fingerprint, and its records as rows of the table, checked field by field.

use std::fmt::Display;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, Position, ReaderBuilder, Terminator, Trim};
use leasehold::JobError;
use leasehold::rusqlite::types::Value;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What tells one file from another: the length, and a hash of the content.
///
/// The hash is kept in the database for as long as the job is, so it has to be one that is
/// the same in every version of every program; the hasher of the standard library makes no
/// such promise.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    pub bytes: u64,
    pub sha256: String,
}

impl Fingerprint {
    pub fn of(path: &Path) -> io::Result<Self> {
        let named = |error| naming(path, error);
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(named)?);
        let (mut bytes, mut hash) = (0, Sha256::new());
        loop {
            let chunk = file.fill_buf().map_err(named)?;
            if chunk.is_empty() {
                break;
            }
            hash.update(chunk);
            let length = chunk.len();
            bytes += length as u64;
            file.consume(length);
        }
        let mut sha256 = String::new();
        for byte in hash.finalize() {
            write!(sha256, "{byte:02x}").map_err(io::Error::other)?;
        }
        Ok(Self { bytes, sha256 })
    }
}

fn naming(path: &Path, error: impl Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// A place between two records, as the checkpoint keeps it.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Place {
    pub byte: u64,
    pub line: u64,
}

/// A record: its row in the table, the line first.
pub struct Strike {
    pub cost_total: i64,
    pub row: Vec<Value>,
}

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Text,
    Number,
    NumberOrNothing,
}

const COST_TOTAL: &str = "Cost Total $";

/// The columns of the file, in the order of the table's.
const COLUMNS: [(&str, Holds); 14] = [
    ("Airport Name", Holds::Text),
    ("Aircraft Make Model", Holds::Text),
    ("Effect Amount of damage", Holds::Text),
    ("Flight Date", Holds::Text),
    ("Aircraft Airline Operator", Holds::Text),
    ("Origin State", Holds::Text),
    ("Phase of flight", Holds::Text),
    ("Wildlife Size", Holds::Text),
    ("Wildlife Species", Holds::Text),
    ("Time of day", Holds::Text),
    ("Cost Other", Holds::Number),
    ("Cost Repair", Holds::Number),
    (COST_TOTAL, Holds::Number),
    ("Speed IAS in knots", Holds::NumberOrNothing),
];

/// Reads records from a place on.
///
/// What the file has wrong is an error that gives the job up: it would be as wrong in the next
/// attempt. What the disk has wrong is an error that is tried again.
pub struct Reader {
    path: PathBuf,
    csv: csv::Reader<File>,
    record: ByteRecord,
}

impl Reader {
    pub fn open(path: &Path, place: Option<Place>) -> Result<Self, JobError> {
        let file = File::open(path).map_err(|error| naming(path, error))?;
        let csv = ReaderBuilder::new()
            // The number of fields is checked below, where the missing one can be named.
            .flexible(true)
            // A line ends at its LF, so that lines are counted right; by itself the reader ends
            // a CR LF at the CR, and counts the LF to the line after. The CR is trimmed off.
            .terminator(Terminator::Any(b'\n'))
            .trim(Trim::All)
            .from_reader(file);
        let mut this = Self { path: path.to_owned(), csv, record: ByteRecord::new() };
        let headers = this.csv.byte_headers().map_err(|error| naming(path, error))?.clone();
        for (n, (name, _)) in COLUMNS.iter().enumerate() {
            if headers.get(n) != Some(name.as_bytes()) {
                return Err(this.malformed(
                    1,
                    name,
                    format!("should be field {} of the header", n + 1),
                ));
            }
        }
        if let Some(place) = place {
            let mut position = Position::new();
            position.set_byte(place.byte).set_line(place.line);
            this.csv.seek(position).map_err(|error| naming(path, error))?;
        }
        Ok(this)
    }

    /// Where the next record begins.
    pub fn place(&self) -> Place {
        let position = self.csv.position();
        Place { byte: position.byte(), line: position.line() }
    }

    /// The next records, at most `most` of them; none at the end.
    pub fn slice(&mut self, most: usize) -> Result<Vec<Strike>, JobError> {
        let mut slice = Vec::new();
        while slice.len() < most {
            let line = self.place().line;
            let read = self.csv.read_byte_record(&mut self.record);
            if !read.map_err(|error| naming(&self.path, error))? {
                break;
            }
            let blank = self.record.len() == 1 && self.record[0].is_empty();
            if !blank {
                slice.push(self.strike(line)?);
            }
        }
        Ok(slice)
    }

    fn strike(&self, line: u64) -> Result<Strike, JobError> {
        let fields = self.record.len();
        let mut cost_total = 0;
        let mut row = vec![Value::Integer(i64::try_from(line)?)];
        for (n, (name, holds)) in COLUMNS.into_iter().enumerate() {
            let Some(field) = self.record.get(n) else {
                let what = format!("is missing: {fields} fields instead of {}", COLUMNS.len());
                return Err(self.malformed(line, name, what));
            };
            let Ok(text) = std::str::from_utf8(field) else {
                let what = format!("is not UTF-8: {:?}", String::from_utf8_lossy(field));
                return Err(self.malformed(line, name, what));
            };
            let number = text.parse();
            row.push(match (holds, number) {
                (Holds::Text, _) => Value::Text(text.to_owned()),
                (Holds::NumberOrNothing, _) if text.is_empty() => Value::Null,
                (_, Ok(number)) => Value::Integer(number),
                (_, Err(_)) => {
                    return Err(self.malformed(line, name, format!("is no number: {text:?}")));
                }
            });
            if let (COST_TOTAL, Some(Value::Integer(cost))) = (name, row.last()) {
                cost_total = *cost;
            }
        }
        if fields > COLUMNS.len() {
            let name = format!("{}", COLUMNS.len() + 1);
            let what = format!("is one too many: {fields} fields instead of {}", COLUMNS.len());
            return Err(self.malformed(line, &name, what));
        }
        Ok(Strike { cost_total, row })
    }

    /// An error that names the file, the line and the field.
    fn malformed(&self, line: u64, field: &str, what: impl Display) -> JobError {
        let file = self.path.display();
        JobError::give_up(format!("{file}, line {line}: field {field:?} {what}"))
    }
}
