//! `redrive audit …` as a user runs it, on files.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use redrive_retry::audit::{AuditEvent, RetryDecision};
use redrive_retry::decision::{Decision, DecisionRecord, Identity, Outcome, Situation};
use redrive_retry::{Category, FailureClass, RetryPolicy, Timestamp};
use serde_json::Value;

fn situation(event: &str) -> Situation<'_> {
    Situation::new(
        &RetryPolicy::webhook(),
        Identity::new(7, event, "shipping"),
        2,
        Outcome::Failed(FailureClass::Transient),
        Timestamp::from_millis(1_767_225_600_000),
    )
}

fn record(event: &str) -> String {
    serde_json::to_string(&DecisionRecord::decide(situation(event))).unwrap()
}

fn audited(event: &str) -> String {
    format!(r#"{{"event_type":"retry_decision","operation":"shipping","record":{}}}"#, record(event))
}

/// A complete audit event of the type `retry_decision`.
fn guarded(event: &str) -> String {
    let decision = RetryDecision {
        retry_category: Category::ApiRequest,
        operation: "shipping".to_owned(),
        context: None,
        record: DecisionRecord::decide(situation(event)),
    };
    serde_json::to_string(&AuditEvent::RetryDecision(decision)).unwrap()
}

/// Temporary file, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: impl AsRef<[u8]>) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn redrive(command: &[&str], arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_redrive")).args(command).args(arguments).output().unwrap()
}

fn verify(arguments: &[&str]) -> Output {
    redrive(&["audit", "verify"], arguments)
}

/// The commands that evaluate a log.
const EVALUATIONS: [&[&str]; 3] = [&["audit", "list"], &["audit", "stats"], &["policy", "advise"]];

