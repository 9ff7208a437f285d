"""A program of a user, for type checkers: it sees the types of the installed package, and an error for a name that does not exist."""

from typing import Optional

import redrive
from redrive import LeasedEvent, NewEvent, Redrive, Retry, Snooze, Webhook
from redrive.retry import RetryPolicy
from redrive.testing import FakeClock, delivery

client = Redrive("http://127.0.0.1:8080")
id: str = client.publish("order.created", {"order": 7}).id
ids: list[str] = [event.id for event in client.publish_many([NewEvent("order.paid", 1)])]
retries: int = next(iter(client.events.list(type="order.created"))).retry_count
tracestate: Optional[str] = client.events.get(id).metadata.get("tracestate")
policy = RetryPolicy(max_attempts=3)
clock, webhook = FakeClock(), Webhook("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX")


@client.worker("billing", patterns=["order.*"], retry=Retry(max_attempts=3))
def bill(event: LeasedEvent) -> None:
    if event.attempt > 1:
        raise Snooze(5.0)


bill(delivery("order.created", {"order": 7}))
print(redrive.misspelt)  # type: ignore[attr-defined] # pyright: ignore
