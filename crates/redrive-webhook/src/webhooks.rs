//! Endpoints on a bus: each is a subscription of its own.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redrive::{BreakerConfig, BusError, EventBus, EventId, PullQueue, SubscriptionName, Timestamp};
use redrive_store::{DocumentKey, Store, StoreError};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::book::{BookError, EndpointBook, Unread};
use crate::endpoint::{Disabled, Endpoint, EndpointId, Wish};
use crate::health::{self, Health, News};
use crate::message::Message;
use crate::record::AttemptRecord;
use crate::replay::Replays;
use crate::secret::Secret;
use crate::target::{Notice, Target, body};

/// The type of the event that says that an endpoint was disabled without anybody asking for it.
pub const DISABLED: &str = "redrive.endpoint.disabled";

/// What other processes change is heard of within this time.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What was removed is forgotten after this time: until then its dead letters say what it was.
const FORGET_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// So much longer than the client the bus waits: the client says more about what went wrong.
const GRACE: Duration = Duration::from_secs(5);

/// A dead endpoint is asked at least this often.
const LONGEST_OPEN: Duration = Duration::from_secs(300);

/// That this machine has nothing left to send with is said this often.
const SAY_NO_ROOM_EVERY: Duration = Duration::from_secs(10);

/// So many replays are worked on at once.
const JOBS: usize = 8;

/// Notices that wait to be read.
const NOTICES: usize = 1024;

/// Delivers events to endpoints. All that is done to an endpoint through this is in force when it returns, in every process that
/// shares the database.
pub struct Webhooks {
    bus: EventBus,
    store: Arc<dyn Store>,
    book: EndpointBook,
    replays: Replays,
    // A std mutex: held for a few instructions, never across an await.
    known: Mutex<HashMap<EndpointId, Known>>,
    notices: mpsc::Sender<Notice>,
    /// When it was last said that this machine has nothing left to send with.
    said_no_room: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Known {
    version: u64,
    health: Arc<Health>,
    /// As it was read; `None` if it could not be.
    endpoint: Option<Arc<Endpoint>>,
}

impl Known {
    /// When it was removed, if it was.
    fn deleted_at(&self) -> Option<Timestamp> {
        self.endpoint.as_ref()?.deleted_at
    }

