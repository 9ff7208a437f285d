//! Takes failed messages in: stores them, and only then accepts them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redrive::{BusError, EventBus, TraceContext};
use redrive_retry::Timestamp;
use redrive_store::{Appended, EventId, Metadata, NewEvent, Store, StoreError, To};
use tokio::sync::watch;
use uuid::Uuid;

use crate::arrival::{Arrival, Reader};
use crate::aside::Aside;
use crate::metrics::Counters;
use crate::standing::Standing;
use crate::task::{COPIES, ReviewReason, Task, Via, copy_id, courier, task_type};
use crate::transport::{Receipt, Transport};

/// So many counts are looked at one by one to find a free one for a failure that its sender has not counted; then in steps that double.
const SHORT_SEARCH: u32 = 16;
const LONG_SEARCH: u32 = 16;

/// From here on any count is taken.
const BEYOND: u32 = 1 << 30;

/// So many deliveries are remembered that are stored, and of which the broker could not be told so.
const OWED: usize = 10_000;

/// Between two attempts to write a batch.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The name under which events carry their place in a trace, here and in headers.
const TRACEPARENT: &str = "traceparent";

/// Takes failed messages in.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) bus: EventBus,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) reader: Reader,
    pub(crate) counters: Arc<Counters>,
    pub(crate) aside: Aside,
    pub(crate) max_payload: usize,
    pub(crate) most: usize,
    pub(crate) closing: watch::Receiver<bool>,
    /// Stored, and the broker could not be told: each comes once more.
    pub(crate) owed: HashMap<EventId, String>,
}

/// What becomes of a delivery whose task is there already.
enum Known {
    /// It is that task.
    Same,
    /// It is another failure, or may be one: it goes back once more, as this one.
    Another { count: u32, copy: u32 },
}

/// What there is of a message with one count.
enum Seen {
    Nothing,
    /// The task of this very delivery.
    It,
    /// One that looks like this delivery, and may be in its queue by now; and how many there are.
    PerhapsIt {
        copies: u32,
    },
    Others,
}

/// Nothing more is taken in.
struct Closing;

impl Intake {
    /// Until the transport receives nothing more.
    pub(crate) async fn run(mut self) {
        loop {
            let deliveries = self.transport.receive(self.most).await;
            if deliveries.is_empty() {
                return;
            }
            let now = self.store.clock().now();
            self.counters.received.add(deliveries.len());
            let arrivals: Vec<_> =
                deliveries.into_iter().map(|delivery| self.reader.read(delivery, now)).collect();
            if self.take(arrivals).await.is_err() {
                return; // nothing of it was accepted, so the broker has it still
            }
        }
    }

