"""Carries the OpenTelemetry context: into published events, and from their metadata into handlers.

Does nothing without the package `opentelemetry-api`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generator, Optional

if TYPE_CHECKING:
    from .models import LeasedEvent

_context: Any = None
_propagate: Any = None
_otel: Any = None
_tracer: Any = None
try:
    from opentelemetry import context, propagate, trace
except ImportError:  # pragma: no cover
    pass
else:
    _context, _propagate, _otel = context, propagate, trace
    _tracer = trace.get_tracer("redrive")


def trace_headers() -> dict[str, str]:
    """Returns `traceparent` of the current span, if there is one."""
    if _tracer is None:
        return {}
    headers: dict[str, str] = {}
    _propagate.inject(headers)
    return {name: value for name, value in headers.items() if name in ("traceparent", "tracestate")}


@contextmanager
def process_span(delivery: LeasedEvent, subscription: str) -> Generator[Optional[Any], None, None]:
    """Runs a handler in a span `process TYPE`, as a child of the span that published the event."""
    if _tracer is None:
        yield None
        return
    token = _context.attach(_propagate.extract(delivery.metadata))
    try:
        with _tracer.start_as_current_span(
            f"process {delivery.type}",
            kind=_otel.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "redrive",
                "messaging.operation.type": "process",
                "messaging.destination.name": delivery.type,
                "messaging.message.id": delivery.id,
                "redrive.subscription": subscription,
                "redrive.attempt": delivery.attempt,
            },
        ) as span:
            yield span
    finally:
        _context.detach(token)
