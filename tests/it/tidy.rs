//! The rules of this project that neither the compiler nor clippy can hold it to.
//!
//! Each rule is a function from texts to findings. It runs over the whole tree, and over a bad
//! text that it must find fault with.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use source::{Sort, code, functions, is_word, line_of, stretches, uses, words};

mod source;

/// Production lines in a file, in `lib.rs`, and of a hundred lines in `actors/`, at the most.
const FILE: usize = 400;
const LIB: usize = 150;
const ACTORS_PERCENT: usize = 20;
/// Lines of ARCHITECTURE.md, at the most.
const ARCHITECTURE: usize = 320;

/// Which files and folders of `src` may use a crate or a module; nobody else may.
const ONLY: &[(&str, &[&str])] = &[
    ("rusqlite", &["store/", "hooks.rs", "transaction.rs", "error.rs", "lib.rs"]),
    ("r2d2", &["store/"]),
    ("r2d2_sqlite", &["store/"]),
    ("actix", &["actors/", "ask.rs"]),
    ("actix_rt", &["actors/", "home.rs", "host.rs", "work/pool.rs"]),
    ("getrandom", &["entropy.rs"]),
    ("tokio::time", &["clock.rs", "work/pool.rs"]),
    ("crate::actors", &["actors/", "ask.rs", "host.rs", "runtime.rs"]),
];

/// What the files of a folder of `src` must never use.
const NEVER: &[(&str, &[&str])] = &[
    ("rules/", &["tokio", "log", "std::time", "crate::clock", "crate::entropy"]),
    ("rules/", &["crate::store", "crate::work", "crate::host", "crate::client"]),
    ("store/", &["tokio", "crate::client", "crate::work", "crate::host", "crate::runtime"]),
    ("work/", &["crate::client", "crate::runtime", "crate::builder"]),
    ("actors/", &["crate::client", "crate::runtime", "crate::builder"]),
];

/// Tests that wait in real time, and why they must.
const SLEEPS: &[(&str, &str)] = &[
    ("tests/it/example.rs", "looks now and then at what another process is doing"),
    ("tests/it/import.rs", "kills another process at a random moment"),
];

/// The one file with `unsafe` code, and why it must; what is published forbids it.
const UNSAFE: (&str, &str) =
    ("tests/power/vfs.rs", "a file system of SQLite is a table of C functions");

/// The lines with which every actor's file opens.
const CARD: &[&str] = &["Owns", "Receives", "Sends", "Never", "Stops", "Panics"];

/// A file, by its path from the root of the project.
struct File {
    path: String,
    text: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// The path within `src`.
    fn inner(&self) -> &str {
        self.path.strip_prefix("src/").unwrap_or(&self.path)
    }

    /// What comes before the tests in the file.
    fn production(&self) -> &str {
        let tests = self.text.find("#[cfg(test)]\nmod tests {");
        &self.text[..tests.unwrap_or(self.text.len())]
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> File {
    let text = fs::read_to_string(root().join(path));
    File::new(path, &text.unwrap_or_else(|error| panic!("{path}: {error}")))
}

/// All text files under a folder, in order; what tools and editors keep is left out.
fn files(folder: &str) -> Vec<File> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = fs::read_dir(root().join(folder)).unwrap().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().into_string().unwrap();
        let hidden = name.starts_with('.') && name != ".ci";
        if hidden || ["target", "Cargo.lock"].contains(&&*name) {
            continue;
        }
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&path));
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            found.push(File { path, text });
        }
    }
    found
}

fn has_extension(path: &str, extensions: &[&str]) -> bool {
    path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
}

fn rust(folder: &str) -> Vec<File> {
    files(folder).into_iter().filter(|file| has_extension(&file.path, &["rs"])).collect()
}

/// The files of `src` that are no tests.
fn production() -> Vec<File> {
    let all = rust("src");
    let tests: BTreeSet<String> = all.iter().flat_map(test_modules).collect();
    all.into_iter().filter(|file| !tests.contains(&file.path)).collect()
}

/// The files that a module declares for tests alone.
fn test_modules(file: &File) -> Vec<String> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let declared = file.text.split("#[cfg(test)]\nmod ").skip(1);
    let names = declared.filter_map(|rest| rest.lines().next()?.strip_suffix(';'));
    names.map(|name| format!("{folder}/{name}.rs")).collect()
}

