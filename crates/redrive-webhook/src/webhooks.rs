//! Delivers events to HTTP endpoints: each endpoint is a subscription of the bus.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redrive::retry::Timestamp;
use redrive::{EventBus, EventId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::endpoint::{Endpoint, EndpointId, EndpointPatch};
use crate::endpoint_store::EndpointStore;
use crate::error::{EndpointStoreError, WebhooksError};
use crate::health;
use crate::record::AttemptRecord;
use crate::replay::Replays;
use crate::secret::Secret;
use crate::subscriptions::EndpointSubscriptions;
use crate::sync;
use crate::target::{DeliverySignal, body, send};

/// Capacity of the channel of signals from deliveries to the background task.
const SIGNAL_QUEUE: usize = 1024;

/// Delivers events to endpoints and administers the endpoints.
///
/// Every change is in force when its method returns, in every process that shares the database.
pub struct Webhooks {
    subscriptions: Arc<EndpointSubscriptions>,
    replays: Replays,
}

/// Background tasks of [`Webhooks`], ready to start: they apply the changes of other processes here, disable failing endpoints, and
/// run replays.
#[must_use = "the tasks do not run before they are started"]
pub struct WebhookTasks {
    subscriptions: Arc<EndpointSubscriptions>,
    signals: mpsc::Receiver<DeliverySignal>,
    replays: Replays,
}

/// Running background tasks of [`Webhooks`]. Dropping it ends them.
#[derive(Debug)]
pub struct RunningWebhookTasks {
    _tasks: JoinSet<()>,
}

impl WebhookTasks {
    /// Starts the tasks. They run until the returned value is dropped.
    #[must_use = "dropping it ends the tasks"]
    pub fn start(self) -> RunningWebhookTasks {
        let mut tasks = JoinSet::new();
        tasks.spawn(sync::run(self.subscriptions, self.signals));
        tasks.spawn(self.replays.run_all(sync::POLL_INTERVAL));
        RunningWebhookTasks { _tasks: tasks }
    }
}

impl fmt::Debug for WebhookTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookTasks").finish_non_exhaustive()
    }
}

impl Webhooks {
    /// Subscribes every endpoint on record. Call it before the bus starts, so that every event finds its endpoints registered.
    ///
    /// A process that dispatches starts the returned [`WebhookTasks`]. A process that only administers endpoints drops them.
    pub async fn open(
        bus: EventBus,
        endpoints: EndpointStore,
    ) -> Result<(Arc<Self>, WebhookTasks), WebhooksError> {
        let (sender, signals) = mpsc::channel(SIGNAL_QUEUE);
        let replays = Replays::new(Arc::clone(bus.store()));
        let subscriptions = Arc::new(EndpointSubscriptions::new(bus, endpoints, sender));
        subscriptions.subscribe_all().await?;
        let tasks =
            WebhookTasks { subscriptions: Arc::clone(&subscriptions), signals, replays: replays.clone() };
        Ok((Arc::new(Webhooks { subscriptions, replays }), tasks))
    }

    /// The replay jobs: starts, lists and cancels them.
    pub fn replays(&self) -> &Replays {
        &self.replays
    }

    /// The endpoints on record, for reading.
    pub fn endpoints(&self) -> &EndpointStore {
        &self.subscriptions.endpoints
    }

    /// Number of endpoints that this process cannot read: it lacks the key of their secrets, or their documents are damaged. Their
    /// deliveries are stored, not sent. A removed endpoint has no secrets.
    pub fn unreadable(&self) -> usize {
        self.subscriptions.cached().values().filter(|cached| cached.is_unreadable()).count()
    }

    /// Creates an endpoint; see [`EndpointStore::create`].
    pub async fn create(
        &self,
        patch: EndpointPatch,
        secret: Option<Secret>,
    ) -> Result<Endpoint, WebhooksError> {
        self.subscriptions.activate(self.endpoints().create(patch, secret).await?).await
    }

    /// Changes an endpoint; see [`EndpointStore::update`]. Enabling it or giving it another URL clears its recorded failures: like a
    /// new endpoint, it may fail for five days before it is disabled.
    pub async fn update(
        &self,
        id: &EndpointId,
        version: Option<u64>,
        patch: EndpointPatch,
    ) -> Result<Endpoint, WebhooksError> {
        let clears_health = patch.enabled == Some(true) || patch.url.is_some();
        let endpoint = self.endpoints().update(id, version, patch).await?;
        if clears_health {
            health::clear(&self.subscriptions.store, id).await?;
        }
        self.subscriptions.activate(endpoint).await
    }

    /// Replaces the signing secret; see [`EndpointStore::rotate`].
    pub async fn rotate(
        &self,
        id: &EndpointId,
        secret: Option<Secret>,
        overlap: Duration,
    ) -> Result<Endpoint, WebhooksError> {
        self.subscriptions.activate(self.endpoints().rotate(id, secret, overlap).await?).await
    }

    /// Removes an endpoint; see [`EndpointStore::remove`].
    pub async fn remove(&self, id: &EndpointId) -> Result<(), WebhooksError> {
        self.endpoints().remove(id).await?;
        health::clear(&self.subscriptions.store, id).await?;
        if let Some(endpoint) = self.endpoints().read(&crate::stored::key(id)).await? {
            self.subscriptions.activate(endpoint.map_err(|unreadable| unreadable.error)?).await?;
        }
        Ok(())
    }

    /// Time of the first failure since the last success, once the endpoint has been failing for a minute.
    pub async fn failing_since(&self, id: &EndpointId) -> Result<Option<Timestamp>, WebhooksError> {
        Ok(health::failing_since(&self.subscriptions.store, id).await?)
    }

    /// Sends a message of type `redrive.test` to the endpoint at once, without queue or retries, and returns the attempt.
    pub async fn test(&self, id: &EndpointId) -> Result<AttemptRecord, WebhooksError> {
        let endpoint = self.endpoints().get(id).await?;
        let now = self.subscriptions.store.clock().now();
        let body = body("redrive.test", now, r#"{"test":true}"#);
        let attempt = send(&self.endpoints().client, &endpoint, EventId::new(), now, &body).await;
        let attempt = attempt.ok_or_else(|| EndpointStoreError::unreadable(id, "it has no secret"))?;
        Ok(AttemptRecord::new(endpoint.url.as_str(), &attempt))
    }
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.subscriptions.cached().len();
        f.debug_struct("Webhooks").field("endpoints", &count).finish_non_exhaustive()
    }
}
