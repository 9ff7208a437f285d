//! Dead events as the API shows them.

use redrive::{DeadLetter, DlqGroup, EventId, EventType, Metadata, SubscriptionName};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::api::events::AttemptView;
use crate::api::time::Instant;

/// A dead event in a list: without its payload and its attempts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadSummary {
    /// The event.
    #[schema(value_type = uuid::Uuid)]
    id: EventId,
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    event_type: EventType,
    /// Who gave up, if each receiver is tracked on its own.
    #[schema(value_type = Option<String>)]
    subscription: Option<SubscriptionName>,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    metadata: Metadata,
    retry_count: u32,
    /// When it was published.
    created_at: Instant,
    /// When it was given up.
    dlq_at: Instant,
    /// Why.
    #[schema(example = "attempts_exhausted")]
    reason: String,
    /// Every error of every attempt.
    errors: Vec<String>,
}

/// A dead event, whole.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadView {
    #[serde(flatten)]
    summary: DeadSummary,
    /// As it was published, or as it was edited last.
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    /// Every failed attempt.
    attempts: Vec<AttemptView>,
}

/// What was given up of one event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadEntries {
    /// One entry, or one for each receiver that is tracked on its own.
    pub(crate) data: Vec<DeadView>,
}

/// Dead events with the same kind of error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupView {
    /// What they have in common.
    fingerprint: String,
    count: u64,
    /// One error as an example.
    example: String,
    /// When the first one died.
    first_at: Instant,
    /// When the last one died.
    last_at: Instant,
}

/// Groups, the largest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Groups {
    pub(crate) data: Vec<GroupView>,
    /// Whether there are smaller ones that are not shown.
    pub(crate) has_more: bool,
}

impl<P> From<DeadLetter<P>> for DeadSummary {
    fn from(dead: DeadLetter<P>) -> Self {
        DeadSummary {
            id: dead.id,
            event_type: dead.event_type,
            subscription: dead.subscription,
            metadata: dead.metadata,
            retry_count: dead.retry_count,
            created_at: dead.created_at.into(),
            dlq_at: dead.dlq_at.into(),
            reason: dead.reason,
            errors: dead.errors,
        }
    }
}

impl From<DeadLetter> for DeadView {
    fn from(mut dead: DeadLetter) -> Self {
        let payload = std::mem::replace(&mut dead.payload, RawValue::NULL.to_owned());
        let attempts = dead.attempts.drain(..).map(AttemptView::from).collect();
        DeadView { summary: dead.into(), payload, attempts }
    }
}

impl From<DlqGroup> for GroupView {
    fn from(group: DlqGroup) -> Self {
        GroupView {
            fingerprint: group.fingerprint,
            count: group.count,
            example: group.example,
            first_at: group.first_at.into(),
            last_at: group.last_at.into(),
        }
    }
}