/// Fails with all findings.
#[track_caller]
fn none(findings: impl IntoIterator<Item = String>) {
    let findings: Vec<_> = findings.into_iter().collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

// ---------------------------------------------------------------------------------------------
// The shape of the source

fn header(file: &File) -> Option<String> {
    let has = file.text.starts_with("//!") || file.text.starts_with("#![doc");
    (!has).then(|| format!("{}: it does not open with a `//!` that says what it is", file.path))
}

#[test]
fn every_file_says_what_it_is() {
    none(rust("src").iter().chain(&rust("tests")).chain(&rust("examples")).filter_map(header));
}

#[test]
fn a_file_without_a_header_is_seen() {
    assert!(header(&File::new("src/x.rs", "use std::fmt;\n")).is_some());
    assert!(header(&File::new("src/x.rs", "//! X.\n")).is_none());
}

/// The items of a card's line, which goes on where lines are indented further.
fn card_line<'t>(text: &'t str, word: &str) -> Option<Vec<&'t str>> {
    let mut lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let first =
        lines.find_map(|line| line.strip_prefix(' ')?.strip_prefix(word)?.strip_prefix(' '))?;
    let more = lines.take_while(|line| line.starts_with("    "));
    let items = std::iter::once(first).chain(more).flat_map(|line| line.split(','));
    Some(items.map(str::trim).filter(|item| !item.is_empty()).collect())
}

/// The messages that a file has handlers for.
fn handlers(file: &File) -> BTreeSet<String> {
    let code = code(file.production());
    let handlers = code.split("impl Handler<").skip(1);
    handlers.filter_map(|rest| Some(rest.split_once("> for ")?.0.to_owned())).collect()
}

fn card(file: &File) -> Vec<String> {
    let path = &file.path;
    let mut findings = Vec::new();
    for word in CARD {
        if card_line(&file.text, word).is_none() {
            findings.push(format!("{path}: its card has no line {word:?}"));
        }
    }
    let mut listed = card_line(&file.text, "Receives").unwrap_or_default();
    if listed == ["nothing"] {
        listed.clear();
    }
    let listed: BTreeSet<_> = listed.into_iter().map(str::to_owned).collect();
    let handled = handlers(file);
    if listed != handled {
        findings.push(format!("{path}: its card says that it receives {listed:?}, it {handled:?}"));
    }
    findings
}

#[test]
fn every_actor_opens_with_its_card() {
    let actors = rust("src/actors");
    let actors: Vec<_> =
        actors.iter().filter(|file| code(&file.text).contains("impl Actor for")).collect();
    let names: Vec<_> = actors.iter().map(|file| file.inner()).collect();
    for name in ["reaper", "store", "supervisor", "worker"] {
        assert!(names.contains(&&*format!("actors/{name}.rs")), "{name} is missing in {names:?}");
    }
    none(actors.into_iter().flat_map(card));
}

#[test]
fn an_actor_that_hides_a_message_is_seen() {
    let card_text = "//! Owns      a thing\n//! Receives  Ping,\n//!           Pong\n//! Sends     x\n\
                     //! Never     x\n//! Stops     x\n//! Panics    x\n";
    let handlers = "impl Handler<Ping> for A {}\nimpl Handler<Pong> for A {}\n";
    let good = format!("{card_text}{handlers}");
    assert_eq!(card(&File::new("src/actors/a.rs", &good)), [""; 0]);
    let hidden = format!("{good}impl Handler<Quit> for A {{}}\n");
    assert_eq!(card(&File::new("src/actors/a.rs", &hidden)).len(), 1);
    let deaf = card_text.replace("Ping,\n//!           Pong", "nothing");
    assert_eq!(card(&File::new("src/actors/a.rs", &deaf)), [""; 0]);
    assert_eq!(card(&File::new("src/actors/a.rs", &format!("{deaf}{handlers}"))).len(), 1);
    let short = good.replace("//! Never     x\n", "");
    assert_eq!(card(&File::new("src/actors/a.rs", &short)).len(), 1);
}

