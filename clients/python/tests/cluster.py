"""Three servers on one PostgreSQL database, behind a load balancer."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Union

from proxy import RoundRobinProxy
from redrive import AsyncRedrive, Redrive
from redrive.testing import RedriveTestServer


class Cluster:
    """Servers on a schema of their own. A context manager."""

    def __init__(self, postgres: str, size: int = 3) -> None:
        self._db = f"{postgres}?schema=py_{uuid.uuid4().hex}"
        self._size = size
        self._running = contextlib.ExitStack()
        self.servers: list[RedriveTestServer] = []
        self.proxy = RoundRobinProxy([])

    @property
    def url(self) -> str:
        """Address of the load balancer."""
        return self.proxy.url

    def client(self, **options: Any) -> Redrive:
        """Returns a client of the load balancer."""
        return Redrive(self.url, **options)

    def async_client(self, **options: Any) -> AsyncRedrive:
        """Returns an asynchronous client of the load balancer."""
        return AsyncRedrive(self.url, **options)

    def restart(self, *, crash: bool = False) -> Cluster:
        """Restarts the first server."""
        self.servers[0].restart(crash=crash)
        return self

    def __enter__(self) -> Cluster:
        folder = self._running.enter_context(tempfile.TemporaryDirectory(prefix="redrive-cluster-"))
        options = ["--secret-key-file", f"{folder}/secret.key"]  # one key for all
        self.servers = [RedriveTestServer(db=self._db, options=options) for _ in range(self._size)]
        for server in self.servers:
            self._running.callback(server.close)
        self.servers[0].start()  # creates the schema
        with ThreadPoolExecutor() as pool:
            list(pool.map(RedriveTestServer.start, self.servers[1:]))
        self.proxy = self._running.enter_context(RoundRobinProxy([server.url for server in self.servers]))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


AnyServer = Union[RedriveTestServer, Cluster]
