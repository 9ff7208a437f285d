//! Several schedulers on one PostgreSQL database.

use std::collections::BTreeSet;

use redrive_scheduler::{RetryMessage, Scheduler, header};

use crate::world::{Database, World, message, now_ms, rabbit, unique};

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_republish_each_message_once() {
    const MESSAGES: usize = 300;
    let world = World::on(Database::schema()).await;
    let second = rabbit(&world.settings, &world.broker);
    let second = Scheduler::start(world.settings.clone(), world.database.address(), second).await.unwrap();
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let due = now_ms() + 500;
    for n in 0..MESSAGES {
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &queue) }).await;
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
    let received = [world.scheduler.counted().received, second.counted().received];
    assert_eq!(received[0] + received[1], MESSAGES as u64);
    assert!(received.iter().all(|received| *received > 0), "both receive: {received:?}");
    second.shutdown().await.unwrap();
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_stored_by_a_crashed_scheduler_is_republished_by_another() {
    let mut world = World::on(Database::schema()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let due = now_ms() + 1000;
    world.fails(&RetryMessage { next_retry_at_ms: due, ..message("m", &queue) }).await;
    world.until("the task is stored", |metrics| metrics.queue_depth() == Some(1)).await;
    let transport = rabbit(&world.settings, &world.broker);
    let other = Scheduler::start(world.settings.clone(), world.database.address(), transport).await.unwrap();
    // A drop stands for a crash.
    let first = std::mem::replace(&mut world.scheduler, other);
    drop(first);
    assert_eq!(world.client.next(&queue).await.text(header::MESSAGE_ID), "m");
    world.client.delete(&queue).await;
    world.end().await;
}
