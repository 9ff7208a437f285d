//! Retries an idempotent statement whose answer was lost with the connection.

use std::time::Instant;

use tokio_postgres::Row;

use super::Shared;
use super::failure::{ErrorClass, classify, full_message};
use super::pool::BorrowedSession;
use super::value::Value;
use crate::error::StoreError;

/// The answer to the last execution of a statement.
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// Whether an earlier execution has an unknown outcome.
    pub(super) was_resent: bool,
    /// The session that has answered.
    pub(super) session: BorrowedSession,
}

impl Shared {
    /// Sends a statement until it is answered or `outage_timeout` ends. The statement may be executed more than once, so the
    /// caller must be able to recognise its own earlier change.
    pub(super) async fn retry_idempotent(
        &self,
        text: &'static str,
        values: &[&dyn Value],
    ) -> Result<Answer, StoreError> {
        let deadline = Instant::now() + self.options.outage_timeout;
        let mut unknown = None;
        loop {
            let session = match (self.pool.get().await, &unknown) {
                (Ok(session), _) => session,
                // An earlier execution may have changed something.
                (Err(_), Some(why)) => return Err(StoreError::Unknown { why: String::clone(why) }),
                (Err(error), None) => return Err(error),
            };
            match session.query(text, values).await {
                Ok(rows) => return Ok(Answer { rows, was_resent: unknown.is_some(), session }),
                Err(error) if classify(&error) == ErrorClass::ConnectionLost && Instant::now() < deadline => {
                    unknown = Some(full_message(&error));
                }
                Err(error) if classify(&error) == ErrorClass::Conflict && Instant::now() < deadline => {}
                Err(error) => return Err(self.explain(error)),
            }
        }
    }
}
