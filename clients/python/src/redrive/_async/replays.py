"""`client.replays`: looks at replays and cancels them."""

from __future__ import annotations

from typing import Optional

from .._http import segment
from ..models.page import Page
from ..models.replays import Replay
from .api import AsyncApi
from .pages import AsyncPages


class AsyncReplays:
    """Looks at replays and cancels them. `client.endpoints.replay` starts one."""

    def __init__(self, api: AsyncApi) -> None:
        self._api = api

    def list(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> AsyncPages[Replay]:
        """Iterates over replays, oldest first; `limit` is the size of a page."""

        async def fetch(cursor: Optional[str]) -> Page[Replay]:
            return await self._api.get("/v1/replays", Page[Replay], {"limit": limit, "after": cursor})

        return AsyncPages(fetch, after)

    async def get(self, id: str) -> Replay:
        """Returns one replay."""
        return await self._api.get(f"/v1/replays/{segment(id)}", Replay)

    async def cancel(self, id: str) -> Replay:
        """Cancels a replay; sent events stay sent."""
        return await self._api.post(f"/v1/replays/{segment(id)}/cancel", Replay)
