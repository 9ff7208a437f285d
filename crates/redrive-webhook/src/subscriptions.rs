//! Registers each endpoint as a bus subscription of its own, and caches the version that is registered.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::internal::SubscribeExt as _;
use redrive::pull::PullQueue;
use redrive::retry::Timestamp;
use redrive::retry::breaker::BreakerConfig;
use redrive::{BusError, EventBus};
use redrive_store::Store;
use tokio::sync::mpsc;

use crate::endpoint::{Endpoint, EndpointId};
use crate::endpoint_store::{EndpointStore, UnreadableEndpoint};
use crate::error::WebhooksError;
use crate::health::{self, Health};
use crate::target::{DeliverySignal, Target};

/// Added to the endpoint's timeout to get the handler timeout: the client times out first, and its error names the phase.
const HANDLER_GRACE: Duration = Duration::from_secs(5);

/// The longest time that the circuit of a failing endpoint stays open before a probe.
const MAX_OPEN_FOR: Duration = Duration::from_secs(300);

/// The endpoints that this process has registered on its bus.
pub(crate) struct EndpointSubscriptions {
    pub(crate) bus: EventBus,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) endpoints: EndpointStore,
    // A std mutex: held for a few instructions, never across an await.
    cached: Mutex<HashMap<EndpointId, CachedEndpoint>>,
    signals: mpsc::Sender<DeliverySignal>,
}

/// The registered version of an endpoint.
#[derive(Debug)]
pub(crate) struct CachedEndpoint {
    pub(crate) version: u64,
    health: Arc<Health>,
    /// `None` if the endpoint could not be read.
    endpoint: Option<Arc<Endpoint>>,
}

impl CachedEndpoint {
    pub(crate) fn deleted_at(&self) -> Option<Timestamp> {
        self.endpoint.as_ref()?.deleted_at
    }

    pub(crate) fn is_unreadable(&self) -> bool {
        self.endpoint.is_none()
    }

    /// Whether health and limits carry over to `now`: not to another URL, and not to an endpoint that was enabled again.
    fn carries_over_to(&self, now: &Endpoint) -> bool {
        let is_same =
            |before: &Arc<Endpoint>| before.url == now.url && (before.is_enabled() || !now.is_enabled());
        self.endpoint.as_ref().is_none_or(is_same)
    }
}

impl EndpointSubscriptions {
    pub(crate) fn new(
        bus: EventBus,
        endpoints: EndpointStore,
        signals: mpsc::Sender<DeliverySignal>,
    ) -> Self {
        let store = Arc::clone(bus.store());
        EndpointSubscriptions { bus, store, endpoints, cached: Mutex::default(), signals }
    }

    pub(crate) fn cached(&self) -> MutexGuard<'_, HashMap<EndpointId, CachedEndpoint>> {
        // Every change leaves the map valid, so a poisoned lock is still usable.
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers every endpoint on record. Fails if the patterns of one cannot be read.
    pub(crate) async fn subscribe_all(&self) -> Result<(), WebhooksError> {
        for endpoint in self.endpoints.open_all().await? {
            match endpoint {
                Ok(endpoint) => self.subscribe(endpoint)?,
                Err(unreadable) => {
                    let error = unreadable.error.to_string();
                    if !self.queue_for_unreadable(unreadable)? {
                        return Err(WebhooksError::Unknown { error });
                    }
                }
            }
        }
        self.load_health().await
    }

    /// Registers the endpoint and waits until every process that shares the database knows the subscription.
    pub(crate) async fn activate(&self, endpoint: Endpoint) -> Result<Endpoint, WebhooksError> {
        self.subscribe(endpoint.clone())?;
        redrive::internal::announce(&self.bus, &endpoint.id.subscription()).await?;
        Ok(endpoint)
    }

