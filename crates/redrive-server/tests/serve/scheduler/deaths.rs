//! Ends, gentle and not, and several at work on one database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::broker::failure;
use super::world::{Shop, metric};
use crate::world::{Place, World};

const MESSAGES: usize = 200;

/// Tells of so many failures.
fn fail(shop: &Shop) {
    for n in 0..MESSAGES {
        shop.client.fails(&shop.retry_queue, &failure(&format!("m-{n}"), &shop.orders, 0));
    }
}

/// Takes what is in the queue of the consumer.
fn take(shop: &Shop, got: &mut BTreeMap<String, usize>) {
    while let Some(message) = shop.client.get(&shop.orders) {
        *got.entry(message.id()).or_default() += 1;
    }
}

#[test]
fn killed_again_and_again_it_loses_nothing() {
    for place in [Place::file(), Place::server()] {
        let (shop, mut place) = (Shop::new(), Arc::new(place));
        let mut got = BTreeMap::new();
        let mut world = shop.schedule(&place, &[]);
        fail(&shop);
        for round in 0..5 {
            let before = got.len();
            // In the middle of its work, each time a little further.
            world.until("something is done", || {
                take(&shop, &mut got);
                got.len() > before || got.len() == MESSAGES
            });
            std::thread::sleep(Duration::from_millis(7 * round)); // another moment for each death
            place = world.kill();
            world = shop.schedule(&place, &[]);
        }
        world.until("all are back", || {
            take(&shop, &mut got);
            got.len() == MESSAGES
        });
        world.until("nothing waits", || metric(&world, "retry_queue_depth") == Some(0));
        take(&shop, &mut got);
        assert_eq!(got.len(), MESSAGES, "each under its own id");
        assert!(shop.client.get(&shop.review_queue).is_none(), "and none in review");
    }
}

#[test]
fn two_share_one_postgresql() {
    let (shop, place) = (Shop::new(), Arc::new(Place::server()));
    let (one, two) = (shop.schedule(&place, &[]), shop.schedule(&place, &[]));
    fail(&shop);
    let mut got = BTreeMap::new();
    one.until("all are back", || {
        take(&shop, &mut got);
        got.len() == MESSAGES
    });
    assert!(got.values().all(|times| *times == 1), "each once: {got:?}");
    let name = format!("retries_executed_total{{queue=\"{}\",status=\"success\"}}", shop.orders);
    let done = |world: &World| metric(world, &name).unwrap_or(0);
    one.until("both have counted", || done(&one) + done(&two) == MESSAGES as u64);

    // What one took in, the other goes on with.
    let mut later = failure("m-later", &shop.orders, 0);
    let soon =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap() + Duration::from_secs(2);
    later["next_retry_at_ms"] = serde_json::json!(soon.as_millis().to_string());
    shop.client.fails(&shop.retry_queue, &later);
    one.until("it waits", || metric(&one, "retry_queue_depth") == Some(1));
    drop(one);
    assert_eq!(shop.client.next(&shop.orders, || two.log()).id(), "m-later");
}

#[test]
fn a_signal_ends_it_well_and_what_waits_goes_on_at_the_next_start() {
    let (shop, place) = (Shop::new(), Arc::new(Place::file()));
    for signal in ["TERM", "INT"] {
        let mut world = shop.schedule(&place, &[]);
        let mut later = failure(&format!("m-{signal}"), &shop.orders, 0);
        let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
            + Duration::from_secs(1);
        later["next_retry_at_ms"] = serde_json::json!(soon.as_millis().to_string());
        shop.client.fails(&shop.retry_queue, &later);
        world.until("it is stored", || metric(&world, "retry_queue_depth") == Some(1));
        world.signal(signal);
        assert_eq!(world.ended().code(), Some(0), "{}", world.log());
        assert!(world.log().contains("ended"), "{}", world.log());
        let mut world = shop.schedule(&place, &[]);
        assert_eq!(shop.client.next(&shop.orders, || world.log()).id(), format!("m-{signal}"));
        world.signal(signal);
        assert_eq!(world.ended().code(), Some(0), "{}", world.log());
    }
}

/// Both work on `redrive.db` by default. What a scheduler has stored is for a scheduler, whoever runs there meanwhile.
#[test]
fn another_service_on_the_same_database_takes_nothing_away() {
    for place in [Place::file(), Place::server()] {
        let (shop, place) = (Shop::new(), Arc::new(place));
        let mut world = shop.schedule(&place, &[]);
        let mut later = failure("m-1", &shop.orders, 0);
        let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
            + Duration::from_secs(1);
        later["next_retry_at_ms"] = serde_json::json!(soon.as_millis().to_string());
        shop.client.fails(&shop.retry_queue, &later);
        world.until("it is stored", || metric(&world, "retry_queue_depth") == Some(1));
        world.signal("TERM");
        assert_eq!(world.ended().code(), Some(0), "{}", world.log());

        let mut other = World::start(Arc::clone(&place), &[]);
        other.until("it was looked at", || metric(&other, "redrive_deliveries_orphaned_total") > Some(0));
        other.signal("TERM");
        assert_eq!(other.ended().code(), Some(0), "{}", other.log());
        assert!(shop.client.get(&shop.orders).is_none());

        let world = shop.schedule(&place, &[]);
        assert_eq!(shop.client.next(&shop.orders, || world.log()).id(), "m-1");
    }
}
