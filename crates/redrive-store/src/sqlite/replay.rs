//! Replays an event to one subscription.

use redrive_retry::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::{rows, status};
use crate::error::StoreError;
use crate::event::{EventId, SubscriptionName};
use crate::store::Replayed;

const FIND: &str = "
    SELECT e.key, e.status, v.status, EXISTS (SELECT 1 FROM dead_letter WHERE event_key = e.key AND subscription IS NULL)
    FROM event e LEFT JOIN delivery v ON v.event_key = e.key AND v.subscription = ?2 WHERE e.id = ?1";

const KEEP_ERRORS: &str = "
    INSERT INTO redriven (event_key, at, errors)
    SELECT event_key, ?3, last_error FROM delivery WHERE event_key = ?1 AND subscription = ?2";

const ADD_DELIVERY: &str = "
    INSERT INTO delivery (event_key, subscription, status, due_at, updated_at) VALUES (?1, ?2, 0, ?3, ?3)
    ON CONFLICT (event_key, subscription) DO UPDATE SET status = 0, retry_count = 0, crashes = 0, first_at = NULL,
    last_error = NULL, due_at = excluded.due_at, updated_at = excluded.updated_at";

const DELETE_DEAD_LETTER: &str = "DELETE FROM dead_letter WHERE event_key = ?1 AND subscription = ?2";

const REOPEN_EVENT: &str = "UPDATE event SET status = 5, updated_at = ?2 WHERE key = ?1";

/// Makes a delivery of the event to the subscription due. Earlier errors and attempts stay in `redriven` and `attempt`.
pub(super) fn replay(
    connection: &Connection,
    id: EventId,
    to: &SubscriptionName,
    at: Timestamp,
) -> Result<Replayed, StoreError> {
    let found: Option<(i64, i16, Option<i64>, bool)> = connection
        .prepare_cached(FIND)?
        .query_row(params![id.as_uuid().as_bytes(), to.as_str()], |row| {
            Ok((row.get(0)?, rows::status(row, 1)?, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let (key, state, delivery, died_as_a_whole) = found.ok_or(StoreError::NoSuchEvent { id })?;
    // An open event is still delivered to every matching subscription, so also to this one.
    let is_open = state < status::DONE || delivery.is_some_and(|delivery| delivery < status::DONE.into());
    if is_open {
        return Ok(Replayed::Open);
    }
    let at = at.as_millis();
    connection.prepare_cached(KEEP_ERRORS)?.execute(params![key, to.as_str(), at])?;
    connection.prepare_cached(ADD_DELIVERY)?.execute(params![key, to.as_str(), at])?;
    connection.prepare_cached(DELETE_DEAD_LETTER)?.execute(params![key, to.as_str()])?;
    // An event that is dead as a whole stays dead: the replay concerns one subscription.
    if !died_as_a_whole {
        connection.prepare_cached(REOPEN_EVENT)?.execute(params![key, at])?;
    }
    Ok(Replayed::Again)
}
