//! What waits for a person: looked at, sent back, or given up. Depends on the store alone, so it works beside a running scheduler.

use std::sync::Arc;

use redrive::DlqInspector;
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
use crate::standing::Standing;
use crate::task::{ByHand, Decision, Task, Via, task_type};

/// What waits for a person.
#[derive(Clone, Debug)]
pub struct Review {
    store: Arc<dyn Store>,
    inspector: DlqInspector,
}

/// A task in review, in short.
#[derive(Clone, Debug, Serialize)]
pub struct InReview {
    /// The task.
    pub id: EventId,
    /// The message's id.
    pub message_id: String,
    /// Where it belongs; empty if that is not known.
    pub original_queue: String,
    /// Why it is here, in words.
    pub why: String,
    /// Why it failed last.
    pub error_reason: String,
    /// How often it was retried.
    pub retry_count: u32,
    /// How often it may be.
    pub max_retries: u32,
    /// When its last failure arrived.
    pub received_at: Timestamp,
    /// Since when it is here.
    pub reviewed_at: Timestamp,
    /// For the next page: pass it to [`DlqPage::after`].
    #[serde(skip)]
    pub cursor: DlqCursor,
}

/// A task with all that is known of it.
#[derive(Clone, Debug, Serialize)]
pub struct TaskDetail {
    /// The task.
    pub id: EventId,
    /// `pending`, `retried` or `failed`.
    pub status: &'static str,
    /// Whether a person must decide.
    pub in_review: bool,
    /// When it goes back, if it waits.
    pub due_at: Option<Timestamp>,
    /// All of it; or, if it cannot be read, what can be guessed.
    #[serde(flatten)]
    pub task: Task,
    /// If it cannot be read: why, and what is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Unreadable>,
    /// What went wrong with it.
    pub errors: Vec<String>,
    /// The attempts to bring it to the broker of which something is known.
    pub attempts: Vec<AttemptRow>,
    /// All failures of the message up to this one.
    pub history: Vec<HistoryEntry>,
}

/// What is stored and cannot be read as a task: somebody has changed it by hand, or a newer release has written it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unreadable {
    /// What is wrong with it.
    pub why: String,
    /// As it is stored.
    pub payload: Value,
}

/// What becomes of a task that cannot be read and is discarded: the decision, and what was there.
#[derive(Serialize)]
struct Discarded {
    by_hand: ByHand,
    unreadable: Value,
}

impl Review {
    /// On a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let inspector = DlqInspector::new(Arc::clone(&store), store.clock());
        Review { store, inspector }
    }

    /// What waits for a person, newest first; the first hundred by default.
    pub async fn list(&self, page: DlqPage) -> Result<Vec<InReview>, SchedulerError> {
        let filter = DlqFilter { event_type: Some(task_type()), ..DlqFilter::default() };
        let dead = self.inspector.list(filter, page).await?;
        Ok(dead.into_iter().map(in_short).collect())
    }

    /// A task with all that is known of it, in review or not.
    pub async fn show(&self, id: EventId) -> Result<TaskDetail, SchedulerError> {
        let event = match self.store.event(id).await {
            Ok(event) if event.event_type == task_type() => event,
            Ok(_) | Err(StoreError::NoSuchEvent { .. }) => return Err(SchedulerError::NoSuchTask { id }),
            Err(error) => return Err(error.into()),
        };
        let (task, unreadable) = match read(event.payload.get()) {
            Ok(task) => (task, None),
            Err(why) => {
                let payload = stored(&event);
                (guessed(&payload, event.created_at), Some(Unreadable { why, payload }))
            }
        };
        let history = match unreadable {
            None => {
                history(self.store.as_ref(), &task.message_id, &task.original_queue, task.retry_count).await?
            }
            Some(_) => Vec::new(),
        };
        let standing = Standing::of(&event);
        Ok(TaskDetail {
            id,
            status: status(standing.status, task.is_discarded()),
            in_review: standing.status == EventStatus::Dlq,
            due_at: standing.due_at,
            errors: standing.errors,
            attempts: event.attempts,
            history,
            task,
            unreadable,
        })
    }

    /// Sends a task back to its queue, or to another one. If it fails there again, it comes back to review. What could not be
    /// decoded goes with its bytes as they are, and needs a queue.
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

    /// Gives a task up for good, also one that cannot be read. It stays known, with who decided so and why, until its time to be kept has
    /// passed.
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
            // Somebody else was faster.
            Err(redrive::BusError::Store(StoreError::NotDead { status: now, .. })) => {
                Err(SchedulerError::NotInReview { id, status: status(now, false) })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Or what is wrong with it.
fn read(payload: &str) -> Result<Task, String> {
    serde_json::from_str(payload).map_err(|error| error.to_string())
}

/// As JSON; or as text, if it is nested too deep to be read at all.
fn stored(event: &EventDetail) -> Value {
    let text = event.payload.get();
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// What can be guessed of a task that cannot be read, so that a person sees more than its id.
fn guessed(payload: &Value, created_at: Timestamp) -> Task {
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
        next_retry_at_ms: created_at.as_millis(),
        via: Via::Undecodable,
        problem: None,
        received_at: created_at,
        first_failed_at: created_at,
        properties: Properties::deserialize(&payload["properties"]).unwrap_or_default(),
        fingerprint: String::new(),
        stored_by: String::new(),
        by_hand: ByHand::deserialize(&payload["by_hand"]).ok(),
    }
}

/// Also of one that cannot be read any more: it is there, and must be seen.
fn in_short(dead: DeadLetter) -> InReview {
    let task = read(dead.payload.get()).ok();
    let why = dead.errors.last().cloned().unwrap_or(dead.reason);
    let of = |part: fn(&Task) -> &str| task.as_ref().map(part).unwrap_or_default().to_owned();
    InReview {
        id: dead.id,
        message_id: of(|task| &task.message_id),
        original_queue: of(|task| &task.original_queue),
        why,
        error_reason: of(|task| &task.error_reason),
        retry_count: task.as_ref().map_or(0, |task| task.retry_count),
        max_retries: task.as_ref().map_or(0, |task| task.max_retries),
        received_at: task.as_ref().map_or(dead.created_at, |task| task.received_at),
        reviewed_at: dead.dlq_at,
        cursor: dead.cursor,
    }
}
