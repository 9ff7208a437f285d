"""`Worker`: pulls the events of a subscription and runs a handler on threads."""

from __future__ import annotations

import contextvars
import logging
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from .._settle import MAX_BATCH, PULL_DELAY_SECONDS, RELEASE, Backoff, InFlightLeases, Settlement, failed
from .._trace import process_span
from ..errors import RedriveError
from ..models.retry import Retry
from ..models.subscriptions import LeasedEvent
from .settler import Settler
from .transport import Transport

if TYPE_CHECKING:
    from .client import Redrive

log = logging.getLogger("redrive.worker")

Handler = Callable[[LeasedEvent], object]


class Worker:
    """Runs a handler for the events of a pull subscription.

    The worker pulls events by long poll, extends their leases while handlers run, acks in batches, and nacks failures with their
    traceback. A handler returns to ack; it raises `Snooze`, `PermanentFailure`, `RetryAfter` or any other exception to nack.
    Calling the worker calls the handler, for tests.
    """

    def __init__(
        self,
        client: Redrive,
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
        self._lock = threading.Condition()
        self._free_slots = self._capacity
        self._in_flight = InFlightLeases(lease)
        self._work: queue.SimpleQueue[Optional[LeasedEvent]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pulls: Optional[Redrive] = None
        self._settler: Optional[Settler] = None
        self._error: Optional[BaseException] = None
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_run = False

    def __call__(self, delivery: LeasedEvent) -> object:
        """Calls the handler."""
        return self.handler(delivery)

    def run(self, *, handle_signals: bool = True) -> None:
        """Runs until `stop()`, SIGINT or SIGTERM; then finishes the running handlers. A second signal stops at once."""
        self._is_run = True
        restore = self._install_signals() if handle_signals else (lambda: None)
        try:
            self.start()
            self._ended.get()
            self._shut_down(self._shutdown_timeout)
        finally:
            restore()
        if self._error is not None:
            raise self._error

    def start(self) -> None:
        """Starts the threads and returns."""
        if self._threads:
            raise RuntimeError("this worker was started before: create another one")
        if self._patterns is not None:
            self._client.subscriptions.put(self.subscription, self._patterns, lease=self._lease, retry=self._retry)
        self._pulls = self._client.with_transport(Transport(self._client.server))
        self._settler = Settler(self._client.subscriptions, self.subscription, self._lock, self._in_flight, self._lease)
        self._spawn("pull", self._pull_loop)
        self._spawn("settle", self._settler.settle_loop)
        self._spawn("extend", self._settler.extend_loop)
        for number in range(self._concurrency):
            self._spawn(f"handler-{number}", self._handle_loop)

    def stop(self, timeout: Optional[float] = None) -> None:
        """Stops pulling, waits for running handlers, releases deliveries that have not begun, and settles the rest.

        Inside `run()` this only asks for the end, so a handler and other threads may call it.
        """
        self._stopping.set()
        self._ended.put(None)
        if not self._is_run and self._pulls is not None and threading.current_thread() not in self._threads:
            self._shut_down(self._shutdown_timeout if timeout is None else timeout)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def in_flight(self) -> int:
        """Number of events that are pulled and not settled."""
        with self._lock:
            return len(self._in_flight)

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(target,), name=f"redrive-{self.subscription}-{name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _pull_loop(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = 0.0
            with self._lock:
                while self._free_slots == 0 and not self._stopping.is_set():
                    self._lock.wait(1.0)
                self._lock.wait_for(self._is_worth_a_pull, PULL_DELAY_SECONDS)
                wanted = min(self._free_slots, MAX_BATCH)
            if self._stopping.is_set():
                break
            try:
                pulled = self._pull(wanted)
            except RedriveError as error:
                if self._stopping.is_set():
                    break
                if error.status is not None and error.status < 500 and error.status not in (408, 409, 429):
                    self._fail(error)
                    return
                pause = max(error.retry_after or 0.0, 0.5)
                log.warning("%s: pull failed, again in %.1f s: %s", self.subscription, pause, error)
                continue
            for delivery in pulled:
                self._work.put(delivery)

    def _is_worth_a_pull(self) -> bool:
        return self._free_slots >= self._capacity // 4 or self._stopping.is_set()

    def _pull(self, wanted: int) -> list[LeasedEvent]:
        assert self._pulls is not None
        pulls = self._pulls.subscriptions
        pulled = pulls.pull(self.subscription, max=wanted, wait=self._poll, lease=self._lease, max_attempts=1)
        now = time.monotonic()
        with self._lock:
            self._free_slots -= len(pulled)
            self._in_flight.add([delivery.lease for delivery in pulled], now)
        return pulled

    def _handle_loop(self) -> None:
        while True:
            delivery = self._work.get()
            if delivery is None:
                return
            if self._stopping.is_set():
                self._settle(Settlement(delivery.lease, RELEASE))
                continue
            with self._lock:
                is_lost = delivery.lease not in self._in_flight
            if is_lost:  # its lease ended before it began: another consumer has it
                self._settle(None)
                continue
            self._settle(self._handle(delivery))

    def _handle(self, delivery: LeasedEvent) -> Settlement:
        try:
            with process_span(delivery, self.subscription):
                self.handler(delivery)
            return Settlement(delivery.lease)
        except BaseException as error:  # also SystemExit: the handler failed, and the worker goes on
            log.info("%s: %s %s was not handled: %s", self.subscription, delivery.type, delivery.id, error)
            return failed(delivery, error, self._backoff)

    def _settle(self, settlement: Optional[Settlement]) -> None:
        assert self._settler is not None
        if settlement is not None:
            self._settler.put(settlement)
        with self._lock:
            self._free_slots += 1
            if self._free_slots == 1 or self._free_slots >= self._capacity // 4:
                self._lock.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Ends `run()` with this error, which no repetition mends."""
        log.error("%s: the worker stops: %s", self.subscription, error)
        self._error = error
        self._stopping.set()
        self._ended.put(None)

    def _shut_down(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._stopping.set()
        with self._lock:
            self._lock.notify_all()
        if self._pulls is not None:
            self._pulls.close()  # ends a long poll
        handlers = [thread for thread in self._threads if "-handler-" in thread.name]
        for _ in handlers:
            self._work.put(None)
        for thread in handlers:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in handlers):
            log.warning("%s: handlers still run after %.0f s; their leases end", self.subscription, timeout)
        if self._settler is not None:
            self._settler.close()
        for thread in self._threads:
            if thread not in handlers and thread is not threading.current_thread():
                thread.join(max(1.0, deadline - time.monotonic()))

    def _install_signals(self) -> Callable[[], None]:
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        before: dict[int, Any] = {}

        def on_signal(number: int, frame: Any) -> None:
            # SimpleQueue.put is reentrant: safe in a signal handler, unlike Event.set.
            self._ended.put(None)
            previous = before.get(number)
            signal.signal(number, previous if callable(previous) else signal.SIG_DFL)

        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, on_signal)

        def restore() -> None:
            for number, previous in before.items():
                if signal.getsignal(number) is on_signal:
                    signal.signal(number, previous)

        return restore
