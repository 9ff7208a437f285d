"""Verifies the signatures of webhooks: Standard Webhooks, `v1` (HMAC-SHA256) and `v1a` (Ed25519).

    message = Webhook("whsec_…").verify(body, headers)

Verify the raw bytes of the body before parsing them, and remember `message.id`: delivery is at least once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Optional, Sequence, Union, cast

from ._clock import SYSTEM_CLOCK, Clock
from ._ed25519 import verify

SECRET_BYTES = range(24, 65)
"""Lengths of a shared secret that the standard allows."""


class WebhookVerificationError(Exception):
    """The message is not genuine; `code` says why. Answer 401.

    Codes: `missing_header`, `invalid_timestamp`, `timestamp_too_old`, `timestamp_too_new`, `no_matching_signature`, `invalid_body`.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class WebhookMessage:
    """A genuine message."""

    id: str
    """Id of the message, equal in every attempt to deliver it."""
    type: str
    timestamp: str
    data: Any
    """The payload of the event."""
    body: Any
    """The whole document."""


class Webhook:
    """Verifies messages with the secrets of an endpoint: `whsec_…`, or public keys `whpk_…`.

    During a rotation give the old and the new secret: one match is enough.
    """

    def __init__(
        self,
        secrets: Union[str, Iterable[str]],
        *,
        tolerance: float = 300.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Reads the secrets. Raises `ValueError` for one that is not valid; its message does not show it."""
        given = [secrets] if isinstance(secrets, str) else list(secrets)
        if not given:
            raise ValueError("give at least one secret")
        self._shared: list[bytes] = []
        self._public: list[bytes] = []
        for secret in given:
            self._add(secret)
        self._tolerance = tolerance
        self._clock = clock

    def verify(self, body: Union[bytes, str], headers: Mapping[str, Union[str, Sequence[str]]]) -> WebhookMessage:
        """Returns the message if it is genuine and recent. Raises `WebhookVerificationError` otherwise."""
        raw = body.encode() if isinstance(body, str) else bytes(body)
        message_id = self.verify_signature(raw, headers)
        try:
            document: Any = json.loads(raw)
        except ValueError as error:
            raise WebhookVerificationError("invalid_body", "the signed body is not JSON") from error
        fields = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
        kind, sent_at = fields.get("type"), fields.get("timestamp")
        return WebhookMessage(
            message_id,
            kind if isinstance(kind, str) else "",
            sent_at if isinstance(sent_at, str) else "",
            fields.get("data"),
            document,
        )

    def verify_signature(self, body: bytes, headers: Mapping[str, Union[str, Sequence[str]]]) -> str:
        """Returns the id of the message if it is genuine and recent, without parsing the body."""
        found = {name.lower(): _one(value) for name, value in headers.items()}
        message_id, sent_at, signatures = (
            _required(found, name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
        )
        self._check_time(sent_at)
        signed = _bytes(f"{message_id}.{sent_at}.") + body
        # Every signature is compared with every secret, each in constant time.
        if any([self._matches(signature, signed) for signature in signatures.split()]):
            return message_id
        raise WebhookVerificationError(
            "no_matching_signature", "no signature matches: check the secret, and verify the raw bytes of the body"
        )

    def _add(self, secret: str) -> None:
        prefix, _, encoded = secret.partition("_")
        if prefix == "whsk":
            raise ValueError("a receiver verifies with the public key (whpk_…), not with the private one")
        if prefix not in ("whsec", "whpk"):
            raise ValueError("a secret begins with `whsec_`, a public key with `whpk_`")
        decoded = _base64(encoded)
        if decoded is None:
            raise ValueError("the text after the prefix of a secret is not base64")
        if prefix == "whsec":
            if len(decoded) not in SECRET_BYTES:
                raise ValueError(f"a secret has 24 to 64 bytes, not {len(decoded)}")
            self._shared.append(decoded)
        else:
            if len(decoded) != 32:
                raise ValueError(f"a public key has 32 bytes, not {len(decoded)}")
            self._public.append(decoded)

    def _check_time(self, sent_at: str) -> None:
        if not (sent_at.isascii() and sent_at.isdigit() and len(sent_at) <= 15):
            raise WebhookVerificationError("invalid_timestamp", "webhook-timestamp is not a number of seconds")
        age = self._clock.now() - int(sent_at)
        if age > self._tolerance:
            raise WebhookVerificationError(
                "timestamp_too_old", f"the message is {age:.0f} s old: a replay, or a wrong clock"
            )
        if age < -self._tolerance:
            raise WebhookVerificationError(
                "timestamp_too_new", f"the message is {-age:.0f} s in the future: a wrong clock"
            )

    def _matches(self, signature: str, signed: bytes) -> bool:
        version, _, value = signature.partition(",")
        if version == "v1":
            macs = [hmac.new(secret, signed, hashlib.sha256).digest() for secret in self._shared]
            return any([hmac.compare_digest(base64.b64encode(mac), _bytes(value)) for mac in macs])
        if version == "v1a":
            decoded = _base64(value)
            return decoded is not None and any([verify(key, decoded, signed) for key in self._public])
        return False


def _one(value: Union[str, Sequence[str]]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "").strip()
    if not value:
        raise WebhookVerificationError("missing_header", f"the header {name} is missing")
    return value


def _bytes(text: str) -> bytes:
    # Some frameworks decode headers with lone surrogates: such a message is refused, and is no error of the program.
    return text.encode("utf-8", "surrogatepass")


def _base64(text: str) -> Optional[bytes]:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        return None
