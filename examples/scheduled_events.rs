//! Scheduled events: `cargo run -p redrive-examples --example scheduled_events`
//!
//! The due time is on disk, so scheduled events survive a restart.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use redrive::events::EventStatus;
use redrive::retry::{BoxError, Timestamp};
use redrive::{Event, EventBus};
use serde_json::json;
use tokio::sync::mpsc;

async fn open(file: &Path, handled: mpsc::UnboundedSender<String>) -> Result<EventBus, BoxError> {
    let bus = EventBus::open(file).await?;
    bus.subscribe("reminder.*", move |event: Event| {
        let sent = handled.send(event.event_type().to_string());
        async move { sent }
    })
    .name("reminders")
    .register()?;
    bus.start().await?;
    Ok(bus)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.db");
    let (handled, mut arrived) = mpsc::unbounded_channel();
    let began = Instant::now();

    let bus = open(&file, handled.clone()).await?;
    bus.publish("reminder.late", &json!({})).delay(Duration::from_millis(900)).enqueue().await?;
    let at = Timestamp::from(SystemTime::now() + Duration::from_millis(600));
    let early = bus.publish("reminder.early", &json!({})).due_at(at).enqueue().await?;
    let event = bus.store().event(early).await?;
    println!("{} is {}, due at {at}", event.event_type, event.status);
    assert_eq!((event.status, event.due_at), (EventStatus::Pending, Some(at)));

    bus.shutdown().await?; // no event is due, so it returns at once
    let bus = open(&file, handled).await?;

    for (expected, not_before) in [("reminder.early", 600), ("reminder.late", 900)] {
        let event_type = arrived.recv().await.ok_or("the bus is gone")?;
        println!("{event_type} after {} ms", began.elapsed().as_millis());
        assert_eq!(event_type, expected);
        assert!(began.elapsed() >= Duration::from_millis(not_before));
    }
    bus.shutdown().await?;
    Ok(())
}
