"""Pull subscriptions and leased events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional

from .._open_enum import OpenEnum
from .retry import Retry


class NackOutcome(OpenEnum):
    """What happens to an event that was not handled."""

    FAILED = "failed"
    """Counts an attempt; retried by the policy."""
    SNOOZE = "snooze"
    """Delivered again after the delay; no attempt is charged."""
    PERMANENT = "permanent"
    """Dead-lettered at once."""


@dataclass(frozen=True)
class Subscription:
    """A pull subscription."""

    name: str
    patterns: list[str]
    lease_ms: int
    retry: Optional[Retry]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class LeasedEvent:
    """A pulled event. No other consumer gets it until the lease ends."""

    lease: str
    leased_until: datetime
    id: str
    type: str
    payload: Any
    metadata: dict[str, str]
    created_at: datetime
    attempt: int
    max_attempts: int

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt makes the event a dead letter."""
        return self.attempt >= self.max_attempts


@dataclass(frozen=True)
class LeaseResults:
    """Result of ack, nack or extend: the number of leases for which it worked, and those that were lost."""

    done: int
    lost: list[str]