    /// Whether what was seen of it says something about how it is now: not of another address, and not if it is given another chance.
    fn tells_of(&self, now: &Endpoint) -> bool {
        let is_same =
            |before: &Arc<Endpoint>| before.url == now.url && (before.is_enabled() || !now.is_enabled());
        self.endpoint.as_ref().is_none_or(is_same)
    }
}

/// Ends when it is dropped.
#[derive(Debug)]
pub struct Watching {
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Drop for Watching {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Webhooks {
    /// Subscribes every endpoint on record. Before the bus is started, so that nothing finds nobody there. As long as the second
    /// value lives, what others change is heard of, and what fails for too long is disabled.
    pub async fn open(bus: EventBus, book: EndpointBook) -> Result<(Arc<Self>, Watching), WebhooksError> {
        let (notices, heard) = mpsc::channel(NOTICES);
        let store = Arc::clone(bus.store());
        let replays = Replays::new(Arc::clone(&store));
        let webhooks = Arc::new(Webhooks {
            bus,
            store,
            book,
            replays,
            known: Mutex::default(),
            notices,
            said_no_room: Mutex::default(),
        });
        for endpoint in webhooks.book.open_all().await? {
            match endpoint {
                Ok(endpoint) => webhooks.subscribe(endpoint)?,
                // The others are delivered. If it is not even known what it wants, something would be lost.
                Err(unread) => {
                    let error = unread.error.to_string();
                    if !webhooks.keep_for(unread)? {
                        return Err(WebhooksError::Unknown { error });
                    }
                }
            }
        }
        webhooks.learn_health().await?;
        let watch = tokio::spawn(Arc::clone(&webhooks).watch(heard));
        let replay = tokio::spawn(Arc::clone(&webhooks).replay());
        Ok((webhooks, Watching { tasks: [watch, replay] }))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<EndpointId, Known>> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To look at replays, and to begin them.
    pub fn replays(&self) -> &Replays {
        &self.replays
    }

    /// Works on replays, a few at once, those of processes that have died among them.
    async fn replay(self: Arc<Self>) {
        let mut jobs = JoinSet::new();
        loop {
            while jobs.try_join_next().is_some() {}
            let free = if jobs.len() < JOBS { self.replays.free().await } else { Ok(Vec::new()) };
            match free {
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::error!(target: "redrive::webhook", %error, "could not look for replays");
                }
                Ok(free) => {
                    for job in free.into_iter().take(JOBS - jobs.len()) {
                        let replays = self.replays.clone();
                        jobs.spawn(async move {
                            if let Err(error) = replays.run(job).await {
                                tracing::error!(target: "redrive::webhook", %error, "a replay was cut short; it goes on in a while");
                            }
                        });
                    }
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// To look at endpoints.
    pub fn book(&self) -> &EndpointBook {
        &self.book
    }

    /// Makes an endpoint; see [`EndpointBook::create`].
    pub async fn create(&self, wish: Wish, secret: Option<Secret>) -> Result<Endpoint, WebhooksError> {
        self.put_in_force(self.book.create(wish, secret).await?).await
    }

    /// Changes one; see [`EndpointBook::update`]. One that is enabled again or has another address is given another chance: five days, like
    /// a new one.
    pub async fn update(
        &self,
        id: &EndpointId,
        version: Option<u64>,
        wish: Wish,
    ) -> Result<Endpoint, WebhooksError> {
        let is_another_chance = wish.enabled == Some(true) || wish.url.is_some();
        let endpoint = self.book.update(id, version, wish).await?;
        if is_another_chance {
            health::works(&self.store, id).await?;
        }
        self.put_in_force(endpoint).await
    }

    /// Exchanges its secret; see [`EndpointBook::rotate`].
    pub async fn rotate(
        &self,
        id: &EndpointId,
        secret: Option<Secret>,
        overlap: Duration,
    ) -> Result<Endpoint, WebhooksError> {
        self.put_in_force(self.book.rotate(id, secret, overlap).await?).await
    }

    /// Removes one; see [`EndpointBook::remove`].
    pub async fn remove(&self, id: &EndpointId) -> Result<(), WebhooksError> {
        self.book.remove(id).await?;
        health::works(&self.store, id).await?;
        self.learn(id).await
    }

    /// Since when it has been failing, if it has for longer than a minute.
    pub async fn failing_since(&self, id: &EndpointId) -> Result<Option<redrive::Timestamp>, WebhooksError> {
        Ok(health::failing_since(&self.store, id).await?)
    }

    /// Sends a message of the type `redrive.test` to it, past the queue, and says what came of it.
    pub async fn test(&self, id: &EndpointId) -> Result<AttemptRecord, WebhooksError> {
        let endpoint = self.book.get(id).await?;
        let now = self.store.clock().now();
        let message_id = EventId::new().to_string();
        let body = body("redrive.test", &now.to_string(), r#"{"test":true}"#);
        let timestamp = now.as_millis().div_euclid(1000);
        let message = Message { id: &message_id, timestamp, body: body.as_bytes() };
        let Some(secrets) = endpoint.signing(now) else {
            return Err(BookError::unreadable(id, "it has no secret").into());
        };
        let client = self.book.client();
        let attempt =
            client.send(&endpoint.url, &secrets, &endpoint.headers, message, Some(endpoint.timeout)).await;
        Ok(AttemptRecord::new(endpoint.url.as_str(), &attempt))
    }

    async fn put_in_force(&self, endpoint: Endpoint) -> Result<Endpoint, WebhooksError> {
        let name = name_of(&endpoint.id);
        self.subscribe(endpoint.clone())?;
        self.bus.announce(&name).await?;
        Ok(endpoint)
    }

    /// Makes it a subscription, instead of the one that it was before.
    fn subscribe(&self, endpoint: Endpoint) -> Result<(), BusError> {
        let mut known = self.known();
        let before = known.get(&endpoint.id);
        if before.is_some_and(|before| before.version >= endpoint.version) {
            return Ok(());
        }
        let endpoint = Arc::new(endpoint);
        let goes_on = before.filter(|before| before.tells_of(&endpoint));
        let health = goes_on.map(|before| Arc::clone(&before.health)).unwrap_or_default();
        let is_afresh = goes_on.is_none();
        let (id, version) = (endpoint.id.clone(), endpoint.version);
        let target = Target {
            endpoint: Arc::clone(&endpoint),
            client: self.book.client().clone(),
            health: Arc::clone(&health),
            notices: self.notices.clone(),
        };
        let mut subscribe = self
            .bus
            .subscribe(endpoint.patterns.to_string(), target)
            .name(id.as_str())
            .timeout(endpoint.timeout + GRACE)
            .limits(endpoint.limits)
            .breaker(breaker(&endpoint))
            .elsewhere();
        if let Some(retry) = &endpoint.retry {
            subscribe = subscribe.retry(retry.clone());
        }
        if is_afresh {
            subscribe = subscribe.afresh();
        }
        if endpoint.deleted_at.is_some() {
            subscribe = subscribe.addressed_only();
        }
        subscribe.replace()?;
        known.insert(id, Known { version, health, endpoint: Some(endpoint) });
        Ok(())
    }

    async fn watch(self: Arc<Self>, mut notices: mpsc::Receiver<Notice>) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let result = tokio::select! {
                _ = look.tick() => self.look().await,
                notice = notices.recv() => match notice {
                    Some(notice) => self.heed(notice).await,
                    None => return,
                },
            };
            match result {
                Ok(()) => {}
                Err(error) if error.is_closed() => return,
                Err(error) => {
                    tracing::error!(target: "redrive::webhook", %error, "could not keep up with the endpoints");
                }
            }
        }
    }

    /// Takes in what others have changed.
    async fn look(&self) -> Result<(), WebhooksError> {
        // First who is known: whoever is made from here on is not missing because it was not there yet.
        let known = self.ids();
        let there = self.book.versions().await?;
        self.take_in(known, &there).await?;
        self.forget_removed().await?;
        self.learn_health().await
    }

    fn ids(&self) -> Vec<EndpointId> {
        self.known().keys().cloned().collect()
    }

    /// What is on record, and who was known before that was looked up.
    async fn take_in(
        &self,
        known_before: Vec<EndpointId>,
        there: &[(DocumentKey, u64)],
    ) -> Result<(), WebhooksError> {
        let changed: Vec<_> = {
            let known = self.known();
            let is_new = |id: &str, version: u64| {
                id.parse::<EndpointId>()
                    .is_ok_and(|id| known.get(&id).is_none_or(|known| known.version < version))
            };
            there.iter().filter(|(key, version)| is_new(key.id(), *version)).collect()
        };
        for (key, _) in &changed {
            match self.book.read(key).await? {
                None => {}
                Some(Ok(endpoint)) => self.subscribe(endpoint)?,
                // If it is not known what it wants, it wants what it wanted before.
                Some(Err(unread)) => drop(self.keep_for(unread)?),
            }
        }
        let there: HashSet<&str> = there.iter().map(|(key, _)| key.id()).collect();
        for id in known_before.iter().filter(|id| !there.contains(id.as_str())) {
            self.unsubscribe(id).await?;
        }
        Ok(())
    }

    fn is_current(&self, id: &EndpointId, version: u64) -> bool {
        self.known().get(id).is_some_and(|known| known.version == version)
    }

    /// Keeps for one that cannot be read what it is to have: on disk, as in a queue from which nobody fetches, until it can be read.
    /// Says whether it is known what that is.
    fn keep_for(&self, unread: Unread) -> Result<bool, BusError> {
        let Unread { id, version, patterns, error } = unread;
        tracing::error!(target: "redrive::webhook", %error, "an endpoint cannot be read: what it is to have is kept, and not sent");
        let is_known = patterns.is_some();
        if let Some(patterns) = patterns {
            let subscribe = self.bus.subscribe_queue(patterns.join(" "), &PullQueue::new()).name(id.as_str());
            let subscribe = if patterns.is_empty() { subscribe.addressed_only() } else { subscribe };
            subscribe.replace()?;
        }
        // Said once for each version: it is not read again before it changes.
        let mut known = self.known();
        let health = known.remove(&id).map(|known| known.health).unwrap_or_default();
        known.insert(id, Known { version, health, endpoint: None });
        Ok(is_known)
    }

    async fn learn(&self, id: &EndpointId) -> Result<(), WebhooksError> {
        if let Some(endpoint) = self.book.read(&crate::stored::key(id)).await? {
            self.put_in_force(endpoint.map_err(|unread| unread.error)?).await?;
        }
        Ok(())
    }

    async fn unsubscribe(&self, id: &EndpointId) -> Result<(), WebhooksError> {
        let subscription =
            self.bus.subscriptions().iter().find(|one| one.name().as_str() == id.as_str()).cloned();
        if let Some(subscription) = subscription {
            self.bus.unsubscribe(subscription.id()).await?;
        }
        self.known().remove(id);
        Ok(())
    }

    async fn forget_removed(&self) -> Result<(), WebhooksError> {
        let now = self.store.clock().now();
        let is_old = |known: &Known| known.deleted_at().is_some_and(|at| now.since(at) >= FORGET_AFTER);
        let old: Vec<(EndpointId, u64)> = {
            let known = self.known();
            let old = known.iter().filter(|(_, known)| is_old(known));
            old.map(|(id, known)| (id.clone(), known.version)).collect()
        };
        for (id, version) in old {
            self.book.forget(&id, version).await?;
            self.unsubscribe(&id).await?;
        }
        Ok(())
    }

    async fn learn_health(&self) -> Result<(), WebhooksError> {
        let failing: HashSet<String> = health::on_record(&self.store).await?.into_iter().collect();
        for (id, known) in self.known().iter() {
            known.health.learn(failing.contains(id.as_str()));
        }
        Ok(())
    }

    async fn heed(&self, notice: Notice) -> Result<(), WebhooksError> {
        match notice {
            Notice::NoRoom(why) => {
                self.say_no_room(&why);
                Ok(())
            }
            Notice::Gone(id, version) => self.disable(&id, version, Disabled::Gone).await,
            Notice::Health(id, _, News::Works) => Ok(health::works(&self.store, &id).await?),
            Notice::Health(id, version, News::Failing(since)) => {
                if self.is_current(&id, version) && health::failing(&self.store, &id, since).await?.is_some()
                {
                    self.disable(&id, version, Disabled::Failing).await?;
                    health::works(&self.store, &id).await?;
                }
                Ok(())
            }
        }
    }

    /// Once in a while: it concerns whatever is sent meanwhile.
    fn say_no_room(&self, why: &str) {
        let mut said = self.said_no_room.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|at| at.elapsed() >= SAY_NO_ROOM_EVERY) {
            *said = Some(Instant::now());
            tracing::error!(target: "redrive::webhook", %why, "nothing more can be sent at the moment, and it waits without being charged; \
                raise the limit of open files (LimitNOFILE, ulimit -n)");
        }
    }

    /// Sends nothing to it any more, and says so by an event; unless it is not in this version any more: whoever has changed it knows
    /// better, and if not, the next attempt says it again. The event first, under an id that is the same however often this is tried: so
    /// it is published once, whenever the process may die.
    async fn disable(&self, id: &EndpointId, version: u64, why: Disabled) -> Result<(), WebhooksError> {
        let endpoint = match self.book.get(id).await {
            Ok(endpoint) if endpoint.version == version && endpoint.disabled.is_none() => endpoint,
            Ok(_) | Err(BookError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // Without its path and query, in which there may be a secret: whoever wants all events gets this one.
        let payload = serde_json::json!({
            "endpoint": id.as_str(),
            "url": endpoint.url.origin(),
            "description": endpoint.description,
            "reason": why,
        });
        self.bus.publish(DISABLED, &payload).id(id_of(&endpoint)).enqueue().await?;
        match self.book.disable(id, version, why.clone()).await {
            Ok(endpoint) => {
                tracing::warn!(target: "redrive::webhook", endpoint = %id, reason = ?why, "an endpoint was disabled");
                self.put_in_force(endpoint).await.map(drop)
            }
            Err(BookError::Changed { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Not opened by one message alone, whose attempts all fail; and a dead endpoint is asked less and less often. What is refused here
/// without being sent says nothing about the endpoint, and goes to the dead-letter queue without waiting for a probe.
fn breaker(endpoint: &Endpoint) -> BreakerConfig {
    let samples = if endpoint.is_enabled() { 10 } else { u32::MAX };
    let breaker = BreakerConfig::builder().min_samples(samples).open_growth(2.0).max_open_for(LONGEST_OPEN);
    breaker.build().expect("these are valid")
}

fn name_of(id: &EndpointId) -> SubscriptionName {
    SubscriptionName::new(id.as_str()).expect("an id of an endpoint is a name")
}

/// Of the event that says that an endpoint in this version was disabled.
fn id_of(endpoint: &Endpoint) -> EventId {
    let digest = Sha256::digest(format!("{DISABLED}/{}/{}", endpoint.id, endpoint.version));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    EventId::from_uuid(Uuid::new_v8(bytes))
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").field("endpoints", &self.known().len()).finish_non_exhaustive()
    }
}

/// Why something could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WebhooksError {
    /// With an endpoint.
    #[error(transparent)]
    Book(#[from] BookError),
    /// With the bus.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// With the database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What an endpoint is to have cannot be found out.
    #[error(
        "{error}; it is not even known which events it wants, and they would be lost: restore it from a backup, or delete its document"
    )]
    Unknown {
        /// Why.
        error: String,
    },
}

impl WebhooksError {
    /// Whether nothing can be done any more, because the store was closed.
    fn is_closed(&self) -> bool {
        let store = match self {
            WebhooksError::Store(error) | WebhooksError::Book(BookError::Store(error)) => error,
            WebhooksError::Bus(BusError::Store(error)) => error,
            WebhooksError::Bus(error) => return matches!(error, BusError::Shutdown(_)),
            WebhooksError::Book(_) | WebhooksError::Unknown { .. } => return false,
        };
        matches!(store, StoreError::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::guard::Guard;
    use crate::vault::Vault;
    use redrive_store::{SqliteOptions, SqliteStore};

    /// An event that is published when an endpoint was made goes to it: also if somebody is just looking which endpoints there are, and
    /// has seen that it is not there.
    #[tokio::test]
    async fn an_endpoint_that_is_made_while_it_is_looked_for_changes_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("db"), SqliteOptions::default()).unwrap();
        let bus = EventBus::builder().on(Arc::new(store)).await.unwrap();
        let guard = Guard::default().allow("127.0.0.1/32".parse().unwrap());
        let vault = Vault::new(["bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmU="]).unwrap();
        let client = Client::builder().guard(guard).build().unwrap();
        let book = EndpointBook::new(Arc::clone(bus.store()), client, Arc::new(vault));
        let (webhooks, watching) = Webhooks::open(bus.clone(), book).await.unwrap();
        drop(watching); // here it is done by hand
        let known = webhooks.ids();
        let there = webhooks.book.versions().await.unwrap();
        let wish = Wish {
            url: Some("http://127.0.0.1:9/".into()),
            patterns: Some(vec!["*".into()]),
            ..Wish::default()
        };
        let endpoint = webhooks.create(wish, None).await.unwrap();
        webhooks.take_in(known, &there).await.unwrap();
        assert!(bus.subscriptions().iter().any(|all| all.name().as_str() == endpoint.id.as_str()));
        // One whose document is gone is gone as well.
        webhooks.take_in(webhooks.ids(), &[]).await.unwrap();
        assert!(bus.subscriptions().is_empty());
        bus.shutdown().await.unwrap();
    }
}
