"""Repetitions of requests and iteration over pages, by the vectors that all clients share."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, is_dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from redrive import AsyncRedrive, NewEvent, Redrive, RedriveError, RetryOptions
from redrive._http import Request, Response
from redrive.testing import FakeClock
from support import AsyncScriptedTransport, ScriptedTransport, case_id, cases, connection_lost, problem, vectors

RETRIES = vectors("client_retries.json")
FLAVOURS = ("sync", "async")


def requested(client: Any, kind: str) -> Any:
    """Calls the client; an asynchronous one returns a coroutine."""
    if kind == "publish":
        return client.publish("order.created", {"order": 7})
    if kind == "publish_many":
        return client.publish_many([NewEvent("order.created", {"order": 7})])
    if kind == "ack":
        return client.subscriptions.ack("billing", ["a.b"])
    if kind == "pull":
        return client.subscriptions.pull("billing")
    send = {"get": client._api.get, "put": client._api.put, "delete": client._api.delete, "post": client._api.post}[
        kind
    ]
    return send("/v1/any", dict, {}) if kind == "put" else send("/v1/any", dict)


def call(flavour: str, scripted: ScriptedTransport, retries: RetryOptions, clock: FakeClock, kind: str) -> Any:
    """Makes one call with a client of this flavour."""
    if flavour == "sync":
        return requested(Redrive("http://127.0.0.1:1", transport=scripted, retries=retries, clock=clock), kind)  # type: ignore[arg-type]

    async def asynchronous() -> Any:
        transport: Any = AsyncScriptedTransport(scripted)
        return await requested(
            AsyncRedrive("http://127.0.0.1:1", transport=transport, retries=retries, clock=clock), kind
        )

    return asyncio.run(asynchronous())


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("case", RETRIES["cases"], ids=case_id)
def test_a_request_is_repeated_as_the_vectors_say(case: Any, flavour: str) -> None:
    policy = {**RETRIES["policy"], **case.get("policy", {})}

    def answer(request: Request, index: int) -> Any:
        step = case["script"][index]
        if step.get("network_error"):
            return connection_lost()
        body = RETRIES["problems"][step["problem"]] if "problem" in step else step.get("body")
        text = step["text"] if "text" in step else json.dumps(body)
        return Response(step["status"], step.get("headers", {}).get("retry-after"), text.encode())

    scripted = ScriptedTransport(answer)
    clock = FakeClock(datetime.fromisoformat(RETRIES["now"].replace("Z", "+00:00")).timestamp())
    retries = RetryOptions(
        max_attempts=policy["max_attempts"],
        base_delay=policy["base_delay_ms"] / 1000,
        max_delay=policy["max_delay_ms"] / 1000,
        multiplier=policy["multiplier"],
        jitter=policy["jitter"],
        max_retry_after=policy["max_retry_after_ms"] / 1000,
        deadline=policy["deadline_ms"] / 1000,
    )
    if "error" in case:
        expected = case["error"]
        with pytest.raises(RedriveError) as raised:
            call(flavour, scripted, retries, clock, case["request"])
        error = raised.value
        assert error.code == expected["code"]
        assert error.status == (expected.get("status", error.status) or None)
        assert error.outcome_unknown == expected["outcome_unknown"]
        if "retry_after_ms" in expected:
            assert error.retry_after == expected["retry_after_ms"] / 1000
    else:
        assert plain(call(flavour, scripted, retries, clock, case["request"])) == case["result"]
    assert len(scripted.requests) == case["requests"]
    assert [round(wait * 1000) for wait in clock.sleeps] == case["waits_ms"]
    if case["request"].startswith("publish"):
        assert len({(request.headers["idempotency-key"], request.body) for request in scripted.requests}) == 1


def plain(value: Any) -> Any:
    """Converts results to JSON."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("case", cases("pages.json"), ids=case_id)
def test_pages_are_fetched_as_the_vectors_say(case: Any, flavour: str) -> None:
    def answer(request: Request, index: int) -> Any:
        page = case["pages"][index]
        if "code" in page:
            return Response(page["status"], None, problem(page["status"], page["code"]))
        body = {"data": [event(id) for id in page["ids"]], "next": page["next"]}
        return Response(200, None, json.dumps(body).encode())

    scripted = ScriptedTransport(answer)
    items: list[str] = []
    try:
        list_ids(flavour, scripted, case["query"], case.get("take"), items)
        assert "error" not in case
    except RedriveError as error:
        assert error.code == case.get("error")
    assert items == case["items"]
    assert [dict(parse_qsl(urlsplit(request.target).query)) for request in scripted.requests] == case["requests"]


def list_ids(flavour: str, scripted: ScriptedTransport, query: Any, take: Any, items: list[str]) -> None:
    """Collects the ids of events, at most `take`."""
    if flavour == "sync":
        client = Redrive("http://127.0.0.1:1", transport=scripted, clock=FakeClock())  # type: ignore[arg-type]
        for entry in islice(client.events.list(**query), take):
            items.append(entry.id)
        return

    async def asynchronous() -> None:
        transport: Any = AsyncScriptedTransport(scripted)
        async for entry in AsyncRedrive("http://127.0.0.1:1", transport=transport, clock=FakeClock()).events.list(
            **query
        ):
            items.append(entry.id)
            if len(items) == take:
                return

    asyncio.run(asynchronous())


def event(id: str) -> dict[str, Any]:
    """Returns an entry of the list."""
    at = "2026-01-31T12:00:00Z"
    return {
        "id": id, "type": "order.created", "status": "a status of a later release", "metadata": {}, "retry_count": 0,
        "created_at": at, "updated_at": at, "due_at": None, "errors": [], "a_field_of_a_later_release": 1,
    }  # fmt: skip
