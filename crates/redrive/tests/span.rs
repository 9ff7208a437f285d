//! Span of an attempt. In its own process, because the subscriber is global.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod test_store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use redrive::Event;
use redrive::retry::{Jitter, RetryPolicy};
use redrive::trace::TraceContext;

use test_store::StoredBus;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

type Fields = BTreeMap<String, String>;

/// Records the fields of every span with target `redrive::event`.
#[derive(Clone, Default)]
struct Spans {
    closed: Arc<Mutex<Vec<Fields>>>,
}

#[derive(Default)]
struct Collected(Fields);

impl Visit for Collected {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut fields = Collected::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Collected>().unwrap());
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if span.metadata().target() == "redrive::event" {
            let fields = std::mem::take(&mut span.extensions_mut().get_mut::<Collected>().unwrap().0);
            self.closed.lock().unwrap().push(fields);
        }
    }
}

fn field<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).map_or("", String::as_str)
}

#[tokio::test]
async fn every_attempt_has_one_span() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let policy = RetryPolicy::builder().max_attempts(2).jitter(Jitter::None).build().unwrap();
    let bus = StoredBus::with(|builder| builder.policy(policy)).await;
    bus.subscribe("order.*", |event: Event| async move {
        if event.event_type().as_str() == "order.bad" { Err("no stock") } else { Ok(()) }
    })
    .name("shipping")
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let context: TraceContext = TRACEPARENT.parse().unwrap();
    let good = bus.run(bus.bus().publish("order.good", &1).traceparent(context)).await.unwrap();
    let bad = bus.publish("order.bad", &1).await.unwrap();

    let spans = spans.closed.lock().unwrap();
    let [one, two, three] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!((field(one, "event_id"), field(one, "event_type")), (good.to_string().as_str(), "order.good"));
    assert_eq!((field(one, "attempt"), field(one, "handlers"), field(one, "outcome")), ("1", "1", "done"));
    assert_eq!(field(one, "trace_id"), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(field(one, "parent_span_id"), "00f067aa0ba902b7");
    assert!(one.contains_key("duration_ms") && !one.contains_key("error"), "{one:?}");
    assert_eq!((field(two, "event_id"), field(two, "outcome")), (bad.to_string().as_str(), "retry"));
    assert_eq!((field(two, "failed_subscription"), field(two, "error")), ("shipping", "no stock"));
    assert_eq!((field(two, "delay_ms"), field(two, "class")), ("1000", "transient"));
    assert_eq!((field(three, "attempt"), field(three, "outcome")), ("2", "dead"));
}
