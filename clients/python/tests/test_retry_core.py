"""Delays, decisions and idempotency keys are those of the Rust core: shared vectors, and the real binary."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from redrive.retry import (
    AuditEvent,
    Backoff,
    Failed,
    Identity,
    Jitter,
    RetryCategory,
    RetryPolicy,
    Situation,
    compute_idempotency_key,
    decide,
    fingerprint,
    json_lines,
    verify_record,
)
from redrive.retry.decision import Refusal, Spent, record
from redrive.retry.policy import policy_of
from redrive.testing import find_binary
from support import cases

ID = "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19"


def test_the_hash_of_an_identity_is_pinned() -> None:
    assert Identity(0, "", "").hash(0) == 0x01EC_9852_062A_07EB
    assert Identity(0, ID, "shipping").hash(2) == 0x8A0A_CFF5_A1AB_1DF1
    assert Identity(42, ID, "shipping").hash(2) == 0x60EE_1E81_E0BB_3DB2
    assert Identity((1 << 64) - 1, "évènement", "абонент").hash(0xFFFF_FFFF) == 0x01EE_90F0_733C_A3BF


def test_idempotency_keys_are_pinned() -> None:
    def key(params: Any) -> str:
        return compute_idempotency_key("kill_switch_update", "tenant-123", "corr-456", params)

    assert key({"switch_name": "all_execution"}) == "b4b6cd7399901d2f626be7417c244b3b5696478ff091bb108dbad2a55a2f0578"
    nested = {"b": {"y": (1 << 64) - 1, "x": True}, "a": [1, 2.5, None, "é"]}
    assert key(nested) == "3df5b3544de1e37296e321f8bd26797e706dc25bcb19b810c859c9ce50397d67"
    assert compute_idempotency_key("charge") == "7ad546d1d3f8874dfb410b5b2d69d858ea167fbb06f40a7064815b514c623f2b"
    assert fingerprint({"b": 1, "a": 2}) == "d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772"


@pytest.mark.parametrize(
    "params", [{"x": float("nan")}, {"x": float("inf")}, {"x": {1, 2}}, {"x": b"1"}, {"1": 1, 1: 2}]
)
def test_parameters_that_json_cannot_represent_have_no_key(params: Any) -> None:
    with pytest.raises(ValueError):
        compute_idempotency_key("charge", additional_params=params)


def test_an_empty_operation_has_no_key() -> None:
    with pytest.raises(ValueError, match="operation is empty"):
        compute_idempotency_key("")


@pytest.mark.parametrize("preset", ["bus", "webhook", "standard", "patient", "scheduler", *RetryCategory.__members__])
def test_the_binary_explains_the_same_delays(preset: str) -> None:
    seed, event, subscription = 7, "évènement", "shipping"
    explained = run(
        "policy",
        "explain",
        "--preset",
        preset,
        "--seed",
        str(seed),
        "--event",
        event,
        "--subscription",
        subscription,
        "--json",
    )
    answer = json.loads(explained)
    backoff, attempts = backoff_of(preset)
    assert answer["policy"]["max_attempts"] == attempts
    for expected in answer["attempts"]:
        number = expected["attempt"]
        assert backoff.nominal_ms(number) == expected["delay_ms"]
        assert backoff.range_ms(number) == (expected["min_ms"], expected["max_ms"])
        assert backoff.delay_ms(number, Identity(seed, event, subscription)) == expected["seeded_ms"]


def backoff_of(preset: str) -> tuple[Backoff, int]:
    """Returns the delays and attempts of a preset."""
    presets = {
        "bus": (Backoff(1000, 2_000_000, 30_000), 4),
        "webhook": (Backoff(1000, 2_000_000, 3_600_000), 5),
        "standard": (Backoff(5000, 2_000_000, 86_400_000, growth="standard_webhooks"), 10),
        "patient": (Backoff(60_000, 2_000_000, 28_800_000), 23),
        "scheduler": (Backoff(2000, 2_000_000, 60_000, Jitter.parse("0..1s")), 4),
    }
    if preset in presets:
        return presets[preset]
    policy = policy_of(preset)
    return policy.backoff(), policy.max_attempts


def test_the_binary_verifies_random_decisions(tmp_path: Path) -> None:
    """A record has the inputs, the decision and a digest; the binary recomputes all of it."""
    draw = random.Random(11)
    path = tmp_path / "audit.jsonl"
    append = json_lines(path)
    for _ in range(400):
        event: AuditEvent = {
            "event_type": "retry_decision",
            "retry_category": "RETRY_API_REQUEST",
            "operation": "s",
            "record": record(any_situation(draw)),
        }
        append(event)
        verify_record(event["record"])
    assert "400" in run("audit", "verify", str(path))


def any_situation(draw: random.Random) -> Situation:
    """Draws a situation, with every kind of input."""
    jitter = draw.choice(
        [
            Jitter("none"),
            Jitter.proportional(round(draw.random(), 3)),
            Jitter("additive", ms=draw.randrange(5000)),
            Jitter("full"),
            Jitter("equal"),
        ]
    )
    base = draw.randrange(100_000)
    backoff = Backoff(
        base,
        draw.choice([1_000_000, 1_500_000, 2_000_000, 3_333_333, 1_000_000_000]),
        base + draw.randrange(10_000_000),
        jitter,
        draw.choice(["exponential", "exponential", "standard_webhooks"]),
    )
    now = draw.randrange(1_700_000_000_000, 1_900_000_000_000)
    retry_after = draw.choice([None, 0, 500, 60_000, 40_000_000_000])
    outcome: Any = draw.choice(
        [
            "succeeded",
            "refused",
            Failed("transient"),
            Failed("transient"),
            Failed("timeout"),
            Failed("permanent"),
            Failed("crashed"),
            Failed("throttled", retry_after),
        ]
    )
    return Situation(
        max_attempts=draw.randrange(1, 12),
        backoff=backoff,
        attempt=draw.choice([1, 2, 3, 7, 4_000_000_000]),
        outcome=outcome,
        started_at=now - draw.randrange(100_000),
        now=now,
        identity=Identity(draw.getrandbits(64), draw.choice(["", "order-1", 'é"\\\n']), "s"),
        deadline_ms=draw.choice([None, None, 1000, 10_000_000]),
        breaker=draw.choice(
            [None, None, Refusal("open", now + draw.randrange(-1000, 90_000)), Refusal("half_open", now + 100)]
        ),
        budget=draw.choice(["unlimited", "granted", Spent(), Spent(now + draw.randrange(100_000))]),
    )


def test_a_changed_record_is_refused() -> None:
    changed = record(any_situation(random.Random(3)))
    changed["situation"]["attempt"] += 1
    with pytest.raises(ValueError, match="changed after it was written"):
        verify_record(changed)


def run(*args: str) -> str:
    """Runs the binary and returns its output."""
    environment = {**os.environ, "REDRIVE_DB": "unused.db"}
    done = subprocess.run([find_binary(), *args], capture_output=True, text=True, env=environment, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shared_vectors_of_delays() -> None:
    for case in cases("delays.json"):
        policy = case["policy"]
        backoff = Backoff(
            policy["base_delay_ms"],
            round(policy["multiplier"] * 1_000_000),
            policy["max_delay_ms"],
            any_jitter(policy["jitter"]),
            policy.get("growth") or "exponential",
        )
        identity = Identity(int(case["seed"]), case["identity"]["event"], case["identity"]["subscription"])
        assert backoff.delay_ms(case["attempt"], identity, case.get("retry_after_ms")) == int(case["delay_ms"]), case


def any_jitter(value: Any) -> Jitter:
    """Reads jitter as text, as `{"kind": "proportional", "factor": 0.1}`, or as in a decision record."""
    if isinstance(value, dict) and "kind" in value:
        return (
            Jitter.proportional(value["factor"]) if "factor" in value else Jitter(value["kind"], ms=value.get("ms", 0))
        )
    return Jitter.from_json(value)


def test_shared_vectors_of_decisions() -> None:
    for case in cases("decisions.json"):
        assert decide(Situation.from_json(case["situation"])).to_json() == case["decision"], case


def test_shared_vectors_of_idempotency_keys() -> None:
    for case in cases("idempotency_keys.json"):
        params = case["params"] if "params" in case else case.get("additional_params")
        key = compute_idempotency_key(case["operation"], case.get("tenant_id"), case.get("correlation_id"), params)
        assert key == case["key"], case


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0},
        {"max_attempts": 1_000_001},
        {"base_delay": -1.0},
        {"base_delay": float("nan")},
        {"base_delay": 31.0},
        {"base_delay": 0.0001},
        {"backoff_multiplier": 0.5},
        {"backoff_multiplier": 1001.0},
        {"jitter_factor": 1.5},
        {"attempt_timeout": 0.0},
        {"deadline": 1e9},
    ],
)
def test_a_policy_that_cannot_work_is_refused(settings: Any) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**settings)


def test_the_policies_of_the_specification() -> None:
    def numbers(category: RetryCategory) -> tuple[int, float, float, float, float]:
        policy = policy_of(category)
        return policy.max_attempts, policy.base_delay, policy.max_delay, policy.backoff_multiplier, policy.jitter_factor

    assert numbers(RetryCategory.NATS_CONNECT) == (5, 1.0, 30.0, 2.0, 0.1)
    assert numbers(RetryCategory.KV_GET) == (3, 0.5, 10.0, 2.0, 0.1)
    assert numbers(RetryCategory.EXECUTION_EXPIRATION) == (1, 1.0, 30.0, 2.0, 0.1)
    assert RetryCategory.REPLAY_PROCESSING.value == "REPLAY_REPLAY_PROCESSING"
    assert len(RetryCategory) == 17
