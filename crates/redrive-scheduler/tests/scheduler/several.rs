//! Several schedulers on one PostgreSQL server.

use std::collections::BTreeSet;

use redrive_scheduler::{RetryMessage, Scheduler, header};

use crate::world::{Place, World, message, now_ms, rabbit, unique};

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_bring_each_message_back_once() {
    const MESSAGES: usize = 300;
    let world = World::on(Place::schema()).await;
    let second = rabbit(&world.settings, &world.broker);
    let second = Scheduler::start(world.settings.clone(), world.place.address(), second).await.unwrap();
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let due = now_ms() + 500;
    for n in 0..MESSAGES {
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &queue) }).await;
    }
    let mut seen = BTreeSet::new();
    for _ in 0..MESSAGES {
        assert!(seen.insert(world.client.next(&queue).await.text(header::MESSAGE_ID)), "none comes twice");
    }
    world.until("all is over", |metrics| metrics.queue_depth() == Some(0)).await;
    assert!(world.client.look(&queue).await.is_none());
    let received = [world.scheduler.counted().received, second.counted().received];
    assert_eq!(received[0] + received[1], MESSAGES as u64);
    assert!(received.iter().all(|received| *received > 0), "both take in: {received:?}");
    second.shutdown().await.unwrap();
    world.client.delete(&queue).await;
    world.end().await;
}

/// One dies with what it has taken in; the other brings it back.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_has_taken_in_another_brings_back() {
    let mut world = World::on(Place::schema()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let due = now_ms() + 1000;
    world.fails(&RetryMessage { next_retry_at_ms: due, ..message("m", &queue) }).await;
    world.until("it is stored", |metrics| metrics.queue_depth() == Some(1)).await;
    let transport = rabbit(&world.settings, &world.broker);
    let other = Scheduler::start(world.settings.clone(), world.place.address(), transport).await.unwrap();
    // Dropped, not shut down.
    let first = std::mem::replace(&mut world.scheduler, other);
    drop(first);
    assert_eq!(world.client.next(&queue).await.text(header::MESSAGE_ID), "m");
    world.client.delete(&queue).await;
    world.end().await;
}
