"""Handlers of a minute under leases of a few seconds. `test.sh` runs this file beside the others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from cluster import AnyServer, Cluster
from proxy import RoundRobinProxy
from redrive import Redrive
from redrive.testing import RedriveTestServer
from workers import FAST, Recorder, Subscribed, working

HANDLER_SECONDS = 60.0
LEASE_SECONDS = 6.0


def extends_a_long_handler(flavour: str, server: AnyServer) -> None:
    """Runs a handler of a minute; its lease is extended, and it is acked once."""
    record = Recorder(lambda _: time.sleep(HANDLER_SECONDS))
    # A proxy of its own counts the requests of this worker.
    with RoundRobinProxy([server.url]) as counted, Redrive(counted.url) as client:
        own = Subscribed(client, FAST)
        with working(flavour, counted, own.name, record, lease=LEASE_SECONDS):
            id = own.publish()
            time.sleep(HANDLER_SECONDS)
            own.ended(id)
        assert [event.attempt for event in record.events] == [1], "no other delivery"
        assert client.events.get(id).retry_count == 0
        assert counted.requests["ack"] == 1
        assert counted.requests["extend"] >= HANDLER_SECONDS / LEASE_SECONDS


def test_a_lease_is_extended_over_a_handler_of_a_minute_and_a_crash_of_a_server(postgres: str) -> None:
    with RedriveTestServer() as sqlite, Cluster(postgres) as cluster, ThreadPoolExecutor() as pool:
        servers: list[AnyServer] = [sqlite, cluster]
        running = [
            pool.submit(extends_a_long_handler, flavour, server) for server in servers for flavour in ("sync", "async")
        ]
        time.sleep(HANDLER_SECONDS / 3)
        for server in servers:
            server.restart(crash=True)
        for one in running:
            one.result(2 * HANDLER_SECONDS)
