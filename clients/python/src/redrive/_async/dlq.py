"""`client.dlq`: looks at dead letters, redrives and deletes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, List, Optional, Union

from .._decode import format_time
from .._http import segment
from .._json import UNSET, Seconds, Unset, given, millis
from ..models.dlq import DeadGroups, DeadLetter, DeadReason, DeadSummary, Purged, RetriedDead, RetryReport
from ..models.page import Listing, Page
from .api import AsyncApi
from .events import EventId
from .pages import AsyncPages


def dlq_filter(
    *,
    type: Optional[str] = None,
    since: Optional[datetime] = None,
    until: Optional[datetime] = None,
    reason: Union[DeadReason, str, None] = None,
    text: Optional[str] = None,
    fingerprint: Optional[str] = None,
    subscription: Optional[str] = None,
) -> dict[str, Any]:
    """Returns the filter of dead letters; every given field must match."""
    return given(
        type=type,
        since=None if since is None else format_time(since),
        until=None if until is None else format_time(until),
        reason=reason,
        text=text,
        fingerprint=fingerprint,
        subscription=subscription,
    )


class AsyncDlq:
    """Looks at dead letters, redrives and deletes them."""

    def __init__(self, api: AsyncApi) -> None:
        self._api = api

    def list(
        self,
        *,
        type: Optional[str] = None,
        since: Optional[datetime] = None,
        until: Optional[datetime] = None,
        reason: Union[DeadReason, str, None] = None,
        text: Optional[str] = None,
        fingerprint: Optional[str] = None,
        subscription: Optional[str] = None,
        limit: Optional[int] = None,
        after: Optional[str] = None,
    ) -> AsyncPages[DeadSummary]:
        """Iterates over dead letters, newest first; `limit` is the size of a page."""
        selected = dlq_filter(
            type=type,
            since=since,
            until=until,
            reason=reason,
            text=text,
            fingerprint=fingerprint,
            subscription=subscription,
        )

        async def fetch(cursor: Optional[str]) -> Page[DeadSummary]:
            return await self._api.get("/v1/dlq", Page[DeadSummary], {**selected, "limit": limit, "after": cursor})

        return AsyncPages(fetch, after)

    async def get(self, id: EventId) -> List[DeadLetter]:
        """Returns the dead letters of one event: one, or one for each subscription that is tracked on its own."""
        return (await self._api.get(f"/v1/dlq/{segment(id)}", Listing[DeadLetter])).data

    async def groups(
        self,
        *,
        type: Optional[str] = None,
        since: Optional[datetime] = None,
        until: Optional[datetime] = None,
        reason: Union[DeadReason, str, None] = None,
        text: Optional[str] = None,
        subscription: Optional[str] = None,
    ) -> DeadGroups:
        """Groups dead letters by target and error fingerprint, largest group first."""
        query = dlq_filter(type=type, since=since, until=until, reason=reason, text=text, subscription=subscription)
        return await self._api.get("/v1/dlq/groups", DeadGroups, query)

    async def retry(self, id: EventId, *, payload: Union[Any, Unset] = UNSET) -> str:
        """Redrives one event, optionally with another payload; returns its id."""
        body = {} if payload is UNSET else {"payload": payload}
        return (await self._api.post(f"/v1/dlq/{segment(id)}/retry", RetriedDead, body)).id

    async def retry_many(
        self,
        *,
        type: Optional[str] = None,
        since: Optional[datetime] = None,
        until: Optional[datetime] = None,
        reason: Union[DeadReason, str, None] = None,
        text: Optional[str] = None,
        fingerprint: Optional[str] = None,
        subscription: Optional[str] = None,
        dry_run: bool = False,
        rate: Optional[int] = None,
        limit: Optional[int] = None,
        after: Optional[str] = None,
    ) -> RetryReport:
        """Redrives the events that the filter matches, at most `limit` with one request; `rate` is events per second."""
        selected = dlq_filter(
            type=type,
            since=since,
            until=until,
            reason=reason,
            text=text,
            fingerprint=fingerprint,
            subscription=subscription,
        )
        body = {"filter": selected, "dry_run": dry_run, **given(rate=rate, limit=limit, after=after)}
        return await self._api.post("/v1/dlq/retry", RetryReport, body)

    async def purge(self, *, older_than: Seconds) -> int:
        """Deletes dead letters of events that were published at least this long ago; returns their number."""
        return (await self._api.delete("/v1/dlq", Purged, {"older_than": f"{millis(older_than)}ms"})).purged
