//! Messages are never logged.

use std::sync::Arc;

use super::broker::failure;
use super::world::{Shop, one_in_review};
use crate::world::TestDatabase;

/// The RabbitMQ client logs returned messages with their bodies; the scheduler suppresses that.
#[test]
fn no_message_is_logged_at_any_level() {
    for filter in ["info", "warn,lapin=trace,lapin::returned_messages=trace"] {
        let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
        let world = shop.schedule(&database, &[("RUST_LOG", filter)]);
        let nowhere = format!("{}.nowhere", shop.orders);
        shop.client.send_failure(&shop.retry_queue, &failure("m-1", &nowhere, 0));
        assert!(one_in_review(&world)["why"].as_str().unwrap().contains("NO_ROUTE"));
        world.until("the failure is logged", || world.log().contains("could not republish"));
        let log = world.log();
        assert!(!log.contains("lapin") && !log.contains("Server returned"), "{filter}: {log}");
    }
}
