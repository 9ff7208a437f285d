//! Messages that the AMQP client cannot parse or JSON cannot represent.

use std::collections::BTreeSet;

use lapin::types::{AMQPValue, FieldTable};
use redrive_scheduler::{Scheduler, Settings, header};
use serde_json::json;

use crate::raw::{CONTENT_TYPE, CORRELATION_ID, HEADERS, Raw, long, short};
use crate::world::{Client, Database, World, message, rabbit, settings, shared_broker, unique};

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// A RetryMessage in JSON.
fn failure(id: &str, queue: &str) -> Vec<u8> {
    json!({"message_id": id, "original_payload": "aGk=", "original_queue": queue, "error_reason": "x"})
        .to_string()
        .into_bytes()
}

/// As the guide recommends: a quorum queue with a delivery limit, and a dead-letter exchange to the review queue.
async fn limited(client: &Client, settings: &Settings) {
    client.declare(&settings.review_queue).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(20));
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(&settings.review_queue));
    client.declare_with(&settings.retry_queue, arguments).await;
}

/// Publishes a short string that is not UTF-8, which the broker accepts and the client cannot parse.
fn poison(broker: &str, settings: &Settings, queue: &str) {
    let properties = [short("application/json"), short(b"caf\xe9")].concat();
    let body = failure("poison", queue);
    Raw::connect(broker).publish(&settings.retry_queue, &body, CONTENT_TYPE | CORRELATION_ID, &properties);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unparsable_message_goes_to_review_and_loses_no_other() {
    const MESSAGES: usize = 150;
    let (settings, broker) = (settings(), shared_broker());
    let client = Client::connect(&broker, &settings).await;
    limited(&client, &settings).await;
    let queue = unique("orders");
    client.declare(&queue).await;
    poison(&broker, &settings, &queue);
    for n in 0..MESSAGES {
        let message = message(&format!("m-{n}"), &queue).to_protobuf();
        client.publish(&settings.retry_queue, &message, lapin::BasicProperties::default()).await;
    }
    let (database, transport) = (Database::file(), rabbit(&settings, &broker));
    let scheduler = Scheduler::start(settings.clone(), database.address(), transport).await.unwrap();
    let world = World { settings, broker, database, client, scheduler };
    let mut seen = BTreeSet::new();
    while seen.len() < MESSAGES {
        seen.insert(world.client.next(&queue).await.text(header::MESSAGE_ID));
    }
    let found = Raw::connect(&world.broker).next(&world.settings.review_queue);
    assert_eq!(found.body, failure("poison", &queue), "the unparsable message");
    let name = b"x-first-death-reason";
    assert!(found.header.windows(name.len()).any(|part| part == name), "as a dead letter");

    // After enough valid messages a new connection has the full prefetch again.
    let metrics = world.until("the scheduler is connected", |metrics| metrics.transport.consuming).await;
    let connects = metrics.transport.connects;
    assert!((20..40).contains(&connects), "the limit is 20: {connects}");
    for n in 0..2 * usize::from(world.settings.prefetch) {
        world.fails(&message(&format!("later-{n}"), &queue)).await;
    }
    while seen.len() < MESSAGES + 2 * usize::from(world.settings.prefetch) {
        seen.insert(world.client.next(&queue).await.text(header::MESSAGE_ID));
    }
    world
        .until(&format!("more than {connects} connections"), |metrics| metrics.transport.connects > connects)
        .await;
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deeply_nested_headers_are_replaced() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let mut deep = b"V".to_vec();
    for _ in 0..200 {
        deep = [b"A".to_vec(), long(&deep)].concat();
    }
    let properties =
        [short("application/json"), long([short("deep"), deep, short("flat"), vec![b't', 1]].concat())]
            .concat();
    let body = failure("deep", &queue);
    let mut raw = Raw::connect(&world.broker);
    raw.publish(&world.settings.retry_queue, &body, CONTENT_TYPE | HEADERS, &properties);
    let seen = world.client.next(&queue).await;
    assert_eq!(
        (seen.text(header::MESSAGE_ID).as_str(), seen.header("flat")),
        ("deep", Some(&AMQPValue::Boolean(true)))
    );
    assert!(seen.header("deep").is_some());
    world.client.delete(&queue).await;
    world.end().await;
}
