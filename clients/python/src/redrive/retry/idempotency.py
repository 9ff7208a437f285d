"""Idempotency: a store that records which operations ran, and the manager that the specification names.

A key is absent, *in progress* under an owner's lease, *completed* with its result, or *failed*. The first caller runs the operation;
later callers get the stored result. If the process dies between the side effect and the record, the next caller runs it again after
the lease: pass the key on to the destination.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Literal, Mapping, Optional, Protocol, TypeVar

from .._clock import SYSTEM_CLOCK, Clock
from .keys import compute_idempotency_key

T = TypeVar("T")

KEEP_SECONDS = 24 * 3600.0
"""How long a result is kept by default."""

ABANDONED_SECONDS = 24 * 3600.0
"""Time after the end of a lease until the key counts as absent."""

MAX_KEY_BYTES = 255


@dataclass(frozen=True)
class IdempotencyRecord:
    """Record of a key. Times are seconds since 1970."""

    state: Literal["in_progress", "completed", "failed"]
    ends_at: float
    """End of the lease, or time of expiry."""
    created_at: float
    updated_at: float
    owner: Optional[str] = None
    result: Any = None
    metadata: Optional[Mapping[str, Any]] = None
    error: Optional[str] = None

    def is_expired(self, now: float) -> bool:
        """Whether the key counts as absent."""
        return self.ends_at + (ABANDONED_SECONDS if self.state == "in_progress" else 0.0) <= now

    def may_be_claimed(self, owner: str, now: float) -> bool:
        """Whether this owner may claim the key: it is expired or failed, its lease has ended, or the owner has it."""
        if self.state == "completed":
            return self.is_expired(now)
        return self.state == "failed" or self.owner == owner or self.ends_at <= now


class IdempotencyStore(Protocol):
    """Stores keys and results. Changes by an owner take effect only while the record has that owner."""

    is_blocking: bool
    """Whether the methods wait for a disk or a network; they run on another thread then."""

    def begin(self, key: str, owner: str, lease: float) -> Optional[IdempotencyRecord]:
        """Claims the key and returns None, or returns the record of its holder or its result."""
        ...

    def extend(self, key: str, owner: str, lease: float) -> bool:
        """Renews the lease; False if the owner has lost the key."""
        ...

    def complete(
        self, key: str, owner: Optional[str], result: Any, metadata: Optional[Mapping[str, Any]], keep: float
    ) -> bool:
        """Stores the result; False if the owner has lost the key. Without an owner it is stored in any case."""
        ...

    def release(self, key: str, owner: str, error: Optional[str], keep: float) -> bool:
        """Releases the key for the next caller. With an error the record stays visible as failed."""
        ...

    def get(self, key: str) -> Optional[IdempotencyRecord]:
        """Returns the record of a key; None if it is absent or expired."""
        ...

    def clear(self, key: str) -> bool:
        """Deletes a key in any state; returns whether it existed."""
        ...


class MemoryIdempotencyStore:
    """Keys and results in memory, for tests and for programs that need no durability."""

    is_blocking = False

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: Dict[str, IdempotencyRecord] = {}

    def begin(self, key: str, owner: str, lease: float) -> Optional[IdempotencyRecord]:
        """Claims the key and returns None, or returns the record of its holder or its result."""
        now = self._clock.now()
        with self._lock:
            found = self._records.get(key)
            if found is not None and not found.may_be_claimed(owner, now):
                return found
            created_at = now if found is None or found.is_expired(now) else found.created_at
            self._records[key] = IdempotencyRecord("in_progress", now + lease, created_at, now, owner)
            return None

    def extend(self, key: str, owner: str, lease: float) -> bool:
        """Renews the lease; False if the owner has lost the key."""
        return self._as_owner(key, owner, lambda found, now: replace(found, ends_at=now + lease, updated_at=now))

    def complete(
        self, key: str, owner: Optional[str], result: Any, metadata: Optional[Mapping[str, Any]], keep: float
    ) -> bool:
        """Stores the result; False if the owner has lost the key. Without an owner it is stored in any case."""
        now = self._clock.now()
        done = IdempotencyRecord("completed", now + keep, now, now, None, result, metadata)
        if owner is not None:
            return self._as_owner(key, owner, lambda found, _: replace(done, created_at=found.created_at))
        with self._lock:
            self._records[key] = done
        return True

    def release(self, key: str, owner: str, error: Optional[str], keep: float) -> bool:
        """Releases the key for the next caller. With an error the record stays visible as failed."""

        def released(found: IdempotencyRecord, now: float) -> Optional[IdempotencyRecord]:
            if error is None:
                return None
            return IdempotencyRecord("failed", now + keep, found.created_at, now, error=error)

        return self._as_owner(key, owner, released)

    def get(self, key: str) -> Optional[IdempotencyRecord]:
        """Returns the record of a key; None if it is absent or expired."""
        with self._lock:
            found = self._records.get(key)
        return None if found is None or found.is_expired(self._clock.now()) else found

    def clear(self, key: str) -> bool:
        """Deletes a key in any state; returns whether it existed."""
        with self._lock:
            return self._records.pop(key, None) is not None

    def _as_owner(
        self, key: str, owner: str, change: Callable[[IdempotencyRecord, float], Optional[IdempotencyRecord]]
    ) -> bool:
        now = self._clock.now()
        with self._lock:
            found = self._records.get(key)
            if found is None or found.state != "in_progress" or found.owner != owner:
                return False
            changed = change(found, now)
            if changed is None:
                del self._records[key]
            else:
                self._records[key] = changed
            return True


class IdempotencyManager:
    """Computes keys, and looks up, records and clears results."""

    def __init__(self, store: Optional[IdempotencyStore] = None, *, keep: float = KEEP_SECONDS) -> None:
        self.store: IdempotencyStore = store or MemoryIdempotencyStore()
        self.keep = keep

    def compute_idempotency_key(
        self,
        operation: str,
        tenant_id: Optional[str] = None,
        correlation_id: Optional[str] = None,
        additional_params: Optional[Mapping[str, Any]] = None,
    ) -> str:
        """Computes the key of an operation and its parameters; their order does not matter."""
        return compute_idempotency_key(operation, tenant_id, correlation_id, additional_params)

    async def check_idempotency(self, idempotency_key: str) -> Optional[Any]:
        """Returns the stored result of a key; None if there is none."""
        found = await self.call(self.store.get, check_key(idempotency_key))
        return found.result if found is not None and found.state == "completed" else None

    async def record_result(self, idempotency_key: str, result: Any, metadata: Optional[Dict[str, Any]] = None) -> None:
        """Stores the result of a key, even if another caller has claimed it."""
        await self.call(self.store.complete, check_key(idempotency_key), None, result, metadata, self.keep)

    async def clear_idempotency(self, idempotency_key: str) -> None:
        """Deletes a key, so that its operation runs again."""
        await self.call(self.store.clear, check_key(idempotency_key))

    async def call(self, method: Callable[..., T], *args: Any) -> T:
        """Calls a method of the store, on another thread if it blocks."""
        return await asyncio.to_thread(method, *args) if self.store.is_blocking else method(*args)


def check_key(key: str) -> str:
    """Returns the key if it is one: 1 to 255 bytes without control characters."""
    size = len(key.encode("utf-8", "replace"))
    if not 1 <= size <= MAX_KEY_BYTES or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in key):
        raise ValueError(
            f"an idempotency key of {size} bytes does not work: use 1 to 255 bytes without control characters"
        )
    return key
