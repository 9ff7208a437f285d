//! The tracing span of one attempt, with all its fields in one event.

use std::time::Duration;

use redrive_store::{Claimed, Settlement, Verdict};
use tracing::Span;
use tracing::field::{Empty, display};

use crate::trace::TraceContext;

/// Opens the span.
pub(super) fn of(claimed: &Claimed) -> Span {
    let event = &claimed.event;
    let span = tracing::info_span!(
        target: "redrive::event",
        "event",
        event_id = %event.id,
        event_type = %event.event_type,
        attempt = claimed.attempt,
        subscription = claimed.subscription.as_ref().map(display),
        trace_id = Empty,
        parent_span_id = Empty,
        sampled = Empty,
        handlers = Empty,
        outcome = Empty,
        failed_subscription = Empty,
        error = Empty,
        class = Empty,
        delay_ms = Empty,
        split_off = Empty,
        duration_ms = Empty,
    );
    if !span.is_disabled()
        && let Some(context) = TraceContext::of(&event.metadata)
    {
        span.record("trace_id", context.trace_id());
        span.record("parent_span_id", context.span_id());
        span.record("sampled", context.is_sampled());
    }
    span
}

/// Adds the outcome.
pub(super) fn record(span: &Span, settlement: &Settlement, took: Duration) {
    if span.is_disabled() {
        return;
    }
    span.record("duration_ms", u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    span.record(
        "outcome",
        match settlement.verdict {
            Verdict::Done => "done",
            Verdict::Retry(_) => "retry",
            Verdict::Defer(_) => "deferred",
            Verdict::Lease { .. } => "leased",
            Verdict::ReleaseSuspect(_) => "released",
            Verdict::Dead(_) => "dead",
        },
    );
    span.record("split_off", settlement.split_off.len());
    if let Some(failure) = &settlement.failure {
        span.record("failed_subscription", failure.subscription.as_str());
        span.record("error", failure.error.as_str());
        span.record("class", display(failure.class));
        span.record("delay_ms", failure.delay_ms);
    }
}
