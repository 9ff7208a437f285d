"""Replays: jobs that send dead letters of an endpoint to it again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Optional

from .._open_enum import OpenEnum


class ReplayState(OpenEnum):
    """State of a replay."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Replay:
    """A replay: a job that survives a restart of the server."""

    id: str
    endpoint: str
    since: Optional[datetime]
    until: Optional[datetime]
    per_second: float
    state: ReplayState
    replayed: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class ReplayCount:
    """Number of events that a replay would send."""

    would_replay: int


@dataclass(frozen=True)
class EventReplayed:
    """Whether an event goes to an endpoint again; `False` while its delivery is still open."""

    replayed: bool
