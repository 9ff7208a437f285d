"""`client.events`: looks events up and replays them."""

from __future__ import annotations

from typing import Optional, Union
from uuid import UUID

from .._http import segment
from ..models.events import Event, EventStatus, EventSummary
from ..models.page import Page
from ..models.replays import EventReplayed
from .api import AsyncApi
from .pages import AsyncPages

EventId = Union[str, UUID]


class AsyncEvents:
    """Looks events up and replays them."""

    def __init__(self, api: AsyncApi) -> None:
        self._api = api

    def list(
        self,
        *,
        status: Union[EventStatus, str, None] = None,
        type: Optional[str] = None,
        limit: Optional[int] = None,
        after: Optional[str] = None,
    ) -> AsyncPages[EventSummary]:
        """Iterates over events, newest first; `limit` is the size of a page."""

        async def fetch(cursor: Optional[str]) -> Page[EventSummary]:
            query = {"status": status, "type": type, "limit": limit, "after": cursor}
            return await self._api.get("/v1/events", Page[EventSummary], query)

        return AsyncPages(fetch, after)

    async def get(self, id: EventId) -> Event:
        """Returns one event with payload, deliveries and attempts."""
        return await self._api.get(f"/v1/events/{segment(id)}", Event)

    async def replay(self, id: EventId, endpoint: str) -> bool:
        """Sends an event to one endpoint again, or for the first time. `False` while its delivery is still open."""
        path = f"/v1/events/{segment(id)}/replay"
        return (await self._api.post(path, EventReplayed, {"endpoint": endpoint})).replayed
