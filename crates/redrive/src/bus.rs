//! The event bus: publish, subscribe, start, shut down.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use redrive_retry::BreakerConfig;
use redrive_store::{Claimed, EventId, NewEvent, Store, SubscriptionName, SubscriptionRow};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use crate::budget::Budget;
use crate::builder::EventBusBuilder;
use crate::circuit::Circuit;
use crate::core::{Core, Phase};
use crate::dispatcher::{self, Dispatcher};
use crate::dlq::DlqInspector;
use crate::error::{BusError, EventBusShutdownError};
use crate::event::Event;
use crate::handler::Handler;
use crate::lane::{Lane, Limits};
use crate::middleware::{Middleware, surround};
use crate::pattern::Patterns;
use crate::payload::EventPayload;
use crate::publish::{Publish, append, prepare};
use crate::pull::PullQueue;
use crate::subscription::{DEFAULT_TIMEOUT, Holding, Registration, Subscribe, Subscription};

/// How long an event that was fetched may be held at most, and how many of one subscription at once.
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 3600);
const LEASES: Limits = Limits { concurrency: 1000, per_second: None };

/// A durable event bus in this process. Cheap to clone; all clones are one bus.
///
/// ```no_run
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::{BoxError, Event, EventBus};
///
/// let bus = EventBus::open("events.db").await?;
/// bus.subscribe("order.*", |event: Event| async move {
///     let order: serde_json::Value = event.json()?;
///     println!("shipping {order}");
///     Ok::<_, BoxError>(())
/// })
/// .name("shipping")
/// .register()?;
/// bus.start().await?;
///
/// bus.publish("order.created", &serde_json::json!({"order": 7})).await?; // handled, or in the dead-letter queue
/// bus.publish("order.created", &serde_json::json!({"order": 8})).enqueue().await?; // on disk
/// bus.shutdown().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EventBus {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    shutdown_timeout: Duration,
    /// Those that were on record when the bus was opened.
    known: HashMap<SubscriptionName, SubscriptionRow>,
    /// Around every handler; the first one is outermost.
    middleware: Vec<Arc<dyn Middleware>>,
    /// Taken by `start`.
    claims: Mutex<Option<UnboundedReceiver<Claimed>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Held while the bus starts.
    starting: tokio::sync::Mutex<()>,
    /// Where the bus was started.
    runtime: OnceLock<tokio::runtime::Handle>,
}

