//! `/v1/dlq`: the dead-letter queue.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::client::{Paged, Result, requests};
use crate::events::Attempt;
use crate::open_enum::open_enum;
use crate::page::{List, Page, PageQuery};
use crate::time::Time;

open_enum! {
    /// Reason for which an event was dead-lettered, as a filter.
    pub enum DeadReason {
        /// The error said that a retry is of no use.
        Permanent = "permanent",
        /// All attempts failed.
        AttemptsExhausted = "attempts_exhausted",
        /// The deadline passed.
        DeadlineExceeded = "deadline_exceeded",
        /// The retry budget was spent.
        BudgetSpent = "budget_spent",
        /// The wait before the next attempt was too long.
        WaitTooLong = "wait_too_long",
        /// No subscription takes it, and none is on record.
        NoSubscription = "no_subscription",
    }
}

/// Selects dead letters; every given field must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams, utoipa::ToSchema), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct DlqFilter {
    /// Only events of this type
    #[serde(rename = "type")]
    #[cfg_attr(
        feature = "schema",
        param(min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$")
    )]
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$")
    )]
    pub event_type: Option<String>,
    /// Only events published at or after this time
    pub since: Option<Time>,
    /// Only events published before this time
    pub until: Option<Time>,
    /// Only events with this reason
    #[cfg_attr(feature = "schema", param(inline), schema(inline))]
    pub reason: Option<DeadReason>,
    /// Only events with this text in one of their errors
    #[cfg_attr(feature = "schema", param(max_length = 1000), schema(max_length = 1000))]
    pub text: Option<String>,
    /// Only events with this error fingerprint, as `/v1/dlq/groups` shows it; with `subscription` one group
    #[cfg_attr(feature = "schema", param(max_length = 1000), schema(max_length = 1000))]
    pub fingerprint: Option<String>,
    /// Only dead letters of this endpoint or subscription, and of events that died in its handler
    #[cfg_attr(
        feature = "schema",
        param(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")
    )]
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")
    )]
    pub subscription: Option<String>,
}

/// A dead letter in a list: without payload and attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeadSummary {
    /// Id of the event.
    pub id: Uuid,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The subscription whose delivery died, if deliveries are tracked one by one.
    pub subscription: Option<String>,
    /// Additional texts by name.
    pub metadata: BTreeMap<String, String>,
    /// Number of failed attempts.
    pub retry_count: u32,
    /// The time at which the event was published.
    pub created_at: Time,
    /// The time at which the event or delivery was dead-lettered.
    pub dlq_at: Time,
    /// Reason for which it was dead-lettered.
    #[cfg_attr(feature = "schema", schema(example = "attempts_exhausted"))]
    pub reason: String,
    /// Every error of every attempt.
    pub errors: Vec<String>,
}

/// A dead letter with payload and attempts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeadLetter {
    /// Id of the event.
    pub id: Uuid,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The subscription whose delivery died, if deliveries are tracked one by one.
    pub subscription: Option<String>,
    /// Additional texts by name.
    pub metadata: BTreeMap<String, String>,
    /// Number of failed attempts.
    pub retry_count: u32,
    /// The time at which the event was published.
    pub created_at: Time,
    /// The time at which the event or delivery was dead-lettered.
    pub dlq_at: Time,
    /// Reason for which it was dead-lettered.
    #[cfg_attr(feature = "schema", schema(example = "attempts_exhausted"))]
    pub reason: String,
    /// Every error of every attempt.
    pub errors: Vec<String>,
    /// The payload as it was published or last edited.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub payload: Box<RawValue>,
    /// Recorded attempts.
    pub attempts: Vec<Attempt>,
}

/// Dead letters with the same target and error fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeadGroup {
    /// The endpoint or subscription that failed, for the filter `subscription`.
    pub target: Option<String>,
    /// The error without its variable parts; an HTTP status is kept.
    pub fingerprint: String,
    /// Number of dead letters.
    pub count: u64,
    /// Types of the events, at most 20.
    pub types: Vec<String>,
    /// One of the errors.
    pub example: String,
    /// Id of the event with this error.
    pub example_id: Uuid,
    /// When the first one died.
    pub first_at: Time,
    /// When the last one died.
    pub last_at: Time,
}

