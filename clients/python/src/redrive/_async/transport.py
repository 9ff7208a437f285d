"""Carries requests over httpx."""

from __future__ import annotations

import ssl
from typing import Optional

from .._http import Request, Response, ServerUrl
from ..errors import ConnectionFailedError

try:
    import httpx
except ModuleNotFoundError as missing:  # pragma: no cover
    raise ModuleNotFoundError("AsyncRedrive needs httpx: pip install 'redrive[async]'") from missing

MAX_IDLE_SECONDS = 10.0
"""A kept connection that was idle for longer is closed: the server closes it after 15 s."""


class AsyncTransport:
    """Connections to one server, or an httpx client of the caller's own.

    Each connection is an httpx client by itself: the pool of a client looks at all of its connections for every request.
    """

    def __init__(self, server: ServerUrl, *, client: Optional[httpx.AsyncClient] = None, max_idle: int = 64) -> None:
        self._server = server
        self._base = str(server)
        self._client = client
        self._max_idle = max_idle
        self._idle: list[httpx.AsyncClient] = []
        self._closed = False
        self._verify = ssl.create_default_context() if server.scheme == "https" else False

    async def send(self, request: Request) -> Response:
        """Sends a request and reads the response to its end. Raises `ConnectionFailedError` if none arrives."""
        if self._client is not None:
            return await self._exchange(self._client, request)
        if self._closed:
            raise _failure("the client is closed", unsent=True)
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            return await self._exchange(connection, request)
        finally:
            if self._closed or len(self._idle) >= self._max_idle:
                await connection.aclose()
            else:
                self._idle.append(connection)

    async def aclose(self) -> None:
        """Closes the connections. A client of the caller's own stays open."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.aclose()

    def _connect(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=MAX_IDLE_SECONDS)
        # The address of the server is explicit: proxies of the environment are ignored.
        return httpx.AsyncClient(limits=limits, trust_env=False, verify=self._verify)

    async def _exchange(self, connection: httpx.AsyncClient, request: Request) -> Response:
        try:
            response = await connection.request(
                request.method,
                self._base + request.target,
                content=request.body,
                headers=dict(request.headers),
                timeout=request.timeout,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
            detail = f"{self._server} {'is unreachable' if unsent else 'did not respond'}: {str(error) or type(error).__name__}"
            raise _failure(detail, unsent=unsent) from error
        return Response(response.status_code, response.headers.get("retry-after"), response.content)


def _failure(detail: str, *, unsent: bool) -> ConnectionFailedError:
    error = ConnectionFailedError(detail, code="network_error")
    error.unsent = unsent
    return error
