"""`AsyncWorker`: pulls the events of a subscription and runs a handler in tasks."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import TYPE_CHECKING, Awaitable, Callable, Optional, Sequence

from .._settle import MAX_BATCH, PULL_DELAY_SECONDS, RELEASE, Backoff, InFlightLeases, Settlement, failed
from .._trace import process_span
from ..errors import RedriveError
from ..models.retry import Retry
from ..models.subscriptions import LeasedEvent
from .settler import AsyncSettler

if TYPE_CHECKING:
    from .client import AsyncRedrive

log = logging.getLogger("redrive.worker")

Handler = Callable[[LeasedEvent], Awaitable[object]]


class AsyncWorker:
    """Runs an asynchronous handler for the events of a pull subscription.

    The worker pulls events by long poll, extends their leases while handlers run, acks in batches, and nacks failures with their
    traceback. A handler returns to ack; it raises `Snooze`, `PermanentFailure`, `RetryAfter` or any other exception to nack.
    Calling the worker calls the handler, for tests.
    """

    def __init__(
        self,
        client: AsyncRedrive,
        subscription: str,
        handler: Handler,
        *,
        patterns: Optional[Sequence[str]] = None,
        retry: Optional[Retry] = None,
        concurrency: int = 10,
        lease: float = 30.0,
        prefetch: int = 0,
        poll: float = 20.0,
        backoff: Optional[Backoff] = None,
        shutdown_timeout: float = 30.0,
    ) -> None:
        """Describes a worker.

        `patterns` creates or changes the subscription at the start, with the retry policy `retry`. `concurrency` is the number of
        handlers at a time, `lease` the seconds of a lease, `prefetch` the events kept beyond those that run, `poll` the seconds of a
        long poll (at most 30), `backoff` a function that returns the wait before the next attempt (None: the policy decides),
        `shutdown_timeout` the seconds for running handlers.
        """
        if concurrency < 1 or prefetch < 0:
            raise ValueError("concurrency is at least 1 and prefetch at least 0")
        if retry is not None and patterns is None:
            raise ValueError("retry changes the subscription, and needs its patterns: give patterns as well")
        self.subscription = subscription
        self.handler = handler
        self._client = client
        self._patterns = patterns
        self._retry = retry
        self._concurrency = concurrency
        self._capacity = concurrency + prefetch
        self._lease = lease
        self._poll = poll
        self._backoff = backoff
        self._shutdown_timeout = shutdown_timeout
        self._in_flight = InFlightLeases(lease)
        self._free_slots = self._capacity
        self._slot_freed: Optional[asyncio.Event] = None
        self._work: Optional[asyncio.Queue[LeasedEvent]] = None
        self._stopping: Optional[asyncio.Event] = None
        self._settler: Optional[AsyncSettler] = None
        self._tasks: list[asyncio.Task[None]] = []
        self._handlers: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Future[object]] = set()
        self._error: Optional[BaseException] = None
        self._is_run = False

    async def __call__(self, delivery: LeasedEvent) -> object:
        """Calls the handler."""
        return await self.handler(delivery)

    async def run(self, *, handle_signals: bool = True) -> None:
        """Runs until `stop()`, SIGINT or SIGTERM; then finishes the running handlers. A second signal stops at once."""
        self._is_run = True
        await self.start()
        assert self._stopping is not None
        restore = self._install_signals(self._stopping) if handle_signals else (lambda: None)
        try:
            await self._stopping.wait()
            await self._shut_down(self._shutdown_timeout)
        except asyncio.CancelledError:
            await self._shut_down(0.0)
            raise
        finally:
            restore()
        if self._error is not None:
            raise self._error

    async def start(self) -> None:
        """Starts the tasks and returns."""
        if self._stopping is not None:
            raise RuntimeError("this worker was started before: create another one")
        # Created here: before Python 3.10 these belong to the loop that creates them.
        self._stopping, self._slot_freed, self._work = asyncio.Event(), asyncio.Event(), asyncio.Queue()
        if self._patterns is not None:
            await self._client.subscriptions.put(
                self.subscription, self._patterns, lease=self._lease, retry=self._retry
            )
        self._settler = AsyncSettler(self._client.subscriptions, self.subscription, self._in_flight, self._lease)
        loops = (self._pull_loop(), self._settler.settle_loop(), self._settler.extend_loop())
        self._tasks = [asyncio.ensure_future(loop) for loop in loops]
        self._handlers = [asyncio.ensure_future(self._handle_loop()) for _ in range(self._concurrency)]

    async def stop(self, timeout: Optional[float] = None) -> None:
        """Stops pulling, waits for running handlers, releases deliveries that have not begun, and settles the rest.

        Inside `run()` this only asks for the end, so a handler and other tasks may call it.
        """
        if self._stopping is None:
            return
        self._stopping.set()
        if not self._is_run and asyncio.current_task() not in self._running:
            await self._shut_down(self._shutdown_timeout if timeout is None else timeout)

    async def __aenter__(self) -> AsyncWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def in_flight(self) -> int:
        """Number of events that are pulled and not settled."""
        return len(self._in_flight)

    async def _pull_loop(self) -> None:
        assert self._stopping is not None and self._slot_freed is not None and self._work is not None
        while not self._stopping.is_set():
            if self._free_slots == 0:
                self._slot_freed.clear()
                await self._slot_freed.wait()
            if self._free_slots < self._capacity // 4:
                await asyncio.sleep(PULL_DELAY_SECONDS)
            try:
                pulled = await self._client.subscriptions.pull(
                    self.subscription,
                    max=min(self._free_slots, MAX_BATCH),
                    wait=self._poll,
                    lease=self._lease,
                    max_attempts=1,
                )
            except RedriveError as error:
                if error.status is not None and error.status < 500 and error.status not in (408, 409, 429):
                    log.error("%s: the worker stops: %s", self.subscription, error)
                    self._error = error  # no repetition mends it
                    self._stopping.set()
                    return
                pause = max(error.retry_after or 0.0, 0.5)
                log.warning("%s: pull failed, again in %.1f s: %s", self.subscription, pause, error)
                await asyncio.sleep(pause)
                continue
            self._free_slots -= len(pulled)
            self._in_flight.add([delivery.lease for delivery in pulled], time.monotonic())
            for delivery in pulled:
                self._work.put_nowait(delivery)

    async def _handle_loop(self) -> None:
        assert self._work is not None and self._settler is not None and self._slot_freed is not None
        while True:
            delivery = await self._work.get()
            if delivery.lease in self._in_flight:  # otherwise its lease ended before it began: another consumer has it
                self._settler.put(await self._handle(delivery))
            self._free_slots += 1
            self._slot_freed.set()

    async def _handle(self, delivery: LeasedEvent) -> Settlement:
        try:
            with process_span(delivery, self.subscription):
                # A task of its own tells a cancellation inside the handler from one of the worker.
                running = asyncio.ensure_future(self.handler(delivery))
                self._running.add(running)
                try:
                    await asyncio.wait({running})
                finally:
                    self._running.discard(running)
                    running.cancel()
                if running.cancelled():
                    raise RuntimeError("the handler was cancelled")
                running.result()
            return Settlement(delivery.lease)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.info("%s: %s %s was not handled: %s", self.subscription, delivery.type, delivery.id, error)
            return failed(delivery, error, self._backoff)

    async def _shut_down(self, timeout: float) -> None:
        assert self._settler is not None and self._work is not None
        if self._tasks:
            pull = self._tasks[0]
            pull.cancel()
            await asyncio.gather(pull, return_exceptions=True)
        while not self._work.empty():
            self._settler.put(Settlement(self._work.get_nowait().lease, RELEASE))
        await self._until_idle(timeout)
        running = list(self._running)
        for task in self._handlers:
            task.cancel()
        await asyncio.gather(*self._handlers, *running, return_exceptions=True)
        self._settler.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks, self._handlers = [], []

    async def _until_idle(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._running:
            if loop.time() >= deadline:
                log.warning("%s: handlers still run after %.0f s; their leases end", self.subscription, timeout)
                return
            await asyncio.sleep(0.005)

    def _install_signals(self, stopping: asyncio.Event) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        installed: list[signal.Signals] = []

        def on_signal(number: signal.Signals) -> None:
            stopping.set()
            loop.remove_signal_handler(number)  # the next one has its usual effect
            installed.remove(number)

        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, on_signal, number)
                installed.append(number)
        except (NotImplementedError, RuntimeError, ValueError):
            pass  # not the main thread, or a platform without signals

        def restore() -> None:
            for number in list(installed):
                loop.remove_signal_handler(number)

        return restore
