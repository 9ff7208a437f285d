//! Opening a file: settings, version, migrations.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::Durability;
use crate::error::StoreError;

/// One script for each version, applied in order inside one transaction.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("sql/schema_1.sql"),
    include_str!("sql/schema_2.sql"),
    include_str!("sql/schema_3.sql"),
    include_str!("sql/schema_4.sql"),
    include_str!("sql/schema_5.sql"),
];

/// Marks the file as ours: "RDRV".
const APPLICATION_ID: i64 = 0x5244_5256;

/// Older engines can corrupt a WAL database with two writers.
const OLDEST_ENGINE: i32 = 3_051_003;

/// How long a statement waits for another process's transaction.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection that writes. Creates or migrates the file.
pub(super) fn open_writer(path: &Path, durability: Durability) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < OLDEST_ENGINE {
        return Err(StoreError::NotOurs {
            path: path.into(),
            why: format!("SQLite {} is older than 3.51.3, which can corrupt it", rusqlite::version()),
        });
    }
    let mut connection =
        Connection::open_with_flags(path, OpenFlags::default()).map_err(|error| explain(path, error))?;
    configure(&mut connection, path, durability).map_err(|error| match error {
        StoreError::Engine(error) => explain(path, error),
        other => other,
    })?;
    Ok(connection)
}

/// Whether this names a database in memory, which ends with the process.
pub(super) fn is_memory(path: &Path) -> bool {
    path.as_os_str() == ":memory:"
}

/// A connection that writes the log back to the database, and nothing else.
pub(super) fn open_checkpointer(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| explain(path, error))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Written back is written safely, whatever the writer does at the moment.
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA query_only = ON")?;
    // The writer decides what happens to the log at the end.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// A connection that only reads.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| explain(path, error))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn configure(connection: &mut Connection, path: &Path, durability: Durability) -> Result<(), StoreError> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Without it the engine looks at the values while it plans, and plans anew whenever they change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if version > known {
        return Err(StoreError::Newer { path: path.into(), found: version, known });
    }
    let objects: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if objects > 0 && application != APPLICATION_ID {
        return Err(StoreError::NotOurs { path: path.into(), why: "it belongs to another program".into() });
    }
    if objects > 0 && version <= 0 {
        let why = format!("{}: its version is {version}, but there are tables in it", path.display());
        return Err(StoreError::Damaged { why });
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    // In memory there is neither a log nor a sync; whoever asked for it knows that nothing stays.
    if mode != "wal" && !is_memory(path) {
        return Err(StoreError::NotOurs {
            path: path.into(),
            why: format!("it cannot use a write-ahead log (journal mode {mode}); a network file system?"),
        });
    }
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    connection.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous}; PRAGMA foreign_keys = ON; 
         PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -16384; PRAGMA temp_store = MEMORY;"
    ))?;
    migrate(connection, version)
}

fn migrate(connection: &mut Connection, version: i64) -> Result<(), StoreError> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if version == known {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    // Again, under the lock: another process may have migrated meanwhile.
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for script in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
        transaction.execute_batch(script)?;
    }
    transaction.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {known};"
    ))?;
    transaction.commit()?;
    Ok(())
}

/// The engine's error as one that says what to do.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => StoreError::NotOurs { path: path.into(), why: error.to_string() },
        Some(ErrorCode::DatabaseCorrupt) => {
            StoreError::Damaged { why: format!("{}: {error}", path.display()) }
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            StoreError::ReadOnly { path: path.into(), source: error }
        }
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        // Also a full disk, where there is no room for the shared memory of the log.
        Some(ErrorCode::SystemIoFailure) => StoreError::Disk { path: path.into(), source: error },
        _ => StoreError::Engine(error),
    }
}
