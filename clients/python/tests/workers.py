"""Helpers of the tests of both workers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any, Callable, Iterator, Protocol

from redrive import AsyncRedrive, LeasedEvent, Redrive, Retry
from redrive.models import Event
from support import eventually, unique

Handler = Callable[[LeasedEvent], object]


class Addressed(Protocol):
    """A server, or a load balancer in front of servers."""

    @property
    def url(self) -> str: ...


@contextlib.contextmanager
def working(flavour: str, server: Addressed, subscription: str, handler: Handler, **options: Any) -> Iterator[None]:
    """Runs a worker in the background; stops it gracefully at the end."""
    options = {"poll": 2.0, "shutdown_timeout": 5.0, **options}
    if flavour == "sync":
        with Redrive(server.url) as client, client.worker(subscription, handler, **options):
            yield
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def handle(event: LeasedEvent) -> object:
        return await asyncio.get_running_loop().run_in_executor(None, handler, event)

    async def begin() -> Any:
        client = AsyncRedrive(server.url)
        worker = client.worker(subscription, handle, **options)
        await worker.start()
        return client, worker

    async def end(client: Any, worker: Any) -> None:
        await worker.stop()
        assert worker.in_flight == 0
        await client.aclose()

    def on_loop(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    client, worker = on_loop(begin())
    try:
        yield
    finally:
        try:
            on_loop(end(client, worker))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
    loop.close()


class Recorder:
    """A handler that records its events and runs another one."""

    def __init__(self, handler: Handler = lambda _: None) -> None:
        self.events: list[LeasedEvent] = []
        self.times: list[float] = []
        self._handler = handler

    def __call__(self, event: LeasedEvent) -> object:
        self.times.append(time.monotonic())
        self.events.append(event)
        return self._handler(event)


class Subscribed:
    """A subscription of its own for one test."""

    def __init__(self, client: Redrive, retry: Retry) -> None:
        self.client, self.name = client, unique("worker")
        self.type = self.name + ".created"
        client.subscriptions.put(self.name, [self.type], retry=retry)

    def publish(self, payload: Any = 7, **options: Any) -> str:
        """Publishes an event for the subscription."""
        return self.client.publish(self.type, payload, **options).id

    def ended(self, id: str, status: str = "done") -> Event:
        """Waits until the event has this status."""
        return eventually(lambda: (event := self.client.events.get(id)).status == status and event)  # type: ignore[no-any-return]

    def all_ended(self, ids: list[str], timeout: float = 60.0) -> None:
        """Waits until every event is done."""
        wanted = set(ids)
        eventually(
            lambda: wanted <= {event.id for event in self.client.events.list(type=self.type, status="done", limit=200)},
            timeout,
        )


FAST = Retry(max_attempts=5, base_delay_ms=10, max_delay_ms=50, jitter="none")
