//! Inspect the dead-letter queue of a running bus: `cargo run -p redrive-examples --example inspect_dead_letters`
//!
//! The inspector needs only the database file, so it can run in any process.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::time::Duration;

use redrive::dlq::{DlqFilter, DlqInspector, DlqPage};
use redrive::retry::{BoxError, ClassifyError};
use redrive::{Event, EventBus, EventType};
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.db");
    let bus = EventBus::open(&file).await?;
    let (shipped, mut arrived) = mpsc::unbounded_channel();
    bus.subscribe("order.*", move |event: Event| {
        let shipped = shipped.clone();
        async move {
            let order: Value = event.json()?;
            let Some(street) = order["street"].as_str() else {
                return Err(format!("order {} has no street", order["order"]).permanent().into());
            };
            shipped.send(street.to_owned())?;
            Ok::<_, BoxError>(())
        }
    })
    .name("shipping")
    .register()?;
    bus.start().await?;
    for order in 1..=3 {
        bus.publish("order.created", &json!({ "order": order })).await?;
    }

    let dlq = DlqInspector::open(&file).await?;
    for group in dlq.groups(DlqFilter::default()).await? {
        println!("{} × {}", group.count, group.fingerprint);
        assert_eq!((group.count, group.fingerprint.as_str()), (3, "order # has no street"));
    }

    // Newest first, a hundred per page, with a cursor.
    let orders = DlqFilter { event_type: Some(EventType::new("order.created")?), ..DlqFilter::default() };
    let list = dlq.list(orders.clone(), DlqPage { limit: 2, ..DlqPage::default() }).await?;
    assert_eq!(list[0].payload.get(), r#"{"order":3}"#);

    // Redrives one with an edited payload; the running bus finds it within half a second.
    dlq.retry_edited(list[0].id, &json!({ "order": 3, "street": "Elm Street 7" })).await?;
    println!("shipped to {}", arrived.recv().await.ok_or("the bus is gone")?);

    // Exports the rest as JSON lines with every error and attempt, then deletes them.
    let mut lines = Vec::new();
    let exported = dlq.export(orders, &mut lines).await?;
    let first: Value = serde_json::from_slice(lines.split(|byte| *byte == b'\n').next().unwrap_or_default())?;
    println!("exported {exported}, the first one: {} {}", first["reason"], first["attempts"][0]["error"]);
    assert_eq!((exported, &first["reason"]), (2, &json!("permanent")));
    let purged = dlq.purge_older_than(Duration::ZERO).await?;
    println!("purged {purged}");
    assert_eq!(purged, 2);
    bus.shutdown().await?;
    Ok(())
}
