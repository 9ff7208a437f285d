//! Recovers work that was running when the process died.

use redrive_retry::{FailureClass, Timestamp, fault};
use rusqlite::{Connection, params};

use super::settle::{APPEND_ERROR, MAX_RETRY_COUNT};
use super::{rows, status};
use crate::error::StoreError;
use crate::work::Recovered;

/// Error of an attempt whose process died.
const CRASHED: &str = "process ended during the attempt";

/// Charges the interrupted attempt to every running row and makes the row due now, in its old order. A row that was
/// running at an earlier crash as well becomes a crash suspect.
pub(super) fn recover(connection: &Connection, now: Timestamp) -> Result<Vec<Recovered>, StoreError> {
    let class = serde_json::to_string(&FailureClass::Crashed).expect("a class always serialises");
    let running = format!(
        "SELECT id, type, NULL, min(retry_count, {MAX_RETRY_COUNT}) + 1, retry FROM event WHERE status < 3 AND status = 1
         UNION ALL
         SELECT e.id, e.type, v.subscription, min(v.retry_count, {MAX_RETRY_COUNT}) + 1, e.retry FROM delivery v JOIN event e ON e.key = v.event_key
         WHERE v.status < 3 AND v.status = 1"
    );
    let recovered = rows::all(connection, &running, [], |row| {
        // A row whose id cannot be read is recovered, but not reported.
        let Ok(id) = rows::event_id(row, 0) else { return Ok(None) };
        let (event_type, subscription) = (rows::event_type(row, 1)?, rows::optional_subscription(row, 2)?);
        let (attempt, error) = (rows::count(row, 3)?, CRASHED.to_owned());
        let retry = rows::retry_override(row, 4)?;
        Ok(Some(Recovered { id, event_type, subscription, attempt, retry, error }))
    })?;
    fault!("recovery-skips-waiting" =>
        connection.execute_batch("UPDATE event SET due_at = NULL WHERE status < 3 AND status = 2")?);
    for (table, event_key, subscription, of_delivery) in
        [("event", "key", "''", false), ("delivery", "event_key", "subscription", true)]
    {
        connection
            .prepare_cached(&format!(
                "INSERT INTO attempt (event_key, subscription, attempt, started_at, duration_ms, class, delay_ms, error, of_delivery)
                 SELECT {event_key}, {subscription}, min(retry_count, {MAX_RETRY_COUNT}) + 1, updated_at,
                 CAST(min(max(0, ?1 - updated_at), {MAX_RETRY_COUNT}) AS INTEGER), ?2, 0, ?3, ?4
                 FROM {table} WHERE status < 3 AND status = 1"
            ))?
            .execute(params![now.as_millis(), class, CRASHED, of_delivery])?;
        connection
            .prepare_cached(&format!(
                "UPDATE {table} SET status = CASE crashes WHEN 0 THEN ?3 ELSE ?4 END, updated_at = ?1,
                 due_at = min(due_at, ?1), first_at = coalesce(first_at, updated_at), retry_count = min(retry_count, {MAX_RETRY_COUNT}) + 1,
                 crashes = min(crashes, {MAX_RETRY_COUNT}) + 1, last_error = {APPEND_ERROR} WHERE status < 3 AND status = 1"
            ))?
            .execute(params![now.as_millis(), CRASHED, status::PENDING, status::SUSPECT])?;
    }
    Ok(recovered.into_iter().flatten().collect())
}
