"""SipHash-2-4, the keyed hash behind replayable jitter."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def siphash24(key0: int, key1: int, data: bytes) -> int:
    """Hashes bytes to 64 bits."""
    v0, v1 = key0 ^ 0x736F6D6570736575, key1 ^ 0x646F72616E646F6D
    v2, v3 = key0 ^ 0x6C7967656E657261, key1 ^ 0x7465646279746573
    whole = len(data) - len(data) % 8
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    for word in (*words, last):
        v3 ^= word
        v0, v1, v2, v3 = _rounds(2, v0, v1, v2, v3)
        v0 ^= word
    v0, v1, v2, v3 = _rounds(4, v0, v1, v2 ^ 0xFF, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _rounds(count: int, v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = _rotate(v1, 13) ^ v0
        v0 = _rotate(v0, 32)
        v2 = (v2 + v3) & _MASK
        v3 = _rotate(v3, 16) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = _rotate(v3, 21) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = _rotate(v1, 17) ^ v2
        v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
