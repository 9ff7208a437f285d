//! Handler of due tasks: publishes each to its original queue or to review, and waits for the publisher confirm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::retry::{ClassifyError as _, Failure};
use redrive::{Event, Snooze};
use redrive_retry::Timestamp;
use redrive_store::{AttemptRow, Store};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::confirm_stall::{ConfirmStall, PublishPermit};
use crate::history::history;
use crate::metrics::Counters;
use crate::payload::Payload;
use crate::republication::republication;
use crate::review_message::{Shape, review_publication};
use crate::task::{Problem, ReviewReason, Task};
use crate::transport::{Publication, PublishError, Transport};

/// Wait for outstanding publisher confirms during a shutdown.
const SHUTDOWN_CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum snooze of a task whose queue is stalled.
const MAX_STALL_SNOOZE: Duration = Duration::from_secs(60);

/// Recorded outcome: the queue does not exist.
const UNROUTABLE: &str = "unroutable";

/// Recorded outcome: published to the review queue.
const IN_REVIEW: &str = "in_review";

/// Handles all tasks.
#[derive(Debug)]
pub(crate) struct Republisher {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) review_queue: String,
    pub(crate) unroutable_attempts: u32,
    pub(crate) stall: ConfirmStall,
    /// Turns true when the scheduler shuts down.
    pub(crate) closing: watch::Receiver<bool>,
}

/// Detail recorded with an attempt.
#[derive(Serialize)]
struct AttemptDetail<'a> {
    queue: &'a str,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    took_ms: u64,
}

impl Republisher {
    /// Publishes one task, or settles it without publication if it was discarded.
    pub(crate) async fn handle(&self, event: &Event) -> Result<(), Failure> {
        let task = match serde_json::from_str::<Task>(event.payload()) {
            Ok(task) => task,
            Err(_) if is_discarded(event.payload()) => return Ok(()),
            Err(error) => unreadable(event, &error),
        };
        if task.is_discarded() {
            event.record_detail(&AttemptDetail {
                queue: &task.original_queue,
                outcome: "discarded",
                why: None,
                took_ms: 0,
            });
            return Ok(());
        }
        self.wait_for_broker().await?;
        match task.for_review() {
            None => self.republish(event, &task).await,
            // Redriven from the dead-letter queue, which is a release from review as well.
            Some(_) if !task.original_queue.is_empty() && self.attempts_with(event, IN_REVIEW).await? > 0 => {
                self.republish(event, &task).await
            }
            Some(reason) => {
                let Task { retry_count, max_retries, error_reason, problem, .. } = &task;
                let retries = if *retry_count == 1 { "retry" } else { "retries" };
                let exhausted = || format!("{retry_count} {retries} (limit {max_retries}): {error_reason}");
                let problem = problem.clone().unwrap_or_else(|| Problem { reason, why: exhausted() });
                self.review(event, &task, &problem).await
            }
        }
    }

    /// Waits for a connection, so that an outage of the broker costs no attempt.
    async fn wait_for_broker(&self) -> Result<(), Failure> {
        let mut closing = self.closing.clone();
        tokio::select! {
            () = self.transport.ready() => Ok(()),
            _ = closing.wait_for(|closing| *closing) => {
                Err("the scheduler was shut down while it waited for the broker".transient())
            }
        }
    }

    async fn republish(&self, event: &Event, task: &Task) -> Result<(), Failure> {
        let queue = task.original_queue.as_str();
        let publication = republication(task, event.id())
            .map_err(|error| format!("the payload is not valid base64: {error}").permanent())?;
        let is_first = event.attempt() == 1 && task.by_hand.is_none();
        let permit = self.permit(queue).await?;
        if is_first {
            // A task that was due before it arrived is late since its arrival.
            let due = Timestamp::from_millis(task.next_retry_at_ms).max(task.received_at);
            self.counters.drift.record(event.now().since(due));
        }
        let began = Instant::now();
        let outcome = self.publish(publication, permit).await;
        let record = |outcome: &str, why: Option<&str>| {
            event.record_detail(&AttemptDetail { queue, outcome, why, took_ms: millis(began.elapsed()) });
        };
        let Err(error) = outcome else {
            self.counters.confirm.record(began.elapsed());
            self.counters.queue(queue, |queue| queue.succeeded += 1);
            // A success at the first attempt is not recorded: the status says it.
            if !is_first {
                record("republished", None);
            }
            tracing::debug!(target: "redrive::scheduler", message_id = task.message_id, queue, retry_count = task.retry_count, "republished");
            return Ok(());
        };
        self.counters.queue(queue, |queue| queue.failed += 1);
        let why = error.to_string();
        tracing::warn!(
            target: "redrive::scheduler", message_id = task.message_id, queue, retry_count = task.retry_count,
            attempt = event.attempt(), error = why, "could not republish a message"
        );
        match error {
            PublishError::Unroutable { .. } => {
                self.counters.count(|all| all.returned += 1);
                if self.is_unroutable(event).await? {
                    let problem = Problem { reason: ReviewReason::Unroutable, why };
                    return self.review(event, task, &problem).await;
                }
                record(UNROUTABLE, Some(&why));
            }
            PublishError::Refused { .. } => {
                return self.review(event, task, &Problem { reason: ReviewReason::Refused, why }).await;
            }
            PublishError::Unknown { .. } => {
                self.counters.count(|all| all.unknown += 1);
                record("unknown", Some(&why));
            }
        }
        Err(error.transient())
    }

