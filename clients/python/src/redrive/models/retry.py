"""Overrides of a retry policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional

from .._open_enum import OpenEnum


class RetryPreset(OpenEnum):
    """Preset of attempts and waits."""

    STANDARD = "standard"
    PATIENT = "patient"


@dataclass(frozen=True)
class Retry:
    """Fields of a retry policy that differ from the server's policy."""

    preset: Optional[RetryPreset] = None
    max_attempts: Optional[int] = None
    base_delay_ms: Optional[int] = None
    max_delay_ms: Optional[int] = None
    multiplier: Optional[float] = None
    jitter: Optional[str] = None
    """Random spread of waits: `none`, `10%`, `0..1s`, `full`, `equal`."""

    def to_json(self) -> dict[str, Any]:
        """Returns the object of the request."""
        return {name: value for name, value in asdict(self).items() if value is not None}
