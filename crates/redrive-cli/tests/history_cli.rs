//! `redrive audit list | stats | verify` and `redrive policy advise` on the history of a database: a file and a PostgreSQL server.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use redrive::retry::{BoxError, ClassifyError, RetryPolicy};
use redrive::{Event, EventBus};
use redrive_retry::audit::{AuditSink, Fanout};
use redrive_retry::breaker::BreakerConfig;
use redrive_retry::decision::{DecisionRecord, Identity, Outcome, Situation};
use redrive_retry::{Category, FailureClass, RetryManager, Timestamp};
use redrive_servers::Schema;
use redrive_store::traits::Store;
use redrive_store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore};
use rusqlite::{Connection, params};
use serde_json::Value;

fn redrive(db: &str, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(arguments.split_whitespace()).args(["--db", db]).env("COLUMNS", "160").output().unwrap()
}

fn json(db: &str, arguments: &str) -> Value {
    let output = redrive(db, &format!("{arguments} --json"));
    assert!(output.stderr.is_empty(), "{arguments}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fast() -> RetryPolicy {
    RetryPolicy::builder().max_attempts(3).base_delay(Duration::from_millis(1)).build().unwrap()
}

/// Handles three events on a bus: one at once, one at the second attempt, one never. Then makes two guarded calls whose audit
/// events go to the database.
async fn make_history(db: &str, sink: Arc<dyn AuditSink>) {
    let bus = EventBus::builder().policy(fast()).open(db).await.unwrap();
    let handler = |event: Event| async move {
        match (event.event_type().as_str(), event.attempt()) {
            ("good", _) | ("flaky", 2..) => Ok(()),
            _ => Err::<_, BoxError>("the carrier did not answer".into()),
        }
    };
    let closed = BreakerConfig::builder().min_samples(100).build().unwrap();
    bus.subscribe("*", handler).name("shipping").breaker(closed).register().unwrap();
    bus.start().await.unwrap();
    for event_type in ["good", "flaky", "bad"] {
        bus.publish(event_type, &7).await.unwrap();
    }
    bus.shutdown().await.unwrap();
    let manager = RetryManager::builder().audit(Fanout::new([sink])).policy(Category::KvGet, fast()).build();
    for failures in [1, 9] {
        let call = manager.execute(&Category::KvGet, "Get kill switch status").run(|attempt| async move {
            if attempt.number() <= failures {
                Err(std::io::Error::from(std::io::ErrorKind::TimedOut))
            } else {
                Ok(())
            }
        });
        let _ = call.await;
    }
    let refused = manager.execute(&Category::KvGet, "Get").run(|_| async { Err::<(), _>("no".permanent()) });
    refused.await.unwrap_err();
}

/// Checks every command on the history that [`make_history`] made.
fn check_commands(db: &str) {
    let verified = json(db, "audit verify");
    // Four failed attempts of the bus; five failures of calls and one success after a failure.
    assert_eq!((&verified["verified"], &verified["discrepancies"]), (&10.into(), &0.into()), "{verified}");
    assert!(redrive(db, "audit verify").status.success());

    let stats = json(db, "audit stats");
    let category = &stats["categories"][0];
    assert_eq!(
        ["name", "calls", "succeeded", "failed", "total_attempts"].map(|key| category[key].to_string()),
        ["\"RETRY_KV_GET\"", "3", "1", "2", "6"]
    );
    let subscription = &stats["subscriptions"][0];
    assert_eq!(
        ["name", "calls", "succeeded", "failed", "total_attempts"].map(|key| subscription[key].to_string()),
        ["\"shipping\"", "2", "1", "1", "5"]
    );
    assert_eq!(subscription["avg_attempts"], 2.5);
    let text = String::from_utf8(redrive(db, "audit stats").stdout).unwrap();
    assert!(text.contains("33.3 %") && text.contains("50.0 %"), "{text}");
    let alert = redrive(db, "audit stats --alert-above 1");
    assert_eq!(alert.status.code(), Some(1));
    let said = String::from_utf8(alert.stderr).unwrap();
    assert!(said.contains("more than 1 retries in one minute: RETRY_KV_GET"), "{said}");
    assert!(redrive(db, "audit stats --alert-above 1000").status.success());

    let listed = json(db, "audit list");
    assert_eq!(listed["data"].as_array().unwrap().len(), 14, "{listed}");
    let exhausted = json(db, "audit list --type retry_exhausted --category KV_GET");
    assert_eq!(exhausted["data"][0]["final_exception_type"], "std::io::Error(TimedOut)");
    let attempts = json(db, "audit list --type attempt --limit 2");
    let numbers: Vec<_> = attempts["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["attempt_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [3, 2], "newest first");
    let text = String::from_utf8(redrive(db, "audit list").stdout).unwrap();
    assert!(text.contains("the carrier did not answer; again after "), "{text}");
    assert_eq!(json(db, "audit list --since 2030-01-01T00:00:00Z")["data"].as_array().unwrap().len(), 0);

    let advice = json(db, "policy advise");
    assert_eq!(advice["history"]["succeeded_at_once"], 1, "{advice}");
    // Two events and three calls; one of each succeeded with the second attempt.
    assert_eq!(advice["history"]["failed_once"], 5);
    assert_eq!(advice["by_attempt"][1]["succeeded"], 2);
    assert_eq!(json(db, "policy advise --subscription shipping")["history"]["failed_once"], 2);
    assert_eq!(advice["recorded"]["policy"]["max_attempts"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_a_file_is_read_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let db = path.to_str().unwrap();
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let store = Arc::new(
        SqliteStore::open(&path, SqliteOptions { owner: false, ..SqliteOptions::default() }).unwrap(),
    );
    make_history(db, Arc::clone(&store) as _).await;
    store.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    check_commands(db);
    assert!(std::fs::read(&path).unwrap() == before, "the file was changed");
    let missing = redrive(folder.path().join("missing.db").to_str().unwrap(), "audit verify");
    assert_eq!(missing.status.code(), Some(1));
    assert!(!folder.path().join("missing.db").exists(), "no file is created");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_a_server_is_read() {
    let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
    let db = schema.address();
    let store = Arc::new(PostgresStore::open(&db, PostgresOptions::default()).await.unwrap());
    make_history(&db, Arc::clone(&store) as _).await;
    store.close().await.unwrap();
    check_commands(&db);
    // The session of these commands refuses every change.
    let options = PostgresOptions { read_only: true, ..PostgresOptions::default() };
    let reader = PostgresStore::open(&db, options).await.unwrap();
    let error = reader.purge_audit(Timestamp::from_millis(i64::MAX)).await.unwrap_err().to_string();
    assert!(error.contains("read-only transaction"), "{error}");
    reader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_decision_of_a_database_is_reported_with_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let db = path.to_str().unwrap();
    let store = Arc::new(
        SqliteStore::open(&path, SqliteOptions { owner: false, ..SqliteOptions::default() }).unwrap(),
    );
    make_history(db, Arc::clone(&store) as _).await;
    store.close().await.unwrap();
    let change = |statement: &str| {
        Connection::open(&path).unwrap().execute_batch(statement).unwrap();
    };
    for (damage, repair, said) in [
        (
            "UPDATE attempt SET record = replace(record, '\"seed\":0', '\"seed\":1') WHERE key = 1",
            "UPDATE attempt SET record = replace(record, '\"seed\":1', '\"seed\":0') WHERE key = 1",
            "attempt 1: the digest is ",
        ),
        (
            "UPDATE attempt SET attempt = 7 WHERE key = 1",
            "UPDATE attempt SET attempt = 1 WHERE key = 1",
            "attempt 1: the row has attempt \"7\", its record \"1\"",
        ),
        (
            "UPDATE attempt SET record = 'x' || record WHERE key = 1",
            "UPDATE attempt SET record = substr(record, 2) WHERE key = 1",
            "attempt 1: not a JSON object",
        ),
        (
            "UPDATE audit SET line = replace(line, '\"attempt\":1', '\"attempt\":2') WHERE key = 1",
            "",
            "audit 1: the digest is ",
        ),
    ] {
        change(damage);
        let output = redrive(db, "audit verify");
        assert_eq!(output.status.code(), Some(1), "{damage}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(said), "{damage}: {text}");
        let problem = json_problem(db);
        assert_eq!(problem["row"].as_str().map(|row| row.ends_with(" 1")), Some(true), "{problem}");
        change(repair);
    }
}

fn json_problem(db: &str) -> Value {
    let output = redrive(db, "audit verify --json");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["problems"][0].clone()
}

/// A delivery that failed at these seconds under the bus policy, and its end: done at a second, or dead.
fn insert(connection: &Connection, number: i64, failures: &[i64], done_at: Option<i64>) {
    let start = 1_767_225_600_000_i64;
    let id = uuid::Uuid::from_u128(number.unsigned_abs().into());
    let (status, end) = done_at.map_or((4, failures[failures.len() - 1]), |second| (3, second));
    let values = params![number, id.as_bytes(), status, start, start + end * 1000];
    connection
        .execute("INSERT INTO event (key, id, type, payload, status, created_at, updated_at) VALUES (?1, ?2, 'order', '7', ?3, ?4, ?5)", values)
        .unwrap();
    for (attempt, second) in (1..).zip(failures) {
        let now = Timestamp::from_millis(start + second * 1000);
        let text = id.to_string();
        let failed = Outcome::Failed(FailureClass::Transient);
        let situation =
            Situation::new(&RetryPolicy::bus(), Identity::new(0, &text, "shipping"), attempt, failed, now);
        let record = serde_json::to_string(&DecisionRecord::decide(situation)).unwrap();
        let values = params![number, attempt, now.as_millis(), record];
        connection
            .execute(
                "INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, record)
                 VALUES (?1, 'shipping', ?2, ?3, 10, '\"transient\"', 1000, 'down', ?4)",
                values,
            )
            .unwrap();
    }
}

/// Forty deliveries that the second attempt heals, and ten that die in an outage of ten minutes.
fn outage(path: &Path) {
    drop(SqliteStore::open(path, SqliteOptions { owner: false, ..SqliteOptions::default() }).unwrap());
    let connection = Connection::open(path).unwrap();
    for number in 1..=40 {
        insert(&connection, number, &[number * 10], Some(number * 10 + 1));
    }
    for number in 41..=50 {
        let first = 1000 + number;
        insert(&connection, number, &[first, first + 1, first + 3, first + 7], None);
    }
    insert(&connection, 51, &[1600], Some(1650));
}

#[test]
fn a_policy_is_recommended_from_recorded_attempts_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    outage(&path);
    let db = path.to_str().unwrap();
    let advice = json(db, "policy advise --target 99%");
    assert_eq!((&advice["history"]["failed_once"], &advice["history"]["dead"]), (&51.into(), &10.into()));
    let (recorded, recommended) = (&advice["recorded"], &advice["recommendation"]);
    // The last delivery waited for 49 s beyond its delay, behind a circuit or a limit: no policy is charged for that.
    assert_eq!((&recorded["succeeded"], &recorded["dead"]), (&41.into(), &10.into()), "{advice}");
    assert_eq!((&recommended["succeeded"], &recommended["dead"]), (&51.into(), &0.into()), "{advice}");
    assert!(recommended["policy"]["max_attempts"].as_u64().unwrap() > 4);
    assert_eq!(advice["outages"]["lengths"], Value::Null, "flat");
    assert!(advice["outages"]["longest_ms"].as_u64().unwrap() > 500_000, "{advice}");
    assert_eq!(advice["by_attempt"][0]["made"], 51);

    let output = redrive(db, "policy advise");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "51 failed at least once",
        "Recommended for 99 %: ",
        "recorded",
        "redrive policy explain --max-attempts ",
    ] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    // The recorded policy suffices for a lower target.
    let text = String::from_utf8(redrive(db, "policy advise --target 75%").stdout).unwrap();
    assert!(text.contains("Keep the recorded policy for 75 %: 4 attempts"), "{text}");

    let none = redrive(db, "policy advise --subscription unknown");
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8(none.stderr).unwrap().contains("no failed attempt is recorded"));
    for wrong in ["0", "101%", "most"] {
        let output = redrive(db, &format!("policy advise --target {wrong}"));
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn a_policy_is_recommended_from_the_decisions_of_guarded_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let sink = redrive_retry::audit::JsonLinesSink::new(std::fs::File::create(&path).unwrap());
    let time = redrive_retry::VirtualTime::new();
    let manager = RetryManager::builder().clock(time.clock()).audit(sink).build();
    let clock = time.clock();
    let (began, outage) = (time.now(), Duration::from_secs(60));
    for _ in 0..5 {
        let call = manager
            .execute(&Category::ApiRequest, "Fetch")
            .run_blocking(|_| if clock.now().since(began) < outage { Err("down") } else { Ok(()) });
        assert!(call.is_err());
        time.advance(Duration::from_secs(10));
    }
    time.advance(Duration::from_secs(1));
    let mut attempts = 0;
    manager
        .execute(&Category::ApiRequest, "Fetch")
        .run_blocking(|_| {
            attempts += 1;
            if attempts == 1 { Err("down") } else { Ok(()) }
        })
        .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_redrive"))
        .args(["policy", "advise", path.to_str().unwrap(), "--json"])
        .output()
        .unwrap();
    let advice: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(advice["history"]["succeeded_at_once"], Value::Null);
    assert_eq!(
        (&advice["history"]["dead"], &advice["recorded"]["succeeded"]),
        (&5.into(), &1.into()),
        "{advice}"
    );
    assert_eq!(advice["recommendation"]["success_rate"], 1.0, "{advice}");
}
