"""Charges every order once, and publishes `order.charged`: `python worker.py`."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from uuid import UUID, uuid5

from redrive import LeasedEvent, PermanentFailure, Redrive, Snooze, Worker
from redrive.retry import IdempotencyManager, RetryCategory, RetryManager, SqliteIdempotencyStore

SHOP = UUID("6f2c1f0e-6a53-4d0b-9d0f-0a6f1f1c7a11")


class Bank:
    """Stands for the API of a bank."""

    def __init__(self) -> None:
        self.is_closed = False
        self.charged: list[int] = []

    async def charge(self, order: int, cents: int) -> str:
        """Charges a card; returns the receipt."""
        if cents > 100_000:
            raise PermanentFailure(f"the bank declines {cents} cents")
        self.charged.append(order)
        return f"receipt {order}"


class Billing:
    """Handles `order.placed`."""

    def __init__(self, client: Redrive, bank: Bank, retries: RetryManager) -> None:
        self._client = client
        self._bank = bank
        self._retries = retries

    def __call__(self, event: LeasedEvent) -> None:
        """Charges the order. Delivery is at least once; the idempotency key makes the charge happen once."""
        order, cents = event.payload["order"], event.payload["cents"]
        if self._bank.is_closed:
            raise Snooze(timedelta(minutes=5), "the bank is closed")
        receipt = asyncio.run(
            self._retries.execute_with_retry(
                RetryCategory.API_REQUEST,
                "Charge card",
                lambda: self._bank.charge(order, cents),
                idempotency_key=f"charge {order}",
                correlation_id=event.id,
            )
        )
        self._client.publish(
            "order.charged", {"order": order, "receipt": receipt}, id=uuid5(SHOP, f"order.charged {order}")
        )


def billing_worker(client: Redrive, bank: Bank, keys: str) -> Worker:
    """Creates the worker. `keys` is the file of the idempotency keys."""
    retries = RetryManager(idempotency_manager=IdempotencyManager(SqliteIdempotencyStore(keys)))
    return client.worker("billing", Billing(client, bank, retries), patterns=["order.placed"], concurrency=4)


if __name__ == "__main__":
    with Redrive() as client:
        billing_worker(client, Bank(), os.environ.get("KEYS", "keys.db")).run()
