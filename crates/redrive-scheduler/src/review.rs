//! Manual review: lists, shows, releases and discards tasks. Needs the store alone, so it works beside a running scheduler.

use std::sync::Arc;

use redrive::dlq::DlqInspector;
use redrive_retry::Timestamp;
use redrive_store::{
    AttemptRow, DeadLetter, DlqCursor, DlqFilter, DlqPage, EventDetail, EventId, EventStatus, Store,
    StoreError,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::SchedulerError;
use crate::history::{HistoryEntry, history, status};
use crate::payload::Payload;
use crate::properties::Properties;
use crate::retry_message::check_name;
use crate::task::{ByHand, Decision, Task, is_task, task_type};
use crate::task_state::TaskState;

/// The tasks in manual review.
#[derive(Clone, Debug)]
pub struct Review {
    store: Arc<dyn Store>,
    inspector: DlqInspector,
}

/// Selects tasks in review. Every field that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewFilter {
    /// Original queue.
    pub queue: Option<String>,
    /// Text that the last error or the reason of the review contains.
    pub error: Option<String>,
    /// In review since this time or later.
    pub since: Option<Timestamp>,
    /// In review since before this time.
    pub until: Option<Timestamp>,
}

impl ReviewFilter {
    fn matches(&self, task: &InReview) -> bool {
        let has_error = |text: &String| task.error_reason.contains(text) || task.why.contains(text);
        self.queue.as_ref().is_none_or(|queue| task.original_queue == *queue)
            && self.error.as_ref().is_none_or(has_error)
            && self.since.is_none_or(|since| task.reviewed_at >= since)
            && self.until.is_none_or(|until| task.reviewed_at < until)
    }
}

/// A part of the list of tasks in review.
#[derive(Clone, Debug, Default)]
pub struct ReviewPage {
    /// The tasks, newest first.
    pub tasks: Vec<InReview>,
    /// Cursor of the next page; `None` on the last one.
    pub next: Option<DlqCursor>,
}

/// Tasks that are read at once to find those that match a filter, and reads for one page.
const FILTER_CHUNK: u32 = 200;
const MAX_FILTER_READS: u32 = 50;

/// Summary of a task in review.
#[derive(Clone, Debug, Serialize)]
pub struct InReview {
    /// Id of the task.
    pub id: EventId,
    /// Id of the message.
    pub message_id: String,
    /// Original queue; empty if unknown.
    pub original_queue: String,
    /// Reason of the review.
    pub why: String,
    /// Last error of the message.
    pub error_reason: String,
    /// Number of retries.
    pub retry_count: u32,
    /// Maximum number of retries.
    pub max_retries: u32,
    /// Arrival of its last failure.
    pub received_at: Timestamp,
    /// Start of the review.
    pub reviewed_at: Timestamp,
    /// Cursor of the next page, for [`DlqPage::after`].
    #[serde(skip)]
    pub cursor: DlqCursor,
}

/// A task with its state, attempts and history.
#[derive(Clone, Debug, Serialize)]
pub struct TaskDetail {
    /// Id of the task.
    pub id: EventId,
    /// `pending`, `retried` or `failed`.
    pub status: &'static str,
    /// Whether the task is in review.
    pub in_review: bool,
    /// Due time, while it waits.
    pub due_at: Option<Timestamp>,
    /// The task; if it cannot be read, the fields that can.
    #[serde(flatten)]
    pub task: Task,
    /// Error and payload, if the task cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Unreadable>,
    /// Errors of the attempts.
    pub errors: Vec<String>,
    /// Recorded attempts to publish it.
    pub attempts: Vec<AttemptRow>,
    /// All failures of the message up to this one.
    pub history: Vec<HistoryEntry>,
}

/// A stored payload that is not a task: edited, or written by a newer release.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unreadable {
    /// The error.
    pub why: String,
    /// The stored payload.
    pub payload: Value,
}

/// Payload of an unreadable task after it was discarded.
#[derive(Serialize)]
struct Discarded {
    by_hand: ByHand,
    unreadable: Value,
}

