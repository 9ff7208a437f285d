"""Idempotency keys: SHA-256 over canonical JSON, the same in Rust, TypeScript and Python.

Canonical JSON has no white space and sorted keys at every level, so the order of parameters does not matter.
"""

from __future__ import annotations

import hashlib
import json
import math
from enum import Enum
from typing import Any, Mapping, Optional, Sequence, cast

MAX_DEPTH = 128
MAX_INPUT_BYTES = 1 << 20


def compute_idempotency_key(
    operation: str,
    tenant_id: Optional[str] = None,
    correlation_id: Optional[str] = None,
    additional_params: Optional[Mapping[str, Any]] = None,
) -> str:
    """Computes the key of an operation and its parameters."""
    if not operation:
        raise ValueError('the operation is empty: name what must not happen twice, such as "charge card"')
    fields: dict[str, Any] = {
        "additional_params": {} if additional_params is None else additional_params,
        "correlation_id": correlation_id or "",
        "operation": operation,
        "tenant_id": tenant_id or "",
    }
    return hashlib.sha256(canonical_json(fields, _depth=-1)).hexdigest()


def fingerprint(payload: Any) -> str:
    """Computes the fingerprint of a payload, which detects the use of a key with another payload."""
    return hashlib.sha256(canonical_json(payload)).hexdigest()


def canonical_json(value: Any, *, _depth: int = 0) -> bytes:
    """Writes canonical JSON. Raises `ValueError` for what JSON cannot represent."""
    text = _write(value, _depth).encode()
    if len(text) > MAX_INPUT_BYTES:
        raise ValueError(f"the parameters are larger than {MAX_INPUT_BYTES} bytes: use a digest of them instead")
    return text


def _write(value: Any, depth: int) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if depth >= MAX_DEPTH:
        raise ValueError("the parameters are nested more than 128 levels deep: flatten them or use a digest of them")
    if isinstance(value, Mapping):
        mapping: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        entries = sorted(((_key(key), _write(item, depth + 1)) for key, item in mapping.items()), key=_bytes_of_key)
        if any(one[0] == other[0] for one, other in zip(entries, entries[1:])):
            raise ValueError("a map has the same key twice: keep one of them")
        return "{" + ",".join(f"{key}:{item}" for key, item in entries) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_write(item, depth + 1) for item in cast(Sequence[Any], value)) + "]"
    raise ValueError(f"a {type(value).__name__} is not JSON: convert it to text, a number, a list or a dict")


def _bytes_of_key(entry: tuple[str, str]) -> bytes:
    # The order of the quoted key in UTF-8, as in Rust.
    return entry[0].encode()


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return json.dumps(key, ensure_ascii=False)
    if isinstance(key, (bool, int, float)):
        return f'"{_write(key, 0)}"'
    raise ValueError("a map has a key that is neither text, number nor boolean: use text keys")


def _number(value: float) -> str:
    """Writes a float as serde_json does: fixed from 1e-5 up to 1e16, otherwise with an unpadded exponent."""
    if not math.isfinite(value):
        raise ValueError("a parameter is NaN or infinite, which JSON cannot represent: leave it out or send it as text")
    text = repr(value + 0.0)  # one zero, one key
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    if int(exponent) == -5:
        sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
        return f"{sign}0.0000{digits.replace('.', '')}"
    return f"{mantissa}e{int(exponent):+d}" if int(exponent) > 0 else f"{mantissa}e{int(exponent)}"
