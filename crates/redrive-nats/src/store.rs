//! The protocol of an idempotency store, on a bucket.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use redrive_retry::Timestamp;
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyRecord, IdempotencyStore, OwnerToken,
    StoreFuture,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::bucket::{Bucket, Written};
use crate::clock::ServerClock;
use crate::entry::{Entry, State, Value};
use crate::error::NatsError;
use crate::name;
use crate::options::NatsOptions;

/// So often somebody else may come first; whoever does so makes progress.
const TURNS: u32 = 1000;

/// Without an answer it is looked what has become of it, and tried once more. Whoever called may call again.
const MOST_UNHEARD: u32 = 2;

/// An idempotency store on a key-value bucket of JetStream.
///
/// Whatever it has begun it ends, also if the caller does not wait for it; so the runtime it was opened on must live.
#[derive(Debug)]
pub struct NatsStore {
    shared: Arc<Shared>,
    /// Where requests are made: a caller may be on a thread that has no runtime.
    runtime: Handle,
}

#[derive(Debug)]
struct Shared {
    bucket: Bucket,
    clock: ServerClock,
    /// Woken at every change by this process. Others' changes are seen by whoever looks again.
    changed: Notify,
}

impl NatsStore {
    /// Connects to a server (`nats://host:4222`, several separated by commas), and opens the bucket.
    pub async fn connect(servers: &str, options: NatsOptions) -> Result<Self, NatsError> {
        let servers: Vec<&str> = servers.split(',').map(str::trim).collect();
        let connect = ConnectOptions::new().name("redrive").connection_timeout(options.timeout);
        let client = connect.connect(servers).await.map_err(|error| NatsError::Connect(error.into()))?;
        Self::open(client, options).await
    }

    /// On a connection of one's own: with credentials, certificates, callbacks.
    pub async fn open(client: Client, options: NatsOptions) -> Result<Self, NatsError> {
        let bucket = Bucket::open(client, &options).await?;
        let shared = Shared { bucket, clock: ServerClock::default(), changed: Notify::new() };
        Ok(NatsStore { shared: Arc::new(shared), runtime: Handle::current() })
    }

    async fn run<T, W>(&self, work: impl FnOnce(Arc<Shared>) -> W) -> Result<T, IdempotencyError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, IdempotencyError>> + Send + 'static,
    {
        let working = self.runtime.spawn(work(Arc::clone(&self.shared)));
        working.await.unwrap_or_else(|_ended| Err(NatsError::NoRuntime.into()))
    }

    async fn as_owner(
        &self,
        key: &IdempotencyKey,
        owner: OwnerToken,
        change: Option<(State, Duration)>,
    ) -> Result<(), IdempotencyError> {
        let name = key.clone();
        let done = self.run(|shared| async move { shared.as_owner(&name, owner, change).await }).await;
        self.shared.changed.notify_waiters();
        if done? { Ok(()) } else { Err(IdempotencyError::LeaseLost { key: key.clone() }) }
    }
}

