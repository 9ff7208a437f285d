"""Carries requests over kept connections of `http.client`. Thread-safe: a connection serves one request at a time."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
from typing import Optional

from .._http import Request, Response, ServerUrl
from ..errors import ConnectionFailedError

MAX_IDLE_SECONDS = 10.0
"""A kept connection that was idle for longer is closed: the server closes it after 15 s."""


class Transport:
    """A pool of connections to one server."""

    def __init__(self, server: ServerUrl, *, max_idle: int = 64) -> None:
        self._server = server
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._in_use: set[http.client.HTTPConnection] = set()
        self._closed = False
        self._tls: Optional[ssl.SSLContext] = ssl.create_default_context() if server.scheme == "https" else None

    def send(self, request: Request) -> Response:
        """Sends a request and reads the response to its end. Raises `ConnectionFailedError` if none arrives."""
        connection = self._acquire(request.timeout)
        try:
            response = self._exchange(connection, request)
        except (OSError, http.client.HTTPException) as error:
            self._drop(connection)
            raise ConnectionFailedError(
                f"{self._server} did not respond: {_message(error)}", code="network_error"
            ) from error
        except BaseException:
            self._drop(connection)
            raise
        return response

    def close(self) -> None:
        """Closes all connections; requests in flight fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            in_use = list(self._in_use)
        for _, connection in idle:
            connection.close()
        for connection in in_use:
            _interrupt(connection)

    def _exchange(self, connection: http.client.HTTPConnection, request: Request) -> Response:
        connection.request(request.method, self._server.prefix + request.target, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
        if response.will_close:
            self._drop(connection)
        else:
            self._release(connection)
        return Response(response.status, response.headers.get("retry-after"), body)

    def _acquire(self, timeout: float) -> http.client.HTTPConnection:
        """Returns a live kept connection, or a new one."""
        while True:
            with self._lock:
                if self._closed:
                    raise _unsent("the client is closed")
                if not self._idle:
                    break
                since, connection = self._idle.pop()
                self._in_use.add(connection)
            if time.monotonic() - since < MAX_IDLE_SECONDS and _is_live(connection):
                connection.sock.settimeout(timeout)
                return connection
            self._drop(connection)
        connection = self._connect(timeout)
        with self._lock:
            self._in_use.add(connection)
            closed = self._closed
        if closed:
            self._drop(connection)
            raise _unsent("the client is closed")
        return connection

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        server = self._server
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise _unsent(f"{server} is unreachable: {_message(error)}") from error
        return connection

    def _release(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._in_use.discard(connection)
            if not self._closed and len(self._idle) < self._max_idle:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._in_use.discard(connection)
        connection.close()


def _unsent(detail: str) -> ConnectionFailedError:
    error = ConnectionFailedError(detail, code="network_error")
    error.unsent = True
    return error


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _is_live(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has not closed the idle connection: a closed one is readable."""
    sock = connection.sock
    if sock is None:
        return False
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return not poll.poll(0)
        return not select.select([sock], [], [], 0)[0]
    except (OSError, ValueError):
        return False


def _interrupt(connection: http.client.HTTPConnection) -> None:
    """Ends a request in flight on another thread."""
    sock = connection.sock
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
