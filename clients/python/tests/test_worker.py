"""Both workers against the real binary."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

from cluster import AnyServer
from redrive import LeasedEvent, NewEvent, NotFoundError, PermanentFailure, Redrive, Retry, RetryAfter, Snooze
from redrive.testing import RedriveTestServer, delivery
from support import eventually, unique
from workers import FAST, Recorder, Subscribed, working


def test_events_are_handled_and_acked(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    ids = [event.id for event in orders.client.publish_many(NewEvent(orders.type, n) for n in range(120))]
    record = Recorder()
    with working(flavour, server, orders.name, record, concurrency=8):
        orders.all_ended(ids)
    assert sorted(event.payload for event in record.events) == list(range(120))
    assert all(event.attempt == 1 and event.max_attempts == 5 for event in record.events)


def test_handlers_run_concurrently_up_to_the_limit(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    lock, running, most = threading.Lock(), 0, 0
    all_run = threading.Barrier(4, timeout=20.0)

    def slow(_: LeasedEvent) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_run.wait()
        time.sleep(0.05)
        with lock:
            running -= 1

    ids = [orders.publish(n) for n in range(12)]
    with working(flavour, server, orders.name, slow, concurrency=4):
        orders.all_ended(ids)
    assert most == 4


def test_long_handlers_leave_the_other_slots_in_use(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    end = threading.Event()
    record = Recorder(lambda event: end.wait(20) if event.payload == "long" else None)
    with working(flavour, server, orders.name, record, concurrency=5):
        try:
            for _ in range(4):
                orders.publish("long")
            eventually(lambda: len(record.events) == 4)
            for _ in range(3):
                orders.ended(orders.publish("short"))
        finally:
            end.set()


def test_acks_are_batched(server: AnyServer, orders: Subscribed) -> None:
    ids = [event.id for event in orders.client.publish_many(NewEvent(orders.type, n) for n in range(300))]
    with server.client() as client:
        requests: list[int] = []
        ack = client.subscriptions.ack

        def counted(name: str, leases: Any, **options: Any) -> Any:
            requests.append(len(leases))
            return ack(name, leases, **options)

        client.subscriptions.ack = counted  # type: ignore[method-assign]
        with client.worker(orders.name, lambda _: None, concurrency=50):
            orders.all_ended(ids)
    assert sum(requests) == 300 and len(requests) < 100


def test_an_exception_is_recorded_with_its_traceback_and_retried(
    flavour: str, server: AnyServer, orders: Subscribed
) -> None:
    def fail_once(event: LeasedEvent) -> None:
        if event.attempt == 1:
            raise KeyError("no such order")

    with working(flavour, server, orders.name, fail_once):
        event = orders.ended(orders.publish())
    (attempt,) = [attempt for attempt in event.attempts if attempt.error]
    assert attempt.error is not None
    assert attempt.error.startswith("KeyError: 'no such order'\n\nTraceback")
    assert "in fail_once" in attempt.error and 'raise KeyError("no such order")' in attempt.error


def test_a_handler_that_always_fails_makes_a_dead_letter(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    def fail(event: LeasedEvent) -> None:
        raise ValueError("x" * 10_000 + f"\0\ud800 attempt {event.attempt}")

    record = Recorder(fail)
    with working(flavour, server, orders.name, record):
        event = orders.ended(orders.publish(), "dlq")
    assert [leased.attempt for leased in record.events] == [1, 2, 3, 4, 5]
    assert [leased.is_last_attempt for leased in record.events] == [False, False, False, False, True]
    assert len(event.errors) == 5 and all(len(error) <= 4096 for error in event.errors)


def test_a_requested_wait_and_a_backoff_delay_the_next_attempt(
    flavour: str, server: AnyServer, orders: Subscribed
) -> None:
    def fail(event: LeasedEvent) -> None:
        if event.attempt == 1:
            raise RetryAfter(0.4, "the bank is busy")
        if event.attempt == 2:
            raise OSError("reset")

    record = Recorder(fail)
    with working(
        flavour, server, orders.name, record, backoff=lambda event, error: 0.6 if isinstance(error, OSError) else None
    ):
        orders.ended(orders.publish())
    first, second, third = record.times
    assert 0.4 <= second - first < 10.0 and 0.6 <= third - second < 10.0


def test_a_snooze_charges_no_attempt(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    def snooze(event: LeasedEvent) -> None:
        if len(record.events) <= 3:
            raise Snooze(0.2, "not before noon")

    record = Recorder(snooze)
    with working(flavour, server, orders.name, record):
        event = orders.ended(orders.publish())
    assert [leased.attempt for leased in record.events] == [1, 1, 1, 1]
    assert event.retry_count == 0
    assert record.times[1] - record.times[0] >= 0.2


def test_a_permanent_failure_is_a_dead_letter_at_once(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    def refuse(event: LeasedEvent) -> None:
        raise PermanentFailure("the card is stolen")

    record = Recorder(refuse)
    with working(flavour, server, orders.name, record):
        id = orders.publish()
        orders.ended(id, "dlq")
    (letter,) = orders.client.dlq.get(id)
    assert len(record.events) == 1 and letter.reason == "permanent"
    assert "the card is stolen" in letter.errors[0]


def test_the_lease_of_a_long_handler_is_extended(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    record = Recorder(lambda _: time.sleep(3.0))
    with working(flavour, server, orders.name, record, lease=1.5):
        orders.ended(orders.publish())
    assert len(record.events) == 1


def test_a_late_ack_is_refused(orders: Subscribed) -> None:
    orders.publish()
    pull = orders.client.subscriptions.pull
    (late,) = pull(orders.name, wait=10, lease=0.1)
    (again,) = pull(orders.name, wait=10)
    assert (again.id, again.attempt) == (late.id, 2)
    settle = orders.client.subscriptions
    for refused in (
        settle.ack(orders.name, [late.lease]),
        settle.nack(orders.name, [late.lease]),
        settle.extend(orders.name, [late.lease], lease=9),
    ):
        assert (refused.done, refused.lost) == (0, [late.lease])
    assert settle.ack(orders.name, [again.lease]).done == 1
    orders.ended(again.id)


def test_two_leases_of_one_delivery_in_one_request_are_told_apart(orders: Subscribed) -> None:
    orders.publish()
    pull = orders.client.subscriptions.pull
    (late,) = pull(orders.name, wait=10, lease=0.1)
    (again,) = pull(orders.name, wait=10)
    assert orders.client.subscriptions.ack(orders.name, [late.lease, again.lease]).lost == [late.lease]
    orders.ended(again.id)


def test_a_lost_lease_does_not_disturb_the_worker(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    """A server that is stopped for longer than a lease charges the attempt; the late ack changes nothing."""

    def freeze(event: LeasedEvent) -> None:
        if event.attempt == 1:
            assert frozen.pid is not None
            os.kill(frozen.pid, signal.SIGSTOP)
            time.sleep(1.2)
            os.kill(frozen.pid, signal.SIGCONT)

    with RedriveTestServer() as frozen, frozen.client() as client:
        own = Subscribed(client, FAST)
        record = Recorder(freeze)
        with working(flavour, frozen, own.name, record, lease=0.6):
            own.ended(own.publish())
            second = own.publish()
            own.ended(second)
    assert record.events[-1].id == second


def test_no_event_is_lost_when_the_server_is_killed(flavour: str) -> None:
    with RedriveTestServer() as server, server.client() as client:
        own = Subscribed(client, Retry(max_attempts=50, base_delay_ms=10, max_delay_ms=50, jitter="none"))
        ids = [event.id for event in client.publish_many(NewEvent(own.type, n) for n in range(200))]
        record = Recorder(lambda _: time.sleep(0.01))
        with working(flavour, server, own.name, record, concurrency=8, lease=1.5):
            for handled in (40, 100):
                eventually(lambda handled=handled: len(record.events) >= handled)  # type: ignore[misc]
                server.restart(crash=True)
            own.all_ended(ids)
        assert {event.id for event in record.events} == set(ids)
        assert client.stats().dlq == 0


def test_a_lease_survives_a_restart_of_the_server() -> None:
    with RedriveTestServer() as server, server.client() as client:
        own = Subscribed(client, FAST)
        id = own.publish()
        (leased,) = client.subscriptions.pull(own.name, wait=10)
        server.restart(crash=True)
        assert client.subscriptions.extend(own.name, [leased.lease], lease=30).done == 1
        assert client.subscriptions.ack(own.name, [leased.lease]).done == 1
        own.ended(id)


def test_a_running_handler_keeps_its_lease_when_the_server_is_killed(flavour: str) -> None:
    with RedriveTestServer() as server, server.client() as client:
        own = Subscribed(client, FAST)
        record = Recorder(lambda _: server.restart(crash=True))
        with working(flavour, server, own.name, record, lease=5.0):
            id = own.publish()
            own.ended(id)
        assert [event.attempt for event in record.events] == [1]
        assert client.events.get(id).retry_count == 0


def test_two_workers_share_the_events(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    one, other = Recorder(lambda _: time.sleep(0.005)), Recorder(lambda _: time.sleep(0.005))
    ids = [event.id for event in orders.client.publish_many(NewEvent(orders.type, n) for n in range(100))]
    with (
        working(flavour, server, orders.name, one, concurrency=4),
        working(flavour, server, orders.name, other, concurrency=4),
    ):
        orders.all_ended(ids)
    assert sorted(event.payload for event in one.events + other.events) == list(range(100))
    assert one.events and other.events


def test_the_worker_creates_its_subscription(flavour: str, server: AnyServer, client: Redrive) -> None:
    name = unique("worker")
    record = Recorder()
    with working(flavour, server, name, record, patterns=[name + ".*"], retry=FAST, lease=12.0):
        subscription = client.subscriptions.get(name)
        assert (
            subscription.lease_ms == 12_000 and subscription.retry is not None and subscription.retry.max_attempts == 5
        )
        client.publish(name + ".created", 7)
        eventually(lambda: record.events)


def test_stop_waits_for_handlers_and_releases_the_others(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    ids = [event.id for event in orders.client.publish_many(NewEvent(orders.type, n) for n in range(6))]
    record = Recorder(lambda _: time.sleep(0.5))
    with working(flavour, server, orders.name, record, concurrency=2, prefetch=4, lease=60.0):
        eventually(lambda: len(record.events) == 2)
    assert len(record.events) == 2
    for event in record.events:
        orders.ended(event.id)
    rest = Recorder()
    began = time.monotonic()
    with working(flavour, server, orders.name, rest):
        orders.all_ended(ids)
    assert time.monotonic() - began < 10, "the events that had not begun did not wait for their lease"
    assert [event.attempt for event in rest.events] == [1] * 4


def test_a_subscription_that_does_not_exist_ends_run(server: AnyServer) -> None:
    with server.client() as client, pytest.raises(NotFoundError):
        client.worker("none", lambda _: None).run()

    async def main() -> None:
        async def handle(_: LeasedEvent) -> None: ...

        async with server.async_client() as client:
            await client.worker("none", handle).run()

    with pytest.raises(NotFoundError):
        asyncio.run(main())


def test_a_handler_may_stop_the_worker(server: AnyServer, orders: Subscribed) -> None:
    with server.client() as client:

        @client.worker(orders.name, concurrency=2)
        def worker(event: LeasedEvent) -> None:
            worker.stop()

        id = orders.publish()
        worker.run()
        orders.ended(id)

    async def main() -> str:
        async with server.async_client() as client:

            @client.worker(orders.name, concurrency=2)
            async def worker(event: LeasedEvent) -> None:
                await worker.stop()

            id = (await client.publish(orders.type, 7)).id
            await worker.run()
            return id

    orders.ended(asyncio.run(main()))


def test_a_cancellation_inside_a_handler_is_a_failure(server: AnyServer, orders: Subscribed) -> None:
    async def main() -> str:
        attempts: list[int] = []
        async with server.async_client() as client:

            async def handle(event: LeasedEvent) -> None:
                attempts.append(event.attempt)
                if event.attempt == 1:
                    raise asyncio.CancelledError

            async with client.worker(orders.name, handle, concurrency=1):
                id = (await client.publish(orders.type, 7)).id
                while len(attempts) < 2:
                    await asyncio.sleep(0.01)
            return id

    assert orders.ended(asyncio.run(main())).errors == ["RuntimeError: the handler was cancelled"]


def test_a_cancelled_run_stops_the_handlers(server: AnyServer, orders: Subscribed) -> None:
    cancelled: list[str] = []

    async def main() -> None:
        async with server.async_client() as client:
            began = asyncio.Event()

            async def handle(event: LeasedEvent) -> None:
                began.set()
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    cancelled.append(event.id)
                    raise

            running = asyncio.ensure_future(client.worker(orders.name, handle).run())
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    id = orders.publish()
    asyncio.run(asyncio.wait_for(main(), 10))
    assert cancelled == [id]


def test_a_decorated_handler_can_be_called(client: Redrive) -> None:
    @client.worker("billing")
    def bill(event: LeasedEvent) -> int:
        return event.payload["total"] * 2  # type: ignore[no-any-return]

    assert bill(delivery("order.created", {"total": 21})) == 42


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"prefetch": -1}, {"retry": FAST}])
def test_limits_that_cannot_work_are_refused(client: Redrive, options: Any) -> None:
    with pytest.raises(ValueError):
        client.worker("billing", lambda _: None, **options)