/// Groups of dead letters, the largest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeadGroups {
    /// The groups.
    pub data: Vec<DeadGroup>,
    /// Whether smaller groups are left out.
    pub has_more: bool,
}

/// Options for redriving one event.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryDead {
    /// Another payload; the history keeps the original.
    #[cfg_attr(feature = "schema", schema(value_type = Value, required = false))]
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
}

/// Reads `null` as a payload, and not as a missing one.
fn given<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(d).map(Some)
}

/// An event that was redriven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RetriedDead {
    /// Id of the event.
    pub id: Uuid,
}

/// Selects the events to redrive, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryDeadMany {
    /// The events; `{}` selects all.
    pub filter: DlqFilter,
    /// Count the events and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Events per second. Due times are assigned at once, so the rate holds across a restart.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
    pub rate: Option<u32>,
    /// At most this many events with this request.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 10_000, default = 1000))]
    pub limit: Option<u32>,
    /// Continue after this cursor: the `next` of the previous response.
    #[cfg_attr(feature = "schema", schema(max_length = 64))]
    pub after: Option<String>,
}

/// Result of redriving by filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RetryReport {
    /// Events that the filter matched.
    pub matched: u64,
    /// Events that were redriven; 0 for a dry run.
    pub retried: u64,
    /// Pass it as `after` to continue; `null` at the end.
    pub next: Option<String>,
}

/// Selects the dead letters to delete.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct PurgeQuery {
    /// Minimum age since publishing, such as `7d`
    #[cfg_attr(feature = "schema", param(pattern = "^([0-9]{1,5}(s|m|h|d)|[0-9]{1,12}ms)$", example = "7d"))]
    pub older_than: String,
}

/// Result of a purge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Purged {
    /// Number of deleted dead letters.
    pub purged: u64,
}

requests! {
    /// Requests on `/v1/dlq`.
    Dlq,
    /// Looks at dead letters, redrives and deletes them.
    dlq
}

impl Dlq<'_> {
    /// Returns one page of dead letters, newest first.
    pub async fn list(&self, filter: &DlqFilter, page: &PageQuery) -> Result<Page<DeadSummary>> {
        self.0.page("/v1/dlq", filter, page).await
    }

    /// Iterates over all dead letters, newest first.
    pub fn all(&self, filter: &DlqFilter) -> Paged<DeadSummary> {
        self.0.all("/v1/dlq", filter)
    }

    /// Returns the dead letters of one event: one, or one for each subscription that is tracked on its own.
    pub async fn get(&self, id: Uuid) -> Result<List<DeadLetter>> {
        self.0.get(&format!("/v1/dlq/{id}"), &()).await
    }

    /// Groups dead letters by error fingerprint, largest group first.
    pub async fn groups(&self, filter: &DlqFilter) -> Result<DeadGroups> {
        self.0.get("/v1/dlq/groups", filter).await
    }

    /// Redrives one event.
    pub async fn retry(&self, id: Uuid, how: &RetryDead) -> Result<RetriedDead> {
        self.0.post(&format!("/v1/dlq/{id}/retry"), how).await
    }

    /// Redrives the events that a filter matches, at most `limit` with one request.
    pub async fn retry_many(&self, how: &RetryDeadMany) -> Result<RetryReport> {
        self.0.post("/v1/dlq/retry", how).await
    }

    /// Deletes dead letters of events that were published at least this long ago.
    pub async fn purge(&self, older_than: Duration) -> Result<Purged> {
        let query = PurgeQuery { older_than: format!("{}ms", older_than.as_millis()) };
        self.0.delete("/v1/dlq", &query).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_guide_explains_every_reason() {
        let page = include_str!("../../../docs/guide/dead-letter-queue.md");
        let (_, reasons) = page.split_once("\n## Reasons\n").unwrap();
        let rows = reasons.lines().filter_map(|row| row.strip_prefix("| `")?.split_once('`'));
        let explained: BTreeSet<_> = rows.map(|(name, _)| name).filter(|name| *name != "reason").collect();
        assert_eq!(explained, DeadReason::KNOWN.iter().copied().collect());
    }
}
