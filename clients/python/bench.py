"""Measures publishing beside a bare httpx loop, in turns, and both workers with a handler that does nothing.

REDRIVE_BIN=target/release/redrive python bench.py
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Awaitable, Callable

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

import httpx

from redrive import AsyncRedrive, LeasedEvent, NewEvent, Redrive
from redrive.testing import RedriveTestServer

PAYLOAD = {"order": 7, "total": 1250, "currency": "EUR", "items": ["apple", "pear"]}


async def in_flight(limit: int, count: int, publish: Callable[[], Awaitable[Any]]) -> float:
    """Calls `publish` `count` times, `limit` at a time; returns the calls per second."""
    numbers = itertools.repeat(None, count)

    async def loop() -> None:
        for _ in numbers:
            await publish()

    began = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(limit)))
    return count / (time.perf_counter() - began)


async def bench_publish(server: RedriveTestServer, rounds: int, count: int, limit: int) -> None:
    """Publishes with the client and with bare loops, in turns."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as bare, server.async_client() as client:
        keys = itertools.count()

        async def post(headers: dict[str, str]) -> None:
            body = json.dumps({"type": "bench.publish", "payload": PAYLOAD}).encode()
            response = await bare.post(server.url + "/v1/events", content=body, headers=headers)
            response.raise_for_status()
            response.json()

        plain = {"content-type": "application/json"}
        loops: dict[str, Callable[[], Awaitable[Any]]] = {
            "AsyncRedrive": lambda: client.publish("bench.publish", PAYLOAD),
            "bare httpx": lambda: post(plain),
            "bare httpx with a key": lambda: post({**plain, "idempotency-key": f"bench-{next(keys)}"}),
        }
        rates: dict[str, list[float]] = {name: [] for name in loops}
        for publish in loops.values():
            await in_flight(limit, count // 4, publish)  # warms up
        for _ in range(rounds):
            for name, publish in loops.items():
                rates[name].append(await in_flight(limit, count, publish))
    bare_rate = statistics.median(rates["bare httpx"])
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"publish, {limit} in flight, {name:22} {rate:7.0f}/s  ratio {rate / bare_rate:.2f}")


def bench_publish_in_threads(server: RedriveTestServer, count: int, limit: int) -> None:
    """Publishes with the synchronous client on threads."""
    with server.client() as client, ThreadPoolExecutor(limit) as pool:
        began = time.perf_counter()
        list(pool.map(lambda _: client.publish("bench.publish", PAYLOAD), range(count)))
        print(f"publish, {limit} threads,   {'Redrive':22} {count / (time.perf_counter() - began):7.0f}/s")


def fill(client: Redrive, subscription: str, count: int) -> None:
    """Publishes the events of a worker."""
    client.subscriptions.put(subscription, [f"{subscription}.*"])
    for start in range(0, count, 1000):
        client.publish_many(
            NewEvent(f"{subscription}.created", PAYLOAD) for _ in range(start, min(start + 1000, count))
        )


def report(name: str, count: int, began: float) -> None:
    """Prints the rate of a worker; it counts until every ack is stored."""
    print(f"worker, no-op handler,  {name:22} {count / (time.perf_counter() - began):7.0f}/s")


def bench_worker(server: RedriveTestServer, count: int, concurrency: int) -> None:
    """Runs the synchronous worker."""
    with server.client() as client:
        fill(client, "threads", count)
        left, done = itertools.count(count - 1, -1), threading.Event()

        def handle(_: LeasedEvent) -> None:
            if next(left) == 0:
                done.set()

        began = time.perf_counter()
        with client.worker("threads", handle, concurrency=concurrency, prefetch=200):
            done.wait()
        report("Worker", count, began)
        assert client.stats().open_deliveries == 0


async def bench_async_worker(server: RedriveTestServer, count: int, concurrency: int) -> None:
    """Runs the asynchronous worker."""
    with server.client() as filling:
        fill(filling, "tasks", count)
    async with server.async_client() as client:
        await run_async_worker(client, count, concurrency)


async def run_async_worker(client: AsyncRedrive, count: int, concurrency: int) -> None:
    """Handles all events of the subscription `tasks`."""
    left, done = count, asyncio.Event()

    async def handle(_: LeasedEvent) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    began = time.perf_counter()
    async with client.worker("tasks", handle, concurrency=concurrency, prefetch=200):
        await done.wait()
    report("AsyncWorker", count, began)
    assert (await client.stats()).open_deliveries == 0


def main() -> None:
    """Runs every measurement."""
    parser = argparse.ArgumentParser(description="Measure the client")
    parser.add_argument("--events", type=int, default=2000, help="events of one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--worker-events", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=50, help="handlers at a time")
    args = parser.parse_args()
    with RedriveTestServer() as server:
        asyncio.run(bench_publish(server, args.rounds, args.events, args.in_flight))
        bench_publish_in_threads(server, args.events, args.in_flight)
        bench_worker(server, args.worker_events, args.concurrency)
        asyncio.run(bench_async_worker(server, args.worker_events, args.concurrency))


if __name__ == "__main__":
    main()
