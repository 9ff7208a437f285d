//! Pull subscriptions (documents of kind `queue`): on record, and registered with the bus in every process.

pub(crate) mod stored;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::internal::SubscribeExt as _;
use redrive::pull::PullQueue;
use redrive::retry::ClassifyError as _;
use redrive::store::{Store, StoreError};
use redrive::subscription::SubscriptionName;
use redrive::{BusError, Event, EventBus, Limits};
use redrive_store::DocumentKey;

use self::stored::{Body, KIND, PullSubscription, PullSubscriptionName};

/// Poll interval for changes by other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Limits for dead-lettering the deliveries of a removed subscription.
const REMOVAL_LIMITS: Limits = Limits { concurrency: 64, per_second: None };

/// The pull subscriptions of a server.
pub(crate) struct PullSubscriptions {
    bus: EventBus,
    store: Arc<dyn Store>,
    // A std mutex: held for a few instructions, never across an await.
    registered: Mutex<HashMap<PullSubscriptionName, RegisteredQueue>>,
}

#[derive(Debug)]
struct RegisteredQueue {
    version: u64,
    queue: PullQueue,
    lease: Duration,
}

/// Error of an operation on a pull subscription.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullSubscriptionError {
    #[error("there is no subscription {0}: PUT /v1/subscriptions/{0} creates one")]
    NotFound(PullSubscriptionName),
    /// The document cannot be read, so the patterns are unknown, and matching events would be lost.
    #[error(
        "the subscription in the document {key} cannot be read ({why}): restore it from a backup, or put the document right"
    )]
    Unreadable { key: DocumentKey, why: String },
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PullSubscriptions {
    /// Registers the subscriptions on record. Call it before the bus is started, so that no event misses them.
    pub(crate) async fn open(bus: EventBus) -> Result<Arc<Self>, PullSubscriptionError> {
        let store = Arc::clone(bus.store());
        let subscriptions = Arc::new(PullSubscriptions { bus, store, registered: Mutex::default() });
        subscriptions.refresh().await?;
        Ok(subscriptions)
    }

    fn registered(&self) -> MutexGuard<'_, HashMap<PullSubscriptionName, RegisteredQueue>> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies changes by other processes, until the store is closed.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            match self.refresh().await {
                Ok(()) => {}
                Err(
                    PullSubscriptionError::Store(StoreError::Closed)
                    | PullSubscriptionError::Bus(BusError::Shutdown(_)),
                ) => return,
                Err(error) => {
                    tracing::error!(target: "redrive::subscriptions", %error, "changes of the subscriptions cannot be read");
                }
            }
        }
    }

    /// Registers new versions. An unreadable subscription keeps its last version; the last such error is returned after all others
    /// are registered.
    async fn refresh(&self) -> Result<(), PullSubscriptionError> {
        let mut result = Ok(());
        for (key, version) in self.store.versions(KIND).await? {
            let Ok(name) = key.id().parse::<PullSubscriptionName>() else { continue };
            let is_new = self.registered().get(&name).is_none_or(|registered| registered.version < version);
            if !is_new {
                continue;
            }
            match PullSubscription::read(self.store.as_ref(), &name).await {
                Ok(Some(subscription)) => self.subscribe(&subscription)?,
                Ok(None) => {}
                Err(unreadable @ PullSubscriptionError::Unreadable { .. }) => result = Err(unreadable),
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// Registers a version, in place of the one before.
    fn subscribe(&self, subscription: &PullSubscription) -> Result<(), BusError> {
        let mut registered = self.registered();
        let before = registered.get(&subscription.name);
        if before.is_some_and(|before| before.version >= subscription.version) {
            return Ok(());
        }
        let pull = before.map(|before| before.queue.clone()).unwrap_or_default();
        let mut subscribe = if subscription.body.is_removed {
            let name = subscription.name.clone();
            let dead_letter = move |_: Event| {
                let reason = format!("the subscription {name} was removed").permanent();
                async move { Err::<(), _>(reason) }
            };
            let name = SubscriptionName::new(subscription.name.as_str())
                .expect("a name of a pull subscription is one of a subscription");
            redrive::internal::keep_leases(&self.bus, &pull, &name);
            self.bus.subscribe("*", dead_letter).limits(REMOVAL_LIMITS).drain_only()
        } else {
            self.bus.subscribe_queue(subscription.body.patterns.join(" "), &pull)
        };
        subscribe = subscribe.name(subscription.name.as_str());
        if let Some(retry) = &subscription.body.retry {
            subscribe = subscribe.retry(retry.clone());
        }
        subscribe.replace()?;
        let lease = Duration::from_millis(subscription.body.lease_ms);
        registered.insert(
            subscription.name.clone(),
            RegisteredQueue { version: subscription.version, queue: pull, lease },
        );
        Ok(())
    }

    /// Registers a version in every process on the database.
    pub(crate) async fn register(
        &self,
        subscription: &PullSubscription,
    ) -> Result<(), PullSubscriptionError> {
        self.subscribe(subscription)?;
        let name = SubscriptionName::new(subscription.name.as_str())
            .expect("a name of a pull subscription is one of a subscription");
        Ok(redrive::internal::announce(&self.bus, &name).await?)
    }

    /// Returns the queue to pull from, and its default lease.
    pub(crate) async fn find(
        &self,
        name: &PullSubscriptionName,
    ) -> Result<(PullQueue, Duration), PullSubscriptionError> {
        self.find_if(name, |body| !body.is_removed).await
    }

    /// Returns the queue to end leases of. The leases of a removed subscription stay valid: their events are being handled.
    pub(crate) async fn find_leases(
        &self,
        name: &PullSubscriptionName,
    ) -> Result<(PullQueue, Duration), PullSubscriptionError> {
        self.find_if(name, |_| true).await
    }

    async fn find_if(
        &self,
        name: &PullSubscriptionName,
        is_wanted: impl Fn(&Body) -> bool,
    ) -> Result<(PullQueue, Duration), PullSubscriptionError> {
        let of = |registered: &RegisteredQueue| (registered.queue.clone(), registered.lease);
        // Another process may have created or removed it a moment ago.
        match PullSubscription::read(self.store.as_ref(), name).await? {
            Some(subscription) if is_wanted(&subscription.body) => self.subscribe(&subscription)?,
            _ => return Err(PullSubscriptionError::NotFound(name.clone())),
        }
        self.registered().get(name).map(of).ok_or_else(|| PullSubscriptionError::NotFound(name.clone()))
    }

    /// Ends all pulls. Leased events stay leased.
    pub(crate) fn close(&self) {
        for registered in self.registered().values() {
            registered.queue.close();
        }
    }
}

impl fmt::Debug for PullSubscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullSubscriptions")
            .field("registered", &self.registered().len())
            .finish_non_exhaustive()
    }
}
