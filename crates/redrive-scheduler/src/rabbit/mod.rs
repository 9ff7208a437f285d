//! RabbitMQ transport: one connection to consume, another to publish, both reconnecting forever.

mod broker;
mod consumer;
mod convert;
mod publisher;
mod publisher_confirms;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use self::broker::Broker;
use self::consumer::Consumer;
use self::publisher::{Job, Shared};
use crate::error::SchedulerError;
use crate::settings::Settings;
use crate::transport::{
    Delivery, Publication, PublishError, Receipt, Transport, TransportFuture, TransportState,
};

/// Capacity of the channel of publications to the publisher task.
const PUBLISH_QUEUE: usize = 1024;

/// Address and settings of the RabbitMQ transport.
#[derive(Clone)]
pub struct RabbitSettings {
    /// `amqp://user:password@host:5672/vhost`, or `amqps://…`: `RABBITMQ_URL`. The password is never shown.
    pub url: String,
    /// Name of the connections.
    pub service_name: String,
    /// Queue to consume. Declared if it does not exist.
    pub retry_queue: String,
    /// Queue for review. Declared if it does not exist, so that no message is lost.
    pub review_queue: String,
    /// Prefetch: maximum number of unacked deliveries.
    pub prefetch: u16,
    /// Timeout of a publisher confirm; after it the outcome is unknown.
    pub confirm_timeout: Duration,
    /// AMQP heartbeat, unless the URL sets one.
    pub heartbeat: Duration,
}

impl RabbitSettings {
    /// Settings for this URL, the rest from the scheduler's settings.
    pub fn new(url: impl Into<String>, settings: &Settings) -> Self {
        RabbitSettings {
            url: url.into(),
            service_name: settings.service_name.clone(),
            retry_queue: settings.retry_queue.clone(),
            review_queue: settings.review_queue.clone(),
            prefetch: settings.prefetch,
            confirm_timeout: Duration::from_secs(30),
            heartbeat: Duration::from_secs(30),
        }
    }

    /// The address without its password. Fails if the URL is invalid.
    pub fn address(&self) -> Result<String, SchedulerError> {
        Ok(Broker::new(self.clone())?.address().to_owned())
    }
}

impl fmt::Debug for RabbitSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSettings")
            .field("service_name", &self.service_name)
            .field("retry_queue", &self.retry_queue)
            .field("review_queue", &self.review_queue)
            .finish_non_exhaustive()
    }
}

/// [`Transport`] over RabbitMQ. Reconnects by itself.
pub struct Rabbit {
    broker: Arc<Broker>,
    consumer: Consumer,
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    /// Aborted on drop.
    publisher: JoinHandle<()>,
}

impl Rabbit {
    /// Starts connecting in the background and returns at once. Must be called inside a tokio runtime.
    pub fn connect(settings: RabbitSettings) -> Result<Self, SchedulerError> {
        let broker = Arc::new(Broker::new(settings)?);
        let shared = Arc::new(Shared::default());
        let (jobs, waiting) = mpsc::channel(PUBLISH_QUEUE);
        let publisher = tokio::spawn(publisher::run(Arc::clone(&broker), Arc::clone(&shared), waiting));
        Ok(Rabbit { consumer: Consumer::new(Arc::clone(&broker)), broker, jobs, shared, publisher })
    }

    /// The address without its password.
    pub fn address(&self) -> &str {
        self.broker.address()
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        self.publisher.abort();
    }
}

impl fmt::Debug for Rabbit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rabbit").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Transport for Rabbit {
    fn receive(&self, max: usize) -> TransportFuture<'_, Vec<Delivery>> {
        Box::pin(self.consumer.receive(max))
    }

    fn ack(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        Box::pin(self.consumer.ack(receipts))
    }

    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            let (reply, replied) = oneshot::channel();
            let closed = || PublishError::Unknown { why: "the connection was closed".to_owned() };
            self.jobs.send(Job { publication, reply }).await.map_err(|_| closed())?;
            replied.await.unwrap_or_else(|_| Err(closed()))
        })
    }

    fn ready(&self) -> TransportFuture<'_, ()> {
        let mut ready: watch::Receiver<bool> = self.shared.ready.subscribe();
        Box::pin(async move {
            let _ = ready.wait_for(|ready| *ready).await; // after a close, publish fails at once
        })
    }

    fn state(&self) -> TransportState {
        TransportState {
            consuming: self.consumer.is_consuming(),
            publishing: *self.shared.ready.borrow(),
            blocked: self.shared.is_blocked.load(Ordering::Relaxed),
            connects: self.broker.connects(),
            unacked: self.consumer.unacked(),
            unconfirmed: self.shared.unconfirmed.load(Ordering::Relaxed),
        }
    }

    fn stop_receiving(&self) {
        self.consumer.stop();
    }

    fn close(&self) -> TransportFuture<'_, ()> {
        Box::pin(async move {
            self.consumer.close().await;
            self.shared.closing.send_replace(true);
            // The publisher closes its connection itself, if the broker responds.
            let _ = tokio::time::timeout(Duration::from_secs(5), self.jobs.closed()).await;
            self.publisher.abort();
        })
    }
}
