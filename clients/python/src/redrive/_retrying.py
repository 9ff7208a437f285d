"""Decides whether and when the client repeats a request.

A request with a key, an id or no effect is safe to repeat after any temporary failure. Other requests are repeated only if the server
did not execute them. The waits grow exponentially with jitter; `Retry-After` is a minimum.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Optional

from .errors import ConnectionFailedError, RedriveError
from .retry.backoff import Backoff, Identity, Jitter, to_millionths

REFUSED = ("rate_limited", "in_progress", "request_timeout", "unavailable", "shutting_down")
"""Codes which say that nothing was done: any request may be repeated."""


@dataclass(frozen=True)
class RetryOptions:
    """Bounds of the repetitions of one request. Lengths of time are seconds."""

    max_attempts: int = 5
    """Attempts in total; 1 for none after the first."""
    base_delay: float = 0.1
    """Wait before the second attempt."""
    max_delay: float = 5.0
    """Longest wait, unless the server asks for more."""
    multiplier: float = 2.0
    """Factor between one wait and the next."""
    jitter: str = "equal"
    """Random spread of waits: `none`, `10%`, `full`, `equal`. Clients that failed together do not come back together."""
    max_retry_after: float = 60.0
    """A longer `Retry-After` is not waited for: the error is raised."""
    deadline: float = 120.0
    """No repetition begins later than this after the first attempt."""

    def backoff(self) -> Backoff:
        """Returns the waits as the retry core computes them."""
        multiplier = to_millionths(self.multiplier)
        if multiplier is None or multiplier < 1_000_000:
            raise ValueError(f"a multiplier of {self.multiplier} does not work: set it from 1 up")
        return Backoff(
            round(self.base_delay * 1000), multiplier, round(self.max_delay * 1000), Jitter.parse(self.jitter)
        )


def wait_before_retry(
    options: RetryOptions, attempt: int, error: RedriveError, *, is_safe: bool, elapsed: float
) -> Optional[float]:
    """Returns the seconds to wait after failed attempt number `attempt`, or None to raise the error."""
    if attempt >= options.max_attempts or not may_repeat(error, is_safe=is_safe):
        return None
    requested = error.retry_after
    if requested is not None and requested > options.max_retry_after:
        return None
    minimum = None if requested is None else -int(-requested * 1000 // 1)
    draw = Identity(random.getrandbits(64), "", "")
    wait = options.backoff().delay_ms(attempt + 1, draw, minimum) / 1000
    return None if elapsed + wait > options.deadline else wait


def may_repeat(error: RedriveError, *, is_safe: bool) -> bool:
    """Whether the same request may succeed later, and a repetition does no harm."""
    if isinstance(error, ConnectionFailedError):
        return is_safe or error.unsent
    if error.code in REFUSED or error.status == 429:
        return True
    return is_safe and error.status is not None and error.status >= 500
