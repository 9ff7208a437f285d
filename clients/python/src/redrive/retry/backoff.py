"""Backoff with a maximum delay and replayable jitter: the same delays as the Rust core, to the millisecond.

Delays are whole milliseconds in saturating 64-bit arithmetic. The random part is a keyed hash of seed, event, subscription and attempt.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, Literal, Optional

from .siphash import siphash24

MAX_U64 = (1 << 64) - 1
MILLION = 1_000_000

_DOMAIN = int.from_bytes(b"redrive1", "big")
_STANDARD_WEBHOOKS_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)


@dataclass(frozen=True)
class Identity:
    """Identity of a delivery or call; seeds its jitter."""

    seed: int
    """Seed of an installation or run; equal seeds give equal delays."""
    event: str
    """Event id, or id of a call."""
    subscription: str
    """Subscription name, or operation of a call."""

    def hash(self, attempt: int) -> int:
        """Hashes the identity and the attempt to 64 bits."""
        data = b""
        for text in (self.event, self.subscription):
            encoded = text.encode("utf-8", "surrogatepass")
            # Lengths first, so that ("ab", "c") and ("a", "bc") differ.
            data += len(encoded).to_bytes(8, "little") + encoded
        return siphash24(self.seed & MAX_U64, _DOMAIN, data + attempt.to_bytes(4, "little"))


@dataclass(frozen=True)
class Jitter:
    """Random part of a delay; it spreads retries of operations that failed at the same time."""

    kind: Literal["none", "proportional", "additive", "full", "equal"]
    millionths: int = 0
    """Share of the delay, for `proportional`."""
    ms: int = 0
    """Largest addition, for `additive`."""

    @classmethod
    def proportional(cls, factor: float) -> Jitter:
        """Creates `delay ± factor · delay`: a factor of 0.1 is ±10 %."""
        millionths = to_millionths(factor)
        if millionths is None or millionths > MILLION:
            raise ValueError(f'a jitter factor of {factor} does not work: set it from 0 to 1 (0.1 or "10%" is ±10 %)')
        return cls("proportional", millionths=millionths)

    @classmethod
    def parse(cls, text: str) -> Jitter:
        """Reads `none`, `10%`, `0..1s`, `full` or `equal`."""
        text = text.strip()
        for kind in ("none", "full", "equal"):
            if text == kind:
                return cls(kind)
        percent = re.fullmatch(r"±*(\d+(?:\.\d*)?|\.\d+)\s*%", text)
        if percent:
            return cls.proportional(float(percent.group(1)) / 100)
        added = re.fullmatch(r"0\.\.(\d+(?:\.\d+)?)(ms|s|m|h)", text)
        if added:
            unit = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[added.group(2)]
            return cls("additive", ms=round(float(added.group(1)) * unit))
        raise ValueError(f"{text[:64]!r} is not a jitter: write one of none, 10%, 0..1s, full, equal")

    @classmethod
    def from_json(cls, value: Any) -> Jitter:
        """Reads the jitter of a decision record."""
        if isinstance(value, str):
            return cls.parse(value)
        ((kind, fields),) = value.items()
        return cls(kind, **fields)

    def to_json(self) -> Any:
        """Writes the jitter as decision records have it."""
        if self.kind == "proportional":
            return {"proportional": {"millionths": self.millionths}}
        if self.kind == "additive":
            return {"additive": {"ms": self.ms}}
        return self.kind

    def spread(self, nominal: int, cap: int) -> tuple[int, int]:
        """Returns the shortest and longest delay around `nominal`; proportional jitter stays below `cap`."""
        if self.kind == "proportional":
            width = self._share(nominal)
            return max(0, nominal - width), min(_saturated(nominal + width), max(cap, nominal))
        if self.kind == "additive":
            return nominal, _saturated(nominal + self.ms)
        if self.kind == "full":
            return 0, nominal
        return (nominal // 2 if self.kind == "equal" else nominal), nominal

    def width_above(self, minimum: int, nominal: int) -> int:
        """Returns the width of the jitter above a delay that the destination requested."""
        if self.kind == "proportional":
            return self._share(minimum)
        return {"none": 0, "additive": self.ms, "full": nominal, "equal": nominal // 2}[self.kind]

    def _share(self, amount: int) -> int:
        return _saturated(amount * self.millionths // MILLION)


TEN_PERCENT = Jitter("proportional", millionths=100_000)


@dataclass(frozen=True)
class Backoff:
    """Base delay, multiplier, maximum delay and jitter."""

    base_delay_ms: int
    multiplier_millionths: int
    max_delay_ms: int
    jitter: Jitter = TEN_PERCENT
    growth: Literal["exponential", "standard_webhooks"] = "exponential"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Backoff:
        """Reads the backoff of a decision record."""
        return cls(
            value["base_delay_ms"],
            value["multiplier_millionths"],
            value["max_delay_ms"],
            Jitter.from_json(value["jitter"]),
            value.get("growth", "exponential"),
        )

    def to_json(self) -> dict[str, Any]:
        """Writes the backoff as decision records have it."""
        growth = {} if self.growth == "exponential" else {"growth": self.growth}
        return {
            **growth,
            "base_delay_ms": self.base_delay_ms,
            "multiplier_millionths": self.multiplier_millionths,
            "max_delay_ms": self.max_delay_ms,
            "jitter": self.jitter.to_json(),
        }

    def throttled(self) -> Backoff:
        """Returns slower delays for a destination that is overloaded and does not say for how long."""
        return replace(
            self,
            base_delay_ms=max(self.base_delay_ms, 10_000),
            multiplier_millionths=max(self.multiplier_millionths, 2 * MILLION),
            max_delay_ms=max(self.max_delay_ms, 300_000),
        )

    def nominal_ms(self, attempt: int) -> int:
        """Returns the delay before `attempt` without jitter: `min(base · multiplier^(attempt-2), max)`; 0 before the first."""
        exponent = attempt - 2
        if exponent < 0:
            return 0
        if self.growth == "standard_webhooks":
            fixed = _STANDARD_WEBHOOKS_SECONDS[min(exponent, len(_STANDARD_WEBHOOKS_SECONDS) - 1)] * 1000
            return min(max(fixed, self.base_delay_ms), self.max_delay_ms)
        grown = float(self.base_delay_ms) * _power(self.multiplier_millionths / MILLION, exponent)
        return min(_truncated(grown), self.max_delay_ms)

    def range_ms(self, attempt: int, minimum_ms: Optional[int] = None) -> tuple[int, int]:
        """Returns the shortest and longest delay before `attempt`. `minimum_ms` is a delay that the destination requested."""
        nominal = self.nominal_ms(attempt)
        shortest, longest = (0, 0) if attempt < 2 else self.jitter.spread(nominal, self.max_delay_ms)
        if minimum_ms is not None and minimum_ms > shortest:
            # A requested minimum is never undercut: jitter applies above it only.
            shortest = minimum_ms
            longest = max(longest, _saturated(minimum_ms + self.jitter.width_above(minimum_ms, nominal)))
        return shortest, longest

    def delay_ms(self, attempt: int, identity: Identity, minimum_ms: Optional[int] = None) -> int:
        """Returns the delay before `attempt` for this identity: the same at every replay."""
        shortest, longest = self.range_ms(attempt, minimum_ms)
        return shortest + (identity.hash(attempt) * (longest - shortest + 1) >> 64)


def to_millionths(value: float) -> Optional[int]:
    """Rounds a ratio to the nearest millionth; None for NaN, negative and too large numbers."""
    scaled = value * float(MILLION)
    if not math.isfinite(scaled):
        return None
    # Half away from zero, as in Rust; Python's round() goes to even.
    rounded = math.floor(abs(scaled) + 0.5) if abs(scaled) % 1 == 0.5 else round(abs(scaled))
    signed = -rounded if scaled < 0 else rounded
    return signed if 0 <= signed <= 0xFFFF_FFFF else None


def _power(base: float, exponent: int) -> float:
    """Computes `base ** exponent` by repeated squaring, in the order of the Rust core."""
    result, square = 1.0, base
    while exponent > 0:
        if exponent & 1:
            result *= square
        square *= square
        exponent >>= 1
    return result


def _truncated(value: float) -> int:
    if math.isnan(value):
        return 0
    return MAX_U64 if value >= 2.0**64 else int(value)


def _saturated(value: int) -> int:
    return min(value, MAX_U64)
