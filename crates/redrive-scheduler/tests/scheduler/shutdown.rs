//! Shutdown.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redrive_scheduler::{Scheduler, Settings, header};

use crate::world::{Client, Database, World, message, settings, shared_broker, transport, unique};

/// Shuts down under load, several times; each message is republished once.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_shutdowns_lose_and_repeat_no_message() {
    const MESSAGES: usize = 200;
    for database in Database::each() {
        let mut world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        for round in 0..4 {
            for n in 0..MESSAGES / 4 {
                world.fails(&message(&format!("m-{round}-{n}"), &queue)).await;
            }
            world.restart().await;
        }
        let mut seen = BTreeSet::new();
        for _ in 0..MESSAGES {
            assert!(
                seen.insert(world.client.next(&queue).await.text(header::MESSAGE_ID)),
                "no message is repeated"
            );
        }
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert!(world.client.look(&queue).await.is_none());
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_works_while_the_broker_is_unreachable() {
    let settings = settings();
    let database = Database::file();
    // No server listens there.
    let transport = transport(&settings, "amqp://127.0.0.1:9");
    let scheduler = Scheduler::start(settings, database.address(), transport).await.unwrap();
    let metrics = scheduler.metrics().await;
    assert!(!metrics.transport.consuming && !metrics.transport.publishing);
    let began = Instant::now();
    scheduler.shutdown().await.unwrap();
    scheduler.shutdown().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn inconsistent_settings_are_refused() {
    let broker = shared_broker();
    let good = settings();
    let client = Client::connect(&broker, &good).await;
    for (bad, why) in [
        (Settings { retry_queue: String::new(), ..good.clone() }, "RETRY_QUEUE"),
        (Settings { review_queue: good.retry_queue.clone(), ..good.clone() }, "another name"),
        (Settings { base_delay: Duration::from_secs(3600), ..good.clone() }, "delay"),
    ] {
        let database = Database::file();
        let error = Scheduler::start(bad, database.address(), transport(&good, &broker)).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    drop(client);
}
