//! The event bus: open, publish, subscribe, start, shut down.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_store::{Appended, EventContent, EventId, NewEvent, Store};
use serde::Serialize;
use tokio::task::JoinHandle;

use crate::builder::EventBusBuilder;
use crate::core::{Core, LEASE_WORK, Phase, record_or_log};
use crate::dispatcher::{self, Dispatcher};
use crate::dlq::DlqInspector;
use crate::error::{BusError, EventBusShutdownError};
use crate::events::Events;
use crate::lock::lock;
use crate::payload::EventPayload;
use crate::publish::{Publish, append, prepare, refuse_taken_id};
use crate::subscription::Subscription;

/// A durable event bus in this process. Cheap to clone; all clones are one bus.
///
/// ```no_run
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::{Event, EventBus, HandlerResult};
///
/// async fn ship(event: Event) -> HandlerResult {
///     let order: serde_json::Value = event.json()?;
///     println!("shipping {order}");
///     Ok(())
/// }
///
/// let bus = EventBus::open("events.db").await?;
/// bus.subscribe("order.*", ship).name("shipping").register()?;
/// bus.start().await?;
///
/// bus.publish("order.created", &serde_json::json!({"order": 7})).await?; // handled, or in the dead-letter queue
/// bus.publish("order.created", &serde_json::json!({"order": 8})).enqueue().await?; // on disk
/// bus.shutdown().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct EventBus {
    pub(crate) core: Arc<Core>,
    pub(crate) tasks: Arc<Tasks>,
}

