"""Publishes `order.placed`: `python publisher.py ORDER CENTS`."""

from __future__ import annotations

import sys
from uuid import UUID, uuid5

from redrive import PublishedEvent, Redrive

SHOP = UUID("6f2c1f0e-6a53-4d0b-9d0f-0a6f1f1c7a11")
"""Namespace of this shop's event ids."""


def place_order(client: Redrive, order: int, cents: int) -> PublishedEvent:
    """Publishes an order. An order that comes again has the id of the first one, and is stored once."""
    return client.publish("order.placed", {"order": order, "cents": cents}, id=uuid5(SHOP, f"order.placed {order}"))


def main() -> None:
    """Publishes the order of the command line."""
    order, cents = (int(argument) for argument in sys.argv[1:])
    with Redrive() as client:
        event = place_order(client, order, cents)
        print(f"{event.id} {'was known' if event.duplicate else 'is stored'}")


if __name__ == "__main__":
    main()
