//! Opens connections: settings, schema version, migrations.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{Durability, private_file};
use crate::error::StoreError;

/// One script for each version, applied in order inside one transaction.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("sql/schema_1.sql"),
    include_str!("sql/schema_2.sql"),
    include_str!("sql/schema_3.sql"),
    include_str!("sql/schema_4.sql"),
    include_str!("sql/schema_5.sql"),
    include_str!("sql/schema_6.sql"),
    include_str!("sql/schema_7.sql"),
];

/// The version of the schema after all migrations.
const KNOWN_VERSION: i64 = MIGRATIONS.len() as i64;

/// Marks the file as a Redrive database: "RDRV".
const APPLICATION_ID: i64 = 0x5244_5256;

/// Oldest usable version of SQLite. Older ones can corrupt a WAL database with two writers.
const MIN_SQLITE_VERSION: i32 = 3_051_003;

/// Time for which a statement waits for the transaction of another process.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the writing connection, and creates or migrates the file.
pub(super) fn open_writer(path: &Path, durability: Durability) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < MIN_SQLITE_VERSION {
        return Err(StoreError::NotOurs {
            path: path.into(),
            why: format!("SQLite {} is older than 3.51.3, which can corrupt it", rusqlite::version()),
        });
    }
    if !is_memory(path) {
        // A failure shows again when SQLite opens the file, with what to do.
        drop(private_file::create(path));
    }
    let mut connection = open(path, OpenFlags::default())?;
    configure(&mut connection, path, durability).map_err(|error| match error {
        StoreError::Engine(error) => explain(path, error),
        other => other,
    })?;
    Ok(connection)
}

/// Returns whether the path names a database in memory.
pub(super) fn is_memory(path: &Path) -> bool {
    path.as_os_str() == ":memory:"
}

/// Opens the connection of the background checkpoint.
pub(super) fn open_checkpointer(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = open(path, flags)?;
    // A checkpoint always syncs, whatever the current mode of the writer.
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA query_only = ON")?;
    // The writer decides about the log when the store closes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// Opens a read-only connection.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    open(path, flags)
}

/// Opens a read-only connection to a file that no store of this process has opened, and checks what it is.
pub(super) fn open_history(path: &Path) -> Result<Connection, StoreError> {
    let connection = open_reader(path)?;
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
    let known = pragma("application_id").and_then(|application| Ok((application, pragma("user_version")?)));
    let (application, version) = known.map_err(|error| explain(path, error))?;
    if application != APPLICATION_ID {
        return Err(StoreError::NotOurs { path: path.into(), why: "it belongs to another program".into() });
    }
    if version > KNOWN_VERSION {
        return Err(StoreError::Newer { path: path.into(), found: version, known: KNOWN_VERSION });
    }
    Ok(connection)
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, flags).map_err(|error| explain(path, error))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn configure(connection: &mut Connection, path: &Path, durability: Durability) -> Result<(), StoreError> {
    // Without QPSG SQLite plans by the bound values, and replans when they change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > KNOWN_VERSION {
        return Err(StoreError::Newer { path: path.into(), found: version, known: KNOWN_VERSION });
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
    // A database in memory has no log and no sync.
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
    if version == KNOWN_VERSION {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    // Read again under the lock: another process may have migrated meanwhile.
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for script in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
        transaction.execute_batch(script)?;
    }
    transaction.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {KNOWN_VERSION};"
    ))?;
    transaction.commit()?;
    Ok(())
}

/// Converts an error of opening to one that says what to do.
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
        // Also on a full disk without space for the shared memory of the log.
        Some(ErrorCode::SystemIoFailure) => StoreError::Disk { path: path.into(), source: error },
        _ => StoreError::Engine(error),
    }
}
