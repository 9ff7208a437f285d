# Generated from ../_async/replays.py by scripts/unasync.py: change that file instead.
"""`client.replays`: looks at replays and cancels them."""

from __future__ import annotations

from typing import Optional

from .._http import segment
from ..models.page import Page
from ..models.replays import Replay
from .api import Api
from .pages import Pages


class Replays:
    """Looks at replays and cancels them. `client.endpoints.replay` starts one."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def list(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> Pages[Replay]:
        """Iterates over replays, oldest first; `limit` is the size of a page."""

        def fetch(cursor: Optional[str]) -> Page[Replay]:
            return self._api.get("/v1/replays", Page[Replay], {"limit": limit, "after": cursor})

        return Pages(fetch, after)

    def get(self, id: str) -> Replay:
        """Returns one replay."""
        return self._api.get(f"/v1/replays/{segment(id)}", Replay)

    def cancel(self, id: str) -> Replay:
        """Cancels a replay; sent events stay sent."""
        return self._api.post(f"/v1/replays/{segment(id)}/cancel", Replay)
