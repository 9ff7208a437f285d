//! Stores failed messages as tasks, and only then acknowledges them to the broker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redrive::trace::TraceContext;
use redrive::{BusError, EventBus};
use redrive_retry::Timestamp;
use redrive_store::{Appended, EventId, Metadata, NewEvent, Routing, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::classify::{ClassifiedDelivery, Classifier};
use crate::metrics::Counters;
use crate::task::{MAX_COPIES, Task, Via, copy_id, is_task, republisher, task_type};
use crate::task_state::TaskState;
use crate::transport::{Receipt, Transport};

/// Search for a free retry count, for a failure that its sender did not count: this many one by one, then in steps that double.
const LINEAR_STEPS: u32 = 16;
const DOUBLING_STEPS: u32 = 16;

/// Retry counts from here on are picked at random.
const RANDOM_COUNTS_FROM: u32 = 1 << 30;

/// Maximum number of stored deliveries remembered because their ack failed.
const MAX_ACK_FAILED: usize = 10_000;

/// Bounds of the delay between two attempts to write a batch, or to publish an oversize message for review.
pub(crate) const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
pub(crate) const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Name of the W3C trace context in event metadata and in message headers.
const TRACEPARENT: &str = "traceparent";

/// Receives, stores and acknowledges failed messages.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) bus: EventBus,
    pub(crate) classifier: Classifier,
    pub(crate) counters: Arc<Counters>,
    /// Oversize messages that are being published for review. Dropping it leaves the unacked ones to the broker.
    pub(crate) oversize: JoinSet<()>,
    pub(crate) closing: watch::Receiver<bool>,
    /// Stored tasks whose ack failed, with their fingerprints: the broker redelivers each.
    pub(crate) ack_failed: HashMap<EventId, String>,
}

/// Meaning of a delivery whose event id is already stored.
enum Duplicate {
    /// It is the stored task, delivered again.
    SameTask,
    /// It is another failure, or may be one: store it as a task with this count and copy.
    NewFailure { count: u32, copy: u32 },
}

/// Tasks stored for one message and retry count.
enum Stored {
    /// No task: the failure is stored under this copy, which is 0 unless events of other programs have the ids before it.
    None { copy: u32 },
    /// The task of this very delivery.
    SameTask,
    /// A delivery that may be this task or a new failure; and the first free copy.
    Ambiguous { copies: u32 },
    /// Tasks of other failures.
    Others,
}

/// The scheduler shuts down, so nothing more is stored.
struct Closing;

impl Intake {
    /// Runs until the transport stops receiving.
    pub(crate) async fn run(mut self) {
        let batch_size = usize::from(self.classifier.settings().prefetch.max(1));
        loop {
            let deliveries = self.transport.receive(batch_size).await;
            if deliveries.is_empty() {
                return;
            }
            let now = self.bus.store().clock().now();
            self.counters.count(|all| all.received += deliveries.len() as u64);
            let classified: Vec<_> =
                deliveries.into_iter().map(|delivery| self.classifier.classify(delivery, now)).collect();
            let unknown_fields: usize = classified.iter().map(|delivery| delivery.unknown_fields).sum();
            if unknown_fields > 0 {
                self.counters.count(|all| all.unknown_fields += unknown_fields as u64);
            }
            if self.store_and_ack(classified).await.is_err() {
                return; // nothing was acked, so the broker keeps all of it
            }
        }
    }

    /// Stores the whole batch, then acks it.
    async fn store_and_ack(&mut self, batch: Vec<ClassifiedDelivery>) -> Result<(), Closing> {
        let mut stored: Vec<(Receipt, EventId, String)> = Vec::with_capacity(batch.len());
        let mut open = Vec::with_capacity(batch.len());
        let max_payload = self.classifier.settings().max_payload;
        for delivery in batch {
            let payload = json(&delivery.task);
            if payload.len() > max_payload {
                let why =
                    format!("{} bytes are more than the {max_payload} that can be stored", payload.len());
                self.send_to_review(delivery, why).await?;
            } else {
                open.push((delivery, payload));
            }
        }
        // One round, unless a message failed again without its sender counting it.
        while !open.is_empty() {
            let events = open.iter().map(|(delivery, payload)| event(&delivery.task, payload)).collect();
            let appended = self.append(events).await?;
            let mut again = Vec::new();
            for ((mut delivery, _), appended) in open.into_iter().zip(appended) {
                match appended {
                    Ok(Appended::New) => self.count_new(&delivery.task),
                    Ok(Appended::Duplicate) => match self.resolve_duplicate(&delivery).await? {
                        Duplicate::NewFailure { count, copy } => {
                            self.counters.count(|all| match copy {
                                0 => all.uncounted += 1,
                                _ => all.copies += 1,
                            });
                            self.classifier.recount(&mut delivery.task, count, copy);
                            let payload = json(&delivery.task);
                            again.push((delivery, payload));
                            continue;
                        }
                        Duplicate::SameTask => self.counters.count(|all| all.duplicates += 1),
                    },
                    Err(why) => {
                        self.send_to_review(delivery, why).await?;
                        continue;
                    }
                }
                stored.push((delivery.receipt, delivery.task.id(), delivery.task.fingerprint));
            }
            open = again;
        }
        let receipts: Vec<_> = stored.iter().map(|(receipt, ..)| *receipt).collect();
        if !receipts.is_empty() && !self.transport.ack(receipts).await {
            for (_, id, fingerprint) in stored {
                if self.ack_failed.len() < MAX_ACK_FAILED {
                    self.ack_failed.insert(id, fingerprint);
                }
            }
        }
        Ok(())
    }