impl Shared {
    async fn begin(
        &self,
        key: &IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> Result<Begin, IdempotencyError> {
        self.fits(lease)?;
        let name = name::of(key);
        // Most keys are new: taken without looking.
        let (mut revision, mut taken_at, mut unheard) = (0, None, 0);
        for _ in 0..TURNS {
            let value = Value::new(owner, fingerprint, State::InProgress, lease, taken_at);
            match self.bucket.write(key, &name, &value, revision).await? {
                Written::Yes => return Ok(Begin::Acquired),
                Written::Conflict => {}
                Written::Unknown => hear(&mut unheard)?,
            }
            let Some(entry) = self.bucket.read(&name).await? else {
                (revision, taken_at) = (0, None);
                continue;
            };
            // If it is this owner's, it had been written after all, and is written once more: its lease begins anew.
            match self.ask(&entry, fingerprint, owner).await? {
                Asked::Told(answer) => return Ok(answer),
                Asked::Free { taken_before } => (revision, taken_at) = (entry.revision, taken_before),
            }
        }
        Err(NatsError::Contended.into())
    }

    /// What somebody who asks for the key is told.
    async fn ask(
        &self,
        entry: &Entry,
        fingerprint: Fingerprint,
        owner: OwnerToken,
    ) -> Result<Asked, NatsError> {
        let about = self.clock.about(&self.bucket).await?.max(entry.stamp);
        if let Some(answer) = entry.record.answer(fingerprint, owner, about) {
            return Ok(Asked::Told(answer));
        }
        // It seems to be free. Nobody loses a key to an old reading of a clock.
        let now = self.clock.now(&self.bucket).await?.max(entry.stamp);
        Ok(match entry.record.answer(fingerprint, owner, now) {
            Some(answer) => Asked::Told(answer),
            None => {
                let is_same = !entry.record.state.is_expired(now);
                Asked::Free { taken_before: is_same.then_some(entry.record.created_at) }
            }
        })
    }

    /// Changes an entry, or gives it up, if this owner holds it. Says whether it did.
    async fn as_owner(
        &self,
        key: &IdempotencyKey,
        owner: OwnerToken,
        change: Option<(State, Duration)>,
    ) -> Result<bool, IdempotencyError> {
        if let Some((State::InProgress, lease)) = &change {
            self.fits(*lease)?;
        }
        let name = name::of(key);
        let mut unheard = 0;
        for _ in 0..TURNS {
            let Some(entry) = self.bucket.read(&name).await? else {
                // Given up by this call, whose first answer was lost.
                return Ok(change.is_none() && unheard > 0);
            };
            if !entry.is_held_by(owner) {
                // The same result of the same owner: stored already, and the answer was lost.
                let is_done = change.as_ref().is_some_and(|(state, _)| entry.state == *state);
                return Ok(entry.owner == owner && is_done);
            }
            let written = match &change {
                Some((state, keep)) => {
                    let record = &entry.record;
                    let taken_at = Some(record.created_at);
                    let value = Value::new(owner, record.fingerprint, state.clone(), *keep, taken_at);
                    self.bucket.write(key, &name, &value, entry.revision).await?
                }
                None => self.bucket.remove(&name, entry.revision).await?,
            };
            match written {
                Written::Yes => return Ok(true),
                Written::Conflict => {}
                Written::Unknown => hear(&mut unheard)?,
            }
        }
        Err(NatsError::Contended.into())
    }

    async fn get(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRecord>, IdempotencyError> {
        let Some(entry) = self.bucket.read(&name::of(key)).await? else { return Ok(None) };
        let about = self.clock.about(&self.bucket).await?.max(entry.stamp);
        Ok(Some(entry.record).filter(|record| !record.state.is_expired(about)))
    }

    async fn clear(&self, key: &IdempotencyKey) -> Result<bool, IdempotencyError> {
        let name = name::of(key);
        let mut unheard = 0;
        for _ in 0..TURNS {
            let Some(entry) = self.bucket.read(&name).await? else { return Ok(unheard > 0) };
            match self.bucket.remove(&name, entry.revision).await? {
                Written::Yes => return Ok(true),
                Written::Conflict => {}
                Written::Unknown => hear(&mut unheard)?,
            }
        }
        Err(NatsError::Contended.into())
    }

    async fn reap(&self, limit: usize) -> Result<usize, IdempotencyError> {
        let now: Timestamp = self.clock.now(&self.bucket).await?;
        let mut reaped = 0;
        for expired in self.bucket.expired(now, limit).await? {
            // Passed over if somebody has taken it meanwhile.
            let removed = self.bucket.remove(&expired.name, expired.revision).await?;
            reaped += usize::from(removed == Written::Yes);
        }
        Ok(reaped)
    }

    /// A lease must end before the server forgets it, else two would have the key.
    fn fits(&self, lease: Duration) -> Result<(), NatsError> {
        match self.bucket.max_age() {
            Some(age) if age <= lease => {
                Err(NatsError::LeaseTooLong { lease: lease.as_millis(), max_age: age.as_millis() })
            }
            _ => Ok(()),
        }
    }
}

/// The answer to whoever asks for a key.
enum Asked {
    Told(Begin),
    Free { taken_before: Option<Timestamp> },
}

fn hear(unheard: &mut u32) -> Result<(), NatsError> {
    *unheard += 1;
    if *unheard < MOST_UNHEARD { Ok(()) } else { Err(NatsError::NoAnswer) }
}

impl IdempotencyStore for NatsStore {
    fn begin<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, Begin> {
        let key = key.clone();
        Box::pin(self.run(move |shared| async move { shared.begin(&key, fingerprint, owner, lease).await }))
    }

    fn extend<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, ()> {
        Box::pin(self.as_owner(key, owner, Some((State::InProgress, lease))))
    }

    fn complete<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        result: &'a str,
        metadata: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        let state = State::Completed { result: result.to_owned(), metadata: metadata.map(str::to_owned) };
        Box::pin(self.as_owner(key, owner, Some((state, keep))))
    }

    fn release<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        error: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        let failed = error.map(|error| (State::Failed { error: error.to_owned() }, keep));
        Box::pin(self.as_owner(key, owner, failed))
    }

    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>> {
        let key = key.clone();
        Box::pin(self.run(move |shared| async move { shared.get(&key).await }))
    }

    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool> {
        let key = key.clone();
        Box::pin(async move {
            let cleared = self.run(move |shared| async move { shared.clear(&key).await }).await;
            self.shared.changed.notify_waiters();
            cleared
        })
    }

    fn reap(&self, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(self.run(move |shared| async move { shared.reap(limit).await }))
    }

    fn changed<'a>(&'a self, _key: &'a IdempotencyKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // Counts from its creation, not from its first poll: a change in between is not missed.
        Box::pin(self.shared.changed.notified())
    }

    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        // Nobody waits for it; if it fails, the lease ends by itself.
        self.runtime.spawn(async move {
            let _ = shared.as_owner(&key, owner, None).await;
            shared.changed.notify_waiters();
        });
    }
}