fn layers(file: &File) -> Vec<String> {
    let code = code(file.production());
    let inside = |place: &&str| file.inner().starts_with(*place);
    let mut findings = Vec::new();
    let mut find = |name: &str, rule: String| {
        for at in uses(&code, name) {
            findings.push(format!("{}:{}: {name}: {rule}", file.path, line_of(&code, at)));
        }
    };
    for (name, users) in ONLY.iter().filter(|(_, users)| !users.iter().any(inside)) {
        find(name, format!("only {users:?} may use it"));
    }
    for (folder, names) in NEVER.iter().filter(|(folder, _)| inside(folder)) {
        for name in *names {
            find(name, format!("{folder} must not use it"));
        }
        find("super::super", format!("{folder} must not climb out of itself"));
    }
    findings
}

#[test]
fn imports_go_one_way() {
    none(production().iter().flat_map(layers));
}

#[test]
fn an_import_against_the_stream_is_seen() {
    for (path, bad) in [
        ("src/rules/x.rs", "use actix::Addr;"),
        ("src/rules/x.rs", "use crate::{job::Job, clock::Clock};"),
        ("src/rules/x.rs", "fn f() { log::info!(\"x\"); }"),
        ("src/store/x.rs", "fn f() { crate::work::stop(); }"),
        ("src/work/x.rs", "use rusqlite as sql;"),
        ("src/work/session.rs", "fn f() { actix_rt::spawn(x); }"),
        ("src/client.rs", "use crate::actors::store::StoreActor;"),
        ("src/work/stop.rs", "use tokio::{sync::watch, time::sleep};"),
    ] {
        assert_eq!(layers(&File::new(path, bad)).len(), 1, "{bad}");
    }
    for (path, good) in [
        ("src/store/x.rs", "use rusqlite::Connection;"),
        ("src/work/pool.rs", "use actix_rt::System;"),
        (
            "src/rules/x.rs",
            "// crate::clock\nuse crate::{job::clock, kind};\nlet log = \"actix::\";",
        ),
        ("src/rules/x.rs", "#[cfg(test)]\nmod tests {\n    use crate::clock::ManualClock;\n}"),
    ] {
        assert_eq!(layers(&File::new(path, good)), [""; 0], "{good}");
    }
}

/// Whether a text is, or holds, a statement.
fn is_sql(text: &str) -> bool {
    let pairs =
        [("SELECT ", " FROM "), ("UPDATE ", " SET "), ("INSERT ", "INTO "), ("DELETE ", "FROM ")];
    let both = |(one, two): (&str, &str)| {
        text.find(one).is_some_and(|at| text[at + one.len() - 1..].contains(two))
    };
    let one = ["PRAGMA ", "CREATE TABLE ", "CREATE INDEX ", "ALTER TABLE ", "DROP TABLE "];
    let two = ["BEGIN IMMEDIATE", "SAVEPOINT ", "ATTACH "];
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
    let begins = |word: &&str| flat.trim_start_matches(['"', 'r', '#']).starts_with(*word);
    pairs.into_iter().any(both)
        || one.iter().chain(&two).any(|word| text.contains(word))
        || ["select ", "insert into ", "delete from ", "pragma "].iter().any(begins)
}

fn sql_outside(file: &File) -> Vec<String> {
    if file.inner().starts_with("store/") {
        return Vec::new();
    }
    let literals =
        stretches(file.production()).into_iter().filter(|(sort, _)| *sort == Sort::Literal);
    let found = literals.filter(|(_, text)| is_sql(text));
    found.map(|(_, text)| format!("{}: SQL outside of src/store: {text}", file.path)).collect()
}

#[test]
fn sql_is_in_the_store_alone() {
    none(production().iter().flat_map(sql_outside));
}

#[test]
fn sql_in_another_place_is_seen() {
    for bad in ["SELECT 1 FROM jobs", "UPDATE jobs SET a = 1", "INSERT INTO jobs", "pragma x"] {
        let bad = format!("fn f() {{ run({bad:?}) }}");
        assert_eq!(sql_outside(&File::new("src/client.rs", &bad)).len(), 1, "{bad}");
        assert_eq!(sql_outside(&File::new("src/store/rows.rs", &bad)), [""; 0]);
    }
    let good = "/// Runs `DELETE FROM jobs`.\nfn f() { say(\"select one, then update the set\") }";
    let good = good.replace("\"select", "\"please select");
    assert_eq!(sql_outside(&File::new("src/client.rs", &good)), [""; 0]);
}

