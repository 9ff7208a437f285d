//! Creates and migrates the schema, and refuses schemas of other programs and of newer versions.

use std::time::{Duration, Instant};

use super::names::Names;
use super::session::Session;
use crate::error::StoreError;

/// One script for each version, applied in order inside one transaction.
const MIGRATIONS: &[&str] = &[
    include_str!("sql/schema_1.sql"),
    include_str!("sql/schema_2.sql"),
    include_str!("sql/schema_3.sql"),
    include_str!("sql/schema_4.sql"),
    include_str!("sql/schema_5.sql"),
    include_str!("sql/schema_6.sql"),
    include_str!("sql/schema_7.sql"),
    include_str!("sql/schema_8.sql"),
    include_str!("sql/schema_9.sql"),
    include_str!("sql/schema_10.sql"),
    include_str!("sql/schema_11.sql"),
];

/// Serialises migrations of one schema. A hash collision only makes two migrations wait for each other.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtext('redrive migration'), hashtext($1))";

/// A migration waits for all users of a table, and later users wait for the migration, so it waits only briefly. Set after
/// [`LOCK`] is held: waiting for another migration is not limited.
const LIMIT_LOCK_WAIT: &str = "SET LOCAL lock_timeout = '1s'";

/// The delay before the migration is retried after a lock timeout.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(500);

const EXISTS: &str = "SELECT 1 FROM pg_namespace WHERE nspname = $1";

/// Queries the catalog: `to_regclass` may use a cache that lacks what another process has just created.
const HAS_RELATION: &str = "
    SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                   WHERE n.nspname = $1 AND ($2::text IS NULL OR c.relname = $2))";

const VERSION: &str = "SELECT coalesce(max(version), 0) FROM redrive.migration";

fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Creates or migrates the schema. If several processes start at once, one migrates and the others wait.
pub(super) async fn migrate(
    session: &Session,
    names: &Names,
    outage_timeout: Duration,
) -> Result<(), StoreError> {
    // An up-to-date schema needs no lock and no privilege to change it.
    if version(session, names).await? == Some(known()) {
        return Ok(());
    }
    let deadline = Instant::now() + outage_timeout;
    loop {
        match session.transaction(migrate_locked(session, names)).await {
            Err(StoreError::Busy) if Instant::now() < deadline => tokio::time::sleep(LOCK_RETRY_DELAY).await,
            Err(StoreError::Busy) => {
                return Err(StoreError::SchemaLocked { schema: names.schema().to_owned() });
            }
            other => return other,
        }
    }
}

/// Whether the schema exists, in any version.
pub(super) async fn exists(session: &Session, names: &Names) -> Result<bool, StoreError> {
    Ok(version(session, names).await?.is_some())
}

/// Whether a transfer into the schema was started and not finished.
pub(super) async fn is_unfinished(session: &Session, names: &Names) -> Result<bool, StoreError> {
    has_relation(session, names, Some("transfer")).await
}

/// The version of the schema; `None` if it does not exist.
async fn version(session: &Session, names: &Names) -> Result<Option<i64>, StoreError> {
    if !has_relation(session, names, Some("migration")).await? {
        return Ok(None);
    }
    let found = session.query_once(VERSION, &[]).await?;
    let version = found.first().map_or(0, |row| i64::from(row.get::<_, i32>(0)));
    if version > known() {
        let schema = names.schema().to_owned();
        return Err(StoreError::NewerSchema { schema, found: version, known: known() });
    }
    Ok(Some(version))
}

async fn migrate_locked(session: &Session, names: &Names) -> Result<(), StoreError> {
    let schema = names.schema();
    session.query_once(LOCK, &[&schema]).await?;
    session.batch(LIMIT_LOCK_WAIT).await?;
    // Checked again under the lock: another process may have migrated meanwhile.
    let version = version(session, names).await?;
    if version.is_none() {
        if session.query_once(EXISTS, &[&schema]).await?.is_empty() {
            session.batch(&format!("CREATE SCHEMA \"{schema}\"")).await?;
        } else if has_relation(session, names, None).await? {
            let why = "it has tables of another program".to_owned();
            return Err(StoreError::ForeignSchema { schema: schema.to_owned(), why });
        }
        session
            .batch("CREATE TABLE redrive.migration (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
            .await?;
    }
    let from = usize::try_from(version.unwrap_or(0)).unwrap_or(0);
    for (number, script) in (1..).zip(MIGRATIONS).skip(from) {
        session.batch(script).await?;
        let done = format!("INSERT INTO redrive.migration (version) VALUES ({number})");
        session.batch(&done).await?;
    }
    Ok(())
}

/// Whether the schema has a table of this name, or any table or other relation at all.
async fn has_relation(session: &Session, names: &Names, table: Option<&str>) -> Result<bool, StoreError> {
    let found = session.query_once(HAS_RELATION, &[&names.schema(), &table]).await?;
    Ok(found.first().is_some_and(|row| row.get(0)))
}
