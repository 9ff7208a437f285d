"""Objects of the HTTP API, as dataclasses with the field names of its JSON."""

from __future__ import annotations

from .dlq import DeadGroup, DeadGroups, DeadLetter, DeadReason, DeadSummary, RetryReport
from .endpoints import (
    AttemptRecord,
    CircuitState,
    CreatedEndpoint,
    Disabled,
    DisabledReason,
    Endpoint,
    EndpointAttempt,
    EndpointSecret,
    EndpointState,
    Signing,
)
from .events import (
    Attempt,
    Event,
    EventDelivery,
    EventStatus,
    EventSummary,
    NewEvent,
    PublishedEvent,
    Retry,
    RetryPreset,
)
from .page import Page
from .replays import Replay, ReplayState
from .stats import Diagnostics, Stats, WaitingDeliveries
from .subscriptions import LeasedEvent, LeaseResults, NackOutcome, Subscription
from .tokens import CreatedToken, Scope, Token

__all__ = [
    "Attempt",
    "AttemptRecord",
    "CircuitState",
    "CreatedEndpoint",
    "CreatedToken",
    "DeadGroup",
    "DeadGroups",
    "DeadLetter",
    "DeadReason",
    "DeadSummary",
    "Diagnostics",
    "Disabled",
    "DisabledReason",
    "Endpoint",
    "EndpointAttempt",
    "EndpointSecret",
    "EndpointState",
    "Event",
    "EventDelivery",
    "EventStatus",
    "EventSummary",
    "LeaseResults",
    "LeasedEvent",
    "NackOutcome",
    "NewEvent",
    "Page",
    "PublishedEvent",
    "Replay",
    "ReplayState",
    "Retry",
    "RetryPreset",
    "RetryReport",
    "Scope",
    "Signing",
    "Stats",
    "Subscription",
    "Token",
    "WaitingDeliveries",
]