    fn count_new(&self, task: &Task) {
        match task.for_review() {
            None => self.counters.queue(&task.original_queue, |queue| queue.scheduled += 1),
            Some(_) if task.via == Via::Undecodable => self.counters.count(|all| all.undecodable += 1),
            Some(_) => {}
        }
    }

    /// Appends events, repeating until the store accepts them. An invalid event is refused by itself, with the reason, and does not fail
    /// the rest of the batch. Nor does an event whose id is taken by another one: it is a duplicate.
    async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Result<Appended, String>>, Closing> {
        let mut delay = MIN_RETRY_DELAY;
        loop {
            match self.bus.append(events.clone()).await {
                Ok(appended) => return Ok(appended.into_iter().map(Ok).collect()),
                Err(BusError::Store(StoreError::IdTaken { .. })) if events.len() == 1 => {
                    return Ok(vec![Ok(Appended::Duplicate)]);
                }
                Err(BusError::Store(error))
                    if is_invalid_event(&error) || matches!(error, StoreError::IdTaken { .. }) =>
                {
                    if events.len() == 1 {
                        return Ok(vec![Err(error.to_string())]);
                    }
                    let mut outcomes = Vec::with_capacity(events.len());
                    for event in events {
                        outcomes.extend(Box::pin(self.append(vec![event])).await?);
                    }
                    return Ok(outcomes);
                }
                Err(error) => self.log_and_wait(&error, &mut delay).await?,
            }
        }
    }

    /// Decides whether a delivery whose task is already stored is that task, or another failure that its sender did not count.
    ///
    /// - A stored task that still waits has not been republished: the delivery is that task.
    /// - A task that is done or in flight may be in its queue again and may have failed there. If the broker identifies messages, the
    ///   identity decides. Otherwise the delivery is that task only if it has the same fingerprint, is marked as redelivered, and the
    ///   ack of the stored task failed.
    /// - In all other cases the message is republished: rather once too often than lost. It counts as a new failure, except if it is
    ///   marked as redelivered, or if its sender counts retries: then it may be a duplicate that failed again, which must not use up the
    ///   retries of a message that was handled meanwhile. It is stored as a copy with the same retry count.
    async fn resolve_duplicate(&mut self, delivery: &ClassifiedDelivery) -> Result<Duplicate, Closing> {
        let Task { message_id, retry_count, .. } = &delivery.task;
        let sender_counts = self.sender_counts(&delivery.task).await?;
        let mut copy = None;
        let steps = (0..=LINEAR_STEPS).chain((0..DOUBLING_STEPS).map(|n| LINEAR_STEPS << n));
        for step in steps {
            let count = retry_count.saturating_add(step);
            match self.stored_with(delivery, count, sender_counts && step == 0).await? {
                Stored::None { copy: free } => {
                    if free > 0 {
                        tracing::warn!(
                            target: "redrive::scheduler", message_id, retry_count = count,
                            "other programs stored events under the ids of this failure, which is stored under another one"
                        );
                    }
                    return Ok(copy.unwrap_or(Duplicate::NewFailure { count, copy: free }));
                }
                Stored::SameTask => return Ok(Duplicate::SameTask),
                Stored::Ambiguous { copies } => copy = Some(Duplicate::NewFailure { count, copy: copies }),
                Stored::Others => {}
            }
        }
        tracing::error!(
            target: "redrive::scheduler", message_id, retry_count,
            "a message failed more often than the scheduler can count; its sender should count retries"
        );
        // Any free count will do: the message goes to review in any case.
        let random = Uuid::new_v4().as_u64_pair().0 % u64::from(RANDOM_COUNTS_FROM);
        let count = RANDOM_COUNTS_FROM + u32::try_from(random).unwrap_or_default();
        Ok(Duplicate::NewFailure { count, copy: 0 })
    }

