"""Turns the outcome of a handler into an ack or a nack, and batches them.

Both workers share this module; it does no input or output.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Optional

from ._json import Seconds, millis, seconds
from .models.subscriptions import LeasedEvent, NackOutcome

log = logging.getLogger("redrive.worker")

_WORKERS = ("redrive._async.worker", "redrive._sync.worker")
"""Modules whose frames are left out of tracebacks."""

MAX_REASON_CHARS = 4096

MAX_BATCH = 100
"""Leases in one request, and events in one pull."""

PULL_DELAY_SECONDS = 0.01
"""How long a pull for few free slots waits for more of them, so that short handlers share a request."""

MAX_DELAY_MS = 86_400_000

Backoff = Callable[[LeasedEvent, BaseException], Optional[float]]
"""Seconds before the next attempt, or None for the retry policy of the server."""


class Snooze(Exception):
    """Asks for the event again after `delay` seconds, without an attempt charged."""

    def __init__(self, delay: Seconds, reason: Optional[str] = None) -> None:
        super().__init__(reason or "snoozed")
        self.delay_ms = min(max(millis(delay), 1), MAX_DELAY_MS)
        self.reason = reason


class PermanentFailure(Exception):
    """Makes the event a dead letter at once: no attempt can succeed. A retry manager does not retry it either."""

    retryable = False


class RetryAfter(Exception):
    """Fails the attempt; the next one begins not before `delay` seconds."""

    def __init__(self, delay: Seconds, reason: Optional[str] = None) -> None:
        super().__init__(reason or "asked to wait")
        self.retry_after = seconds(delay)
        self.delay_ms = min(max(millis(delay), 0), MAX_DELAY_MS)


@dataclass(frozen=True)
class Nack:
    """How a delivery failed."""

    outcome: NackOutcome
    delay_ms: Optional[int]
    reason: Optional[str]


@dataclass(frozen=True)
class Settlement:
    """The end of one lease: an ack, or a nack."""

    lease: str
    nack: Optional[Nack] = None


@dataclass(frozen=True)
class Batch:
    """Leases that one request settles."""

    leases: list[str]
    nack: Optional[Nack]


RELEASE = Nack(NackOutcome.SNOOZE, 1, None)
"""Releases a delivery whose handler has not begun; no attempt is charged."""


def failed(delivery: LeasedEvent, error: BaseException, backoff: Optional[Backoff]) -> Settlement:
    """Returns the nack for an exception of a handler."""
    if isinstance(error, Snooze):
        return Settlement(delivery.lease, Nack(NackOutcome.SNOOZE, error.delay_ms, error.reason))
    if isinstance(error, PermanentFailure):
        return Settlement(delivery.lease, Nack(NackOutcome.PERMANENT, None, reason_of(error)))
    if isinstance(error, RetryAfter):
        return Settlement(delivery.lease, Nack(NackOutcome.FAILED, error.delay_ms, reason_of(error)))
    return Settlement(delivery.lease, Nack(NackOutcome.FAILED, _delay_ms(delivery, error, backoff), reason_of(error)))


def _delay_ms(delivery: LeasedEvent, error: BaseException, backoff: Optional[Backoff]) -> Optional[int]:
    if backoff is None:
        return None
    try:
        wait = backoff(delivery, error)
        return None if wait is None else min(max(millis(wait), 0), MAX_DELAY_MS)
    except Exception:
        log.exception("the backoff of %s failed: the policy of the subscription decides", delivery.id)
        return None


def reason_of(error: BaseException) -> str:
    """Describes an exception in at most 4096 characters: its message first, then the end of its traceback."""
    head = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _WORKERS:
        frames = frames.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frames)).strip()
    text = f"{head}\n\n{trace}" if frames is not None else head
    if len(text) > MAX_REASON_CHARS:
        head = head[: MAX_REASON_CHARS // 2]
        tail = MAX_REASON_CHARS - len(head) - len("\n\n…")
        text = f"{head}\n\n…{trace[-tail:]}"
    # PostgreSQL stores no NUL, and a lone surrogate has no UTF-8 form.
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def batches(settlements: Iterable[Settlement]) -> Iterator[Batch]:
    """Groups settlements into requests of at most 100 leases; acks come first."""
    groups: dict[Optional[Nack], list[str]] = {}
    for settlement in settlements:
        groups.setdefault(settlement.nack, []).append(settlement.lease)
    for nack in sorted(groups, key=lambda nack: nack is not None):
        leases = groups[nack]
        for start in range(0, len(leases), MAX_BATCH):
            yield Batch(leases[start : start + MAX_BATCH], nack)


class InFlightLeases:
    """Leases of pulled events that are not settled, with the times of their last extension. Not thread-safe."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._renewed_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._renewed_at)

    def __contains__(self, lease: str) -> bool:
        return lease in self._renewed_at

    def add(self, leases: Iterable[str], at: float) -> None:
        """Adds leases that were granted at this time."""
        self._renewed_at.update((lease, at) for lease in leases)

    def remove(self, leases: Iterable[str]) -> None:
        """Removes leases that are settled or lost."""
        for lease in leases:
            self._renewed_at.pop(lease, None)

    def due(self, now: float) -> list[str]:
        """Returns the leases to extend now: a third of their time has passed."""
        limit = now - self._lease / 3
        return [lease for lease, at in self._renewed_at.items() if at <= limit]

    def renewed(self, leases: Iterable[str], at: float) -> None:
        """Notes an extension that was requested at this time."""
        for lease in leases:
            if lease in self._renewed_at:
                self._renewed_at[lease] = at

    def ended(self, leases: Iterable[str], now: float) -> list[str]:
        """Returns those of the leases whose time has passed without an extension."""
        limit = now - self._lease
        return [lease for lease in leases if self._renewed_at.get(lease, limit) <= limit]


def chunks(leases: list[str]) -> Iterator[list[str]]:
    """Splits leases into requests."""
    for start in range(0, len(leases), MAX_BATCH):
        yield leases[start : start + MAX_BATCH]
