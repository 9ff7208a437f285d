//! NATS with JetStream: failed messages come from a stream, and go back to the stream of their subject.

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

/// How NATS is reached, and used.
#[derive(Clone)]
pub struct NatsSettings {
    /// `nats://user:password@host:4222`, `nats://token@host` or `tls://…`, several with commas between: `NATS_URL`. Never shown with
    /// its password.
    pub url: String,
    /// A file to sign in with, as `nsc` writes it; holds over what the address says. Needs the feature `nkeys`.
    pub credentials_file: Option<PathBuf>,
    /// How the connection is called.
    pub service_name: String,
    /// Where failed messages come from.
    pub retry_subject: String,
    /// Where those go that a person must look at.
    pub review_subject: String,
    /// The stream that is made if none takes [`retry_subject`](Self::retry_subject). Whichever does is used as it is.
    pub stream: String,
    /// The same for review.
    pub review_stream: String,
    /// On how many servers the streams are that are made.
    pub replicas: usize,
    /// The durable consumer. All schedulers that share their work share it.
    pub consumer: String,
    /// How many deliveries may be held before the first is accepted.
    pub prefetch: u16,
    /// How long the server waits before it delivers again what a process held that is gone.
    pub ack_wait: Duration,
    /// How long a stream may take to confirm a message; then it is unknown whether it has it.
    pub confirm_timeout: Duration,
}

impl NatsSettings {
    /// At this address, the rest as the scheduler is set.
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

    /// The address without its password, if it is one, and everything else is what NATS takes.
    pub fn address(&self) -> Result<String, SchedulerError> {
        topology::check(self)?;
        Ok(Server::new(self)?.address().to_owned())
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

/// NATS. Connects by itself, and again after every loss.
pub struct Nats {
    server: Arc<Server>,
    consumer: Arc<Consumer>,
    publisher: Publisher,
    /// Connecting, pulling, and saying that what is held is worked on. They end when this is dropped.
    tasks: [JoinHandle<()>; 3],
}

impl Nats {
    /// Begins to connect, and returns at once: an outage at the start is like any other. Inside a tokio runtime.
    pub fn connect(settings: NatsSettings) -> Result<Self, SchedulerError> {
        topology::check(&settings)?;
        let server = Arc::new(Server::new(&settings)?);
        let consumer = Arc::new(Consumer::new(Arc::clone(&server), settings.clone()));
        let tasks = [
            tokio::spawn(Arc::clone(&server).connect()),
            tokio::spawn(Arc::clone(&consumer).run()),
            tokio::spawn(Arc::clone(&consumer).keep()),
        ];
        let publisher = Publisher::new(Arc::clone(&server), settings);
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
    fn receive(&self, most: usize) -> TransportFuture<'_, Vec<Delivery>> {
        Box::pin(self.consumer.receive(most))
    }

    fn accept(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        Box::pin(self.consumer.accept(receipts))
    }

    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        Box::pin(self.publisher.publish(publication))
    }

    fn ready(&self) -> TransportFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.server.up().await; // closed is as good as ready: publishing will say so
        })
    }

    fn state(&self) -> TransportState {
        TransportState {
            consuming: self.server.is_up() && self.consumer.is_consuming(),
            publishing: self.server.is_up(),
            blocked: false, // a stream that is full says so for each message
            connects: self.server.connects(),
            unaccepted: self.consumer.unaccepted(),
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
            // What was not accepted is delivered again.
            self.consumer.release().await;
            self.server.close();
            if let Some(wire) = self.server.wire() {
                let _ = tokio::time::timeout(Duration::from_secs(2), wire.client.drain()).await;
            }
        })
    }
}
