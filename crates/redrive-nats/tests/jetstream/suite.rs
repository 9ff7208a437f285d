//! Conformance suite of idempotency stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_nats::{NatsStore, Storage};
use redrive_retry::idempotency::conformance::{StoreHarness, exercise};
use redrive_retry::idempotency::{
    Begin, Fingerprint, IdempotencyKey, IdempotencyRecord, IdempotencyStore, OwnerToken, StoreFuture,
};

use crate::scene::Scene;

/// Several stores on one bucket; each rule uses the next one.
struct OnServer {
    scene: Scene,
    stores: Vec<Arc<NatsStore>>,
    next: AtomicUsize,
}

impl OnServer {
    async fn with(scene: Scene, many: usize) -> Self {
        let mut stores = Vec::new();
        for _ in 0..many {
            stores.push(Arc::new(scene.open().await));
        }
        OnServer { scene, stores, next: AtomicUsize::new(0) }
    }
}

impl StoreHarness for OnServer {
    fn store(&self) -> Arc<dyn IdempotencyStore> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        if self.stores.len() == 1 {
            return self.stores[0].clone();
        }
        Arc::new(InTurns { stores: self.stores.clone(), next: AtomicUsize::new(next) })
    }

    async fn elapse(&self, duration: Duration) {
        self.scene.age(duration).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_passes_the_conformance_suite() {
    exercise(&OnServer::with(Scene::new(), 1).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_passes_the_conformance_suite_with_a_connection_per_call() {
    exercise(&OnServer::with(Scene::new(), 2).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_in_memory_passes_the_conformance_suite() {
    let mut scene = Scene::new();
    scene.options.storage = Storage::Memory;
    exercise(&OnServer::with(scene, 1).await).await;
}

/// Sends every call to the next store, as if each came from another process.
#[derive(Debug)]
struct InTurns {
    stores: Vec<Arc<NatsStore>>,
    next: AtomicUsize,
}

impl InTurns {
    fn next(&self) -> &NatsStore {
        &self.stores[self.next.fetch_add(1, Ordering::Relaxed) % self.stores.len()]
    }
}

impl IdempotencyStore for InTurns {
    fn begin<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, Begin> {
        self.next().begin(key, fingerprint, owner, lease)
    }

    fn extend<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        lease: Duration,
    ) -> StoreFuture<'a, ()> {
        self.next().extend(key, owner, lease)
    }

    fn complete<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        result: &'a str,
        metadata: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        self.next().complete(key, owner, result, metadata, keep)
    }

    fn release<'a>(
        &'a self,
        key: &'a IdempotencyKey,
        owner: OwnerToken,
        error: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        self.next().release(key, owner, error, keep)
    }

    fn get<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>> {
        self.next().get(key)
    }

    fn clear<'a>(&'a self, key: &'a IdempotencyKey) -> StoreFuture<'a, bool> {
        self.next().clear(key)
    }

    fn reap(&self, limit: usize) -> StoreFuture<'_, usize> {
        self.next().reap(limit)
    }

    fn abandon(&self, key: &IdempotencyKey, owner: OwnerToken) {
        self.next().abandon(key, owner);
    }
}
