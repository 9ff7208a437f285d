"""Writes `clients/vectors/signatures.json`; `--check` only compares.

The signatures come from other implementations: `v1` from the package `standardwebhooks`, `v1a` from `cryptography` (OpenSSL).
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from standardwebhooks import Webhook

PATH = Path(__file__).resolve().parents[2] / "vectors" / "signatures.json"

ID = "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19"
NOW = 1_767_225_600
BODY = '{"type":"order.created","timestamp":"2026-01-01T00:00:00.000Z","data":{"order":7}}'
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


def secret(length: int, start: int = 0) -> str:
    """Returns a shared secret of this many bytes."""
    return "whsec_" + base64.b64encode(bytes((start + index) % 256 for index in range(length))).decode()


def private(start: int) -> Ed25519PrivateKey:
    """Returns a private key."""
    return Ed25519PrivateKey.from_private_bytes(bytes((start + index) % 256 for index in range(32)))


def public(key: Ed25519PrivateKey) -> str:
    """Returns the public key as receivers get it."""
    return "whpk_" + base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def v1(key: str, body: str = BODY, at: int = NOW, id: str = ID) -> str:
    """Signs with a shared secret."""
    return Webhook(key).sign(id, datetime.fromtimestamp(at, timezone.utc), body)


def v1a(key: Ed25519PrivateKey, body: str = BODY, at: int = NOW, id: str = ID) -> str:
    """Signs with a private key."""
    return "v1a," + base64.b64encode(key.sign(f"{id}.{at}.{body}".encode())).decode()


def malleable(signature: str) -> str:
    """Adds the group order to the scalar of a signature: careless implementations accept it."""
    raw = base64.b64decode(signature.partition(",")[2])
    scalar = int.from_bytes(raw[32:], "little") + GROUP_ORDER
    return "v1a," + base64.b64encode(raw[:32] + scalar.to_bytes(32, "little")).decode()


def case(
    name: str,
    secrets: list[str],
    signature: Optional[str],
    error: Optional[str] = None,
    *,
    body: str = BODY,
    id: Optional[str] = ID,
    at: Optional[str] = str(NOW),
    now: int = NOW,
    tolerance: Optional[int] = None,
    valid: Optional[bool] = None,
) -> dict[str, Any]:
    """Describes one message and what its receiver says."""
    headers = {"webhook-id": id, "webhook-timestamp": at, "webhook-signature": signature}
    return {
        "name": name,
        "secrets": secrets,
        "headers": {name: value for name, value in headers.items() if value is not None},
        "body": body,
        "now": now,
        **({} if tolerance is None else {"tolerance_s": tolerance}),
        "valid": error is None if valid is None else valid,
        **({} if error is None else {"error": error}),
    }


def cases() -> list[dict[str, Any]]:
    """Returns all cases."""
    old, new, other = secret(32), secret(32, 100), secret(32, 200)
    pair, next_pair = private(7), private(50)
    no_match = "no_matching_signature"
    encoded = v1(old).partition(",")[2]
    unicode_body = '{"type":"order.created","data":{"name":"Zoë 🚲"}}'
    return [
        case("v1: a genuine message", [old], v1(old)),
        case("v1: a secret of 24 bytes", [secret(24)], v1(secret(24))),
        case("v1: a secret of 64 bytes", [secret(64)], v1(secret(64))),
        case("v1: a body beyond ASCII", [old], v1(old, unicode_body), body=unicode_body),
        case("v1: another secret", [other], v1(old), no_match),
        case("v1: a changed body", [old], v1(old), no_match, body=BODY.replace("7", "8")),
        case("v1: white space added to the body", [old], v1(old), no_match, body=BODY + "\n"),
        case("v1: another id", [old], v1(old), no_match, id="0190b3c4-7d2e-7a11-8f00-000000000000"),
        case("v1: another timestamp", [old], v1(old), no_match, at=str(NOW + 1)),
        case("v1: a truncated signature", [old], v1(old)[:-4], no_match),
        case("v1: a signature that is not base64", [old], "v1,%%%%", no_match),
        case("v1: a signature beyond ASCII", [old], "v1,é", no_match),
        case("v1: a signature without a version", [old], encoded, no_match),
        case("an unknown version", [old], f"v2,{encoded}", no_match),
        case("an unknown version beside a genuine signature", [old], f"v2,AAAA {v1(old)}"),
        case("rotation: two signatures, the receiver has the old secret", [old], f"{v1(new)} {v1(old)}"),
        case("rotation: two signatures, the receiver has the new secret", [new], f"{v1(new)} {v1(old)}"),
        case("rotation: the receiver has both secrets", [new, old], v1(old)),
        case("rotation: none of several secrets", [new, old], v1(other), no_match),
        case("a missing id", [old], v1(old), "missing_header", id=None),
        case("a missing timestamp", [old], v1(old), "missing_header", at=None),
        case("a missing signature", [old], None, "missing_header"),
        case("an empty signature", [old], "", "missing_header"),
        case("tolerance: 300 s old", [old], v1(old), now=NOW + 300),
        case("tolerance: 301 s old", [old], v1(old), "timestamp_too_old", now=NOW + 301),
        case("tolerance: 300 s in the future", [old], v1(old), now=NOW - 300),
        case("tolerance: 301 s in the future", [old], v1(old), "timestamp_too_new", now=NOW - 301),
        case("tolerance: 60 s, 60 s old", [old], v1(old), now=NOW + 60, tolerance=60),
        case("tolerance: 60 s, 61 s old", [old], v1(old), "timestamp_too_old", now=NOW + 61, tolerance=60),
        case("tolerance: an hour, an hour in the future", [old], v1(old), now=NOW - 3600, tolerance=3600),
        case("a timestamp that is no number", [old], v1(old), "invalid_timestamp", at="today"),
        case("a timestamp with a fraction", [old], v1(old), "invalid_timestamp", at=f"{NOW}.5"),
        case("a timestamp with an exponent", [old], v1(old), "invalid_timestamp", at="1e9"),
        case("a negative timestamp", [old], v1(old), "invalid_timestamp", at="-1"),
        case("a genuine body that is not JSON", [old], v1(old, "hello"), "invalid_body", body="hello"),
        case("a genuine empty body", [old], v1(old, ""), "invalid_body", body=""),
        case("v1a: a genuine message", [public(pair)], v1a(pair)),
        case("v1a: another key", [public(next_pair)], v1a(pair), no_match),
        case("v1a: a changed body", [public(pair)], v1a(pair), no_match, body=BODY.replace("7", "8")),
        case("v1a: another timestamp", [public(pair)], v1a(pair), no_match, at=str(NOW - 1)),
        case("v1a: a truncated signature", [public(pair)], v1a(pair)[:-4], no_match),
        case("v1a: a signature of zeros", [public(pair)], "v1a," + base64.b64encode(bytes(64)).decode(), no_match),
        case("v1a: a scalar beyond the group order", [public(pair)], malleable(v1a(pair)), no_match),
        case("v1a: a signature that is not base64", [public(pair)], "v1a,%%%%", no_match),
        case("v1a: rotation of the key", [public(pair), public(next_pair)], f"{v1a(next_pair)} {v1a(pair)}"),
        case("v1 and v1a: the receiver has the secret", [old], f"{v1a(pair)} {v1(old)}"),
        case("v1 and v1a: the receiver has the public key", [public(pair)], f"{v1(old)} {v1a(pair)}"),
        case("v1 and v1a: the receiver has both", [old, public(pair)], v1a(pair)),
        case("a v1 signature does not count for a public key", [public(pair)], v1(old), no_match),
        case("a v1a signature does not count for a secret", [old], v1a(pair), no_match),
        case("a v1 signature under the version v1a", [old], f"v1a,{encoded}", no_match),
        case("a secret of 23 bytes is refused", [secret(23)], v1(secret(23)), valid=False),
        case("a secret of 65 bytes is refused", [secret(65)], v1(secret(65)), valid=False),
        case("a secret that is not base64 is refused", ["whsec_%%%%"], v1(old), valid=False),
        case(
            "a public key of 31 bytes is refused",
            ["whpk_" + base64.b64encode(bytes(31)).decode()],
            v1a(pair),
            valid=False,
        ),
        case("no secret is refused", [], v1(old), valid=False),
    ]


def main() -> int:
    """Writes or checks the file."""
    document = {
        "description": (
            "Messages and what a receiver of Standard Webhooks says about them. A receiver has `secrets` and a clock at `now`, in "
            "seconds; `tolerance_s` is 300 unless given. `error` is the code of the refusal. A case that is not valid and has no "
            "`error` has a secret that is refused. Signatures: v1 by the package standardwebhooks, v1a by OpenSSL."
        ),
        "cases": cases(),
    }
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if "--check" not in sys.argv:
        PATH.write_text(text, encoding="utf-8")
    elif PATH.read_text(encoding="utf-8") != text:
        print(f"run scripts/signature_vectors.py: {PATH} differs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