    /// Whether the retry count comes from a sender that counts: the failure before it is stored with a count that is one lower.
    async fn sender_counts(&self, task: &Task) -> Result<bool, Closing> {
        let Some(before) = task.retry_count.checked_sub(1) else { return Ok(false) };
        for copy in 0..=MAX_COPIES {
            let id = copy_id(&task.message_id, &task.original_queue, before, copy);
            let Some(event) = self.event(id).await? else { break };
            if is_task(&event) {
                let before = serde_json::from_str::<Task>(event.payload.get());
                return Ok(before.is_ok_and(|before| before.original_payload == task.original_payload));
            }
        }
        Ok(false)
    }

    /// Looks for stored tasks of this message with this retry count. With `sender_counts`, one with the same payload may be this one. An
    /// event of another type is passed over, whatever its payload: every publisher on a shared database can compute the id of a task.
    async fn stored_with(
        &mut self,
        delivery: &ClassifiedDelivery,
        count: u32,
        sender_counts: bool,
    ) -> Result<Stored, Closing> {
        let Task { message_id, original_queue, original_payload, fingerprint, .. } = &delivery.task;
        let (mut has_task, mut is_ambiguous) = (false, false);
        for copy in 0..=MAX_COPIES {
            let id = copy_id(message_id, original_queue, count, copy);
            let Some(event) = self.event(id).await? else {
                return Ok(match (has_task, is_ambiguous) {
                    (false, _) => Stored::None { copy },
                    (true, true) => Stored::Ambiguous { copies: copy },
                    (true, false) => Stored::Others,
                });
            };
            if !is_task(&event) {
                continue;
            }
            has_task = true;
            let ack_failed = self.ack_failed.remove(&id).is_some();
            let Ok(task) = serde_json::from_str::<Task>(event.payload.get()) else { continue };
            // Two different messages may have one id.
            if TaskState::of(&event).is_waiting() && task.original_payload == *original_payload {
                return Ok(Stored::SameTask);
            }
            is_ambiguous |= sender_counts && task.original_payload == *original_payload;
            if task.fingerprint != *fingerprint {
                continue;
            }
            if delivery.has_identity || delivery.redelivered && ack_failed {
                return Ok(Stored::SameTask);
            }
            is_ambiguous |= delivery.redelivered;
        }
        Ok(Stored::Others)
    }

    async fn event(&self, id: EventId) -> Result<Option<redrive_store::EventDetail>, Closing> {
        let mut delay = MIN_RETRY_DELAY;
        loop {
            match self.bus.store().event(id).await {
                Ok(event) => return Ok(Some(event)),
                Err(StoreError::NoSuchEvent { .. }) => return Ok(None),
                Err(error) => self.log_and_wait(&error.into(), &mut delay).await?,
            }
        }
    }

    /// Publishes a message that cannot be stored for review, in the background, which also acks it.
    async fn send_to_review(&mut self, delivery: ClassifiedDelivery, why: String) -> Result<(), Closing> {
        let mut closing = self.closing.clone();
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => Err(Closing),
            () = self.publish_oversize(delivery, why) => Ok(()),
        }
    }

    /// Logs a failed write and waits before the next one. Nothing is acked meanwhile, so the broker keeps the messages.
    async fn log_and_wait(&self, error: &BusError, delay: &mut Duration) -> Result<(), Closing> {
        if matches!(error, BusError::Shutdown(_)) {
            return Err(Closing);
        }
        self.counters.count(|all| all.store_failures += 1);
        tracing::error!(target: "redrive::scheduler", %error, "failed messages could not be stored; the broker keeps them");
        let mut closing = self.closing.clone();
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return Err(Closing),
            () = tokio::time::sleep(*delay) => {}
        }
        *delay = (*delay * 2).min(MAX_RETRY_DELAY);
        Ok(())
    }
}

/// Whether the event itself is invalid, so that no retry can store it.
fn is_invalid_event(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::PayloadTooLarge { .. }
            | StoreError::MetadataTooLarge { .. }
            | StoreError::Nul
            | StoreError::Model(_)
    )
}

fn json(task: &Task) -> String {
    serde_json::to_string(task).unwrap_or_default()
}

fn event(task: &Task, payload: &str) -> NewEvent {
    let mut metadata = Metadata::new();
    // The trace of the message continues.
    if let Some(context) =
        task.properties.text(TRACEPARENT).and_then(|text| text.parse::<TraceContext>().ok())
    {
        metadata.insert(TRACEPARENT.to_owned(), context.to_string());
    }
    NewEvent {
        id: task.id(),
        event_type: task_type(),
        payload: payload.into(),
        metadata,
        created_at: task.received_at,
        due_at: Timestamp::from_millis(task.next_retry_at_ms),
        is_scheduled: false,
        retry: None,
        // For the republisher alone: other programs on the same database do not handle tasks.
        to: Routing::Each(vec![republisher()]),
    }
}
