//! A statement that may be sent again when its answer was lost.

use std::time::Instant;

use tokio_postgres::Row;

use super::Shared;
use super::failure::{Fate, fate, said};
use super::value::Value;
use crate::error::StoreError;

/// What was answered at last.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// Whether it was sent before, and nobody knows what became of that.
    pub(super) is_again: bool,
}

impl Shared {
    /// Sends a statement until it is answered, or the usual patience is at its end. For whoever can tell its own doing from
    /// that of others: it may be carried out more than once.
    pub(super) async fn insist(
        &self,
        text: &'static str,
        values: &[&dyn Value],
    ) -> Result<Answer, StoreError> {
        let deadline = Instant::now() + self.options.patience;
        let mut unknown = None;
        loop {
            let session = match (self.pool.get().await, &unknown) {
                (Ok(session), _) => session,
                // It was sent, so it cannot be said that nothing was changed.
                (Err(_), Some(why)) => return Err(StoreError::Unknown { why: String::clone(why) }),
                (Err(error), None) => return Err(error),
            };
            match session.query(text, values).await {
                Ok(rows) => return Ok(Answer { rows, is_again: unknown.is_some() }),
                Err(error) if fate(&error) == Fate::Lost && Instant::now() < deadline => {
                    unknown = Some(said(&error));
                }
                Err(error) if fate(&error) == Fate::Undone && Instant::now() < deadline => {}
                Err(error) => return Err(self.explain(error)),
            }
        }
    }
}
