//! Replays an event to one subscription.

use redrive_retry::Timestamp;

use super::session::Session;
use super::status;
use crate::error::StoreError;
use crate::event::{EventId, SubscriptionName};
use crate::store::Replayed;

/// Excludes a concurrent replay or redrive, and a settlement of the event's last delivery. The lock is in the server's log, so
/// the commit is a barrier also if nothing changes.
const LOCK: &str = "SELECT key, status FROM redrive.event WHERE id = $1 FOR UPDATE";

/// A separate statement: its snapshot includes the changes of the transactions that [`LOCK`] waited for.
const STATE: &str = "
    SELECT (SELECT status FROM redrive.delivery WHERE event_key = $1 AND subscription = $2),
           EXISTS (SELECT 1 FROM redrive.dead_letter WHERE event_key = $1 AND subscription IS NULL)";

const KEEP_ERRORS: &str = "
    INSERT INTO redrive.redriven (event_key, at, errors)
    SELECT event_key, $3, last_error FROM redrive.delivery WHERE event_key = $1 AND subscription = $2";

const START_DELIVERY_OVER: &str = "
    UPDATE redrive.attempt SET redriven = true
    WHERE event_key = $1 AND subscription = $2 AND of_delivery AND NOT redriven";

const ADD_DELIVERY: &str = "
    INSERT INTO redrive.delivery (event_key, subscription, status, due_at, ready_at, updated_at)
    VALUES ($1, $2, 0, $3, greatest($3, 0), $3)
    ON CONFLICT (event_key, subscription) DO UPDATE SET status = 0, retry_count = 0, crashes = 0, first_at = NULL,
    last_error = NULL, due_at = excluded.due_at, ready_at = excluded.ready_at, updated_at = excluded.updated_at";

const DELETE_DEAD_LETTER: &str = "DELETE FROM redrive.dead_letter WHERE event_key = $1 AND subscription = $2";

/// An event with other open deliveries stays in processing.
const REOPEN_EVENT: &str =
    "UPDATE redrive.event SET status = CASE status WHEN 5 THEN 5 ELSE 6 END, updated_at = $2 WHERE key = $1";

/// A task of the retry scheduler is pending again in the retry queue.
pub(super) const REOPEN_MESSAGE: &str =
    "UPDATE redrive.retry_message SET status = 'pending' WHERE event_key = $1";

/// Locks an event until the open transaction ends. Returns its key and status.
pub(super) async fn lock(session: &Session, id: EventId) -> Result<(i64, i16), StoreError> {
    let found = session.query_first(LOCK, &[id.as_uuid()]).await?;
    found.map(|row| (row.get(0), row.get(1))).ok_or(StoreError::NoSuchEvent { id })
}

/// Makes a delivery of the event to the subscription due, inside an open transaction. Earlier errors and attempts stay in
/// `redriven` and `attempt`.
pub(super) async fn replay(
    session: &Session,
    id: EventId,
    to: &SubscriptionName,
    at: Timestamp,
) -> Result<Replayed, StoreError> {
    let (to, at) = (to.as_str(), at.as_millis());
    let (key, state) = lock(session, id).await?;
    let found = session.query_first(STATE, &[&key, &to]).await?;
    let (delivery, died_as_a_whole): (Option<i16>, bool) =
        found.map_or((None, false), |row| (row.get(0), row.get(1)));
    // An unfinished event or delivery will still reach the subscription.
    let is_open = state < status::DONE || delivery.is_some_and(|delivery| delivery < status::DONE);
    if is_open {
        return Ok(Replayed::Open);
    }
    session.query(KEEP_ERRORS, &[&key, &to, &at]).await?;
    session.query(START_DELIVERY_OVER, &[&key, &to]).await?;
    session.query(ADD_DELIVERY, &[&key, &to, &at]).await?;
    session.query(DELETE_DEAD_LETTER, &[&key, &to]).await?;
    // An event that is dead as a whole stays dead: the replay concerns one subscription.
    if !died_as_a_whole {
        session.query(REOPEN_EVENT, &[&key, &at]).await?;
        session.query(REOPEN_MESSAGE, &[&key]).await?;
    }
    Ok(Replayed::Again)
}
