//! A session: one connection, with the statements that were prepared on it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

use super::names::Names;
use super::value::Value;
use super::{lock, rows};
use crate::error::StoreError;

/// Writes to the server's log and nothing else, so that its commit waits for the log: on disk, and on a synchronous standby. A
/// transaction that only reads writes no log, and its commit waits for nothing.
pub(super) const BARRIER: &str = "SELECT pg_logical_emit_message(true, 'redrive', '')";

/// Signals between a session and the task that drives its connection.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Ends the connection, and all pending answers with it.
    pub(super) hang_up: Notify,
    /// The number of warnings that the server has sent.
    pub(super) warnings: AtomicU64,
}

/// A connection with prepared statements, answer timeout and transactions.
pub(super) struct Session {
    client: Client,
    names: Arc<Names>,
    /// Whether statements are prepared. Behind a transaction pooler they are sent as text instead.
    prepares: bool,
    /// Prepared statements, by their text in the code. A std mutex: held for a map operation.
    prepared: Mutex<HashMap<&'static str, Prepared>>,
    /// Whether a transaction is open, so that the connection must not be reused.
    in_transaction: AtomicBool,
    signals: Arc<Signals>,
    /// A living server answers within this time, at least that it has cancelled the statement.
    answer_timeout: Option<Duration>,
    /// The number of further inserts that use the statement for existing ids.
    old_ids: AtomicU32,
}

/// A publisher that repeats an id is likely to do it again, and each time costs a statement that is rolled back.
const EXPECT_OLD_IDS: u32 = 1000;

#[derive(Clone)]
enum Prepared {
    Named(Statement),
    Text(Arc<str>),
}

impl Session {
    pub(super) fn new(
        client: Client,
        names: Arc<Names>,
        poll_only: bool,
        signals: Arc<Signals>,
        answer_timeout: Option<Duration>,
    ) -> Self {
        Session {
            client,
            names,
            prepares: !poll_only,
            prepared: Mutex::default(),
            in_transaction: AtomicBool::new(false),
            signals,
            answer_timeout,
            old_ids: AtomicU32::new(0),
        }
    }

