"""Fixtures: one server for the tests that do not restart it, and its client."""

from __future__ import annotations

from typing import Iterator

import pytest

from redrive import Redrive
from redrive.testing import RedriveTestServer
from workers import FAST, Subscribed


@pytest.fixture(scope="session")
def server() -> Iterator[RedriveTestServer]:
    """A server on a temporary file, shared by the tests."""
    with RedriveTestServer() as running:
        yield running


@pytest.fixture()
def client(server: RedriveTestServer) -> Iterator[Redrive]:
    """A client of the shared server."""
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
