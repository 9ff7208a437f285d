"""`AsyncRedrive`: the client of the HTTP API."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any, Awaitable, Callable, Iterable, Mapping, Optional, Sequence, Union, overload
from uuid import UUID

from .._clock import SYSTEM_CLOCK, Clock
from .._http import ServerUrl
from .._json import Seconds
from .._retrying import RetryOptions
from ..models.events import NewEvent, PublishedEvent
from ..models.page import Listing
from ..models.retry import Retry
from ..models.stats import Diagnostics, Health, Stats
from ..models.subscriptions import LeasedEvent
from .api import AsyncApi
from .dlq import AsyncDlq
from .endpoints import AsyncEndpoints
from .events import AsyncEvents
from .replays import AsyncReplays
from .subscriptions import AsyncSubscriptions
from .tokens import AsyncTokens
from .transport import AsyncTransport
from .worker import AsyncWorker

AsyncHandler = Callable[[LeasedEvent], Awaitable[object]]


class AsyncRedrive:
    """Publishes events, looks them up and consumes them. One client serves a whole program.

    The address and the token come from `REDRIVE_SERVER` and `REDRIVE_TOKEN` if they are not given.
    """

    def __init__(
        self,
        server: Optional[str] = None,
        *,
        token: Optional[str] = None,
        timeout: float = 30.0,
        retries: Optional[RetryOptions] = None,
        clock: Clock = SYSTEM_CLOCK,
        transport: Optional[AsyncTransport] = None,
    ) -> None:
        self._server = ServerUrl.parse(server or os.environ.get("REDRIVE_SERVER") or "http://127.0.0.1:8080")
        self._token = token or os.environ.get("REDRIVE_TOKEN") or None
        self._timeout = timeout
        self._retries = retries or RetryOptions()
        self._clock = clock
        self._transport = transport or AsyncTransport(self._server)
        self._api = AsyncApi(self._transport, self._token, timeout, self._retries, clock)
        self.events = AsyncEvents(self._api)
        self.dlq = AsyncDlq(self._api)
        self.endpoints = AsyncEndpoints(self._api)
        self.subscriptions = AsyncSubscriptions(self._api)
        self.replays = AsyncReplays(self._api)
        self.tokens = AsyncTokens(self._api)

    @property
    def server(self) -> ServerUrl:
        """Address of the server."""
        return self._server

    def with_transport(self, transport: AsyncTransport) -> AsyncRedrive:
        """Returns a client with these settings over another transport."""
        return AsyncRedrive(
            str(self._server),
            token=self._token,
            timeout=self._timeout,
            retries=self._retries,
            clock=self._clock,
            transport=transport,
        )

    async def publish(
        self,
        type: str,
        payload: Any,
        *,
        id: Union[str, UUID, None] = None,
        metadata: Optional[Mapping[str, str]] = None,
        due_at: Optional[datetime] = None,
        delay: Optional[Seconds] = None,
        retry: Optional[Retry] = None,
        idempotency_key: Optional[str] = None,
    ) -> PublishedEvent:
        """Publishes an event; returns when it is on stable storage.

        Every call has an Idempotency-Key (a new one unless given), so a repetition after a lost response stores one event.
        """
        event = NewEvent(type, payload, id, metadata or {}, due_at, delay, retry)
        return await self._api.publish("/v1/events", PublishedEvent, event.to_json(), idempotency_key)

    async def publish_many(
        self, events: Iterable[NewEvent], *, idempotency_key: Optional[str] = None
    ) -> list[PublishedEvent]:
        """Publishes all events or none, at most 10,000 with one call."""
        body = [event.to_json() for event in events]
        if not body:
            return []
        return (await self._api.publish("/v1/events/batch", Listing[PublishedEvent], body, idempotency_key)).data

    async def stats(self) -> Stats:
        """Counts events by status."""
        return await self._api.get("/v1/stats", Stats)

    async def diagnostics(self) -> Diagnostics:
        """Counts the work that waits, by subscription."""
        return await self._api.get("/v1/diagnostics", Diagnostics)

    async def ready(self) -> bool:
        """Checks that the server accepts requests and its store answers. Raises the error otherwise."""
        return (await self._api.get("/readyz", Health)).status == "ok"

    @overload
    def worker(
        self,
        subscription: str,
        handler: AsyncHandler,
        *,
        patterns: Optional[Sequence[str]] = ...,
        retry: Optional[Retry] = ...,
        concurrency: int = ...,
        lease: float = ...,
        prefetch: int = ...,
        poll: float = ...,
        backoff: Optional[Callable[[LeasedEvent, BaseException], Optional[float]]] = ...,
        shutdown_timeout: float = ...,
    ) -> AsyncWorker: ...

    @overload
    def worker(
        self,
        subscription: str,
        handler: None = ...,
        *,
        patterns: Optional[Sequence[str]] = ...,
        retry: Optional[Retry] = ...,
        concurrency: int = ...,
        lease: float = ...,
        prefetch: int = ...,
        poll: float = ...,
        backoff: Optional[Callable[[LeasedEvent, BaseException], Optional[float]]] = ...,
        shutdown_timeout: float = ...,
    ) -> Callable[[AsyncHandler], AsyncWorker]: ...

    def worker(self, subscription: str, handler: Optional[AsyncHandler] = None, **options: Any) -> Any:
        """Creates a worker that pulls the events of a subscription and calls the handler; without one, a decorator.

        See `AsyncWorker` for the options. Nothing happens until `run()` or `start()`.
        """

        def create(handler: AsyncHandler) -> AsyncWorker:
            return AsyncWorker(self, subscription, handler, **options)

        return create if handler is None else create(handler)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncRedrive:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
