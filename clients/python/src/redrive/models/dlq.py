"""Dead letters and their groups."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional

from .._open_enum import OpenEnum
from .events import Attempt


class DeadReason(OpenEnum):
    """Reason for which an event was dead-lettered."""

    PERMANENT = "permanent"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    BUDGET_SPENT = "budget_spent"
    WAIT_TOO_LONG = "wait_too_long"
    NO_SUBSCRIPTION = "no_subscription"


@dataclass(frozen=True)
class DeadSummary:
    """A dead letter in a list: without payload and attempts."""

    id: str
    type: str
    subscription: Optional[str]
    metadata: dict[str, str]
    retry_count: int
    created_at: datetime
    dlq_at: datetime
    reason: DeadReason
    errors: list[str]


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter with payload and attempts."""

    id: str
    type: str
    subscription: Optional[str]
    metadata: dict[str, str]
    retry_count: int
    created_at: datetime
    dlq_at: datetime
    reason: DeadReason
    errors: list[str]
    payload: Any
    attempts: list[Attempt]


@dataclass(frozen=True)
class DeadGroup:
    """Dead letters with the same target and error fingerprint."""

    target: Optional[str]
    fingerprint: str
    count: int
    types: list[str]
    example: str
    example_id: str
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class DeadGroups:
    """Groups of dead letters, the largest first."""

    data: list[DeadGroup]
    has_more: bool


@dataclass(frozen=True)
class RetryReport:
    """Result of redriving by filter; pass `next` as `after` to continue."""

    matched: int
    retried: int
    next: Optional[str]


@dataclass(frozen=True)
class RetriedDead:
    """An event that was redriven."""

    id: str


@dataclass(frozen=True)
class Purged:
    """Number of deleted dead letters."""

    purged: int
