//! Missing, deleted and differently configured queues.

use lapin::types::{AMQPValue, FieldTable};
use redrive_scheduler::{Properties, Publication, PublishError, Settings, header};

use crate::world::{Client, Database, World, message, settings, shared_broker, transport, unique};

#[tokio::test(flavor = "multi_thread")]
async fn an_unroutable_message_is_retried_and_then_reviewed() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("nowhere");
        world.fails(&message("m", &queue)).await;
        let review = world.reviewed().await;
        assert_eq!(review["reason"], "unroutable");
        let why = review["why"].as_str().unwrap();
        assert!(why.contains(&queue) && why.contains("does not exist") && why.contains("NO_ROUTE"), "{why}");
        let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!((metrics.returned, metrics.queues[&queue].failed), (5, 5));
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_declared_in_the_meantime_gets_its_message() {
    let settings = Settings { unroutable_attempts: 1000, ..settings() };
    let world = World::with(Database::file(), settings).await;
    let queue = unique("late");
    world.fails(&message("m", &queue)).await;
    world.until("the message was returned", |metrics| metrics.returned >= 2).await;
    world.client.declare(&queue).await;
    let seen = world.client.next(&queue).await;
    assert_eq!((seen.text(header::MESSAGE_ID), seen.retry_count()), ("m".to_owned(), 1));
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn returns_are_matched_among_many_confirms() {
    let settings = settings();
    let client = Client::connect(&shared_broker(), &settings).await;
    let queue = unique("orders");
    client.declare(&queue).await;
    let transport = transport(&settings, &shared_broker());
    transport.ready().await;
    let publish = |n: usize| {
        let is_there = !n.is_multiple_of(3);
        let id = format!("t-{n}");
        let headers = [(header::TASK.to_owned(), redrive_scheduler::HeaderValue::text(&id))].into();
        let publication = Publication {
            once: id.clone(),
            id,
            queue: if is_there { queue.clone() } else { format!("nowhere-{n}-{queue}") },
            body: n.to_string().into_bytes(),
            properties: Properties { headers, ..Properties::default() },
        };
        let transport = &transport;
        async move { (is_there, transport.publish(publication).await) }
    };
    let mut published = 0;
    for (is_there, outcome) in futures_util::future::join_all((0..3000).map(publish)).await {
        match outcome {
            Ok(()) => assert!(is_there),
            Err(PublishError::Unroutable { .. }) => assert!(!is_there),
            Err(error) => panic!("{error}"),
        }
        published += usize::from(is_there);
    }
    let mut there = 0;
    while client.look(&queue).await.is_some() {
        there += 1;
    }
    assert_eq!((there, published), (2000, 2000));
    transport.close().await;
    client.delete(&queue).await;
    for queue in [&settings.retry_queue, &settings.review_queue] {
        client.delete(queue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_queue_with_other_arguments_is_used_as_it_is() {
    let settings = settings();
    let client = Client::connect(&shared_broker(), &settings).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1000));
    client.declare_with(&settings.retry_queue, arguments).await;
    let world = World::with(Database::file(), settings).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    world.fails(&message("m", &queue)).await;
    world.client.next(&queue).await;
    world.client.delete(&queue).await;
    world.end().await;
}

/// The broker cancels the consumer of a deleted queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_retry_queue_is_declared_and_consumed_again() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    world.client.delete(&world.settings.retry_queue).await;
    world
        .until("the consumer is connected again", |metrics| {
            metrics.transport.connects >= 3 && metrics.transport.consuming
        })
        .await;
    world.fails(&message("m", &queue)).await;
    world.client.next(&queue).await;
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_review_queue_is_declared_again() {
    let world = World::on(Database::file()).await;
    world.client.delete(&world.settings.review_queue).await;
    let exhausted = redrive_scheduler::RetryMessage { retry_count: 3, ..message("m", "orders") };
    world.fails(&exhausted).await;
    world
        .until("the message is in review", |metrics| metrics.reviewed.contains_key("retries_exhausted"))
        .await;
    assert_eq!(world.reviewed().await["message_id"], "m");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversize_message_recreates_a_deleted_review_queue_and_keeps_its_properties() {
    let world = World::with(Database::file(), Settings { max_payload: 1 << 20, ..settings() }).await;
    world.client.delete(&world.settings.review_queue).await;
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), AMQPValue::LongInt(7));
    headers.insert("x-death".into(), AMQPValue::FieldArray(lapin::types::FieldArray::default()));
    let properties = lapin::BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_correlation_id("c-1".into())
        .with_reply_to("answers".into())
        .with_app_id("shop".into())
        .with_type("letter".into())
        .with_headers(headers);
    let body = vec![b'x'; 3 << 20];
    world.client.publish(&world.settings.retry_queue, &body, properties).await;
    world.until("the message is in review", |metrics| metrics.reviewed.contains_key("too_large")).await;
    let seen = world.client.next(&world.settings.review_queue).await;
    assert_eq!((seen.data.len(), seen.text(header::REVIEW_REASON)), (body.len(), "too_large".to_owned()));
    let text = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    let properties = &seen.properties;
    assert_eq!(
        [
            properties.content_type(),
            properties.correlation_id(),
            properties.reply_to(),
            properties.app_id(),
            properties.kind()
        ]
        .map(text),
        ["text/plain", "c-1", "answers", "shop", "ReviewMessage"].map(|text| Some(text.to_owned()))
    );
    assert_eq!(
        (seen.header("tenant"), seen.text(header::TYPE)),
        (Some(&AMQPValue::LongInt(7)), "letter".to_owned())
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_queue_during_republication_loses_no_message() {
    let world = World::on(Database::schema()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    for n in 0..50 {
        world.fails(&message(&format!("m-{n}"), &queue)).await;
    }
    world.client.next(&queue).await;
    world.client.delete(&queue).await; // messages in it belong to the consumer
    let is_over =
        |metrics: &redrive_scheduler::Metrics| metrics.received >= 50 && metrics.queue_depth() == Some(0);
    let metrics = world.until("no task is open", is_over).await;
    let reviewed = metrics.reviewed.get("unroutable").copied().unwrap_or_default();
    assert_eq!(metrics.queues[&queue].succeeded + reviewed, 50);
    for _ in 0..reviewed {
        assert_eq!(world.reviewed().await["reason"], "unroutable");
    }
    world.end().await;
}

/// A refused body must not close the channel of other messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_is_republished_and_one_above_the_limit_is_refused() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let large =
        redrive_scheduler::RetryMessage { original_payload: vec![b'x'; 3 << 20], ..message("large", &queue) };
    world.fails(&large).await;
    assert_eq!(world.client.next(&queue).await.data.len(), 3 << 20);
    let transport = transport(&world.settings, &world.broker);
    let headers = [("wide".to_owned(), redrive_scheduler::HeaderValue::text("x".repeat(200_000)))].into();
    let publication = Publication {
        id: "t".into(),
        once: "t".into(),
        queue: queue.clone(),
        body: Vec::new(),
        properties: Properties { headers, ..Properties::default() },
    };
    assert!(matches!(transport.publish(publication).await, Err(PublishError::Refused { .. })));
    transport.close().await;
    world.client.delete(&queue).await;
    world.end().await;
}
