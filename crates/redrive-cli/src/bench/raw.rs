//! Measures SQLite alone with the same events, durability and batch sizes, as the upper bound for the bus.
//!
//! Minimal table: an integer key, a time-ordered 16-byte id, one partial index over unfinished rows. No bus, no channel, no handler.

use std::path::Path;
use std::time::{Duration, Instant};

use redrive::EventId;
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE raw (
      key INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, type TEXT NOT NULL, payload TEXT NOT NULL,
      status INTEGER NOT NULL, due_at INTEGER, created_at INTEGER NOT NULL);
    CREATE INDEX raw_due ON raw(due_at) WHERE status < 2;";

const INSERT: &str = "INSERT INTO raw (id, type, payload, status, due_at, created_at) VALUES (?1, 'order.created', ?2, 0, ?3, ?3)";

/// Connection to its own file.
pub(super) struct Raw {
    connection: Connection,
    payload: String,
    written: i64,
}

impl Raw {
    pub(super) fn create(path: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Raw { connection, payload: payload().to_string(), written: 0 })
    }

    /// Rows per second with `batch` rows in each synced transaction.
    pub(super) fn inserts(&mut self, batch: u32, time: Duration) -> rusqlite::Result<f64> {
        let (began, before) = (Instant::now(), self.written);
        while began.elapsed() < time {
            self.insert(batch)?;
        }
        Ok(rate(self.written - before, began.elapsed()))
    }

    /// Rows per second that another thread commits one by one while an async task waits for each: the cost of the thread
    /// switch.
    pub(super) async fn on_other_thread(self, time: Duration) -> rusqlite::Result<f64> {
        let mut raw = self;
        let (sender, mut receiver) = mpsc::channel::<oneshot::Sender<rusqlite::Result<()>>>(1);
        let thread = std::thread::spawn(move || {
            while let Some(reply) = receiver.blocking_recv() {
                let _ = reply.send(raw.insert(1)); // the receiver may be gone
            }
        });
        let publisher = tokio::spawn(async move {
            let (began, mut written) = (Instant::now(), 0);
            while began.elapsed() < time {
                let (reply, answer) = oneshot::channel();
                let sent = sender.send(reply).await;
                if let (Ok(()), Ok(answer)) = (sent, answer.await) {
                    answer?;
                    written += 1;
                }
            }
            Ok(rate(written, began.elapsed()))
        });
        let rate = publisher.await.expect("a publisher does not panic");
        thread.join().expect("a writer does not panic");
        rate
    }

    /// Rows per second through insert, claim and done, 100 in each of the three synced transactions.
    pub(super) fn cycles(&mut self, time: Duration) -> rusqlite::Result<f64> {
        let (began, before) = (Instant::now(), self.written);
        while began.elapsed() < time {
            let first = self.written;
            self.insert(100)?;
            let keys = self.claim(first)?;
            self.transaction(|connection| {
                let mut done =
                    connection.prepare_cached("UPDATE raw SET status = 2, due_at = NULL WHERE key = ?1")?;
                keys.iter().try_for_each(|key| done.execute([key]).map(drop))
            })?;
        }
        Ok(rate(self.written - before, began.elapsed()))
    }

    fn insert(&mut self, batch: u32) -> rusqlite::Result<()> {
        let (payload, first) = (&self.payload, self.written);
        self.transaction(|connection| {
            let mut insert = connection.prepare_cached(INSERT)?;
            for n in 0..i64::from(batch) {
                insert.execute(params![EventId::new().as_uuid().as_bytes(), payload, first + n])?;
            }
            Ok(())
        })?;
        self.written += i64::from(batch);
        Ok(())
    }

    fn claim(&self, first: i64) -> rusqlite::Result<Vec<i64>> {
        let mut keys = Vec::with_capacity(100);
        self.transaction(|connection| {
            let mut claim = connection.prepare_cached(
                "UPDATE raw SET status = 1 WHERE key IN
                 (SELECT key FROM raw WHERE status < 2 AND due_at >= ?1 ORDER BY due_at LIMIT 100)
                 RETURNING key, id, type, payload",
            )?;
            let mut rows = claim.query([first])?;
            while let Some(row) = rows.next()? {
                keys.push(row.get(0)?);
                let _payload: String = row.get(3)?; // a queue reads the payload
            }
            Ok(())
        })?;
        Ok(keys)
    }

    fn transaction(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        work(&self.connection)?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

/// Sample event: an order of about 200 bytes.
pub(super) fn payload() -> Value {
    json!({
        "order": 4711, "customer": "c-1234567", "total": "129.90", "currency": "EUR",
        "items": [{"sku": "A-100", "quantity": 2}, {"sku": "B-200", "quantity": 1}],
        "note": "please leave it at the door",
    })
}

#[allow(clippy::cast_precision_loss)] // a rate, not a count
pub(super) fn rate(count: i64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
