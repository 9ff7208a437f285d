//! Fills a file with events as the bus would have stored them, by SQL and with one sync at the end.

use std::path::{Path, PathBuf};

use redrive::EventId;
use redrive::retry::BoxError;
use redrive_retry::{Clock, FailureClass};
use redrive_store::{SqliteOptions, SqliteStore, fingerprint};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

/// Status numbers of the store.
const RUNNING: i64 = 1;
const WAITING: i64 = 2;
const DONE: i64 = 3;
const DEAD: i64 = 4;

/// Rows in one transaction.
const BATCH: u32 = 200_000;

/// Milliseconds between two published events.
pub(super) const APART: i64 = 10;

/// Attempts of a dead event: the default policy.
const ATTEMPTS: i64 = 4;

/// The type of one event in a thousand; the others share eight types.
pub(super) const RARE: &str = "order.refunded";
const TYPES: [&str; 8] = [
    "order.created",
    "order.paid",
    "order.packed",
    "order.shipped",
    "invoice.sent",
    "customer.moved",
    "stock.low",
    "stock.counted",
];

/// Error texts with one number that differs each time. Each text is one group of errors.
const ERRORS: [&str; 20] = [
    "connect to the warehouse: connection refused after # ms",
    "connect to the warehouse: timed out after # ms",
    "the mail server said # try again later",
    "the mail server closed the connection after # bytes",
    "order # has no address",
    "order # is not known to the warehouse",
    "customer # is blocked",
    "invoice # was sent before",
    "payment # was declined: insufficient funds",
    "payment # was declined: the card has expired",
    "HTTP 503 from the payment service after # ms",
    "HTTP 503 from the shipping service after # ms",
    "HTTP 503 from the tax service after # ms",
    "missing field `total` at line 1 column #",
    "invalid type: string, expected a number at line 1 column #",
    "the database is locked, waited # ms",
    "the pool has no free connection after # ms",
    "rate limit exceeded, retry after # s",
    "certificate expired # days ago",
    "no route to host # of the cluster",
];

/// The event that everything is measured with: an order of some two hundred bytes.
pub(super) fn payload() -> Value {
    json!({
        "order": 4711, "customer": "c-1234567", "total": "129.90", "currency": "EUR",
        "items": [{"sku": "A-100", "quantity": 2}, {"sku": "B-200", "quantity": 1}],
        "note": "please leave it at the door",
    })
}

/// A file under exclusive use. [`finish`](Self::finish) makes it readable for the bus.
pub(super) struct Fill {
    connection: Connection,
    path: PathBuf,
    payload: String,
    transient: String,
    now: i64,
}

