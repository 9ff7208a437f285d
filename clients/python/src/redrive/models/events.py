"""Events, their deliveries and their attempts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping, Optional, Union
from uuid import UUID

from .._decode import format_time
from .._json import Seconds, millis
from .._open_enum import OpenEnum
from .endpoints import AttemptRecord
from .retry import Retry as Retry
from .retry import RetryPreset as RetryPreset


class EventStatus(OpenEnum):
    """Status of an event or of one of its deliveries."""

    PENDING = "pending"
    PROCESSING = "processing"
    DONE = "done"
    DLQ = "dlq"


@dataclass(frozen=True)
class NewEvent:
    """An event to publish."""

    type: str
    payload: Any
    id: Union[str, UUID, None] = None
    """An id of the publisher's own: publishing an id twice stores one event."""
    metadata: Mapping[str, str] = field(default_factory=lambda: {})
    due_at: Optional[datetime] = None
    """The event is not handled before this time."""
    delay: Optional[Seconds] = None
    """The event is not handled before this many seconds have passed. Excludes `due_at`."""
    retry: Optional[Retry] = None
    """Overrides the retry policies of all subscriptions for this event."""

    def to_json(self) -> dict[str, Any]:
        """Returns the object of the request."""
        body: dict[str, Any] = {"type": self.type, "payload": self.payload}
        if self.id is not None:
            body["id"] = str(self.id)
        if self.metadata:
            body["metadata"] = dict(self.metadata)
        if self.due_at is not None:
            body["due_at"] = format_time(self.due_at)
        if self.delay is not None:
            body["delay_ms"] = millis(self.delay)
        if self.retry is not None:
            body["retry"] = self.retry.to_json()
        return body


@dataclass(frozen=True)
class PublishedEvent:
    """An event on stable storage; `duplicate` says that its id was on record already."""

    id: str
    duplicate: bool


@dataclass(frozen=True)
class EventSummary:
    """An event in a list: without payload, deliveries and attempts."""

    id: str
    type: str
    status: EventStatus
    metadata: dict[str, str]
    retry_count: int
    created_at: datetime
    updated_at: datetime
    due_at: Optional[datetime]
    errors: list[str]


@dataclass(frozen=True)
class EventDelivery:
    """The work of one subscription for one event."""

    subscription: str
    status: EventStatus
    retry_count: int
    due_at: Optional[datetime]
    errors: list[str]


@dataclass(frozen=True)
class Attempt:
    """A recorded attempt: every failed one, and all of webhooks."""

    attempt: int
    subscription: str
    started_at: datetime
    duration_ms: int
    class_: Optional[str]
    """Class of the failure; `None` for a success."""
    delay_ms: int
    error: Optional[str]
    decision: Any
    request: Optional[AttemptRecord]
    detail: Any


@dataclass(frozen=True)
class Event:
    """An event with payload, deliveries and attempts."""

    id: str
    type: str
    status: EventStatus
    metadata: dict[str, str]
    retry_count: int
    created_at: datetime
    updated_at: datetime
    due_at: Optional[datetime]
    errors: list[str]
    payload: Any
    deliveries: list[EventDelivery]
    attempts: list[Attempt]
