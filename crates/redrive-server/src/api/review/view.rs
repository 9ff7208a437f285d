//! Converts tasks of the retry scheduler into those of the API.

use redrive_api::review::{
    ManualDecision, MessagePayload, ReviewSummary, ReviewTask, TaskHistory, UnreadableTask,
};
use redrive_api::time::Time;
use redrive_scheduler::{ByHand, HistoryEntry, InReview, Payload, TaskDetail};

use crate::api::events::attempt;
use crate::api::name_of;

pub(super) fn summary(task: InReview) -> ReviewSummary {
    ReviewSummary {
        id: *task.id.as_uuid(),
        message_id: task.message_id,
        original_queue: task.original_queue,
        why: task.why,
        error_reason: task.error_reason,
        retry_count: task.retry_count,
        max_retries: task.max_retries,
        received_at: task.received_at.into(),
        reviewed_at: task.reviewed_at.into(),
    }
}

pub(super) fn task(detail: TaskDetail) -> ReviewTask {
    let TaskDetail { id, status, in_review, due_at, task, unreadable, errors, attempts, history } = detail;
    let value = |value| serde_json::to_value(value).unwrap_or_default();
    ReviewTask {
        id: *id.as_uuid(),
        status: status.into(),
        in_review,
        message_id: task.message_id,
        original_payload: match task.original_payload {
            Payload::Text(text) => MessagePayload::Text(text),
            Payload::Base64(bytes) => MessagePayload::Base64(bytes),
        },
        original_queue: task.original_queue,
        error_reason: task.error_reason,
        retry_count: task.retry_count,
        max_retries: task.max_retries,
        due_at: due_at.filter(|_| status == "pending").map(Time),
        via: name_of(&task.via).into(),
        problem: task.problem.map(|problem| serde_json::to_value(problem).unwrap_or_default()),
        received_at: task.received_at.into(),
        first_failed_at: task.first_failed_at.into(),
        properties: value(task.properties),
        by_hand: task.by_hand.map(decision),
        unreadable: unreadable.map(|stored| UnreadableTask { why: stored.why, payload: stored.payload }),
        errors,
        attempts: attempts.into_iter().map(attempt).collect(),
        history: history.into_iter().map(entry).collect(),
    }
}

fn entry(entry: HistoryEntry) -> TaskHistory {
    TaskHistory {
        task: *entry.task.as_uuid(),
        retry_count: entry.retry_count,
        received_at: entry.received_at.into(),
        error_reason: entry.error_reason,
        due_at: entry.due_at.into(),
        status: entry.status.into(),
        republished_at: entry.republished_at.map(Time),
        attempts: entry.attempts,
        errors: entry.errors,
        by_hand: entry.by_hand.map(decision),
    }
}

fn decision(by_hand: ByHand) -> ManualDecision {
    let ByHand { decision, by, why, at } = by_hand;
    ManualDecision { decision: name_of(&decision).into(), by, why, at: at.into() }
}