/// Public operations that take a `bool`: at the call nobody sees what it means.
fn takes_bool(file: &File) -> Vec<String> {
    let text = code(file.production());
    let mut found = Vec::new();
    for start in ["pub fn ", "pub async fn ", "pub const fn "] {
        for (at, _) in text.match_indices(start) {
            let rest = &text[at + start.len()..];
            let signature = &rest[..rest.find(['{', ';']).unwrap_or(rest.len())];
            let inputs = signature.rfind("->").map_or(signature, |at| &signature[..at]);
            if inputs.contains(": bool") || inputs.contains(": Option<bool>") {
                let name = inputs.split(['(', '<']).next().unwrap_or_default();
                found.push(format!("{}: {name} takes a bool", file.path));
            }
        }
    }
    found
}

/// Sections of SEMANTICS.md that the documentation refers to and that are not there.
fn lost_sections(file: &File, semantics: &str) -> Vec<String> {
    let headings: Vec<_> = semantics.lines().filter_map(|line| line.strip_prefix('#')).collect();
    let mut lost = Vec::new();
    for (at, _) in file.text.match_indices("SEMANTICS.md, ") {
        let rest = file.text[at..].replace("///", " ").replace("//!", " ");
        let cited = rest.split(['.', ';']).nth(1).unwrap_or_default();
        for title in cited.split('“').skip(1).filter_map(|one| one.split('”').next()) {
            let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
            if !headings.iter().any(|heading| heading.trim_matches(['#', ' ']) == title) {
                lost.push(format!("{}: SEMANTICS.md has no section “{title}”", file.path));
            }
        }
    }
    lost
}

#[test]
fn the_sections_that_are_referred_to_are_there() {
    let semantics = read("SEMANTICS.md").text;
    none(production().iter().flat_map(|file| lost_sections(file, &semantics)));
}

#[test]
fn a_section_that_is_gone_is_seen() {
    let text = "/// Specified in SEMANTICS.md, “Here” and\n/// “Not here”.\nfn f() {}";
    let lost = lost_sections(&File::new("src/x.rs", text), "# Semantics\n\n## Here\n");
    assert_eq!(lost, ["src/x.rs: SEMANTICS.md has no section “Not here”"]);
}

#[test]
fn no_public_operation_takes_a_bool() {
    none(production().iter().flat_map(takes_bool));
}

#[test]
fn a_bool_in_a_public_operation_is_seen() {
    let bad = "pub async fn redrive(\n    &self,\n    force: bool,\n) -> bool { true }";
    assert_eq!(
        takes_bool(&File::new("src/client.rs", bad)),
        ["src/client.rs: redrive takes a bool"]
    );
    let good = "pub fn is_well(&self) -> bool { true } pub(crate) fn f(x: bool) {}";
    assert_eq!(takes_bool(&File::new("src/client.rs", good)), [""; 0]);
}

fn budget(file: &File) -> Option<String> {
    let lines = file.production().lines().count();
    let most = if file.inner() == "lib.rs" { LIB } else { FILE };
    (lines > most).then(|| format!("{}: {lines} lines before its tests, not {most}", file.path))
}

fn share(files: &[File]) -> Option<String> {
    let lines = |file: &File| file.production().lines().count();
    let all: usize = files.iter().map(lines).sum();
    let actors = files.iter().filter(|file| file.inner().starts_with("actors/"));
    let actors: usize = actors.map(lines).sum();
    (actors * 100 > all * ACTORS_PERCENT)
        .then(|| format!("actors/ has {actors} of {all} lines, more than {ACTORS_PERCENT} %"))
}

#[test]
fn files_stay_small_and_actors_thin() {
    let files = production();
    none(files.iter().filter_map(budget).chain(share(&files)));
}

#[test]
fn a_file_over_its_budget_is_seen() {
    let long = "x\n".repeat(FILE + 1);
    assert!(budget(&File::new("src/x.rs", &long)).is_some());
    assert!(budget(&File::new("src/lib.rs", &"x\n".repeat(LIB + 1))).is_some());
    let tested = format!("{}#[cfg(test)]\nmod tests {{\n{long}}}\n", "x\n".repeat(FILE));
    assert!(budget(&File::new("src/x.rs", &tested)).is_none());
    let fat = [File::new("src/actors/a.rs", "x\nx\n"), File::new("src/b.rs", "x\nx\nx\n")];
    assert!(share(&fat).is_some());
}

