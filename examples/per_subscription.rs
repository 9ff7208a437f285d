//! Each subscription on its own: `cargo run -p redrive-examples --example per_subscription`
//!
//! By default the event is the unit: if one handler fails, all of them see the event again. Tracked per subscription, the
//! one that failed is retried, given up and sent back alone.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use redrive::{BoxError, ClassifyError, Event, EventBus, EventStatus, Failure, Tracking};
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
    .name("ledger")
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
    assert_eq!(bus.store().event(id).await?.status, EventStatus::Dlq, "one of two gave up");

    // Somebody mends the template and sends the event back: only the mail sees it again.
    mended.store(true, Ordering::SeqCst);
    let mut done = bus.store().event(id).await?.status;
    bus.dlq().retry(id).await?;
    while done != EventStatus::Done {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        done = bus.store().event(id).await?.status;
    }
    println!("sent back: {done}; the ledger was written {} time(s)", entries.load(Ordering::SeqCst));
    assert_eq!(entries.load(Ordering::SeqCst), 1);
    bus.shutdown().await?;
    Ok(())
}
