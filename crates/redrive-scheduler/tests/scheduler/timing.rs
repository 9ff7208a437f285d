//! Due times.

use std::time::{Duration, Instant};

use redrive_scheduler::{RetryMessage, Settings};

use crate::world::{Database, World, message, now_ms, settings, unique};

/// Tolerance for the difference between the clocks of the test and of the database.
const CLOCKS_MS: i64 = 20;

/// With the specified poll interval of ten seconds, so notifications make it punctual.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_republished_within_100_ms_of_its_due_time() {
    for database in Database::each() {
        let world = World::on(database).await;
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
        // The median, because the machine may be busy.
        assert!(late[4] <= 100, "{late:?} ms late");
        let metrics = world.until("all are confirmed", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!((metrics.drift.count, metrics.queues[&queue].succeeded), (9, 9));
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_a_retry_time_waits_for_the_backoff_of_its_queue() {
    let base = Duration::from_millis(300);
    let queue = unique("slow");
    let of_queue = redrive_scheduler::QueueSettings { base_delay: Some(base), ..Default::default() };
    let settings = Settings { queues: [(queue.clone(), of_queue)].into(), ..settings() };
    let world = World::with(Database::file(), settings).await;
    world.client.declare(&queue).await;
    let began = now_ms();
    world.fails(&message("m", &queue)).await;
    world.client.next(&queue).await;
    assert!(now_ms() - began >= 300);
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_tasks_survive_a_restart_and_keep_their_due_time() {
    for database in Database::each() {
        let mut world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let due = now_ms() + 1500;
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message("m", &queue) }).await;
        world.until("the task is stored", |metrics| metrics.queue_depth() == Some(1)).await;
        world.restart().await;
        assert!(world.client.look(&queue).await.is_none());
        world.client.next(&queue).await;
        assert!(now_ms() >= due - CLOCKS_MS);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// Plain SQL notifies nobody, so a poll has to find the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_became_due_without_a_notification_is_found_by_a_poll() {
    let world = World::on(Database::schema()).await;
    assert_eq!(world.settings.poll_interval, Duration::from_secs(10), "the specified interval");
    let Database::Schema(schema) = &world.database else { panic!("a schema") };
    let queue = unique("orders");
    world.client.declare(&queue).await;
    world.fails(&RetryMessage { next_retry_at_ms: now_ms() + 3_600_000, ..message("m", &queue) }).await;
    world.until("the task is stored", |metrics| metrics.queue_depth() == Some(1)).await;
    let (client, connection) = tokio_postgres::connect(schema.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let update = format!("UPDATE {}.delivery SET due_at = 0, ready_at = 0 WHERE status = 0", schema.name());
    assert_eq!(client.execute(&update, &[]).await.unwrap(), 1);
    let began = Instant::now();
    assert_eq!(world.client.next(&queue).await.data, b"{\"order\":\"m\"}");
    assert!(began.elapsed() < Duration::from_secs(12), "found after {:?}", began.elapsed());
    world.client.delete(&queue).await;
    world.end().await;
}
