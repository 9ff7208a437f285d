# Generated from ../_async/subscriptions.py by scripts/unasync.py: change that file instead.
"""`client.subscriptions`: manages pull subscriptions, pulls events and settles them.

`client.worker` does the pulling and settling for you.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Union

from .._http import segment
from .._json import Seconds, given, millis, seconds
from ..models.page import Listing, Page
from ..models.retry import Retry
from ..models.subscriptions import LeasedEvent, LeaseResults, NackOutcome, Subscription
from .api import Api
from .pages import Pages


class Subscriptions:
    """Manages pull subscriptions, pulls events and settles them."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def put(
        self, name: str, patterns: Sequence[str], *, lease: Optional[Seconds] = None, retry: Optional[Retry] = None
    ) -> Subscription:
        """Creates or changes a subscription, which receives events published after this call."""
        body = given(
            patterns=list(patterns),
            lease_ms=None if lease is None else millis(lease),
            retry=None if retry is None else retry.to_json(),
        )
        return self._api.put(_path(name), Subscription, body)

    def list(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> Pages[Subscription]:
        """Iterates over subscriptions in the order of their names; `limit` is the size of a page."""

        def fetch(cursor: Optional[str]) -> Page[Subscription]:
            return self._api.get("/v1/subscriptions", Page[Subscription], {"limit": limit, "after": cursor})

        return Pages(fetch, after)

    def get(self, name: str) -> Subscription:
        """Returns one subscription."""
        return self._api.get(_path(name), Subscription)

    def remove(self, name: str) -> None:
        """Removes a subscription; its open deliveries are dead-lettered."""
        self._api.remove(_path(name))

    def pull(
        self,
        name: str,
        *,
        max: Optional[int] = None,
        wait: Seconds = 0.0,
        lease: Optional[Seconds] = None,
        max_attempts: Optional[int] = None,
    ) -> List[LeasedEvent]:
        """Pulls up to `max` events (10, at most 100), each under a lease; waits up to `wait` seconds for the first."""
        body = given(max=max, wait_ms=millis(wait), lease_ms=None if lease is None else millis(lease))
        # Not repeated after a lost response: its events are leased, and come again when their lease ends.
        pulled = self._api.post(
            _path(name, "/pull"),
            Listing[LeasedEvent],
            body,
            extra_time=seconds(wait),
            max_attempts=max_attempts,
        )
        return pulled.data

    def ack(self, name: str, leases: Sequence[str], *, max_attempts: Optional[int] = None) -> LeaseResults:
        """Settles events as handled; `lost` names the leases that had ended."""
        body = {"leases": list(leases)}
        return self._api.post(_path(name, "/ack"), LeaseResults, body, is_safe=True, max_attempts=max_attempts)

    def nack(
        self,
        name: str,
        leases: Sequence[str],
        *,
        outcome: Union[NackOutcome, str, None] = None,
        delay: Optional[Seconds] = None,
        reason: Optional[str] = None,
        max_attempts: Optional[int] = None,
    ) -> LeaseResults:
        """Settles events as failed (retried not before `delay`), as `snooze`, or as `permanent`; `reason` is recorded."""
        body = given(
            leases=list(leases),
            # The default is left out, for a server that does not know the field.
            outcome=None if outcome == NackOutcome.FAILED else outcome,
            delay_ms=None if delay is None else millis(delay),
            reason=reason,
        )
        return self._api.post(_path(name, "/nack"), LeaseResults, body, is_safe=True, max_attempts=max_attempts)

    def extend(
        self, name: str, leases: Sequence[str], *, lease: Seconds, max_attempts: Optional[int] = None
    ) -> LeaseResults:
        """Extends leases to `lease` seconds from now on."""
        body = {"leases": list(leases), "lease_ms": millis(lease)}
        return self._api.post(_path(name, "/extend"), LeaseResults, body, is_safe=True, max_attempts=max_attempts)


def _path(name: str, rest: str = "") -> str:
    return f"/v1/subscriptions/{segment(name)}{rest}"
