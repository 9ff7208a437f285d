//! Test fixture: a scheduler with its own NATS streams and database, and a client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, Context};
use redrive_scheduler::{Metrics, Nats, NatsSettings, RetryMessage, Scheduler, Settings, Transport, header};
use serde_json::Value;
use uuid::Uuid;

use crate::world::{Database, TIMEOUT, settings};

/// A scheduler with uniquely named streams.
pub(crate) struct Scene {
    pub(crate) settings: Settings,
    pub(crate) nats: NatsSettings,
    pub(crate) database: Database,
    pub(crate) context: Context,
    pub(crate) scheduler: Scheduler,
}

/// The server shared by tests that do not disturb it.
pub(crate) fn shared() -> String {
    redrive_servers::Nats::shared_url().unwrap_or_else(|missing| panic!("{missing}"))
}

/// Settings with unique stream names.
pub(crate) fn nats(url: &str, settings: &Settings) -> NatsSettings {
    let name = Uuid::new_v4().simple().to_string();
    NatsSettings {
        stream: format!("RETRY_{name}"),
        review_stream: format!("REVIEW_{name}"),
        consumer: format!("scheduler-{name}"),
        ack_wait: Duration::from_secs(2),
        ..NatsSettings::new(url, settings)
    }
}

pub(crate) fn transport(nats: &NatsSettings) -> Arc<Nats> {
    Arc::new(Nats::connect(nats.clone()).unwrap())
}

impl Scene {
    pub(crate) async fn on(database: Database) -> Self {
        Self::with(database, settings(), &shared()).await
    }

    pub(crate) async fn with(database: Database, settings: Settings, url: &str) -> Self {
        let nats = nats(url, &settings);
        Self::at(database, settings, nats).await
    }

    pub(crate) async fn at(database: Database, settings: Settings, nats: NatsSettings) -> Self {
        let client = async_nats::connect(&nats.url).await.unwrap();
        let context = jetstream::new(client);
        let scheduler =
            Scheduler::start(settings.clone(), database.address(), transport(&nats)).await.unwrap();
        let scene = Scene { settings, nats, database, context, scheduler };
        scene.until("the scheduler is connected", |metrics| metrics.transport.consuming).await;
        scene
    }

    /// Shuts the scheduler down and starts another one on its database.
    pub(crate) async fn restart(&mut self) {
        self.scheduler.shutdown().await.unwrap();
        self.start(transport(&self.nats)).await;
    }

    pub(crate) async fn start(&mut self, transport: Arc<dyn Transport>) {
        self.scheduler =
            Scheduler::start(self.settings.clone(), self.database.address(), transport).await.unwrap();
    }

    /// Waits until the metrics satisfy a condition.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Metrics) -> bool) -> Metrics {
        let began = Instant::now();
        loop {
            let metrics = self.scheduler.metrics().await;
            if is_so(&metrics) {
                return metrics;
            }
            assert!(began.elapsed() < TIMEOUT, "{what}: {metrics:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until no task is open.
    pub(crate) async fn until_over(&self) -> Metrics {
        self.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await
    }

    /// Publishes a failed message to the scheduler, as a consumer does.
    pub(crate) async fn fails(&self, message: &RetryMessage) {
        let mut headers = HeaderMap::new();
        headers.insert("Content-Type", "application/x-protobuf");
        self.send(&self.settings.retry_queue, &message.to_protobuf(), headers).await;
    }

    pub(crate) async fn send(&self, subject: &str, body: &[u8], headers: HeaderMap) {
        let message = PublishMessage::build().headers(headers).payload(body.to_vec().into());
        let sent = self.context.send_publish(subject.to_owned(), message).await.unwrap();
        assert!(!sent.await.unwrap().duplicate);
    }

    /// Creates a stream for these subjects.
    pub(crate) async fn stream(&self, subjects: &[&str]) -> Inbox {
        let name = format!("S{}", Uuid::new_v4().simple());
        let subjects = subjects.iter().map(|subject| (*subject).to_owned()).collect();
        let config = Config { name, subjects, allow_direct: true, ..Config::default() };
        Inbox { stream: self.context.create_stream(config).await.unwrap(), next: 1 }
    }

    pub(crate) async fn review_inbox(&self) -> Inbox {
        Inbox::of(&self.context, &self.nats.review_stream).await
    }

    /// Number of undelivered and unacked failed messages.
    pub(crate) async fn left(&self) -> u64 {
        let stream = self.context.get_stream(&self.nats.stream).await.unwrap();
        let info = stream.consumer_info(&self.nats.consumer).await.unwrap();
        info.num_pending + info.num_ack_pending as u64
    }

    pub(crate) async fn until_acked(&self) {
        let began = Instant::now();
        while self.left().await > 0 {
            assert!(began.elapsed() < TIMEOUT, "{:?}", self.scheduler.counted());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn end(self, inboxes: &[&Inbox]) {
        self.scheduler.shutdown().await.unwrap();
        let own = [self.nats.stream.clone(), self.nats.review_stream.clone()];
        for name in own.into_iter().chain(inboxes.iter().map(|inbox| inbox.name())) {
            let _ = self.context.delete_stream(name).await; // some tests have none
        }
    }
}

/// A stream, read from its beginning.
pub(crate) struct Inbox {
    pub(crate) stream: Stream,
    next: u64,
}

impl Inbox {
    pub(crate) async fn of(context: &Context, name: &str) -> Self {
        Inbox { stream: context.get_stream(name).await.unwrap(), next: 1 }
    }

    pub(crate) fn name(&self) -> String {
        self.stream.cached_info().config.name.clone()
    }

    /// Waits for the next message.
    pub(crate) async fn next(&mut self) -> StreamMessage {
        let began = Instant::now();
        loop {
            // Not `get_raw_message`, which keeps only the last value of each header.
            if let Ok(message) = self.stream.direct_get(self.next).await {
                self.next += 1;
                return message;
            }
            assert!(began.elapsed() < TIMEOUT, "no message arrives in {}", self.name());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for the next message and parses its body.
    pub(crate) async fn json(&mut self) -> Value {
        serde_json::from_slice(&self.next().await.payload).unwrap()
    }

    /// Number of messages in the stream.
    pub(crate) async fn count(&mut self) -> u64 {
        self.stream.info().await.unwrap().state.last_sequence
    }
}

/// A header, or an empty text.
pub(crate) fn text(message: &StreamMessage, name: &str) -> String {
    message.headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default()
}

pub(crate) fn id(message: &StreamMessage) -> String {
    text(message, header::MESSAGE_ID)
}
