//! Retries, permanent errors and the dead-letter queue: `cargo run -p redrive-examples --example retry_and_dead_letter`

#![allow(clippy::print_stdout)] // an example shows what it does

use std::time::Duration;

use redrive::events::EventStatus;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, ClassifyError, Jitter, RetryOverride, RetryPolicy};
use redrive::{Event, EventBus, HandlerResult};
use serde_json::json;

async fn deliver(event: Event) -> HandlerResult {
    match event.event_type().as_str() {
        // Any error is retried with a delay that doubles.
        "parcel.flaky" if event.attempt() < 3 => Err("the carrier did not answer".into()),
        // A permanent error is not retried.
        "parcel.refused" => Err("there is no such address".permanent().into()),
        // `retry_after` sets a minimum delay above the policy's.
        "parcel.throttled" if event.attempt() == 1 => {
            Err("too many requests".retry_after(Duration::from_millis(100)).into())
        }
        "parcel.lost" => {
            Err(format!("attempt {} of {} failed", event.attempt(), event.max_attempts()).into())
        }
        _ => Ok(()),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let bus = EventBus::builder()
        // Short delays without jitter. The default is 3 retries, 1 s doubling up to 30 s, ±10 %.
        .policy(RetryPolicy::builder().base_delay(Duration::from_millis(10)).jitter(Jitter::None).build()?)
        .open(folder.path().join("events.db"))
        .await?;
    bus.subscribe("parcel.*", deliver)
        .name("carrier")
        .retry(RetryOverride::new().max_retries(2))
        // These failures would open the circuit; see the example `circuit_breaker`.
        .breaker(BreakerConfig::builder().min_samples(100).build()?)
        .register()?;
    bus.start().await?;

    for (event_type, status, failures) in [
        ("parcel.flaky", EventStatus::Done, 2),
        ("parcel.refused", EventStatus::Dlq, 1),
        ("parcel.throttled", EventStatus::Done, 1),
        ("parcel.lost", EventStatus::Dlq, 3),
    ] {
        let id = bus.publish(event_type, &json!({})).await?;
        let event = bus.store().event(id).await?;
        let waits: Vec<u64> = event.attempts.iter().map(|attempt| attempt.delay_ms).collect();
        println!("{event_type}: {} after {failures} failure(s), delays {waits:?} ms", event.status);
        assert_eq!((event.status, event.errors.len()), (status, failures));
        match event_type {
            "parcel.flaky" => assert_eq!(waits, [10, 20]),
            "parcel.throttled" => assert_eq!(waits, [100]),
            "parcel.lost" => assert_eq!(event.errors[2], "attempt 3 of 3 failed"),
            _ => {}
        }
    }
    bus.shutdown().await?;
    Ok(())
}
