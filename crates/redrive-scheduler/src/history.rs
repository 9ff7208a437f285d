//! History of a message: all of its failures and their outcomes.

use redrive_retry::Timestamp;
use redrive_store::{EventDetail, EventId, EventStatus, Store, StoreError};
use serde::Serialize;

use crate::task::{ByHand, MAX_COPIES, Task, copy_id, is_task};
use crate::task_state::TaskState;

/// Maximum number of retry counts in a history; the newest are kept.
const MAX_COUNTS: u32 = 100;

/// One failure of a message and its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryEntry {
    /// Id of the task.
    pub task: EventId,
    /// Number of retries before this failure.
    pub retry_count: u32,
    /// Time of arrival.
    pub received_at: Timestamp,
    /// Reason of the failure.
    pub error_reason: String,
    /// Time at which it was due.
    pub due_at: Timestamp,
    /// `pending`, `retried` or `failed`.
    pub status: &'static str,
    /// Time at which the broker confirmed it.
    pub republished_at: Option<Timestamp>,
    /// Number of attempts to publish it.
    pub attempts: u32,
    /// Errors of these attempts.
    pub errors: Vec<String>,
    /// Decision taken in review.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<ByHand>,
}

/// All stored failures of a message up to this retry count, oldest first.
pub(crate) async fn history(
    store: &dyn Store,
    message_id: &str,
    queue: &str,
    retry_count: u32,
) -> Result<Vec<HistoryEntry>, StoreError> {
    let mut history = Vec::new();
    for count in retry_count.saturating_sub(MAX_COUNTS - 1)..=retry_count {
        for copy in 0..=MAX_COPIES {
            match store.event(copy_id(message_id, queue, count, copy)).await {
                Ok(event) => history.extend(entry(event)),
                Err(StoreError::NoSuchEvent { .. }) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(history)
}

fn entry(event: EventDetail) -> Option<HistoryEntry> {
    // An event of another program, or a payload that is not a task, is left out.
    if !is_task(&event) {
        return None;
    }
    let task: Task = serde_json::from_str(event.payload.get()).ok()?;
    let state = TaskState::of(&event);
    let is_done = state.status == EventStatus::Done;
    let is_discarded = task.is_discarded();
    Some(HistoryEntry {
        task: event.id,
        retry_count: task.retry_count,
        received_at: task.received_at,
        error_reason: task.error_reason,
        due_at: Timestamp::from_millis(task.next_retry_at_ms),
        status: status(state.status, is_discarded),
        republished_at: (is_done && !is_discarded).then_some(event.updated_at),
        attempts: state.failed.saturating_add(u32::from(!state.is_waiting())),
        errors: state.errors,
        by_hand: task.by_hand,
    })
}

/// Status as the specified table `retry_queue` names it.
pub(crate) fn status(status: EventStatus, is_discarded: bool) -> &'static str {
    match status {
        EventStatus::Pending | EventStatus::Processing => "pending",
        EventStatus::Done if !is_discarded => "retried",
        EventStatus::Done | EventStatus::Dlq => "failed",
    }
}
