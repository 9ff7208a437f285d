//! Circuit breaker of a subscription: `cargo run -p redrive-examples --example circuit_breaker`
//!
//! The mail server fails four times, and its circuit opens. Billing handles the event, while the mail delivery is parked on
//! disk until the circuit admits a probe.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, Jitter, RetryPolicy};
use redrive::{Event, EventBus};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let quick =
        RetryPolicy::builder().max_retries(9).base_delay(Duration::from_millis(5)).jitter(Jitter::None);
    let bus = EventBus::builder().policy(quick.build()?).open(folder.path().join("events.db")).await?;

    let (mails, entries) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let calls = Arc::clone(&mails);
    bus.subscribe("order.*", move |event: Event| {
        let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            println!("mail: call {call}, attempt {}", event.attempt());
            if call <= 4 { Err("the mail server is down") } else { Ok(()) }
        }
    })
    .name("mail")
    // Open for 800 ms after four failures. The defaults: more than half of at least 4 in a minute, open for 30 s.
    .breaker(BreakerConfig::builder().min_samples(4).open_for(Duration::from_millis(800)).build()?)
    .register()?;

    let (calls, sent) = (Arc::clone(&entries), Arc::clone(&mails));
    bus.subscribe("order.*", move |_: Event| {
        calls.fetch_add(1, Ordering::SeqCst);
        println!("billing: recorded, while the mail is not sent after {} calls", sent.load(Ordering::SeqCst));
        async { Ok::<_, BoxError>(()) }
    })
    .name("billing")
    .register()?;
    bus.start().await?;

    // Waits for every delivery, the parked one included.
    let id = bus.publish("order.created", &json!({ "order": 7 })).await?;

    let event = bus.store().event(id).await?;
    assert_eq!(event.status, EventStatus::Done);
    assert_eq!(event.errors.len(), 4, "a refused call is not a failure");
    assert_eq!(event.deliveries[0].subscription.as_str(), "mail");
    assert_eq!((mails.load(Ordering::SeqCst), entries.load(Ordering::SeqCst)), (5, 1));
    println!("{}: 4 failures, 1 parked delivery, nothing lost", event.status);
    bus.shutdown().await?;
    Ok(())
}
