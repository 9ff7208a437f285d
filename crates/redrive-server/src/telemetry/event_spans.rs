//! The spans that the bus makes for attempts at events, for a collector.
//!
//! The bus knows of `tracing` only. What it notes in its spans becomes a span of OpenTelemetry when it ends, under the one that the
//! event carries: that of the request by which it was published, as a rule.

use std::fmt::{Debug, Write};
use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanBuilder, SpanId, SpanKind, Status, TraceId, Tracer as _};
use opentelemetry::{Context, Key, KeyValue, Value};
use opentelemetry_sdk::trace::SdkTracer;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::Context as LayerContext;
use tracing_subscriber::registry::LookupSpan;

use super::under;

/// Of the spans of the bus; see the guide on observability.
const TARGET: &str = "redrive::event";

/// Hears of spans.
#[derive(Debug)]
pub(crate) struct EventSpans {
    tracer: SdkTracer,
}

impl EventSpans {
    pub(super) fn new(tracer: SdkTracer) -> Self {
        EventSpans { tracer }
    }

    /// What it wants to hear of, whatever is logged.
    pub(crate) fn filter() -> Targets {
        Targets::new().with_target(TARGET, LevelFilter::INFO)
    }

    fn send(&self, noted: Noted) {
        let builder = SpanBuilder::from_name(noted.name)
            .with_kind(SpanKind::Consumer)
            .with_start_time(noted.began)
            .with_attributes(noted.attributes);
        let mut span = self.tracer.build_with_context(builder, &noted.parent.context());
        if let Some(error) = noted.error {
            span.set_status(Status::error(error));
        }
        span.end();
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for EventSpans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        let mut noted = Noted::new();
        attributes.record(&mut noted);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(noted);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: LayerContext<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(noted) = span.extensions_mut().get_mut::<Noted>()
        {
            values.record(noted);
        }
    }

    fn on_close(&self, id: Id, context: LayerContext<'_, S>) {
        let noted = context.span(&id).and_then(|span| span.extensions_mut().remove::<Noted>());
        if let Some(noted) = noted {
            self.send(noted);
        }
    }
}

/// What is known of a span so far.
struct Noted {
    name: String,
    began: SystemTime,
    parent: Parent,
    error: Option<String>,
    attributes: Vec<KeyValue>,
}

/// The span that the event carries, as it is noted bit by bit.
#[derive(Default)]
struct Parent {
    trace: Option<TraceId>,
    span: Option<SpanId>,
    is_sampled: bool,
}

impl Parent {
    fn context(&self) -> Context {
        let (Some(trace), Some(span)) = (self.trace, self.span) else { return Context::new() };
        under(trace, span, self.is_sampled)
    }
}

impl Noted {
    fn new() -> Self {
        Noted {
            name: "process".to_owned(),
            began: SystemTime::now(),
            parent: Parent::default(),
            error: None,
            attributes: vec![
                KeyValue::new("messaging.system", "redrive"),
                KeyValue::new("messaging.operation.type", "process"),
            ],
        }
    }

    fn note(&mut self, field: &str, value: impl Into<Value>) {
        // By the names that others have agreed on, where there are such.
        let name = match field {
            "event_id" => Key::from_static_str("messaging.message.id"),
            "event_type" => Key::from_static_str("messaging.destination.name"),
            "addressee" => Key::from_static_str("redrive.subscription"),
            "class" => Key::from_static_str("error.type"),
            other => Key::new(format!("redrive.{other}")),
        };
        self.attributes.push(KeyValue::new(name, value));
    }
}

impl Visit for Noted {
    fn record_str(&mut self, field: &Field, text: &str) {
        match field.name() {
            "trace_id" => self.parent.trace = TraceId::from_hex(text).ok(),
            "parent_span_id" => self.parent.span = SpanId::from_hex(text).ok(),
            "error" => self.error = Some(text.to_owned()),
            "event_type" => {
                self.name = format!("process {text}");
                self.note("event_type", text.to_owned());
            }
            other => self.note(other, text.to_owned()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "sampled" => self.parent.is_sampled = value,
            other => self.note(other, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.note(field.name(), i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.note(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}"); // a String takes everything
        self.record_str(field, &text);
    }
}
