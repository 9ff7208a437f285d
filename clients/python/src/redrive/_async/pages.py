"""Iterates over the entries of a list, page by page."""

from __future__ import annotations

from typing import AsyncIterator, Awaitable, Callable, Generic, Optional, TypeVar

from ..errors import UnexpectedResponseError
from ..models.page import Page

T = TypeVar("T")


class AsyncPages(Generic[T]):
    """All entries of a list: iterate over it, or over its `pages()`. Requests the next page when it is needed."""

    def __init__(self, fetch: Callable[[Optional[str]], Awaitable[Page[T]]], after: Optional[str] = None) -> None:
        self._fetch = fetch
        self._after = after

    async def first(self) -> Page[T]:
        """Returns the first page only."""
        return await self._fetch(self._after)

    async def pages(self) -> AsyncIterator[Page[T]]:
        """Iterates over the pages."""
        after = self._after
        while True:
            page = await self._fetch(after)
            yield page
            if page.next is None:
                return
            if page.next == after:
                raise UnexpectedResponseError(f"the cursor {after!r} leads to itself")
            after = page.next

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for entry in page.data:
                yield entry
