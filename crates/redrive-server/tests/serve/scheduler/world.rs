//! A scheduler with queues that nobody else has.

use std::sync::Arc;

use lapin::types::{AMQPValue, FieldTable};
use redrive_servers::RabbitMq;
use serde_json::Value;
use uuid::Uuid;

use super::broker::Client;
use crate::world::{Place, World};

pub(crate) struct Shop {
    pub(crate) client: Client,
    pub(crate) broker: String,
    pub(crate) retry_queue: String,
    pub(crate) review_queue: String,
    /// A queue that some consumer works on.
    pub(crate) orders: String,
}

impl Shop {
    /// On the server that all tests share.
    pub(crate) fn new() -> Self {
        let url = RabbitMq::shared_url().unwrap_or_else(|missing| panic!("{missing}"));
        let name = Uuid::new_v4().simple().to_string();
        Shop::at(url, &format!(".{name}"))
    }

    /// On another server, with this behind every name.
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

    /// A queue whose dead letters go to the scheduler.
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
    pub(crate) fn schedule(&self, place: &Arc<Place>, more: &[(&str, &str)]) -> World {
        let variables = [
            ("HTTP_PORT", "0"),
            ("RABBITMQ_URL", &self.broker),
            ("RETRY_QUEUE", &self.retry_queue),
            ("MANUAL_REVIEW_QUEUE", &self.review_queue),
            ("BASE_DELAY_MS", "20"),
            ("MAX_DELAY_MS", "200"),
        ];
        let world = World::spawn(Arc::clone(place), &["scheduler"], &[&variables, more].concat());
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

/// What is in review, by HTTP.
pub(crate) fn in_review(world: &World) -> Vec<Value> {
    world.get("/v1/review").ok(200)["data"].as_array().unwrap().clone()
}

/// Waits until there is exactly one thing in review, and says which.
pub(crate) fn one_in_review(world: &World) -> Value {
    world.until("one is in review", || in_review(world).len() == 1);
    in_review(world).remove(0)
}

/// The value of a metric, by its name and labels as they are written.
pub(crate) fn metric(world: &World, name: &str) -> Option<u64> {
    let page = world.get("/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}
