//! Proofs that the runner can fail: each wrong scenario must be a failure at the step that is
//! wrong, never a skip and never a pass.

use std::collections::HashSet;

use super::Summary;

/// Runs one scenario, given as the fields beside its name.
async fn run(fields: &str) -> Summary {
    file(&format!(r#"{{ "scenarios": [{{ "name": "wrong", {fields} }}] }}"#)).await
}

async fn file(text: &str) -> Summary {
    let mut summary = Summary::default();
    summary.file("proof.json", text, &mut HashSet::new()).await;
    summary
}

/// One failure, at this step, that shows both of the texts.
fn assert_fails(summary: &Summary, step: usize, expected: &str, seen: &str) {
    let report = summary.report();
    assert_eq!(summary.failures.len(), 1, "one failure, not {report}");
    assert_eq!(summary.failures[0].step, step, "{report}");
    assert!(summary.failures[0].difference.expected.contains(expected), "{report}");
    assert!(summary.failures[0].difference.seen.contains(seen), "{report}");
    for part in ["proof.json", &format!("step {step}"), expected, seen] {
        assert!(report.contains(part), "{part} is missing in {report}");
    }
}

/// A scenario of kind `mail` whose second step is wrong.
async fn second_step(step: &str) -> Summary {
    run(&format!(
        r#""kinds": {{ "mail": {{}} }}, "steps": [
            {{ "enqueue": {{ "kind": "mail" }}, "as": "a" }}, {step}, {{ "reap": {{}} }}]"#
    ))
    .await
}

#[tokio::test]
async fn conformance_proof_what_is_right_passes() {
    let summary = second_step(r#"{ "expect": { "job": "a", "status": "pending" } }"#).await;
    assert_eq!(summary.report(), "");
    assert_eq!((summary.files, summary.scenarios), (1, 1));
}

#[tokio::test]
async fn conformance_proof_a_wrong_expectation_fails() {
    for (step, expected, seen) in [
        (r#"{ "expect": { "job": "a", "attempts": 1 } }"#, r#""attempts":1"#, r#""attempts":0"#),
        (r#"{ "expect": { "job": "a", "payload": 1 } }"#, r#""payload":1"#, r#""payload":null"#),
        (r#"{ "expect": { "job": "b", "status": "pending" } }"#, "success", "not_found"),
        (r#"{ "counts": {}, "is": { "ready": 2 } }"#, r#""ready":2"#, r#""ready":1"#),
        (r#"{ "counts": {}, "is": { "ready": null } }"#, r#""ready":null"#, r#""ready":1"#),
        (r#"{ "counts": {}, "is": { "kinds": { "other": 1 } } }"#, "other", "mail"),
        (
            r#"{ "claim": { "kinds": ["mail"], "owner": "w", "limit": 1 }, "is": { "jobs": [] } }"#,
            "[]",
            r#"["a"]"#,
        ),
        (
            r#"{ "claim": { "kinds": ["mail"], "owner": "w", "limit": 9 }, "as": ["l", "m"] }"#,
            r#"["l", "m"]"#,
            r#"["a"]"#,
        ),
        (r#"{ "claim_by_id": { "job": "b", "owner": "w" }, "as": "l" }"#, "a lease", "none"),
        (r#"{ "absent": "a" }"#, "true", "false"),
        (r#"{ "advance": 1, "is": { "now": 1 } }"#, "now", "null"),
    ] {
        assert_fails(&second_step(step).await, 2, expected, seen);
    }
}

#[tokio::test]
async fn conformance_proof_a_wrong_refusal_fails() {
    for (step, expected, seen) in [
        (r#"{ "delete": { "job": "a" } }"#, "success", "live"),
        (r#"{ "delete": { "job": "a" }, "is": {} }"#, "{}", "live"),
        (r#"{ "delete": { "job": "a" }, "refused": "not_found" }"#, "not_found", "live"),
        (r#"{ "delete": { "job": "a" }, "refused": {} }"#, "{}", "live"),
        (r#"{ "cancel": { "job": "a" }, "refused": "live" }"#, "live", "cancelled"),
        (
            r#"{ "enqueue": { "kind": "mail", "priority": 0.5 }, "refused": { "code": "invalid",
                "field": "delay" } }"#,
            "delay",
            "priority",
        ),
        (r#"{ "enqueue": { "kind": "mail", "delay": -1 } }"#, "success", "delay"),
    ] {
        assert_fails(&second_step(step).await, 2, expected, seen);
    }
}

#[tokio::test]
async fn conformance_proof_an_unknown_verb_fails() {
    for step in [
        r#"{ "abandon": { "job": "a" } }"#,
        r#"{ "abandon": { "job": "a" }, "refused": "not_found" }"#,
        r#"{ "abandon": { "job": "a" }, "refused": "invalid" }"#,
    ] {
        assert_fails(&second_step(step).await, 2, "in the language", "abandon");
    }
}

#[tokio::test]
async fn conformance_proof_an_unknown_field_of_a_step_fails() {
    for (step, seen) in [
        (r#"{ "counts": {}, "within": 5 }"#, "within"),
        (r#"{ "counts": {}, "reap": {} }"#, "one verb"),
        (r#"{ "is": {} }"#, "one verb"),
        (r#"{ "counts": {}, "is": {}, "refused": "live" }"#, "has no answer"),
        (r#"{ "counts": { "kind": "mail" } }"#, r#"no field "kind""#),
        (r#"{ "enqueue": { "kind": "mail", "colour": 1 } }"#, "colour"),
        (r#"{ "enqueue": { "kind": "mail", "colour": 1 }, "refused": "invalid" }"#, "colour"),
        (r#"{ "enqueue_many": [{ "kind": "mail", "colour": 1 }] }"#, "colour"),
        (r#"{ "expect": { "job": "a", "claim_token": null } }"#, "claim_token"),
        (r#"{ "expect": { "status": "pending" } }"#, r#"needs "job""#),
        (r#"{ "expect": { "job": "a", "epoch": 9 }, "is": {} }"#, "without"),
        (r#"{ "redrive": { "job": "a", "preset": "retry" } }"#, "retry"),
        (r#"{ "hooks": { "kind": "mail", "on_cancel": true } }"#, "has no hooks"),
        (r#"{ "enqueue": { "kind": "mail", "payload": { "$forever": 1 } } }"#, "$forever"),
        (
            r#"{ "enqueue": { "kind": "mail", "payload": { "$text": ["a", 9999999999999] } } }"#,
            "$text makes at most",
        ),
        (r#"{ "enqueue": { "kind": "mail", "payload": { "$deep": 9999999999999 } } }"#, "depth"),
        (r#"{ "random": [1.0] }"#, "draws"),
        ("5", "no step"),
    ] {
        assert_fails(&second_step(step).await, 2, "in the language", seen);
    }
}

#[tokio::test]
async fn conformance_proof_a_name_that_means_nothing_fails() {
    for (step, seen) in [
        (r#"{ "renew": "l" }"#, "no lease"),
        (r#"{ "renew": "l", "refused": "not_found" }"#, "no lease"),
        (r#"{ "enqueue": { "kind": "mail" }, "as": "a" }"#, "already"),
        (r#"{ "counts": {}, "as": "c" }"#, "has a name"),
    ] {
        assert_fails(&second_step(step).await, 2, "in the language", seen);
    }
}

#[tokio::test]
async fn conformance_proof_an_unknown_setting_fails() {
    let steps = r#""steps": [{ "reap": {} }]"#;
    for (fields, seen) in [
        (r#""kinds": { "mail": { "colour": 1 } }"#, "colour"),
        (r#""kinds": { "mail": { "retry": { "bass": 1 } } }"#, "bass"),
        (r#""kinds": { "mail": { "lease": 0.5 } }"#, "0.5"),
        (r#""kinds": { "mail": { "lease": 0 } }"#, "lease"),
        (r#""kinds": { "mail": { "hooks": { "on_finish": 1 } } }"#, "on_finish"),
        (r#""kinds": { "mail": { "hooks": true } }"#, "hooks"),
        (r#""kinds": { "mail": { "hooks": { "on_transition": 1 } } }"#, "on_redrive"),
        (r#""settings": { "colour": 1 }"#, "colour"),
        (r#""settings": { "retention": { "parked": 1 } }"#, "parked"),
        (r#""settings": { "limits": { "kinds": { "mail": 1 } } }"#, "kinds"),
        (r#""settings": { "limits": { "queues": { "slow": -1 } } }"#, "limits"),
        (r#""random": []"#, "draws"),
        (r#""colour": 1"#, "colour"),
    ] {
        let summary = run(&format!("{fields}, {steps}")).await;
        assert_fails(&summary, 0, "in the language", seen);
    }
}

#[tokio::test]
async fn conformance_proof_a_file_that_is_none_fails() {
    for (text, seen) in [
        ("", "EOF"),
        (r#"{ "scenarios": [] }"#, "without scenarios"),
        (r#"{ "scenarios": [{ "name": "a", "steps": [] }] }"#, "no list of steps"),
        (r#"{ "scenarios": [{ "name": "a" }] }"#, "no list of steps"),
        (r#"{ "scenarios": [{ "name": "A b", "steps": [{ "reap": {} }] }] }"#, "no name"),
        (r#"{ "scenarios": [{ "name": "a", "name": "b" }] }"#, "given twice"),
        (r#"{ "scenarios": [], "version": 2 }"#, "version"),
    ] {
        assert_fails(&file(text).await, 0, "in the language", seen);
    }
    let twice = r#"{ "name": "a", "steps": [{ "reap": {} }] }"#;
    let summary = file(&format!(r#"{{ "scenarios": [{twice}, {twice}] }}"#)).await;
    assert_fails(&summary, 0, "in the language", "another scenario");
}

#[tokio::test]
async fn conformance_proof_a_folder_without_scenarios_fails() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("nowhere")] {
        let mut summary = Summary::default();
        summary.folder(&path).await;
        assert_eq!(summary.failures.len(), 1, "{}", summary.report());
    }
    let wrong =
        r#"{ "scenarios": [{ "name": "a", "steps": [{ "counts": {}, "is": { "ready": 1 } }] }] }"#;
    std::fs::write(folder.path().join("one.json"), wrong).unwrap();
    std::fs::write(folder.path().join("two.json"), wrong.replace("\"a\"", "\"b\"")).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "no scenario").unwrap();
    let mut summary = Summary::default();
    summary.folder(folder.path()).await;
    let report = summary.report();
    assert!(report.contains("one.json") && report.contains("two.json"), "{report}");
    assert_eq!((summary.files, summary.scenarios, summary.failures.len()), (2, 2, 2));
}
