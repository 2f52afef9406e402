//! The example `load`: many jobs through one process, which says so where it does not hold.

use std::process::Output;

use crate::example::program;

fn load(options: &str) -> Output {
    let mut load = program("load");
    load.args(["--jobs", "2000", "--json"]).args(options.split_whitespace());
    load.output().expect("it is there; else: cargo build --example load")
}

fn figures(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[cfg(target_os = "linux")]
#[test]
fn many_jobs_leave_nothing_in_the_process_that_they_went_through() {
    let output = load("");
    assert!(output.status.success(), "{output:?}");
    let figures = figures(&output);
    assert_eq!((&figures["jobs"], &figures["maps_left"]), (&2_000.into(), &0.into()));
    assert!(figures["reads"].as_u64() > Some(0), "{figures}");
    assert_eq!(figures["wrong"], serde_json::json!([]));
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_grows_more_than_it_may_is_told_of_by_the_exit_code() {
    let output = load("--most-growth-mib -1000");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let wrong = figures(&output)["wrong"].to_string();
    assert!(wrong.contains("it grew by"), "{wrong}");
}