impl Drop for Inner {
    /// Without a shutdown, what is being handled is dropped and goes on at the next start; the file is free at once.
    fn drop(&mut self) {
        for task in self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl EventBus {
    /// Opens or creates a file with the defaults. Only one process may dispatch from it. With the feature `postgres`,
    /// `postgres://…` is a server that many processes share.
    pub async fn open(location: impl AsRef<Path>) -> Result<Self, BusError> {
        Self::builder().open(location).await
    }

    /// To change the defaults.
    pub fn builder() -> EventBusBuilder {
        EventBusBuilder::default()
    }

    pub(crate) async fn new(
        core: Core,
        claims: UnboundedReceiver<Claimed>,
        middleware: Vec<Arc<dyn Middleware>>,
        shutdown_timeout: Duration,
    ) -> Result<Self, BusError> {
        let known =
            core.store.subscriptions().await?.into_iter().map(|row| (row.name.clone(), row)).collect();
        Ok(EventBus {
            inner: Arc::new(Inner {
                core: Arc::new(core),
                shutdown_timeout,
                known,
                middleware,
                claims: Mutex::new(Some(claims)),
                tasks: Mutex::default(),
                starting: tokio::sync::Mutex::default(),
                runtime: OnceLock::new(),
            }),
        })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    /// Begins to publish an event. Await it for "handled, or in the dead-letter queue"; see [`Publish`].
    pub fn publish(&self, event_type: &str, payload: &impl Serialize) -> Publish {
        Publish::new(self, event_type, payload)
    }

    /// The same for a payload that knows its type.
    pub fn publish_typed<P: EventPayload>(&self, payload: &P) -> Publish {
        Publish::new(self, P::TYPE, payload)
    }

    /// Stores several events, all or none, and returns their ids once they are on stable storage.
    pub async fn publish_batch<'a, P: Serialize + 'a>(
        &self,
        events: impl IntoIterator<Item = (&'a str, &'a P)>,
    ) -> Result<Vec<EventId>, BusError> {
        let events: Vec<NewEvent> = events
            .into_iter()
            .map(|(event_type, payload)| prepare(self.core(), event_type, payload))
            .collect::<Result<_, _>>()?;
        let ids = events.iter().map(|event| event.id).collect();
        append(self.core(), events).await?;
        Ok(ids)
    }

    /// Begins to subscribe a handler to the events that a pattern matches; [`register`](Subscribe::register) does it.
    pub fn subscribe(&self, pattern: impl Into<String>, handler: impl Handler) -> Subscribe<'_> {
        Subscribe {
            bus: self,
            pattern: pattern.into(),
            handler: Arc::new(handler),
            middleware: Vec::new(),
            name: None,
            timeout: DEFAULT_TIMEOUT,
            retry: None,
            breaker: BreakerConfig::default(),
            has_common_circuit: false,
            budget: None,
            has_common_budget: false,
            is_idempotent: false,
            limits: None,
            is_addressed_only: false,
            is_elsewhere: false,
            is_afresh: false,
            demand: None,
        }
    }

    /// The same for a queue from which events are fetched, by whomever. A lease has no limit but the one that is asked for.
    pub fn subscribe_queue(&self, patterns: impl Into<String>, queue: &PullQueue) -> Subscribe<'_> {
        // Who gives something back says nothing about the others: there is no circuit.
        let no_circuit = BreakerConfig::builder().min_samples(u32::MAX).build().expect("these are valid");
        let subscribe = self.subscribe(patterns, queue.clone()).timeout(LONGEST_LEASE).limits(LEASES);
        let mut subscribe = subscribe.breaker(no_circuit).elsewhere();
        subscribe.demand = Some(queue.demand());
        subscribe
    }

    /// The same for a handler that takes the payload as its type. A payload that does not fit goes to the dead-letter
    /// queue at once.
    pub fn subscribe_typed<P, F, Fut, E>(&self, handler: F) -> Subscribe<'_>
    where
        P: EventPayload,
        F: Fn(P, Event) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<redrive_retry::BoxError> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.subscribe(P::TYPE, move |event: Event| {
            let handler = Arc::clone(&handler);
            async move {
                let payload = event.json::<P>()?;
                handler(payload, event).await.map_err(redrive_retry::Failure::new)
            }
        })
    }

