//! Manual review.

use redrive_retry::Timestamp;
use redrive_scheduler::{RetryMessage, Review, ReviewFilter, SchedulerError, header, task_id};
use redrive_store::{DlqPage, EventId, EventType, Metadata, NewEvent, Routing, SubscriptionName};
use serde_json::json;

use crate::world::{Database, World, message, now_ms, unique};

/// A message with all retries used.
fn exhausted(id: &str, queue: &str) -> RetryMessage {
    RetryMessage { retry_count: 3, ..message(id, queue) }
}

/// Waits until `count` tasks are in review.
async fn in_review(world: &World, review: &Review, count: usize) -> Vec<redrive_scheduler::InReview> {
    let began = std::time::Instant::now();
    loop {
        let list = review.list(&ReviewFilter::default(), DlqPage::default()).await.unwrap().tasks;
        if list.len() == count {
            return list;
        }
        assert!(began.elapsed() < crate::world::TIMEOUT, "{list:#?} {:#?}", world.scheduler.counted());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_task_is_republished_and_returns_to_review_if_it_fails_again() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        world.fails(&exhausted("m", &queue)).await;
        let seen = world.client.next(&world.settings.review_queue).await;
        let id: EventId = seen.text(header::TASK).parse().unwrap();
        assert_eq!(id, task_id("m", &queue, 3));
        assert_eq!(seen.properties.message_id().as_ref().unwrap().as_str(), id.to_string());
        assert_eq!(seen.properties.content_type().as_ref().unwrap().as_str(), "application/json");
        assert_eq!(*seen.properties.delivery_mode(), Some(2));
        assert_eq!(
            (
                seen.text(header::REVIEW_REASON),
                seen.text(header::ORIGINAL_QUEUE),
                seen.text(header::ERROR_REASON)
            ),
            ("retries_exhausted".to_owned(), queue.clone(), "timed out".to_owned())
        );

        let review = world.scheduler.review();
        let list = in_review(&world, &review, 1).await;
        assert_eq!((list[0].id, list[0].message_id.as_str(), list[0].retry_count), (id, "m", 3));
        assert!(list[0].why.contains("retries_exhausted"), "{}", list[0].why);
        let shown = review.show(id).await.unwrap();
        assert!(shown.in_review && shown.status == "failed" && shown.history.len() == 1);

        review.retry(id, "anna", None).await.unwrap();
        let seen = world.client.next(&queue).await;
        assert_eq!((seen.text(header::MESSAGE_ID), seen.retry_count()), ("m".to_owned(), 4));
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        let shown = review.show(id).await.unwrap();
        assert_eq!((shown.status, shown.in_review), ("retried", false));
        assert_eq!(shown.task.by_hand.unwrap().by, "anna");
        assert!(matches!(review.retry(id, "anna", None).await, Err(SchedulerError::NotInReview { .. })));

        // It fails again with the count of the header.
        world.fails(&RetryMessage { retry_count: 4, ..message("m", &queue) }).await;
        let again = world.reviewed().await;
        assert_eq!(
            (&again["reason"], again["history"].as_array().unwrap().len()),
            (&"retries_exhausted".into(), 2)
        );
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_redriven_from_the_dead_letter_queue_is_republished() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        world.fails(&exhausted("m", &queue)).await;
        world.reviewed().await;
        let review = world.scheduler.review();
        let id = in_review(&world, &review, 1).await[0].id;
        world.scheduler.bus().dlq().retry(id).await.unwrap();
        let seen = world.client.next(&queue).await;
        assert_eq!((seen.text(header::MESSAGE_ID), seen.retry_count()), ("m".to_owned(), 4));
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!(review.show(id).await.unwrap().status, "retried");
        assert!(world.client.look(&world.settings.review_queue).await.is_none());
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_task_is_done_and_stays_visible() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        world.fails(&exhausted("m", &queue)).await;
        world.reviewed().await;
        let review = world.scheduler.review();
        let id = in_review(&world, &review, 1).await[0].id;
        review.discard(id, "anna", Some("a test order".into())).await.unwrap();
        in_review(&world, &review, 0).await;
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        let shown = review.show(id).await.unwrap();
        let by_hand = shown.task.by_hand.unwrap();
        assert_eq!((shown.status, by_hand.why.as_deref()), ("failed", Some("a test order")));
        assert!(world.client.look(&queue).await.is_none());
        assert!(matches!(review.discard(id, "anna", None).await, Err(SchedulerError::NotInReview { .. })));
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_an_undecodable_message_needs_a_queue() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    world.client.publish(&world.settings.retry_queue, &[0xff, 1], lapin::BasicProperties::default()).await;
    let id: EventId = world.reviewed().await["task"].as_str().unwrap().parse().unwrap();
    let review = world.scheduler.review();
    in_review(&world, &review, 1).await;
    let error = review.retry(id, "anna", None).await.unwrap_err();
    assert!(
        matches!(error, SchedulerError::NoQueue { .. }) && error.to_string().contains("name a queue"),
        "{error}"
    );
    assert!(matches!(
        review.retry(id, "anna", Some(String::new())).await,
        Err(SchedulerError::NoQueue { .. })
    ));
    review.retry(id, "anna", Some(queue.clone())).await.unwrap();
    assert_eq!(world.client.next(&queue).await.data, [0xff, 1]);
    world.client.delete(&queue).await;
    world.end().await;
}

/// As the command line does, with the store alone.
#[tokio::test(flavor = "multi_thread")]
async fn review_decisions_work_from_another_process() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    world.fails(&exhausted("m", &queue)).await;
    world.reviewed().await;
    let options = redrive_store::SqliteOptions { owner: false, ..Default::default() };
    let store = redrive_store::SqliteStore::open(world.database.address(), options).unwrap();
    let review = Review::new(std::sync::Arc::new(store));
    let id = in_review(&world, &review, 1).await[0].id;
    review.retry(id, "anna", None).await.unwrap();
    assert_eq!(world.client.next(&queue).await.text(header::MESSAGE_ID), "m");
    assert!(matches!(review.show(EventId::new()).await, Err(SchedulerError::NoSuchTask { .. })));
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_continue_after_the_cursor() {
    let world = World::on(Database::schema()).await;
    for n in 0..5 {
        world.fails(&exhausted(&format!("m-{n}"), "orders")).await;
    }
    let review = world.scheduler.review();
    in_review(&world, &review, 5).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = DlqPage { offset: 0, limit: 2, after };
        let page = review.list(&ReviewFilter::default(), page).await.unwrap();
        seen.extend(page.tasks.into_iter().map(|task| task.message_id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, ["m-0", "m-1", "m-2", "m-3", "m-4"]);
    world.end().await;
}

/// Two stores stand for two processes.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_concurrent_decisions_wins() {
    const MESSAGES: usize = 8;
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        for n in 0..MESSAGES {
            world.fails(&exhausted(&format!("m-{n}"), &queue)).await;
        }
        let review = world.scheduler.review();
        let mut released = 0;
        for task in in_review(&world, &review, MESSAGES).await {
            let (anna, ben) = (world.scheduler.review(), world.scheduler.review());
            let (retried, discarded) =
                tokio::join!(anna.retry(task.id, "anna", None), ben.discard(task.id, "ben", None));
            let lost = match (retried, discarded) {
                (Ok(()), Err(lost)) => {
                    released += 1;
                    lost
                }
                (Err(lost), Ok(())) => lost,
                other => panic!("{other:?}"),
            };
            assert!(matches!(lost, SchedulerError::NotInReview { .. }), "{lost}");
            assert!(lost.to_string().contains("is not in review"), "{lost}");
        }
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        let mut seen = 0;
        while world.client.look(&queue).await.is_some() {
            seen += 1;
        }
        assert_eq!(seen, released, "discarded tasks are not republished");
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// The payload was edited, or a newer release wrote it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_task_is_shown_and_can_be_discarded() {
    for database in Database::each() {
        let world = World::on(database).await;
        let stored =
            json!({"message_id": "m", "original_queue": "orders", "retry_count": "three", "new": [1]});
        let event = NewEvent {
            id: EventId::new(),
            event_type: EventType::new("retry.task").unwrap(),
            payload: stored.to_string().into(),
            metadata: Metadata::new(),
            created_at: Timestamp::from_millis(now_ms()),
            due_at: Timestamp::from_millis(now_ms()),
            is_scheduled: false,
            retry: None,
            to: Routing::Each(vec![SubscriptionName::new(redrive_scheduler::REPUBLISHER).unwrap()]),
        };
        world.scheduler.bus().append(vec![event]).await.unwrap();
        let review = world.scheduler.review();
        let id = in_review(&world, &review, 1).await[0].id;
        let shown = review.show(id).await.unwrap();
        let unreadable = shown.unreadable.unwrap();
        assert_eq!((unreadable.payload, shown.task.message_id.as_str()), (stored.clone(), "m"));
        assert!(
            unreadable.why.contains("missing field") || unreadable.why.contains("three"),
            "{}",
            unreadable.why
        );
        let error = review.retry(id, "anna", Some("orders".into())).await.unwrap_err();
        assert!(matches!(error, SchedulerError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains("discard the task"), "{error}");

        review.discard(id, "anna", Some("unknown format".into())).await.unwrap();
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        in_review(&world, &review, 0).await;
        let shown = review.show(id).await.unwrap();
        assert_eq!((shown.status, shown.in_review), ("failed", false));
        assert_eq!(shown.task.by_hand.unwrap().why.as_deref(), Some("unknown format"));
        assert_eq!(shown.unreadable.unwrap().payload["unreadable"], stored, "the payload is kept");
        assert!(matches!(review.discard(id, "ben", None).await, Err(SchedulerError::NotInReview { .. })));
        world.end().await;
    }
}
