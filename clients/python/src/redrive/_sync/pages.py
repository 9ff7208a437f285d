# Generated from ../_async/pages.py by scripts/unasync.py: change that file instead.
"""Iterates over the entries of a list, page by page."""

from __future__ import annotations

from typing import Callable, Generic, Iterator, Optional, TypeVar

from ..errors import UnexpectedResponseError
from ..models.page import Page

T = TypeVar("T")


class Pages(Generic[T]):
    """All entries of a list: iterate over it, or over its `pages()`. Requests the next page when it is needed."""

    def __init__(self, fetch: Callable[[Optional[str]], Page[T]], after: Optional[str] = None) -> None:
        self._fetch = fetch
        self._after = after

    def first(self) -> Page[T]:
        """Returns the first page only."""
        return self._fetch(self._after)

    def pages(self) -> Iterator[Page[T]]:
        """Iterates over the pages."""
        after = self._after
        while True:
            page = self._fetch(after)
            yield page
            if page.next is None:
                return
            if page.next == after:
                raise UnexpectedResponseError(f"the cursor {after!r} leads to itself")
            after = page.next

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            for entry in page.data:
                yield entry
