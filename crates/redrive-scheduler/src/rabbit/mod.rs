//! RabbitMQ: one connection to consume, another to publish, both kept up for ever.

mod broker;
mod consumer;
mod convert;
mod publisher;
mod window;

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

/// Publications that wait for the connection. Whoever has more to publish waits before.
const WAITING: usize = 1024;

/// How RabbitMQ is reached, and used.
#[derive(Clone)]
pub struct RabbitSettings {
    /// `amqp://user:password@host:5672/vhost`, or `amqps://…`: `RABBITMQ_URL`. Never shown with its password.
    pub url: String,
    /// How the connections are called.
    pub service_name: String,
    /// Where deliveries come from. Declared if it is not there.
    pub retry_queue: String,
    /// Declared, too, because nothing may be lost for want of it.
    pub review_queue: String,
    /// How many deliveries may come before the first is accepted.
    pub prefetch: u16,
    /// How long the broker may take to confirm a message; then it is unknown whether it has it.
    pub confirm_timeout: Duration,
    /// How often either side says that it lives, unless the address says otherwise.
    pub heartbeat: Duration,
}

impl RabbitSettings {
    /// At this address, the rest as the scheduler is set.
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

    /// The address without its password, if it is one.
    pub fn address(&self) -> Result<String, SchedulerError> {
        Ok(Broker::new(self)?.address().to_owned())
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

/// RabbitMQ. Connects by itself, and again after every loss.
pub struct Rabbit {
    broker: Arc<Broker>,
    consumer: Consumer,
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    /// Ends when this is dropped.
    publisher: JoinHandle<()>,
}

impl Rabbit {
    /// Begins to connect, and returns at once: an outage at the start is like any other. Inside a tokio runtime.
    pub fn connect(settings: RabbitSettings) -> Result<Self, SchedulerError> {
        let broker = Arc::new(Broker::new(&settings)?);
        let shared = Arc::new(Shared::default());
        let (jobs, waiting) = mpsc::channel(WAITING);
        let publisher = tokio::spawn(publisher::run(
            Arc::clone(&broker),
            Arc::clone(&shared),
            waiting,
            settings.confirm_timeout,
        ));
        Ok(Rabbit {
            consumer: Consumer::new(Arc::clone(&broker), settings.prefetch),
            broker,
            jobs,
            shared,
            publisher,
        })
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
    fn receive(&self, most: usize) -> TransportFuture<'_, Vec<Delivery>> {
        Box::pin(self.consumer.receive(most))
    }

    fn accept(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool> {
        Box::pin(self.consumer.accept(receipts))
    }

    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let closed = || PublishError::Unknown { why: "the connection was closed".to_owned() };
            self.jobs.send(Job { publication, answer }).await.map_err(|_| closed())?;
            answered.await.unwrap_or_else(|_| Err(closed()))
        })
    }

    fn ready(&self) -> TransportFuture<'_, ()> {
        let mut ready: watch::Receiver<bool> = self.shared.ready.subscribe();
        Box::pin(async move {
            let _ = ready.wait_for(|ready| *ready).await; // closed is as good as ready: publishing will say so
        })
    }

    fn state(&self) -> TransportState {
        TransportState {
            consuming: self.consumer.is_consuming(),
            publishing: *self.shared.ready.borrow(),
            blocked: self.shared.is_blocked.load(Ordering::Relaxed),
            connects: self.broker.connects(),
            unaccepted: self.consumer.unaccepted(),
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
            // The publisher ends its connection itself, if the broker lets it.
            let _ = tokio::time::timeout(
                Duration::from_secs(5),
                self.shared.ended.subscribe().wait_for(|ended| *ended),
            )
            .await;
            self.publisher.abort();
        })
    }
}
