//! Test fixture: a scheduler with its own RabbitMQ queues and database, and a client.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use redrive_scheduler::{
    Metrics, Rabbit, RabbitSettings, RetryMessage, Scheduler, Settings, Transport, header,
};
use redrive_servers::{RabbitMq, Schema};
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

/// Upper bound of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Database of the tasks.
pub(crate) enum Database {
    File(TempDir),
    Schema(Schema),
    /// A PostgreSQL server started for one test.
    Server(String),
}

impl Database {
    pub(crate) fn file() -> Self {
        Database::File(tempfile::tempdir().unwrap())
    }

    pub(crate) fn schema() -> Self {
        Database::Schema(Schema::new().unwrap_or_else(|missing| panic!("{missing}")))
    }

    /// Both databases: behaviour must not depend on it.
    pub(crate) fn each() -> [Self; 2] {
        [Database::file(), Database::schema()]
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Database::File(folder) => folder.path().join("tasks.db").display().to_string(),
            Database::Schema(schema) => schema.address(),
            Database::Server(address) => address.clone(),
        }
    }
}

/// A scheduler with uniquely named queues.
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) broker: String,
    pub(crate) database: Database,
    pub(crate) client: Client,
    pub(crate) scheduler: Scheduler,
}

/// Short delays, otherwise the specified settings.
pub(crate) fn settings() -> Settings {
    let name = Uuid::new_v4().simple().to_string();
    Settings {
        service_name: format!("scheduler-{name}"),
        retry_queue: format!("retry.scheduled.{name}"),
        review_queue: format!("manual-review.pending.{name}"),
        base_delay: Duration::from_millis(50),
        max_delay: Duration::from_millis(400),
        jitter: Duration::ZERO,
        republish_delay: Duration::from_millis(30),
        ..Settings::default()
    }
}

/// The server shared by tests that do not disturb it.
pub(crate) fn shared_broker() -> String {
    RabbitMq::shared_url().unwrap_or_else(|missing| panic!("{missing}"))
}

pub(crate) fn rabbit(settings: &Settings, broker: &str) -> Arc<Rabbit> {
    Arc::new(Rabbit::connect(RabbitSettings::new(broker, settings)).unwrap())
}

impl World {
    pub(crate) async fn on(database: Database) -> Self {
        Self::with(database, settings()).await
    }

    pub(crate) async fn with(database: Database, settings: Settings) -> Self {
        Self::at(database, settings, shared_broker()).await
    }

    pub(crate) async fn at(database: Database, settings: Settings, broker: String) -> Self {
        let client = Client::connect(&broker, &settings).await;
        let transport = rabbit(&settings, &broker);
        let scheduler = Scheduler::start(settings.clone(), database.address(), transport).await.unwrap();
        let world = World { settings, broker, database, client, scheduler };
        world
            .until("the scheduler is connected", |metrics| {
                metrics.transport.consuming && metrics.transport.publishing
            })
            .await;
        world
    }

    /// Shuts the scheduler down and starts another one on its database.
    pub(crate) async fn restart(&mut self) {
        self.scheduler.shutdown().await.unwrap();
        self.start().await;
    }

    pub(crate) async fn start(&mut self) {
        let transport = rabbit(&self.settings, &self.broker);
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

    /// Publishes a failed message to the scheduler, as a dead-letter handler does.
    pub(crate) async fn fails(&self, message: &RetryMessage) {
        self.fails_with(message, BasicProperties::default()).await;
    }

    pub(crate) async fn fails_with(&self, message: &RetryMessage, properties: BasicProperties) {
        self.client.publish(&self.settings.retry_queue, &message.to_protobuf(), properties).await;
    }

    /// Body of the next message in review.
    pub(crate) async fn reviewed(&self) -> Value {
        let message = self.client.next(&self.settings.review_queue).await;
        serde_json::from_slice(&message.data).unwrap()
    }

    pub(crate) async fn end(self) {
        self.scheduler.shutdown().await.unwrap();
        for queue in [&self.settings.retry_queue, &self.settings.review_queue] {
            self.client.delete(queue).await;
        }
    }
}

/// A message that failed once.
pub(crate) fn message(id: &str, queue: &str) -> RetryMessage {
    RetryMessage {
        message_id: id.to_owned(),
        original_payload: format!("{{\"order\":\"{id}\"}}").into_bytes(),
        original_queue: queue.to_owned(),
        error_reason: "timed out".to_owned(),
        retry_count: 0,
        max_retries: 0,
        next_retry_at_ms: 0,
    }
}

/// Unix time in milliseconds.
pub(crate) fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// A unique name.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", Uuid::new_v4().simple())
}