    /// Registers the endpoint in place of its earlier version.
    pub(crate) fn subscribe(&self, endpoint: Endpoint) -> Result<(), BusError> {
        let mut cached = self.cached();
        let before = cached.get(&endpoint.id);
        if before.is_some_and(|before| before.version >= endpoint.version) {
            return Ok(());
        }
        let endpoint = Arc::new(endpoint);
        let carried = before.filter(|before| before.carries_over_to(&endpoint));
        let health = carried.map(|before| Arc::clone(&before.health)).unwrap_or_default();
        let is_reset = carried.is_none();
        let (id, version) = (endpoint.id.clone(), endpoint.version);
        let target = Target {
            endpoint: Arc::clone(&endpoint),
            client: self.endpoints.client.clone(),
            health: Arc::clone(&health),
            signals: self.signals.clone(),
        };
        let mut subscribe = self
            .bus
            .subscribe(endpoint.patterns.to_string(), target)
            .name(id.as_str())
            .timeout(endpoint.timeout + HANDLER_GRACE)
            .limits(endpoint.limits)
            .breaker(breaker(&endpoint))
            .remote_effect();
        if let Some(retry) = &endpoint.retry {
            subscribe = subscribe.retry(retry.clone());
        }
        if is_reset {
            subscribe = subscribe.reset_limits();
        }
        if endpoint.deleted_at.is_some() {
            subscribe = subscribe.drain_only();
        }
        subscribe.replace()?;
        cached.insert(id, CachedEndpoint { version, health, endpoint: Some(endpoint) });
        Ok(())
    }

    /// Keeps the deliveries of an unreadable endpoint on disk, in a pull queue without a consumer, until it can be read.
    /// Returns whether its patterns are known.
    pub(crate) fn queue_for_unreadable(&self, unreadable: UnreadableEndpoint) -> Result<bool, BusError> {
        let UnreadableEndpoint { id, version, patterns, error } = unreadable;
        tracing::error!(target: "redrive::webhook", %error, "an endpoint cannot be read: its deliveries are stored, not sent");
        let is_known = patterns.is_some();
        if let Some(patterns) = patterns {
            let is_removed = patterns.is_empty();
            let subscribe = self.bus.subscribe_queue(patterns, &PullQueue::new()).name(id.as_str());
            let subscribe = if is_removed { subscribe.drain_only() } else { subscribe };
            subscribe.replace()?;
        }
        // Caching the version logs the error once: the endpoint is not read again before it changes.
        let mut cached = self.cached();
        let health = cached.remove(&id).map(|cached| cached.health).unwrap_or_default();
        cached.insert(id, CachedEndpoint { version, health, endpoint: None });
        Ok(is_known)
    }

    pub(crate) async fn unsubscribe(&self, id: &EndpointId) -> Result<(), WebhooksError> {
        let subscription =
            self.bus.subscriptions().iter().find(|one| one.name().as_str() == id.as_str()).cloned();
        if let Some(subscription) = subscription {
            self.bus.unsubscribe(subscription.id()).await?;
        }
        self.cached().remove(id);
        Ok(())
    }

    /// Loads from the database which endpoints are failing.
    pub(crate) async fn load_health(&self) -> Result<(), WebhooksError> {
        let failing: HashSet<String> = health::on_record(&self.store).await?.into_iter().collect();
        for (id, cached) in self.cached().iter() {
            cached.health.load(failing.contains(id.as_str()));
        }
        Ok(())
    }
}

/// Breaker settings of an endpoint. One failing message alone never opens the circuit, and an open circuit is probed less and less
/// often. A removed or disabled endpoint never opens it: its deliveries are refused before sending and dead-lettered at once.
fn breaker(endpoint: &Endpoint) -> BreakerConfig {
    let samples = if endpoint.is_enabled() { 10 } else { u32::MAX };
    let breaker = BreakerConfig::builder().min_samples(samples).open_growth(2.0).max_open_for(MAX_OPEN_FOR);
    breaker.build().expect("the constants are valid breaker settings")
}
