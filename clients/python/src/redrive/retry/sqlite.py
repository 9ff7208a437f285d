"""`SqliteIdempotencyStore`: idempotency keys and results in a SQLite file, shared by processes and kept across restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import contextmanager
from os import PathLike
from typing import Any, Generator, Mapping, Optional, Union

from .._clock import SYSTEM_CLOCK, Clock
from .idempotency import ABANDONED_SECONDS, IdempotencyRecord

_SCHEMA = """
CREATE TABLE IF NOT EXISTS redrive_idempotency (
    key TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    ends_at REAL NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    owner TEXT,
    result TEXT,
    metadata TEXT,
    error TEXT
) WITHOUT ROWID
"""

_COLUMNS = "state, ends_at, created_at, updated_at, owner, result, metadata, error"


class SqliteIdempotencyStore:
    """Keys and results in a file. Results and metadata are JSON. Every change is on stable storage when it returns."""

    is_blocking = True

    def __init__(self, path: Union[str, PathLike[str]], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(str(path), timeout=10.0, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(_SCHEMA)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    def begin(self, key: str, owner: str, lease: float) -> Optional[IdempotencyRecord]:
        """Claims the key and returns None, or returns the record of its holder or its result."""
        now = self._clock.now()
        with self._transaction() as connection:
            found = _read(connection, key)
            if found is not None and not found.may_be_claimed(owner, now):
                return found
            created_at = now if found is None or found.is_expired(now) else found.created_at
            _write(connection, key, IdempotencyRecord("in_progress", now + lease, created_at, now, owner))
            return None

    def extend(self, key: str, owner: str, lease: float) -> bool:
        """Renews the lease; False if the owner has lost the key."""
        now = self._clock.now()
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE redrive_idempotency SET ends_at = ?, updated_at = ? "
                "WHERE key = ? AND owner = ? AND state = 'in_progress'",
                (now + lease, now, key, owner),
            )
            return changed.rowcount == 1

    def complete(
        self, key: str, owner: Optional[str], result: Any, metadata: Optional[Mapping[str, Any]], keep: float
    ) -> bool:
        """Stores the result; False if the owner has lost the key. Without an owner it is stored in any case."""
        _json([result, metadata])  # refuses values that are not JSON before anything is written
        now = self._clock.now()
        with self._transaction() as connection:
            found = _read(connection, key)
            is_owned = found is not None and found.state == "in_progress" and found.owner == owner
            if owner is not None and not is_owned:
                return False
            created_at = now if found is None else found.created_at
            done = IdempotencyRecord("completed", now + keep, created_at, now, None, result, metadata)
            _write(connection, key, done)
            return True

    def release(self, key: str, owner: str, error: Optional[str], keep: float) -> bool:
        """Releases the key for the next caller. With an error the record stays visible as failed."""
        now = self._clock.now()
        with self._transaction() as connection:
            found = _read(connection, key)
            if found is None or found.state != "in_progress" or found.owner != owner:
                return False
            if error is None:
                connection.execute("DELETE FROM redrive_idempotency WHERE key = ?", (key,))
            else:
                failed = IdempotencyRecord("failed", now + keep, found.created_at, now, error=error)
                _write(connection, key, failed)
            return True

    def get(self, key: str) -> Optional[IdempotencyRecord]:
        """Returns the record of a key; None if it is absent or expired."""
        with self._lock:
            found = _read(self._connection, key)
        return None if found is None or found.is_expired(self._clock.now()) else found

    def clear(self, key: str) -> bool:
        """Deletes a key in any state; returns whether it existed."""
        with self._transaction() as connection:
            return connection.execute("DELETE FROM redrive_idempotency WHERE key = ?", (key,)).rowcount == 1

    def reap(self, limit: int = 1000) -> int:
        """Deletes at most `limit` expired records; returns their number."""
        now = self._clock.now()
        with self._transaction() as connection:
            deleted = connection.execute(
                "DELETE FROM redrive_idempotency WHERE key IN (SELECT key FROM redrive_idempotency "
                "WHERE ends_at <= CASE state WHEN 'in_progress' THEN ? ELSE ? END LIMIT ?)",
                (now - ABANDONED_SECONDS, now, limit),
            )
            return deleted.rowcount

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        with self._lock:
            # Immediate: a transaction that reads first and writes later would fail if another process writes in between.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def _read(connection: sqlite3.Connection, key: str) -> Optional[IdempotencyRecord]:
    row = connection.execute(f"SELECT {_COLUMNS} FROM redrive_idempotency WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    state, ends_at, created_at, updated_at, owner, result, metadata, error = row
    return IdempotencyRecord(state, ends_at, created_at, updated_at, owner, _value(result), _value(metadata), error)


def _write(connection: sqlite3.Connection, key: str, record: IdempotencyRecord) -> None:
    is_done = record.state == "completed"
    connection.execute(
        f"INSERT OR REPLACE INTO redrive_idempotency (key, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key,
            record.state,
            record.ends_at,
            record.created_at,
            record.updated_at,
            record.owner,
            _json(record.result) if is_done else None,
            _json(record.metadata) if record.metadata is not None else None,
            record.error,
        ),
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _value(text: Optional[str]) -> Any:
    return None if text is None else json.loads(text)
