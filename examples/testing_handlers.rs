//! Test handlers on virtual time: `cargo run -p redrive-examples --example testing_handlers`
//!
//! In a real program the functions below the handler are `#[tokio::test]` functions. Together they cover more than ten minutes
//! of virtual time and take milliseconds.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::time::Duration;

use redrive::retry::{BoxError, Jitter, RetryPolicy};
use redrive::testing::TestBus;
use redrive::{BusError, Event, EventBus};
use serde_json::{Value, json};

/// Handler under test: ships an order and publishes an event.
fn subscribe_shipping(bus: &EventBus) -> Result<(), BusError> {
    let shop = bus.clone();
    bus.subscribe("order.created", move |event: Event| {
        let shop = shop.clone();
        async move {
            let order: Value = event.json()?;
            if order["street"].is_null() || (order["carrier"] == "slow" && event.attempt() < 3) {
                return Err(BoxError::from("the carrier did not take it"));
            }
            shop.publish("order.shipped", &order).enqueue().await?;
            Ok(())
        }
    })
    .name("shipping")
    .register()?;
    Ok(())
}

async fn an_order_is_shipped_although_the_carrier_is_slow() -> Result<(), BoxError> {
    let bus = TestBus::new().await?;
    subscribe_shipping(&bus)?;
    bus.start().await?;
    let began = bus.time().now();
    // Handled after two backoffs, about 3 s of virtual time.
    bus.publish("order.created", &json!({ "street": "Elm Street 7", "carrier": "slow" })).await?;
    bus.drain().await; // also handles the event that the handler published
    bus.assert_done("order.created", 1).await;
    bus.assert_published("order.shipped", 1).await;
    bus.assert_nothing_dead().await;
    println!("shipped after {:?} of virtual time", bus.time().now().since(began));
    Ok(())
}

async fn an_order_without_a_street_is_dead_after_four_attempts() -> Result<(), BoxError> {
    let exact = RetryPolicy::builder().jitter(Jitter::None).build()?;
    let bus = TestBus::with(|builder| builder.policy(exact)).await?;
    subscribe_shipping(&bus)?;
    bus.start().await?;
    bus.publish("order.created", &json!({ "order": 7 })).await?;
    bus.assert_dead("order.created", 1).await;
    bus.assert_published("order.shipped", 0).await;
    let dead = bus.dead().await;
    assert_eq!((dead[0].errors.len(), dead[0].reason.as_str()), (4, "attempts_exhausted"));
    println!("dead after {:?}", dead[0].dlq_at.since(dead[0].created_at));
    assert_eq!(dead[0].dlq_at.since(dead[0].created_at), Duration::from_secs(7));
    Ok(())
}

async fn an_order_for_later_waits_until_then() -> Result<(), BoxError> {
    let bus = TestBus::new().await?;
    subscribe_shipping(&bus)?;
    bus.start().await?;
    // Publish options: on the bus itself.
    let order = json!({ "street": "Elm Street 7" });
    bus.bus().publish("order.created", &order).delay(Duration::from_secs(600)).enqueue().await?;
    bus.advance(Duration::from_secs(599)).await;
    bus.assert_done("order.created", 0).await;
    bus.advance(Duration::from_secs(2)).await;
    bus.assert_done("order.created", 1).await;
    println!("handled at its time");
    Ok(())
}

#[tokio::main(flavor = "current_thread")] // like #[tokio::test]
async fn main() -> Result<(), BoxError> {
    an_order_is_shipped_although_the_carrier_is_slow().await?;
    an_order_without_a_street_is_dead_after_four_attempts().await?;
    an_order_for_later_waits_until_then().await
}
