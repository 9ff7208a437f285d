"""Publishes an event in your own PostgreSQL transaction: the SQL and arguments of `redrive.publish(…)`.

The change and its event are committed together or not at all. Commit as usual; dispatchers are notified by the commit.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, Literal, Mapping, NamedTuple, Optional, Union, overload
from uuid import UUID

PARAMETERS = (("type", "text"), ("payload", "json"), ("id", "uuid"), ("metadata", "json"), ("due", "timestamptz"))


class Statement(NamedTuple):
    """SQL with positional arguments: `cursor.execute(*statement)`."""

    sql: str
    args: tuple[Any, ...]


class NamedStatement(NamedTuple):
    """SQL with named arguments: `session.execute(text(statement.sql), statement.args)`."""

    sql: str
    args: dict[str, Any]


@overload
def publish_statement(
    type: str,
    payload: Any,
    *,
    id: Union[str, UUID, None] = ...,
    metadata: Optional[Mapping[str, str]] = ...,
    due_at: Optional[datetime] = ...,
    schema: str = ...,
    style: Literal["format", "numeric"] = ...,
) -> Statement: ...


@overload
def publish_statement(
    type: str,
    payload: Any,
    *,
    id: Union[str, UUID, None] = ...,
    metadata: Optional[Mapping[str, str]] = ...,
    due_at: Optional[datetime] = ...,
    schema: str = ...,
    style: Literal["named"],
) -> NamedStatement: ...


def publish_statement(
    type: str,
    payload: Any,
    *,
    id: Union[str, UUID, None] = None,
    metadata: Optional[Mapping[str, str]] = None,
    due_at: Optional[datetime] = None,
    schema: str = "redrive",
    style: Literal["format", "named", "numeric"] = "format",
) -> Union[Statement, NamedStatement]:
    """Returns the statement that publishes an event; its result is the id.

    `style` is `format` (`%s`: psycopg, Django), `named` (`:type`: SQLAlchemy `text`) or `numeric` (`$1`: asyncpg).
    """
    values: dict[str, Any] = {
        "type": type,
        "payload": json.dumps(payload, ensure_ascii=False, allow_nan=False),
        "id": None if id is None else str(id),
        "metadata": json.dumps(dict(metadata), ensure_ascii=False) if metadata else None,
        "due": None if due_at is None else due_at.astimezone(timezone.utc).isoformat(),
    }
    marks = {"format": "%s", "named": ":{name}", "numeric": "${number}"}[style]
    # asyncpg binds by the type of the cast: everything is text first.
    inner = "CAST({mark} AS text)"
    call = ", ".join(
        f"CAST({inner.format(mark=marks.format(name=name, number=number))} AS {kind})"
        for number, (name, kind) in enumerate(PARAMETERS, 1)
    )
    sql = f"SELECT {_quoted(schema)}.publish({call})"
    return NamedStatement(sql, values) if style == "named" else Statement(sql, tuple(values.values()))


def _quoted(schema: str) -> str:
    if re.fullmatch(r"[a-z_][a-z0-9_]*", schema):
        return schema
    if "\0" in schema or "%" in schema or ":" in schema or not schema:
        raise ValueError(f"{schema!r} is not the name of a schema")
    return '"' + schema.replace('"', '""') + '"'
