//! Test fixture: a separate bucket per test on one shared server.

use std::time::Duration;

use redrive_nats::async_nats::{self, HeaderMap, jetstream};
use redrive_nats::{NatsOptions, NatsStore};
use redrive_retry::idempotency::IdempotencyKey;
use redrive_servers::Nats;
use serde_json::Value;
use uuid::Uuid;

pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const KEEP: Duration = Duration::from_secs(3600);

const EXPIRES_AFTER: &str = "Redrive-Expires-After-Ms";

pub(crate) fn key(name: &str) -> IdempotencyKey {
    IdempotencyKey::new(name).unwrap()
}

/// URL of the shared server.
pub(crate) fn server() -> String {
    Nats::shared_url().unwrap_or_else(|missing| panic!("{missing}"))
}

/// A bucket of one test.
pub(crate) struct Scene {
    pub(crate) url: String,
    pub(crate) options: NatsOptions,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::on(server())
    }

    pub(crate) fn on(url: String) -> Self {
        let bucket = format!("t{}", Uuid::new_v4().simple());
        Scene { url, options: NatsOptions { bucket, ..NatsOptions::default() } }
    }

    /// Opens a store with its own connection.
    pub(crate) async fn open(&self) -> NatsStore {
        NatsStore::connect(&self.url, self.options.clone()).await.unwrap()
    }

    pub(crate) async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(&self.url).await.unwrap())
    }

    pub(crate) async fn stream(&self) -> jetstream::stream::Stream {
        self.jetstream().await.get_stream(format!("KV_{}", self.options.bucket)).await.unwrap()
    }

    /// Subjects of all entries.
    pub(crate) async fn entries(&self) -> Vec<String> {
        use futures_util::TryStreamExt;
        let names = self.stream().await.info_with_subjects(">").await.unwrap();
        names.map_ok(|(name, _)| name).try_collect().await.unwrap()
    }

    /// Ages all entries of the bucket, because the server's clock cannot be moved.
    pub(crate) async fn age(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap();
        let (jetstream, stream) = (self.jetstream().await, self.stream().await);
        for subject in self.entries().await.into_iter().filter(|subject| subject.contains(".key.")) {
            let message = stream.get_last_raw_message_by_subject(&subject).await.unwrap();
            let mut value: Value = serde_json::from_slice(&message.payload).unwrap();
            value["for_ms"] = (value["for_ms"].as_i64().unwrap() - by).into();
            let after: i64 = message.headers.get(EXPIRES_AFTER).unwrap().as_str().parse().unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(EXPIRES_AFTER, (after - by).to_string());
            let payload = serde_json::to_vec(&value).unwrap().into();
            jetstream.publish_with_headers(subject, headers, payload).await.unwrap().await.unwrap();
        }
    }
}
