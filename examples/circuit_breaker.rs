//! Circuit breaker of a subscription: `cargo run -p redrive-examples --example circuit_breaker`
//!
//! The mail server is down. After four events have failed, the circuit of its subscription opens: further mails are parked on disk
//! without an attempt, while billing handles every event. A probe closes the circuit when the mail server is up again.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, Jitter, RetryPolicy};
use redrive::{Event, EventBus, Tracking};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let policy =
        RetryPolicy::builder().max_retries(9).base_delay(Duration::from_millis(300)).jitter(Jitter::None);
    let bus = EventBus::builder()
        .policy(policy.build()?)
        .tracking(Tracking::PerSubscription) // a failed mail does not delay or repeat billing
        .open(folder.path().join("events.db"))
        .await?;

    let (is_up, mails) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (server, calls) = (Arc::clone(&is_up), Arc::clone(&mails));
    bus.subscribe("order.*", move |event: Event| {
        calls.fetch_add(1, Ordering::SeqCst);
        let is_up = server.load(Ordering::SeqCst);
        async move {
            println!("mail for {}: {}", event.payload(), if is_up { "sent" } else { "the server is down" });
            if is_up { Ok(()) } else { Err("the mail server is down") }
        }
    })
    .name("mail")
    // Open for 800 ms after four failed events. The defaults: more than half of at least 4 in a minute, open for 30 s.
    .breaker(BreakerConfig::builder().min_samples(4).open_for(Duration::from_millis(800)).build()?)
    .register()?;

    bus.subscribe("order.*", |event: Event| async move {
        println!("billing of {}: recorded", event.payload());
        Ok::<_, BoxError>(())
    })
    .name("billing")
    .register()?;
    bus.start().await?;

    // The circuit counts events: one event that fails four times would not open it. A publish returns when only parked deliveries are
    // left, so these return long before the mails are sent.
    let publish = |order: u32| bus.publish("order.created", &json!({ "order": order })).into_future();
    let (one, two, three, four) = tokio::join!(publish(1), publish(2), publish(3), publish(4));
    let mut orders = vec![one?, two?, three?, four?];
    orders.push(publish(5).await?);
    assert_eq!(mails.load(Ordering::SeqCst), 4, "the circuit admits no further mail");
    for &order in &orders {
        assert_eq!(bus.events().get(order).await?.status, EventStatus::Processing);
    }
    println!("5 mails are parked, 5 orders are recorded");

    is_up.store(true, Ordering::SeqCst);
    for &order in &orders {
        while bus.events().get(order).await?.status != EventStatus::Done {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(mails.load(Ordering::SeqCst), 9, "a parked mail costs no attempt");
    println!("5 mails are sent, nothing lost");
    bus.shutdown().await?;
    Ok(())
}
