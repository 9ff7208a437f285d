//! Brings due tasks to the broker: back to their queue, or to review.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::{BoxFuture, ClassifyError as _, Event, Failure, Handler, NotNow};
use redrive_retry::Timestamp;
use redrive_store::{AttemptRow, Store};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::history::history;
use crate::metrics::Counters;
use crate::payload::Payload;
use crate::properties::Properties;
use crate::republish::republication;
use crate::review_message::{Cause, Shape, review_publication};
use crate::silence::{Silence, Turn};
use crate::task::{Problem, ReviewReason, Task, Via};
use crate::transport::{Publication, PublishError, Transport};

/// While it shuts down, the broker has so long to confirm what it was given.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// What waits for a queue that confirms nothing is looked at this often.
const LONGEST_PUT_OFF: Duration = Duration::from_secs(60);

/// What is told of an attempt whose queue was not there.
const UNROUTABLE: &str = "unroutable";

/// What is told of the attempt with which a task came to review.
const IN_REVIEW: &str = "in_review";

/// The handler of all tasks.
#[derive(Clone, Debug)]
pub(crate) struct Courier {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) review_queue: String,
    pub(crate) unroutable_attempts: u32,
    pub(crate) silence: Silence,
    /// Turns true when the scheduler shuts down.
    pub(crate) closing: watch::Receiver<bool>,
}

/// What is kept of an attempt.
#[derive(Serialize)]
struct Told<'a> {
    queue: &'a str,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    took_ms: u64,
}

impl Courier {
    pub(crate) fn new(inner: Inner) -> Self {
        Courier { inner: Arc::new(inner) }
    }
}

impl Handler for Courier {
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.carry(&event).await })
    }
}

impl Inner {
    async fn carry(&self, event: &Event) -> Result<(), Failure> {
        let task = match serde_json::from_str::<Task>(event.payload()) {
            Ok(task) => task,
            Err(_) if is_discarded(event.payload()) => return Ok(()),
            Err(error) => unreadable(event, &error),
        };
        if task.is_discarded() {
            event.tell(&Told { queue: &task.original_queue, outcome: "discarded", why: None, took_ms: 0 });
            return Ok(());
        }
        self.wait_for_the_broker().await?;
        match task.for_review() {
            None => self.republish(event, &task).await,
            // Somebody has put it back by means of the dead-letter queue: that is a decision as well.
            Some(_) if !task.original_queue.is_empty() && self.attempts_that(event, IN_REVIEW).await? > 0 => {
                self.republish(event, &task).await
            }
            Some(reason) => {
                let why = match &task.problem {
                    Some(problem) => problem.why.clone(),
                    None => format!(
                        "retried {} of {} times: {}",
                        task.retry_count, task.max_retries, task.error_reason
                    ),
                };
                self.review(event, &task, Cause { reason, why: &why }).await
            }
        }
    }

    /// An outage uses up no attempt: it is waited for in here.
    async fn wait_for_the_broker(&self) -> Result<(), Failure> {
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
            .map_err(|error| format!("the payload is not base64 any more: {error}").permanent())?;
        let is_first = event.attempt() == 1 && task.by_hand.is_none();
        let turn = self.turn(queue).await?;
        if is_first {
            // What was due before it came is late by what it took since.
            let due = Timestamp::from_millis(task.next_retry_at_ms).max(task.received_at);
            self.counters.drift.record(event.now().since(due));
        }
        let began = Instant::now();
        let outcome = self.publish(publication, turn).await;
        let told = |outcome: &str, why: Option<&str>| {
            event.tell(&Told { queue, outcome, why, took_ms: millis(began.elapsed()) });
        };
        let Err(error) = outcome else {
            self.counters.confirm.record(began.elapsed());
            self.counters.queue(queue, |queue| queue.succeeded += 1);
            // The frequent case is known by its end alone, and costs no row of its own.
            if !is_first {
                told("republished", None);
            }
            tracing::debug!(target: "redrive::scheduler", message_id = task.message_id, queue, retry_count = task.retry_count, "republished");
            return Ok(());
        };
        self.counters.queue(queue, |queue| queue.failed += 1);
        let why = error.to_string();
        tracing::warn!(
            target: "redrive::scheduler", message_id = task.message_id, queue, retry_count = task.retry_count,
            attempt = event.attempt(), error = why, "could not be republished"
        );
        match error {
            PublishError::Unroutable { .. } => {
                self.counters.returned.add(1);
                if self.is_nowhere(event).await? {
                    return self
                        .review(event, task, Cause { reason: ReviewReason::Unroutable, why: &why })
                        .await;
                }
                told(UNROUTABLE, Some(&why));
            }
            PublishError::Refused { .. } => {
                return self.review(event, task, Cause { reason: ReviewReason::Refused, why: &why }).await;
            }
            PublishError::Unknown { .. } => {
                self.counters.unknown.add(1);
                told("unknown", Some(&why));
            }
        }
        Err(error.transient())
    }

