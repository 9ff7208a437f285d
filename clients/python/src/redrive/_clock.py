"""The time that clients, workers and the retry manager use. Tests replace it with `redrive.testing.FakeClock`."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Returns seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Blocks the thread."""
        ...

    async def asleep(self, seconds: float) -> None:
        """Suspends the task."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Returns seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Blocks the thread."""
        time.sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        """Suspends the task."""
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
