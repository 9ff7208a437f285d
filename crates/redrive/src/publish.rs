//! Publishing: a builder that is awaited until the event is handled, or enqueued until it is on disk.
//!
//! The bus finds the matching subscriptions and passes the event to the store, which commits it. If the event is due and an in-flight
//! slot is free, the same transaction claims it, and the store sends it to the [dispatcher](crate::dispatcher) once it is committed. An
//! awaited publish waits until the last delivery is settled.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::{RetryOverride, Timestamp};
use redrive_store::{
    Appended, EventContent, EventId, EventStatus, EventType, Finished, Metadata, NewEvent, Routing,
    StoreError,
};
use serde::Serialize;

use crate::builder::Tracking;
use crate::bus::EventBus;
use crate::core::{Core, Phase};
use crate::error::{BusError, EventBusShutdownError};
use crate::handler::BoxFuture;
use crate::payload;
use crate::trace::{CURRENT, TRACEPARENT, TraceContext};
use crate::wait_for_end::wait_for_end;

/// An event to be published.
///
/// Awaiting it returns when every matching subscription has handled the event, the event is in the dead-letter queue, or only
/// deliveries are left that wait behind an open circuit, a spent budget or a limit, for a pull consumer, or for a
/// [paused](crate::SubscriptionHandle::pause) or absent subscription. [`enqueue`](Self::enqueue) returns as soon as the
/// event is on stable storage, and the bus delivers it in the background.
#[derive(Debug)]
#[must_use = "nothing is published until this is awaited or enqueued"]
pub struct Publish {
    core: Arc<Core>,
    event: Result<NewEvent, BusError>,
    /// Whether the caller chose the id, which may be that of another event.
    has_chosen_id: bool,
}

impl Publish {
    pub(crate) fn new(bus: &EventBus, event_type: &str, payload: &impl Serialize) -> Self {
        Publish {
            core: Arc::clone(&bus.core),
            event: prepare(&bus.core, event_type, payload),
            has_chosen_id: false,
        }
    }

    fn set(mut self, change: impl FnOnce(&mut NewEvent)) -> Self {
        if let Ok(event) = &mut self.event {
            change(event);
        }
        self
    }

    /// Sets the id. Publishing the same id twice stores one event; with another type or payload it fails with
    /// [`StoreError::IdTaken`].
    pub fn id(self, id: EventId) -> Self {
        Publish { has_chosen_id: true, ..self.set(|event| event.id = id) }
    }

    /// Adds an entry to the metadata.
    pub fn metadata(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(|event| {
            event.metadata.insert(name.into(), value.into());
        })
    }

    /// Sets the trace context, as in the W3C header `traceparent`. Events that a handler publishes join the trace of its event anyway.
    pub fn traceparent(self, context: TraceContext) -> Self {
        self.metadata(TRACEPARENT, context.to_string())
    }

    /// Schedules the event: it is not handled before this instant, even if the machine's clock is set meanwhile.
    pub fn due_at(self, at: Timestamp) -> Self {
        self.set(|event| (event.due_at, event.is_scheduled) = (at, true))
    }

    /// Schedules the event: it is not handled before this much time has passed.
    pub fn delay(self, delay: Duration) -> Self {
        self.set(|event| (event.due_at, event.is_scheduled) = (event.created_at + delay, false))
    }

    /// Overrides the retry policy for this event, field by field, before the overrides of subscriptions.
    pub fn retry(mut self, retry: RetryOverride) -> Self {
        // Checked here, while the publisher can still react.
        if let Err(error) = retry.apply_to(&self.core.settings.policy) {
            self.event = self.event.and(Err(error.into()));
            return self;
        }
        self.set(|event| event.retry = Some(retry))
    }

    /// Returns as soon as the event is on stable storage; the bus delivers it in the background.
    pub async fn enqueue(self) -> Result<EventId, BusError> {
        let event = self.event?;
        let (id, content) = (event.id, self.has_chosen_id.then(|| EventContent::of(&event)));
        let appended = append(&self.core, vec![event]).await?;
        refuse_taken_id(&self.core, &appended, content).await?;
        Ok(id)
    }

    /// Returns the event itself, to be stored by [`EventBus::append`] or in the caller's transaction by
    /// `redrive::store::sqlite::append_in`.
    pub fn into_event(self) -> Result<NewEvent, BusError> {
        self.event
    }