    /// Stores all of them, and accepts them then.
    async fn take(&mut self, arrivals: Vec<Arrival>) -> Result<(), Closing> {
        let mut stored: Vec<(Receipt, EventId, String)> = Vec::with_capacity(arrivals.len());
        let mut open = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            let payload = serde_json::to_string(&arrival.task).unwrap_or_default();
            if payload.len() > self.max_payload {
                let why = format!(
                    "{} bytes are more than the {} that can be stored",
                    payload.len(),
                    self.max_payload
                );
                self.set_aside(arrival, why).await?;
            } else {
                open.push((arrival, payload));
            }
        }
        // One round, unless something has failed again without being counted.
        while !open.is_empty() {
            let events = open.iter().map(|(arrival, payload)| event(&arrival.task, payload)).collect();
            let appended = self.append(events).await?;
            let mut again = Vec::new();
            for ((mut arrival, _), appended) in open.into_iter().zip(appended) {
                let known = match appended {
                    Outcome::Stored(Appended::New) => {
                        self.count_new(&arrival.task);
                        None
                    }
                    Outcome::Stored(Appended::Duplicate) => Some(self.look_up(&arrival).await?),
                    Outcome::Refused(why) => {
                        self.set_aside(arrival, why).await?;
                        continue;
                    }
                };
                match known {
                    Some(Known::Another { count, copy }) => {
                        let counter =
                            if copy == 0 { &self.counters.uncounted } else { &self.counters.copies };
                        counter.add(1);
                        self.reader.recount(&mut arrival.task, count, copy);
                        let payload = serde_json::to_string(&arrival.task).unwrap_or_default();
                        again.push((arrival, payload));
                    }
                    Some(Known::Same) => {
                        self.counters.duplicates.add(1);
                        stored.push((arrival.receipt, arrival.task.id(), arrival.task.fingerprint));
                    }
                    None => stored.push((arrival.receipt, arrival.task.id(), arrival.task.fingerprint)),
                }
            }
            open = again;
        }
        let receipts: Vec<_> = stored.iter().map(|(receipt, ..)| *receipt).collect();
        if !receipts.is_empty() && !self.transport.accept(receipts).await {
            for (_, id, fingerprint) in stored {
                if self.owed.len() < OWED {
                    self.owed.insert(id, fingerprint);
                }
            }
        }
        Ok(())
    }

    fn count_new(&self, task: &Task) {
        match task.for_review() {
            None => self.counters.queue(&task.original_queue, |queue| queue.scheduled += 1),
            Some(_) if task.via == Via::Undecodable => self.counters.undecodable.add(1),
            Some(_) => {}
        }
    }

    /// Stores events, however long that takes. What a store refuses for its own sake is told apart from the others.
    async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Outcome>, Closing> {
        let mut wait = SHORTEST_WAIT;
        loop {
            match self.bus.append(events.clone()).await {
                Ok(appended) => return Ok(appended.into_iter().map(Outcome::Stored).collect()),
                Err(BusError::Store(error)) if is_for_its_own_sake(&error) => {
                    if events.len() == 1 {
                        return Ok(vec![Outcome::Refused(error.to_string())]);
                    }
                    let mut outcomes = Vec::with_capacity(events.len());
                    for event in events {
                        outcomes.extend(Box::pin(self.append(vec![event])).await?);
                    }
                    return Ok(outcomes);
                }
                Err(error) => self.put_up_with(&error, &mut wait).await?,
            }
        }
    }

    /// Whether a delivery whose task is there already is that task, or another failure that its sender has not counted.
    ///
    /// What waits has not gone back yet, or goes back once more: it is that task. What is over, or just under way, may be in its
    /// queue, and may have failed there again. Where the broker says which message it is, that is known. Elsewhere it is known to be
    /// the same only if it looks the same, was delivered before, and the broker could not be told then.
    /// Otherwise it goes back: it is rather tried once too often than lost. It counts as another failure if it was not delivered
    /// before; if it was, nobody knows, and that is not held against the message.
    async fn look_up(&mut self, arrival: &Arrival) -> Result<Known, Closing> {
        let Task { message_id, retry_count, .. } = &arrival.task;
        let mut copy = None;
        let steps = (0..=SHORT_SEARCH).chain((0..LONG_SEARCH).map(|n| SHORT_SEARCH << n));
        for count in steps.map(|step| retry_count.saturating_add(step)) {
            match self.look_at(arrival, count).await? {
                Seen::Nothing => return Ok(copy.unwrap_or(Known::Another { count, copy: 0 })),
                Seen::It => return Ok(Known::Same),
                Seen::PerhapsIt { copies } => copy = Some(Known::Another { count, copy: copies }),
                Seen::Others => {}
            }
        }
        tracing::error!(
            target: "redrive::scheduler", message_id, retry_count,
            "a message has failed more often than can be followed; its sender should count"
        );
        // Any count that is free will do: it goes to a person in any case.
        let beyond = Uuid::new_v4().as_u64_pair().0 % u64::from(BEYOND);
        Ok(Known::Another { count: BEYOND + u32::try_from(beyond).unwrap_or_default(), copy: 0 })
    }

    /// What there is of this message with this count.
    async fn look_at(&mut self, arrival: &Arrival, count: u32) -> Result<Seen, Closing> {
        let Task { message_id, original_queue, original_payload, fingerprint, .. } = &arrival.task;
        let mut is_perhaps = false;
        for copy in 0..=COPIES {
            let id = copy_id(message_id, original_queue, count, copy);
            let Some(event) = self.event(id).await? else {
                return Ok(match copy {
                    0 => Seen::Nothing,
                    copies if is_perhaps => Seen::PerhapsIt { copies },
                    _ => Seen::Others,
                });
            };
            let was_owed = self.owed.remove(&id).is_some();
            let Ok(task) = serde_json::from_str::<Task>(event.payload.get()) else { continue };
            let standing = Standing::of(&event);
            // Under one id there may be two messages.
            if standing.is_waiting() && task.original_payload == *original_payload {
                return Ok(Seen::It);
            }
            if task.fingerprint != *fingerprint {
                continue;
            }
            if arrival.is_certain || arrival.redelivered && was_owed {
                return Ok(Seen::It);
            }
            is_perhaps |= arrival.redelivered;
        }
        Ok(Seen::Others)
    }

    async fn event(&self, id: EventId) -> Result<Option<redrive_store::EventDetail>, Closing> {
        let mut wait = SHORTEST_WAIT;
        loop {
            match self.store.event(id).await {
                Ok(event) => return Ok(Some(event)),
                Err(StoreError::NoSuchEvent { .. }) => return Ok(None),
                Err(error) => self.put_up_with(&error.into(), &mut wait).await?,
            }
        }
    }

    /// What cannot be stored goes to review by itself, and is accepted then.
    async fn set_aside(&mut self, arrival: Arrival, why: String) -> Result<(), Closing> {
        let mut closing = self.closing.clone();
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => Err(Closing),
            () = self.aside.take(arrival, ReviewReason::TooLarge, why) => Ok(()),
        }
    }

    /// The store cannot be written to: nothing is accepted, so the broker keeps it, and it is tried again.
    async fn put_up_with(&self, error: &BusError, wait: &mut Duration) -> Result<(), Closing> {
        if matches!(error, BusError::Shutdown(_)) {
            return Err(Closing);
        }
        self.counters.store_failures.add(1);
        tracing::error!(target: "redrive::scheduler", %error, "failed messages could not be stored; the broker keeps them");
        self.pause(wait).await
    }

    async fn pause(&self, wait: &mut Duration) -> Result<(), Closing> {
        let mut closing = self.closing.clone();
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return Err(Closing),
            () = tokio::time::sleep(*wait) => {}
        }
        *wait = (*wait * 2).min(LONGEST_WAIT);
        Ok(())
    }
}

enum Outcome {
    Stored(Appended),
    Refused(String),
}

/// Whether it is the event that is wrong, and not the store.
fn is_for_its_own_sake(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::PayloadTooLarge { .. }
            | StoreError::MetadataTooLarge { .. }
            | StoreError::Nul
            | StoreError::Model(_)
    )
}

fn event(task: &Task, payload: &str) -> NewEvent {
    let mut metadata = Metadata::new();
    // A trace that the message belongs to goes on.
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
        retry: None,
        // To the courier and nobody else: who works on the same database without one has nothing to do with it.
        to: To::Each(vec![courier()]),
    }
}
