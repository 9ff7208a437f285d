//! Recorded attempts across all events, in the order in which they were recorded: the history that `redrive audit` verifies and
//! `redrive policy advise` learns from.

use redrive_retry::Timestamp;

use crate::event::{EventId, EventStatus, EventType};
use crate::query::AttemptRow;

/// A recorded attempt, with the current state of the work that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAttempt {
    /// Number of the row; attempts that were recorded later have larger numbers.
    pub key: i64,
    /// The event.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: EventType,
    /// Whether the attempt belongs to a delivery to one subscription, or to the whole event.
    pub is_delivery: bool,
    /// State of that delivery or event.
    pub status: EventStatus,
    /// When that delivery or event last changed: when it was settled, if it is done or dead.
    pub updated_at: Timestamp,
    /// The attempt.
    pub attempt: AttemptRow,
}

/// Number of rows that `redrive audit` and `redrive policy advise` read with one statement.
pub const HISTORY_PAGE: u32 = 1000;

/// Selects the columns of a [`RecordedAttempt`]: key, id, type, whether it is a delivery, status, updated_at, and the columns of an
/// attempt without its detail.
macro_rules! recorded_attempts {
    ($prefix:literal, $after:literal, $limit:literal) => {
        concat!(
            "SELECT a.key, e.id, e.type, d.key IS NOT NULL, coalesce(d.status, e.status), coalesce(d.updated_at, e.updated_at),
             a.attempt, a.subscription, a.started_at, a.duration_ms, a.class, a.delay_ms, a.error, a.record, NULL
             FROM ", $prefix, "attempt a JOIN ", $prefix, "event e ON e.key = a.event_key
             LEFT JOIN ", $prefix, "delivery d ON d.event_key = a.event_key AND d.subscription = a.subscription
             WHERE a.key > ", $after, " ORDER BY a.key LIMIT ", $limit
        )
    };
}

/// Counts the work that succeeded without a failed attempt: whole events, or deliveries to single subscriptions.
macro_rules! succeeded_at_once {
    ($prefix:literal) => {
        concat!(
            "SELECT
             (SELECT count(*) FROM ", $prefix, "event e WHERE e.status = 3
               AND NOT EXISTS (SELECT 1 FROM ", $prefix, "delivery d WHERE d.event_key = e.key)
               AND NOT EXISTS (SELECT 1 FROM ", $prefix, "attempt a WHERE a.event_key = e.key AND a.class <> 'null'))
             + (SELECT count(*) FROM ", $prefix, "delivery d WHERE d.status = 3
               AND NOT EXISTS (SELECT 1 FROM ", $prefix, "attempt a
                 WHERE a.event_key = d.event_key AND a.subscription = d.subscription AND a.class <> 'null'))"
        )
    };
}
pub(crate) use {recorded_attempts, succeeded_at_once};
