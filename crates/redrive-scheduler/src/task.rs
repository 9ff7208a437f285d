//! The task: one failed message that waits to be tried again, as it stands in the store.

use redrive_retry::Timestamp;
use redrive_store::{EventId, EventType, SubscriptionName};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::payload::Payload;
use crate::properties::Properties;

/// The type of the events that tasks are.
pub const TASK: &str = "retry.task";

/// Who handles them.
pub const COURIER: &str = "courier";

/// So often a failure goes back because it may be another one, and is not counted; the next is counted.
pub(crate) const COPIES: u32 = 16;

/// Who handles them, as the store takes it.
pub(crate) fn courier() -> SubscriptionName {
    SubscriptionName::new(COURIER).expect("it is one")
}

/// The type of the events that tasks are, as the store takes it.
pub(crate) fn task_type() -> EventType {
    EventType::new(TASK).expect("it is one")
}

/// The event of a message's failure: the same message of the same queue with the same count is the same event, however often it
/// arrives. A message that went to two queues has one id, and fails in each for itself.
pub fn task_id(message_id: &str, queue: &str, retry_count: u32) -> EventId {
    copy_id(message_id, queue, retry_count, 0)
}

/// The event of a failure that may have been there before: see [`Task::copy`].
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
    let digest = digest.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    EventId::from_uuid(Uuid::new_v8(bytes))
}

/// One failed message, with all that is needed to bring it back, or to show it to a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The message's id, the same over all of its failures.
    pub message_id: String,
    /// The message.
    pub original_payload: Payload,
    /// Where it goes. Empty if that is not known.
    pub original_queue: String,
    /// Why it failed.
    pub error_reason: String,
    /// How often it was retried before.
    pub retry_count: u32,
    /// 0, unless it was delivered again after it had gone back: it goes back once more then, and is not counted as another failure.
    #[serde(default, skip_serializing_if = "is_first")]
    pub copy: u32,
    /// How often it may be.
    pub max_retries: u32,
    /// When it goes back, as Unix time in milliseconds.
    pub next_retry_at_ms: i64,
    /// How it came here.
    pub via: Via,
    /// Why it cannot be retried, whatever its count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// When it arrived.
    pub received_at: Timestamp,
    /// When its first failure arrived, as far as that is known.
    pub first_failed_at: Timestamp,
    /// What it carries beside its body.
    #[serde(default)]
    pub properties: Properties,
    /// What the delivery looked like: equal for one that is delivered again.
    pub fingerprint: String,
    /// Which process has stored it.
    #[serde(default)]
    pub stored_by: String,
    /// What a person has decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<ByHand>,
}

impl Task {
    /// Its event.
    pub fn id(&self) -> EventId {
        copy_id(&self.message_id, &self.original_queue, self.retry_count, self.copy)
    }

    /// Whether a person has decided that it is not to be tried any more.
    pub fn is_discarded(&self) -> bool {
        self.by_hand.as_ref().is_some_and(|by_hand| by_hand.decision == Decision::Discarded)
    }

    /// Why it goes to review instead of its queue; nothing if it is to be tried again.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_first(copy: &u32) -> bool {
    *copy == 0
}

/// How a message came here.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// As the contract says.
    RetryMessage,
    /// By the dead-letter exchange of its queue.
    DeadLetter,
    /// Nobody knows what it is.
    Undecodable,
}

/// Why a message cannot be retried, whatever its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What kind of problem.
    pub reason: ReviewReason,
    /// In words.
    pub why: String,
}

/// Why a message is shown to a person.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewReason {
    /// It was retried as often as it may be.
    RetriesExhausted,
    /// Nobody knows what it is.
    Undecodable,
    /// Its queue does not exist.
    Unroutable,
    /// It is larger than what can be stored.
    TooLarge,
    /// The broker will not have it.
    Refused,
}

impl ReviewReason {
    /// The name in messages and everywhere else.
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

/// What a person has decided about a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByHand {
    /// What.
    pub decision: Decision,
    /// Who.
    pub by: String,
    /// Why, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// What is to become of a task in review.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Once more to its queue.
    Released,
    /// No more.
    Discarded,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned: another id for the same failure would be a second task after an update.
    #[test]
    fn the_same_failure_is_the_same_event() {
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