    /// Whether its queue was not there at so many attempts, this one included. Others, that have failed for other reasons, do not count.
    async fn is_nowhere(&self, event: &Event) -> Result<bool, Failure> {
        if event.attempt() < self.unroutable_attempts {
            return Ok(false);
        }
        Ok(self.attempts_that(event, UNROUTABLE).await?.saturating_add(1) >= self.unroutable_attempts)
    }

    /// How many attempts before this one have ended so.
    async fn attempts_that(&self, event: &Event, outcome: &str) -> Result<u32, Failure> {
        let known = self.store.event(event.id()).await.map_err(|error| error.transient())?;
        let ended_so = |attempt: &&AttemptRow| {
            let told = attempt.detail.as_ref().map(|detail| serde_json::from_str(&detail.0));
            let told: Option<Value> = told.and_then(Result::ok);
            told.is_some_and(|told| told["outcome"] == outcome)
        };
        let count = known.attempts.iter().filter(ended_so).count();
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Shows a task to a person. Only when the broker has it for certain does the task stand in the dead-letter queue; until then it
    /// is tried again, with the same id.
    async fn review(&self, event: &Event, task: &Task, cause: Cause<'_>) -> Result<(), Failure> {
        let history = history(self.store.as_ref(), &task.message_id, &task.original_queue, task.retry_count)
            .await
            .map_err(|error| error.transient())?;
        let began = Instant::now();
        let mut outcome = Ok(());
        for shape in [Shape::Whole, Shape::WithoutPayload] {
            let publication =
                review_publication(&self.review_queue, task, event.id(), cause, &history, shape)
                    .map_err(|error| format!("the payload is not base64 any more: {error}").permanent())?;
            outcome = self.publish(publication, self.turn(&self.review_queue).await?).await;
            // What the broker will not have whole is shown without its payload, which is in the store.
            if !matches!(outcome, Err(PublishError::Refused { .. })) {
                break;
            }
        }
        let why = outcome.as_ref().err().map(ToString::to_string);
        let told = Told {
            queue: &self.review_queue,
            outcome: if why.is_none() { IN_REVIEW } else { "not_in_review" },
            why: Some(why.as_deref().unwrap_or(cause.why)),
            took_ms: millis(began.elapsed()),
        };
        event.tell(&told);
        outcome.map_err(|error| {
            tracing::warn!(target: "redrive::scheduler", message_id = task.message_id, %error, "could not be brought to review");
            error.transient()
        })?;
        self.counters.reviewed(cause.reason);
        if cause.reason == ReviewReason::RetriesExhausted {
            self.counters.queue(&task.original_queue, |queue| queue.exhausted += 1);
        }
        tracing::warn!(
            target: "redrive::scheduler", message_id = task.message_id, queue = task.original_queue,
            retry_count = task.retry_count, reason = cause.reason.as_str(), why = cause.why, "in review"
        );
        Err(format!("in review, {}: {}", cause.reason.as_str(), cause.why).permanent())
    }

    /// Waits until something may be sent to this queue. What waits for one that is silent is put off, and charged nothing.
    async fn turn<'a>(&'a self, queue: &'a str) -> Result<Turn<'a>, Failure> {
        // Short of memory the broker confirms nothing of any queue: then all of them wait.
        let is_blocked = || self.transport.state().blocked;
        self.silence.turn(queue, is_blocked).await.map_err(|silent| {
            self.counters.put_off.add(1);
            // Less and less often, the longer it is silent.
            Failure::new(NotNow::for_the_next(silent.min(LONGEST_PUT_OFF)))
        })
    }

    async fn publish(&self, publication: Publication, turn: Turn<'_>) -> Result<(), PublishError> {
        let mut closing = self.closing.clone();
        let last_wait = async {
            if closing.wait_for(|closing| *closing).await.is_ok() {
                tokio::time::sleep(LAST_WAIT).await;
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = self.transport.publish(publication) => outcome,
            () = last_wait => Err(PublishError::Unknown { why: "the scheduler was shut down".to_owned() }),
        };
        if !matches!(outcome, Err(PublishError::Unknown { .. })) {
            turn.answered();
        }
        outcome
    }
}

/// Whether a person has given up what nobody can read.
fn is_discarded(payload: &str) -> bool {
    let payload: Option<Value> = serde_json::from_str(payload).ok();
    payload.is_some_and(|payload| payload["by_hand"]["decision"] == "discarded")
}

/// Somebody has changed it by hand, or a newer release has stored it: shown to a person as it stands.
fn unreadable(event: &Event, error: &serde_json::Error) -> Task {
    let why = format!("the task cannot be read: {error}");
    Task {
        message_id: event.id().to_string(),
        original_payload: Payload::of(event.payload().as_bytes().to_vec()),
        original_queue: String::new(),
        error_reason: why.clone(),
        retry_count: 0,
        copy: 0,
        max_retries: 0,
        next_retry_at_ms: event.created_at().as_millis(),
        via: Via::Undecodable,
        problem: Some(Problem { reason: ReviewReason::Undecodable, why }),
        received_at: event.created_at(),
        first_failed_at: event.created_at(),
        properties: Properties::default(),
        fingerprint: String::new(),
        stored_by: String::new(),
        by_hand: None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
