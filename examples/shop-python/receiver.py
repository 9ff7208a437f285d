"""Receives `order.charged` as webhooks on port 8000: `WEBHOOK_SECRET=whsec_… python receiver.py`."""

from __future__ import annotations

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from redrive import Webhook, WebhookMessage, WebhookVerificationError

MAX_BODY_BYTES = 2 << 20


class Receiver(ThreadingHTTPServer):
    """Ships each charged order once."""

    def __init__(self, address: tuple[str, int], webhook: Webhook) -> None:
        super().__init__(address, Hooks)
        self.webhook = webhook
        self.shipped: dict[str, int] = {}
        """Orders by the id of their message. A real shop keeps this in its database, in the transaction of the shipment."""

    def handle_message(self, message: WebhookMessage) -> None:
        """Ships an order, unless this message was handled before."""
        if message.type == "order.charged" and message.id not in self.shipped:
            self.shipped[message.id] = message.data["order"]
            print("shipping order", message.data["order"], flush=True)


class Hooks(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Receiver

    def do_POST(self) -> None:
        """Verifies the raw bytes before anything reads them."""
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), MAX_BODY_BYTES))
        try:
            self.server.handle_message(self.server.webhook.verify(body, dict(self.headers)))
        except WebhookVerificationError as error:
            self.send_error(401, error.code)
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Writes no line for each request."""


if __name__ == "__main__":
    Receiver(("127.0.0.1", 8000), Webhook(os.environ["WEBHOOK_SECRET"])).serve_forever()
