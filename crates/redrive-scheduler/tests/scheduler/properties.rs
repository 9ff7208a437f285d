//! Republication of properties and headers.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString};
use redrive_scheduler::header;

use crate::repeated_failures::dead_letters_to;
use crate::world::{Database, World, message, unique};

/// One header of every type that the broker knows.
fn headers() -> FieldTable {
    let mut inner = FieldTable::default();
    inner.insert("deep".into(), AMQPValue::LongLongInt(i64::MAX));
    let mut headers = FieldTable::default();
    for (name, value) in [
        ("bool", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(-8)),
        ("i16", AMQPValue::ShortInt(-16)),
        ("i32", AMQPValue::LongInt(-32)),
        ("i64", AMQPValue::LongLongInt(i64::MIN)),
        ("f32", AMQPValue::Float(0.1)),
        ("f64", AMQPValue::Double(-1e300)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
        ("text", AMQPValue::LongString("été \u{1f600}".into())),
        ("bytes in text", AMQPValue::LongString(LongString::from(vec![0, 0xff, 7]))),
        ("bytes", AMQPValue::ByteArray(ByteArray::from(vec![1, 0, 255]))),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("array", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(1), AMQPValue::Void]))),
        ("table", AMQPValue::FieldTable(inner)),
        ("void", AMQPValue::Void),
    ] {
        headers.insert(name.into(), value);
    }
    headers
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_and_headers_are_republished_with_their_types() {
    for database in Database::each() {
        let world = World::on(database).await;
        let queue = unique("orders");
        world.client.declare_with(&queue, dead_letters_to(&world.settings.retry_queue)).await;
        let properties = BasicProperties::default()
            .with_content_type("application/cbor".into())
            .with_content_encoding("gzip".into())
            .with_message_id("m-1".into())
            .with_correlation_id("c-1".into())
            .with_reply_to("answers".into())
            .with_timestamp(1_700_000_001)
            .with_type("order.created".into())
            .with_app_id("shop".into())
            .with_priority(7)
            .with_delivery_mode(1)
            .with_headers(headers());
        world.client.publish(&queue, &[0, 159, 146, 150], properties.clone()).await;
        world.client.reject(&queue).await;
        let seen = world.client.next(&queue).await;
        assert_eq!(seen.data, [0, 159, 146, 150]);
        let mut expected = seen.properties.headers().clone().unwrap();
        for (name, value) in headers().inner() {
            assert_eq!(seen.header(name.as_str()), Some(value), "{name}");
            expected.insert(name.clone(), value.clone());
        }
        // Beside the headers only the delivery mode changes, to persistent.
        let expected = properties.with_delivery_mode(2).with_headers(expected);
        assert_eq!(seen.properties, expected);
        let own = seen.properties.headers().clone().unwrap();
        assert!(own.inner().keys().filter(|name| name.as_str().starts_with("redrive-")).count() >= 5);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cc_user_id_and_expiration_are_not_republished() {
    let world = World::on(Database::file()).await;
    let (queue, copies) = (unique("orders"), unique("copies"));
    world.client.declare_with(&queue, dead_letters_to(&world.settings.retry_queue)).await;
    world.client.declare(&copies).await;
    let to_copies =
        || AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongString(copies.as_str().into())]));
    let mut headers = FieldTable::default();
    headers.insert("CC".into(), to_copies());
    headers.insert("BCC".into(), to_copies());
    let properties = BasicProperties::default()
        .with_user_id("guest".into())
        .with_expiration("86400000".into())
        .with_headers(headers);
    world.client.publish(&queue, b"x", properties).await;
    world.client.purge(&copies).await;
    world.client.reject(&queue).await;
    let seen = world.client.next(&queue).await;
    assert_eq!((seen.header("CC"), seen.header("BCC")), (None, None));
    assert_eq!((seen.properties.user_id(), seen.properties.expiration()), (&None, &None));
    assert_eq!(seen.text(header::USER_ID), "guest");
    assert!(world.client.look(&copies).await.is_none(), "no copy is sent");
    world.client.delete(&queue).await;
    world.client.delete(&copies).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_message_can_set_the_type_of_the_original_message() {
    let world = World::on(Database::file()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    let mut headers = FieldTable::default();
    headers.insert(header::CONTENT_TYPE.into(), AMQPValue::LongString("application/json".into()));
    headers.insert("tenant".into(), AMQPValue::LongInt(7));
    let properties = BasicProperties::default()
        .with_content_type("application/x-protobuf".into())
        .with_type("RetryMessage".into())
        .with_correlation_id("c-1".into())
        .with_headers(headers);
    world.fails_with(&message("m-1", &queue), properties).await;
    let seen = world.client.next(&queue).await;
    assert_eq!(seen.properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(*seen.properties.kind(), None);
    assert_eq!(seen.properties.message_id().as_ref().unwrap().as_str(), "m-1");
    assert_eq!(seen.properties.correlation_id().as_ref().unwrap().as_str(), "c-1");
    assert_eq!(
        (seen.header("tenant"), seen.header(header::CONTENT_TYPE)),
        (Some(&AMQPValue::LongInt(7)), None)
    );
    world.client.delete(&queue).await;
    world.end().await;
}
