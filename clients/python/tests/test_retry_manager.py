"""`RetryManager` of specification 003."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
from pathlib import Path
from typing import Any, Awaitable, Callable, Coroutine, Optional, TypeVar

import pytest

from redrive import PermanentFailure, RetryAfter
from redrive.retry import (
    AuditStream,
    IdempotencyManager,
    Jitter,
    MemoryIdempotencyStore,
    RetryCategory,
    RetryError,
    RetryManager,
    RetryPolicy,
    calculate_avg_attempts,
    calculate_success_rate,
    get_retry_manager,
    json_lines,
    set_retry_manager,
)
from redrive.testing import FakeClock, find_binary

T = TypeVar("T")


class Calls:
    """An operation that fails with the given errors, then returns `result`."""

    def __init__(self, *errors: BaseException, result: Any = "done") -> None:
        self.errors = list(errors)
        self.result = result
        self.count = 0

    async def __call__(self) -> Any:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.result


class Bench:
    """A manager on a fake clock, with its audit events."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.audit = AuditStream()
        self.manager = RetryManager(audit=self.audit, clock=self.clock, **options)

    def run(self, coro: Callable[[], Awaitable[T]], policy: Optional[RetryPolicy] = None, **options: Any) -> T:
        """Makes one call."""
        return asyncio.run(self.manager.execute_with_retry(RetryCategory.API_REQUEST, "fetch", coro, policy, **options))


EXACT = RetryPolicy(jitter_enabled=False)


def test_a_call_that_succeeds_leaves_no_event() -> None:
    bench, calls = Bench(), Calls()
    assert bench.run(calls) == "done"
    assert (calls.count, len(bench.audit), bench.clock.sleeps) == (1, 0, [])


def test_delays_double_and_attempts_are_bounded() -> None:
    bench, calls = Bench(), Calls(*[OSError("refused")] * 5)
    with pytest.raises(RetryError) as raised:
        bench.run(calls, RetryPolicy(max_attempts=4, max_delay=3.0, jitter_enabled=False))
    assert bench.clock.sleeps == [1.0, 2.0, 3.0]
    assert (raised.value.attempts, raised.value.reason, raised.value.operation) == (4, "attempts_exhausted", "fetch")
    assert isinstance(raised.value.__cause__, OSError)
    assert str(raised.value) == "RETRY_API_REQUEST: fetch: failed after 4 attempts: all attempts are used up"
    kinds = [event["event_type"] for event in bench.audit]
    assert (
        kinds.count("retry_attempt") == 3 and kinds.count("retry_exhausted") == 1 and kinds.count("retry_decision") == 4
    )


def test_the_audit_event_has_the_specified_fields() -> None:
    bench = Bench()
    bench.run(
        Calls(TimeoutError("Connection timeout")),
        EXACT,
        tenant_id="tenant-123",
        correlation_id="corr-456",
        trace_id="trace-789",
    )
    (event,) = bench.audit.filter(event_type="retry_attempt")
    assert event == {
        "event_type": "retry_attempt",
        "retry_category": "RETRY_API_REQUEST",
        "operation": "fetch",
        "attempt_number": 1,
        "max_attempts": 3,
        "delay_seconds": 1.0,
        "exception_type": "TimeoutError",
        "exception_message": "Connection timeout",
        "tenant_id": "tenant-123",
        "correlation_id": "corr-456",
        "trace_id": "trace-789",
        "timestamp": "2026-01-01T00:00:00Z",
    }
    (decision, end) = bench.audit.filter(event_type="retry_decision")
    assert decision["record"]["situation"]["outcome"] == {"failed": "timeout"}
    assert end["record"]["decision"] == {"action": "done"}


def test_equal_correlation_ids_give_equal_delays() -> None:
    def delays(**options: Any) -> list[float]:
        bench = Bench()
        bench.run(Calls(OSError(), OSError()), **options)
        return bench.clock.sleeps

    first = delays(correlation_id="corr-456")
    assert (
        first
        == delays(correlation_id="corr-456")
        == Bench().manager.delays(RetryCategory.API_REQUEST, "fetch", "corr-456")
    )
    assert all(0.9 <= first[0] <= 1.1 and 1.8 <= first[1] <= 2.2 for _ in first)
    assert len({tuple(delays()) for _ in range(10)}) > 1


