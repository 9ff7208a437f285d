"""Webhook endpoints and their attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional

from .._open_enum import OpenEnum
from .retry import Retry


class Signing(OpenEnum):
    """Signature scheme of an endpoint."""

    HMAC = "hmac"
    ED25519 = "ed25519"


class DisabledReason(OpenEnum):
    """Reason for which an endpoint is disabled."""

    BY_HAND = "by_hand"
    GONE = "gone"
    FAILING = "failing"


class CircuitState(OpenEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class Disabled:
    """Reason and time of disabling an endpoint."""

    reason: DisabledReason
    since: datetime


@dataclass(frozen=True)
class EndpointState:
    """Current health of an endpoint."""

    circuit: Optional[CircuitState]
    circuit_until: Optional[datetime]
    throttled_until: Optional[datetime]
    reduced_rate: Optional[float]
    failing_since: Optional[datetime]


@dataclass(frozen=True)
class Endpoint:
    """An endpoint, without its secrets."""

    id: str
    version: int
    url: str
    patterns: list[str]
    description: str
    enabled: bool
    disabled: Optional[Disabled]
    header_names: list[str]
    retry: Optional[Retry]
    timeout_ms: int
    per_second: Optional[float]
    concurrency: int
    created_at: datetime
    updated_at: datetime
    state: EndpointState


@dataclass(frozen=True)
class CreatedEndpoint(Endpoint):
    """A new endpoint with its secret: `whsec_…`, or the public key `whpk_…`."""

    secret: str


@dataclass(frozen=True)
class EndpointSecret:
    """A secret of an endpoint. Messages are signed with every secret that has not expired."""

    secret: str
    created_at: datetime
    expires_at: Optional[datetime]


@dataclass(frozen=True)
class AttemptRecord:
    """An HTTP request to an endpoint and its response."""

    url: str
    status: Optional[int]
    latency_ms: int
    headers: dict[str, str]
    body: Optional[str]
    body_base64: Optional[str]
    is_cut: bool
    failed: Optional[str]


@dataclass(frozen=True)
class EndpointAttempt:
    """One attempt to deliver a message."""

    event_id: str
    event_type: str
    attempt: int
    started_at: datetime
    duration_ms: int
    succeeded: bool
    class_: Optional[str]
    """Class of the failure; `None` for a success."""
    delay_ms: int
    error: Optional[str]
    decision: Any
    request: Optional[AttemptRecord]
