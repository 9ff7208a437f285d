"""Workers in programs of their own: signals. And the trace of a handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster import AnyServer
from support import eventually
from workers import Subscribed, working

SOURCE = str(Path(__file__).resolve().parent.parent / "src")

PROGRAMS = {
    "sync": """
import sys, time
from redrive import Redrive
client = Redrive(sys.argv[1])
@client.worker(sys.argv[2], lease=2.0)
def handle(event):
    print("began", flush=True)
    time.sleep(float(sys.argv[3]))
    print("ended", flush=True)
handle.run()
print("stopped", flush=True)
""",
    "async": """
import asyncio, sys
from redrive import AsyncRedrive
async def main():
    async with AsyncRedrive(sys.argv[1]) as client:
        @client.worker(sys.argv[2], lease=2.0)
        async def handle(event):
            print("began", flush=True)
            await asyncio.sleep(float(sys.argv[3]))
            print("ended", flush=True)
        await handle.run()
        print("stopped", flush=True)
asyncio.run(main())
""",
}


def program(flavour: str, server: AnyServer, subscription: str, seconds: float) -> subprocess.Popen[str]:
    """Starts a program whose handler takes this long."""
    command = [sys.executable, "-c", PROGRAMS[flavour], server.url, subscription, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_worker_after_its_handlers(
    flavour: str, server: AnyServer, orders: Subscribed, number: signal.Signals
) -> None:
    id = orders.publish()
    with program(flavour, server, orders.name, 0.5) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        assert process.stdout.read() == "ended\nstopped\n"
        assert process.wait(10) == 0
    orders.ended(id)


def test_a_second_signal_ends_the_program_at_once(flavour: str, server: AnyServer, orders: Subscribed) -> None:
    orders.publish()
    with program(flavour, server, orders.name, 60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.terminate()
        time.sleep(0.3)
        process.terminate()
        assert process.wait(5) == -signal.SIGTERM


def test_the_span_of_a_handler_continues_the_trace_of_the_publisher(server: AnyServer, orders: Subscribed) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    trace.set_tracer_provider(sdk.TracerProvider())
    found: list[Any] = []
    with trace.get_tracer("test").start_as_current_span("checkout") as publisher:
        orders.publish()
    with working("sync", server, orders.name, lambda _: found.append(trace.get_current_span())):
        eventually(lambda: found)
    (span,) = found
    assert span.name == f"process {orders.type}" and span.kind == trace.SpanKind.CONSUMER
    assert span.get_span_context().trace_id == publisher.get_span_context().trace_id
    assert span.attributes["redrive.subscription"] == orders.name
