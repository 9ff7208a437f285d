"""Outcomes of handlers, batches of settlements and leases in flight, without a server."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Optional

import pytest

from redrive import PermanentFailure, Redrive, RetryAfter, Snooze
from redrive._http import Response
from redrive._settle import RELEASE, InFlightLeases, Nack, Settlement, batches, failed, reason_of
from redrive.models import NackOutcome
from redrive.testing import delivery
from support import ScriptedTransport

EVENT = delivery("order.created", {})


@pytest.mark.parametrize(
    "error, outcome, delay_ms",
    [
        (Snooze(timedelta(minutes=5)), NackOutcome.SNOOZE, 300_000),
        (Snooze(0), NackOutcome.SNOOZE, 1),
        (Snooze(timedelta(days=9)), NackOutcome.SNOOZE, 86_400_000),
        (PermanentFailure("stolen"), NackOutcome.PERMANENT, None),
        (RetryAfter(1.5), NackOutcome.FAILED, 1500),
        (ValueError("no"), NackOutcome.FAILED, None),
        (SystemExit(1), NackOutcome.FAILED, None),
    ],
)
def test_the_outcome_of_an_exception(error: BaseException, outcome: NackOutcome, delay_ms: Optional[int]) -> None:
    nack = failed(EVENT, error, None).nack
    assert nack is not None and (nack.outcome, nack.delay_ms) == (outcome, delay_ms)


def test_a_backoff_delays_failures_only() -> None:
    def delay(error: BaseException) -> Optional[int]:
        nack = failed(EVENT, error, lambda event, error: 2.5).nack
        return None if nack is None else nack.delay_ms

    assert delay(ValueError()) == 2500
    assert delay(RetryAfter(9)) == 9000
    assert delay(PermanentFailure()) is None


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), "soon"])
def test_a_backoff_that_fails_leaves_the_wait_to_the_policy(wait: Any) -> None:
    nack = failed(EVENT, ValueError(), lambda event, error: wait).nack
    assert nack is not None and nack.delay_ms is None


@pytest.mark.parametrize(
    "outcome, body",
    [
        (NackOutcome.FAILED, {"leases": ["a.b"], "delay_ms": 200}),
        (NackOutcome.SNOOZE, {"leases": ["a.b"], "outcome": "snooze", "delay_ms": 200}),
        (NackOutcome.PERMANENT, {"leases": ["a.b"], "outcome": "permanent", "delay_ms": 200}),
    ],
)
def test_the_request_of_a_nack(outcome: NackOutcome, body: Any) -> None:
    scripted = ScriptedTransport(lambda request, index: Response(200, None, b'{"done": 1, "lost": []}'))
    client = Redrive("http://127.0.0.1:1", transport=scripted)  # type: ignore[arg-type]
    client.subscriptions.nack("billing", ["a.b"], outcome=outcome, delay=0.2)
    (request,) = scripted.requests
    assert request.target == "/v1/subscriptions/billing/nack"
    assert json.loads(request.body or b"") == body


def test_batches_have_at_most_100_leases_of_one_outcome_and_acks_come_first() -> None:
    nack = Nack(NackOutcome.FAILED, None, "no stock")
    settlements = (
        [Settlement(f"n{n}", nack) for n in range(3)]
        + [Settlement(f"a{n}") for n in range(101)]
        + [Settlement("r", RELEASE)]
    )
    found = [(len(batch.leases), batch.nack) for batch in batches(settlements)]
    assert found == [(100, None), (1, None), (3, nack), (1, RELEASE)]


def test_a_reason_has_the_message_and_the_end_of_the_traceback() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("the cause")
        deep(levels - 1)

    def handle(levels: int, text: str) -> None:
        try:
            deep(levels)
        except ValueError as error:
            raise RuntimeError("the effect" + text) from error

    def recorded(levels: int, text: str = "") -> str:
        try:
            handle(levels, text)
        except RuntimeError as error:
            return reason_of(error)
        raise AssertionError

    short = recorded(1)
    assert short.startswith("RuntimeError: the effect\n\nTraceback") and "ValueError: the cause" in short
    long = recorded(2, "x" * 5000)
    assert len(long) == 4096 and long.startswith("RuntimeError: the effect") and long.endswith("x")
    assert reason_of(ValueError("not raised")) == "ValueError: not raised"


def test_leases_are_extended_after_a_third_of_their_time() -> None:
    leases = InFlightLeases(30.0)
    leases.add(["a", "b"], at=100.0)
    assert leases.due(109.9) == [] and leases.due(110.0) == ["a", "b"]
    leases.renewed(["a", "gone"], at=110.0)
    assert leases.due(110.0) == ["b"] and len(leases) == 2 and "gone" not in leases
    assert leases.ended(["a", "b", "gone"], now=130.0) == ["b", "gone"]
    leases.remove(["a", "b"])
    assert len(leases) == 0
