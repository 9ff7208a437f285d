//! [`NatsStore`]: idempotency store on a key-value bucket.

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

/// Conflicts with other writers before a request fails. Each conflict means that another writer made progress.
const MAX_CONFLICTS: u32 = 1000;

/// Writes without an answer before a request fails. After each, the store reads the entry and decides anew.
const MAX_UNANSWERED: u32 = 2;

/// Idempotency store on a key-value bucket of JetStream.
///
/// A request continues on the runtime of [`NatsStore::open`] even if its caller is cancelled, so that runtime must stay alive.
#[derive(Debug)]
pub struct NatsStore {
    shared: Arc<Shared>,
    /// Runtime of the requests; a caller may be on a thread without one.
    runtime: Handle,
}

#[derive(Debug)]
struct Shared {
    bucket: Bucket,
    clock: ServerClock,
    /// Notified at every change by this process. Changes by other processes are found by polling.
    changed: Notify,
}

impl NatsStore {
    /// Connects to a server (`nats://host:4222`, several separated by commas) and opens the bucket.
    pub async fn connect(servers: &str, options: NatsOptions) -> Result<Self, NatsError> {
        let servers: Vec<&str> = servers.split(',').map(str::trim).collect();
        let connect = ConnectOptions::new().name("redrive").connection_timeout(options.timeout);
        let client = connect.connect(servers).await.map_err(|error| NatsError::Connect(error.into()))?;
        Self::open(client, options).await
    }

    /// Opens the bucket on an existing connection, for example with credentials or certificates.
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

    async fn change(
        &self,
        key: &IdempotencyKey,
        owner: Option<OwnerToken>,
        value: Option<(State, Duration)>,
    ) -> Result<bool, IdempotencyError> {
        let key = key.clone();
        let changed = self.run(|shared| async move { shared.change(&key, owner, value).await }).await;
        self.shared.changed.notify_waiters();
        changed
    }

    async fn as_owner(
        &self,
        key: &IdempotencyKey,
        owner: OwnerToken,
        value: Option<(State, Duration)>,
    ) -> Result<(), IdempotencyError> {
        let is_owner = self.change(key, Some(owner), value).await?;
        if is_owner { Ok(()) } else { Err(IdempotencyError::LeaseLost { key: key.clone() }) }
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
        // Usually a key is new, so the first write expects no entry.
        let (mut revision, mut claimed_at, mut unanswered) = (0, None, 0);
        for _ in 0..MAX_CONFLICTS {
            let value = Value::new(owner, fingerprint, State::InProgress, lease, claimed_at);
            match self.bucket.write(key, &name, &value, revision).await? {
                Written::Yes => return Ok(Begin::Acquired),
                Written::Conflict => {}
                Written::Unknown => count_unanswered(&mut unanswered)?,
            }
            let Some(entry) = self.bucket.read(&name).await? else {
                (revision, claimed_at) = (0, None);
                continue;
            };
            // An entry of this owner is an earlier write whose answer was lost; writing it again renews the lease.
            match self.claimable(&entry, fingerprint, owner).await? {
                Claimable::No(answer) => return Ok(answer),
                Claimable::Yes { claimed_before } => {
                    (revision, claimed_at) = (entry.revision, claimed_before);
                }
            }
        }
        Err(NatsError::Contended.into())
    }

    /// Decides whether the key may be claimed.
    async fn claimable(
        &self,
        entry: &Entry,
        fingerprint: Fingerprint,
        owner: OwnerToken,
    ) -> Result<Claimable, NatsError> {
        let estimate = self.clock.estimate(&self.bucket).await?.max(entry.stamp);
        if let Some(answer) = entry.record.answer(fingerprint, owner, estimate) {
            return Ok(Claimable::No(answer));
        }
        // The key seems to be free. Confirm it with a new reading of the clock before it is taken over.
        let now = self.clock.now(&self.bucket).await?.max(entry.stamp);
        Ok(match entry.record.answer(fingerprint, owner, now) {
            Some(answer) => Claimable::No(answer),
            None => {
                let is_same = !entry.record.state.is_expired(now);
                Claimable::Yes { claimed_before: is_same.then_some(entry.record.created_at) }
            }
        })
    }

