//! What is written to the log, and what never is.

use std::sync::Arc;

use super::broker::failure;
use super::world::{Shop, one_in_review};
use crate::world::Place;

/// A message that comes back from the broker is shown by the broker's client with all that is in it.
#[test]
fn no_message_is_in_the_log_whatever_is_asked_for() {
    for filter in ["info", "warn,lapin=trace,lapin::returned_messages=trace"] {
        let (shop, place) = (Shop::new(), Arc::new(Place::file()));
        let world = shop.schedule(&place, &[("RUST_LOG", filter)]);
        let nowhere = format!("{}.nowhere", shop.orders);
        shop.client.fails(&shop.retry_queue, &failure("m-1", &nowhere, 0));
        assert!(one_in_review(&world)["why"].as_str().unwrap().contains("NO_ROUTE"));
        world.until("it is said", || world.log().contains("could not be republished"));
        let log = world.log();
        assert!(!log.contains("lapin") && !log.contains("Server returned"), "{filter}: {log}");
    }
}
