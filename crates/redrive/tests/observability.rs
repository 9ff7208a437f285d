//! Traces and metrics of a bus. `span.rs` tests spans.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::time::Duration;

use redrive::retry::breaker::{BreakerConfig, BreakerSnapshot};
use redrive::retry::{BoxError, Jitter, RetryPolicy};
use redrive::trace::TraceContext;
use redrive::{Event, Tracking};

use crate::test_store::StoredBus;

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn events_published_by_a_handler_continue_its_trace() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let bus = StoredBus::with(|builder| builder.tracking(tracking)).await;
        let publisher = bus.bus().clone();
        bus.subscribe("order.created", move |event: Event| {
            let publisher = publisher.clone();
            async move {
                let own = event.trace_context().map(|context| context.to_string());
                publisher.publish("invoice.due", &own).enqueue().await?;
                Ok::<_, BoxError>(())
            }
        })
        .register()
        .unwrap();
        bus.start().await.unwrap();
        let context: TraceContext = TRACEPARENT.parse().unwrap();
        bus.run(bus.bus().publish("order.created", &1).traceparent(context)).await.unwrap();
        bus.publish("order.created", &2).await.unwrap();
        bus.drain().await;

        let invoices = bus.published("invoice.due").await;
        let [traced, untraced] = invoices.as_slice() else { panic!("{invoices:?}") };
        let carried: TraceContext = traced.metadata["traceparent"].parse().unwrap();
        assert_eq!(carried.trace_id(), context.trace_id());
        assert_ne!(carried.span_id(), context.span_id(), "the handler is a span of its own");
        assert_eq!(traced.payload.get(), format!("\"{carried}\""), "and it is the one the handler sees");
        assert!(untraced.metadata.is_empty() && untraced.payload.get() == "null");
    }
}

#[tokio::test]
async fn the_metrics_are_one_struct_without_an_exporter() {
    let policy = RetryPolicy::builder().max_attempts(2).jitter(Jitter::None).build().unwrap();
    let bus = StoredBus::with(|builder| builder.policy(policy)).await;
    let breaker = BreakerConfig::builder().min_samples(1).open_for(Duration::from_secs(60)).build().unwrap();
    bus.subscribe("order.*", |event: Event| async move {
        match (event.event_type().as_str(), event.attempt()) {
            ("order.flaky", 1) | ("order.bad", _) => Err("no"),
            _ => Ok(()),
        }
    })
    .name("shipping")
    .breaker(BreakerConfig::builder().min_samples(1000).build().unwrap())
    .register()
    .unwrap();
    bus.subscribe("report", |_: Event| async { Err::<(), _>("down") })
        .name("reports")
        .breaker(breaker)
        .register()
        .unwrap();
    bus.start().await.unwrap();
    for event_type in ["order.good", "order.flaky", "order.bad", "nobody"] {
        bus.publish(event_type, &1).await.unwrap();
    }
    bus.bus().publish("report", &1).enqueue().await.unwrap();
    bus.advance(Duration::from_millis(1)).await;
    bus.bus().publish("order.good", &2).delay(Duration::from_secs(3600)).enqueue().await.unwrap();

    let metrics = bus.metrics().await.unwrap();
    assert_eq!((metrics.published, metrics.done, metrics.dead), (6, 3, 1));
    assert_eq!((metrics.attempts, metrics.unmatched), (6, 1));
    let flaky = metrics.by_type["order.flaky"];
    assert_eq!((flaky.retries, flaky.done_after_retry), (1, 1));
    assert_eq!(flaky.success_after_retry_rate(), Some(1.0));
    assert_eq!(metrics.by_type["order.bad"].dlq_rate(), Some(1.0));
    assert_eq!((metrics.dispatch_latency.count, metrics.handler_duration.count), (7, 6));
    assert!(metrics.dispatch_latency.quantile(0.99).is_some() && metrics.dispatch_latency.mean().is_some());
    assert_eq!(metrics.in_flight, 0);
    assert_eq!(
        (metrics.depth.pending, metrics.depth.waiting),
        (1, 1),
        "the delayed one, and the report's retry"
    );
    assert_eq!(metrics.breakers["shipping"], BreakerSnapshot::Closed);
    assert!(matches!(metrics.breakers["reports"], BreakerSnapshot::Open { .. }), "{:?}", metrics.breakers);
    let json = serde_json::to_value(&metrics).unwrap();
    assert_eq!(json["by_type"]["order.good"]["done_at_once"], 1);
}
