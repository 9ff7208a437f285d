"""Receives webhooks and verifies them by hand: Python 3.9 or later, standard library only.

    WEBHOOK_SECRET=whsec_... python3 receiver.py 9000
"""
import base64, hashlib, hmac, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
SEEN = set()  # in a real program: a table, in the same transaction as the work


def is_genuine(headers, body):
    """Returns whether a signature matches and the timestamp is at most five minutes old."""
    message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > 300:
        return False  # too old: a possible replay
    expected = hmac.new(SECRET, f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    # During a secret rotation there are several signatures; one valid signature is enough.
    for signature in headers.get("webhook-signature", "").split():
        version, _, value = signature.partition(",")
        if version == "v1" and hmac.compare_digest(value, base64.b64encode(expected).decode()):
            return True
    return False


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        status = 401
        if is_genuine(self.headers, body):
            status = 204  # any 2xx acknowledges the message
            message_id = self.headers["webhook-id"]
            if message_id not in SEEN:  # a message may be delivered twice
                SEEN.add(message_id)
                print("got", json.loads(body)["type"], message_id, flush=True)
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
    print("listening on", server.server_port, flush=True)
    server.serve_forever()
