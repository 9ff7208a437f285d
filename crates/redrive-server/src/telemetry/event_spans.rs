//! Converts the `tracing` spans of delivery attempts to OpenTelemetry spans.
//!
//! The bus depends on `tracing` only. When one of its spans closes, the recorded fields become an OpenTelemetry span. Its parent is
//! the trace context of the event, usually the span of the publishing request.

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

use super::parent_context;

/// `tracing` target of the bus's spans; see the guide on observability.
const TARGET: &str = "redrive::event";

/// `tracing` layer that exports the bus's spans.
#[derive(Debug)]
pub(crate) struct EventSpans {
    tracer: SdkTracer,
}

impl EventSpans {
    pub(super) fn new(tracer: SdkTracer) -> Self {
        EventSpans { tracer }
    }

    /// Selects the bus's spans, independent of the log filter.
    pub(crate) fn filter() -> Targets {
        Targets::new().with_target(TARGET, LevelFilter::INFO)
    }

    fn export(&self, record: SpanRecord) {
        let builder = SpanBuilder::from_name(record.name)
            .with_kind(SpanKind::Consumer)
            .with_start_time(record.began)
            .with_attributes(record.attributes);
        let mut span = self.tracer.build_with_context(builder, &record.parent.context());
        if let Some(error) = record.error {
            span.set_status(Status::error(error));
        }
        span.end();
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for EventSpans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        let mut record = SpanRecord::new();
        attributes.record(&mut record);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(record);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: LayerContext<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(record) = span.extensions_mut().get_mut::<SpanRecord>()
        {
            values.record(record);
        }
    }

    fn on_close(&self, id: Id, context: LayerContext<'_, S>) {
        let record = context.span(&id).and_then(|span| span.extensions_mut().remove::<SpanRecord>());
        if let Some(record) = record {
            self.export(record);
        }
    }
}

/// Fields of a `tracing` span recorded so far.
struct SpanRecord {
    name: String,
    began: SystemTime,
    parent: Parent,
    error: Option<String>,
    attributes: Vec<KeyValue>,
}

/// Trace context of the event, recorded field by field.
#[derive(Default)]
struct Parent {
    trace: Option<TraceId>,
    span: Option<SpanId>,
    is_sampled: bool,
}

impl Parent {
    fn context(&self) -> Context {
        let (Some(trace), Some(span)) = (self.trace, self.span) else { return Context::new() };
        parent_context(trace, span, self.is_sampled)
    }
}

impl SpanRecord {
    fn new() -> Self {
        SpanRecord {
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

    fn attribute(&mut self, field: &str, value: impl Into<Value>) {
        // Names of the OpenTelemetry semantic conventions where there are such.
        let name = match field {
            "event_id" => Key::from_static_str("messaging.message.id"),
            "event_type" => Key::from_static_str("messaging.destination.name"),
            "subscription" => Key::from_static_str("redrive.subscription"),
            "class" => Key::from_static_str("error.type"),
            other => Key::new(format!("redrive.{other}")),
        };
        self.attributes.push(KeyValue::new(name, value));
    }
}

impl Visit for SpanRecord {
    fn record_str(&mut self, field: &Field, text: &str) {
        match field.name() {
            "trace_id" => self.parent.trace = TraceId::from_hex(text).ok(),
            "parent_span_id" => self.parent.span = SpanId::from_hex(text).ok(),
            "error" => self.error = Some(text.to_owned()),
            "event_type" => {
                self.name = format!("process {text}");
                self.attribute("event_type", text.to_owned());
            }
            other => self.attribute(other, text.to_owned()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "sampled" => self.parent.is_sampled = value,
            other => self.attribute(other, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attribute(field.name(), i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attribute(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}"); // writing to a String cannot fail
        self.record_str(field, &text);
    }
}