    /// Whether the queue was missing at `unroutable_attempts` attempts, this one included. Attempts that failed otherwise do not count.
    async fn is_unroutable(&self, event: &Event) -> Result<bool, Failure> {
        if event.attempt() < self.unroutable_attempts {
            return Ok(false);
        }
        Ok(self.attempts_with(event, UNROUTABLE).await?.saturating_add(1) >= self.unroutable_attempts)
    }

    /// Number of earlier attempts with this recorded outcome.
    async fn attempts_with(&self, event: &Event, outcome: &str) -> Result<u32, Failure> {
        let stored = self.store.event(event.id()).await.map_err(|error| error.transient())?;
        let has_outcome = |attempt: &&AttemptRow| {
            let detail = attempt.detail.as_ref().map(|detail| serde_json::from_str(&detail.0));
            let detail: Option<Value> = detail.and_then(Result::ok);
            detail.is_some_and(|detail| detail["outcome"] == outcome)
        };
        let count = stored.attempts.iter().filter(has_outcome).count();
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Publishes a task to the review queue. Once the broker has confirmed it, the task is dead-lettered; until then the publication is
    /// retried with the same id.
    async fn review(&self, event: &Event, task: &Task, problem: &Problem) -> Result<(), Failure> {
        let Problem { reason, why: cause } = problem;
        let history = history(self.store.as_ref(), &task.message_id, &task.original_queue, task.retry_count)
            .await
            .map_err(|error| error.transient())?;
        let began = Instant::now();
        let mut outcome = Ok(());
        for shape in [Shape::Whole, Shape::WithoutPayload] {
            let publication =
                review_publication(&self.review_queue, task, event.id(), problem, &history, shape)
                    .map_err(|error| format!("the payload is not valid base64: {error}").permanent())?;
            outcome = self.publish(publication, self.permit(&self.review_queue).await?).await;
            // If the broker refuses the whole message, it is sent without its payload, which is in the store.
            if !matches!(outcome, Err(PublishError::Refused { .. })) {
                break;
            }
        }
        let why = outcome.as_ref().err().map(ToString::to_string);
        let detail = AttemptDetail {
            queue: &self.review_queue,
            outcome: if why.is_none() { IN_REVIEW } else { "not_in_review" },
            why: Some(why.as_deref().unwrap_or(cause)),
            took_ms: millis(began.elapsed()),
        };
        event.record_detail(&detail);
        outcome.map_err(|error| {
            tracing::warn!(target: "redrive::scheduler", message_id = task.message_id, %error, "could not publish a message for review");
            error.transient()
        })?;
        self.counters.reviewed(*reason);
        if *reason == ReviewReason::RetriesExhausted {
            self.counters.queue(&task.original_queue, |queue| queue.exhausted += 1);
        }
        tracing::warn!(
            target: "redrive::scheduler", message_id = task.message_id, queue = task.original_queue,
            retry_count = task.retry_count, reason = reason.as_str(), why = cause, "sent to review"
        );
        Err(format!("in review, {}: {cause}", reason.as_str()).permanent())
    }

    /// Waits for a permit to publish to this queue. A task of a stalled queue is snoozed, which costs no attempt.
    async fn permit<'a>(&'a self, queue: &'a str) -> Result<PublishPermit<'a>, Failure> {
        // A broker that is short of memory or disk confirms nothing at all: then all queues wait.
        let is_blocked = || self.transport.state().blocked;
        self.stall.acquire(queue, is_blocked).await.map_err(|stalled| {
            self.counters.count(|all| all.deferred += 1);
            // The snooze grows with the stall.
            Failure::new(Snooze::new(stalled.min(MAX_STALL_SNOOZE)))
        })
    }

    async fn publish(&self, publication: Publication, permit: PublishPermit<'_>) -> Result<(), PublishError> {
        let mut closing = self.closing.clone();
        let last_wait = async {
            if closing.wait_for(|closing| *closing).await.is_ok() {
                tokio::time::sleep(SHUTDOWN_CONFIRM_TIMEOUT).await;
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = self.transport.publish(publication) => outcome,
            () = last_wait => Err(PublishError::Unknown { why: "the scheduler was shut down".to_owned() }),
        };
        if !matches!(outcome, Err(PublishError::Unknown { .. })) {
            permit.answered();
        }
        outcome
    }
}

/// Whether an unreadable task was discarded in review.
fn is_discarded(payload: &str) -> bool {
    let payload: Option<Value> = serde_json::from_str(payload).ok();
    payload.is_some_and(|payload| payload["by_hand"]["decision"] == "discarded")
}

/// Stand-in for a payload that is not a task (edited, or written by a newer release), to send it to review as it is.
fn unreadable(event: &Event, error: &serde_json::Error) -> Task {
    let why = format!("the task cannot be read: {error}");
    Task {
        message_id: event.id().to_string(),
        original_payload: Payload::of(event.payload().as_bytes().to_vec()),
        error_reason: why.clone(),
        problem: Some(Problem { reason: ReviewReason::Undecodable, why }),
        ..Task::empty(event.created_at())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
