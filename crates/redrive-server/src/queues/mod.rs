//! Pull subscriptions: on record, and registered with the bus in every process.

pub(crate) mod stored;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::internal::SubscribeExt as _;
use redrive::pull::{LeaseToken, PullQueue};
use redrive::retry::ClassifyError as _;
use redrive::store::{Store, StoreError};
use redrive::subscription::SubscriptionName;
use redrive::{BusError, Event, EventBus, Limits};
use redrive_store::DocumentKey;
use uuid::Uuid;

use self::stored::{KIND, Queue, QueueName};

/// Poll interval for changes by other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Limits for dead-lettering the deliveries of a removed subscription.
const REMOVAL_LIMITS: Limits = Limits { concurrency: 64, per_second: None };

/// The pull subscriptions of a server.
pub(crate) struct Queues {
    bus: EventBus,
    store: Arc<dyn Store>,
    /// Names this process in every lease: only the process that granted a lease can end it.
    pub(crate) instance: Uuid,
    // A std mutex: held for a few instructions, never across an await.
    known: Mutex<HashMap<QueueName, Known>>,
}

#[derive(Debug)]
struct Known {
    version: u64,
    queue: PullQueue,
    lease: Duration,
}

/// Why an operation on a pull subscription failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    #[error("there is no subscription {0}: PUT /v1/subscriptions/{0} creates one")]
    NotFound(QueueName),
    /// Its patterns are unknown, and matching events would be lost.
    #[error(
        "the subscription in the document {key} cannot be read ({why}): restore it from a backup, or put the document right"
    )]
    Unreadable { key: DocumentKey, why: String },
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Queues {
    /// Registers the subscriptions on record. Call it before the bus is started, so that no event misses them.
    pub(crate) async fn open(bus: EventBus) -> Result<Arc<Self>, QueueError> {
        let store = Arc::clone(bus.store());
        let queues = Arc::new(Queues { bus, store, instance: Uuid::new_v4(), known: Mutex::default() });
        queues.refresh().await?;
        Ok(queues)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<QueueName, Known>> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies changes by other processes, until the store is closed.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            match self.refresh().await {
                Ok(()) => {}
                Err(QueueError::Store(StoreError::Closed) | QueueError::Bus(BusError::Shutdown(_))) => return,
                Err(error) => {
                    tracing::error!(target: "redrive::queues", %error, "changes of the subscriptions cannot be read");
                }
            }
        }
    }

    /// Registers new versions. An unreadable subscription keeps its last version; the last such error is returned after all others
    /// are registered.
    async fn refresh(&self) -> Result<(), QueueError> {
        let mut result = Ok(());
        for (key, version) in self.store.versions(KIND).await? {
            let Ok(name) = key.id().parse::<QueueName>() else { continue };
            let is_new = self.known().get(&name).is_none_or(|known| known.version < version);
            if !is_new {
                continue;
            }
            match Queue::read(self.store.as_ref(), &name).await {
                Ok(Some(queue)) => self.subscribe(&queue)?,
                Ok(None) => {}
                Err(unreadable @ QueueError::Unreadable { .. }) => result = Err(unreadable),
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// Registers a version, in place of the one before.
    fn subscribe(&self, queue: &Queue) -> Result<(), BusError> {
        let mut known = self.known();
        let before = known.get(&queue.name);
        if before.is_some_and(|before| before.version >= queue.version) {
            return Ok(());
        }
        let pull = before.map(|before| before.queue.clone()).unwrap_or_default();
        let mut subscribe = if queue.body.is_removed {
            let name = queue.name.clone();
            let dead_letter = move |_: Event| {
                let reason = format!("the subscription {name} was removed").permanent();
                async move { Err::<(), _>(reason) }
            };
            self.bus.subscribe("*", dead_letter).limits(REMOVAL_LIMITS).drain_only()
        } else {
            self.bus.subscribe_queue(queue.body.patterns.join(" "), &pull)
        };
        subscribe = subscribe.name(queue.name.as_str());
        if let Some(retry) = &queue.body.retry {
            subscribe = subscribe.retry(retry.clone());
        }
        subscribe.replace()?;
        let lease = Duration::from_millis(queue.body.lease_ms);
        known.insert(queue.name.clone(), Known { version: queue.version, queue: pull, lease });
        Ok(())
    }

    /// Registers a version in every process on the database.
    pub(crate) async fn register(&self, queue: &Queue) -> Result<(), QueueError> {
        self.subscribe(queue)?;
        let name =
            SubscriptionName::new(queue.name.as_str()).expect("a name of a queue is one of a subscription");
        Ok(redrive::internal::announce(&self.bus, &name).await?)
    }

    /// Returns the queue and its default lease.
    pub(crate) async fn find(&self, name: &QueueName) -> Result<(PullQueue, Duration), QueueError> {
        let of = |known: &Known| (known.queue.clone(), known.lease);
        // Another process may have created or removed it a moment ago.
        match Queue::read(self.store.as_ref(), name).await? {
            Some(queue) if !queue.body.is_removed => self.subscribe(&queue)?,
            _ => return Err(QueueError::NotFound(name.clone())),
        }
        self.known().get(name).map(of).ok_or_else(|| QueueError::NotFound(name.clone()))
    }

    /// Stops pulls and returns leased events.
    pub(crate) fn close(&self) {
        for known in self.known().values() {
            known.queue.close();
        }
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").field("queues", &self.known().len()).finish_non_exhaustive()
    }
}

/// Name of a lease in the API: the process that granted it, and its token.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    pub(crate) instance: Uuid,
    pub(crate) token: LeaseToken,
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.instance.simple(), self.token)
    }
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('.').and_then(|(instance, token)| {
            Some(LeaseName { instance: Uuid::try_parse(instance).ok()?, token: token.parse().ok()? })
        });
        parsed.ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            format!("{text:?} is not a lease: pass on the `lease` of the event")
        })
    }
}