/// AMQP client of the test.
pub(crate) struct Client {
    _connection: Connection,
    channel: Channel,
}

/// A message as a consumer sees it.
pub(crate) struct Seen {
    pub(crate) data: Vec<u8>,
    pub(crate) properties: BasicProperties,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.properties.headers().as_ref()?.inner().get(name)
    }

    /// A header that is a number.
    pub(crate) fn number(&self, name: &str) -> i64 {
        self.header(name).and_then(AMQPValue::as_long_long_int).unwrap()
    }

    /// A header that is text.
    pub(crate) fn text(&self, name: &str) -> String {
        let text = self.header(name).and_then(AMQPValue::as_long_string).unwrap();
        String::from_utf8(text.as_bytes().to_vec()).unwrap()
    }

    pub(crate) fn retry_count(&self) -> i64 {
        self.number(header::RETRY_COUNT)
    }
}

impl Client {
    pub(crate) async fn connect(broker: &str, settings: &Settings) -> Self {
        let name = format!("{} test", settings.service_name);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connection = Connection::connect(broker, properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Client { _connection: connection, channel }
    }

    pub(crate) async fn declare(&self, queue: &str) {
        self.declare_with(queue, FieldTable::default()).await;
    }

    pub(crate) async fn declare_with(&self, queue: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.into(), options, arguments).await.unwrap();
    }

    pub(crate) async fn delete(&self, queue: &str) {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    }

    pub(crate) async fn purge(&self, queue: &str) {
        self.channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await.unwrap();
    }

    pub(crate) async fn publish(&self, queue: &str, body: &[u8], properties: BasicProperties) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties =
            if properties.delivery_mode().is_none() { properties.with_delivery_mode(2) } else { properties };
        let confirmed = self.channel.basic_publish("".into(), queue.into(), options, body, properties).await;
        let confirmation = confirmed.unwrap().await.unwrap();
        assert!(confirmation.is_ack() && confirmation.take_message().is_none(), "{queue} accepts it");
    }

    /// Gets a message from a queue, if there is one.
    pub(crate) async fn look(&self, queue: &str) -> Option<Seen> {
        let options = BasicGetOptions { no_ack: true };
        let message = self.channel.basic_get(queue.into(), options).await.unwrap()?;
        Some(Seen { properties: message.delivery.properties, data: message.delivery.data })
    }

    /// The next message of a queue.
    pub(crate) async fn next(&self, queue: &str) -> Seen {
        let began = Instant::now();
        loop {
            if let Some(seen) = self.look(queue).await {
                return seen;
            }
            assert!(began.elapsed() < TIMEOUT, "no message arrives in {queue}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Takes the next message of a queue and rejects it, so that its dead-letter exchange gets it.
    pub(crate) async fn reject(&self, queue: &str) -> Seen {
        let began = Instant::now();
        loop {
            if let Some(message) =
                self.channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap()
            {
                let reject = lapin::options::BasicRejectOptions { requeue: false };
                message.delivery.reject(reject).await.unwrap();
                return Seen { properties: message.delivery.properties, data: message.delivery.data };
            }
            assert!(began.elapsed() < TIMEOUT, "no message arrives in {queue}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// A transport without a scheduler.
pub(crate) fn transport(settings: &Settings, broker: &str) -> Arc<dyn Transport> {
    rabbit(settings, broker)
}
