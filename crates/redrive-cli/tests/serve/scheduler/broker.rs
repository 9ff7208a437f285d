//! RabbitMQ client that reports failures and consumes republished messages.

use std::time::{Duration, Instant};

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    runtime: Runtime,
    channel: Channel,
    /// Closes the channel on drop.
    _connection: Connection,
}

/// Consumed message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) body: String,
    pub(crate) properties: BasicProperties,
}

impl Message {
    pub(crate) fn id(&self) -> String {
        self.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// Numeric header.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        let headers = self.properties.headers().as_ref()?;
        match headers.inner().get(name)? {
            AMQPValue::LongInt(number) => Some(i64::from(*number)),
            AMQPValue::LongLongInt(number) => Some(*number),
            AMQPValue::LongUInt(number) => Some(i64::from(*number)),
            other => panic!("{name}: {other:?}"),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Client {
    pub(crate) fn connect(url: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (connection, channel) = runtime.block_on(async {
            let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
            let channel = connection.create_channel().await.unwrap();
            channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
            (connection, channel)
        });
        Client { runtime, channel, _connection: connection }
    }

    /// Whether the connection is still up.
    pub(crate) fn is_connected(&self) -> bool {
        self.channel.status().connected()
    }

    /// Declares a durable queue.
    pub(crate) fn declare(&self, queue: &str) {
        self.declare_with(queue, FieldTable::default());
    }

    pub(crate) fn declare_with(&self, queue: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declared = self.channel.queue_declare(queue.into(), options, arguments);
        self.runtime.block_on(declared).unwrap();
    }

    pub(crate) fn delete(&self, queue: &str) {
        let deleted = self.channel.queue_delete(queue.into(), QueueDeleteOptions::default());
        self.runtime.block_on(deleted).unwrap();
    }

    /// Publishes to a queue and waits for the confirm.
    pub(crate) fn publish(&self, queue: &str, body: &str, properties: BasicProperties) {
        self.runtime.block_on(async {
            let options = BasicPublishOptions::default();
            let sent =
                self.channel.basic_publish("".into(), queue.into(), options, body.as_bytes(), properties);
            assert!(sent.await.unwrap().await.unwrap().is_ack());
        });
    }

    /// Sends a failed message to the scheduler, in JSON.
    pub(crate) fn send_failure(&self, retry_queue: &str, message: &Value) {
        let properties = BasicProperties::default().with_content_type("application/json".into());
        self.publish(retry_queue, &message.to_string(), properties.with_delivery_mode(2));
    }

    /// Next message, if any.
    pub(crate) fn get(&self, queue: &str) -> Option<Message> {
        let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true });
        let delivery = self.runtime.block_on(got).unwrap()?.delivery;
        let body = String::from_utf8(delivery.data).unwrap();
        Some(Message { body, properties: delivery.properties })
    }

    /// Waits for the next message.
    pub(crate) fn next(&self, queue: &str, log: impl Fn() -> String) -> Message {
        let began = Instant::now();
        loop {
            if let Some(message) = self.get(queue) {
                return message;
            }
            assert!(began.elapsed() < TIMEOUT, "no message in {queue}: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Rejects the next message, as a failing consumer does.
    pub(crate) fn reject_next(&self, queue: &str) {
        let began = Instant::now();
        loop {
            let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: false });
            if let Some(message) = self.runtime.block_on(got).unwrap() {
                let rejected = message.delivery.acker.reject(BasicRejectOptions { requeue: false });
                self.runtime.block_on(rejected).unwrap();
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "no message in {queue}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Failed message by the contract, in JSON.
pub(crate) fn failure(id: &str, queue: &str, retry_count: u32) -> Value {
    // {"order": 7}
    let payload = "eyJvcmRlciI6IDd9";
    json!({"message_id": id, "original_payload": payload, "original_queue": queue,
        "error_reason": "timeout after 30 s", "retry_count": retry_count})
}
