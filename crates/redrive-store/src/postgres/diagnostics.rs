//! Diagnostics of the server, the processes and the work in flight, for `redrive doctor`.

use std::time::{Duration, Instant};

use redrive_retry::Timestamp;
use tokio_postgres::Row;

use super::process_state::{DECLARED_DEAD, lease_expired};
use super::{PostgresStore, rows};
use crate::error::StoreError;

/// State of a server, its processes and the work in flight. Read by [`PostgresStore::diagnostics`].
#[derive(Clone, Debug)]
pub struct Diagnostics {
    /// The server's version, as it reports it.
    pub version: String,
    /// The round-trip time of an empty query.
    pub round_trip: Duration,
    /// Difference by which the database's clock is ahead of this machine's, in milliseconds.
    pub clock_offset_ms: i64,
    /// The size of all tables and indexes.
    pub bytes: u64,
    /// The registered processes, oldest first; at most 100.
    pub processes: Vec<ProcessRow>,
    /// Events and deliveries in flight.
    pub running: u64,
    /// Events and deliveries in flight whose process is dead.
    pub abandoned: u64,
}

/// A process that shares the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    /// The instance name of the process.
    pub instance: String,
    /// The process id on its machine.
    pub pid: i64,
    /// The time at which the process registered.
    pub started_at: Timestamp,
    /// Whether its lease has not expired.
    pub is_alive: bool,
}

const VERSION: &str = "SELECT current_setting('server_version')";

const PROCESSES: &str = concat!(
    "SELECT instance, pid, started_at, void_until < $1 AND NOT ",
    lease_expired!(),
    " FROM redrive.process ORDER BY key LIMIT 100"
);

/// Starts at the oldest key of any process, so it does not scan older finished events.
const RUNNING: &str = concat!(
    "WITH running AS (
      SELECT e.owner FROM redrive.event e
      WHERE e.status = 1 AND e.key >= (SELECT coalesce(min(oldest_event), 0) FROM redrive.process)
      UNION ALL
      SELECT d.owner FROM redrive.delivery d
      WHERE d.status = 1 AND d.key >= (SELECT coalesce(min(oldest_delivery), 0) FROM redrive.process))
    SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (
      SELECT 1 FROM redrive.process p WHERE p.key = running.owner AND void_until < $1 AND NOT ",
    lease_expired!(),
    ")) FROM running"
);

impl PostgresStore {
    /// Reads the state of the server, its processes and the work in flight.
    pub async fn diagnostics(&self) -> Result<Diagnostics, StoreError> {
        let stats = crate::store::EventStore::stats(self).await?;
        self.read(async move |session| {
            let version = session.query_first(VERSION, &[]).await?.ok_or(StoreError::Closed)?.get(0);
            let began = Instant::now();
            session.check().await?;
            let round_trip = began.elapsed();
            let running = session.query_first(RUNNING, &[&DECLARED_DEAD]).await?.ok_or(StoreError::Closed)?;
            let processes = session.query(PROCESSES, &[&DECLARED_DEAD]).await?;
            let process = |row: &Row| ProcessRow {
                instance: row.get(0),
                pid: row.get(1),
                started_at: rows::timestamp(row, 2),
                is_alive: row.get(3),
            };
            Ok(Diagnostics {
                version,
                round_trip,
                clock_offset_ms: super::database_time::ahead_of_machine_ms(session).await?,
                bytes: stats.file_bytes,
                processes: processes.iter().map(process).collect(),
                running: rows::count(&running, 0),
                abandoned: rows::count(&running, 1),
            })
        })
        .await
    }
}
