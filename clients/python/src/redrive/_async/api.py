"""Sends typed requests, and repeats them within bounds."""

from __future__ import annotations

import json
import uuid
from typing import Any, Mapping, Optional, TypeVar

from .._clock import Clock
from .._decode import decode
from .._http import Request, read_retry_after, target
from .._json import dumps
from .._retrying import RetryOptions, wait_before_retry
from .._trace import trace_headers
from ..errors import RedriveError, UnexpectedResponseError, error_of
from .transport import AsyncTransport

T = TypeVar("T")


class AsyncApi:
    """Sends requests with the token of the client."""

    def __init__(
        self, transport: AsyncTransport, token: Optional[str], timeout: float, retries: RetryOptions, clock: Clock
    ) -> None:
        self._transport = transport
        self._timeout = timeout
        self._retries = retries
        self._clock = clock
        self._headers = {"accept": "application/json", "user-agent": "redrive-python/0.1"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    async def get(self, path: str, kind: type[T], query: Optional[Mapping[str, Any]] = None) -> T:
        """Sends GET and reads the response as this type."""
        return self._read(kind, await self.send("GET", target(path, query), None, is_safe=True))

    async def post(
        self,
        path: str,
        kind: type[T],
        body: Any = None,
        *,
        is_safe: bool = False,
        extra_time: float = 0.0,
        max_attempts: Optional[int] = None,
    ) -> T:
        """Sends POST and reads the response as this type."""
        content = None if body is None else dumps(body)
        answer = await self.send(
            "POST", path, content, is_safe=is_safe, extra_time=extra_time, max_attempts=max_attempts
        )
        return self._read(kind, answer)

    async def publish(self, path: str, kind: type[T], body: Any, key: Optional[str]) -> T:
        """Sends POST under an Idempotency-Key, so that any repetition is safe."""
        headers = {"idempotency-key": key or str(uuid.uuid4()), **trace_headers()}
        return self._read(kind, await self.send("POST", path, dumps(body), is_safe=True, headers=headers))

    async def put(self, path: str, kind: type[T], body: Any) -> T:
        """Sends PUT and reads the response as this type."""
        return self._read(kind, await self.send("PUT", path, dumps(body), is_safe=True))

    async def patch(self, path: str, kind: type[T], body: Any) -> T:
        """Sends PATCH and reads the response as this type. A change that names a version is not repeated blindly."""
        return self._read(kind, await self.send("PATCH", path, dumps(body), is_safe="version" not in body))

    async def delete(self, path: str, kind: type[T], query: Optional[Mapping[str, Any]] = None) -> T:
        """Sends DELETE and reads the response as this type."""
        return self._read(kind, await self.send("DELETE", target(path, query), None, is_safe=True))

    async def remove(self, path: str) -> None:
        """Sends DELETE, whose response has no body."""
        await self.send("DELETE", path, None, is_safe=True)

    async def send(
        self,
        method: str,
        path: str,
        content: Optional[bytes],
        *,
        is_safe: bool,
        headers: Optional[Mapping[str, str]] = None,
        extra_time: float = 0.0,
        max_attempts: Optional[int] = None,
    ) -> bytes:
        """Sends a request until it succeeds, or until no repetition is allowed; returns the body of the response."""
        sent = {**self._headers, **(headers or {})}
        if content is not None:
            sent["content-type"] = "application/json"
        request = Request(method, path, sent, content, self._timeout + extra_time)
        attempt, began = 1, self._clock.monotonic()
        while True:
            try:
                response = await self._transport.send(request)
                if 200 <= response.status < 300:
                    return response.body
                asked = read_retry_after(response.retry_after, self._clock.now())
                raise error_of(response.status, response.body, asked)
            except RedriveError as error:
                if max_attempts is not None and attempt >= max_attempts:
                    raise
                elapsed = self._clock.monotonic() - began
                wait = wait_before_retry(self._retries, attempt, error, is_safe=is_safe, elapsed=elapsed)
                if wait is None:
                    raise
            await self._clock.asleep(wait)
            attempt += 1

    def _read(self, kind: type[T], body: bytes) -> T:
        try:
            return decode(kind, json.loads(body))
        except ValueError as error:
            detail = (
                f"the response cannot be read ({error}): is there a redrive server of this release behind the address?"
            )
            raise UnexpectedResponseError(detail) from error