    pub(crate) fn register(
        &self,
        subscribe: Subscribe<'_>,
        registration: Registration,
    ) -> Result<String, BusError> {
        let core = self.core();
        if core.phase() == Phase::ShuttingDown {
            return Err(EventBusShutdownError.into());
        }
        let patterns =
            if subscribe.is_addressed_only { Patterns::none() } else { subscribe.pattern.parse()? };
        if let Some(retry) = &subscribe.retry {
            retry.apply_to(&core.policy)?;
        }
        let budget = match subscribe.budget {
            None if !subscribe.has_common_budget => None,
            config => {
                let config = config.unwrap_or_default().for_waiting()?;
                let is_common = subscribe.has_common_budget && core.store.is_shared();
                Some(if is_common {
                    Budget::in_common(config, core.clock.now())
                } else {
                    Budget::new(config)
                })
            }
        };
        let mut subscriptions = core.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
        let taken = |name: &str| subscriptions.named(name).is_some();
        let name = match subscribe.name {
            Some(name) if registration == Registration::New && taken(&name) => {
                return Err(BusError::NameTaken { name });
            }
            Some(name) => name,
            // The order among those of one pattern is the same at every start.
            None => (1..).map(|n| format!("{patterns}#{n}")).find(|name| !taken(name)).unwrap_or_default(),
        };
        let name = SubscriptionName::new(name)?;
        let before = subscriptions.named(name.as_str());
        let counters = before.map(|before| Arc::clone(&before.counters)).unwrap_or_default();
        let before = before.map(|before| before.row());
        let known = before.as_ref().or_else(|| self.inner.known.get(&name));
        let id = known.map_or_else(|| EventId::random().to_string(), |row| row.id.clone());
        let handler = surround(surround(subscribe.handler, &subscribe.middleware), &self.inner.middleware);
        let (clock, now) = (core.clock.clone(), core.clock.now());
        let circuit = if subscribe.has_common_circuit {
            Circuit::in_common(subscribe.breaker, clock, name.clone(), Arc::clone(&core.news))
        } else {
            Circuit::new(subscribe.breaker, clock)
        };
        let subscription = Subscription {
            name,
            id: id.clone(),
            patterns,
            created_at: known.map_or(now, |row| row.created_at),
            handler,
            timeout: subscribe.timeout,
            retry: subscribe.retry,
            circuit,
            budget,
            is_idempotent: subscribe.is_idempotent,
            is_elsewhere: subscribe.is_elsewhere,
            holding: Holding::default(),
            counters,
            lane: subscribe
                .limits
                .map(|limits| Arc::new(Lane::new(limits, now, Arc::clone(&core.room), subscribe.demand))),
        };
        let name = subscription.name.clone();
        let subscription = Arc::new(subscription);
        if let (Some(lane), Some(before)) = (&subscription.lane, subscriptions.named(name.as_str()))
            && let Some(before) = before.lane.as_ref().filter(|_| !subscribe.is_afresh)
        {
            lane.go_on_from(before, now);
        }
        let before = Arc::make_mut(&mut subscriptions).put(subscription);
        drop(subscriptions);
        // Who waits in memory for the one before goes back to the disk, and is called up by the new one.
        if let Some(lane) = before.as_ref().and_then(|before| before.lane.as_ref()) {
            lane.shut();
        }
        core.news.notify_one();
        core.room.notify_one();
        if let Some(runtime) = self.inner.runtime.get().filter(|_| core.phase() == Phase::Started) {
            runtime.spawn(take_down(Arc::clone(core), name));
        }
        Ok(id)
    }

    /// Resolves when a subscription that was made after the start is on record, and no other process that shares the database goes by
    /// what it knew before: what is published anywhere from then on is owed to it, as long as this process says that it lives. What others
    /// publish while it is taken for dead is matched without it.
    pub async fn announce(&self, name: &SubscriptionName) -> Result<(), BusError> {
        self.core().record(name).await?;
        Ok(self.core().store.all_have_heard().await?)
    }

    /// The subscriptions of this bus, in the order in which they were made.
    pub fn subscriptions(&self) -> Vec<Arc<Subscription>> {
        self.core().subscriptions().all().to_vec()
    }

    /// Removes a subscription by its id; says whether it was there. What runs goes on; what it is owed stays on disk.
    pub async fn unsubscribe(&self, id: &str) -> Result<bool, BusError> {
        let removed = {
            let core = self.core();
            let mut subscriptions = core.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
            Arc::make_mut(&mut subscriptions).remove(id)
        };
        let Some(removed) = removed else { return Ok(false) };
        self.core().record(&removed.name).await?;
        Ok(true)
    }