/// Words of code that must not stand in a file, each with what to do instead.
fn forbidden(file: &File, list: &[(&str, &str)]) -> Vec<String> {
    let code = code(&file.text);
    let mut findings = Vec::new();
    for (word, instead) in list {
        for (at, _) in code.match_indices(word) {
            if !code[..at].ends_with(is_word) {
                let line = line_of(&code, at);
                findings.push(format!("{}:{line}: {word}: {instead}", file.path));
            }
        }
    }
    findings
}

const UNFINISHED: &[(&str, &str)] = &[
    ("todo!", "finish it"),
    ("unimplemented!", "finish it"),
    ("dbg!", "take it out"),
    ("#[ignore", "a test that does not run is no test"),
];

const PRINTS: &[(&str, &str)] = &[
    ("println!", "use `log`: a library does not print"),
    ("print!", "use `log`: a library does not print"),
    ("eprintln!", "use `log`: a library does not print"),
    ("eprint!", "use `log`: a library does not print"),
];

#[test]
fn nothing_is_left_unfinished() {
    let all = [rust("src"), rust("tests"), rust("examples")];
    none(all.iter().flatten().flat_map(|file| forbidden(file, UNFINISHED)));
    none(production().iter().flat_map(|file| forbidden(file, PRINTS)));
}

#[test]
fn what_is_left_unfinished_is_seen() {
    for (list, bad) in [
        (UNFINISHED, "fn f() { todo!() }"),
        (UNFINISHED, "#[test]\n#[ignore = \"slow\"]\nfn f() {}"),
        (UNFINISHED, "fn f() { dbg!(1); }"),
        (PRINTS, "fn f() { println!(\"here\"); }"),
    ] {
        assert_eq!(forbidden(&File::new("src/x.rs", bad), list).len(), 1, "{bad}");
    }
    let good = File::new("src/x.rs", "// todo!\nfn f() { say(\"dbg!\") }");
    assert_eq!(forbidden(&good, UNFINISHED), [""; 0]);
}

/// `unsafe` code, and leave to write it.
fn unsafes(file: &File) -> Vec<String> {
    let code = code(&file.text);
    let path = &file.path;
    let leave = ["allow", "expect", "warn"].map(|level| format!("{level}(unsafe_code"));
    let found = words(&code, "unsafe").map(|at| (at, "unsafe"));
    let left = leave.iter().flat_map(|leave| code.match_indices(leave.as_str()));
    found
        .chain(left)
        .filter(|_| path != UNSAFE.0)
        .map(|(at, what)| format!("{path}:{}: {what}: only {} may", line_of(&code, at), UNSAFE.0))
        .collect()
}

#[test]
fn one_file_alone_is_unsafe() {
    let all = [rust("src"), rust("tests"), rust("examples")];
    none(all.iter().flatten().flat_map(unsafes));
    assert!(root().join(UNSAFE.0).exists(), "{} is gone: {}", UNSAFE.0, UNSAFE.1);
    let forbidden = read("src/lib.rs").text.lines().any(|line| line == "#![forbid(unsafe_code)]");
    assert!(forbidden, "src/lib.rs forbids `unsafe`");
}

#[test]
fn unsafe_code_is_seen() {
    for bad in [
        "fn f() { unsafe { g() } }",
        "unsafe impl Send for A {}",
        "#![allow(unsafe_code, reason = \"a reason\")]",
    ] {
        assert_eq!(unsafes(&File::new("src/x.rs", bad)).len(), 1, "{bad}");
        assert_eq!(unsafes(&File::new(UNSAFE.0, bad)), [""; 0]);
    }
    let good = "#![forbid(unsafe_code)] // unsafe\nfn f() { say(\"unsafe\") }";
    assert_eq!(unsafes(&File::new("src/x.rs", good)), [""; 0]);
}

/// The states are matched without a wildcard where they are decided about.
fn exhaustive(file: &File) -> Option<String> {
    let attribute = "#![deny(clippy::wildcard_enum_match_arm)]";
    let has = file.text.lines().any(|line| line == attribute);
    (!has).then(|| format!("{}: it has no `{attribute}`: a new state must break it", file.path))
}

