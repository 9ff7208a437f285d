"""Three servers on one PostgreSQL database: leases are honoured by each of them, behind any load balancer."""

from __future__ import annotations

import time
from typing import Iterator

import pytest

from cluster import Cluster
from redrive import NewEvent, Redrive, Retry
from redrive.models import NackOutcome
from support import eventually
from workers import FAST, Recorder, Subscribed, working

STEADY = Retry(max_attempts=50, base_delay_ms=10, max_delay_ms=50, jitter="none")


@pytest.fixture(scope="module")
def cluster(postgres: str) -> Iterator[Cluster]:
    """Three servers, shared by the tests of this module."""
    with Cluster(postgres) as running:
        yield running


@pytest.fixture()
def direct(cluster: Cluster) -> Iterator[list[Redrive]]:
    """A client of each server, without the load balancer."""
    clients = [server.client() for server in cluster.servers]
    yield clients
    for client in clients:
        client.close()


def test_no_event_is_lost_when_a_server_behind_the_load_balancer_is_killed(flavour: str, cluster: Cluster) -> None:
    before = cluster.proxy.bad_gateways
    with cluster.client() as client:
        own = Subscribed(client, STEADY)
        ids = [event.id for event in client.publish_many(NewEvent(own.type, n) for n in range(200))]
        record = Recorder(lambda _: time.sleep(0.05))
        with working(flavour, cluster, own.name, record, concurrency=8, lease=2.0, poll=1.0):
            eventually(lambda: len(record.events) >= 40)
            cluster.servers[1].kill()
            eventually(lambda: len(record.events) >= 100)
            cluster.servers[1].start()
            own.all_ended(ids)
        assert {event.id for event in record.events} == set(ids)
        assert not list(client.dlq.list(subscription=own.name))
    assert cluster.proxy.bad_gateways > before, "the client had to repeat requests"


def test_an_event_is_pulled_at_one_server_extended_at_another_and_acked_at_the_third(direct: list[Redrive]) -> None:
    first, second, third = direct
    own = Subscribed(first, FAST)
    id = second.publish(own.type, 7).id
    (leased,) = first.subscriptions.pull(own.name, wait=10, lease=1.5)
    assert second.subscriptions.extend(own.name, [leased.lease], lease=20).done == 1
    time.sleep(2.0)  # longer than the first lease
    assert not second.subscriptions.pull(own.name, wait=0)
    assert third.subscriptions.ack(own.name, [leased.lease]).done == 1
    for client in direct:
        event = client.events.get(id)
        assert (event.status, event.retry_count) == ("done", 0)


def test_a_lease_is_honoured_after_the_server_that_granted_it_was_killed(
    cluster: Cluster, direct: list[Redrive]
) -> None:
    first, second, third = direct
    own = Subscribed(first, FAST)
    acked, refused = (first.publish(own.type, n).id for n in range(2))
    leases: dict[str, str] = {}
    while len(leases) < 2:
        leases.update((event.id, event.lease) for event in first.subscriptions.pull(own.name, max=2, wait=10))
    cluster.servers[0].kill()
    assert second.subscriptions.ack(own.name, [leases[acked]]).done == 1
    cluster.servers[0].start()
    assert first.subscriptions.extend(own.name, [leases[refused]], lease=20).done == 1
    assert third.subscriptions.nack(own.name, [leases[refused]], outcome=NackOutcome.PERMANENT).done == 1
    own.ended(acked)
    own.ended(refused, "dlq")


def test_every_server_refuses_the_settlement_of_a_lease_that_has_ended(direct: list[Redrive]) -> None:
    first, second, _ = direct
    own = Subscribed(first, FAST)
    id = first.publish(own.type, 7).id
    (late,) = first.subscriptions.pull(own.name, wait=10, lease=0.15)
    time.sleep(0.6)

    def refused_by_all() -> None:
        for settle in (client.subscriptions for client in direct):
            for result in (
                settle.ack(own.name, [late.lease]),
                settle.nack(own.name, [late.lease]),
                settle.extend(own.name, [late.lease], lease=9),
            ):
                assert (result.done, result.lost) == (0, [late.lease])

    refused_by_all()
    (again,) = second.subscriptions.pull(own.name, wait=10)
    assert (again.id, again.attempt) == (id, 2)
    refused_by_all()  # nor does the new lease revive the old one
    assert first.subscriptions.ack(own.name, [again.lease]).done == 1
    own.ended(id)
