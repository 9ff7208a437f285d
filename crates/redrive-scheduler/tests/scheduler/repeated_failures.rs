//! Repeated failures and redeliveries, and telling them apart.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use redrive_scheduler::{RetryMessage, header, task_id};

use crate::world::{Database, World, message, now_ms, unique};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_fails_every_time_is_retried_three_times_and_then_reviewed() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        for count in 0..3 {
            let reason = format!("failure {count}");
            let failed = RetryMessage { retry_count: count, error_reason: reason, ..message("m", &queue) };
            world.fails(&failed).await;
            let seen = world.client.next(&queue).await;
            assert_eq!(seen.retry_count(), i64::from(count) + 1, "number of retries");
            assert_eq!(seen.text(header::MESSAGE_ID), "m");
            assert_eq!(seen.number(header::MAX_RETRIES), 3);
            assert_eq!(
                seen.text(header::TASK),
                task_id("m", &queue, u32::try_from(count).unwrap()).to_string()
            );
        }
        world
            .fails(&RetryMessage { retry_count: 3, error_reason: "the last".into(), ..message("m", &queue) })
            .await;
        let review = world.reviewed().await;
        assert_eq!(review["reason"], "retries_exhausted");
        assert_eq!((review["retry_count"].as_u64(), review["max_retries"].as_u64()), (Some(3), Some(3)));
        assert_eq!((&review["message_id"], &review["original_queue"]), (&"m".into(), &queue.as_str().into()));
        assert_eq!(review["payload"]["text"], "{\"order\":\"m\"}");
        let history = review["history"].as_array().unwrap();
        let reasons: Vec<_> = history.iter().map(|entry| entry["error_reason"].as_str().unwrap()).collect();
        assert_eq!(reasons, ["failure 0", "failure 1", "failure 2", "the last"]);
        assert!(
            history[..3]
                .iter()
                .all(|entry| entry["status"] == "retried" && entry["republished_at"].is_number())
        );
        assert!(world.client.look(&queue).await.is_none(), "it is not republished");
        let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        let counted = metrics.queues[&queue];
        assert_eq!((counted.scheduled, counted.succeeded, counted.failed, counted.exhausted), (3, 3, 0, 1));
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_sender_never_increases_retry_count_goes_to_review() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        // Identical bytes every time.
        for count in 0..3 {
            world.fails(&message("m", &queue)).await;
            assert_eq!(world.client.next(&queue).await.retry_count(), count + 1);
        }
        world.fails(&message("m", &queue)).await;
        assert_eq!(world.reviewed().await["reason"], "retries_exhausted");
        let metrics = world.scheduler.metrics().await;
        assert_eq!((metrics.uncounted, metrics.duplicates), (3, 0));
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// A message is in its queue twice, after a lost confirm for example, and both fail. One of them is handled later.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_that_fails_again_uses_up_no_retry() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        world.fails(&message("m", &queue)).await;
        assert_eq!(world.client.next(&queue).await.retry_count(), 1);
        for duplicate in 0..4 {
            let error_reason = format!("timed out after {duplicate} s");
            world.fails(&RetryMessage { retry_count: 1, error_reason, ..message("m", &queue) }).await;
            let seen = world.client.next(&queue).await;
            assert_eq!(seen.retry_count(), 2, "duplicate {duplicate}");
            assert_eq!(seen.text(header::MESSAGE_ID), "m");
        }
        let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!((metrics.copies, metrics.uncounted), (3, 0));
        assert!(metrics.reviewed.is_empty(), "it is not in review: {:?}", metrics.reviewed);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_with_a_constant_retry_count_ends_in_review() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let failed = RetryMessage { retry_count: 1, ..message("m", &queue) };
    for count in [2, 3] {
        world.fails(&failed).await;
        assert_eq!(world.client.next(&queue).await.retry_count(), count);
    }
    world.fails(&failed).await;
    assert_eq!(world.reviewed().await["reason"], "retries_exhausted");
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_delivered_twice_is_one_task() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let soon = RetryMessage { next_retry_at_ms: now_ms() + 1000, ..message("m", &queue) };
        for _ in 0..5 {
            world.fails(&soon).await;
        }
        world.until("all deliveries are received", |metrics| metrics.received == 5).await;
        world.client.next(&queue).await;
        let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!((metrics.duplicates, metrics.queues[&queue].scheduled), (4, 1));
        assert!(world.client.look(&queue).await.is_none());
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// A queue whose dead-letter exchange points to the scheduler, without a handler in between.
pub(crate) fn dead_letters_to(queue: &str) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
    arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(queue.into()));
    arguments
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_returns_through_its_dead_letter_exchange_with_its_retry_count() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare_with(&queue, dead_letters_to(&world.settings.retry_queue)).await;
        // JSON that is not a RetryMessage, with a message id.
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_message_id("o-7".into());
        world.client.publish(&queue, b"{\"order\":7}", properties).await;
        for count in 0..4 {
            let seen = world.client.reject(&queue).await;
            assert_eq!(seen.data, b"{\"order\":7}");
            assert_eq!(seen.properties.content_type().as_ref().unwrap().as_str(), "application/json");
            assert_eq!(
                seen.header(header::RETRY_COUNT).map(|_| seen.retry_count()),
                (count > 0).then_some(count)
            );
        }
        let review = world.reviewed().await;
        assert_eq!(
            (&review["message_id"], &review["original_queue"]),
            (&"o-7".into(), &queue.as_str().into())
        );
        assert_eq!(
            (&review["reason"], &review["error_reason"]),
            (&"retries_exhausted".into(), &"dead-lettered: rejected".into())
        );
        assert_eq!((&review["via"], review["history"].as_array().unwrap().len()), (&"dead_letter".into(), 4));
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_messages_without_an_id_are_separate_tasks() {
    let world = World::on(Database::file()).await;
    let queue = unique("ticks");
    world.client.declare_with(&queue, dead_letters_to(&world.settings.retry_queue)).await;
    for _ in 0..3 {
        world.client.publish(&queue, b"tick", BasicProperties::default()).await;
    }
    for _ in 0..3 {
        world.client.reject(&queue).await;
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        let seen = world.client.next(&queue).await;
        assert_eq!((seen.data.as_slice(), seen.retry_count()), (&b"tick"[..], 1));
        ids.push(seen.text(header::MESSAGE_ID));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    world.client.delete(&queue).await;
    world.end().await;
}