def test_the_binary_verifies_the_audit_of_a_call(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    manager = RetryManager(audit=json_lines(path), clock=FakeClock())
    asyncio.run(
        manager.execute_with_retry(
            RetryCategory.KV_PUT,
            "store",
            Calls(OSError("a"), OSError("é")),
            correlation_id="c",
            additional_context={"key": "k"},
        )
    )
    done = subprocess.run([find_binary(), "audit", "verify", str(path)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "policy, error, attempts",
    [
        (RetryPolicy(non_retryable_exceptions=[ValueError]), ValueError(), 1),
        (
            RetryPolicy(non_retryable_exceptions=[ValueError], retryable_exceptions=[ValueError, OSError]),
            ValueError(),
            1,
        ),
        (RetryPolicy(retryable_exceptions=[OSError]), KeyError(), 2),
        (RetryPolicy(), PermanentFailure("no such card"), 1),
        (RetryPolicy(retryable_exceptions=[PermanentFailure]), PermanentFailure("no such card"), 2),
    ],
)
def test_exceptions_are_classified_in_the_specified_order(policy: RetryPolicy, error: Exception, attempts: int) -> None:
    bench, calls = Bench(), Calls(error)
    if attempts == 1:
        with pytest.raises(type(error)) as raised:  # an exception that is not retryable comes back as itself
            bench.run(calls, policy)
        assert raised.value is error
        assert len(bench.audit.filter(event_type="retry_exhausted")) == 0
    else:
        assert bench.run(calls, policy) == "done"
    assert calls.count == attempts


def test_a_requested_wait_is_never_undercut() -> None:
    bench = Bench()
    bench.run(Calls(RetryAfter(45.0)), RetryPolicy(jitter_enabled=False))
    assert bench.clock.sleeps == [45.0]
    (decision, _) = bench.audit.filter(event_type="retry_decision")
    assert decision["record"]["decision"]["because"] == "retry_after"


def test_a_wait_of_more_than_a_year_ends_the_call() -> None:
    with pytest.raises(RetryError, match="more than a year"):
        Bench().run(Calls(RetryAfter(1e12), RetryAfter(1e12)), EXACT)


def test_no_attempt_begins_after_the_deadline() -> None:
    bench, calls = Bench(), Calls(*[OSError()] * 9)
    with pytest.raises(RetryError) as raised:
        bench.run(calls, RetryPolicy(max_attempts=9, jitter_enabled=False, deadline=6.0))
    assert (raised.value.reason, bench.clock.sleeps) == ("deadline_exceeded", [1.0, 2.0])


def test_an_attempt_is_cancelled_at_its_timeout() -> None:
    cancelled = []

    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(RetryError) as raised:
        Bench().run(slow, RetryPolicy(max_attempts=2, base_delay=0.0, attempt_timeout=0.02))
    assert len(cancelled) == 2
    assert str(raised.value.__cause__) == "no result within 0.02 s"


def test_a_coroutine_object_runs_once() -> None:
    bench = Bench()

    async def main(coro: Coroutine[Any, Any, Any]) -> Any:
        return await bench.manager.execute_with_retry(RetryCategory.KV_GET, "get", coro)

    assert asyncio.run(main(Calls()())) == "done"
    with pytest.raises(RetryError, match="pass the coroutine function") as raised:
        asyncio.run(main(Calls(OSError("first"))()))
    assert isinstance(raised.value.__cause__, OSError)


def test_a_cancelled_call_is_not_retried() -> None:
    calls = Calls(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        Bench().run(calls)
    assert calls.count == 1


def test_a_failing_sink_does_not_fail_the_call() -> None:
    def sink(event: Any) -> None:
        raise OSError("disk full")

    manager = RetryManager(audit=sink, clock=FakeClock())
    assert asyncio.run(manager.execute_with_retry(RetryCategory.KV_GET, "get", Calls(OSError()))) == "done"


def test_categories_are_given_by_member_name_or_code() -> None:
    own = RetryPolicy(max_attempts=7)
    manager = RetryManager(policies={"RETRY_PAYMENT": own, RetryCategory.KV_GET: own})
    assert manager.get_policy("RETRY_PAYMENT").max_attempts == 7
    assert manager.get_policy("KV_GET").max_attempts == 7
    assert manager.get_policy("RETRY_KV_PUT").base_delay == 0.5
    assert manager.get_policy("RETRY_OTHER").max_attempts == 3
    with pytest.raises(ValueError, match="not a category code"):
        manager.get_policy("payment")


def test_audit_streams_count_as_the_specification_asks() -> None:
    bench = Bench()
    bench.run(Calls(OSError()), EXACT)
    with pytest.raises(RetryError):
        bench.run(Calls(*[OSError()] * 3), EXACT)
    events = bench.audit.filter(retry_category=RetryCategory.API_REQUEST.value)
    assert calculate_success_rate(events) == 0.5
    assert calculate_avg_attempts(events) == 2.5
    assert bench.audit.filter(event_type="retry_attempt").rate_per_minute == 3.0
    assert calculate_success_rate([]) is None and calculate_avg_attempts([]) is None


def test_the_manager_of_the_process_can_be_set() -> None:
    before, own = get_retry_manager(), RetryManager()
    assert get_retry_manager() is before
    set_retry_manager(own)
    assert get_retry_manager() is own
    set_retry_manager(before)


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(RetryError("RETRY_KV_GET", 3, "get")))
    assert (error.category, error.attempts, error.operation) == ("RETRY_KV_GET", 3, "get")


def test_another_kind_of_jitter() -> None:
    bench = Bench()
    bench.run(Calls(OSError()), RetryPolicy(jitter=Jitter.parse("0..1s")), correlation_id="c")
    assert 1.0 <= bench.clock.sleeps[0] <= 2.0


KEY = "charge-7"


def test_a_key_runs_the_call_once() -> None:
    bench, calls = Bench(), Calls(result={"receipt": 7})
    assert bench.run(calls, idempotency_key=KEY) == bench.run(calls, idempotency_key=KEY) == {"receipt": 7}
    assert calls.count == 1
    assert [event["action"] for event in bench.audit.filter(event_type="idempotency")] == ["record", "hit"]


def test_a_result_of_none_is_a_result() -> None:
    bench, calls = Bench(), Calls(result=None)
    bench.run(calls, idempotency_key=KEY)
    bench.run(calls, idempotency_key=KEY)
    assert calls.count == 1


def test_a_failed_call_leaves_its_key_for_the_next_one() -> None:
    bench, calls = Bench(), Calls(ValueError("declined"))
    with pytest.raises(ValueError):
        bench.run(calls, RetryPolicy(non_retryable_exceptions=[ValueError]), idempotency_key=KEY)
    found = bench.manager.idempotency_manager.store.get(KEY)
    assert found is not None and (found.state, found.error) == ("failed", "declined")
    assert bench.run(calls, idempotency_key=KEY) == "done"


def test_a_concurrent_caller_is_refused() -> None:
    bench = Bench()

    async def main() -> None:
        began, end = asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            began.set()
            await end.wait()
            return "first"

        def execute(coro: Any) -> Any:
            return bench.manager.execute_with_retry(RetryCategory.API_REQUEST, "charge", coro, idempotency_key=KEY)

        first = asyncio.ensure_future(execute(slow))
        await began.wait()
        with pytest.raises(RetryError) as raised:
            await execute(Calls())
        assert (raised.value.reason, raised.value.attempts) == ("in_progress", 0)
        end.set()
        assert await first == await execute(Calls()) == "first"

    asyncio.run(main())


def test_a_cancelled_owner_releases_its_key() -> None:
    bench = Bench()

    async def main() -> None:
        began = asyncio.Event()

        async def slow() -> None:
            began.set()
            await asyncio.sleep(30)

        call = bench.manager.execute_with_retry(RetryCategory.API_REQUEST, "charge", slow, idempotency_key=KEY)
        task = asyncio.ensure_future(call)
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bench.manager.idempotency_manager.store.get(KEY) is None

    asyncio.run(main())


def test_a_lost_lease_cancels_the_call() -> None:
    store = MemoryIdempotencyStore()
    manager = RetryManager(idempotency_manager=IdempotencyManager(store), lease=0.06, audit=AuditStream())

    async def slow() -> None:
        store.clear(KEY)
        await asyncio.sleep(30)

    with pytest.raises(RetryError) as raised:
        asyncio.run(manager.execute_with_retry(RetryCategory.API_REQUEST, "charge", slow, idempotency_key=KEY))
    assert (raised.value.reason, raised.value.attempts) == ("lease_lost", 1)


class FailingStore(MemoryIdempotencyStore):
    """Fails to store a result for the given number of times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def complete(self, *args: Any, **options: Any) -> bool:
        if self.failures > 0:
            self.failures -= 1
            raise OSError("the disk is full")
        return super().complete(*args, **options)


def test_a_store_that_fails_for_a_moment_is_asked_again() -> None:
    bench, calls = Bench(idempotency_manager=IdempotencyManager(FailingStore(2))), Calls()
    assert bench.run(calls, idempotency_key=KEY) == "done"
    assert calls.count == 1


def test_a_result_that_cannot_be_stored_is_in_the_error() -> None:
    bench, calls = Bench(idempotency_manager=IdempotencyManager(FailingStore(99))), Calls(OSError(), result=4711)
    with pytest.raises(RetryError) as raised:
        bench.run(calls, idempotency_key=KEY)
    assert (raised.value.reason, raised.value.result, raised.value.attempts) == ("result_not_recorded", 4711, 2)
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="does not work"):
        Bench().run(Calls(), idempotency_key=key)


def test_the_snippets_of_the_specification_run() -> None:
    async def main() -> None:
        retry_mgr = get_retry_manager()
        key = retry_mgr.idempotency_manager.compute_idempotency_key(
            operation="kill_switch_update",
            tenant_id="tenant-123",
            correlation_id="corr-456",
            additional_params={"switch_name": "all_execution"},
        )
        manager = retry_mgr.idempotency_manager
        assert await manager.check_idempotency(key) is None
        critical_policy = RetryPolicy(
            max_attempts=5,
            base_delay=2.0,
            max_delay=60.0,
            backoff_multiplier=1.5,
            jitter_enabled=True,
            jitter_factor=0.2,
        )
        result = await retry_mgr.execute_with_retry(
            category=RetryCategory.KV_PUT,
            operation="Store kill switch state",
            coro=Calls(),
            policy=critical_policy,
            idempotency_key=key,
        )
        assert await manager.check_idempotency(key) == result == "done"
        await manager.record_result(key, {"state": 1}, {"by": "anna"})
        assert await manager.check_idempotency(key) == {"state": 1}
        await manager.clear_idempotency(key)
        assert await manager.check_idempotency(key) is None

    asyncio.run(main())
