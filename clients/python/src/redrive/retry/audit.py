"""Audit events of guarded calls, and the sinks that receive them.

Events are dicts with the specified fields: `retry_attempt`, `retry_exhausted`, `idempotency`, and `retry_decision`, which records the
inputs of a decision so that it can be verified. Calls that succeed at once leave no event.
"""

from __future__ import annotations

import json
import logging
import threading
from datetime import datetime, timezone
from os import PathLike
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Union

AuditEvent = Mapping[str, Any]
AuditSink = Callable[[AuditEvent], None]
"""Receives audit events on the path of the call, so it should not block."""

MAX_MESSAGE_BYTES = 4096

log = logging.getLogger("redrive.retry")


def log_audit(event: AuditEvent) -> None:
    """Writes the event as JSON to the logger `redrive.retry`: exhausted calls as warnings, the rest for debugging."""
    level = logging.WARNING if event["event_type"] == "retry_exhausted" else logging.DEBUG
    if log.isEnabledFor(level):
        log.log(level, "%s", json.dumps(event, ensure_ascii=False, default=str))


def json_lines(path: Union[str, PathLike[str]]) -> AuditSink:
    """Returns a sink that appends one JSON object per line to a file."""
    lock = threading.Lock()

    def append(event: AuditEvent) -> None:
        line = json.dumps(event, ensure_ascii=False, default=str)
        with lock, open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    return append


class AuditStream:
    """Audit events in memory, to filter and to count. An instance is a sink."""

    def __init__(self, events: Iterable[AuditEvent] = ()) -> None:
        self._events = list(events)

    def __call__(self, event: AuditEvent) -> None:
        """Records an event."""
        self._events.append(event)

    def __iter__(self) -> Iterator[AuditEvent]:
        return iter(list(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def filter(self, **fields: object) -> AuditStream:
        """Returns the events in which every given field has this value."""
        return AuditStream(
            event for event in self._events if all(event.get(name) == value for name, value in fields.items())
        )

    @property
    def rate_per_minute(self) -> float:
        """Events per minute between the first and the last one; at least a minute counts."""
        if not self._events:
            return 0.0
        times = [read_time(event["timestamp"]) for event in self._events if "timestamp" in event]
        minutes = (max(times) - min(times)).total_seconds() / 60 if times else 0.0
        return len(self._events) / max(minutes, 1.0)


def calculate_success_rate(events: Iterable[AuditEvent]) -> Optional[float]:
    """Returns the share of calls that succeeded, among calls with a failed attempt; None without such a call."""
    ended = [_ending(event) for event in events]
    succeeded, failed = ended.count("succeeded"), ended.count("failed")
    return succeeded / (succeeded + failed) if succeeded + failed else None


def calculate_avg_attempts(events: Iterable[AuditEvent]) -> Optional[float]:
    """Returns the average number of attempts of a call, among ended calls with a failed attempt; None without one."""
    attempts = [event["record"]["situation"]["attempt"] for event in events if _ending(event) is not None]
    return sum(attempts) / len(attempts) if attempts else None


def _ending(event: AuditEvent) -> Optional[str]:
    """Tells how a call ended, from its last decision."""
    if event.get("event_type") != "retry_decision":
        return None
    return {"done": "succeeded", "dead": "failed"}.get(event["record"]["decision"]["action"])


def bounded(message: str) -> str:
    """Cuts an error text at 4096 bytes and says how much is missing."""
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return message
    kept = encoded[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
    return f"{kept}… ({len(encoded) - len(kept.encode())} more bytes)"


def time_text(seconds: float) -> str:
    """Writes a time as RFC 3339, with milliseconds if there are any."""
    millis = int(seconds * 1000 + 0.5)
    at = datetime.fromtimestamp(millis // 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{at}.{millis % 1000:03}Z" if millis % 1000 else f"{at}Z"


def read_time(text: str) -> datetime:
    """Reads the time of an event."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
