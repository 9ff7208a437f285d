//! One connection, with the statements that were prepared on it.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

use super::failure;
use super::names::Names;
use super::value::Value;
use crate::error::StoreError;

/// A connection of ours.
pub(super) struct Session {
    client: Client,
    names: Arc<Names>,
    /// Behind a transaction pooler no statement may outlive its transaction, so none has a name: each is sent as text.
    has_names: bool,
    /// By the text as it is written in the code. A std mutex: held for a map operation.
    prepared: Mutex<HashMap<&'static str, Prepared>>,
    /// Whether a transaction was begun and not ended: then nobody else may have this connection.
    is_open: AtomicBool,
    /// Ends the connection, and every wait for an answer with it.
    hang_up: Arc<Notify>,
    /// A server that lives answers within this time, if only that it has given a statement up.
    longest_answer: Option<Duration>,
    /// So many statements are still to expect ids that are there already.
    old_ids: AtomicU32,
}

/// Who publishes an id twice is likely to do it again, and every time it costs a statement that is undone.
const EXPECT_OLD_IDS: u32 = 1000;

#[derive(Clone)]
enum Prepared {
    Named(Statement),
    Text(Arc<str>),
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("is_closed", &self.client.is_closed()).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(
        client: Client,
        names: Arc<Names>,
        is_pooled: bool,
        hang_up: Arc<Notify>,
        longest_answer: Option<Duration>,
    ) -> Self {
        Session {
            client,
            names,
            has_names: !is_pooled,
            prepared: Mutex::default(),
            is_open: AtomicBool::new(false),
            hang_up,
            longest_answer,
            old_ids: AtomicU32::new(0),
        }
    }

    /// Whether it can be used.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_open.load(Ordering::Acquire)
    }

    /// Whether the next events are likely to have ids that nobody has used.
    pub(super) fn expects_new_ids(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.old_ids.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
    }

    /// One had an id that is there already.
    pub(super) fn saw_old_id(&self) {
        self.old_ids.store(EXPECT_OLD_IDS, Ordering::Relaxed);
    }

    /// Whether the server answers.
    pub(super) async fn check(&self) -> Result<(), Error> {
        self.answered(self.client.check_connection()).await
    }

    /// Waits for an answer as long as there can be one. Something on the way may keep the connection open and carry nothing: then
    /// the system never notices that nobody is there.
    async fn answered<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut answer = pin!(answer);
        if let Some(longest) = self.longest_answer {
            if let Ok(answer) = tokio::time::timeout(longest, &mut answer).await {
                return answer;
            }
            self.hang_up.notify_one();
        }
        answer.await
    }

    /// Prepares a statement, so that the next [`query`](Self::query) of it is sent at once.
    pub(super) async fn prepare(&self, text: &'static str, values: &[&dyn Value]) -> Result<(), Error> {
        self.prepared(text, values).await.map(drop)
    }

    async fn prepared(&self, text: &'static str, values: &[&dyn Value]) -> Result<Prepared, Error> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(prepared) = known {
            return Ok(prepared);
        }
        let statement = self.names.statement(text);
        let prepared = if self.has_names {
            let kinds: Vec<Type> = values.iter().map(|value| value.kind()).collect();
            Prepared::Named(self.answered(self.client.prepare_typed(&statement, &kinds)).await?)
        } else {
            Prepared::Text(statement.into())
        };
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(text, prepared.clone());
        Ok(prepared)
    }

    /// Runs one of our statements. It is a transaction of its own unless one was begun.
    pub(super) async fn query(&self, text: &'static str, values: &[&dyn Value]) -> Result<Vec<Row>, Error> {
        match self.prepared(text, values).await? {
            Prepared::Named(statement) => {
                let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value.as_sql()).collect();
                self.answered(self.client.query(&statement, &values)).await
            }
            Prepared::Text(statement) => self.query_text(&statement, values).await,
        }
    }

    /// Runs a statement that was put together, and is not kept.
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

    /// Does all of some work, or nothing of it.
    pub(super) async fn whole<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.begin().await.map_err(failure::explain)?;
        match work.await {
            Ok(done) => {
                self.commit().await.map_err(failure::explain)?;
                Ok(done)
            }
            Err(error) => {
                self.roll_back().await;
                Err(error)
            }
        }
    }

    pub(super) async fn begin(&self) -> Result<(), Error> {
        self.is_open.store(true, Ordering::Release);
        self.answered(self.client.batch_execute("BEGIN")).await
    }

    pub(super) async fn commit(&self) -> Result<(), Error> {
        self.answered(self.client.batch_execute("COMMIT")).await?;
        self.is_open.store(false, Ordering::Release);
        Ok(())
    }

    /// Ends a transaction that went wrong. If that does not work, nobody gets this connection any more.
    pub(super) async fn roll_back(&self) {
        if self.answered(self.client.batch_execute("ROLLBACK")).await.is_ok() {
            self.is_open.store(false, Ordering::Release);
        }
    }
}
