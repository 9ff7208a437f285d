//! Counters, latencies, spans and the trace context: `cargo run -p redrive-examples --example metrics_and_tracing`

#![allow(clippy::print_stdout)] // an example shows what it does

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redrive::retry::{BoxError, RetryOverride};
use redrive::trace::TraceContext;
use redrive::{Event, EventBus};
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

/// Collects the spans of the bus. A real program uses `tracing-subscriber`.
#[derive(Clone, Default)]
struct Spans {
    made: Arc<AtomicU64>,
    fields: Arc<Mutex<HashMap<u64, String>>>,
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name()); // writing to text does not fail
    }
}

impl Spans {
    fn fields(&self) -> MutexGuard<'_, HashMap<u64, String>> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == "redrive::event"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let number = self.made.fetch_add(1, Ordering::SeqCst) + 1;
        attributes.record(&mut Line(self.fields().entry(number).or_default()));
        Id::from_u64(number)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Line(self.fields().entry(span.into_u64()).or_default()));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone())?;
    let folder = tempfile::tempdir()?;
    let bus = EventBus::open(folder.path().join("events.db")).await?;

    let shop = bus.clone();
    bus.subscribe("order.created", move |event: Event| {
        let shop = shop.clone();
        async move {
            if event.attempt() == 1 {
                return Err(BoxError::from("the carrier did not answer"));
            }
            // Joins the trace of the order automatically.
            shop.publish("parcel.sent", &json!({})).enqueue().await?;
            Ok(())
        }
    })
    .name("shipping")
    .retry(RetryOverride::new().base_delay_ms(10))
    .register()?;
    bus.subscribe("parcel.*", |_: Event| async { Ok::<_, BoxError>(()) }).name("tracker").register()?;
    bus.start().await?;

    // From the request's `traceparent` header.
    let request: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
    bus.publish("order.created", &json!({ "order": 7 })).traceparent(request).await?;
    while bus.metrics().await?.done < 2 {
        tokio::task::yield_now().await; // until the parcel is handled
    }

    let metrics = bus.metrics().await?;
    println!("published {}, calls {}, done {}", metrics.published, metrics.attempts, metrics.done);
    println!("99 of 100 begun within {:?}", metrics.dispatch_latency.quantile(0.99));
    println!("{}", serde_json::to_string(&metrics.by_type)?);
    assert_eq!((metrics.published, metrics.attempts, metrics.dead), (2, 3, 0));
    let orders = metrics.by_type["order.created"];
    assert_eq!((orders.retries, orders.success_after_retry_rate()), (1, Some(1.0)));
    assert_eq!(metrics.handler_duration.count, 3);
    bus.shutdown().await?;

    // One span per attempt: two of the order, one of the parcel, all in one trace.
    let spans = spans.fields();
    for number in 1..=3 {
        println!("{}", spans[&number]);
        assert!(spans[&number].contains(&request.trace_id()), "{}", spans[&number]);
    }
    assert!(spans[&1].contains(r#"outcome="retry""#) && spans[&2].contains(r#"outcome="done""#));
    Ok(())
}
