//! Classification of deliveries: every row of the table in the guide.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use redrive_scheduler::{RetryMessage, Settings, header};
use serde_json::Value;

use crate::world::{Database, World, message, settings, unique};

fn typed(content_type: &str) -> BasicProperties {
    BasicProperties::default().with_content_type(content_type.into())
}

/// Properties with an `x-death` header that names this queue.
fn died_in(queue: &str) -> FieldTable {
    let mut death = FieldTable::default();
    death.insert("queue".into(), AMQPValue::LongString(queue.into()));
    death.insert("reason".into(), AMQPValue::LongString("rejected".into()));
    let mut headers = FieldTable::default();
    headers.insert(
        "x-death".into(),
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)])),
    );
    headers
}

/// Outcome of one delivery: the republished body, or the review message.
async fn outcome_of(
    body: &[u8],
    properties: BasicProperties,
    queue: &str,
    world: &World,
) -> Result<Vec<u8>, Value> {
    world.client.publish(&world.settings.retry_queue, body, properties).await;
    loop {
        if let Some(seen) = world.client.look(queue).await {
            return Ok(seen.data);
        }
        if let Some(seen) = world.client.look(&world.settings.review_queue).await {
            return Err(serde_json::from_slice(&seen.data).unwrap());
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_content_type_selects_protobuf_or_json() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let mut n = 0;
    let mut next = || {
        n += 1;
        let failed = message(&format!("m-{n}"), &queue);
        (failed.original_payload.clone(), failed)
    };
    for content_type in [
        "application/x-protobuf",
        "application/protobuf",
        "Application/vnd.google.protobuf; charset=x",
        "application/octet-stream",
    ] {
        let (payload, failed) = next();
        assert_eq!(
            outcome_of(&failed.to_protobuf(), typed(content_type), &queue, &world).await,
            Ok(payload),
            "{content_type}"
        );
    }
    let (payload, failed) = next();
    assert_eq!(
        outcome_of(&failed.to_protobuf(), BasicProperties::default(), &queue, &world).await,
        Ok(payload)
    );
    let (payload, failed) = next();
    assert_eq!(
        outcome_of(failed.to_json().as_bytes(), typed("application/json"), &queue, &world).await,
        Ok(payload)
    );
    // The type declares a RetryMessage, regardless of copied headers.
    let (payload, failed) = next();
    let properties =
        BasicProperties::default().with_type("RetryMessage".into()).with_headers(died_in("other"));
    assert_eq!(outcome_of(&failed.to_protobuf(), properties, &queue, &world).await, Ok(payload));
    // No type, but it names the queue of the x-death header.
    let (payload, failed) = next();
    let properties = typed("application/x-protobuf").with_headers(died_in(&queue));
    assert_eq!(outcome_of(&failed.to_protobuf(), properties, &queue, &world).await, Ok(payload));
    // Any other dead letter is republished as it is, even if it decodes.
    for content_type in ["application/json", "application/x-protobuf", "text/plain"] {
        let (_, failed) = next();
        let body = RetryMessage { original_queue: "other".into(), ..failed }.to_json().into_bytes();
        let properties = typed(content_type).with_headers(died_in(&queue));
        assert_eq!(outcome_of(&body, properties, &queue, &world).await, Ok(body), "{content_type}");
    }
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_message_is_reviewed_with_its_bytes() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let good = message("m", &queue);
        let long = RetryMessage { message_id: "x".repeat(256), ..good.clone() };
        let negative = RetryMessage { retry_count: -1, ..good.clone() };
        let nowhere = RetryMessage { original_queue: String::new(), ..good.clone() };
        for (body, content_type, why) in [
            (vec![0xff, 0, 1, 2], "application/x-protobuf", "field 15 has wire type 7"),
            (b"{\"message_id\":".to_vec(), "application/json", "not a RetryMessage in JSON"),
            (long.to_protobuf(), "application/protobuf", "message_id has 256 bytes"),
            (negative.to_protobuf(), "application/protobuf", "retry_count is -1"),
            (nowhere.to_protobuf(), "application/protobuf", "original_queue is empty"),
            (b"hello".to_vec(), "text/plain", "is not that of a RetryMessage"),
        ] {
            let review = outcome_of(&body, typed(content_type), &queue, &world).await.unwrap_err();
            assert_eq!((&review["reason"], &review["via"]), (&"undecodable".into(), &"undecodable".into()));
            assert!(review["why"].as_str().unwrap().contains(why), "{why}: {review}");
            let payload: redrive_scheduler::Payload =
                serde_json::from_value(review["payload"].clone()).unwrap();
            assert_eq!(payload.bytes().unwrap().into_owned(), body);
            assert_eq!(review["properties"]["content_type"], content_type);
        }
        let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!((metrics.undecodable, metrics.reviewed["undecodable"]), (6, 6));
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_protobuf_fields_of_a_newer_sender_are_ignored_and_counted() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let newer = [message("m", &queue).to_protobuf(), vec![0x40, 1, 0x4a, 1, b'x']].concat();
    let task = outcome_of(&newer, typed("application/x-protobuf"), &queue, &world).await;
    assert!(task.is_ok(), "{:?}", task.err());
    let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
    assert_eq!((metrics.unknown_fields, metrics.undecodable), (2, 0));
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversize_message_is_reviewed_and_blocks_no_other() {
    for database in Database::each() {
        let settings = Settings { max_payload: 10_000, ..settings() };
        let world = World::with(database, settings).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        let large = RetryMessage { original_payload: vec![7; 20_000], ..message("large", &queue) };
        world.fails(&message("before", &queue)).await;
        world.fails(&large).await;
        world.fails(&message("behind", &queue)).await;
        for _ in 0..2 {
            world.client.next(&queue).await;
        }
        let seen = world.client.next(&world.settings.review_queue).await;
        assert_eq!(seen.data, large.original_payload, "the original bytes");
        assert_eq!(
            (
                seen.text(header::REVIEW_REASON),
                seen.text(header::MESSAGE_ID),
                seen.text(header::ORIGINAL_QUEUE)
            ),
            ("too_large".to_owned(), "large".to_owned(), queue.clone())
        );
        world.until("all deliveries are acked", |metrics| metrics.transport.unacked == 0).await;
        world.client.delete(&queue).await;
        world.end().await;
    }
}
