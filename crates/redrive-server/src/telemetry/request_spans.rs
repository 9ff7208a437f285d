//! Creates a span per HTTP request, as a child of the caller's `traceparent`.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceId, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use redrive::trace::TraceContext;

use super::parent_context;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Factory of request spans.
#[derive(Clone, Debug)]
pub(crate) struct RequestSpans {
    tracer: SdkTracer,
}

/// Span of a request in flight; ends on drop.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    span: Span,
}

impl RequestSpans {
    pub(super) fn new(tracer: SdkTracer) -> Self {
        RequestSpans { tracer }
    }

    /// Starts the span and sets it as the request's `traceparent`, so that published events continue the trace.
    pub(crate) fn begin(&self, request: &mut Request, method: &'static str, route: &str) -> RequestSpan {
        let builder =
            SpanBuilder::from_name(format!("{method} {route}")).with_kind(SpanKind::Server).with_attributes(
                [KeyValue::new("http.request.method", method), KeyValue::new("http.route", route.to_owned())],
            );
        let span = self.tracer.build_with_context(builder, &parent(request.headers()));
        if let Some(value) = traceparent(span.span_context()) {
            request.headers_mut().insert(TRACEPARENT, value);
        }
        RequestSpan { span }
    }
}

impl RequestSpan {
    pub(crate) fn end(mut self, status: StatusCode) {
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            self.span.set_attribute(KeyValue::new("error.type", status.as_u16().to_string()));
            self.span.set_status(Status::error(""));
        }
        self.span.end();
    }
}

/// Parent context from the `traceparent` header. An invalid header is ignored, as the W3C recommendation says.
fn parent(headers: &HeaderMap) -> Context {
    let context =
        headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()?.parse::<TraceContext>().ok());
    let ids = context.and_then(|context| {
        let (trace, span) =
            (TraceId::from_hex(&context.trace_id()).ok()?, SpanId::from_hex(&context.span_id()).ok()?);
        Some((trace, span, context.is_sampled()))
    });
    ids.map_or_else(Context::new, |(trace, span, is_sampled)| parent_context(trace, span, is_sampled))
}

fn traceparent(span: &SpanContext) -> Option<HeaderValue> {
    let text = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8() & 1);
    HeaderValue::try_from(text).ok().filter(|_| span.is_valid())
}
