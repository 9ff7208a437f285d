"""Reads JSON into dataclasses by their annotations.

Unknown fields are ignored and missing optional fields are `None`, so a client reads the responses of an older and of a newer server.
Integers stay exact: Python's have no limit.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from enum import Enum
from functools import lru_cache
from typing import Any, Callable, Optional, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

Read = Optional[Callable[[Any], Any]]
"""Converts a JSON value; None takes it as it is."""


def decode(kind: type[T], value: Any) -> T:
    """Reads a JSON value as this type. Raises `ValueError` if it does not fit."""
    read = reader(cast(Any, kind))
    try:
        return cast(T, value if read is None else read(value))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


@lru_cache(maxsize=None)
def reader(kind: Any) -> Read:
    """Returns the function that reads a JSON value as this type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Union:
        inner = reader(next(arg for arg in args if arg is not type(None)))
        return None if inner is None else (lambda value: None if value is None else inner(value))
    if origin is list:
        element = reader(args[0])
        return list if element is None else (lambda value: [element(item) for item in value])
    if origin is dict:
        return dict
    if origin is not None and dataclasses.is_dataclass(origin):
        return _dataclass_reader(origin, args)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind, ())
    if kind is datetime:
        return parse_time
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind is float:
        return float
    if kind is int:
        return _whole
    return None


def _dataclass_reader(kind: Any, args: tuple[Any, ...]) -> Callable[[Any], Any]:
    parameters = dict(zip(getattr(kind, "__parameters__", ()), args))
    fields = [
        (field.name.rstrip("_"), reader(_bound(hint, parameters)), _is_required(hint))
        for field in dataclasses.fields(kind)
        for hint in (get_type_hints(kind)[field.name],)
    ]

    def read(value: Any) -> Any:
        get = value.get
        found: list[Any] = []
        for name, convert, required in fields:
            raw = get(name)
            if raw is None:
                if required:
                    raise KeyError(name)
                found.append(None)
            else:
                found.append(raw if convert is None else convert(raw))
        return kind(*found)

    return read


def _bound(hint: Any, parameters: dict[Any, Any]) -> Any:
    if hint in parameters:
        return parameters[hint]
    if get_origin(hint) is list and get_args(hint)[0] in parameters:
        return list[parameters[get_args(hint)[0]]]  # type: ignore[misc]
    return hint


def _is_required(hint: Any) -> bool:
    return hint is not Any and type(None) not in get_args(hint)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def parse_time(text: str) -> datetime:
    """Reads an RFC 3339 time as the server writes it: UTC, with or without milliseconds."""
    if text.endswith("Z"):
        text = text[:-1] + "+00:00"
    return datetime.fromisoformat(text)


def format_time(at: datetime) -> str:
    """Writes a time as RFC 3339 in UTC. A time without a zone is local time, as everywhere in Python."""
    return at.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
