//! Publishing: one builder, two ways to end it.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::{RetryOverride, Timestamp};
use redrive_store::{
    Appended, EventId, EventStatus, EventType, Finished, Metadata, NewEvent, StoreError, To,
};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::bus::EventBus;
use crate::core::{Core, Phase, Tracking};
use crate::error::{BusError, EventBusShutdownError};
use crate::handler::BoxFuture;
use crate::payload;
use crate::trace::{CURRENT, TRACEPARENT, TraceContext};

/// How often whoever waits for the end of an event looks whether another process has brought it about.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An event about to be published.
///
/// Awaiting it waits until the event is handled or in the dead-letter queue; [`enqueue`](Self::enqueue) only until it is
/// on stable storage, and lets delivery go on in the background.
#[must_use = "nothing is published until this is awaited or enqueued"]
pub struct Publish {
    core: Arc<Core>,
    event: Result<NewEvent, BusError>,
}

impl Publish {
    pub(crate) fn new(bus: &EventBus, event_type: &str, payload: &impl Serialize) -> Self {
        Publish { core: Arc::clone(bus.core()), event: prepare(bus.core(), event_type, payload) }
    }

    fn set(mut self, change: impl FnOnce(&mut NewEvent)) -> Self {
        if let Ok(event) = &mut self.event {
            change(event);
        }
        self
    }

    /// An id of your own. Publishing the same id twice is one event.
    pub fn id(self, id: EventId) -> Self {
        self.set(|event| event.id = id)
    }

    /// An additional fact.
    pub fn metadata(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(|event| {
            event.metadata.insert(name.into(), value.into());
        })
    }

    /// The place in a trace that this event belongs to, as the W3C header `traceparent` writes it. What a handler publishes
    /// belongs to the trace of its event without being told.
    pub fn traceparent(self, context: TraceContext) -> Self {
        self.metadata(TRACEPARENT, context.to_string())
    }

    /// Not to be handled before this instant.
    pub fn due_at(self, at: Timestamp) -> Self {
        self.set(|event| event.due_at = at)
    }

    /// Not to be handled before this much time has passed.
    pub fn delay(self, delay: Duration) -> Self {
        self.set(|event| event.due_at = event.created_at + delay)
    }

    /// A retry policy of its own, field by field, over whatever the subscriptions want.
    pub fn retry(mut self, retry: RetryOverride) -> Self {
        // Refused here and not when it is too late: it must hold with the policy of the bus.
        if let Err(error) = retry.apply_to(&self.core.policy) {
            self.event = self.event.and(Err(error.into()));
            return self;
        }
        self.set(|event| event.retry = Some(retry))
    }

    /// Returns as soon as the event is on stable storage; it is handled in the background.
    pub async fn enqueue(self) -> Result<EventId, BusError> {
        let event = self.event?;
        let id = event.id;
        append(&self.core, vec![event]).await?;
        Ok(id)
    }

    /// The event itself, to be stored together with others by [`EventBus::append`], or in a transaction of your own with
    /// `redrive::sqlite::append_in`.
    pub fn into_event(self) -> Result<NewEvent, BusError> {
        self.event
    }

    async fn finish(self) -> Result<EventId, BusError> {
        let Publish { core, event } = self;
        let event = event?;
        let id = event.id;
        match core.phase() {
            Phase::Open => return Err(BusError::NotStarted),
            Phase::ShuttingDown => return Err(EventBusShutdownError.into()),
            Phase::Started => {}
        }
        let _gone = ForgetWhenGone { core: &core, id }; // dropped after what it registers
        let finished = core.waiters.register(id);
        let appended = append(&core, vec![event]).await;
        if !matches!(appended.as_deref(), Ok([Appended::New])) {
            // Not stored, or there before: then its end may have passed already, and nobody would say so again.
            let over = match &appended {
                Ok(_) => matches!(core.store.event(id).await?.status, EventStatus::Done | EventStatus::Dlq),
                Err(_) => true,
            };
            if over {
                return appended.map(|_| id);
            }
        }
        end_of(&core, id, finished).await
    }
}

