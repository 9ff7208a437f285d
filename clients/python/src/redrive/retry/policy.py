"""Retry policies: number of attempts, delays, timeouts and which exceptions are retried."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import List, Optional, Union

from .backoff import Backoff, Identity, Jitter, to_millionths
from .category import RetryCategory, code_of

MAX_ATTEMPTS = 1_000_000
MAX_SECONDS = 366 * 24 * 3600
MAX_MULTIPLIER = 1000.0


@dataclass
class RetryPolicy:
    """Number of attempts, delays between them, time limits and error rules of a guarded call."""

    max_attempts: int = 3
    base_delay: float = 1.0
    """Seconds before the second attempt."""
    max_delay: float = 30.0
    """Longest delay in seconds."""
    backoff_multiplier: float = 2.0
    """Factor between consecutive delays."""
    jitter_enabled: bool = True
    jitter_factor: float = 0.1
    """0.1 is ±10 %."""
    retryable_exceptions: List[type] = field(default_factory=lambda: [Exception])
    non_retryable_exceptions: List[type] = field(default_factory=lambda: [])
    attempt_timeout: Optional[float] = None
    """Time limit of one attempt in seconds; the attempt is cancelled."""
    deadline: Optional[float] = None
    """Time limit of all attempts and delays together in seconds."""
    jitter: Optional[Jitter] = None
    """Another kind of jitter, in place of `jitter_factor`."""

    def __post_init__(self) -> None:
        """Checks the settings. Raises `ValueError` with what to change."""
        if self.max_attempts < 1:
            raise ValueError("max_attempts is 0, so no attempt would be made: set it to 1 for no retries")
        if self.max_attempts > MAX_ATTEMPTS:
            raise ValueError(f"{self.max_attempts} attempts are more than {MAX_ATTEMPTS}: lower max_attempts")
        multiplier = to_millionths(self.backoff_multiplier)
        if multiplier is None or multiplier < 1_000_000 or self.backoff_multiplier > MAX_MULTIPLIER:
            raise ValueError(
                f"a multiplier of {self.backoff_multiplier} does not work: set it from 1 (constant delay) to 1000"
            )
        for name in ("base_delay", "max_delay", "attempt_timeout", "deadline"):
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value} seconds: write a number of seconds from 0 up")
            if value > MAX_SECONDS:
                raise ValueError(f"{name} of {value} s is longer than a year: shorten it")
            if abs(round(value * 1000) / 1000 - value) > 1e-9:
                raise ValueError(f"{name} of {value} s is not a whole number of milliseconds: round it")
            if value == 0 and name in ("attempt_timeout", "deadline"):
                raise ValueError(f"{name} is 0, so no attempt could ever succeed: leave it out for no limit")
        if self.max_delay < self.base_delay:
            raise ValueError(
                f"max_delay {self.max_delay} is below base_delay {self.base_delay}: raise max_delay or lower base_delay"
            )
        self.backoff()  # checks the jitter

    def backoff(self) -> Backoff:
        """Returns the delays of the policy."""
        jitter = self.jitter
        if jitter is None:
            jitter = Jitter.proportional(self.jitter_factor) if self.jitter_enabled else Jitter("none")
        return Backoff(
            round(self.base_delay * 1000),
            to_millionths(self.backoff_multiplier) or 0,
            round(self.max_delay * 1000),
            jitter,
        )

    def delays(self, identity: Identity) -> list[float]:
        """Returns the seconds before the second, third … last attempt."""
        backoff = self.backoff()
        return [backoff.delay_ms(attempt, identity) / 1000 for attempt in range(2, self.max_attempts + 1)]

    def is_retryable(self, error: BaseException) -> bool:
        """Whether this exception is retried: non-retryable first, then retryable, then its own mark; by default yes."""
        if not isinstance(error, Exception):
            return False  # CancelledError, KeyboardInterrupt, SystemExit
        if isinstance(error, tuple(self.non_retryable_exceptions)):
            return False
        # The default entry `Exception` is no rule of its own: it does not override a mark.
        named = tuple(kind for kind in self.retryable_exceptions if kind not in (Exception, BaseException))
        if isinstance(error, named):
            return True
        return getattr(error, "retryable", True) is not False


def _policy(max_attempts: int, base_delay: float, max_delay: float, attempt_timeout: float) -> RetryPolicy:
    return RetryPolicy(max_attempts, base_delay, max_delay, attempt_timeout=attempt_timeout)


def policy_of(category: Union[RetryCategory, str]) -> RetryPolicy:
    """Returns the specified policy of a category; the field defaults for a custom one."""
    numbers = _MATRIX.get(code_of(category))
    return RetryPolicy() if numbers is None else _policy(*numbers)


# attempts, base delay, longest delay, attempt timeout. The timeouts are those of the Rust core.
_MATRIX: dict[str, tuple[int, float, float, float]] = {
    RetryCategory.NATS_CONNECT.value: (5, 1.0, 30.0, 10.0),
    RetryCategory.NATS_PUBLISH.value: (3, 0.5, 10.0, 5.0),
    RetryCategory.NATS_SUBSCRIBE.value: (3, 0.5, 10.0, 5.0),
    RetryCategory.NATS_STREAM_CREATE.value: (2, 2.0, 60.0, 30.0),
    RetryCategory.KV_CREATE.value: (2, 1.0, 30.0, 30.0),
    RetryCategory.KV_GET.value: (3, 0.5, 10.0, 5.0),
    RetryCategory.KV_PUT.value: (3, 0.5, 10.0, 5.0),
    RetryCategory.KV_DELETE.value: (2, 1.0, 30.0, 5.0),
    RetryCategory.EXECUTION_INTENT.value: (2, 2.0, 60.0, 60.0),
    RetryCategory.EXECUTION_CONTAINMENT.value: (2, 2.0, 60.0, 60.0),
    RetryCategory.EXECUTION_EXPIRATION.value: (1, 1.0, 30.0, 300.0),
    RetryCategory.APPROVAL_CHECK.value: (3, 1.0, 30.0, 10.0),
    RetryCategory.APPROVAL_GRANT.value: (2, 2.0, 60.0, 30.0),
    RetryCategory.REPLAY_PROCESSING.value: (1, 1.0, 30.0, 3600.0),
    RetryCategory.REPLAY_VALIDATION.value: (2, 1.0, 30.0, 300.0),
    RetryCategory.API_REQUEST.value: (3, 1.0, 30.0, 30.0),
    RetryCategory.API_VALIDATION.value: (2, 0.5, 10.0, 5.0),
}
