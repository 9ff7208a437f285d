"""Writes request bodies and lengths of time."""

from __future__ import annotations

import json
from datetime import timedelta
from enum import Enum
from typing import Any, Union
from uuid import UUID

Seconds = Union[float, timedelta]
"""A length of time: seconds, or a `timedelta`."""


class Unset(Enum):
    """Tells a missing argument from `None`."""

    UNSET = "unset"


UNSET = Unset.UNSET


def seconds(length: Seconds) -> float:
    """Returns a length of time in seconds."""
    return length.total_seconds() if isinstance(length, timedelta) else float(length)


def millis(length: Seconds) -> int:
    """Returns a length of time in whole milliseconds."""
    return round(seconds(length) * 1000)


def dumps(value: Any) -> bytes:
    """Writes JSON as UTF-8. Refuses NaN and infinity, which JSON cannot represent, and lone surrogates."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON: convert it to text, a number, a list or a dict")


def given(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are set."""
    return {name: value for name, value in fields.items() if value is not None and value is not UNSET}