    /// Takes back what was running when the process died, and begins to dispatch. Returns how much was taken back.
    pub async fn start(&self) -> Result<usize, BusError> {
        let core = self.core();
        let _one_at_a_time = self.inner.starting.lock().await;
        match core.phase() {
            Phase::ShuttingDown => return Err(EventBusShutdownError.into()),
            Phase::Started => return Ok(0),
            Phase::Open => {}
        }
        let known = core.record_all().await?;
        core.store.all_have_heard().await?;
        let recovered = core.store.recover(core.clock.now()).await?;
        core.counters.recovered(recovered.len());
        for unit in &recovered {
            dispatcher::log_recovered(core, unit);
        }
        // Only now, when nothing can fail any more: a start that failed can be repeated.
        let claims = self.inner.claims.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(claims) = claims else { return Ok(0) };
        let _ = self.inner.runtime.set(tokio::runtime::Handle::current());
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
        // Who subscribed meanwhile was too late for the one, and too early for the other.
        let is_known = |late: &&Arc<Subscription>| {
            known.named(late.name.as_str()).is_some_and(|known| Arc::ptr_eq(known, late))
        };
        for late in core.subscriptions().iter().filter(|late| !is_known(late)) {
            tokio::spawn(take_down(Arc::clone(core), late.name.clone()));
        }
        let tasks = [
            tokio::spawn(dispatcher::take_in(Arc::clone(core), claims)),
            tokio::spawn(dispatcher::keep_time(Arc::clone(core))),
            tokio::spawn(dispatcher::keep_alive(Arc::clone(core))),
            tokio::spawn(dispatcher::keep_order(Arc::clone(core))),
            tokio::spawn(dispatcher::keep_in_touch(Arc::clone(core))),
            tokio::spawn(dispatcher::keep_lanes(Arc::clone(core))),
        ];
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks);
        Ok(recovered.len())
    }

    /// Refuses new events, waits for what is being handled (default 30 s), and closes the file. What waits for a retry is
    /// on disk and goes on at the next start; so does what could not be finished in time. A second call is harmless.
    pub async fn shutdown(&self) -> Result<(), BusError> {
        self.shutdown_within(self.inner.shutdown_timeout).await
    }

    /// The same for who has so much time, and no more.
    pub async fn shutdown_within(&self, within: Duration) -> Result<(), BusError> {
        let core = self.core();
        core.phase.send_replace(Phase::ShuttingDown);
        core.gate.dispatch(false, &core.store, &core.sink);
        for lane in core.subscriptions().iter().filter_map(|subscription| subscription.lane.as_ref()) {
            lane.shut();
        }
        let drained = async {
            // Passes behind all that was sent before: what of it was claimed is in flight now. Whether it works does not matter.
            let _ = core.store.claim(core.clock.now()).await;
            core.sink.idle().await;
        };
        tokio::select! {
            biased;
            () = drained => {}
            () = core.clock.sleep(within) => {
                let left = core.in_flight - core.sink.room();
                tracing::warn!(target: "redrive::dispatcher", left, "shutting down before everything was handled");
            }
        }
        let tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task.abort();
            let _ = task.await; // aborted or ended: either way it is gone
        }
        let closed = core.store.close().await;
        core.waiters.clear();
        Ok(closed?)
    }

    /// The dead-letter queue of this bus.
    pub fn dlq(&self) -> DlqInspector {
        DlqInspector::new(Arc::clone(&self.core().store), self.core().clock.clone())
    }

    /// To hold dispatching up and to let it go on.
    pub fn dispatcher(&self) -> Dispatcher {
        Dispatcher::new(Arc::clone(self.core()))
    }

    /// What has happened since the bus was opened, and how things stand now.
    #[cfg(feature = "metrics")]
    pub async fn metrics(&self) -> Result<crate::metrics::Metrics, BusError> {
        let mut metrics = self.counted();
        metrics.depth = self.core().store.depth().await?;
        Ok(metrics)
    }

    /// The same without asking the store, so without how much waits: also when it cannot be reached, and after a shutdown.
    #[cfg(feature = "metrics")]
    pub fn counted(&self) -> crate::metrics::Metrics {
        let core = self.core();
        let mut metrics = core.counters.snapshot();
        metrics.in_flight = self.dispatcher().in_flight();
        // One that is about to go has nothing to say.
        for subscription in core.subscriptions().iter().filter(|one| one.patterns.iter().next().is_some()) {
            let name = subscription.name.to_string();
            metrics.budgets.extend(subscription.retries_left().map(|left| (name.clone(), left)));
            metrics.breakers.insert(name.clone(), subscription.breaker());
            metrics.subscriptions.insert(name, subscription.counters.snapshot());
        }
        metrics
    }

    /// The store, to look at events.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core().store
    }

    /// Looks for work at once, after something was stored in a transaction of the caller's own. Without this it is found
    /// within half a second.
    pub fn wake(&self) {
        self.core().store.due_hint().pull_forward(self.core().clock.now());
    }
}

async fn take_down(core: Arc<Core>, name: SubscriptionName) {
    if let Err(error) = core.record(&name).await {
        tracing::error!(target: "redrive::bus", %name, %error, "the subscription works, but is not on record");
    }
}

impl fmt::Debug for EventBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventBus").field("store", &self.core().store).finish_non_exhaustive()
    }
}
