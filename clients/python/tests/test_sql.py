"""Transactional publish: the statements, and their effect on PostgreSQL with psycopg, SQLAlchemy, Django and asyncpg."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any, Iterator

import pytest

from redrive import Redrive, publish_statement
from redrive.testing import RedriveTestServer

PAYLOAD = {"order": 7, "text": "100 % :of $1 'Zoë' \"x\""}


def test_statements_by_style() -> None:
    assert publish_statement("order.created", {"order": 7}) == (
        "SELECT redrive.publish(CAST(CAST(%s AS text) AS text), CAST(CAST(%s AS text) AS json), CAST(CAST(%s AS text) AS uuid), "
        "CAST(CAST(%s AS text) AS json), CAST(CAST(%s AS text) AS timestamptz))",
        ("order.created", '{"order": 7}', None, None, None),
    )
    named = publish_statement("order.created", 7, style="named", schema="Billing")
    assert named.sql.startswith(
        'SELECT "Billing".publish(CAST(CAST(:type AS text) AS text), CAST(CAST(:payload AS text) AS json)'
    )
    assert named.args["payload"] == "7"
    assert "$1" in publish_statement("order.created", 7, style="numeric").sql


@pytest.mark.parametrize("schema", ["", "a:b", "a%b", "a\0b"])
def test_a_schema_that_breaks_the_statement_is_refused(schema: str) -> None:
    with pytest.raises(ValueError):
        publish_statement("order.created", 7, schema=schema)


@pytest.fixture(scope="module")
def client(postgres: str) -> Iterator[Redrive]:
    """A client of a server on this database, which creates the schema."""
    with RedriveTestServer(db=postgres) as server, server.client() as connected:
        yield connected


def test_psycopg_commits_the_change_and_its_event_together(postgres: str, client: Redrive) -> None:
    psycopg = pytest.importorskip("psycopg")
    own = uuid.uuid4()
    due = datetime(2031, 1, 31, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS account (id int PRIMARY KEY, cents int)")
        statement = publish_statement("account.debited", PAYLOAD, id=own, metadata={"tenant": "t-1"}, due_at=due)
        assert connection.execute(*statement).fetchone() == (own,)
        assert connection.execute(*statement).fetchone() == (own,), "an id twice is one event"
        connection.commit()
        connection.execute(*publish_statement("account.rolled_back", PAYLOAD))
        connection.rollback()
    event = client.events.get(own)
    assert (event.payload, event.metadata, event.due_at) == (PAYLOAD, {"tenant": "t-1"}, due)
    assert not list(client.events.list(type="account.rolled_back"))


def test_sqlalchemy(postgres: str, client: Redrive) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(postgres.replace("postgres://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        statement = publish_statement("account.debited", PAYLOAD, style="named")
        id = connection.execute(sqlalchemy.text(statement.sql), statement.args).scalar_one()
    engine.dispose()
    assert client.events.get(id).payload == PAYLOAD


def test_django(postgres: str, client: Redrive) -> None:
    django = pytest.importorskip("django")
    from urllib.parse import urlsplit

    from django.conf import settings
    from django.db import connection, transaction

    parts = urlsplit(postgres)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    settings.configure(DATABASES={"default": database})
    django.setup()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(*publish_statement("account.debited", PAYLOAD))
        (id,) = cursor.fetchone()
    connection.close()
    assert client.events.get(id).payload == PAYLOAD


def test_asyncpg(postgres: str, client: Redrive) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def main() -> Any:
        connection = await asyncpg.connect(postgres)
        statement = publish_statement("account.debited", PAYLOAD, metadata={"a": "b"}, style="numeric")
        async with connection.transaction():
            id = await connection.fetchval(statement.sql, *statement.args)
        await connection.close()
        return id

    event = client.events.get(str(asyncio.run(main())))
    assert (event.payload, event.metadata) == (PAYLOAD, {"a": "b"})
