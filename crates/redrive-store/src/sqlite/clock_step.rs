//! Moves waiting work when the machine's wall clock was set, so that every wait keeps its length.
//!
//! Due times on disk are wall times. A retry that is due in four seconds is still due in four seconds after the clock was set back
//! by two hours: its due time moves back with the clock. So do leases of pull consumers and of idempotency keys. The one exception is a schedule, an event
//! that was published for a date: its first attempt waits for that date of the wall clock.
//!
//! No statement moves a value beyond the year 287,168, where the due time of the backlog lies: it was written by hand.

use std::sync::atomic::Ordering;

use redrive_retry::Timestamp;
use rusqlite::Connection;

use super::SqliteStore;
use crate::error::StoreError;

/// The clock follows the wall clock when they differ by more.
const MAX_DRIFT_MS: i64 = 1000;

/// An event, and a delivery, whose first attempt waits for the date for which the event was published.
const SCHEDULED: [(&str, &str); 2] = [
    ("event", "status = 0 AND scheduled = 1 AND updated_at = created_at"),
    (
        "delivery",
        "status = 0 AND EXISTS (
           SELECT 1 FROM event WHERE key = event_key AND scheduled = 1 AND created_at = delivery.updated_at)",
    ),
];

/// Sets a column that is not out of range.
fn moved(column: &str, by: &str) -> String {
    format!(
        "{column} = iif({column} BETWEEN -8999999999999999 AND 8999999999999999, {column} + {by}, {column})"
    )
}

/// Moves all waits by a step of the clock, except schedules that were not due before the step.
fn shift(connection: &Connection, before: Timestamp, step_ms: i64) -> Result<(), StoreError> {
    let [due_at, first_at, updated_at, until] =
        ["due_at", "first_at", "updated_at", "until"].map(|column| moved(column, "?1"));
    for (table, is_scheduled) in SCHEDULED {
        let open = format!(
            "UPDATE {table} SET {due_at}, {first_at}, {updated_at} WHERE status < 3 AND NOT (due_at > ?2 AND {is_scheduled})"
        );
        connection.prepare_cached(&open)?.execute([step_ms, before.as_millis()])?;
    }
    let leased_at = moved("leased_at", "?1");
    let leases = format!("UPDATE delivery SET {leased_at} WHERE status < 3 AND status = -2");
    connection.prepare_cached(&leases)?.execute([step_ms])?;
    connection
        .prepare_cached(&format!("UPDATE idempotency SET {until}, {updated_at}"))?
        .execute([step_ms])?;
    Ok(())
}

/// Moves what was written later than now, because the clock was set back since: it waits as long from now as it would have then.
pub(super) fn rewind(connection: &Connection, now: Timestamp) -> Result<(), StoreError> {
    const WRITTEN_LATER: &str = "updated_at BETWEEN ?1 + ?2 AND 8999999999999999";
    let values = [now.as_millis(), MAX_DRIFT_MS];
    let [due_at, until] = ["due_at", "until"].map(|column| moved(column, "(?1 - updated_at)"));
    for (table, is_scheduled) in SCHEDULED {
        let open = format!(
            "UPDATE {table} SET {due_at}, updated_at = ?1 WHERE status < 3 AND {WRITTEN_LATER} AND NOT ({is_scheduled})"
        );
        connection.prepare_cached(&open)?.execute(values)?;
    }
    let keys = format!("UPDATE idempotency SET {until}, updated_at = ?1 WHERE {WRITTEN_LATER}");
    connection.prepare_cached(&keys)?.execute(values)?;
    Ok(())
}

impl SqliteStore {
    /// Sets the clock of the store to the machine's, and moves all waiting work in the same transaction.
    pub(super) async fn follow(&self) -> Result<(), StoreError> {
        let (step_ms, clock) = (self.clock.wall_ahead_ms(), self.clock.clone());
        if step_ms.abs() <= MAX_DRIFT_MS {
            // Publishes and settlements that were on the way have been written by now, with times of before the step.
            if self.was_set_back.swap(false, Ordering::AcqRel) {
                let rewound =
                    self.writer.run_unsynced(move |connection| rewind(connection, clock.now())).await;
                if rewound.is_err() {
                    self.was_set_back.store(true, Ordering::Release); // repeated at the next comparison
                }
                rewound?;
                self.writer.due_hint().pull_forward(Timestamp::EPOCH);
            }
            return Ok(());
        }
        let follow = move |connection: &Connection| {
            let before = clock.now();
            shift(connection, before, step_ms)?;
            clock.set(before.shifted(step_ms)); // here, because the next command must see the new time
            Ok(())
        };
        let offset_ms = self.clock.offset_ms();
        if let Err(error) = self.writer.run(follow).await {
            self.clock.set(self.clock.now().shifted(offset_ms - self.clock.offset_ms()));
            return Err(error);
        }
        tracing::warn!(target: "redrive::store", step_ms, "the machine's clock was set: waiting work has moved with it");
        self.was_set_back.store(step_ms < 0, Ordering::Release);
        self.writer.due_hint().pull_forward(Timestamp::EPOCH);
        self.key_changed.notify_waiters();
        Ok(())
    }
}
