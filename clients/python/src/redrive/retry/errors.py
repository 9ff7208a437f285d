"""`RetryError`, and the class of a failure."""

from __future__ import annotations

import asyncio
from typing import Any

from .decision import Failed
from .policy import RetryPolicy

_TEXTS = {
    "attempts_exhausted": "all attempts are used up",
    "deadline_exceeded": "the next attempt would begin after the deadline",
    "wait_too_long": "the destination requested a delay of more than a year",
    "not_repeatable": "a coroutine object runs only once: pass the coroutine function, such as `lambda: fetch(7)`",
    "in_progress": "another caller is running it under the same idempotency key; ask again later for its result",
    "lease_lost": "cancelled, because the lease on its idempotency key was lost; look up what the new owner did",
    "result_not_recorded": "it succeeded, but its result could not be stored; a repetition would run it again",
}


class RetryError(Exception):
    """A guarded call failed; `__cause__` is the last exception of the operation."""

    def __init__(
        self,
        category: str,
        attempts: int,
        operation: str,
        reason: str = "attempts_exhausted",
        *,
        result: Any = None,
    ) -> None:
        self.category = str(getattr(category, "value", category))
        self.attempts = attempts
        self.operation = operation
        self.reason = reason
        self.result = result
        """The result of an operation that succeeded and was not recorded."""
        made = f"failed after {attempts} {'attempt' if attempts == 1 else 'attempts'}: " if attempts else ""
        super().__init__(f"{self.category}: {operation}: {made}{_TEXTS.get(reason, reason)}")

    def __reduce__(self) -> Any:
        return (RetryError, (self.category, self.attempts, self.operation, self.reason))


def class_of(error: Exception, policy: RetryPolicy) -> Failed:
    """Classifies an exception: permanent by the policy, throttled by its `retry_after`, timeout by its type, or transient."""
    if not policy.is_retryable(error):
        return Failed("permanent")
    retry_after = getattr(error, "retry_after", None)
    if isinstance(retry_after, (int, float)) and not isinstance(retry_after, bool) and retry_after >= 0:
        return Failed("throttled", round(min(retry_after, 1e15) * 1000))
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return Failed("timeout")
    return Failed("transient")