#[test]
fn decisions_name_every_state() {
    none(exhaustive(&read("src/rules/mod.rs")));
}

#[test]
fn decisions_with_a_wildcard_are_seen() {
    assert!(exhaustive(&File::new("src/rules/mod.rs", "//! Decisions.\n")).is_some());
}

/// Comments wider than the code may be; rustfmt leaves them alone.
fn wide(file: &File) -> Vec<String> {
    let comment = |line: &&str| line.trim_start().starts_with("//") && line.chars().count() > 100;
    let lines = file.text.lines().filter(comment);
    lines.map(|line| format!("{}: wider than 100 columns: {line}", file.path)).collect()
}

#[test]
fn comments_are_as_narrow_as_code() {
    let all = [rust("src"), rust("tests"), rust("examples")];
    none(all.iter().flatten().flat_map(wide));
}

#[test]
fn a_wide_comment_is_seen() {
    assert_eq!(wide(&File::new("src/x.rs", &format!("    /// {}", "x ".repeat(50)))).len(), 1);
}

// ---------------------------------------------------------------------------------------------
// Tests

/// Waits in real time. `.sleep(` is a method of a clock, which a test may have frozen.
fn sleeps(file: &File) -> Vec<String> {
    let code = code(&file.text);
    let free = |at: &usize| {
        let before = &code[..*at];
        !before.ends_with('.') && !before.ends_with("fn ") && code[at + 5..].starts_with('(')
    };
    let found = words(&code, "sleep").filter(free);
    let path = &file.path;
    found
        .map(|at| format!("{path}:{}: a sleep: wait for a signal", line_of(&code, at)))
        .filter(|_| !SLEEPS.iter().any(|(allowed, _)| allowed == path))
        .collect()
}

#[test]
fn tests_wait_for_signals_and_do_not_sleep() {
    none(rust("tests").iter().flat_map(sleeps));
    for (path, reason) in SLEEPS {
        assert!(root().join(path).exists(), "{path} is gone, and may not sleep any more");
        assert!(reason.len() > 10, "{path} may sleep, but nobody knows why");
    }
}

#[test]
fn a_sleep_in_a_test_is_seen() {
    let bad = File::new("tests/it/x.rs", "fn f() { std::thread::sleep(MOMENT) }");
    assert_eq!(sleeps(&bad).len(), 1);
    let good = File::new("tests/it/x.rs", "fn sleep(t: T) { ctx.sleep(MOMENT); say(\"sleep(\") }");
    assert_eq!(sleeps(&good), [""; 0]);
}

// ---------------------------------------------------------------------------------------------
// Documents

fn documents() -> Vec<File> {
    ["README.md", "ARCHITECTURE.md", "SEMANTICS.md", "CHANGELOG.md", "CONTRIBUTING.md"]
        .map(read)
        .into()
}

