//! Failed messages as the API shows them.

use redrive::EventId;
use redrive_scheduler::{
    ByHand, Decision, HistoryEntry, InReview, Payload, Problem, Properties, TaskDetail, Unreadable, Via,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::events::AttemptView;
use crate::api::time::Instant;

/// A message that waits for a person, in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InReviewView {
    /// The task: the message at this retry count.
    #[schema(value_type = uuid::Uuid)]
    id: EventId,
    message_id: String,
    /// Where it belongs; empty if that is not known.
    original_queue: String,
    /// Why it is here.
    why: String,
    /// Why it failed last.
    error_reason: String,
    retry_count: u32,
    max_retries: u32,
    /// When its last failure arrived.
    received_at: Instant,
    /// Since when it is here.
    reviewed_at: Instant,
}

/// A message with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskView {
    /// The task: the message at this retry count.
    #[schema(value_type = uuid::Uuid)]
    id: EventId,
    /// `pending`, `retried` or `failed`, as in the view `retry_queue`.
    #[schema(example = "failed")]
    status: &'static str,
    /// Whether it waits for a person.
    in_review: bool,
    message_id: String,
    /// The message: `{"text": …}`, or `{"base64": …}` if it is no text.
    #[schema(value_type = Value)]
    original_payload: Payload,
    /// Where it belongs; empty if that is not known.
    original_queue: String,
    /// Why it failed last.
    error_reason: String,
    retry_count: u32,
    max_retries: u32,
    /// When it goes back, if it waits.
    due_at: Option<Instant>,
    /// `retry_message`, `dead_letter` or `undecodable`.
    #[schema(value_type = String, example = "retry_message")]
    via: Via,
    /// Why it cannot be retried, whatever its count.
    #[schema(value_type = Value)]
    problem: Option<Problem>,
    received_at: Instant,
    /// When its first failure arrived, as far as that is known.
    first_failed_at: Instant,
    /// What it carries beside its body.
    #[schema(value_type = Value)]
    properties: Properties,
    /// What a person has decided.
    by_hand: Option<ByHandView>,
    /// If what is stored cannot be read as a task: why, and what it is. The rest is a guess then.
    #[schema(value_type = Value)]
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<Unreadable>,
    /// What went wrong when it was brought to the broker.
    errors: Vec<String>,
    /// The attempts at that of which something is known.
    attempts: Vec<AttemptView>,
    /// All failures of the message up to this one, the oldest first.
    history: Vec<HistoryView>,
}

/// One failure of a message, and what came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryView {
    /// The task of it.
    #[schema(value_type = uuid::Uuid)]
    task: EventId,
    /// How often the message had been retried before.
    retry_count: u32,
    /// When the failure arrived.
    received_at: Instant,
    /// Why it had failed.
    error_reason: String,
    /// When it was to go back.
    due_at: Instant,
    /// `pending`, `retried` or `failed`.
    #[schema(example = "retried")]
    status: &'static str,
    /// When it was in its queue again.
    republished_at: Option<Instant>,
    /// How many attempts that took.
    attempts: u32,
    /// What went wrong with them.
    errors: Vec<String>,
    /// What a person has decided.
    by_hand: Option<ByHandView>,
}

/// What a person has decided about a message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ByHandView {
    /// `released` or `discarded`.
    #[schema(value_type = String, example = "released")]
    decision: Decision,
    /// Who: a token, or `local` for somebody on the machine.
    by: String,
    /// Why, if that was said.
    why: Option<String>,
    at: Instant,
}

impl From<InReview> for InReviewView {
    fn from(task: InReview) -> Self {
        InReviewView {
            id: task.id,
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
}

impl From<TaskDetail> for TaskView {
    fn from(detail: TaskDetail) -> Self {
        let TaskDetail { id, status, in_review, due_at, task, unreadable, errors, attempts, history } =
            detail;
        TaskView {
            id,
            status,
            in_review,
            message_id: task.message_id,
            original_payload: task.original_payload,
            original_queue: task.original_queue,
            error_reason: task.error_reason,
            retry_count: task.retry_count,
            max_retries: task.max_retries,
            due_at: due_at.filter(|_| status == "pending").map(Instant),
            via: task.via,
            problem: task.problem,
            received_at: task.received_at.into(),
            first_failed_at: task.first_failed_at.into(),
            properties: task.properties,
            by_hand: task.by_hand.map(ByHandView::from),
            unreadable,
            errors,
            attempts: attempts.into_iter().map(AttemptView::from).collect(),
            history: history.into_iter().map(HistoryView::from).collect(),
        }
    }
}

impl From<HistoryEntry> for HistoryView {
    fn from(entry: HistoryEntry) -> Self {
        HistoryView {
            task: entry.task,
            retry_count: entry.retry_count,
            received_at: entry.received_at.into(),
            error_reason: entry.error_reason,
            due_at: entry.due_at.into(),
            status: entry.status,
            republished_at: entry.republished_at.map(Instant),
            attempts: entry.attempts,
            errors: entry.errors,
            by_hand: entry.by_hand.map(ByHandView::from),
        }
    }
}

impl From<ByHand> for ByHandView {
    fn from(by_hand: ByHand) -> Self {
        let ByHand { decision, by, why, at } = by_hand;
        ByHandView { decision, by, why, at: at.into() }
    }
}