/// The tasks of the dispatcher, aborted when the last clone of the bus is dropped.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Drop for Tasks {
    /// Drops running handlers, if there was no shutdown. The next start recovers their deliveries; the file is free at once.
    fn drop(&mut self) {
        for task in self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl EventBus {
    /// Opens or creates a SQLite file with the default settings. Only one process may dispatch from it.
    ///
    /// With the feature `postgres`, `postgres://…` opens a database that many processes share.
    pub async fn open(location: impl AsRef<Path>) -> Result<Self, BusError> {
        Self::builder().open(location).await
    }

    /// Starts a builder for other settings.
    pub fn builder() -> EventBusBuilder {
        EventBusBuilder::default()
    }

    /// Publishes an event. Await it for "handled, parked, or in the dead-letter queue", or call [`enqueue`](Publish::enqueue); see [`Publish`].
    pub fn publish(&self, event_type: &str, payload: &impl Serialize) -> Publish {
        Publish::new(self, event_type, payload)
    }

    /// Publishes a payload that names its event type; see [`EventPayload`].
    pub fn publish_typed<P: EventPayload>(&self, payload: &P) -> Publish {
        Publish::new(self, P::TYPE, payload)
    }

    /// Stores several events in one transaction and returns their ids once they are on stable storage.
    pub async fn publish_batch<'a, P: Serialize + 'a>(
        &self,
        events: impl IntoIterator<Item = (&'a str, &'a P)>,
    ) -> Result<Vec<EventId>, BusError> {
        let events: Vec<NewEvent> = events
            .into_iter()
            .map(|(event_type, payload)| prepare(&self.core, event_type, payload))
            .collect::<Result<_, _>>()?;
        let ids = events.iter().map(|event| event.id).collect();
        append(&self.core, events).await?;
        Ok(ids)
    }

    /// Stores [prepared](Publish::into_event) events in one transaction, and returns for each whether it was new. Fails, with nothing
    /// stored, if another event has one of the ids.
    pub async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Appended>, BusError> {
        // The store checks several events.
        let content = if let [only] = events.as_slice() { Some(EventContent::of(only)) } else { None };
        let appended = append(&self.core, events).await?;
        refuse_taken_id(&self.core, &appended, content).await?;
        Ok(appended)
    }

    /// The subscriptions of this bus, in order of registration.
    pub fn subscriptions(&self) -> Vec<Arc<Subscription>> {
        self.core.subscriptions().all().to_vec()
    }

    /// Removes a subscription by its id, also one on record that this process has not registered; returns whether there was one.
    ///
    /// Running handlers continue. Events that were waiting for it, or have failed, become dead letters with the reason `no_subscription`,
    /// unless another subscription takes them.
    ///
    /// For a stored id; with a handle, use [`SubscriptionHandle::unsubscribe`](crate::SubscriptionHandle::unsubscribe).
    pub async fn unsubscribe(&self, id: &str) -> Result<bool, BusError> {
        Ok(self.core.unsubscribe(id).await?)
    }

    /// Recovers deliveries that were running when a process died, and starts to dispatch. Returns how many were recovered.
    pub async fn start(&self) -> Result<usize, BusError> {
        let core = &self.core;
        let _one_at_a_time = core.starting.lock().await;
        match core.phase() {
            Phase::ShuttingDown => return Err(EventBusShutdownError.into()),
            Phase::Started => return Ok(0),
            Phase::Open => {}
        }
        let recorded = core.record_all().await?;
        core.store.subscriptions_propagated().await?;
        let recovered = core.store.recover(core.clock.now()).await?;
        core.counters.recovered(recovered.len());
        for recovered in &recovered {
            dispatcher::log_recovered(core, recovered);
        }
        // Nothing can fail from here on: a start that failed before can be repeated.
        let claims = lock(&core.claims).take();
        let Some(claims) = claims else { return Ok(0) };
        let _ = core.started_at.set(core.clock.now());
        let _ = core.runtime.set(tokio::runtime::Handle::current());
        let is_open = core.phase.send_if_modified(|phase| {
            let is_open = *phase == Phase::Open;
            if is_open {
                *phase = Phase::Started;
            }
            is_open
        });
        if !is_open {
            return Err(EventBusShutdownError.into());
        }
        // Subscriptions registered during the start are recorded neither by `record_all` nor by `register`.
        let is_recorded = |late: &&Arc<Subscription>| {
            recorded.named(late.name.as_str()).is_some_and(|recorded| Arc::ptr_eq(recorded, late))
        };
        for late in core.subscriptions().all().iter().filter(|late| !is_recorded(late)) {
            tokio::spawn(record_or_log(Arc::clone(core), late.name.clone()));
        }
        let tasks = [
            tokio::spawn(dispatcher::run_claimed(Arc::clone(core), claims)),
            tokio::spawn(dispatcher::claim_loop(Arc::clone(core))),
            tokio::spawn(dispatcher::heartbeat_loop(Arc::clone(core))),
            tokio::spawn(dispatcher::maintenance_loop(Arc::clone(core))),
            tokio::spawn(dispatcher::sync_shared_state(Arc::clone(core))),
            tokio::spawn(dispatcher::backlog_loop(Arc::clone(core))),
            tokio::spawn(dispatcher::follow_wall_clock(Arc::clone(core))),
        ];
        lock(&self.tasks.0).extend(tasks);
        Ok(recovered.len())
    }

    /// Refuses new events, waits for running handlers (default 30 s) and closes the store. A second call is harmless.
    ///
    /// Deliveries that wait for a retry, or could not finish in time, continue at the next start.
    pub async fn shutdown(&self) -> Result<(), BusError> {
        self.shutdown_within(self.core.settings.shutdown_timeout).await
    }

    /// Shuts down like [`shutdown`](Self::shutdown), with this timeout for running handlers.
    pub async fn shutdown_within(&self, timeout: Duration) -> Result<(), BusError> {
        let core = &self.core;
        core.phase.send_replace(Phase::ShuttingDown);
        core.switch(|switch| switch.dispatches = false);
        core.subscriptions().all().iter().for_each(|subscription| subscription.admission.close());
        match core.virtual_time.get() {
            Some(time) => time.drive(self.wait_for_running(timeout)).await,
            None => self.wait_for_running(timeout).await,
        }
        let tasks = std::mem::take(&mut *lock(&self.tasks.0));
        for task in tasks {
            task.abort();
            let _ = task.await; // aborted or ended
        }
        let closed = core.store.close().await;
        core.waiters.clear();
        Ok(closed?)
    }

    /// Waits for the deliveries in flight and for leases that are being granted or ended, at most this long. No lease is ended afterwards.
    async fn wait_for_running(&self, timeout: Duration) {
        let core = &self.core;
        let drained = async {
            // Queues behind all earlier appends, so their claims are in flight afterwards. The result does not matter.
            let _ = core.store.claim(core.clock.now()).await;
            core.sink.idle().await;
            let all = core.lease_work.acquire_many(LEASE_WORK).await; // an error: another shutdown has closed it
            core.lease_work.close();
            drop(all);
        };
        tokio::select! {
            biased;
            () = drained => {}
            () = core.clock.sleep(timeout) => {
                let left = core.in_flight();
                tracing::warn!(target: "redrive::dispatcher", left, "the shutdown timeout ended running handlers");
            }
        }
    }

    /// The dead-letter queue: list, retry, purge.
    pub fn dlq(&self) -> DlqInspector {
        DlqInspector::new(Arc::clone(&self.core.store), self.core.clock.clone())
    }

    /// Looks events up, of any status.
    pub fn events(&self) -> Events {
        Events { store: Arc::clone(&self.core.store) }
    }

    /// Pauses and resumes dispatching of the whole bus.
    pub fn dispatcher(&self) -> Dispatcher {
        Dispatcher { core: Arc::clone(&self.core) }
    }

    /// Counters since the bus was opened, and the depth of the queues now.
    #[cfg(feature = "metrics")]
    pub async fn metrics(&self) -> Result<crate::metrics::Metrics, BusError> {
        let mut metrics = self.metrics_in_memory();
        metrics.depth = self.core.store.depth().await?;
        Ok(metrics)
    }

    /// Counters since the bus was opened, without a query: works while the store is unreachable and after a shutdown.
    #[cfg(feature = "metrics")]
    pub fn metrics_in_memory(&self) -> crate::metrics::Metrics {
        let core = &self.core;
        let mut metrics = core.counters.snapshot();
        metrics.in_flight = core.in_flight();
        // A subscription without patterns only drains its old deliveries.
        for subscription in
            core.subscriptions().all().iter().filter(|one| one.patterns.iter().next().is_some())
        {
            let name = subscription.name.to_string();
            metrics.budgets.extend(subscription.retries_left().map(|left| (name.clone(), left)));
            metrics.reduced_rates.extend(subscription.reduced_rate().map(|rate| (name.clone(), rate)));
            metrics.breakers.insert(name.clone(), subscription.breaker());
            metrics.subscriptions.insert(name, subscription.counters.snapshot());
        }
        metrics
    }

    /// The store of this bus.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    /// Looks for due work at once, after a transactional publish. Otherwise the dispatcher finds it within half a second.
    pub fn wake(&self) {
        self.core.store.due_hint().pull_forward(self.core.clock.now());
    }
}
