"""Webhook receiver that verifies signatures with the package standardwebhooks (pip install standardwebhooks).

    WEBHOOK_SECRET=whsec_... python3 receiver_library.py 9000
"""
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

WEBHOOK = Webhook(os.environ["WEBHOOK_SECRET"])


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            message = WEBHOOK.verify(body, {name.lower(): value for name, value in self.headers.items()})
            print("got", message["type"], self.headers["webhook-id"], flush=True)
            status = 204
        except WebhookVerificationError:
            status = 401
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
    print("listening on", server.server_port, flush=True)
    server.serve_forever()
