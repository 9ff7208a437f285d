//! Track each subscription separately: `cargo run -p redrive-examples --example per_subscription`
//!
//! By default one failed handler retries the whole event. With `Tracking::PerSubscription` each subscription is retried,
//! dead-lettered and redriven on its own.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use redrive::events::EventStatus;
use redrive::retry::{BoxError, ClassifyError, Failure};
use redrive::{Event, EventBus, Tracking};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let bus =
        EventBus::builder().tracking(Tracking::PerSubscription).open(folder.path().join("events.db")).await?;

    let entries = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&entries);
    bus.subscribe("order.*", move |_: Event| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, BoxError>(()) }
    })
    .name("billing")
    .register()?;

    let mended = Arc::new(AtomicBool::new(false));
    let template = Arc::clone(&mended);
    bus.subscribe("order.*", move |_: Event| {
        let works = template.load(Ordering::SeqCst);
        async move { if works { Ok(()) } else { Err::<(), Failure>("the template is broken".permanent()) } }
    })
    .name("mail")
    .register()?;
    bus.start().await?;

    let id = bus.publish("order.created", &json!({ "order": 7 })).await?;
    for delivery in bus.store().event(id).await?.deliveries {
        println!("{}: {} {:?}", delivery.subscription, delivery.status, delivery.errors);
    }
    assert_eq!(bus.store().event(id).await?.status, EventStatus::Dlq, "one of two deliveries is dead");

    // The template is fixed and the event redriven: only the mail handler runs again.
    mended.store(true, Ordering::SeqCst);
    let mut done = bus.store().event(id).await?.status;
    bus.dlq().retry(id).await?;
    while done != EventStatus::Done {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        done = bus.store().event(id).await?.status;
    }
    println!("redriven: {done}; billing was recorded {} time(s)", entries.load(Ordering::SeqCst));
    assert_eq!(entries.load(Ordering::SeqCst), 1);
    bus.shutdown().await?;
    Ok(())
}
