//! Broker client of the benchmark.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use redrive::retry::BoxError;
use redrive_scheduler::{Rabbit, RabbitSettings, RetryMessage, Scheduler, Settings};

/// Messages in flight, as in the scheduler.
pub(super) const WINDOW: usize = 512;

/// A connection with a confirming channel.
pub(super) struct Client {
    _connection: Connection,
    pub(super) channel: Channel,
}

impl Client {
    pub(super) async fn connect(url: &str) -> Result<Self, BoxError> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Client { _connection: connection, channel })
    }

    /// Declares a durable queue; returns its message count.
    pub(super) async fn declare(&self, queue: &str) -> Result<u32, BoxError> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declared = self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        Ok(declared.message_count())
    }

    pub(super) async fn delete(&self, queue: &str) -> Result<(), BoxError> {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        Ok(())
    }

    /// Waits until a queue has this many messages.
    pub(super) async fn filled(&self, queue: &str, messages: u32) -> Result<(), BoxError> {
        while self.declare(queue).await? < messages {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Publishes messages concurrently, each confirmed.
    pub(super) async fn fill(
        &self,
        queue: &str,
        messages: impl Iterator<Item = RetryMessage>,
    ) -> Result<(), BoxError> {
        let mut in_flight = FuturesUnordered::new();
        for message in messages {
            let body = message.to_protobuf();
            in_flight.push(async move { publish(&self.channel, queue, &body).await });
            if in_flight.len() >= WINDOW {
                in_flight.next().await.transpose()?;
            }
        }
        while in_flight.next().await.transpose()?.is_some() {}
        Ok(())
    }
}

/// Publishes as the scheduler does: persistent, mandatory, confirmed.
pub(super) async fn publish(channel: &Channel, queue: &str, body: &[u8]) -> Result<(), BoxError> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default().with_delivery_mode(2);
    let confirmed = channel.basic_publish("".into(), queue.into(), options, body, properties).await?.await?;
    if confirmed.is_ack() { Ok(()) } else { Err("the broker has refused a message".into()) }
}

/// A message of about a kibibyte.
pub(super) fn message(id: String, queue: &str, due_ms: i64) -> RetryMessage {
    let payload = format!("{{\"due\":{due_ms},\"note\":\"{}\"}}", "x".repeat(1000));
    RetryMessage {
        message_id: id,
        original_payload: payload.into_bytes(),
        original_queue: queue.to_owned(),
        error_reason: "timed out".to_owned(),
        retry_count: 0,
        max_retries: 3,
        next_retry_at_ms: due_ms,
    }
}

/// Unix time in milliseconds.
pub(super) fn now_ms() -> i64 {
    redrive::retry::Clock::system().now().as_millis()
}

/// Settings with new queue names.
pub(super) fn settings() -> Settings {
    let name = uuid::Uuid::new_v4().simple();
    Settings {
        retry_queue: format!("retry.scheduled.{name}"),
        review_queue: format!("manual-review.pending.{name}"),
        ..Settings::default()
    }
}

/// A scheduler on these queues.
pub(super) async fn scheduler(
    settings: &Settings,
    broker: &str,
    location: &str,
) -> Result<Scheduler, BoxError> {
    let rabbit = Rabbit::connect(RabbitSettings::new(broker, settings))?;
    Ok(Scheduler::start(settings.clone(), location, std::sync::Arc::new(rabbit)).await?)
}
