"""Helpers for tests: a real server on a temporary file, a fake clock, and deliveries made by hand.

with RedriveTestServer() as server:
    client = server.client()
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from ._retrying import RetryOptions
from ._sync.client import Redrive
from .errors import RedriveError
from .models.subscriptions import LeasedEvent

if TYPE_CHECKING:
    from ._async.client import AsyncRedrive

__all__ = ["FakeClock", "RedriveTestServer", "delivery", "find_binary"]


def find_binary() -> str:
    """Returns the path of the `redrive` binary: `REDRIVE_BIN`, `PATH`, or the build of a checkout above this folder."""
    named = os.environ.get("REDRIVE_BIN")
    if named:
        return named
    found = shutil.which("redrive")
    if found is not None:
        return found
    for folder in [*Path.cwd().parents, Path.cwd(), *Path(__file__).resolve().parents]:
        for profile in ("release", "debug"):
            candidate = folder / "target" / profile / "redrive"
            if candidate.is_file() and (folder / "Cargo.toml").is_file():
                return str(candidate)
    raise FileNotFoundError("the binary `redrive` was not found: put it on PATH, or set REDRIVE_BIN")


class RedriveTestServer:
    """Runs `redrive serve` on a temporary file and a free port of this machine.

    Use it as a context manager, for example in a pytest fixture. Webhooks to this machine are allowed. `db` names another file, or a
    database such as `postgres://user@host/database`; servers that share it need one key, `--secret-key-file` in `options`.
    """

    def __init__(self, *, binary: Optional[str] = None, options: Sequence[str] = (), db: Optional[str] = None) -> None:
        self._binary = binary or find_binary()
        self._options = list(options)
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._db = db if db is None or "://" in db else os.path.abspath(db)
        self._address = "127.0.0.1:0"
        self._process: Optional[subprocess.Popen[str]] = None
        self._log: list[str] = []
        self._listening = threading.Event()

    @property
    def url(self) -> str:
        """Address of the server; it stays the same after a restart."""
        return f"http://{self._address}"

    @property
    def db(self) -> Optional[str]:
        """Database, for commands such as `redrive tokens create --db …`."""
        if self._db is not None or self._folder is None:
            return self._db
        return str(Path(self._folder.name) / "redrive.db")

    @property
    def log(self) -> str:
        """Output of the server so far."""
        return "".join(self._log)

    @property
    def pid(self) -> Optional[int]:
        """Process id, if it runs."""
        return None if self._process is None else self._process.pid

    def client(self, **options: Any) -> Redrive:
        """Returns a client of the server."""
        return Redrive(self.url, **options)

    def async_client(self, **options: Any) -> AsyncRedrive:
        """Returns an asynchronous client of the server."""
        from ._async.client import AsyncRedrive

        return AsyncRedrive(self.url, **options)

    def start(self, *, timeout: float = 20.0) -> RedriveTestServer:
        """Starts the server and waits until it is ready."""
        if self._process is not None:
            raise RuntimeError("the server runs already")
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="redrive-test-")
        command = [
            self._binary,
            "serve",
            "--db",
            str(self.db),
            "--listen",
            self._address,
            "--allow-range",
            "127.0.0.0/8",
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self._listening.clear()
        self._process = subprocess.Popen(
            [*command, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self._folder.name,
        )
        threading.Thread(target=self._read_log, args=(self._process,), daemon=True).start()
        deadline = time.monotonic() + timeout
        self._listening.wait(timeout)
        with self.client(retries=RetryOptions(max_attempts=1), timeout=5.0) as client:
            while self._process.poll() is None and time.monotonic() < deadline:
                try:
                    client.ready()
                    return self
                except RedriveError:
                    time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"the server did not start:\n{self.log}")

    def drain(self, *, timeout: float = 10.0) -> None:
        """Waits until every event is done or dead, for a test whose worker runs in the background."""
        deadline = time.monotonic() + timeout
        with self.client() as client:
            while True:
                stats = client.stats()
                if stats.pending + stats.processing == 0:
                    return
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"after {timeout:g} s {stats.pending + stats.processing} events are neither done nor dead"
                    )
                time.sleep(0.01)

    def stop(self, *, timeout: float = 40.0) -> None:
        """Stops the server gracefully (SIGTERM)."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """Kills the server as a crash does (SIGKILL). `start()` continues on the same file and port."""
        self._end(signal.SIGKILL, 10.0)

    def restart(self, *, crash: bool = False) -> RedriveTestServer:
        """Stops or kills the server and starts it on the same file and port."""
        if crash:
            self.kill()
        else:
            self.stop()
        return self.start()

    def close(self) -> None:
        """Stops the server and deletes its file."""
        self._end(signal.SIGKILL, 10.0)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> RedriveTestServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, number: signal.Signals, timeout: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10.0)
        if process.stdout is not None and number == signal.SIGKILL:
            process.stdout.close()

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._log.append(line)
                if "redrive listens on http://" in line:
                    self._address = line.split("http://", 1)[1].split()[0]
                    self._listening.set()
        except ValueError:
            pass  # closed after a kill
        self._listening.set()  # the process has ended: nothing to wait for


class FakeClock:
    """A clock that tests set. A sleep ends at once and moves the clock on; `sleeps` records it."""

    def __init__(self, now: float = 1_767_225_600.0) -> None:
        self._now = now
        self._steady = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Returns seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Returns seconds that never go back."""
        return self._steady

    def advance(self, seconds: float) -> None:
        """Moves the clock on."""
        self._now += seconds
        self._steady += seconds

    def sleep(self, seconds: float) -> None:
        """Moves the clock on instead of waiting."""
        self.sleeps.append(seconds)
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        """Moves the clock on instead of waiting, and lets other tasks run."""
        self.sleep(seconds)
        await asyncio.sleep(0)


def delivery(
    type: str,
    payload: Any,
    *,
    id: Optional[str] = None,
    metadata: Optional[Mapping[str, str]] = None,
    attempt: int = 1,
    max_attempts: int = 5,
) -> LeasedEvent:
    """Makes a delivery for a test that calls a handler directly."""
    now = datetime.now(timezone.utc)
    return LeasedEvent(
        lease="test",
        leased_until=now,
        id=id or str(uuid.uuid4()),
        type=type,
        payload=payload,
        metadata=dict(metadata or {}),
        created_at=now,
        attempt=attempt,
        max_attempts=max_attempts,
    )
