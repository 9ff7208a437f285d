"""`client.tokens`: creates, lists and revokes bearer tokens."""

from __future__ import annotations

from typing import Optional, Sequence, Union

from .._http import segment
from .._json import Seconds, given, millis
from ..models.page import Page
from ..models.tokens import CreatedToken, Scope, Token
from .api import AsyncApi
from .pages import AsyncPages


class AsyncTokens:
    """Creates, lists and revokes bearer tokens."""

    def __init__(self, api: AsyncApi) -> None:
        self._api = api

    async def create(
        self, name: str, scopes: Sequence[Union[Scope, str]], *, expires_in: Optional[Seconds] = None
    ) -> CreatedToken:
        """Creates a token; no other response shows its secret."""
        expires_in_s = None if expires_in is None else millis(expires_in) // 1000
        body = given(name=name, scopes=list(scopes), expires_in_s=expires_in_s)
        return await self._api.post("/v1/tokens", CreatedToken, body)

    def list(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> AsyncPages[Token]:
        """Iterates over tokens, oldest first; `limit` is the size of a page."""

        async def fetch(cursor: Optional[str]) -> Page[Token]:
            return await self._api.get("/v1/tokens", Page[Token], {"limit": limit, "after": cursor})

        return AsyncPages(fetch, after)

    async def revoke(self, id: str) -> None:
        """Revokes a token, everywhere within a second."""
        await self._api.remove(f"/v1/tokens/{segment(id)}")
