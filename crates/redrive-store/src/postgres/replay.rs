//! Giving an event to one subscription again.

use redrive_retry::Timestamp;

use super::session::Session;
use super::{failure, status};
use crate::error::StoreError;
use crate::event::{EventId, SubscriptionName};
use crate::store::Replayed;

/// Whoever settles the last delivery of the event meanwhile, or replays it as well, waits here.
const LOCK: &str = "SELECT key, status FROM redrive.event WHERE id = $1 FOR UPDATE";

/// A statement of its own: only so does it see what was done by whoever was waited for.
const LOOK: &str = "
    SELECT (SELECT status FROM redrive.delivery WHERE event_key = $1 AND subscription = $2),
           EXISTS (SELECT 1 FROM redrive.dead_letter WHERE event_key = $1 AND subscription IS NULL)";

const REMEMBER: &str = "
    INSERT INTO redrive.redriven (event_key, at, errors)
    SELECT event_key, $3, last_error FROM redrive.delivery WHERE event_key = $1 AND subscription = $2";

const OWE: &str = "
    INSERT INTO redrive.delivery (event_key, subscription, status, due_at, ready_at, updated_at)
    VALUES ($1, $2, 0, $3, greatest($3, 0), $3)
    ON CONFLICT (event_key, subscription) DO UPDATE SET status = 0, retry_count = 0, crashes = 0, first_at = NULL,
    last_error = NULL, due_at = excluded.due_at, ready_at = excluded.ready_at, updated_at = excluded.updated_at";

const FORGET_LETTER: &str = "DELETE FROM redrive.dead_letter WHERE event_key = $1 AND subscription = $2";

const OPEN_EVENT: &str = "UPDATE redrive.event SET status = 5, updated_at = $2 WHERE key = $1";

/// What an event has gone through stays in `redriven` and `attempt`.
pub(super) async fn replay(
    session: &Session,
    id: EventId,
    to: &SubscriptionName,
    at: Timestamp,
) -> Result<Replayed, StoreError> {
    session.whole(replay_in(session, id, to, at)).await
}

/// Inside a transaction.
pub(super) async fn replay_in(
    session: &Session,
    id: EventId,
    to: &SubscriptionName,
    at: Timestamp,
) -> Result<Replayed, StoreError> {
    let (to, at) = (to.as_str(), at.as_millis());
    let found = session.query(LOCK, &[id.as_uuid()]).await.map_err(failure::explain)?;
    let row = found.first().ok_or(StoreError::NoSuchEvent { id })?;
    let (key, state): (i64, i16) = (row.get(0), row.get(1));
    let found = session.query(LOOK, &[&key, &to]).await.map_err(failure::explain)?;
    let (delivery, died_as_a_whole): (Option<i16>, bool) =
        found.first().map_or((None, false), |row| (row.get(0), row.get(1)));
    // What goes to all who match, and has not ended, is still to come to this one, too.
    let is_on_its_way = state < status::DONE || delivery.is_some_and(|delivery| delivery < status::DONE);
    if is_on_its_way {
        return Ok(Replayed::Open);
    }
    session.query(REMEMBER, &[&key, &to, &at]).await.map_err(failure::explain)?;
    session.query(OWE, &[&key, &to, &at]).await.map_err(failure::explain)?;
    session.query(FORGET_LETTER, &[&key, &to]).await.map_err(failure::explain)?;
    // What was given up as a whole stays so: this is only for one.
    if !died_as_a_whole {
        session.query(OPEN_EVENT, &[&key, &at]).await.map_err(failure::explain)?;
    }
    Ok(Replayed::Again)
}