    /// Whether the connection is open and not inside a transaction.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.in_transaction.load(Ordering::Acquire)
    }

    /// Whether the next events are likely to have new ids.
    pub(super) fn expects_new_ids(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.old_ids.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
    }

    /// Records that an event had an existing id.
    pub(super) fn saw_old_id(&self) {
        self.old_ids.store(EXPECT_OLD_IDS, Ordering::Relaxed);
    }

    /// Whether the server answers.
    pub(super) async fn check(&self) -> Result<(), Error> {
        self.answered(self.client.check_connection()).await
    }

    /// Waits for an answer up to the answer timeout, then ends the connection. A proxy can keep a connection open without
    /// forwarding anything, so that TCP keepalives do not notice a dead server.
    async fn answered<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut answer = pin!(answer);
        if let Some(longest) = self.answer_timeout {
            if let Ok(answer) = tokio::time::timeout(longest, &mut answer).await {
                return answer;
            }
            self.signals.hang_up.notify_one();
        }
        answer.await
    }

    /// Prepares a statement, so that the next [`query`](Self::query) of it is sent at once.
    pub(super) async fn prepare(&self, text: &'static str, values: &[&dyn Value]) -> Result<(), Error> {
        self.prepared(text, values).await.map(drop)
    }

    async fn prepared(&self, text: &'static str, values: &[&dyn Value]) -> Result<Prepared, Error> {
        let known = lock(&self.prepared).get(text).cloned();
        if let Some(prepared) = known {
            return Ok(prepared);
        }
        let statement = self.names.statement(text);
        let prepared = if self.prepares {
            let kinds: Vec<Type> = values.iter().map(|value| value.kind()).collect();
            Prepared::Named(self.answered(self.client.prepare_typed(&statement, &kinds)).await?)
        } else {
            Prepared::Text(statement.into())
        };
        lock(&self.prepared).insert(text, prepared.clone());
        Ok(prepared)
    }

    /// Runs a prepared statement, as its own transaction unless one is open.
    pub(super) async fn query(&self, text: &'static str, values: &[&dyn Value]) -> Result<Vec<Row>, Error> {
        let warnings = self.warnings();
        let rows = self.run(text, values).await?;
        // Also while a transaction is open: it may be a pipelined one of another command, behind whose commit the barrier is sent.
        self.barrier_after_warning(warnings).await?;
        Ok(rows)
    }

    /// Waits until everything that this session can see is on stable storage and on a synchronous standby. Needed before
    /// something found is acknowledged: if a backend ends while its commit waits for the standby, the commit takes effect on
    /// the primary only, and a failover undoes it.
    pub(super) async fn barrier(&self) -> Result<(), Error> {
        loop {
            let warnings = self.warnings();
            self.run(BARRIER, &[]).await?;
            if self.warnings() == warnings {
                return Ok(());
            }
        }
    }

    /// Sets a barrier if the server has sent a warning since `before`. A commit whose wait for the standby was cancelled
    /// succeeds with a warning.
    async fn barrier_after_warning(&self, before: u64) -> Result<(), Error> {
        if self.warnings() == before { Ok(()) } else { self.barrier().await }
    }

    fn warnings(&self) -> u64 {
        self.signals.warnings.load(Ordering::Acquire)
    }

    async fn run(&self, text: &'static str, values: &[&dyn Value]) -> Result<Vec<Row>, Error> {
        match self.prepared(text, values).await? {
            Prepared::Named(statement) => {
                let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value.as_sql()).collect();
                self.answered(self.client.query(&statement, &values)).await
            }
            Prepared::Text(statement) => self.query_text(&statement, values).await,
        }
    }

    /// Runs a prepared statement. Returns its first row.
    pub(super) async fn query_first(
        &self,
        text: &'static str,
        values: &[&dyn Value],
    ) -> Result<Option<Row>, Error> {
        Ok(self.query(text, values).await?.into_iter().next())
    }

    /// Runs a prepared statement that counts. Returns the first column of its first row.
    pub(super) async fn count(&self, text: &'static str, values: &[&dyn Value]) -> Result<u64, Error> {
        Ok(self.query_first(text, values).await?.map_or(0, |row| rows::count(&row, 0)))
    }

    /// Runs a prepared statement whose answer does not matter.
    pub(super) async fn execute(&self, text: &'static str, values: &[&dyn Value]) -> Result<(), StoreError> {
        self.query(text, values).await?;
        Ok(())
    }

    /// Runs a statement that was built at run time, without preparing it.
    pub(super) async fn query_once(&self, text: &str, values: &[&dyn Value]) -> Result<Vec<Row>, Error> {
        self.query_text(&self.names.statement(text), values).await
    }

    async fn query_text(&self, statement: &str, values: &[&dyn Value]) -> Result<Vec<Row>, Error> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> =
            values.iter().map(|value| (value.as_sql(), value.kind())).collect();
        self.answered(self.client.query_typed(statement, &values)).await
    }

    /// Runs several statements without parameters.
    pub(super) async fn batch(&self, text: &str) -> Result<(), Error> {
        self.answered(self.client.batch_execute(&self.names.statement(text))).await
    }

    /// Runs work in a transaction: all of it or nothing.
    pub(super) async fn transaction<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.begin().await?;
        match work.await {
            Ok(done) => {
                self.commit().await?;
                Ok(done)
            }
            Err(error) => {
                self.roll_back().await;
                Err(error)
            }
        }
    }

    pub(super) async fn begin(&self) -> Result<(), Error> {
        self.in_transaction.store(true, Ordering::Release);
        self.answered(self.client.batch_execute("BEGIN")).await
    }

    pub(super) async fn commit(&self) -> Result<(), Error> {
        let warnings = self.warnings();
        self.answered(self.client.batch_execute("COMMIT")).await?;
        self.in_transaction.store(false, Ordering::Release);
        self.barrier_after_warning(warnings).await
    }

    /// Rolls back. If that fails, the connection is never reused.
    pub(super) async fn roll_back(&self) {
        if self.answered(self.client.batch_execute("ROLLBACK")).await.is_ok() {
            self.in_transaction.store(false, Ordering::Release);
        }
    }
}
