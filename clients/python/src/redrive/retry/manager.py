"""`RetryManager`: runs calls under bounded policies, with audit events and optional idempotency."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from dataclasses import dataclass, replace
from typing import Any, Awaitable, Callable, Dict, List, Mapping, Optional, TypeVar, Union

from .._clock import SYSTEM_CLOCK, Clock
from .audit import AuditSink, bounded, log_audit, time_text
from .backoff import Identity
from .category import RetryCategory, code_of
from .decision import Decision, Outcome, Situation, decide, record
from .errors import RetryError, class_of
from .idempotency import IdempotencyManager, check_key
from .policy import RetryPolicy, policy_of

T = TypeVar("T")

log = logging.getLogger("redrive.retry")

Operation = Union[Callable[[], Awaitable[T]], Awaitable[T]]
"""A coroutine function, or a coroutine object, which can run only once."""


@dataclass(frozen=True)
class _Call:
    """One guarded call: its policy, and its names for the audit."""

    category: str
    operation: str
    policy: RetryPolicy
    idempotency_key: Optional[str]
    tenant_id: Optional[str]
    correlation_id: Optional[str]
    trace_id: Optional[str]
    context: Optional[Mapping[str, Any]]

    def event_id(self) -> str:
        """Returns what seeds the delays: a call with a correlation id or a key replays them, any other draws new ones."""
        if self.correlation_id is not None:
            # As JSON, so that no two calls share a text.
            parts = [self.category, self.tenant_id, self.correlation_id]
            return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
        return self.idempotency_key or str(uuid.uuid4())


class RetryManager:
    """Runs fallible calls under the policy of their category."""

    def __init__(
        self,
        *,
        policies: Optional[Mapping[Union[RetryCategory, str], RetryPolicy]] = None,
        audit: AuditSink = log_audit,
        idempotency_manager: Optional[IdempotencyManager] = None,
        seed: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        lease: float = 30.0,
    ) -> None:
        """Creates a manager. `lease` is how long a crashed owner keeps its idempotency key."""
        self._policies = {code_of(category): policy for category, policy in (policies or {}).items()}
        self._audit = audit
        self.idempotency_manager = idempotency_manager or IdempotencyManager()
        self._seed = seed
        self._clock = clock
        self._lease = lease

    def get_policy(self, category: Union[RetryCategory, str]) -> RetryPolicy:
        """Returns the policy of a category: its own, the specified one, or the field defaults for a custom category."""
        own = self._policies.get(code_of(category))
        return policy_of(category) if own is None else replace(own)

    async def execute_with_retry(
        self,
        category: Union[RetryCategory, str],
        operation: str,
        coro: Operation[T],
        policy: Optional[RetryPolicy] = None,
        idempotency_key: Optional[str] = None,
        tenant_id: Optional[str] = None,
        correlation_id: Optional[str] = None,
        trace_id: Optional[str] = None,
        additional_context: Optional[Dict[str, Any]] = None,
    ) -> T:
        """Runs `coro` until it succeeds or the policy allows no further attempt.

        Pass the coroutine function, not its result: a coroutine object runs once. Raises `RetryError` when the attempts are used
        up, and an exception that is not retryable as it is. With an idempotency key the call runs once and later calls get its result.
        """
        call = _Call(
            code_of(category),
            operation,
            policy or self.get_policy(category),
            None if idempotency_key is None else check_key(idempotency_key),
            tenant_id,
            correlation_id,
            trace_id,
            additional_context,
        )
        if call.idempotency_key is None:
            return await self._drive(call, coro if callable(coro) else lambda: coro, is_repeatable=callable(coro))
        return await self._once(call, call.idempotency_key, coro)

    def delays(self, category: Union[RetryCategory, str], operation: str, correlation_id: str) -> List[float]:
        """Returns the seconds between the attempts of a call with this correlation id and no tenant."""
        call = _Call(code_of(category), operation, self.get_policy(category), None, None, correlation_id, None, None)
        return call.policy.delays(Identity(self._seed, call.event_id(), operation))

    async def _once(self, call: _Call, key: str, coro: Operation[T]) -> T:
        manager, owner = self.idempotency_manager, str(uuid.uuid4())
        found = await manager.call(manager.store.begin, key, owner, self._lease)
        if found is not None:
            _discard(coro)
            if found.state != "completed":
                raise RetryError(call.category, 0, call.operation, "in_progress")
            self._audit_key(call, key, "hit")
            stored: T = found.result
            return stored
        attempts = 0

        def counted() -> Awaitable[T]:
            nonlocal attempts
            attempts += 1
            return coro() if callable(coro) else coro

        renewing = asyncio.ensure_future(self._renew(key, owner))
        working = asyncio.ensure_future(self._drive(call, counted, is_repeatable=callable(coro)))
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise RetryError(call.category, attempts, call.operation, "lease_lost")
            try:
                result = working.result()
            except Exception as error:
                await manager.call(manager.store.release, key, owner, bounded(str(error)), manager.keep)
                raise
        except BaseException:
            if not working.done():  # cancelled, or the lease was lost
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                await manager.call(manager.store.release, key, owner, None, 0.0)
            raise
        finally:
            renewing.cancel()
        await self._record_result(call, key, owner, attempts, result)
        return result

    async def _record_result(self, call: _Call, key: str, owner: str, attempts: int, result: Any) -> None:
        """Stores the result. The side effect has happened, so a store that fails for a moment is asked again."""
        manager = self.idempotency_manager
        metadata = None if call.context is None else dict(call.context)
        delays = iter(self.get_policy(RetryCategory.KV_PUT).delays(Identity(0, key, "record")))
        while True:
            cause: Optional[Exception] = None
            try:
                if await manager.call(manager.store.complete, key, owner, result, metadata, manager.keep):
                    self._audit_key(call, key, "record")
                    return
            except (TypeError, ValueError) as error:
                cause = error  # the result is not JSON
            except Exception as error:
                delay = next(delays, None)
                if delay is not None:
                    await self._clock.asleep(delay)
                    continue
                cause = error
            raise RetryError(call.category, attempts, call.operation, "result_not_recorded", result=result) from cause

    async def _renew(self, key: str, owner: str) -> None:
        """Renews the lease until it is lost."""
        manager = self.idempotency_manager
        while True:
            await asyncio.sleep(self._lease / 3)
            if not await manager.call(manager.store.extend, key, owner, self._lease):
                return

    async def _drive(self, call: _Call, operation: Callable[[], Awaitable[T]], *, is_repeatable: bool) -> T:
        policy, started_at, steady = call.policy, self._clock.now(), self._clock.monotonic()
        identity: Optional[Identity] = None
        attempt = 1
        while True:
            try:
                result = await self._attempt(call, operation, self._clock.monotonic() - steady)
            except Exception as error:
                identity = identity or Identity(self._seed, call.event_id(), call.operation)
                # A step of the wall clock during the call must not end it early or make it wait.
                now = started_at + self._clock.monotonic() - steady
                decision = self._decide(call, identity, attempt, class_of(error, policy), started_at, now)
                if decision.because == "permanent":
                    raise
                if decision.action != "retry" or decision.delay_ms is None:
                    raise self._exhausted(
                        call, attempt, error, decision.because or "attempts_exhausted", now
                    ) from error
                if not is_repeatable:
                    raise self._exhausted(call, attempt, error, "not_repeatable", now) from error
                self._audit_attempt(call, attempt, decision.delay_ms, error, now)
            else:
                if identity is not None:
                    now = started_at + self._clock.monotonic() - steady
                    self._decide(call, identity, attempt, "succeeded", started_at, now)
                return result
            await self._clock.asleep(decision.delay_ms / 1000)
            attempt += 1

    async def _attempt(self, call: _Call, operation: Callable[[], Awaitable[T]], elapsed: float) -> T:
        """Makes one attempt within its timeout and the remaining deadline."""
        policy = call.policy
        left = None if policy.deadline is None else max(policy.deadline - elapsed, 0.001)
        limits = [limit for limit in (policy.attempt_timeout, left) if limit is not None]
        if not limits:
            return await operation()
        limit = min(limits)
        try:
            return await asyncio.wait_for(operation(), limit)
        except asyncio.TimeoutError as error:
            if str(error):
                raise  # the operation's own
            raise asyncio.TimeoutError(f"no result within {limit:g} s") from error

    def _decide(
        self, call: _Call, identity: Identity, attempt: int, outcome: Outcome, started_at: float, now: float
    ) -> Decision:
        deadline = call.policy.deadline
        situation = Situation(
            max_attempts=call.policy.max_attempts,
            backoff=call.policy.backoff(),
            attempt=attempt,
            outcome=outcome,
            started_at=int(started_at * 1000),
            now=int(now * 1000),
            identity=identity,
            deadline_ms=None if deadline is None else round(deadline * 1000),
        )
        decision = decide(situation)
        event: Dict[str, Any] = {
            "event_type": "retry_decision",
            "retry_category": call.category,
            "operation": call.operation,
        }
        if call.context is not None:
            event["context"] = dict(call.context)
        self._emit({**event, "record": record(situation, decision)})
        return decision

    def _exhausted(self, call: _Call, attempts: int, error: Exception, reason: str, now: float) -> RetryError:
        kind, text = type(error).__name__, bounded(str(error))
        own = {"total_attempts": attempts, "final_exception_type": kind, "final_exception_message": text}
        self._emit(self._event(call, "retry_exhausted", own, now))
        return RetryError(call.category, attempts, call.operation, reason)

    def _audit_attempt(self, call: _Call, attempt: int, delay_ms: int, error: Exception, now: float) -> None:
        own = {
            "attempt_number": attempt,
            "max_attempts": call.policy.max_attempts,
            "delay_seconds": delay_ms / 1000,
            "exception_type": type(error).__name__,
            "exception_message": bounded(str(error)),
        }
        self._emit(self._event(call, "retry_attempt", own, now))

    def _audit_key(self, call: _Call, key: str, action: str) -> None:
        self._emit(self._event(call, "idempotency", {"idempotency_key": key, "action": action}, self._clock.now()))

    def _event(self, call: _Call, kind: str, own: Mapping[str, Any], now: float) -> Dict[str, Any]:
        return {
            "event_type": kind,
            "retry_category": call.category,
            "operation": call.operation,
            **own,
            "tenant_id": call.tenant_id,
            "correlation_id": call.correlation_id,
            "trace_id": call.trace_id,
            "timestamp": time_text(now),
        }

    def _emit(self, event: Dict[str, Any]) -> None:
        try:
            self._audit(event)
        except Exception:  # a failing sink must not fail the call
            log.exception("an audit event was not recorded: %s", event.get("event_type"))


def _discard(coro: Operation[Any]) -> None:
    """Closes a coroutine object that never runs."""
    if asyncio.iscoroutine(coro):
        coro.close()


_default: Optional[RetryManager] = None


def get_retry_manager() -> RetryManager:
    """Returns the manager of the process: the one given to `set_retry_manager`, or else a new one."""
    global _default
    if _default is None:
        _default = RetryManager()
    return _default


def set_retry_manager(manager: RetryManager) -> None:
    """Sets the manager of the process. Call it once, at the start of the program."""
    global _default
    _default = manager
