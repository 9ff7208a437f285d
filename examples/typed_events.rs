//! Typed payloads: `cargo run -p redrive-examples --example typed_events`
//!
//! Publisher and handler share one struct, so they agree on event type and fields. A malformed payload is dead-lettered at once,
//! because no retry can fix it.

#![allow(clippy::print_stdout)] // an example shows what it does

use redrive::events::EventStatus;
use redrive::retry::BoxError;
use redrive::{Event, EventBus, EventPayload, HandlerResult};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Serialize, Deserialize)]
struct OrderCreated {
    order: u64,
    cents: u64,
}

impl EventPayload for OrderCreated {
    const TYPE: &'static str = "order.created";
}

async fn bill(order: OrderCreated, event: Event) -> HandlerResult {
    println!("order {} over {} cents, event {}", order.order, order.cents, event.id());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let bus = EventBus::open(folder.path().join("events.db")).await?;
    bus.subscribe_typed(bill).name("billing").register()?;
    bus.start().await?;

    let id = bus.publish_typed(&OrderCreated { order: 7, cents: 1250 }).await?;
    assert_eq!(bus.store().event(id).await?.status, EventStatus::Done);

    // A malformed payload of this event type.
    let id = bus.publish("order.created", &json!({ "order": "seven" })).await?;
    let dead = bus.store().event(id).await?;
    println!("{}: {}", dead.status, dead.errors[0]);
    assert_eq!((dead.status, dead.errors.len()), (EventStatus::Dlq, 1));
    assert!(dead.errors[0].contains("cannot be read as"));

    // A value that is not JSON is refused.
    let error = bus.publish("order.created", &f64::NAN).await.expect_err("NaN is not JSON");
    println!("refused: {error}");

    bus.shutdown().await?;
    Ok(())
}