/// Waits for the end of an event. Where other processes may bring it about, they say nothing here: so it is looked up, too.
async fn end_of(
    core: &Core,
    id: EventId,
    mut finished: oneshot::Receiver<Finished>,
) -> Result<EventId, BusError> {
    let mut phase = core.phase.subscribe();
    loop {
        // Whoever shuts down tells everybody who still waits, at the end of it.
        let looks = core.store.is_shared() && *phase.borrow_and_update() != Phase::ShuttingDown;
        tokio::select! {
            biased;
            ended = &mut finished => return ended.map(|_| id).map_err(|_| BusError::NotFinished { id }),
            _ = phase.changed(), if looks => continue,
            () = core.clock.sleep(LOOK_AGAIN), if looks => {}
        }
        match core.store.event(id).await {
            Ok(event) if !matches!(event.status, EventStatus::Done | EventStatus::Dlq) => {}
            // Deleted since is over, too.
            Ok(_) | Err(StoreError::NoSuchEvent { .. }) => return Ok(id),
            // Whoever settles it here will say so, or the next look will.
            Err(_) => {}
        }
    }
}

/// Whoever stops waiting, for whatever reason, leaves nothing behind.
struct ForgetWhenGone<'a> {
    core: &'a Core,
    id: EventId,
}

impl Drop for ForgetWhenGone<'_> {
    fn drop(&mut self) {
        self.core.waiters.forget_gone(self.id);
    }
}

pub(crate) fn prepare(core: &Core, event_type: &str, payload: &impl Serialize) -> Result<NewEvent, BusError> {
    let now = core.clock.now();
    let mut metadata = Metadata::new();
    if let Ok(context) = CURRENT.try_with(TraceContext::to_string) {
        metadata.insert(TRACEPARENT.to_owned(), context);
    }
    Ok(NewEvent {
        id: EventId::new(),
        event_type: EventType::new(event_type)?,
        payload: payload::to_json(payload)?,
        metadata,
        created_at: now,
        due_at: now,
        retry: None,
        to: To::All,
    })
}

/// Stores events, addressed to each subscription if each is tracked on its own. What nobody wants is over at once; where others may
/// want it, those who handle it find out.
pub(crate) async fn append(core: &Core, mut events: Vec<NewEvent>) -> Result<Vec<Appended>, BusError> {
    if core.phase() == Phase::ShuttingDown {
        return Err(EventBusShutdownError.into());
    }
    let mut unwanted = Vec::new();
    for (place, event) in events.iter_mut().enumerate() {
        let matching = core.subscriptions().matching(&event.event_type);
        if !matching.is_empty() && core.tracking == Tracking::PerSubscription {
            let elsewhere = core.subscribed_elsewhere(&event.event_type).await?;
            let here = matching.iter().map(|subscription| subscription.name.clone());
            event.to = To::Each(here.chain(elsewhere).collect());
        }
        if matching.is_empty() && core.would_be_over(event) {
            event.to = To::Nobody;
            unwanted.push((place, event.id, event.event_type.clone()));
        }
    }
    let appended = core.store.append(events).await?;
    let new = appended.iter().filter(|appended| **appended == Appended::New).count() as u64;
    core.counters.published(new, appended.len() as u64 - new);
    for (place, id, event_type) in unwanted {
        if appended.get(place) == Some(&Appended::New) {
            let finished = Finished::Done { retried: false };
            core.counters.dispatched(Duration::ZERO); // nothing was waited for
            core.counters.unmatched();
            core.counters.finished(&event_type, finished);
            core.waiters.finish(id, finished);
        }
    }
    Ok(appended)
}

impl EventBus {
    /// Stores events that were [prepared](Publish::into_event), all or none, and says for each whether it was new. Returns once
    /// they are on stable storage.
    pub async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Appended>, BusError> {
        append(self.core(), events).await
    }
}

impl IntoFuture for Publish {
    type Output = Result<EventId, BusError>;
    type IntoFuture = BoxFuture<Result<EventId, BusError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.finish())
    }
}

impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publish").field("event", &self.event).finish_non_exhaustive()
    }
}