    async fn finish(self) -> Result<EventId, BusError> {
        let Publish { core, event, has_chosen_id } = self;
        let event = event?;
        let (id, due_at) = (event.id, event.due_at);
        let content = has_chosen_id.then(|| EventContent::of(&event));
        match core.phase() {
            Phase::Open => return Err(BusError::NotStarted),
            Phase::ShuttingDown => return Err(EventBusShutdownError.into()),
            Phase::Started => {}
        }
        let _forget = ForgetOnDrop { core: &core, id }; // dropped after the receiver that it removes
        let finished = core.waiters.register(id);
        let deferrals = core.deferrals.subscribe(); // before the append, so that none is missed
        let appended = append(&core, vec![event]).await;
        if !matches!(appended.as_deref(), Ok([Appended::New])) {
            refuse_taken_id(&core, appended.as_deref().unwrap_or_default(), content).await?;
            // Not stored, or a duplicate: it may have ended before, and no notification would come.
            let is_over = match &appended {
                Ok(_) => matches!(core.store.event(id).await?.status, EventStatus::Done | EventStatus::Dlq),
                Err(_) => true,
            };
            if is_over {
                return appended.map(|_| id);
            }
            // A duplicate of an event that is parked already gets no notification. A new event pays no read.
            if core.clock.now() >= due_at {
                core.release_publisher_if_parked(id).await;
            }
        }
        wait_for_end(&core, id, due_at, finished, deferrals).await
    }
}

/// Fails if an event was not stored because another event has its id.
pub(crate) async fn refuse_taken_id(
    core: &Core,
    appended: &[Appended],
    content: Option<EventContent>,
) -> Result<(), BusError> {
    if let (Some(content), [Appended::Duplicate]) = (content, appended)
        && let [id] = core.store.taken_ids(vec![content]).await?[..]
    {
        return Err(StoreError::IdTaken { id }.into());
    }
    Ok(())
}

/// Removes a publisher that stopped waiting, for any reason.
struct ForgetOnDrop<'a> {
    core: &'a Core,
    id: EventId,
}

impl Drop for ForgetOnDrop<'_> {
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
        is_scheduled: false,
        retry: None,
        to: Routing::Matching,
    })
}

/// Stores events; with [`Tracking::PerSubscription`], one delivery for each matching subscription. An event without a matching
/// subscription is stored as done, unless another process may have one.
pub(crate) async fn append(core: &Core, mut events: Vec<NewEvent>) -> Result<Vec<Appended>, BusError> {
    if core.phase() == Phase::ShuttingDown {
        return Err(EventBusShutdownError.into());
    }
    let mut unmatched = Vec::new();
    for (index, event) in events.iter_mut().enumerate() {
        let matching = core.subscriptions().matching(&event.event_type);
        if !matching.is_empty() && core.settings.tracking == Tracking::PerSubscription {
            let remote = core.remote_subscriptions(&event.event_type).await?;
            let here = matching.iter().map(|subscription| subscription.name.clone());
            event.to = Routing::Each(here.chain(remote).collect());
        }
        if matching.is_empty() && core.done_if_unmatched(event) {
            event.to = Routing::None;
            unmatched.push((index, event.id, event.event_type.clone()));
        }
    }
    let appended = core.store.append(events).await?;
    let new = appended.iter().filter(|appended| **appended == Appended::New).count();
    core.counters.published(new);
    core.counters.duplicates(appended.len() - new);
    for (index, id, event_type) in unmatched {
        if appended.get(index) == Some(&Appended::New) {
            let finished = Finished::Done { retried: false };
            core.counters.dispatched(Duration::ZERO); // no dispatch to wait for
            core.counters.unmatched(1);
            core.counters.finished(&event_type, finished);
            core.waiters.release(id);
        }
    }
    Ok(appended)
}

impl IntoFuture for Publish {
    type Output = Result<EventId, BusError>;
    type IntoFuture = BoxFuture<Result<EventId, BusError>>;

    fn into_future(self) -> Self::IntoFuture {
        let virtual_time = self.core.virtual_time.get().cloned();
        Box::pin(async move {
            match virtual_time {
                Some(time) => time.drive(self.finish()).await,
                None => self.finish().await,
            }
        })
    }
}
