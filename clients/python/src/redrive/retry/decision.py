"""`decide`: the pure function that turns the outcome of an attempt into retry, park, dead or done.

It reads no clock and draws no random number, so a decision can be recomputed from its record. The rules, the JSON and the digest are
those of the Rust core: `redrive audit verify` accepts these records.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, Optional, Union

from .backoff import Backoff, Identity

RECORD_VERSION = 1
MAX_WAIT_MS = 366 * 24 * 3600 * 1000

_MAX_TIME, _MIN_TIME = (1 << 63) - 1, -(1 << 63)

FailureClass = Literal["transient", "throttled", "timeout", "permanent", "crashed"]
"""Class of a failure; every class but `permanent` is retried."""


@dataclass(frozen=True)
class Failed:
    """The attempt failed."""

    failure_class: FailureClass
    retry_after_ms: Optional[int] = None
    """Requested minimum delay, for `throttled`."""


Outcome = Union[Literal["succeeded", "refused"], Failed]


@dataclass(frozen=True)
class Refusal:
    """State of a circuit breaker that is not closed: `open` or `half_open`, until a time in milliseconds."""

    state: Literal["open", "half_open"]
    until: int


@dataclass(frozen=True)
class Spent:
    """A spent retry budget, and the time to ask again for work that can wait."""

    again_at: Optional[int] = None


@dataclass(frozen=True)
class Situation:
    """Inputs of a decision. Times are milliseconds since 1970."""

    max_attempts: int
    backoff: Backoff
    attempt: int
    outcome: Outcome
    started_at: int
    now: int
    identity: Identity
    deadline_ms: Optional[int] = None
    breaker: Optional[Refusal] = None
    budget: Union[Literal["unlimited", "granted"], Spent] = "unlimited"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Situation:
        """Reads the situation of a decision record."""
        return cls(
            max_attempts=value["max_attempts"],
            backoff=Backoff.from_json(value["backoff"]),
            attempt=value["attempt"],
            outcome=_read_outcome(value["outcome"]),
            started_at=value["started_at"],
            now=value["now"],
            identity=Identity(value["seed"], value["event"], value["subscription"]),
            deadline_ms=value.get("deadline_ms"),
            breaker=_read_breaker(value.get("breaker", "closed")),
            budget=_read_budget(value.get("budget", "unlimited")),
        )

    def to_json(self) -> dict[str, Any]:
        """Writes the situation with the fields and the order of a decision record."""
        deadline = {} if self.deadline_ms is None else {"deadline_ms": self.deadline_ms}
        return {
            "max_attempts": self.max_attempts,
            "backoff": self.backoff.to_json(),
            **deadline,
            "attempt": self.attempt,
            "outcome": _outcome_json(self.outcome),
            "started_at": self.started_at,
            "now": self.now,
            "breaker": "closed" if self.breaker is None else {self.breaker.state: {"until": self.breaker.until}},
            "budget": _budget_json(self.budget),
            "seed": self.identity.seed,
            "event": self.identity.event,
            "subscription": self.identity.subscription,
        }

    def misses_deadline(self, at: int) -> bool:
        """Whether an attempt at this time would begin after the deadline."""
        return self.deadline_ms is not None and at >= _plus(self.started_at, self.deadline_ms)


@dataclass(frozen=True)
class Decision:
    """Result of `decide`: `action` is `done`, `retry`, `park` or `dead`, and `because` its reason."""

    action: Literal["done", "retry", "park", "dead"]
    because: Optional[str] = None
    at: Optional[int] = None
    """Time of the next attempt, or end of the wait, in milliseconds since 1970."""
    delay_ms: Optional[int] = None

    def to_json(self) -> dict[str, Any]:
        """Writes the decision with the fields and the order of a decision record."""
        if self.action == "retry":
            return {"action": "retry", "at": self.at, "delay_ms": self.delay_ms, "because": self.because}
        if self.action == "park":
            return {"action": "park", "until": self.at, "because": self.because}
        return {"action": "done"} if self.action == "done" else {"action": "dead", "because": self.because}


def decide(situation: Situation) -> Decision:
    """Decides the next step after an attempt. Equal situations give equal decisions."""
    if situation.outcome == "succeeded":
        return Decision("done")
    if situation.outcome == "refused":
        until = situation.now if situation.breaker is None else max(situation.breaker.until, situation.now)
        budget = situation.budget
        if isinstance(budget, Spent) and budget.again_at is not None and budget.again_at > until:
            return _park(situation, budget.again_at, "budget_spent")
        return _park(situation, until, "circuit_open")
    assert isinstance(situation.outcome, Failed)
    return _after_failure(situation, situation.outcome)


def _after_failure(situation: Situation, failure: Failed) -> Decision:
    if failure.failure_class == "permanent":
        return Decision("dead", "permanent")
    if situation.attempt >= situation.max_attempts:
        return Decision("dead", "attempts_exhausted")
    if isinstance(situation.budget, Spent):
        if situation.budget.again_at is not None:
            return _park(situation, situation.budget.again_at, "budget_spent")
        return Decision("dead", "budget_spent")
    # The delay requested by the destination and the open time of the circuit are minimums; jitter applies above them.
    requested = (failure.retry_after_ms or 0) if failure.failure_class == "throttled" else 0
    circuit = 0 if situation.breaker is None else _since(situation.breaker.until, situation.now)
    if requested > MAX_WAIT_MS:
        return Decision("dead", "wait_too_long")
    minimum, following = max(requested, circuit), situation.attempt + 1
    at = _plus(situation.now, situation.backoff.delay_ms(following, situation.identity, minimum))
    if minimum <= situation.backoff.range_ms(following)[0]:
        because = "backoff"
    else:
        because = "circuit_open" if circuit >= requested else "retry_after"
    if situation.misses_deadline(at):
        return Decision("dead", "deadline_exceeded")
    return Decision("retry", because, at, _since(at, situation.now))


def record(situation: Situation, decision: Optional[Decision] = None) -> dict[str, Any]:
    """Returns a decision with its inputs and a digest, which detects a later change."""
    situation_json, decided = situation.to_json(), (decision or decide(situation)).to_json()
    return {
        "version": RECORD_VERSION,
        "situation": situation_json,
        "decision": decided,
        "digest": _digest(RECORD_VERSION, situation_json, decided),
    }


def verify_record(recorded: dict[str, Any]) -> None:
    """Recomputes digest and decision of a record. Raises `ValueError` at the first difference."""
    if recorded["version"] != RECORD_VERSION:
        raise ValueError(f"the record has version {recorded['version']} and these rules are version {RECORD_VERSION}")
    situation = Situation.from_json(recorded["situation"])
    if _digest(recorded["version"], situation.to_json(), recorded["decision"]) != recorded["digest"]:
        raise ValueError("the record was changed after it was written: its contents give another digest")
    if decide(situation).to_json() != recorded["decision"]:
        raise ValueError("the inputs of the record give another decision: it was not made by these rules")


def _digest(version: int, situation: dict[str, Any], decision: dict[str, Any]) -> str:
    text = json.dumps([version, situation, decision], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _park(situation: Situation, until: int, because: str) -> Decision:
    if situation.misses_deadline(until):
        return Decision("dead", "deadline_exceeded")
    return Decision("park", because, until)


def _plus(at: int, length: int) -> int:
    return min(at + min(length, _MAX_TIME), _MAX_TIME)


def _since(later: int, earlier: int) -> int:
    return max(0, min(later - earlier, _MAX_TIME))


def _read_outcome(value: Any) -> Outcome:
    if value in ("succeeded", "refused"):
        return "succeeded" if value == "succeeded" else "refused"
    failure = value["failed"]
    if isinstance(failure, str):
        return Failed(failure)  # type: ignore[arg-type]
    return Failed("throttled", failure["throttled"].get("retry_after_ms"))


def _outcome_json(outcome: Outcome) -> Any:
    if not isinstance(outcome, Failed):
        return outcome
    if outcome.failure_class != "throttled":
        return {"failed": outcome.failure_class}
    wait = outcome.retry_after_ms
    return {"failed": {"throttled": {} if wait is None else {"retry_after_ms": wait}}}


def _read_breaker(value: Any) -> Optional[Refusal]:
    if value == "closed":
        return None
    ((state, fields),) = value.items()
    return Refusal(state, fields["until"])


def _read_budget(value: Any) -> Union[Literal["unlimited", "granted"], Spent]:
    if isinstance(value, str):
        return "granted" if value == "granted" else "unlimited"
    return Spent(value["spent"].get("again_at"))


def _budget_json(budget: Union[Literal["unlimited", "granted"], Spent]) -> Any:
    if not isinstance(budget, Spent):
        return budget
    return {"spent": {} if budget.again_at is None else {"again_at": budget.again_at}}