/// What a document names between backticks, outside of its fences.
fn named(text: &str) -> BTreeSet<&str> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        if !fenced {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// The paths of Rust and SQL files among them.
fn named_paths(text: &str) -> BTreeSet<&str> {
    let is_path = |span: &&str| has_extension(span, &["rs", "sql"]);
    named(text).into_iter().filter(is_path).map(|span| span.trim_start_matches("src/")).collect()
}

/// The names of types, and of what is in them, that are nowhere in the source.
fn lost_names(document: &str, source: &str) -> Vec<String> {
    let is_name = |span: &&str| {
        let kind = span.starts_with(char::is_uppercase) || span.contains("::");
        kind && span.chars().all(|c| is_word(c) || c == ':')
    };
    let names = named(document).into_iter().filter(is_name);
    let gone = |name: &&str| {
        let mut parts = name.split("::").filter(|part| !part.is_empty());
        parts.any(|part| words(source, part).next().is_none())
    };
    names.filter(gone).map(|name| format!("`{name}` is not in src")).collect()
}

fn code_map(document: &str, sources: &[&str], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let named = named_paths(document);
    let missing = sources.iter().filter(|source| !named.contains(*source));
    let missing = missing.map(|source| format!("ARCHITECTURE.md does not name `{source}`"));
    let gone = named.iter().filter(|path| !sources.contains(path) && !exists(path));
    let gone = gone.map(|path| format!("ARCHITECTURE.md names `{path}`, which is not there"));
    let lines = document.lines().count();
    let long = (lines > ARCHITECTURE).then(|| format!("ARCHITECTURE.md has {lines} lines"));
    missing.chain(gone).chain(long).collect()
}

#[test]
fn the_code_map_is_complete() {
    let sources = files("src");
    let sources: Vec<_> = sources.iter().map(File::inner).collect();
    let exists = |path: &str| root().join(path).exists();
    none(code_map(&read("ARCHITECTURE.md").text, &sources, exists));
}

#[test]
fn the_architecture_names_what_is_there() {
    let source: String = rust("src").iter().map(|file| code(&file.text)).collect();
    none(lost_names(&read("ARCHITECTURE.md").text, &source));
}

#[test]
fn a_name_that_is_gone_is_seen() {
    let document = "`Store::ask` sends a `Submit`; `rules` and `x.rs` are no names";
    assert_eq!(lost_names(document, "impl Store { fn ask() {} }"), ["`Submit` is not in src"]);
}

#[test]
fn a_hole_in_the_code_map_is_seen() {
    let findings = code_map("`src/a.rs`, `c.rs`\n```\n`d.rs`\n```\n", &["a.rs", "b.rs"], |_| false);
    let missing = "ARCHITECTURE.md does not name `b.rs`";
    assert_eq!(findings, [missing, "ARCHITECTURE.md names `c.rs`, which is not there"]);
}

/// Line numbers, which are wrong after the next change; symbols are not.
fn cited_lines(file: &File) -> Vec<String> {
    let digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let cites = |line: &str| {
        let lower = line.to_lowercase();
        let after =
            |mark: &str| lower.match_indices(mark).any(|(at, _)| digit(&lower[at + mark.len()..]));
        let spoken =
            |word: &str| words(&lower, word).any(|at| digit(lower[at + word.len()..].trim_start()));
        after(".rs:") || after(".rs#l") || after(".sql:") || spoken("line") || spoken("lines")
    };
    let found = file.text.lines().filter(|line| cites(line));
    found.map(|line| format!("{}: it cites a line by its number: {line}", file.path)).collect()
}

#[test]
fn documents_cite_symbols_and_not_lines() {
    none(documents().iter().chain(&rust("src")).flat_map(cited_lines));
}

#[test]
fn a_line_number_is_seen() {
    for bad in ["see `src/host.rs:12`", "lines 670 to 737", "at line 9 it", "host.rs#L12"] {
        assert_eq!(cited_lines(&File::new("README.md", bad)).len(), 1, "{bad}");
    }
    let good = File::new("README.md", "at most 250 lines; a deadline 5 s from now; online 7 days");
    assert_eq!(cited_lines(&good), [""; 0]);
}

/// Words that a project must not use about itself, in two halves so that they are not here.
const STRANGE: &[(&str, &str)] = &[
    ("cla", "ude"),
    ("chat", "gpt"),
    ("ll", "m"),
    ("ai-", "generated"),
    ("sub", "agent"),
    ("this ", "issue"),
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("../sha", "red"),
];

fn strange(file: &File) -> Vec<String> {
    let text = file.text.to_lowercase();
    let mut findings = Vec::new();
    for (one, two) in STRANGE {
        let word = format!("{one}{two}");
        let starts = |at: &usize| !text[..*at].ends_with(is_word);
        let ends =
            |at: &usize| !word.ends_with(is_word) || !text[at + word.len()..].starts_with(is_word);
        let found = text.match_indices(&word).map(|(at, _)| at);
        for at in found.filter(|at| starts(at) && ends(at)) {
            findings.push(format!("{}:{}: {word:?}", file.path, line_of(&text, at)));
        }
    }
    findings
}

#[test]
fn the_project_speaks_of_itself_alone() {
    none(files("").iter().flat_map(strange));
}

#[test]
fn a_strange_word_is_seen() {
    for (one, two) in STRANGE {
        let bad = File::new("README.md", &format!("in {}{two}", one.to_uppercase()));
        assert_eq!(strange(&bad).len(), 1, "{one}{two}");
    }
    let good = File::new("README.md", "src/work/pool.rs fulfillment of all this");
    assert_eq!(strange(&good), [""; 0]);
}

fn changelog(text: &str, version: &str) -> Option<String> {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    let first = headings.next() == Some("# Changelog");
    let top = headings.next().unwrap_or_default();
    let known = top == "## [Unreleased]" || top.starts_with(&format!("## [{version}]"));
    (!first || !known).then(|| format!("CHANGELOG.md opens with {top:?}, not [Unreleased]"))
}

#[test]
fn the_changelog_opens_with_what_is_not_released() {
    none(changelog(&read("CHANGELOG.md").text, env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_old_changelog_is_seen() {
    assert!(changelog("# Changelog\n\n## [0.0.9] - 2020-01-01\n", "0.1.0").is_some());
    assert!(changelog("# Changelog\n\n## [0.1.0] - 2020-01-01\n", "0.1.0").is_none());
}

/// The first Rust program of a document.
fn program(document: &str) -> Option<&str> {
    Some(document.split_once("```rust\n")?.1.split_once("```")?.0)
}

#[test]
fn the_readme_shows_the_program_that_runs() {
    let hello = read("examples/hello.rs").text;
    assert_eq!(program(&read("README.md").text), Some(&*hello), "examples/hello.rs and README.md");
    assert!(hello.lines().count() <= 30, "thirty lines are enough to say hello");
}

#[test]
fn another_program_in_the_readme_is_seen() {
    assert_eq!(program("# X\n```rust\nfn main() {}\n```\n"), Some("fn main() {}\n"));
    assert_ne!(program("# X\n```rust\nfn main() { }\n```\n"), Some("fn main() {}\n"));
}

// ---------------------------------------------------------------------------------------------
// Numbers

/// The numbers by which the source is compared with others.
fn numbers(files: &[File]) -> BTreeMap<&'static str, String> {
    let mut lines: Vec<_> = files.iter().map(|file| file.production().lines().count()).collect();
    lines.sort_unstable();
    let all: usize = lines.iter().sum();
    let at = |percent: usize| lines[(lines.len() - 1) * percent / 100];
    let mut lengths: Vec<_> = files.iter().flat_map(|file| functions(file.production())).collect();
    lengths.sort_by_key(|(_, length)| *length);
    let long = lengths.iter().filter(|(_, length)| *length > 70).count();
    let worst = lengths.last().cloned().unwrap_or_default();
    let unwraps = |file: &File| {
        let code = code(file.production());
        code.matches(".unwrap()").count() + code.matches(".expect(").count()
    };
    let unwraps: usize = files.iter().map(unwraps).sum();
    let is_doc =
        |line: &&str| ["///", "//!"].iter().any(|mark| line.trim_start().starts_with(mark));
    let docs: usize =
        files.iter().map(|file| file.production().lines().filter(is_doc).count()).sum();
    let actors = files.iter().filter(|file| file.inner().starts_with("actors/"));
    let actors: usize = actors.map(|file| file.production().lines().count()).sum();
    let per_thousand = unwraps * 10_000 / all;
    BTreeMap::from([
        ("files", format!("{}", files.len())),
        ("lines", format!("{all}; median {}, p90 {}, max {}", at(50), at(90), at(100))),
        ("functions", format!("{}; {long} over 70, worst {worst:?}", lengths.len())),
        ("unwraps", format!("{}.{} per 1000 lines", per_thousand / 10, per_thousand % 10)),
        ("doc lines", format!("{} %", docs * 100 / all)),
        ("actors", format!("{} % of all lines", actors * 100 / all)),
    ])
}

/// Prints them: `cargo test --test it numbers -- --nocapture`.
#[test]
fn numbers_of_the_source() {
    for (name, number) in numbers(&production()) {
        println!("{name}: {number}");
    }
}

#[test]
fn numbers_are_counted_as_they_are() {
    let file = File::new("src/actors/a.rs", "//! A.\nfn f() {\n  x.unwrap()\n}\n");
    let seen = numbers(&[file]);
    assert_eq!(seen["lines"], "4; median 4, p90 4, max 4");
    assert_eq!(seen["unwraps"], "250.0 per 1000 lines");
    assert_eq!(seen["functions"], "1; 0 over 70, worst (\"f\", 3)");
    assert_eq!((&*seen["doc lines"], &*seen["actors"]), ("25 %", "100 % of all lines"));
}
