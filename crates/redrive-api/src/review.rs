//! `/v1/review`: broker messages whose retries are exhausted, and the decisions about them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::client::{Paged, Result, requests};
use crate::events::Attempt;
use crate::open_enum::open_enum;
use crate::page::{Page, PageQuery};
use crate::time::Time;

open_enum! {
    /// Status of a retry task, as in the view `retry_queue`.
    pub enum TaskStatus {
        /// Waits for its backoff.
        Pending = "pending",
        /// Republished.
        Retried = "retried",
        /// Not republished.
        Failed = "failed",
    }
}

open_enum! {
    /// The way in which a message reached the scheduler.
    pub enum TaskSource {
        /// As a retry message of the contract.
        RetryMessage = "retry_message",
        /// By the dead-letter exchange of its queue.
        DeadLetter = "dead_letter",
        /// As bytes that cannot be decoded.
        Undecodable = "undecodable",
    }
}

open_enum! {
    /// Decision about a message in review.
    pub enum ReviewDecision {
        /// Republish it once more.
        Released = "released",
        /// Discard it.
        Discarded = "discarded",
    }
}

/// Selects messages in review; every given field must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ReviewFilter {
    /// Only messages of this original queue
    #[cfg_attr(feature = "schema", param(max_length = 255))]
    pub from: Option<String>,
    /// Only messages with this text in their last error or in the reason for the review
    #[cfg_attr(feature = "schema", param(max_length = 1000))]
    pub error: Option<String>,
    /// Only messages that moved to review at or after this time
    pub since: Option<Time>,
    /// Only messages that moved to review before this time
    pub until: Option<Time>,
}

/// A message in review, in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReviewSummary {
    /// Id of the task: the message at this retry count.
    pub id: Uuid,
    /// Id of the message.
    pub message_id: String,
    /// The message's original queue; empty if unknown.
    pub original_queue: String,
    /// Reason for the review.
    pub why: String,
    /// The message's last error.
    pub error_reason: String,
    /// Retries so far.
    pub retry_count: u32,
    /// Retries in total.
    pub max_retries: u32,
    /// The time at which the message's last failure arrived.
    pub received_at: Time,
    /// The time at which the message moved to review.
    pub reviewed_at: Time,
}

/// A failed message with its history.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReviewTask {
    /// Id of the task: the message at this retry count.
    pub id: Uuid,
    /// Status of the task.
    pub status: TaskStatus,
    /// Whether a decision is needed.
    pub in_review: bool,
    /// Id of the message.
    pub message_id: String,
    /// The message: `{"text": …}`, or `{"base64": …}` if it is no text.
    pub original_payload: MessagePayload,
    /// The message's original queue; empty if unknown.
    pub original_queue: String,
    /// The message's last error.
    pub error_reason: String,
    /// Retries so far.
    pub retry_count: u32,
    /// Retries in total.
    pub max_retries: u32,
    /// The time at which the message is republished, if it waits.
    pub due_at: Option<Time>,
    /// The way in which the message reached the scheduler.
    pub via: TaskSource,
    /// Problem that rules out a retry, whatever the count.
    pub problem: Option<Value>,
    /// The time at which the message's last failure arrived.
    pub received_at: Time,
    /// When its first failure arrived, as far as known.
    pub first_failed_at: Time,
    /// Properties of the message beside its body.
    pub properties: Value,
    /// The decision of a person.
    pub by_hand: Option<ManualDecision>,
    /// The stored task, if it cannot be read; the other fields are a guess then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<UnreadableTask>,
    /// Errors of republishing it.
    pub errors: Vec<String>,
    /// Recorded attempts at republishing it.
    pub attempts: Vec<Attempt>,
    /// Failures of the message up to this one, the oldest first.
    pub history: Vec<TaskHistory>,
}

/// Body of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum MessagePayload {
    /// UTF-8 text.
    Text(String),
    /// Other bytes, in base64.
    Base64(String),
}

/// A stored task that cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UnreadableTask {
    /// Error of reading it.
    pub why: String,
    /// The task as it is stored.
    pub payload: Value,
}

/// One failure of a message, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskHistory {
    /// Id of its task.
    pub task: Uuid,
    /// Retries before it.
    pub retry_count: u32,
    /// When the failure arrived.
    pub received_at: Time,
    /// The error.
    pub error_reason: String,
    /// When the message was due.
    pub due_at: Time,
    /// Status of the task.
    pub status: TaskStatus,
    /// When the message was republished.
    pub republished_at: Option<Time>,
    /// Attempts at republishing it.
    pub attempts: u32,
    /// Errors of these attempts.
    pub errors: Vec<String>,
    /// The decision of a person.
    pub by_hand: Option<ManualDecision>,
}

/// The decision of a person about a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ManualDecision {
    /// The decision.
    pub decision: ReviewDecision,
    /// Id of the token that decided, or `local` for a caller on the machine.
    pub by: String,
    /// The given reason.
    pub why: Option<String>,
    /// The time of the decision.
    pub at: Time,
}

/// Options for releasing a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseMessage {
    /// Another queue than the original one. Required where that is unknown.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 255))]
    pub queue: Option<String>,
}

/// Options for discarding a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiscardMessage {
    /// Reason, kept with the message.
    #[cfg_attr(feature = "schema", schema(max_length = 1000))]
    pub why: Option<String>,
}

/// Decision about a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DecidedMessage {
    /// Id of the task.
    pub id: Uuid,
    /// The decision.
    pub decision: ReviewDecision,
}

requests! {
    /// Requests on `/v1/review`.
    Review,
    /// Looks at messages in review and decides about them.
    review
}

impl Review<'_> {
    /// Returns one page of messages in review, newest first. With a filter, a page before the last one may have fewer entries than wanted.
    pub async fn list(&self, filter: &ReviewFilter, page: &PageQuery) -> Result<Page<ReviewSummary>> {
        self.0.page("/v1/review", filter, page).await
    }

    /// Iterates over all messages in review, newest first.
    pub fn all(&self, filter: &ReviewFilter) -> Paged<ReviewSummary> {
        self.0.all("/v1/review", filter)
    }

    /// Returns one message with its history.
    pub async fn get(&self, id: Uuid) -> Result<ReviewTask> {
        self.0.get(&format!("/v1/review/{id}"), &()).await
    }

    /// Republishes a message once more.
    pub async fn retry(&self, id: Uuid, how: &ReleaseMessage) -> Result<DecidedMessage> {
        self.0.post(&format!("/v1/review/{id}/retry"), how).await
    }

    /// Discards a message.
    pub async fn discard(&self, id: Uuid, how: &DiscardMessage) -> Result<DecidedMessage> {
        self.0.post(&format!("/v1/review/{id}/discard"), how).await
    }
}
