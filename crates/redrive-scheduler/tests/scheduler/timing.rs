//! When messages come back.

use std::time::Duration;

use redrive_scheduler::{RetryMessage, Settings};

use crate::world::{Place, World, message, now_ms, settings, unique};

/// The time that counts is the database's, which the scheduler knows by asking.
const CLOCKS_MS: i64 = 20;

/// With the specified poll interval of ten seconds, which is a safety net only.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_back_within_100_ms_of_its_time() {
    for place in Place::each() {
        let world = World::on(place).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let mut late = Vec::new();
        for n in 0..9 {
            let due = now_ms() + 120;
            world.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &queue) }).await;
            let seen = world.client.next(&queue).await;
            let at = now_ms();
            assert_eq!(seen.data, format!("{{\"order\":\"m-{n}\"}}").into_bytes());
            assert!(at >= due - CLOCKS_MS, "{} ms early", due - at);
            late.push(at - due);
        }
        late.sort_unstable();
        // Half of them, because the machine has other things to do as well.
        assert!(late[4] <= 100, "{late:?} ms late");
        let metrics = world.until("all are confirmed", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!((metrics.drift.count, metrics.queues[&queue].succeeded), (9, 9));
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_says_nothing_waits_by_the_backoff_of_its_queue() {
    let base = Duration::from_millis(300);
    let queue = unique("slow");
    let of_queue = redrive_scheduler::QueueSettings { base_delay: Some(base), ..Default::default() };
    let settings = Settings { queues: [(queue.clone(), of_queue)].into(), ..settings() };
    let world = World::with(Place::file(), settings).await;
    world.client.declare(&queue).await;
    let began = now_ms();
    world.fails(&message("m", &queue)).await;
    world.client.next(&queue).await;
    assert!(now_ms() - began >= 300);
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_survives_a_restart_and_keeps_its_time() {
    for place in Place::each() {
        let mut world = World::on(place).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let due = now_ms() + 1500;
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message("m", &queue) }).await;
        world.until("it is stored", |metrics| metrics.queue_depth() == Some(1)).await;
        world.restart().await;
        assert!(world.client.look(&queue).await.is_none());
        world.client.next(&queue).await;
        assert!(now_ms() >= due - CLOCKS_MS);
        world.client.delete(&queue).await;
        world.end().await;
    }
}
