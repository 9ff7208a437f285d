//! Subscriptions whose events are fetched by HTTP: on record, and in force in every process.

pub(crate) mod lease;
pub(crate) mod stored;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::{
    BusError, ClassifyError as _, Event, EventBus, Limits, PullQueue, Store, StoreError, SubscriptionName,
};
use redrive_store::DocumentKey;
use uuid::Uuid;

use self::stored::{KIND, Queue, QueueName};

/// What other processes change is heard of within this time.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How fast what a removed one was owed is given up.
const GIVING_UP: Limits = Limits { concurrency: 64, per_second: None };

/// The queues of a server.
pub(crate) struct Queues {
    bus: EventBus,
    store: Arc<dyn Store>,
    /// Names this process in every lease: only who has given one out can end it.
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

/// Why something could not be done with a queue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    #[error("there is no subscription {0} to fetch from: PUT /v1/subscriptions/{0} makes one")]
    NotFound(QueueName),
    /// What it wants is not known, and would be lost.
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
    /// Subscribes those on record. Before the bus is started, so that nothing finds nobody there.
    pub(crate) async fn open(bus: EventBus) -> Result<Arc<Self>, QueueError> {
        let store = Arc::clone(bus.store());
        let queues = Arc::new(Queues { bus, store, instance: Uuid::new_v4(), known: Mutex::default() });
        queues.look().await?;
        Ok(queues)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<QueueName, Known>> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what others change, until the store is closed.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.look().await {
                Ok(()) => {}
                Err(QueueError::Store(StoreError::Closed) | QueueError::Bus(BusError::Shutdown(_))) => return,
                Err(error) => {
                    tracing::error!(target: "redrive::queues", %error, "could not keep up with the subscriptions");
                }
            }
        }
    }

    /// Those that cannot be read want what they wanted before; the last of them is told of when all others are taken in.
    async fn look(&self) -> Result<(), QueueError> {
        let mut looked = Ok(());
        for (key, version) in self.store.versions(KIND).await? {
            let Ok(name) = key.id().parse::<QueueName>() else { continue };
            let is_new = self.known().get(&name).is_none_or(|known| known.version < version);
            if !is_new {
                continue;
            }
            match Queue::read(self.store.as_ref(), &name).await {
                Ok(Some(queue)) => self.subscribe(&queue)?,
                Ok(None) => {}
                Err(unreadable @ QueueError::Unreadable { .. }) => looked = Err(unreadable),
                Err(error) => return Err(error),
            }
        }
        looked
    }

    /// Puts it in force, instead of what it was before.
    fn subscribe(&self, queue: &Queue) -> Result<(), BusError> {
        let mut known = self.known();
        let before = known.get(&queue.name);
        if before.is_some_and(|before| before.version >= queue.version) {
            return Ok(());
        }
        let pull = before.map(|before| before.queue.clone()).unwrap_or_default();
        let mut subscribe = if queue.body.is_removed {
            let name = queue.name.clone();
            let give_up = move |_: Event| {
                let reason = format!("the subscription {name} was removed").permanent();
                async move { Err::<(), _>(reason) }
            };
            self.bus.subscribe("*", give_up).limits(GIVING_UP).addressed_only()
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

    /// In force when it returns, in every process that shares the database.
    pub(crate) async fn put_in_force(&self, queue: &Queue) -> Result<(), QueueError> {
        self.subscribe(queue)?;
        let name =
            SubscriptionName::new(queue.name.as_str()).expect("a name of a queue is one of a subscription");
        Ok(self.bus.announce(&name).await?)
    }

    /// The queue itself, and how long its leases are if nobody says so.
    pub(crate) async fn find(&self, name: &QueueName) -> Result<(PullQueue, Duration), QueueError> {
        let of = |known: &Known| (known.queue.clone(), known.lease);
        // Another process may have made or removed it a moment ago.
        match Queue::read(self.store.as_ref(), name).await? {
            Some(queue) if !queue.body.is_removed => self.subscribe(&queue)?,
            _ => return Err(QueueError::NotFound(name.clone())),
        }
        self.known().get(name).map(of).ok_or_else(|| QueueError::NotFound(name.clone()))
    }

    /// Nothing is given out any more, and what is leased is put back.
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