    /// Writes a new value of an entry, or removes it without one, if this owner holds the key; any holder for `None`. Returns
    /// whether it did.
    async fn change(
        &self,
        key: &IdempotencyKey,
        owner: Option<OwnerToken>,
        value: Option<(State, Duration)>,
    ) -> Result<bool, IdempotencyError> {
        if let Some((State::InProgress, lease)) = &value {
            self.fits(*lease)?;
        }
        let name = name::of(key);
        let mut unanswered = 0;
        for _ in 0..MAX_CONFLICTS {
            let Some(entry) = self.bucket.read(&name).await? else {
                // Removed by this call, whose first answer was lost.
                return Ok(value.is_none() && unanswered > 0);
            };
            if owner.is_some_and(|owner| !entry.is_owned_by(owner)) {
                // An equal result of this owner: already stored, and the answer was lost.
                let is_done = value.as_ref().is_some_and(|(state, _)| entry.state == *state);
                return Ok(owner == Some(entry.owner) && is_done);
            }
            let written = match &value {
                Some((state, keep)) => {
                    let record = &entry.record;
                    let claimed_at = Some(record.created_at);
                    let value = Value::new(entry.owner, record.fingerprint, state.clone(), *keep, claimed_at);
                    self.bucket.write(key, &name, &value, entry.revision).await?
                }
                None => self.bucket.remove(&name, entry.revision).await?,
            };
            match written {
                Written::Yes => return Ok(true),
                Written::Conflict => {}
                Written::Unknown => count_unanswered(&mut unanswered)?,
            }
        }
        Err(NatsError::Contended.into())
    }

    async fn get(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRecord>, IdempotencyError> {
        let Some(entry) = self.bucket.read(&name::of(key)).await? else { return Ok(None) };
        let estimate = self.clock.estimate(&self.bucket).await?.max(entry.stamp);
        Ok(Some(entry.record).filter(|record| !record.state.is_expired(estimate)))
    }

    async fn reap(&self, limit: usize) -> Result<usize, IdempotencyError> {
        let now: Timestamp = self.clock.now(&self.bucket).await?;
        let mut reaped = 0;
        for expired in self.bucket.expired(now, limit).await? {
            // Skipped if the key was claimed meanwhile.
            let removed = self.bucket.remove(&expired.name, expired.revision).await?;
            reaped += usize::from(removed == Written::Yes);
        }
        Ok(reaped)
    }

    /// Checks that a lease ends before the server deletes its entry; otherwise two owners could hold the key.
    fn fits(&self, lease: Duration) -> Result<(), NatsError> {
        match self.bucket.max_age() {
            Some(age) if age <= lease => {
                Err(NatsError::LeaseTooLong { lease: lease.as_millis(), max_age: age.as_millis() })
            }
            _ => Ok(()),
        }
    }
}

/// Whether a key may be claimed.
enum Claimable {
    No(Begin),
    Yes { claimed_before: Option<Timestamp> },
}

fn count_unanswered(unanswered: &mut u32) -> Result<(), NatsError> {
    *unanswered += 1;
    if *unanswered < MAX_UNANSWERED { Ok(()) } else { Err(NatsError::NoAnswer) }
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
        Box::pin(self.change(key, None, None))
    }

    fn reap(&self, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(self.run(move |shared| async move { shared.reap(limit).await }))
    }

    fn changed<'a>(&'a self, _key: &'a IdempotencyKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // `Notified` sees notifications from its creation on, so no change is missed before its first poll.
        Box::pin(self.shared.changed.notified())
    }

    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        // Not awaited; if it fails, the lease expires.
        self.runtime.spawn(async move {
            let _ = shared.change(&key, Some(owner), None).await;
            shared.changed.notify_waiters();
        });
    }
}
