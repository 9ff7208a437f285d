"""The clients against the real binary."""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest

import redrive
from cluster import AnyServer
from redrive import (
    AuthenticationError,
    ConnectionFailedError,
    IdTakenError,
    InvalidRequestError,
    NewEvent,
    NotDeadError,
    NotFoundError,
    OtherPayloadError,
    PermissionDeniedError,
    Redrive,
    RedriveError,
    ReservedTypeError,
    Retry,
    RetryOptions,
    RetryPreset,
    TooLargeError,
)
from redrive._async.transport import AsyncTransport
from redrive._http import ServerUrl
from redrive.models import DeadReason, EventStatus, Scope
from redrive.testing import FakeClock, RedriveTestServer, find_binary
from support import eventually, unique

ONCE = RetryOptions(max_attempts=1)


def test_a_published_event_can_be_looked_up(client: Redrive) -> None:
    published = client.publish("order.created", {"order": 7, "total": 2**70, "name": "Zoë"}, metadata={"tenant": "t-1"})
    assert not published.duplicate
    event = client.events.get(published.id)
    assert (event.id, event.type, event.payload) == (
        published.id,
        "order.created",
        {"order": 7, "total": 2**70, "name": "Zoë"},
    )
    assert event.metadata == {"tenant": "t-1"} and event.status == EventStatus.DONE == "done"
    assert abs(datetime.now(timezone.utc) - event.created_at) < timedelta(minutes=1)
    assert published.id in [found.id for found in client.events.list(type="order.created", limit=2)]


def test_an_id_or_a_key_stores_one_event(client: Redrive) -> None:
    own = uuid.uuid4()
    assert client.publish("order.created", 1, id=own) == redrive.PublishedEvent(str(own), False)
    assert client.publish("order.created", 1, id=own) == redrive.PublishedEvent(str(own), True)
    with pytest.raises(IdTakenError):
        client.publish("order.created", 2, id=own)
    key = unique("key")
    assert client.publish("order.created", 1, idempotency_key=key) == client.publish(
        "order.created", 1, idempotency_key=key
    )
    with pytest.raises(OtherPayloadError):
        client.publish("order.created", 2, idempotency_key=key)


def test_a_batch_is_stored_whole_or_not_at_all(client: Redrive) -> None:
    published = client.publish_many(NewEvent("batch.item", {"n": n}, metadata={"n": str(n)}) for n in range(250))
    assert len({event.id for event in published}) == 250
    assert client.publish_many([]) == []
    with pytest.raises(InvalidRequestError) as raised:
        client.publish_many([NewEvent("batch.other", 1), NewEvent("no type", 2)])
    assert [item.index for item in raised.value.errors] == [1] and "item 1" in str(raised.value)
    assert not list(client.events.list(type="batch.other"))
    assert len(list(client.events.list(type="batch.item", limit=100))) == 250
    assert [len(page.data) for page in client.events.list(type="batch.item", limit=100).pages()] == [100, 100, 50]


