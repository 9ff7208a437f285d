"""Fixtures: what the tests run on that do not restart it, a server or a cluster, and its client."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from cluster import AnyServer, Cluster
from redrive import Redrive
from redrive.testing import RedriveTestServer
from workers import FAST, Subscribed

POSTGRES = Path(__file__).resolve().parents[2] / "postgres.sh"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--store postgres` runs the tests with a server on three servers behind a load balancer."""
    parser.addoption("--store", choices=["sqlite", "postgres"], default="sqlite")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server: `REDRIVE_TEST_POSTGRES`, or a private one."""
    with subprocess.Popen([str(POSTGRES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        address = server.stdout.readline().strip()
        assert address, "PostgreSQL did not start"
        yield address
        server.stdin.close()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    """A server on a temporary file, or three on PostgreSQL behind a load balancer, shared by the tests."""
    if request.config.getoption("store") == "postgres":
        with Cluster(request.getfixturevalue("postgres")) as cluster:
            yield cluster
    else:
        with RedriveTestServer() as running:
            yield running


@pytest.fixture()
def client(server: AnyServer) -> Iterator[Redrive]:
    """A client of the shared servers."""
    with server.client() as connected:
        yield connected


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    """Which worker runs."""
    return str(request.param)


@pytest.fixture()
def orders(client: Redrive) -> Subscribed:
    """A subscription whose retries are fast."""
    return Subscribed(client, FAST)
