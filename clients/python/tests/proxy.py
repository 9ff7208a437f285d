"""A round-robin load balancer for tests."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from typing import Optional, Sequence
from urllib.parse import urlsplit

BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class RoundRobinProxy:
    """Forwards each request to the next server, without health checks.

    If that server is down, or dies before it answers, the answer is 502, so that clients have to repeat. Each connection serves one
    request. A context manager.
    """

    def __init__(self, upstreams: Sequence[str]) -> None:
        self.requests: Counter[str] = Counter()
        """Requests by the last part of their path, such as `ack`."""
        self.bad_gateways = 0
        self._upstreams = itertools.cycle([urlsplit(upstream) for upstream in upstreams])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Optional[asyncio.AbstractServer] = None
        self._port = 0

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> RoundRobinProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            head, _, rest = (await client.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            headers = [line for line in rest.split(b"\r\n") if line]
            names = {name.lower(): value for name, _, value in (line.partition(b":") for line in headers)}
            body = await client.readexactly(int(names.get(b"content-length", b"0")))
            self.requests[head.split()[1].decode().rsplit("/", 1)[-1]] += 1
            kept = [line for line in headers if not line.lower().startswith(b"connection:")]
            request = b"\r\n".join([head, *kept, b"connection: close", b"", body])
            if not await self._forward(request, client, to_client):
                self.bad_gateways += 1
                to_client.write(BAD_GATEWAY)
                await to_client.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            to_client.close()

    async def _forward(self, request: bytes, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        """Returns whether the server has answered, or the client has left."""
        upstream = next(self._upstreams)
        try:
            server, to_server = await asyncio.open_connection(upstream.hostname, upstream.port)
        except OSError:
            return False
        # A consumer that leaves a long poll gives its event back.
        leaves = asyncio.ensure_future(client.read(1))
        leaves.add_done_callback(lambda _: to_server.close())
        has_answered = False
        try:
            to_server.write(request)
            while data := await server.read(65536):
                has_answered = True
                to_client.write(data)
                await to_client.drain()
        except OSError:
            pass  # the server has died
        finally:
            has_left = leaves.done()
            leaves.cancel()
            to_server.close()
        return has_answered or has_left
