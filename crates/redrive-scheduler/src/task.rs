//! A task: one failure of a broker message, as stored in the payload of its event.

use redrive_retry::Timestamp;
use redrive_store::{EventDetail, EventId, EventType, SubscriptionName};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::payload::Payload;
use crate::properties::Properties;

/// Event type of tasks.
pub const TASK: &str = "retry.task";

/// Name of the subscription that handles tasks.
pub const REPUBLISHER: &str = "republisher";

/// Maximum number of copies: redeliveries that are republished without being counted, because they may be another failure.
pub(crate) const MAX_COPIES: u32 = 16;

pub(crate) fn republisher() -> SubscriptionName {
    SubscriptionName::new(REPUBLISHER).expect("the constant is a valid subscription name")
}

pub(crate) fn task_type() -> EventType {
    EventType::new(TASK).expect("the constant is a valid event type")
}

/// Whether an event is a task. Only the scheduler publishes this type; the id alone proves nothing.
pub(crate) fn is_task(event: &EventDetail) -> bool {
    event.event_type.as_str() == TASK
}

/// Event id of a failure, derived from message id, queue and retry count: a redelivery has the same id.
///
/// The queue is part of it because a message that went to two queues has one message id and fails in each separately.
pub fn task_id(message_id: &str, queue: &str, retry_count: u32) -> EventId {
    copy_id(message_id, queue, retry_count, 0)
}

/// Event id of a copy; see [`Task::copy`].
pub(crate) fn copy_id(message_id: &str, queue: &str, retry_count: u32, copy: u32) -> EventId {
    let mut digest = Sha256::new();
    digest.update(b"redrive.scheduler.task/1");
    for part in [message_id, queue] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    digest.update(retry_count.to_le_bytes());
    if copy > 0 {
        digest.update(copy.to_le_bytes());
    }
    EventId::from_uuid(derived_uuid(digest))
}

/// The first 16 bytes of a digest as a UUID.
pub(crate) fn derived_uuid(digest: Sha256) -> Uuid {
    let digest: [u8; 32] = digest.finalize().into();
    Uuid::new_v8(*digest.first_chunk().expect("32 bytes begin with 16"))
}

/// One failed message, with all that is needed to republish it or to review it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Id of the message, the same over all of its failures.
    pub message_id: String,
    /// Body of the message.
    pub original_payload: Payload,
    /// Queue to republish to; empty if unknown.
    pub original_queue: String,
    /// Reason of the failure.
    pub error_reason: String,
    /// Number of retries before this failure.
    pub retry_count: u32,
    /// Number of this copy; 0 for the first. A redelivery after the task was republished may be a new failure, so it is stored as a copy:
    /// republished once more, but not counted as a retry.
    #[serde(default, skip_serializing_if = "is_first")]
    pub copy: u32,
    /// Maximum number of retries.
    pub max_retries: u32,
    /// Time to republish it, as Unix time in milliseconds.
    pub next_retry_at_ms: i64,
    /// Form in which it arrived.
    pub via: Via,
    /// Problem that sends it to review regardless of its retry count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Time of arrival.
    pub received_at: Timestamp,
    /// Time of its first known failure.
    pub first_failed_at: Timestamp,
    /// AMQP properties and headers.
    #[serde(default)]
    pub properties: Properties,
    /// Hash of body and properties, equal for a redelivery.
    pub fingerprint: String,
    /// Id of the process that stored it.
    #[serde(default)]
    pub stored_by: String,
    /// Decision taken in review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<ByHand>,
}

impl Task {
    /// A task without content, received and due at this time.
    pub(crate) fn empty(at: Timestamp) -> Self {
        Task {
            message_id: String::new(),
            original_payload: Payload::default(),
            original_queue: String::new(),
            error_reason: String::new(),
            retry_count: 0,
            copy: 0,
            max_retries: 0,
            next_retry_at_ms: at.as_millis(),
            via: Via::Undecodable,
            problem: None,
            received_at: at,
            first_failed_at: at,
            properties: Properties::default(),
            fingerprint: String::new(),
            stored_by: String::new(),
            by_hand: None,
        }
    }

    /// Id of its event.
    pub fn id(&self) -> EventId {
        copy_id(&self.message_id, &self.original_queue, self.retry_count, self.copy)
    }

    /// Whether it was discarded in review.
    pub fn is_discarded(&self) -> bool {
        self.by_hand.as_ref().is_some_and(|by_hand| by_hand.decision == Decision::Discarded)
    }

    /// Reason to send it to review; `None` if it is to be republished.
    pub fn for_review(&self) -> Option<ReviewReason> {
        if self.by_hand.as_ref().is_some_and(|by_hand| by_hand.decision == Decision::Released) {
            return None;
        }
        match &self.problem {
            Some(problem) => Some(problem.reason),
            None if self.retry_count >= self.max_retries => Some(ReviewReason::RetriesExhausted),
            None => None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first(copy: &u32) -> bool {
    *copy == 0
}

/// Form in which a failed message arrived.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// As a `RetryMessage`.
    RetryMessage,
    /// Dead-lettered by the broker from its queue.
    DeadLetter,
    /// Neither; it goes to review.
    Undecodable,
}

impl Via {
    /// Name of the form in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Via::RetryMessage => "retry_message",
            Via::DeadLetter => "dead_letter",
            Via::Undecodable => "undecodable",
        }
    }
}

/// Problem that sends a message to review regardless of its retry count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Kind of problem.
    pub reason: ReviewReason,
    /// Explanation.
    pub why: String,
}

/// Reason why a message is in review.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewReason {
    /// All retries were used.
    RetriesExhausted,
    /// The message cannot be decoded.
    Undecodable,
    /// The message's original queue does not exist.
    Unroutable,
    /// The message is too large to store.
    TooLarge,
    /// The broker refuses it.
    Refused,
}

impl ReviewReason {
    /// Name of the reason in messages, JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ReviewReason::RetriesExhausted => "retries_exhausted",
            ReviewReason::Undecodable => "undecodable",
            ReviewReason::Unroutable => "unroutable",
            ReviewReason::TooLarge => "too_large",
            ReviewReason::Refused => "refused",
        }
    }
}

/// Decision taken about a task in review.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByHand {
    /// The decision.
    pub decision: Decision,
    /// User or token that decided.
    pub by: String,
    /// Stated reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Time of the decision.
    pub at: Timestamp,
}

/// Outcome of a review.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Republish it to its queue.
    Released,
    /// Do not retry it.
    Discarded,
}

impl Decision {
    /// Name of the decision in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Released => "released",
            Decision::Discarded => "discarded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned: a changed derivation would store redeliveries twice after an upgrade.
    #[test]
    fn the_event_id_of_a_failure_is_stable() {
        assert_eq!(task_id("m-1", "q", 0), task_id("m-1", "q", 0));
        assert_ne!(task_id("m-1", "q", 0), task_id("m-1", "q", 1));
        assert_ne!(task_id("m-1", "q", 0), task_id("m-2", "q", 0));
        assert_ne!(task_id("m-1", "q", 0), task_id("m-1", "r", 0));
        assert_ne!(task_id("m-1", "q", 0), task_id("m-1q", "", 0));
        assert_ne!(copy_id("m-1", "q", 0, 1), task_id("m-1", "q", 0));
        assert_ne!(copy_id("m-1", "q", 0, 1), copy_id("m-1", "q", 0, 2));
        assert_eq!(task_id("m-1", "q", 0).to_string(), "af4e4b02-b530-8e3d-93a7-4b453e382cb0");
    }
}