def test_a_delayed_event_waits(client: Redrive) -> None:
    later = client.publish("order.later", 1, delay=timedelta(hours=1))
    at = datetime(2031, 1, 31, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    fixed = client.publish("order.later", 1, due_at=at)
    assert client.events.get(later.id).status == "pending"
    assert client.events.get(fixed.id).due_at == at


def test_errors_are_classes_by_problem_type(client: Redrive) -> None:
    with pytest.raises(NotFoundError) as raised:
        client.events.get(uuid.uuid4())
    assert (raised.value.code, raised.value.status, raised.value.outcome_unknown) == ("not_found", 404, False)
    with pytest.raises(ReservedTypeError):
        client.publish("redrive.test", 1)
    with pytest.raises(InvalidRequestError):
        client.publish("order created", 1)
    with pytest.raises(TooLargeError):
        client.publish("order.created", "x" * (17 << 20))
    with pytest.raises(NotDeadError):
        client.dlq.retry(client.publish("order.created", 1).id)


def test_payloads_that_are_not_json_are_refused_before_a_request(client: Redrive) -> None:
    for payload in (float("nan"), {1, 2}, b"bytes", "\ud800"):
        with pytest.raises((TypeError, ValueError)):
            client.publish("order.created", payload)


def test_an_unreachable_server_is_an_error_after_bounded_attempts() -> None:
    clock = FakeClock()
    with Redrive("http://127.0.0.1:9", retries=RetryOptions(max_attempts=3), clock=clock) as client:
        with pytest.raises(ConnectionFailedError) as raised:
            client.publish("order.created", 1)
    assert raised.value.unsent and not raised.value.outcome_unknown and len(clock.sleeps) == 2


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "ftp://x", "http://user@x", "http://x?y"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        Redrive(address)


def test_dead_letters_are_inspected_redriven_and_purged(client: Redrive) -> None:
    name, type = unique("dead"), unique("dead") + ".created"
    client.subscriptions.put(name, [type], retry=Retry(max_attempts=1))
    ids = [client.publish(type, {"order": order}).id for order in range(3)]
    for leased in pull_all(client, name, 3):
        client.subscriptions.nack(name, [leased.lease], reason=f"no stock of {leased.payload['order']}")
    found = eventually(lambda: len(list(client.dlq.list(type=type))) == 3 and list(client.dlq.list(type=type)))
    assert {letter.id for letter in found} == set(ids)
    assert all(letter.reason == DeadReason.ATTEMPTS_EXHAUSTED and "no stock" in letter.errors[0] for letter in found)
    (letter,) = client.dlq.get(ids[0])
    assert letter.payload == {"order": 0} and letter.attempts[0].class_ == "transient"
    assert [letter.id for letter in client.dlq.list(type=type, text="no stock of 1")] == [ids[1]]
    (group,) = client.dlq.groups(type=type).data
    assert group.count == 3 and group.types == [type]
    assert client.dlq.retry_many(type=type, dry_run=True).matched == 3
    assert client.dlq.retry(ids[0], payload={"order": 70}) == ids[0]
    assert client.dlq.retry_many(type=type, fingerprint=group.fingerprint).retried == 2
    redriven = pull_all(client, name, 3)
    assert {leased.payload["order"] for leased in redriven} == {70, 1, 2}
    assert client.subscriptions.ack(name, [leased.lease for leased in redriven]).done == 3
    assert isinstance(client.dlq.purge(older_than=timedelta(days=7)), int)
    client.subscriptions.remove(name)


def pull_all(client: Redrive, name: str, count: int) -> list[Any]:
    """Pulls this many events."""
    pulled: list[Any] = []
    while len(pulled) < count:
        found = client.subscriptions.pull(name, wait=10)
        assert found
        pulled += found
    return pulled


def test_endpoints_are_managed(client: Redrive) -> None:
    endpoint = client.endpoints.create(
        "http://127.0.0.1:9/hooks",
        ["none.*"],
        description="shop",
        headers={"x-shop": "1"},
        retry=Retry(preset=RetryPreset.STANDARD),
        timeout=5,
        per_second=10.5,
        concurrency=2,
    )
    assert endpoint.secret.startswith("whsec_") and endpoint.timeout_ms == 5000
    assert endpoint.retry is not None and endpoint.retry.preset == RetryPreset.STANDARD
    changed = client.endpoints.update(endpoint.id, version=endpoint.version, enabled=False, retry=None, per_second=None)
    assert not changed.enabled and changed.disabled is not None and changed.disabled.reason == "by_hand"
    assert changed.retry is None and changed.per_second is None and changed.concurrency == 2
    with pytest.raises(redrive.ConflictError):
        client.endpoints.update(endpoint.id, version=endpoint.version, description="late")
    assert client.endpoints.test(endpoint.id).status is None
    assert endpoint.id in [found.id for found in client.endpoints.list(limit=1)]
    assert [secret.secret for secret in client.endpoints.secrets(endpoint.id)] == [endpoint.secret]
    assert list(client.endpoints.attempts(endpoint.id)) == []
    assert client.endpoints.count_replay(endpoint.id) == 0
    replay = client.endpoints.replay(endpoint.id, since=datetime.now(timezone.utc) - timedelta(hours=1), per_second=5)
    assert replay.id in [found.id for found in client.replays.list()]
    assert client.replays.get(replay.id).endpoint == endpoint.id
    client.endpoints.remove(endpoint.id)
    with pytest.raises(NotFoundError):
        client.endpoints.get(endpoint.id)


def test_subscriptions_are_managed(client: Redrive) -> None:
    name = unique("billing/ä")
    with pytest.raises(InvalidRequestError):
        client.subscriptions.put(name, ["order.*"])
    name = unique("billing")
    put = client.subscriptions.put(name, ["order.*"], lease=5, retry=Retry(max_attempts=2, jitter="none"))
    assert (put.name, put.patterns, put.lease_ms) == (name, ["order.*"], 5000)
    assert client.subscriptions.get(name) == put and put in list(client.subscriptions.list())
    client.subscriptions.remove(name)


def test_counts_of_the_store(client: Redrive) -> None:
    client.publish("order.created", 1)
    assert client.stats().done >= 1
    assert client.diagnostics().overdue >= 0
    assert client.ready()


def test_tokens_limit_what_a_client_may_do() -> None:
    with RedriveTestServer() as server:
        assert server.db is not None
        command = [find_binary(), "tokens", "create", "--db", server.db, "--name", "admin", "--scope", "admin"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        (admin,) = re.findall(r"rdt_\S+", made.stdout)
        with server.client(retries=ONCE) as anonymous:
            eventually(lambda: is_refused(anonymous))
        with server.client(token=admin) as client:
            shop = client.tokens.create("shop", [Scope.PUBLISH], expires_in=timedelta(days=1))
            assert [token.name for token in client.tokens.list()] == ["admin", "shop"]
            with server.client(token=shop.token) as publisher:
                publisher.publish("order.created", 1)
                with pytest.raises(PermissionDeniedError):
                    publisher.stats()
            client.tokens.revoke(shop.id)


def is_refused(client: Redrive) -> bool:
    """Whether the server asks for a token. It notices a token of another process within a second."""
    try:
        client.stats()
    except AuthenticationError:
        return True
    return False


def test_the_address_and_token_come_from_the_environment(server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_SERVER", server.url)
    with Redrive() as client:
        assert client.ready()


def test_one_client_serves_many_threads(client: Redrive) -> None:
    type, failures = unique("threads"), []

    def publish() -> None:
        try:
            for n in range(10):
                client.publish(type, n)
        except RedriveError as error:
            failures.append(error)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(client.events.list(type=type))) == 80


def test_a_closed_client_makes_no_request(server: AnyServer) -> None:
    client = server.client(retries=ONCE)
    client.close()
    with pytest.raises(ConnectionFailedError, match="closed"):
        client.ready()


def test_a_closed_asynchronous_client_makes_no_request(server: AnyServer) -> None:
    async def main() -> None:
        async with server.async_client(retries=ONCE) as client:
            await client.ready()
        with pytest.raises(ConnectionFailedError, match="closed"):
            await client.ready()

    asyncio.run(main())


def test_an_httpx_client_of_the_caller_stays_open(server: AnyServer) -> None:
    async def main() -> None:
        async with httpx.AsyncClient() as own:
            async with server.async_client(transport=AsyncTransport(ServerUrl.parse(server.url), client=own)) as client:
                await client.ready()
            assert not own.is_closed

    asyncio.run(main())


def test_a_publish_survives_a_restart_of_the_server() -> None:
    with RedriveTestServer() as server, server.client(retries=RetryOptions(max_attempts=50, max_delay=0.2)) as client:
        client.publish("order.created", 0)
        server.kill()
        restarting = threading.Thread(target=server.start)
        restarting.start()
        published = client.publish("order.created", 1)
        restarting.join()
        assert client.events.get(published.id).payload == 1


def test_the_asynchronous_client_has_the_same_methods(server: AnyServer) -> None:
    async def main() -> None:
        async with server.async_client() as client:
            type = unique("async")
            published = await asyncio.gather(*(client.publish(type, n) for n in range(20)))
            assert len({event.id for event in published}) == 20
            assert sorted([event.id async for event in client.events.list(type=type, limit=7)]) == sorted(
                event.id for event in published
            )
            many = await client.publish_many([NewEvent(type, n) for n in range(3)])
            assert (await client.events.get(many[0].id)).payload == 0
            with pytest.raises(NotFoundError):
                await client.events.get(uuid.uuid4())
            name = unique("async")
            await client.subscriptions.put(name, [type])
            await client.publish(type, 7)
            (leased,) = await client.subscriptions.pull(name, wait=10)
            assert (await client.subscriptions.ack(name, [leased.lease])).done == 1
            await client.subscriptions.remove(name)

    asyncio.run(main())


def test_the_asynchronous_client_reports_an_unreachable_server() -> None:
    async def main() -> None:
        async with redrive.AsyncRedrive("http://127.0.0.1:9", retries=ONCE) as client:
            with pytest.raises(ConnectionFailedError) as raised:
                await client.ready()
            assert raised.value.unsent

    asyncio.run(main())
