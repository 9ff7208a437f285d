//! Identity of messages and ownership of tasks.

use std::time::Duration;

use lapin::BasicProperties;
use redrive::EventBus;
use redrive_scheduler::{Payload, RetryMessage, Scheduler, Settings, Task, header, task_id};
use serde_json::json;

use crate::repeated_failures::dead_letters_to;
use crate::world::{Database, World, message, now_ms, rabbit, settings, unique};

#[tokio::test(flavor = "multi_thread")]
async fn one_message_in_two_queues_fails_separately_in_each() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queues = [unique("mail"), unique("billing")];
        for queue in &queues {
            world.client.declare_with(queue, dead_letters_to(&world.settings.retry_queue)).await;
            let properties = BasicProperties::default().with_message_id("o-7".into());
            world.client.publish(queue, b"{\"order\":7}", properties).await;
            world.client.reject(queue).await;
        }
        for queue in &queues {
            let seen = world.client.next(queue).await;
            assert_eq!((seen.text(header::MESSAGE_ID).as_str(), seen.retry_count()), ("o-7", 1));
            world.client.delete(queue).await;
        }
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_messages_with_one_id_are_two_tasks() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        for body in ["one", "two"] {
            let failed = RetryMessage {
                original_payload: body.as_bytes().to_vec(),
                next_retry_at_ms: now_ms() + 500,
                ..message("m", &queue)
            };
            world.fails(&failed).await;
        }
        let mut seen =
            [world.client.next(&queue).await.data.clone(), world.client.next(&queue).await.data.clone()];
        seen.sort();
        assert_eq!(seen, [b"one", b"two"]);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_with_one_id_are_all_kept() {
    let world = World::on(Database::file()).await;
    for n in 0..60 {
        let body = format!("{n}").into_bytes();
        world.fails(&RetryMessage { original_payload: body, retry_count: 3, ..message("m", "orders") }).await;
    }
    let mut seen = Vec::new();
    for _ in 0..60 {
        seen.push(world.reviewed().await["payload"]["text"].as_str().unwrap().parse::<u32>().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..60).collect::<Vec<_>>());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_copied_to_another_message_are_ignored() {
    let world = World::on(Database::file()).await;
    let (orders, mail) = (unique("orders"), unique("mail"));
    world.client.declare(&orders).await;
    world.client.declare_with(&mail, dead_letters_to(&world.settings.retry_queue)).await;
    world.fails(&RetryMessage { retry_count: 2, ..message("m", &orders) }).await;
    let back = world.client.next(&orders).await;
    assert_eq!(back.retry_count(), 3);
    world.client.publish(&mail, b"derived", back.properties.clone().with_message_id("d".into())).await;
    world.client.reject(&mail).await;
    let derived = world.client.next(&mail).await;
    assert_eq!((derived.text(header::MESSAGE_ID).as_str(), derived.retry_count()), ("d", 1));
    for queue in [orders, mail] {
        world.client.delete(&queue).await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_time_in_seconds_is_ignored() {
    let settings =
        Settings { base_delay: Duration::from_secs(600), max_delay: Duration::from_secs(600), ..settings() };
    let world = World::with(Database::file(), settings).await;
    let seconds = RetryMessage { next_retry_at_ms: now_ms() / 1000, ..message("m", "orders") };
    world.fails(&seconds).await;
    world.until("the task is stored", |metrics| metrics.queue_depth() == Some(1)).await;
    let task = world.scheduler.review().show(task_id("m", "orders", 0)).await.unwrap();
    assert!(task.due_at.is_some_and(|due| due.as_millis() > now_ms() + 500_000), "{task:?}");
    world.end().await;
}

/// For example `redrive serve` on the same database.
#[tokio::test(flavor = "multi_thread")]
async fn a_bus_without_a_republisher_leaves_tasks_alone() {
    for database in Database::each() {
        let mut world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let due = now_ms() + 300;
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message("m", &queue) }).await;
        world.until("the task is stored", |metrics| metrics.queue_depth() == Some(1)).await;
        world.scheduler.shutdown().await.unwrap();
        let other = EventBus::open(world.database.address()).await.unwrap();
        other.start().await.unwrap();
        // A later event without a subscription is done, so the other bus has seen the task as well.
        let later = other.publish("un.matched", &1).delay(Duration::from_millis(700)).await.unwrap();
        let store = other.store();
        while store.event(later).await.unwrap().status != redrive_store::EventStatus::Done {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        other.shutdown().await.unwrap();
        world.start().await;
        assert_eq!(world.client.next(&queue).await.retry_count(), 1);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_task_goes_to_review_with_its_payload() {
    let mut world = World::on(Database::file()).await;
    world.fails(&RetryMessage { next_retry_at_ms: now_ms() + 60_000, ..message("m", "orders") }).await;
    world.until("the task is stored", |metrics| metrics.queue_depth() == Some(1)).await;
    world.scheduler.shutdown().await.unwrap();
    let sql = rusqlite::Connection::open(world.database.address()).unwrap();
    sql.execute("UPDATE event SET payload = '{\"colour\":\"red\"}'", []).unwrap();
    sql.execute("UPDATE delivery SET due_at = 0", []).unwrap();
    drop(sql);
    world.start().await;
    let review = world.reviewed().await;
    assert_eq!(
        (&review["reason"], &review["payload"]["text"]),
        (&"undecodable".into(), &"{\"colour\":\"red\"}".into())
    );
    assert_eq!(Payload::of(b"{\"colour\":\"red\"}".to_vec()), Payload::Text("{\"colour\":\"red\"}".into()));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_without_a_broker_leaves_tasks_to_the_others() {
    let world = World::on(Database::schema()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let away = "amqp://guest:guest@127.0.0.1:1/%2f"; // no server
    let disconnected =
        Scheduler::start(settings(), world.database.address(), rabbit(&settings(), away)).await.unwrap();
    while !disconnected.bus().dispatcher().is_paused() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for n in 0..50 {
        world
            .fails(&RetryMessage { next_retry_at_ms: now_ms() + 500, ..message(&format!("m-{n}"), &queue) })
            .await;
    }
    for _ in 0..50 {
        world.client.next(&queue).await;
    }
    world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
    disconnected.shutdown().await.unwrap();
    world.client.delete(&queue).await;
    world.end().await;
}

/// A publisher on a shared database can compute the id of a task, and copy a task into the payload.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_another_type_never_stands_for_a_task() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let failed = message("m", &queue);
        let noise = json!({
            "message_id": "m",
            "original_payload": Payload::of(failed.original_payload.clone()),
            "original_queue": queue,
            "error_reason": "noise",
            "retry_count": 0,
            "max_retries": 3,
            "next_retry_at_ms": 0,
            "via": "retry_message",
            "received_at": now_ms(),
            "first_failed_at": now_ms(),
            "fingerprint": "",
        });
        serde_json::from_value::<Task>(noise.clone()).unwrap();
        for count in 0..2 {
            let publish = world.scheduler.bus().publish("noise", &noise);
            publish.id(task_id("m", &queue, count)).delay(Duration::from_secs(3600)).enqueue().await.unwrap();
        }
        for count in [0, 1, 1] {
            world.fails(&RetryMessage { retry_count: count, ..failed.clone() }).await;
            let seen = world.client.next(&queue).await;
            assert_eq!(seen.retry_count(), i64::from(count) + 1, "the count of the sender");
        }
        world.fails(&RetryMessage { retry_count: 3, ..failed }).await;
        let review = world.reviewed().await;
        let history = review["history"].as_array().unwrap();
        let counts: Vec<_> = history.iter().map(|entry| entry["retry_count"].as_u64().unwrap()).collect();
        assert_eq!(counts, [0, 1, 1, 3], "without the noise");
        assert!(history.iter().all(|entry| entry["error_reason"] != "noise"), "{review}");
        let metrics = world.scheduler.metrics().await;
        assert_eq!((metrics.uncounted, metrics.duplicates), (0, 0));
        world.client.delete(&queue).await;
        world.end().await;
    }
}
