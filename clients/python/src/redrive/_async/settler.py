"""Settles and extends the leases of a worker, in two tasks."""

from __future__ import annotations

import asyncio
import logging
import time

from .._settle import MAX_BATCH, Batch, InFlightLeases, Settlement, batches, chunks
from ..errors import RedriveError
from ..models.subscriptions import LeaseResults
from .subscriptions import AsyncSubscriptions

log = logging.getLogger("redrive.worker")

COALESCE_SECONDS = 0.003
"""How long the first settlement waits for others."""

RETRY_DELAY_SECONDS = 0.2
"""Wait before a settlement is sent again that the server could not store."""


class AsyncSettler:
    """Sends acks and nacks in batches and extends the leases in flight."""

    def __init__(
        self, subscriptions: AsyncSubscriptions, subscription: str, in_flight: InFlightLeases, lease: float
    ) -> None:
        self._subscriptions = subscriptions
        self._subscription = subscription
        self._in_flight = in_flight
        self._lease = lease
        self._settlements: list[Settlement] = []
        self._changed = asyncio.Event()
        self._is_open = True
        self._closed = asyncio.Event()

    def put(self, settlement: Settlement) -> None:
        """Settles a lease soon."""
        self._settlements.append(settlement)
        self._changed.set()

    def close(self) -> None:
        """Ends both loops when everything is settled."""
        self._is_open = False
        self._changed.set()

    async def settle_loop(self) -> None:
        """Collects settlements for a few milliseconds and sends them, until `close()`."""
        while self._is_open or self._settlements:
            await self._changed.wait()
            if self._is_open and len(self._settlements) < MAX_BATCH:
                await asyncio.sleep(COALESCE_SECONDS)
            self._changed.clear()
            wanted, self._settlements = self._settlements, []
            await asyncio.gather(*(self._send(batch) for batch in batches(wanted)))
            if not self._is_open:
                self._changed.set()
        self._closed.set()

    async def extend_loop(self) -> None:
        """Extends every lease when a third of its time has passed, until everything is settled."""
        while not self._closed.is_set():
            try:
                await asyncio.wait_for(self._closed.wait(), min(max(self._lease / 12, 0.02), 1.0))
            except asyncio.TimeoutError:
                await self._extend_due()

    async def _extend_due(self) -> None:
        now = time.monotonic()
        for leases in chunks(self._in_flight.due(now)):
            try:
                result = await self._subscriptions.extend(self._subscription, leases, lease=self._lease, max_attempts=1)
            except RedriveError as error:
                log.warning("%s: %d leases not extended yet: %s", self._subscription, len(leases), error)
            else:
                self._in_flight.renewed(leases, now)
                # A lease that was settled meanwhile is not lost.
                self._lost([lease for lease in result.lost if lease in self._in_flight], "extended")

    async def _send(self, batch: Batch) -> None:
        """Sends one batch until the server decides, or until its leases have ended."""
        left = batch.leases
        while True:
            try:
                result = await self._request(Batch(left, batch.nack))
            except RedriveError as error:
                is_final = error.status is not None and error.status < 500 and error.status not in (408, 409, 429)
                ended = left if is_final else self._in_flight.ended(left, time.monotonic())
                if ended:
                    log.error("%s: %d leases not settled: %s", self._subscription, len(ended), error)
                    self._in_flight.remove(ended)
                    left = [lease for lease in left if lease not in ended]
                if not left:
                    return
                await asyncio.sleep(max(error.retry_after or 0.0, RETRY_DELAY_SECONDS))
            else:
                self._in_flight.remove(left)
                if result.lost:
                    log.warning("%s: %d leases had ended: delivered again", self._subscription, len(result.lost))
                return

    async def _request(self, batch: Batch) -> LeaseResults:
        nack = batch.nack
        if nack is None:
            return await self._subscriptions.ack(self._subscription, batch.leases, max_attempts=1)
        return await self._subscriptions.nack(
            self._subscription,
            batch.leases,
            outcome=nack.outcome,
            delay=None if nack.delay_ms is None else nack.delay_ms / 1000,
            reason=nack.reason,
            max_attempts=1,
        )

    def _lost(self, leases: list[str], action: str) -> None:
        if leases:
            log.warning("%s: %d leases were lost before they were %s", self._subscription, len(leases), action)
            self._in_flight.remove(leases)
