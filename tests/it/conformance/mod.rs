//! The conformance suite: runs the scenario files of `tests/conformance`, and of the folder
//! that `LEASEHOLD_SCENARIOS` names, against a store with a frozen clock.

mod args;
mod columns;
mod enqueue;
mod holder;
mod hooks;
mod operate;
mod proofs;
mod scenario;
mod stage;
mod step;
mod value;

use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub use scenario::Scenario;
use step::Difference;

/// What a run of scenarios came to.
#[derive(Default)]
pub struct Summary {
    files: usize,
    pub scenarios: usize,
    pub failures: Vec<Failure>,
}

/// A scenario that did not go as it must.
pub struct Failure {
    file: String,
    scenario: String,
    /// Counted from 1; 0 is what comes before the first step.
    pub step: usize,
    difference: Difference,
}

impl Summary {
    fn fail(&mut self, file: &str, scenario: &str, step: usize, difference: Difference) {
        let (file, scenario) = (file.to_owned(), scenario.to_owned());
        self.failures.push(Failure { file, scenario, step, difference });
    }

    /// Runs every `*.json` of a folder.
    async fn folder(&mut self, folder: &Path) {
        let shown = folder.display().to_string();
        let entries = std::fs::read_dir(folder)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        let mut files: Vec<PathBuf> = match entries {
            Ok(files) => files,
            Err(error) => {
                return self.fail(&shown, "", 0, Difference::broken(error.to_string()));
            }
        };
        files.retain(|file| file.extension().is_some_and(|end| end == "json"));
        files.sort();
        if files.is_empty() {
            self.fail(&shown, "", 0, Difference::broken("no scenario files".into()));
        }
        let mut names = HashSet::new();
        for file in files {
            let shown = file.display().to_string();
            match std::fs::read_to_string(&file) {
                Ok(text) => self.file(&shown, &text, &mut names).await,
                Err(error) => self.fail(&shown, "", 0, Difference::broken(error.to_string())),
            }
        }
    }

    /// Runs the scenarios of a file.
    pub async fn file(&mut self, file: &str, text: &str, names: &mut HashSet<String>) {
        self.files += 1;
        let scenarios = match Scenario::all(text) {
            Ok(scenarios) => scenarios,
            Err(stop) => return self.fail(file, "", 0, Difference::of(stop)),
        };
        for scenario in scenarios {
            self.scenarios += 1;
            if !names.insert(scenario.name.clone()) {
                let text = "another scenario has this name".to_owned();
                self.fail(file, &scenario.name, 0, Difference::broken(text));
            }
            self.scenario(file, &scenario).await;
        }
    }

    /// Runs a scenario up to the first step that does not go as it must.
    async fn scenario(&mut self, file: &str, scenario: &Scenario) {
        let mut stage = match scenario.stage().await {
            Ok(stage) => stage,
            Err(stop) => return self.fail(file, &scenario.name, 0, Difference::of(stop)),
        };
        for (n, given) in scenario.steps.iter().enumerate() {
            if let Some(difference) = step::run(&mut stage, given).await {
                return self.fail(file, &scenario.name, n + 1, difference);
            }
        }
    }

    /// All failures as text.
    pub fn report(&self) -> String {
        let mut report = String::new();
        for Failure { file, scenario, step, difference } in &self.failures {
            let (expected, seen) = (cut(&difference.expected), cut(&difference.seen));
            let _ = write!(
                report,
                "\n{file}\n  {scenario}, step {step}\n    expected {expected}\n    seen     {seen}"
            );
        }
        report
    }
}

/// A text that may be a megabyte, short enough to be read.
fn cut(text: &str) -> String {
    match text.char_indices().nth(600) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

#[tokio::test]
async fn conformance_scenarios_all_pass() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")];
    let named = std::env::var_os("LEASEHOLD_SCENARIOS").filter(|folder| !folder.is_empty());
    folders.extend(named.map(PathBuf::from));
    let mut summary = Summary::default();
    for folder in &folders {
        summary.folder(folder).await;
    }
    let Summary { files, scenarios, failures } = &summary;
    println!("conformance: {files} files, {scenarios} scenarios, {} failures", failures.len());
    assert!(failures.is_empty(), "{} failures:{}", failures.len(), summary.report());
}
