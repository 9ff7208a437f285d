"""Helpers of the tests: shared vectors, scripted transports, waiting."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Optional, Union

import pytest

from redrive._http import Request, Response
from redrive.errors import ConnectionFailedError

VECTORS = Path(__file__).resolve().parents[2] / "vectors"

Answer = Union[Response, ConnectionFailedError]


def vectors(name: str) -> Any:
    """Reads a file of shared vectors. Skips the module while its generator has not written it."""
    path = VECTORS / name
    if not path.exists():
        pytest.skip(
            f"clients/vectors/{name} does not exist yet: it is generated from the Rust core", allow_module_level=True
        )
    return json.loads(path.read_text(encoding="utf-8"))


def cases(name: str) -> list[Any]:
    """Returns the cases of a file: the file is an array, or an object with `cases`."""
    document = vectors(name)
    found: list[Any] = document if isinstance(document, list) else document["cases"]
    assert found, f"{name} has no cases"
    return found


def case_id(case: Any) -> Optional[str]:
    """Names a parametrised test after its case."""
    return case["name"] if isinstance(case, dict) and "name" in case else None


class ScriptedTransport:
    """Answers requests from a function and records them. Serves the synchronous client; see `AsyncScriptedTransport`."""

    def __init__(self, answer: Callable[[Request, int], Answer]) -> None:
        self._answer = answer
        self.requests: list[Request] = []

    def send(self, request: Request) -> Response:
        self.requests.append(request)
        answer = self._answer(request, len(self.requests) - 1)
        if isinstance(answer, ConnectionFailedError):
            raise answer
        return answer

    def close(self) -> None:
        pass


class AsyncScriptedTransport:
    """Serves the asynchronous client from a `ScriptedTransport`."""

    def __init__(self, scripted: ScriptedTransport) -> None:
        self._scripted = scripted

    async def send(self, request: Request) -> Response:
        return self._scripted.send(request)

    async def aclose(self) -> None:
        pass


def connection_lost() -> ConnectionFailedError:
    """Returns the error of a connection that broke after the request was sent."""
    return ConnectionFailedError("the connection was reset", code="network_error")


def problem(status: int, code: str) -> bytes:
    """Returns a problem document."""
    return json.dumps(
        {"type": f"urn:redrive:problem:{code}", "title": code, "status": status, "code": code, "detail": code}
    ).encode()


def unique(prefix: str) -> str:
    """Returns a name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def eventually(condition: Callable[[], Any], timeout: float = 30.0) -> Any:
    """Waits until a condition holds, and returns its value."""
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)
