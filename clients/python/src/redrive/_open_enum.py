"""Enums that keep a name which this release does not know, so that a client reads the responses of a newer server."""

from __future__ import annotations

from enum import Enum
from typing import Any


class OpenEnum(str, Enum):
    """A text with known names; an unknown name is a value of its own and compares equal to its text."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = value
        member._value_ = value
        return member

    @property
    def is_known(self) -> bool:
        """Whether this release knows the name."""
        return self._value_ in type(self)._value2member_map_

    def __str__(self) -> str:
        return str.__str__(self)

    def __format__(self, spec: str) -> str:
        return str.__format__(self, spec)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return str.__hash__(self)
