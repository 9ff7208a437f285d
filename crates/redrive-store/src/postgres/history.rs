//! Reads the recorded attempts of the schema.

use tokio_postgres::Row;

use super::{PostgresStore, rows, status};
use crate::error::StoreError;
use crate::history::{RecordedAttempt, recorded_attempts, succeeded_at_once};

const ATTEMPTS: &str = recorded_attempts!("redrive.", "$1", "$2");
const SUCCEEDED_AT_ONCE: &str = succeeded_at_once!("redrive.");

impl PostgresStore {
    /// Returns at most `limit` recorded attempts behind `after`, oldest first.
    pub async fn recorded_attempts(
        &self,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<RecordedAttempt>, StoreError> {
        self.read(async move |session| {
            let (after, limit) = (after.unwrap_or(0), i64::from(limit));
            let found = session.query(ATTEMPTS, &[&after, &limit]).await?;
            let attempt = |row: &Row| RecordedAttempt {
                key: row.get(0),
                event_id: rows::event_id(row, 1),
                event_type: rows::event_type(row, 2),
                is_delivery: row.get(3),
                status: status::name(row.get(4)),
                updated_at: rows::timestamp(row, 5),
                attempt: rows::attempt(row, 6),
            };
            Ok(found.iter().map(attempt).collect())
        })
        .await
    }

    /// Counts the work that succeeded without a failed attempt. Reads every handled event.
    pub async fn succeeded_at_once(&self) -> Result<u64, StoreError> {
        self.read(async |session| Ok(session.count(SUCCEEDED_AT_ONCE, &[]).await?)).await
    }
}
