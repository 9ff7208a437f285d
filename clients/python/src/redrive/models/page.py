"""Pages of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Optional, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list: its entries, and the cursor of the next page (`None` on the last one)."""

    data: list[T]
    next: Optional[str]


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A list without pages."""

    data: list[T]