fn counts(output: &Output) -> [u64; 4] {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    ["verified", "discrepancies", "unreadable", "other"].map(|key| report[key].as_u64().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn an_unchanged_log_verifies() {
    let lines = [
        audited("a"),
        record("b"),
        String::new(),
        r#"{"event_type":"retry_attempt","attempt":1}"#.to_owned(),
    ];
    let log = Scratch::new("honest.jsonl", lines.join("\n"));
    let output = verify(&[log.path(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(counts(&output), [2, 0, 0, 1]);
    assert!(output.stderr.is_empty());
    let output = verify(&[log.path()]);
    assert_eq!(text(&output.stdout), "2 verified, 0 with a discrepancy, 0 unreadable, 1 other\n");
}

#[test]
fn a_changed_record_is_reported_with_its_line() {
    let lines = [audited("a"), audited("b").replace(r#""seed":7"#, r#""seed":8"#)];
    let log = Scratch::new("changed.jsonl", lines.join("\n"));
    let output = verify(&[log.path()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains(&format!("{}:2: the digest is ", log.path())), "{said}");
    assert!(said.contains("1 verified, 1 with a discrepancy"), "{said}");
    assert!(text(&output.stderr).starts_with("error: 1 record with a discrepancy"));
}

#[test]
fn a_wrong_decision_with_a_valid_digest_is_reported() {
    let forged = DecisionRecord::of(situation("a"), Decision::Done);
    let log = Scratch::new("forged.jsonl", serde_json::to_string(&forged).unwrap());
    let output = verify(&[log.path(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(counts(&output), [0, 1, 0, 0]);
}

#[test]
fn unreadable_lines_are_reported_and_skipped() {
    let mut log = audited("a").into_bytes();
    log.extend(b"\nnonsense\n\xff\xfe\n{\"event_type\":\"retry_decision\",\"record\":{}}\n");
    log.extend(vec![b'{'; 2 * 1024 * 1024]);
    log.push(b'\n');
    log.extend(audited("b").bytes());
    let log = Scratch::new("garbage.jsonl", log);
    let output = verify(&[log.path(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(counts(&output), [2, 0, 4, 0]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = report["problems"].as_array().unwrap();
    let lines: Vec<u64> = problems.iter().map(|problem| problem["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 3, 4, 5]);
    assert!(problems[3]["problem"].as_str().unwrap().contains("longer than 1048576 bytes"));
}

#[test]
fn problems_beyond_the_limit_are_only_counted() {
    let log = Scratch::new("many.jsonl", "nonsense\n".repeat(1000));
    let output = verify(&[log.path()]);
    let said = text(&output.stdout);
    assert_eq!(said.lines().count(), 22);
    assert!(said.contains("and 980 more\n0 verified, 0 with a discrepancy, 1000 unreadable"), "{said}");
}

#[test]
fn a_log_without_records_is_a_failure() {
    for (name, content) in [("empty.jsonl", ""), ("other.jsonl", "{\"event_type\":\"idempotency\"}\n")] {
        let log = Scratch::new(name, content);
        let output = verify(&[log.path()]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said = text(&output.stderr);
        assert!(said.starts_with("error: no decision record found"), "{said}");
        assert!(said.contains("give the file that the audit sink writes"), "{said}");
    }
}

#[test]
fn a_missing_file_is_reported_and_other_files_are_verified() {
    let log = Scratch::new("there.jsonl", record("a"));
    let output = verify(&["/nonexistent/audit.jsonl", log.path()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.starts_with("/nonexistent/audit.jsonl: cannot be opened: "), "{said}");
    assert!(said.contains("1 verified"), "{said}");
}

#[test]
fn a_dash_reads_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_redrive"))
        .args(["audit", "verify", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = [record("a"), "nonsense".to_owned()].join("\n");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.starts_with("stdin:2: not a JSON object") && said.contains("1 verified"), "{said}");
}

#[test]
fn verify_without_a_file_reads_the_database_and_creates_none() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_redrive"))
        .args(["audit", "verify"])
        .current_dir(folder.path())
        .env_remove("REDRIVE_DB")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("redrive.db does not exist: name the database with --db"), "{said}");
    assert!(!folder.path().join("redrive.db").exists());
}

#[test]
fn a_log_that_cannot_be_read_to_its_end_is_a_failure_of_every_command() {
    let log = Scratch::new("whole.jsonl", guarded("a"));
    // A directory can be opened, and its first line cannot be read.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for command in EVALUATIONS
        .into_iter()
        .chain([&["audit", "stats", "--alert-above", "1000"][..], &["audit", "verify"]])
    {
        for more in [&[][..], &["--json"]] {
            let output = redrive(command, &[&[log.path(), folder], more].concat());
            assert_eq!(output.status.code(), Some(1), "{command:?} {more:?}: {output:?}");
        }
    }
    for command in EVALUATIONS {
        for (file, said) in [
            (folder, format!("error: {folder}:1 cannot be read: ")),
            ("none.jsonl", "error: none.jsonl cannot be opened: ".to_owned()),
        ] {
            let output = redrive(command, &[log.path(), file]);
            assert!(output.stdout.is_empty(), "{command:?} prints no partial numbers: {output:?}");
            assert!(text(&output.stderr).starts_with(&said), "{command:?}: {output:?}");
        }
    }
}

#[test]
fn lines_that_cannot_be_read_are_counted_by_every_command() {
    let damaged = guarded("c").replace("operation", "opera");
    let lines =
        [&guarded("a"), "nonsense", r#"{"level":"INFO"}"#, "", &damaged, &"{".repeat(2 * 1024 * 1024)];
    let log = Scratch::new("damaged.jsonl", lines.join("\n"));
    let note = format!("3 lines could not be read, the first at {}:2\n", log.path());
    for command in EVALUATIONS {
        let output = redrive(command, &[log.path()]);
        assert!(output.status.success() && text(&output.stdout).ends_with(&note), "{command:?}: {output:?}");
        let output = redrive(command, &[log.path(), "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["unreadable"], 3, "{command:?}: {report}");
    }
    let output = redrive(&["audit", "stats"], &[log.path(), "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["other"], 1);

    let log = Scratch::new("nonsense.jsonl", "nonsense\n");
    for command in EVALUATIONS {
        let output = redrive(command, &[log.path()]);
        let said = text(&[output.stdout, output.stderr].concat());
        assert!(said.contains("1 line could not be read, the first at "), "{command:?}: {said}");
    }
    let output = redrive(&["audit", "list"], &[Scratch::new("good.jsonl", guarded("a")).path()]);
    assert!(!text(&output.stdout).contains("could not be read"), "{output:?}");
}
