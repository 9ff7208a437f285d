"""Verification of webhooks: shared vectors, Ed25519 by RFC 8032, and messages of the real server."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Iterator, Sequence

import pytest

from redrive import Redrive, Webhook, WebhookVerificationError
from redrive._ed25519 import verify, verify_in_python
from redrive.testing import FakeClock
from support import case_id, cases


@pytest.mark.parametrize("case", cases("signatures.json"), ids=case_id)
def test_a_message_is_verified_as_the_vectors_say(case: Any) -> None:
    def check() -> str:
        webhook = Webhook(case["secrets"], tolerance=case.get("tolerance_s", 300), clock=FakeClock(case["now"]))
        return webhook.verify(case["body"], case["headers"]).id

    if case["valid"]:
        assert check() == case["headers"]["webhook-id"]
    elif "error" in case:
        with pytest.raises(WebhookVerificationError) as raised:
            check()
        assert raised.value.code == case["error"]
    else:
        with pytest.raises(ValueError) as refused:
            check()
        assert all(secret.partition("_")[2] not in str(refused.value) for secret in case["secrets"])


def test_headers_may_have_any_case_and_several_values() -> None:
    case = cases("signatures.json")[0]
    headers = {
        name.upper(): ["v1,AAAA", value] if "signature" in name else value for name, value in case["headers"].items()
    }
    message = Webhook(case["secrets"], clock=FakeClock(case["now"])).verify(case["body"].encode(), headers)
    assert (message.type, message.data, message.timestamp) == (
        "order.created",
        {"order": 7},
        "2026-01-01T00:00:00.000Z",
    )
    assert message.body["data"] == message.data


@pytest.mark.parametrize("header", ["webhook-id", "webhook-signature"])
def test_a_header_with_a_lone_surrogate_is_refused(header: str) -> None:
    case = cases("signatures.json")[0]
    headers = {**case["headers"], header: "v1,\udce9"}
    with pytest.raises(WebhookVerificationError):
        Webhook(case["secrets"], clock=FakeClock(case["now"])).verify(case["body"], headers)


def test_a_private_key_is_refused_as_a_secret_of_a_receiver() -> None:
    with pytest.raises(ValueError, match="public key"):
        Webhook("whsk_" + "A" * 44)


RFC_8032 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize("check", [verify, verify_in_python])
@pytest.mark.parametrize("key, message, signature", RFC_8032)
def test_ed25519_accepts_the_vectors_of_rfc_8032_and_no_other_message(
    check: Any, key: str, message: str, signature: str
) -> None:
    parts = bytes.fromhex(key), bytes.fromhex(signature), bytes.fromhex(message)
    assert check(*parts)
    assert not check(parts[0], parts[1], parts[2] + b"\0")
    assert not check(parts[0], parts[1][:-1], parts[2])
    assert not check(bytes([parts[0][0] ^ 1]) + parts[0][1:], parts[1], parts[2])


def test_v1a_vectors_verify_without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.webhook.verify", verify_in_python)
    for case in cases("signatures.json"):
        if "v1a" in case["name"] and ("error" in case or case["valid"]):
            test_a_message_is_verified_as_the_vectors_say(case)


class Receiver(HTTPServer):
    """Keeps the requests that it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[bytes, dict[str, str]]] = []
        self.arrived = threading.Semaphore(0)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((body, dict(self.headers)))
        self.send_response(204)
        self.end_headers()
        self.server.arrived.release()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture()
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
        yield listening
        listening.shutdown()


@pytest.mark.parametrize("signing", ["hmac", "ed25519"])
def test_messages_of_the_server_verify_before_and_after_a_rotation(
    client: Redrive, receiver: Receiver, signing: str
) -> None:
    url = f"http://127.0.0.1:{receiver.server_port}/hooks"
    endpoint = client.endpoints.create(url, [f"hook.{signing}"], signing=signing)

    def delivered(secrets: Sequence[str]) -> None:
        published = client.publish(f"hook.{signing}", {"order": 7})
        assert receiver.arrived.acquire(timeout=10)
        body, headers = receiver.received.pop()
        message = Webhook(secrets).verify(body, headers)
        assert (message.id, message.type, message.data) == (published.id, f"hook.{signing}", {"order": 7})

    delivered([endpoint.secret])
    newest, previous = client.endpoints.rotate_secret(endpoint.id, signing=signing)
    assert previous.secret == endpoint.secret
    for secrets in ([newest.secret], [endpoint.secret], [newest.secret, endpoint.secret]):
        delivered(secrets)
    client.endpoints.remove(endpoint.id)
