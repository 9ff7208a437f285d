//! The scheduler on NATS: republish, review and retry by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::{self, Context};
use redrive_servers::Nats;
use serde_json::{Value, json};

use super::world::{metric, one_in_review};
use crate::world::{TestDatabase, World};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for the message with this sequence number in a stream.
async fn at(context: &Context, stream: &str, sequence: u64) -> StreamMessage {
    let began = Instant::now();
    loop {
        if let Ok(stream) = context.get_stream(stream).await
            && let Ok(message) = stream.get_raw_message(sequence).await
        {
            return message;
        }
        assert!(began.elapsed() < TIMEOUT, "no message {sequence} in {stream}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn text(message: &StreamMessage, name: &str) -> String {
    message.headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default()
}

/// Sets only the NATS server and short delays; the streams are created.
#[test]
fn failed_messages_on_nats_are_republished_to_their_subject() {
    let server = Nats::start().unwrap_or_else(|missing| panic!("{missing}"));
    let url = server.url();
    let variables =
        [("HTTP_PORT", "0"), ("NATS_URL", url.as_str()), ("BASE_DELAY_MS", "20"), ("MAX_DELAY_MS", "200")];
    let world = World::spawn(Arc::new(TestDatabase::sqlite()), &["scheduler"], &variables);
    world.until("it is ready", || world.get("/readyz").status == 200);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let context = runtime.block_on(async {
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        let config = jetstream::stream::Config {
            name: "ORDERS".into(),
            subjects: vec!["orders.>".into()],
            ..Default::default()
        };
        context.create_stream(config).await.unwrap();
        context
    });
    let fail = |headers: &HeaderMap| {
        let sent = context.publish_with_headers("retry.scheduled", headers.clone(), "{\"order\": 7}".into());
        runtime.block_on(async { sent.await.unwrap().await.unwrap() })
    };
    let mut headers = HeaderMap::new();
    headers.insert("redrive-original-queue", "orders.new");
    headers.insert("redrive-message-id", "m-1");
    headers.insert("Customer", "anna");
    fail(&headers);
    let seen = runtime.block_on(at(&context, "ORDERS", 1));
    assert_eq!((seen.subject.as_str(), &seen.payload[..]), ("orders.new", &b"{\"order\": 7}"[..]));
    assert_eq!((text(&seen, "redrive-retry-count"), text(&seen, "Customer")), ("1".into(), "anna".into()));

    headers.insert("redrive-retry-count", "3");
    fail(&headers);
    let review = runtime.block_on(at(&context, "MANUAL_REVIEW", 1));
    let review: Value = serde_json::from_slice(&review.payload).unwrap();
    assert_eq!((&review["message_id"], &review["reason"]), (&json!("m-1"), &json!("retries_exhausted")));
    let id = one_in_review(&world)["id"].as_str().unwrap().to_owned();
    world.post(&format!("/v1/review/{id}/retry"), &json!({})).ok(202);
    let seen = runtime.block_on(at(&context, "ORDERS", 2));
    assert_eq!(text(&seen, "redrive-retry-count"), "4");
    assert_eq!(metric(&world, "redrive_scheduler_connected{purpose=\"consume\"}"), Some(1));
    assert_eq!(metric(&world, "retries_exhausted_total{queue=\"orders.new\"}"), Some(1));

    server.crash();
    world.until("it is not ready", || world.get("/readyz").status == 503);
    server.resume().unwrap();
    world.until("it is back", || world.get("/readyz").status == 200);
}

#[test]
fn rabbitmq_and_nats_together_are_refused() {
    let database = TestDatabase::sqlite();
    for command in [&["scheduler"][..], &["config", "check"]] {
        let output = database
            .command(command)
            .envs([("NATS_URL", "nats://anna:s3cret@host"), ("RABBITMQ_URL", "amqp://anna:s3cret@host")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("RABBITMQ_URL and NATS_URL are both set") && !said.contains("s3cret"),
            "{said}"
        );
    }
}
