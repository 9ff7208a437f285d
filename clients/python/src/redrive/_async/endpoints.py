"""`client.endpoints`: manages the receivers of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import List, Mapping, Optional, Sequence, Union

from .._decode import format_time
from .._http import segment
from .._json import UNSET, Seconds, Unset, given, millis
from ..models.endpoints import AttemptRecord, CreatedEndpoint, Endpoint, EndpointAttempt, EndpointSecret, Signing
from ..models.page import Listing, Page
from ..models.replays import Replay, ReplayCount
from ..models.retry import Retry
from .api import AsyncApi
from .pages import AsyncPages


class AsyncEndpoints:
    """Manages the receivers of webhooks."""

    def __init__(self, api: AsyncApi) -> None:
        self._api = api

    async def create(
        self,
        url: str,
        patterns: Sequence[str],
        *,
        description: Optional[str] = None,
        enabled: Optional[bool] = None,
        headers: Optional[Mapping[str, str]] = None,
        retry: Optional[Retry] = None,
        timeout: Optional[Seconds] = None,
        per_second: Optional[float] = None,
        concurrency: Optional[int] = None,
        secret: Optional[str] = None,
        signing: Union[Signing, str, None] = None,
    ) -> CreatedEndpoint:
        """Creates an endpoint; the response has its secret."""
        body = given(
            url=url,
            patterns=list(patterns),
            description=description,
            enabled=enabled,
            headers=None if headers is None else dict(headers),
            retry=None if retry is None else retry.to_json(),
            timeout_ms=None if timeout is None else millis(timeout),
            per_second=per_second,
            concurrency=concurrency,
            secret=secret,
            signing=signing,
        )
        return await self._api.post("/v1/endpoints", CreatedEndpoint, body)

    def list(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> AsyncPages[Endpoint]:
        """Iterates over endpoints, oldest first; `limit` is the size of a page."""

        async def fetch(cursor: Optional[str]) -> Page[Endpoint]:
            return await self._api.get("/v1/endpoints", Page[Endpoint], {"limit": limit, "after": cursor})

        return AsyncPages(fetch, after)

    async def get(self, id: str) -> Endpoint:
        """Returns one endpoint."""
        return await self._api.get(_path(id), Endpoint)

    async def update(
        self,
        id: str,
        *,
        version: Optional[int] = None,
        url: Optional[str] = None,
        patterns: Optional[Sequence[str]] = None,
        description: Optional[str] = None,
        enabled: Optional[bool] = None,
        headers: Optional[Mapping[str, str]] = None,
        retry: Union[Retry, None, Unset] = UNSET,
        timeout: Optional[Seconds] = None,
        per_second: Union[float, None, Unset] = UNSET,
        concurrency: Optional[int] = None,
    ) -> Endpoint:
        """Changes an endpoint. A missing argument leaves the field; `None` removes `retry` and `per_second`."""
        body = given(
            version=version,
            url=url,
            patterns=None if patterns is None else list(patterns),
            description=description,
            enabled=enabled,
            headers=None if headers is None else dict(headers),
            timeout_ms=None if timeout is None else millis(timeout),
            concurrency=concurrency,
        )
        if not isinstance(retry, Unset):
            body["retry"] = None if retry is None else retry.to_json()
        if not isinstance(per_second, Unset):
            body["per_second"] = per_second
        return await self._api.patch(_path(id), Endpoint, body)

    async def remove(self, id: str) -> None:
        """Removes an endpoint; its open deliveries are dead-lettered."""
        await self._api.remove(_path(id))

    async def test(self, id: str) -> AttemptRecord:
        """Sends a message of the type `redrive.test` now."""
        return await self._api.post(_path(id, "/test"), AttemptRecord, extra_time=30.0)

    def attempts(
        self, id: str, *, failed: Optional[bool] = None, limit: Optional[int] = None, after: Optional[str] = None
    ) -> AsyncPages[EndpointAttempt]:
        """Iterates over attempts, newest first; `failed=True` selects the failed ones."""

        async def fetch(cursor: Optional[str]) -> Page[EndpointAttempt]:
            query = {"failed": failed, "limit": limit, "after": cursor}
            return await self._api.get(_path(id, "/attempts"), Page[EndpointAttempt], query)

        return AsyncPages(fetch, after)

    async def secrets(self, id: str) -> List[EndpointSecret]:
        """Returns the secrets, the newest first."""
        return (await self._api.get(_path(id, "/secret"), Listing[EndpointSecret])).data

    async def rotate_secret(
        self,
        id: str,
        *,
        secret: Optional[str] = None,
        signing: Union[Signing, str, None] = None,
        overlap: Optional[Seconds] = None,
    ) -> List[EndpointSecret]:
        """Rotates the secret; the previous one signs as well for `overlap` seconds, a day by default."""
        overlap_s = None if overlap is None else millis(overlap) // 1000
        body = given(secret=secret, signing=signing, overlap_s=overlap_s)
        return (await self._api.post(_path(id, "/secret/rotate"), Listing[EndpointSecret], body)).data

    async def replay(
        self,
        id: str,
        *,
        since: Optional[datetime] = None,
        until: Optional[datetime] = None,
        per_second: Optional[float] = None,
    ) -> Replay:
        """Starts a replay of the endpoint's dead letters."""
        body = {**_period(since, until), **given(per_second=per_second)}
        return await self._api.post(_path(id, "/replays"), Replay, body)

    async def count_replay(self, id: str, *, since: Optional[datetime] = None, until: Optional[datetime] = None) -> int:
        """Counts the dead letters that a replay would send."""
        body = {**_period(since, until), "dry_run": True}
        return (await self._api.post(_path(id, "/replays"), ReplayCount, body, is_safe=True)).would_replay


def _path(id: str, rest: str = "") -> str:
    return f"/v1/endpoints/{segment(id)}{rest}"


def _period(since: Optional[datetime], until: Optional[datetime]) -> dict[str, str]:
    return {name: format_time(at) for name, at in (("since", since), ("until", until)) if at is not None}
