//! What has become of a message over all of its failures.

use redrive_retry::Timestamp;
use redrive_store::{EventDetail, EventId, EventStatus, Store, StoreError};
use serde::Serialize;

use crate::standing::Standing;
use crate::task::{ByHand, COPIES, Task, copy_id};

/// Of so many failures, the newest, the history is told.
const LONGEST: u32 = 100;

/// One failure of a message, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryEntry {
    /// The task.
    pub task: EventId,
    /// How often the message had been retried before.
    pub retry_count: u32,
    /// When the failure arrived.
    pub received_at: Timestamp,
    /// Why it had failed.
    pub error_reason: String,
    /// When it was to go back.
    pub due_at: Timestamp,
    /// `pending`, `retried` or `failed`.
    pub status: &'static str,
    /// When it was in its queue again.
    pub republished_at: Option<Timestamp>,
    /// How many attempts that took.
    pub attempts: u32,
    /// What went wrong with them.
    pub errors: Vec<String>,
    /// What a person has decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<ByHand>,
}

/// All failures of a message up to this count that are still known, the oldest first.
pub(crate) async fn history(
    store: &dyn Store,
    message_id: &str,
    queue: &str,
    retry_count: u32,
) -> Result<Vec<HistoryEntry>, StoreError> {
    let mut history = Vec::new();
    for count in retry_count.saturating_sub(LONGEST - 1)..=retry_count {
        for copy in 0..=COPIES {
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
    // What somebody has made something else of has no history to tell.
    let task: Task = serde_json::from_str(event.payload.get()).ok()?;
    let standing = Standing::of(&event);
    let is_done = standing.status == EventStatus::Done;
    let is_discarded = task.is_discarded();
    Some(HistoryEntry {
        task: event.id,
        retry_count: task.retry_count,
        received_at: task.received_at,
        error_reason: task.error_reason,
        due_at: Timestamp::from_millis(task.next_retry_at_ms),
        status: status(standing.status, is_discarded),
        republished_at: (is_done && !is_discarded).then_some(event.updated_at),
        attempts: standing.failed.saturating_add(u32::from(!standing.is_waiting())),
        errors: standing.errors,
        by_hand: task.by_hand,
    })
}

/// As the specified table `retry_queue` names it.
pub(crate) fn status(status: EventStatus, is_discarded: bool) -> &'static str {
    match status {
        EventStatus::Pending | EventStatus::Processing => "pending",
        EventStatus::Done if !is_discarded => "retried",
        EventStatus::Done | EventStatus::Dlq => "failed",
    }
}