impl Fill {
    /// Lets the store create the file and its tables.
    pub(super) fn open(path: &Path) -> Result<Self, BoxError> {
        drop(SqliteStore::open(path, SqliteOptions::default())?);
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -131072;",
        )?;
        connection.set_prepared_statement_cache_capacity(16);
        Ok(Fill {
            connection,
            path: path.to_owned(),
            payload: payload().to_string(),
            transient: serde_json::to_string(&FailureClass::Transient)?,
            now: Clock::system().now().as_millis(),
        })
    }

    /// Number of events.
    pub(super) fn rows(&self) -> Result<u32, BoxError> {
        // No event is deleted here, so the last key is the number of events.
        Ok(self.connection.query_row("SELECT coalesce(max(key), 0) FROM event", [], |row| row.get(0))?)
    }

    /// Adds handled events.
    pub(super) fn done(&self, count: u32) -> Result<(), BoxError> {
        self.each(count, |fill, n| {
            let at = fill.published_at(count, n);
            fill.event(n, DONE, at, 0, None, None).map(drop)
        })
    }

    /// Adds events that were running at a crash.
    pub(super) fn stuck(&self, count: u32) -> Result<(), BoxError> {
        self.each(count, |fill, n| {
            let at = fill.published_at(count, n);
            fill.event(n, RUNNING, at, 0, Some(at), None).map(drop)
        })
    }

    /// Adds events that failed once and wait: a tenth becomes due within this many seconds, the rest in an hour.
    pub(super) fn waiting(&self, count: u32, seconds: u32) -> Result<(), BoxError> {
        let (soon, tenth) = (i64::from(seconds) * 1000, i64::from(count / 10).max(1));
        self.each(count, |fill, n| {
            let at = fill.published_at(count, n);
            let n = i64::from(n);
            let due = if n < tenth { n * soon / tenth } else { 3_600_000 + n };
            let error = error(n);
            let key = fill.event(0, WAITING, at, 1, Some(fill.now + due), Some(&json!([error])))?;
            fill.attempt(key, 1, at, &error)
        })
    }

    /// Adds dead events.
    pub(super) fn dead(&self, count: u32) -> Result<(), BoxError> {
        self.each(count, |fill, n| {
            let at = fill.published_at(count, n);
            let errors: Vec<String> = (0..ATTEMPTS).map(|attempt| error(i64::from(n) + attempt)).collect();
            let key = fill.event(n, DEAD, at, ATTEMPTS, None, Some(&json!(errors)))?;
            for (attempt, error) in (1..).zip(&errors) {
                fill.attempt(key, attempt, at + attempt * 1000, error)?;
            }
            let last = errors.last().map_or("", String::as_str);
            fill.connection
                .prepare_cached(
                    "INSERT INTO dead_letter (event_key, type, created_at, dlq_at, reason, fingerprint, error)
                     VALUES (?1, ?2, ?3, ?4, 'attempts_exhausted', ?5, ?6)",
                )?
                .execute(params![key, event_type(n), at, at + 8000, fingerprint(last), last])?;
            Ok(())
        })
    }

    /// Syncs the file and sets its journal mode for the bus.
    pub(super) fn finish(self) -> Result<(), BoxError> {
        self.connection.execute_batch("PRAGMA journal_mode = WAL;")?;
        self.connection.close().map_err(|(_, error)| error)?;
        std::fs::File::open(&self.path)?.sync_all()?;
        Ok(())
    }

    /// Publish time of event `n` of `count`; the last one is now.
    fn published_at(&self, count: u32, n: u32) -> i64 {
        self.now - i64::from(count - n) * APART
    }

    fn each(
        &self,
        count: u32,
        mut row: impl FnMut(&Self, u32) -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        for first in (0..count).step_by(BATCH as usize) {
            self.connection.execute_batch("BEGIN")?;
            for n in first..count.min(first.saturating_add(BATCH)) {
                row(self, n)?;
            }
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(())
    }

    fn event(
        &self,
        n: u32,
        status: i64,
        at: i64,
        retries: i64,
        due_at: Option<i64>,
        errors: Option<&Value>,
    ) -> Result<i64, BoxError> {
        self.connection
            .prepare_cached(
                "INSERT INTO event (id, type, payload, status, retry_count, due_at, last_error, created_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)",
            )?
            .execute(params![
                EventId::new().as_uuid().as_bytes(),
                event_type(n),
                self.payload,
                status,
                retries,
                due_at,
                errors.map(Value::to_string),
                at
            ])?;
        Ok(self.connection.last_insert_rowid())
    }

    fn attempt(&self, event: i64, number: i64, at: i64, error: &str) -> Result<(), BoxError> {
        self.connection
            .prepare_cached(
                "INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error)
                 VALUES (?1, 'shipping', ?2, ?3, 12, ?4, 1000, ?5)",
            )?
            .execute(params![event, number, at, self.transient, error])?;
        Ok(())
    }
}

fn event_type(n: u32) -> &'static str {
    if n % 1000 == 999 { RARE } else { TYPES[n as usize % TYPES.len()] }
}

fn error(n: i64) -> String {
    let kind = usize::try_from(n).unwrap_or(0) % ERRORS.len();
    ERRORS[kind].replace('#', &(n % 9973).to_string())
}

#[cfg(test)]
mod tests {
    use redrive_store::{DlqFilter, DlqPage, traits::*};

    use super::*;

    #[test]
    fn the_store_reads_the_generated_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filled.db");
        let fill = Fill::open(&path).unwrap();
        fill.done(2000).unwrap();
        fill.dead(1500).unwrap();
        fill.stuck(30).unwrap();
        fill.waiting(200, 4).unwrap();
        assert_eq!(fill.rows().unwrap(), 3730);
        fill.finish().unwrap();

        let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert_eq!(store.check(10).await.unwrap(), Vec::<String>::new());
            let stats = store.stats().await.unwrap();
            assert_eq!((stats.done, stats.dlq, stats.processing), (2000, 1500, 230));
            let groups = store.dead_groups(DlqFilter::default()).await.unwrap();
            assert_eq!(groups.len(), ERRORS.len());
            let page = store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
            assert_eq!(page.len(), 100);
            let newest = store.dead_letter(page[0].id).await.unwrap();
            assert_eq!((newest[0].errors.len(), newest[0].attempts.len()), (4, 4));
            let recovered = store.recover(Clock::system().now()).await.unwrap();
            assert_eq!(recovered.len(), 30);
            store.close().await.unwrap();
        });
    }
}
