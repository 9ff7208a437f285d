"""Counts over the whole store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Optional


@dataclass(frozen=True)
class Stats:
    """Counts of events by status."""

    pending: int
    processing: int
    done: int
    dlq: int
    open_deliveries: int
    in_flight: int
    file_bytes: int
    wal_bytes: int


@dataclass(frozen=True)
class WaitingDeliveries:
    """Deliveries of one subscription that wait."""

    subscription: str
    on_record: bool
    due: int
    parked: int
    oldest_parked_at: Optional[datetime]
    retrying: int
    backlogged: int
    oldest_backlogged_at: Optional[datetime]


@dataclass(frozen=True)
class Diagnostics:
    """Work that waits, as the responding process sees it."""

    now: datetime
    overdue: int
    unreadable_endpoints: int
    waiting: list[WaitingDeliveries]


@dataclass(frozen=True)
class Health:
    """Response of a check that passed."""

    status: str
