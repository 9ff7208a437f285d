//! Dead letters as JSON lines, with the names and the times of the HTTP API (`DeadLetter` of `redrive-api`).

use redrive_retry::Timestamp;
use redrive_store::{AttemptRow, DeadLetter, EventId, Metadata, RawJson};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

#[derive(Serialize)]
struct Line<'a> {
    id: EventId,
    #[serde(rename = "type")]
    event_type: &'a str,
    subscription: Option<&'a str>,
    metadata: &'a Metadata,
    retry_count: u32,
    #[serde(serialize_with = "rfc3339")]
    created_at: Timestamp,
    #[serde(serialize_with = "rfc3339")]
    dlq_at: Timestamp,
    reason: &'a str,
    errors: &'a [String],
    payload: &'a RawValue,
    attempts: Vec<Attempt<'a>>,
}

#[derive(Serialize)]
struct Attempt<'a> {
    attempt: u32,
    subscription: &'a str,
    #[serde(serialize_with = "rfc3339")]
    started_at: Timestamp,
    duration_ms: u64,
    class: Option<String>,
    delay_ms: u64,
    error: Option<&'a str>,
    decision: Option<&'a RawJson>,
    /// The bus knows no webhook endpoints: their requests stay in `detail`.
    request: Option<()>,
    detail: Option<&'a RawJson>,
}

impl<'a> From<&'a AttemptRow> for Attempt<'a> {
    fn from(row: &'a AttemptRow) -> Self {
        Attempt {
            attempt: row.attempt,
            subscription: &row.subscription,
            started_at: row.started_at,
            duration_ms: row.duration_ms,
            class: row.class.map(|class| class.to_string()),
            delay_ms: row.delay_ms,
            error: Some(row.error.as_str()).filter(|error| !error.is_empty()),
            decision: row.record.as_deref(),
            request: None,
            detail: row.detail.as_deref(),
        }
    }
}

fn rfc3339<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

/// A dead letter with its attempts as one line of JSON, without the line end.
pub(crate) fn line(dead: &DeadLetter) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Line {
        id: dead.id,
        event_type: dead.event_type.as_str(),
        subscription: dead.subscription.as_ref().map(|name| name.as_str()),
        metadata: &dead.metadata,
        retry_count: dead.retry_count,
        created_at: dead.created_at,
        dlq_at: dead.dlq_at,
        reason: &dead.reason,
        errors: &dead.errors,
        payload: &dead.payload,
        attempts: dead.attempts.iter().map(Attempt::from).collect(),
    })
}
