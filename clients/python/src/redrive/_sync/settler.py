"""Settles and extends the leases of a worker, on two threads."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Optional

from .._settle import MAX_BATCH, Batch, InFlightLeases, Settlement, batches, chunks
from ..errors import RedriveError
from ..models.subscriptions import LeaseResults
from .subscriptions import Subscriptions

log = logging.getLogger("redrive.worker")

COALESCE_SECONDS = 0.003
"""How long the first settlement waits for others."""

RETRY_DELAY_SECONDS = 0.2
"""Wait before a settlement is sent again that the server could not store."""


class Settler:
    """Sends acks and nacks in batches and extends the leases in flight."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        subscription: str,
        lock: threading.Condition,
        in_flight: InFlightLeases,
        lease: float,
    ) -> None:
        self._subscriptions = subscriptions
        self._subscription = subscription
        self._lock = lock
        self._in_flight = in_flight
        self._lease = lease
        self._settlements: queue.SimpleQueue[Optional[Settlement]] = queue.SimpleQueue()
        self._closed = threading.Event()

    def put(self, settlement: Settlement) -> None:
        """Settles a lease soon."""
        self._settlements.put(settlement)

    def close(self) -> None:
        """Ends both loops when everything is settled."""
        self._settlements.put(None)

    def settle_loop(self) -> None:
        """Collects settlements for a few milliseconds and sends them, until `close()`."""
        is_open = True
        while is_open:
            first = self._settlements.get()
            if first is None:
                break
            wanted, deadline = [first], time.monotonic() + COALESCE_SECONDS
            while len(wanted) < MAX_BATCH:
                try:
                    settlement = self._settlements.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    break
                if settlement is None:
                    is_open = False
                    break
                wanted.append(settlement)
            for batch in batches(wanted):
                self._send(batch)
        self._closed.set()

    def extend_loop(self) -> None:
        """Extends every lease when a third of its time has passed, until everything is settled."""
        while not self._closed.wait(min(max(self._lease / 12, 0.02), 1.0)):
            now = time.monotonic()
            with self._lock:
                due = self._in_flight.due(now)
            for leases in chunks(due):
                try:
                    result = self._subscriptions.extend(self._subscription, leases, lease=self._lease, max_attempts=1)
                except RedriveError as error:
                    log.warning("%s: %d leases not extended yet: %s", self._subscription, len(leases), error)
                else:
                    with self._lock:
                        # A lease that was settled meanwhile is not lost.
                        lost = [lease for lease in result.lost if lease in self._in_flight]
                        self._in_flight.renewed(leases, now)
                    self._lost(lost, "extended")

    def _send(self, batch: Batch) -> None:
        """Sends one batch until the server decides, or until its leases have ended."""
        left = batch.leases
        while True:
            try:
                result = self._request(Batch(left, batch.nack))
            except RedriveError as error:
                is_final = error.status is not None and error.status < 500 and error.status not in (408, 409, 429)
                with self._lock:
                    ended = left if is_final else self._in_flight.ended(left, time.monotonic())
                if ended:
                    log.error("%s: %d leases not settled: %s", self._subscription, len(ended), error)
                    self._forget(ended)
                    left = [lease for lease in left if lease not in ended]
                if not left:
                    return
                time.sleep(max(error.retry_after or 0.0, RETRY_DELAY_SECONDS))
            else:
                self._forget(left)
                if result.lost:
                    log.warning("%s: %d leases had ended: delivered again", self._subscription, len(result.lost))
                return

    def _request(self, batch: Batch) -> LeaseResults:
        nack = batch.nack
        if nack is None:
            return self._subscriptions.ack(self._subscription, batch.leases, max_attempts=1)
        return self._subscriptions.nack(
            self._subscription,
            batch.leases,
            outcome=nack.outcome,
            delay=None if nack.delay_ms is None else nack.delay_ms / 1000,
            reason=nack.reason,
            max_attempts=1,
        )

    def _forget(self, leases: list[str]) -> None:
        with self._lock:
            self._in_flight.remove(leases)

    def _lost(self, leases: list[str], action: str) -> None:
        if leases:
            log.warning("%s: %d leases were lost before they were %s", self._subscription, len(leases), action)
            self._forget(leases)
