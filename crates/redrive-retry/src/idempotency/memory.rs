//! [`MemoryStore`]: an idempotency store in memory.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::{
    Begin, Fingerprint, IdempotencyError, IdempotencyKey, IdempotencyRecord, IdempotencyStore, KeyState,
    OwnerToken, StoreFuture,
};
use crate::clock::Clock;
use crate::timestamp::Timestamp;

/// Idempotency store in memory, for tests and for programs that need no durability. Bounded.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    capacity: usize,
    // A std mutex: held for a map operation, never across an await.
    records: Mutex<HashMap<IdempotencyKey, IdempotencyRecord>>,
    /// Notified at every change of any key: waiting callers are few, and checking again is cheap.
    changed: Notify,
}

impl MemoryStore {
    /// Creates a store of at most a million keys.
    pub fn new(clock: Clock) -> Self {
        Self::with_capacity(clock, 1_000_000)
    }

    /// Creates a store of at most `capacity` keys. A full store drops expired keys; without any it refuses new keys.
    pub fn with_capacity(clock: Clock, capacity: usize) -> Self {
        // Anchored: a step of the wall clock must not end a lease.
        MemoryStore { clock: clock.anchored(), capacity, records: Mutex::default(), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IdempotencyKey, IdempotencyRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the record if this owner holds the key.
    fn as_owner(
        &self,
        key: &IdempotencyKey,
        owner: OwnerToken,
        change: impl FnOnce(Timestamp) -> Option<KeyState>,
    ) -> Result<(), IdempotencyError> {
        let now = self.clock.now();
        {
            let mut records = self.lock();
            let owned = records
                .get_mut(key)
                .filter(|record| matches!(&record.state, KeyState::InProgress { owner: holder, .. } if *holder == owner))
                .ok_or_else(|| IdempotencyError::LeaseLost { key: key.clone() })?;
            match change(now) {
                Some(state) => {
                    owned.state = state;
                    owned.updated_at = now;
                }
                None => {
                    records.remove(key);
                }
            }
        }
        self.changed.notify_waiters();
        Ok(())
    }

    fn begin_now(
        &self,
        key: &IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> Result<Begin, IdempotencyError> {
        let now = self.clock.now();
        let mut records = self.lock();
        let mut created_at = now;
        if let Some(record) = records.get(key).filter(|record| !record.state.is_expired(now)) {
            if let Some(answer) = record.answer(fingerprint, owner, now) {
                return Ok(answer);
            }
            created_at = record.created_at;
        } else if records.len() >= self.capacity {
            records.retain(|_, record| !record.state.is_expired(now));
            if records.len() >= self.capacity {
                return Err(IdempotencyError::Full { capacity: self.capacity });
            }
        }
        let state = KeyState::InProgress { owner, lease_until: now + lease };
        records.insert(key.clone(), IdempotencyRecord { state, fingerprint, created_at, updated_at: now });
        Ok(Begin::Acquired)
    }
}

fn ready<'a, T: Send + 'a>(result: Result<T, IdempotencyError>) -> StoreFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl IdempotencyStore for MemoryStore {
    fn begin<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, Begin> {
        ready(self.begin_now(key, fingerprint, owner, lease))
    }

    fn extend<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, ()> {
        ready(self.as_owner(key, owner, |now| Some(KeyState::InProgress { owner, lease_until: now + lease })))
    }

    fn complete<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        result: &'a str,
        metadata: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        let completed = |now| {
            let metadata = metadata.map(str::to_owned);
            Some(KeyState::Completed { result: result.to_owned(), metadata, expires_at: now + keep })
        };
        ready(self.as_owner(key, owner, completed))
    }

    fn release<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        error: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        let failed =
            |now| error.map(|error| KeyState::Failed { error: error.to_owned(), expires_at: now + keep });
        ready(self.as_owner(key, owner, failed))
    }

    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>> {
        let now = self.clock.now();
        ready(Ok(self.lock().get(key).filter(|record| !record.state.is_expired(now)).cloned()))
    }

    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool> {
        let cleared = self.lock().remove(key).is_some();
        self.changed.notify_waiters();
        ready(Ok(cleared))
    }

    fn reap(&self, limit: usize) -> StoreFuture<'_, usize> {
        let now = self.clock.now();
        let mut records = self.lock();
        let expired: Vec<_> = records
            .iter()
            .filter(|(_, r)| r.state.is_expired(now))
            .map(|(k, _)| k.clone())
            .take(limit)
            .collect();
        for key in &expired {
            records.remove(key);
        }
        ready(Ok(expired.len()))
    }

    fn changed<'a>(&'a self, _key: &'a IdempotencyKey) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // `Notified` sees notifications from its creation on, so no change is missed before its first poll.
        Box::pin(self.changed.notified())
    }

    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        // Fails if another owner holds the key by now; then there is nothing to release.
        let _ = self.as_owner(key, owner, |_| None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{StoreHarness, exercise};
    use super::*;
    use crate::clock::VirtualTime;
    use std::sync::Arc;

    struct InMemory {
        time: VirtualTime,
        store: Arc<MemoryStore>,
    }

    impl StoreHarness for InMemory {
        fn store(&self) -> Arc<dyn IdempotencyStore> {
            self.store.clone()
        }

        async fn elapse(&self, duration: Duration) {
            self.time.advance(duration);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_memory_store_passes_the_conformance_suite() {
        let time = VirtualTime::new();
        let store = Arc::new(MemoryStore::new(time.clock()));
        exercise(&InMemory { time, store }).await;
    }

    #[tokio::test]
    async fn a_full_store_refuses_new_keys_until_old_ones_expire() {
        let time = VirtualTime::new();
        let store = MemoryStore::with_capacity(time.clock(), 1);
        let (first, second) = (IdempotencyKey::new("first").unwrap(), IdempotencyKey::new("second").unwrap());
        let (owner, lease) = (OwnerToken::new(), Duration::from_secs(10));
        store.begin(&first, Fingerprint::default(), owner, lease).await.unwrap();
        let full = store.begin(&second, Fingerprint::default(), owner, lease).await.unwrap_err();
        assert!(full.to_string().contains("full with 1 keys: make it larger"), "{full}");
        store.complete(&first, owner, "1", None, Duration::from_secs(5)).await.unwrap();
        time.advance(Duration::from_secs(5));
        assert_eq!(
            store.begin(&second, Fingerprint::default(), owner, lease).await.unwrap(),
            Begin::Acquired
        );
    }
}
