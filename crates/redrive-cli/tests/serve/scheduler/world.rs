//! Test fixture: a scheduler with its own queues.

use std::sync::Arc;

use lapin::types::{AMQPValue, FieldTable};
use redrive_servers::RabbitMq;
use serde_json::Value;
use uuid::Uuid;

use super::broker::Client;
use crate::world::{TestDatabase, World};

pub(crate) struct Shop {
    pub(crate) client: Client,
    pub(crate) broker: String,
    pub(crate) retry_queue: String,
    pub(crate) review_queue: String,
    /// Queue of a consumer.
    pub(crate) orders: String,
}

impl Shop {
    /// Uses the shared RabbitMQ server with unique queue names.
    pub(crate) fn new() -> Self {
        let url = RabbitMq::shared_url().unwrap_or_else(|missing| panic!("{missing}"));
        let name = Uuid::new_v4().simple().to_string();
        Shop::at(url, &format!(".{name}"))
    }

    /// Uses this server and appends `suffix` to every queue name.
    pub(crate) fn at(broker: String, suffix: &str) -> Self {
        let client = Client::connect(&broker);
        let orders = format!("orders{suffix}");
        client.declare(&orders);
        Shop {
            client,
            broker,
            retry_queue: format!("retry.scheduled{suffix}"),
            review_queue: format!("manual-review.pending{suffix}"),
            orders,
        }
    }

    /// Declares a queue whose dead letters go to the scheduler.
    pub(crate) fn with_dead_letters(&self, name: &str) -> String {
        let queue = format!("{name}.{}", Uuid::new_v4().simple());
        let mut arguments = FieldTable::default();
        arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
        let to = AMQPValue::LongString(self.retry_queue.as_str().into());
        arguments.insert("x-dead-letter-routing-key".into(), to);
        self.client.declare_with(&queue, arguments);
        queue
    }

    /// Starts a scheduler with short delays.
    pub(crate) fn schedule(&self, database: &Arc<TestDatabase>, more: &[(&str, &str)]) -> World {
        let variables = [
            ("HTTP_PORT", "0"),
            ("RABBITMQ_URL", &self.broker),
            ("RETRY_QUEUE", &self.retry_queue),
            ("MANUAL_REVIEW_QUEUE", &self.review_queue),
            ("BASE_DELAY_MS", "20"),
            ("MAX_DELAY_MS", "200"),
        ];
        let world = World::spawn(Arc::clone(database), &["scheduler"], &[&variables, more].concat());
        world.until("it is ready", || world.get("/readyz").status == 200);
        world
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        if std::thread::panicking() || !self.client.is_connected() {
            return;
        }
        for queue in [&self.retry_queue, &self.review_queue, &self.orders] {
            self.client.delete(queue);
        }
    }
}

/// Messages in review, by HTTP.
pub(crate) fn in_review(world: &World) -> Vec<Value> {
    world.get("/v1/review").ok(200)["data"].as_array().unwrap().clone()
}

/// Waits until exactly one message is in review and returns it.
pub(crate) fn one_in_review(world: &World) -> Value {
    world.until("one is in review", || in_review(world).len() == 1);
    in_review(world).remove(0)
}

/// Value of a metric, by its name and labels.
pub(crate) fn metric(world: &World, name: &str) -> Option<u64> {
    let page = world.get("/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}
