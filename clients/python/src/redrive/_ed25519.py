"""Verifies Ed25519 signatures (RFC 8032) in pure Python, or with `cryptography` if it is installed.

Verification handles public data only, so its running time reveals no secret. Pure Python takes a few milliseconds.
"""

from __future__ import annotations

import hashlib
from typing import Optional

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_SQRT_M1 = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]
"""Extended coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z."""


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the signature of the message was made with the private half of this key."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return verify_in_python(public_key, signature, message)
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def verify_in_python(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Checks `S*B == R + k*A` as in RFC 8032, section 5.1.7."""
    if len(public_key) != 32 or len(signature) != 64:
        return False
    key = _decompress(public_key)
    commitment = _decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= _L:
        return False
    digest = hashlib.sha512(signature[:32] + public_key + message).digest()
    challenge = int.from_bytes(digest, "little") % _L
    return _equal(_multiply(scalar, _BASE), _add(commitment, _multiply(challenge, key)))


def _recover_x(y: int, sign: int) -> Optional[int]:
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    if square == 0:
        return None if sign else 0
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P != 0:
        x = x * _SQRT_M1 % _P
    if (x * x - square) % _P != 0:
        return None
    return _P - x if x & 1 != sign else x


def _decompress(text: bytes) -> Optional[_Point]:
    number = int.from_bytes(text, "little")
    y = number & ((1 << 255) - 1)
    x = _recover_x(y, number >> 255)
    return None if x is None else (x, y, 1, x * y % _P)


def _add(p: _Point, q: _Point) -> _Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _P, g * h % _P, f * g % _P, e * h % _P)


def _multiply(scalar: int, point: _Point) -> _Point:
    result = (0, 1, 1, 0)
    while scalar > 0:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _equal(p: _Point, q: _Point) -> bool:
    return (p[0] * q[2] - q[0] * p[2]) % _P == 0 and (p[1] * q[2] - q[1] * p[2]) % _P == 0


_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE_X = _recover_x(_BASE_Y, 0) or 0
_BASE: _Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)
