//! NATS JetStream transport: consumes failed messages from a stream, and publishes to the stream of their subject.

mod consumer;
mod convert;
mod publisher;
mod server;
mod topology;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use self::consumer::Consumer;
use self::publisher::Publisher;
use self::server::Server;
use crate::error::SchedulerError;
use crate::settings::Settings;
use crate::transport::{
    Delivery, Publication, PublishError, Receipt, Transport, TransportFuture, TransportState,
};

/// Address and settings of the NATS transport.
#[derive(Clone)]
pub struct NatsSettings {
    /// `nats://user:password@host:4222`, `nats://token@host` or `tls://…`, several separated by commas: `NATS_URL`. The
    /// password is never shown.
    pub url: String,
    /// Credentials file as written by `nsc`; overrides the URL. Needs the feature `nkeys`.
    pub credentials_file: Option<PathBuf>,
    /// Name of the connection.
    pub service_name: String,
    /// Subject of failed messages.
    pub retry_subject: String,
    /// Subject for review.
    pub review_subject: String,
    /// Stream that is created if none has [`retry_subject`](Self::retry_subject). An existing one is used as it is.
    pub stream: String,
    /// Stream that is created if none has [`review_subject`](Self::review_subject).
    pub review_stream: String,
    /// Replicas of the streams that are created.
    pub replicas: usize,
    /// Durable consumer, shared by all schedulers that share the work.
    pub consumer: String,
    /// Prefetch: maximum number of unacked deliveries.
    pub prefetch: u16,
    /// Time after which the server redelivers unacked messages of a process that is gone.
    pub ack_wait: Duration,
    /// Timeout of a publish ack; after it the outcome is unknown.
    pub confirm_timeout: Duration,
}

impl NatsSettings {
    /// Settings for this URL, the rest from the scheduler's settings.
    pub fn new(url: impl Into<String>, settings: &Settings) -> Self {
        NatsSettings {
            url: url.into(),
            credentials_file: None,
            service_name: settings.service_name.clone(),
            retry_subject: settings.retry_queue.clone(),
            review_subject: settings.review_queue.clone(),
            stream: "RETRY".to_owned(),
            review_stream: "MANUAL_REVIEW".to_owned(),
            replicas: 1,
            consumer: "retry-scheduler".to_owned(),
            prefetch: settings.prefetch,
            ack_wait: Duration::from_secs(30),
            confirm_timeout: Duration::from_secs(10),
        }
    }

    /// The address without its password. Fails if the URL or a name is invalid.
    pub fn address(&self) -> Result<String, SchedulerError> {
        topology::check(self)?;
        Ok(Server::new(self.clone())?.address().to_owned())
    }
}

impl fmt::Debug for NatsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSettings")
            .field("service_name", &self.service_name)
            .field("retry_subject", &self.retry_subject)
            .field("review_subject", &self.review_subject)
            .field("stream", &self.stream)
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

/// [`Transport`] over NATS JetStream. Reconnects by itself.
pub struct Nats {
    server: Arc<Server>,
    consumer: Arc<Consumer>,
    publisher: Publisher,
    /// Tasks that connect, pull, and extend the ack deadline of unacked messages. Aborted on drop.
    tasks: [JoinHandle<()>; 3],
}

impl Nats {
    /// Starts connecting in the background and returns at once. Must be called inside a tokio runtime.
    pub fn connect(settings: NatsSettings) -> Result<Self, SchedulerError> {
        topology::check(&settings)?;
        let server = Arc::new(Server::new(settings)?);
        let consumer = Arc::new(Consumer::new(Arc::clone(&server)));
        let tasks = [
            tokio::spawn(Arc::clone(&server).connect()),
            tokio::spawn(Arc::clone(&consumer).run()),
            tokio::spawn(Arc::clone(&consumer).extend_acks()),
        ];
        let publisher = Publisher::new(Arc::clone(&server));
        Ok(Nats { server, consumer, publisher, tasks })
    }

    /// The address without its password.
    pub fn address(&self) -> &str {
        self.server.address()
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Transport for Nats {
    fn receive(&self, max: usize) -> TransportFuture<'_, Vec<Delivery>> {
        Box::pin(self.consumer.receive(max))
    }

    fn ack(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        Box::pin(self.consumer.ack(receipts))
    }

    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        Box::pin(self.publisher.publish(publication))
    }

    fn ready(&self) -> TransportFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.server.up().await; // after a close, publish fails at once
        })
    }

    fn state(&self) -> TransportState {
        TransportState {
            consuming: self.server.is_up() && self.consumer.is_consuming(),
            publishing: self.server.is_up(),
            blocked: false, // a full stream refuses each message
            connects: self.server.connects(),
            unacked: self.consumer.unacked(),
            unconfirmed: self.publisher.unconfirmed(),
        }
    }

    fn stop_receiving(&self) {
        self.consumer.stop();
    }

    fn close(&self) -> TransportFuture<'_, ()> {
        Box::pin(async move {
            self.consumer.stop();
            let has_ended = async {
                while !self.tasks[1].is_finished() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(2), has_ended).await;
            self.tasks.iter().for_each(JoinHandle::abort);
            // The server redelivers unacked messages.
            self.consumer.release().await;
            self.server.close();
            if let Some(connection) = self.server.connection() {
                let _ = tokio::time::timeout(Duration::from_secs(2), connection.client.drain()).await;
            }
        })
    }
}
