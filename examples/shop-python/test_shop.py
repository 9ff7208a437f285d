"""Tests of the shop: one handler by itself, and the three programs against a real server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Iterator

import pytest
from publisher import place_order
from receiver import Receiver
from worker import Bank, billing_worker

from redrive import PermanentFailure, Redrive, Snooze, Webhook
from redrive.testing import RedriveTestServer, delivery


@pytest.fixture(scope="module")
def client() -> Iterator[Redrive]:
    """A client of a server on a temporary file."""
    with RedriveTestServer() as server, server.client() as connected:
        yield connected


def test_an_order_is_charged_once(client: Redrive, tmp_path: Path) -> None:
    bank = Bank()
    bill = billing_worker(client, bank, str(tmp_path / "keys.db"))
    for attempt in (1, 2):
        bill(delivery("order.placed", {"order": 1, "cents": 1250}, attempt=attempt))
    assert bank.charged == [1]


def test_a_closed_bank_snoozes_and_a_declined_card_is_permanent(client: Redrive, tmp_path: Path) -> None:
    bank = Bank()
    bill = billing_worker(client, bank, str(tmp_path / "keys.db"))
    bank.is_closed = True
    with pytest.raises(Snooze):
        bill(delivery("order.placed", {"order": 2, "cents": 1250}))
    bank.is_closed = False
    with pytest.raises(PermanentFailure, match="declines"):
        bill(delivery("order.placed", {"order": 3, "cents": 100_001}))


def test_placed_orders_are_charged_and_shipped(tmp_path: Path) -> None:
    bank, orders = Bank(), [1001, 1002, 1003]
    with RedriveTestServer() as server, server.client() as client:
        receiver = Receiver(("127.0.0.1", 0), Webhook("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"))
        endpoint = client.endpoints.create(f"http://127.0.0.1:{receiver.server_port}/hooks", ["order.charged"])
        receiver.webhook = Webhook(endpoint.secret)
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        with billing_worker(client, bank, str(tmp_path / "keys.db")):
            for order in orders + orders:
                place_order(client, order, 1250)
            server.drain()
            server.restart(crash=True)
            place_order(client, orders[0], 1250)
            server.drain()
        receiver.shutdown()
        receiver.server_close()
        assert client.stats().dlq == 0
    assert sorted(bank.charged) == sorted(receiver.shipped.values()) == orders
