//! Publish, subscribe, start, shut down: `cargo run -p redrive-examples --example event_bus`

#![allow(clippy::print_stdout)] // an example shows what it does

use redrive::events::EventStatus;
use redrive::retry::BoxError;
use redrive::{Event, EventBus, HandlerResult};
use serde_json::{Value, json};

async fn ship(event: Event) -> HandlerResult {
    let order: Value = event.json()?;
    println!("{} arrives: order {}", event.event_type(), order["order"]);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.db");

    let bus = EventBus::open(&file).await?;
    bus.subscribe("order.*", ship).name("shipping").register()?;
    bus.start().await?;

    // Awaited: the event is handled, or in the dead-letter queue.
    let id = bus.publish("order.created", &json!({ "order": 7 })).await?;
    assert_eq!(bus.store().event(id).await?.status, EventStatus::Done);

    // Enqueued: the event is on disk, and handled in the background.
    let enqueued = bus.publish("order.paid", &json!({ "order": 7 })).enqueue().await?;
    bus.shutdown().await?; // waits for running handlers
    assert!(bus.publish("order.created", &json!({})).await.is_err(), "a closed bus refuses events");

    // The events are in the file.
    let bus = EventBus::open(&file).await?;
    let event = bus.store().event(enqueued).await?;
    println!("{} is {}", event.event_type, event.status);
    assert_eq!(event.status, EventStatus::Done);
    Ok(())
}