impl Review {
    /// Review on this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let inspector = DlqInspector::new(Arc::clone(&store), store.clock());
        Review { store, inspector }
    }

    /// Lists tasks in review, newest first; 100 by default. The filter is applied to the stored tasks one by one: a page ends after
    /// 10,000 of them, with a cursor, also with fewer matches than wanted.
    pub async fn list(&self, filter: &ReviewFilter, page: DlqPage) -> Result<ReviewPage, SchedulerError> {
        let tasks_only = DlqFilter { event_type: Some(task_type()), ..DlqFilter::default() };
        let limit = page.limit as usize;
        let has_filter = *filter != ReviewFilter::default();
        // One more than wanted tells whether there is a next page.
        let chunk = if has_filter { FILTER_CHUNK } else { page.limit.saturating_add(1) };
        let mut part = DlqPage { limit: chunk, ..page };
        let mut found = ReviewPage::default();
        for _ in 0..MAX_FILTER_READS {
            let dead = self.inspector.list(tasks_only.clone(), part).await?;
            let is_last = dead.len() < chunk as usize;
            found.next = dead.last().map(|last| last.cursor);
            found.tasks.extend(dead.into_iter().map(summary).filter(|task| filter.matches(task)));
            if found.tasks.len() > limit {
                found.tasks.truncate(limit);
                found.next = found.tasks.last().map(|task| task.cursor);
                return Ok(found);
            }
            if is_last {
                return Ok(ReviewPage { next: None, ..found });
            }
            part = DlqPage { offset: 0, limit: chunk, after: found.next };
        }
        Ok(found)
    }

    /// Reads one task with its state, attempts and history, in review or not.
    pub async fn show(&self, id: EventId) -> Result<TaskDetail, SchedulerError> {
        let event = match self.store.event(id).await {
            Ok(event) if is_task(&event) => event,
            Ok(_) | Err(StoreError::NoSuchEvent { .. }) => return Err(SchedulerError::NoSuchTask { id }),
            Err(error) => return Err(error.into()),
        };
        let (task, unreadable) = match read(event.payload.get()) {
            Ok(task) => (task, None),
            Err(why) => {
                let payload = stored(&event);
                (partial(&payload, event.created_at), Some(Unreadable { why, payload }))
            }
        };
        let history = match unreadable {
            None => {
                history(self.store.as_ref(), &task.message_id, &task.original_queue, task.retry_count).await?
            }
            Some(_) => Vec::new(),
        };
        let state = TaskState::of(&event);
        Ok(TaskDetail {
            id,
            status: status(state.status, task.is_discarded()),
            in_review: state.status == EventStatus::Dlq,
            due_at: state.due_at,
            errors: state.errors,
            attempts: event.attempts,
            history,
            task,
            unreadable,
        })
    }

    /// Releases a task: republishes it to its original queue, or to `queue`. If it fails again, it returns to review. An undecodable
    /// message is published unchanged and needs a `queue`.
    pub async fn retry(&self, id: EventId, by: &str, queue: Option<String>) -> Result<(), SchedulerError> {
        let (mut task, unreadable) = self.in_review(id).await?;
        if let Some(Unreadable { why, .. }) = unreadable {
            return Err(SchedulerError::Unreadable { id, why });
        }
        if let Some(queue) = queue {
            check_name("queue", &queue)
                .map_err(|error| SchedulerError::NoQueue { id, why: error.to_string() })?;
            task.original_queue = queue;
        } else if task.original_queue.is_empty() {
            let why = task.problem.map(|problem| problem.why).unwrap_or_default();
            return Err(SchedulerError::NoQueue { id, why });
        }
        task.by_hand = Some(self.by_hand(Decision::Released, by, None));
        self.decide(id, &task).await
    }

    /// Discards a task, also an unreadable one. It stays visible, with the decision, until the retention has passed.
    pub async fn discard(&self, id: EventId, by: &str, why: Option<String>) -> Result<(), SchedulerError> {
        let (mut task, unreadable) = self.in_review(id).await?;
        let by_hand = self.by_hand(Decision::Discarded, by, why);
        if let Some(Unreadable { payload, .. }) = unreadable {
            return self.decide(id, &Discarded { by_hand, unreadable: payload }).await;
        }
        task.by_hand = Some(by_hand);
        self.decide(id, &task).await
    }

    async fn in_review(&self, id: EventId) -> Result<(Task, Option<Unreadable>), SchedulerError> {
        let TaskDetail { task, unreadable, in_review, status, .. } = self.show(id).await?;
        if in_review { Ok((task, unreadable)) } else { Err(SchedulerError::NotInReview { id, status }) }
    }

    fn by_hand(&self, decision: Decision, by: &str, why: Option<String>) -> ByHand {
        ByHand { decision, by: by.to_owned(), why, at: self.store.clock().now() }
    }

    async fn decide(&self, id: EventId, decided: &impl Serialize) -> Result<(), SchedulerError> {
        match self.inspector.retry_edited(id, decided).await {
            Ok(()) => Ok(()),
            // Another request decided first.
            Err(redrive::BusError::Store(StoreError::NotDead { status: now, .. })) => {
                Err(SchedulerError::NotInReview { id, status: status(now, false) })
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn read(payload: &str) -> Result<Task, String> {
    serde_json::from_str(payload).map_err(|error| error.to_string())
}

/// The payload as JSON, or as text if it is nested too deep to parse.
fn stored(event: &EventDetail) -> Value {
    let text = event.payload.get();
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// The readable fields of an unreadable task.
fn partial(payload: &Value, created_at: Timestamp) -> Task {
    let text = |name: &str| payload[name].as_str().unwrap_or_default().to_owned();
    let number =
        |name: &str| payload[name].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    Task {
        message_id: text("message_id"),
        original_payload: Payload::deserialize(&payload["original_payload"]).unwrap_or_default(),
        original_queue: text("original_queue"),
        error_reason: text("error_reason"),
        retry_count: number("retry_count"),
        copy: number("copy"),
        max_retries: number("max_retries"),
        properties: Properties::deserialize(&payload["properties"]).unwrap_or_default(),
        by_hand: ByHand::deserialize(&payload["by_hand"]).ok(),
        ..Task::empty(created_at)
    }
}

/// Summary of a dead letter, also of an unreadable one.
fn summary(dead: DeadLetter) -> InReview {
    let task = read(dead.payload.get()).unwrap_or_else(|_| Task::empty(dead.created_at));
    let why = dead.errors.last().cloned().unwrap_or(dead.reason);
    InReview {
        id: dead.id,
        message_id: task.message_id,
        original_queue: task.original_queue,
        why,
        error_reason: task.error_reason,
        retry_count: task.retry_count,
        max_retries: task.max_retries,
        received_at: task.received_at,
        reviewed_at: dead.dlq_at,
        cursor: dead.cursor,
    }
}
