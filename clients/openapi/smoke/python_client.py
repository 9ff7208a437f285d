"""The client of openapi-python-client: one module per operation."""

import os
from uuid import UUID

from redrive_generated import AuthenticatedClient
from redrive_generated.api.dlq import list_dead_letters
from redrive_generated.api.events import get_event, list_events, publish_event, publish_events
from redrive_generated.api.subscriptions import ack_events, pull_events, put_subscription
from redrive_generated.api.tokens import create_token, list_tokens, revoke_token
from redrive_generated.models import (
    Ack,
    CreateToken,
    CreatedToken,
    DeadLetterPage,
    Event,
    EventPage,
    LeasedEventList,
    LeaseResults,
    Problem,
    PublishedEvent,
    PublishedEventList,
    PublishEvent,
    Pull,
    PutSubscription,
    Subscription,
    TokenPage,
)

client = AuthenticatedClient(base_url=os.environ["REDRIVE_URL"], token=os.environ["REDRIVE_TOKEN"])

subscription = put_subscription.sync("python", client=client, body=PutSubscription(patterns=["python.*"]))
assert isinstance(subscription, Subscription) and subscription.retry is None

event = PublishEvent(type_="python.one", payload={"order": 7})
published = publish_event.sync(client=client, body=event, idempotency_key="python-1")
again = publish_event.sync(client=client, body=event, idempotency_key="python-1")
assert isinstance(published, PublishedEvent) and isinstance(again, PublishedEvent)
assert published.id == again.id
batch = publish_events.sync(client=client, body=[event, PublishEvent(type_="python.two", payload=None)])
assert isinstance(batch, PublishedEventList) and len(batch.data) == 2

page = list_events.sync(client=client, type_="python.one", limit=1)
assert isinstance(page, EventPage) and page.next_ is not None and len(page.data) == 1
found = get_event.sync(published.id, client=client)
assert isinstance(found, Event) and found.payload == {"order": 7}
assert found.status in ("pending", "processing")
missing = get_event.sync_detailed(UUID("0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19"), client=client)
assert missing.status_code == 404
assert isinstance(missing.parsed, Problem) and missing.parsed.code == "not_found"

pulled = pull_events.sync("python", client=client, body=Pull(max_=10, wait_ms=5000))
assert isinstance(pulled, LeasedEventList) and pulled.data
acked = ack_events.sync("python", client=client, body=Ack(leases=[leased.lease for leased in pulled.data]))
assert isinstance(acked, LeaseResults) and acked.lost == []

dead = list_dead_letters.sync(client=client)
assert isinstance(dead, DeadLetterPage)

token = create_token.sync(client=client, body=CreateToken(name="smoke", scopes=["read"]))
assert isinstance(token, CreatedToken) and token.expires_at is None
assert revoke_token.sync_detailed(token.id, client=client).status_code == 204
tokens = list_tokens.sync(client=client)
assert isinstance(tokens, TokenPage) and token.id not in [one.id for one in tokens.data]
