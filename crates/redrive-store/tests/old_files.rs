//! Opens files of every earlier schema version, with events in every state, and checks that nothing is lost.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::every_state::{LIVES, handle_all, live, picture};
use redrive_retry::audit::{AuditSink, Level, RetryLogEntry};
use redrive_retry::idempotency::{Begin, Fingerprint, IdempotencyKey, IdempotencyStore, OwnerToken};
use redrive_store::{SqliteOptions, SqliteStore, Store};
use rusqlite::Connection;

/// The migration scripts: the first `n` of them make a file of version `n`.
const MIGRATIONS: [&str; 7] = [
    include_str!("../src/sqlite/sql/schema_1.sql"),
    include_str!("../src/sqlite/sql/schema_2.sql"),
    include_str!("../src/sqlite/sql/schema_3.sql"),
    include_str!("../src/sqlite/sql/schema_4.sql"),
    include_str!("../src/sqlite/sql/schema_5.sql"),
    include_str!("../src/sqlite/sql/schema_6.sql"),
    include_str!("../src/sqlite/sql/schema_7.sql"),
];

const HOUR: Duration = Duration::from_secs(3600);

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, SqliteOptions::default()).unwrap()
}

fn key() -> IdempotencyKey {
    IdempotencyKey::new("charge/7").unwrap()
}

fn names(sql: &Connection, query: &str) -> Vec<String> {
    let mut statement = sql.prepare(query).unwrap();
    let names = statement.query_map([], |row| row.get(0)).unwrap();
    names.collect::<Result<_, _>>().unwrap()
}

/// Returns all tables, views and indexes with their columns.
fn shape(path: &Path) -> BTreeSet<String> {
    let sql = Connection::open(path).unwrap();
    let all = "SELECT s.type || ' ' || s.name || ' ' || coalesce(c.name || ' ' || c.type || ' ' || c.\"notnull\", '')
               FROM sqlite_schema s LEFT JOIN pragma_table_xinfo(s.name) c";
    names(&sql, all).into_iter().collect()
}

/// Makes a file of an older version and copies the rows of a newer one into the columns that it has.
fn downgrade(from: &Path, to: &Path, version: usize) {
    let sql = Connection::open(to).unwrap();
    sql.execute_batch("PRAGMA journal_mode = WAL; PRAGMA application_id = 0x52445256").unwrap();
    for script in &MIGRATIONS[..version] {
        sql.execute_batch(script).unwrap();
    }
    sql.execute_batch(&format!("PRAGMA user_version = {version}")).unwrap();
    sql.execute("ATTACH ?1 AS newer", [from.to_str().unwrap()]).unwrap();
    for table in names(&sql, "SELECT name FROM main.sqlite_schema WHERE type = 'table'") {
        let columns = names(&sql, &format!("SELECT name FROM pragma_table_info('{table}')")).join(", ");
        sql.execute_batch(&format!(
            "INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}"
        ))
        .unwrap();
    }
    for table in ["event", "delivery"] {
        let query = format!("SELECT DISTINCT CAST(status AS TEXT) FROM main.{table} ORDER BY status");
        assert_eq!(names(&sql, &query), ["-1", "0", "1", "2", "3", "4", "5"], "{table}: in every state");
    }
}

#[tokio::test]
async fn a_file_of_every_version_is_opened_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let newest = folder.path().join("newest.db");
    for life in 0..LIVES {
        let store = open(&newest);
        let claims = live(&store, life).await;
        if life == 0 {
            let owner = OwnerToken::new();
            store.begin(&key(), Fingerprint::default(), owner, HOUR).await.unwrap();
            store.complete(&key(), owner, "7", None, HOUR).await.unwrap();
            let (event_id, event_type, subscription_id) = ("e".into(), "order.created".into(), "s".into());
            let entry = RetryLogEntry {
                level: Level::Warn,
                event_id,
                event_type,
                subscription_id,
                attempt: 1,
                max_attempts: 4,
                delay_ms: 1000,
                error: "no".into(),
            };
            store.log(&entry).unwrap();
        }
        drop((store, claims));
    }
    let expected = {
        let store = open(&newest);
        picture(&store).await
    };
    for version in 1..=MIGRATIONS.len() {
        let path = folder.path().join(format!("version-{version}.db"));
        downgrade(&newest, &path, version);
        let store = open(&path);
        assert_eq!(picture(&store).await, expected, "version {version}");
        assert_eq!(shape(&path), shape(&newest), "version {version}");
        if version >= 2 {
            let begun = store.begin(&key(), Fingerprint::default(), OwnerToken::new(), HOUR).await.unwrap();
            assert_eq!(begun, Begin::Completed { result: "7".into() });
            assert_eq!(store.audit_lines(None, 10).await.unwrap().len(), 1);
        }
        handle_all(&store).await;
        assert_eq!(store.check(10).await.unwrap(), Vec::<String>::new());
        let sql = Connection::open(&path).unwrap();
        let counts: (String, u32) = sql
            .query_row(
                "SELECT status, count(*) FROM events WHERE id IS NOT NULL AND type = 'order.created' AND payload <> ''
                 AND retry_count >= 0 AND metadata IS NOT NULL AND created_at LIKE '20%Z' AND updated_at LIKE '20%Z'
                 AND (last_error IS NULL OR json_valid(last_error)) GROUP BY 1",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert_eq!(counts, ("done".to_owned(), 45 * LIVES), "version {version}");
        store.close().await.unwrap();
        drop(store);
        open(&path).close().await.unwrap();
    }
}
