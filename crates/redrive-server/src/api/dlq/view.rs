//! Converts stored dead letters into those of the API.

use redrive::dlq::{DeadLetter, DlqGroup};
use redrive_api::dlq::{self, DeadGroup, DeadSummary};

use crate::api::events::attempt;

pub(crate) fn summary<P>(dead: DeadLetter<P>) -> DeadSummary {
    DeadSummary {
        id: *dead.id.as_uuid(),
        event_type: dead.event_type.to_string(),
        subscription: dead.subscription.map(|name| name.to_string()),
        metadata: dead.metadata,
        retry_count: dead.retry_count,
        created_at: dead.created_at.into(),
        dlq_at: dead.dlq_at.into(),
        reason: dead.reason,
        errors: dead.errors,
    }
}

pub(crate) fn dead_letter(dead: DeadLetter) -> dlq::DeadLetter {
    dlq::DeadLetter {
        id: *dead.id.as_uuid(),
        event_type: dead.event_type.to_string(),
        subscription: dead.subscription.map(|name| name.to_string()),
        metadata: dead.metadata,
        retry_count: dead.retry_count,
        created_at: dead.created_at.into(),
        dlq_at: dead.dlq_at.into(),
        reason: dead.reason,
        errors: dead.errors,
        payload: dead.payload,
        attempts: dead.attempts.into_iter().map(attempt).collect(),
    }
}

pub(crate) fn group(group: DlqGroup) -> DeadGroup {
    DeadGroup {
        fingerprint: group.fingerprint,
        count: group.count,
        example: group.example,
        first_at: group.first_at.into(),
        last_at: group.last_at.into(),
    }
}
