//! What there is to know of a server and of the work in it, for whoever looks after them.

use std::time::{Duration, Instant};

use redrive_retry::Timestamp;

use super::process::{DEAD, has_run_out};
use super::session::Session;
use super::value::Value;
use super::{PostgresStore, failure};
use crate::error::StoreError;

/// See [`PostgresStore::survey`].
#[derive(Clone, Debug)]
pub struct Survey {
    /// Of the server, as it says it.
    pub version: String,
    /// How long the shortest question takes.
    pub round_trip: Duration,
    /// How far the database's clock is ahead of this machine's, in milliseconds.
    pub ahead_by: i64,
    /// What all tables and indexes take.
    pub bytes: u64,
    /// Who dispatches from here, or did, the oldest first.
    pub processes: Vec<ProcessRow>,
    /// Events and deliveries that are being handled.
    pub running: u64,
    /// Those of them in the hands of a process that is gone.
    pub cut_off: u64,
    /// How many have been due for longer than was asked for.
    pub overdue: u64,
    /// Open deliveries to subscriptions that are not on record: the names with the most, and how many.
    pub orphans: Vec<(String, u64)>,
    /// Events in the dead-letter queue.
    pub dead: u64,
}

/// A process that shares the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    /// How it is called.
    pub instance: String,
    /// Its number on its machine.
    pub pid: i64,
    /// Since when it is there.
    pub started_at: Timestamp,
    /// Whether its lease has not run out.
    pub is_alive: bool,
}

const VERSION: &str = "SELECT current_setting('server_version')";

const PROCESSES: &str = concat!(
    "SELECT instance, pid, started_at, void_until < $1 AND NOT ",
    has_run_out!(),
    " FROM redrive.process ORDER BY key LIMIT 100"
);

/// What a process holds has a key of at least what stands in its row, so finished events are not looked at.
const RUNNING: &str = concat!(
    "WITH held AS (
      SELECT e.owner FROM redrive.event e
      WHERE e.status = 1 AND e.key >= (SELECT coalesce(min(oldest_event), 0) FROM redrive.process)
      UNION ALL
      SELECT d.owner FROM redrive.delivery d
      WHERE d.status = 1 AND d.key >= (SELECT coalesce(min(oldest_delivery), 0) FROM redrive.process))
    SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (
      SELECT 1 FROM redrive.process p WHERE p.key = held.owner AND void_until < $1 AND NOT ",
    has_run_out!(),
    ")) FROM held"
);

const OVERDUE: &str = "
    SELECT (SELECT count(*) FROM redrive.event WHERE ready_at < redrive.now_ms() - $1)
         + (SELECT count(*) FROM redrive.delivery WHERE ready_at < redrive.now_ms() - $1)";

const ORPHANS: &str = "
    SELECT subscription, count(*) FROM redrive.delivery
    WHERE status < 3 AND subscription NOT IN (SELECT name FROM redrive.subscriptions)
    GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5";

const DEAD_LETTERS: &str = "SELECT count(DISTINCT event_key) FROM redrive.dead_letter";

impl PostgresStore {
    /// Looks the server and the work over, without changing anything. What has been due for longer than `overdue` counts as that.
    pub async fn survey(&self, overdue: Duration) -> Result<Survey, StoreError> {
        let overdue = i64::try_from(overdue.as_millis()).unwrap_or(i64::MAX);
        let stats = crate::store::Store::stats(self).await?;
        self.read(async move |session| {
            let version = first(session, VERSION, &[]).await?.get(0);
            let began = Instant::now();
            session.check().await.map_err(failure::explain)?;
            let round_trip = began.elapsed();
            let running = first(session, RUNNING, &[&DEAD]).await?;
            let processes = session.query(PROCESSES, &[&DEAD]).await.map_err(failure::explain)?;
            let overdue = session.query(OVERDUE, &[&overdue]).await.map_err(failure::explain)?;
            let orphans = session.query(ORPHANS, &[]).await.map_err(failure::explain)?;
            let count = |row: &tokio_postgres::Row, column: usize| row.get::<_, i64>(column).unsigned_abs();
            Ok(Survey {
                version,
                round_trip,
                ahead_by: super::process::ahead_by(session).await?,
                bytes: stats.file_bytes,
                processes: processes
                    .iter()
                    .map(|row| ProcessRow {
                        instance: row.get(0),
                        pid: row.get(1),
                        started_at: Timestamp::from_millis(row.get(2)),
                        is_alive: row.get(3),
                    })
                    .collect(),
                running: count(&running, 0),
                cut_off: count(&running, 1),
                overdue: overdue.first().map_or(0, |row| count(row, 0)),
                orphans: orphans.iter().map(|row| (row.get(0), count(row, 1))).collect(),
                dead: count(&first(session, DEAD_LETTERS, &[]).await?, 0),
            })
        })
        .await
    }
}

async fn first(
    session: &Session,
    statement: &'static str,
    values: &[&dyn Value],
) -> Result<tokio_postgres::Row, StoreError> {
    let found = session.query(statement, values).await.map_err(failure::explain)?;
    found.into_iter().next().ok_or(StoreError::Closed)
}
