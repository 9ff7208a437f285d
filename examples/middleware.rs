//! Middleware around handlers: `cargo run -p redrive-examples --example middleware`
//!
//! One middleware measures every handler of the bus. Another one wraps a single handler and fails its first attempt.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive::events::EventStatus;
use redrive::middleware::Next;
use redrive::retry::{BoxError, ClassifyError, Failure, RetryOverride};
use redrive::{Event, EventBus};
use serde_json::json;

/// Fails the first attempt of every event.
async fn sabotage(event: Event, next: Next) -> Result<(), Failure> {
    if event.attempt() == 1 {
        return Err("sabotaged".transient()); // the handler is not called
    }
    next.run(event).await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&seen);
    let bus = EventBus::builder()
        .middleware(move |event: Event, next: Next| {
            let log = Arc::clone(&log);
            async move {
                let (name, attempt, began) = (event.subscription().clone(), event.attempt(), Instant::now());
                let result = next.run(event).await;
                let outcome = result.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned());
                println!("{name}, attempt {attempt}: {outcome}, {:?}", began.elapsed());
                log.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(format!("{name} {attempt} {outcome}"));
                result // the result of the attempt
            }
        })
        .open(folder.path().join("events.db"))
        .await?;
    bus.subscribe("order.*", |_: Event| async { Ok::<_, BoxError>(()) })
        .name("shipping")
        .middleware(sabotage) // runs inside the middleware of the bus
        .retry(RetryOverride::new().base_delay(Duration::from_millis(10)))
        .register()?;
    bus.subscribe("order.*", |_: Event| async { Ok::<_, BoxError>(()) }).name("billing").register()?;
    bus.start().await?;

    let id = bus.publish("order.created", &json!({ "order": 7 })).await?;
    assert_eq!(bus.store().event(id).await?.status, EventStatus::Done);
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(seen, ["shipping 1 sabotaged", "shipping 2 ok", "billing 2 ok"]);
    bus.shutdown().await?;
    Ok(())
}
