//! Publish a batch atomically, and publish with an own event id: `cargo run -p redrive-examples --example batch_and_own_ids`

#![allow(clippy::print_stdout)] // an example shows what it does

use redrive::retry::BoxError;
use redrive::{Event, EventBus, EventId};
use serde_json::json;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let bus = EventBus::open(folder.path().join("events.db")).await?;
    let (handled, mut arrived) = mpsc::unbounded_channel();
    bus.subscribe("*", move |event: Event| {
        let sent = handled.send(event.id());
        async move { sent }
    })
    .name("counter")
    .register()?;
    bus.start().await?;

    // One transaction and one sync for all events.
    let lines: Vec<_> = (1..=3).map(|line| json!({ "order": 7, "line": line })).collect();
    let ids = bus.publish_batch(lines.iter().map(|line| ("order.line.added", line))).await?;
    println!("stored {} events in one transaction", ids.len());
    let error = bus
        .publish_batch([("order.line.added", &lines[0]), ("no good type", &lines[1])])
        .await
        .expect_err("one of them cannot be stored");
    println!("none of two: {error}");

    // The request's id as event id: a repeated request publishes no second event.
    let request: EventId = "4e1b2d3c-5a69-4788-9abc-def012345678".parse()?;
    for _ in 0..3 {
        let order = json!({ "order": 8 });
        bus.publish("order.created", &order).id(request).metadata("source", "web").await?;
    }
    bus.shutdown().await?;

    let mut handled = Vec::new();
    while let Ok(id) = arrived.try_recv() {
        handled.push(id);
    }
    println!("published 2 × 3 times, handled {} events", handled.len());
    assert_eq!(handled.len(), 4, "three lines and one order");
    assert!(ids.iter().chain([&request]).all(|id| handled.contains(id)));
    Ok(())
}
