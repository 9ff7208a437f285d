//! Kills, graceful restarts, and two schedulers on one database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::broker::failure;
use super::world::{Shop, metric};
use crate::world::{TestDatabase, World};

const MESSAGES: usize = 200;

/// Sends [`MESSAGES`] failed messages.
fn fail(shop: &Shop) {
    for n in 0..MESSAGES {
        shop.client.send_failure(&shop.retry_queue, &failure(&format!("m-{n}"), &shop.orders, 0));
    }
}

/// Counts the messages in the consumer's queue by id.
fn drain(shop: &Shop, got: &mut BTreeMap<String, usize>) {
    while let Some(message) = shop.client.get(&shop.orders) {
        *got.entry(message.id()).or_default() += 1;
    }
}

#[test]
fn a_scheduler_killed_repeatedly_loses_nothing() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let (shop, mut database) = (Shop::new(), Arc::new(database));
        let mut got = BTreeMap::new();
        let mut world = shop.schedule(&database, &[]);
        fail(&shop);
        for round in 0..5 {
            let before = got.len();
            // Killed during its work, later in each round.
            world.until("something is done", || {
                drain(&shop, &mut got);
                got.len() > before || got.len() == MESSAGES
            });
            std::thread::sleep(Duration::from_millis(7 * round)); // another kill time in each round
            database = world.kill();
            world = shop.schedule(&database, &[]);
        }
        world.until("all are republished", || {
            drain(&shop, &mut got);
            got.len() == MESSAGES
        });
        world.until("no task is pending", || metric(&world, "retry_queue_depth") == Some(0));
        drain(&shop, &mut got);
        assert_eq!(got.len(), MESSAGES, "each under its own id");
        assert!(shop.client.get(&shop.review_queue).is_none(), "none is in review");
    }
}

#[test]
fn two_schedulers_share_one_postgresql() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::postgres()));
    let (one, two) = (shop.schedule(&database, &[]), shop.schedule(&database, &[]));
    fail(&shop);
    let mut got = BTreeMap::new();
    one.until("all are republished", || {
        drain(&shop, &mut got);
        got.len() == MESSAGES
    });
    assert!(got.values().all(|times| *times == 1), "each once: {got:?}");
    let name = format!("retries_executed_total{{queue=\"{}\",status=\"success\"}}", shop.orders);
    let done = |world: &World| metric(world, &name).unwrap_or(0);
    one.until("both have counted", || done(&one) + done(&two) == MESSAGES as u64);

    // A task stored by one scheduler is republished by the other.
    let mut later = failure("m-later", &shop.orders, 0);
    let soon =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap() + Duration::from_secs(2);
    later["next_retry_at_ms"] = serde_json::json!(soon.as_millis().to_string());
    shop.client.send_failure(&shop.retry_queue, &later);
    one.until("it waits", || metric(&one, "retry_queue_depth") == Some(1));
    drop(one);
    assert_eq!(shop.client.next(&shop.orders, || two.log()).id(), "m-later");
}

#[test]
fn waiting_messages_survive_a_graceful_restart() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    for signal in ["TERM", "INT"] {
        let mut world = shop.schedule(&database, &[]);
        let mut later = failure(&format!("m-{signal}"), &shop.orders, 0);
        let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
            + Duration::from_secs(1);
        later["next_retry_at_ms"] = serde_json::json!(soon.as_millis().to_string());
        shop.client.send_failure(&shop.retry_queue, &later);
        world.until("it is stored", || metric(&world, "retry_queue_depth") == Some(1));
        world.signal(signal);
        assert_eq!(world.ended().code(), Some(0), "{}", world.log());
        assert!(world.log().contains("stopped"), "{}", world.log());
        let mut world = shop.schedule(&database, &[]);
        assert_eq!(shop.client.next(&shop.orders, || world.log()).id(), format!("m-{signal}"));
        world.signal(signal);
        assert_eq!(world.ended().code(), Some(0), "{}", world.log());
    }
}

/// Both services use `redrive.db` by default. Tasks of a scheduler wait for a scheduler.
#[test]
fn redrive_serve_on_the_same_database_leaves_tasks_alone() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let (shop, database) = (Shop::new(), Arc::new(database));
        let mut world = shop.schedule(&database, &[]);
        let mut later = failure("m-1", &shop.orders, 0);
        let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
            + Duration::from_secs(1);
        later["next_retry_at_ms"] = serde_json::json!(soon.as_millis().to_string());
        shop.client.send_failure(&shop.retry_queue, &later);
        world.until("it is stored", || metric(&world, "retry_queue_depth") == Some(1));
        world.signal("TERM");
        assert_eq!(world.ended().code(), Some(0), "{}", world.log());

        let mut other = World::start(Arc::clone(&database), &[]);
        other.until("the delivery was deferred as orphaned", || {
            metric(&other, "redrive_deliveries_orphaned_total") > Some(0)
        });
        other.signal("TERM");
        assert_eq!(other.ended().code(), Some(0), "{}", other.log());
        assert!(shop.client.get(&shop.orders).is_none());

        let world = shop.schedule(&database, &[]);
        assert_eq!(shop.client.next(&shop.orders, || world.log()).id(), "m-1");
    }
}
