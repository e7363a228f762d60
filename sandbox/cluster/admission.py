"""A webhook server for the real API server: HTTPS in a thread, answering with vcuda's own `AdmissionWebhook`.

In: a certificate and what the webhook knows. Out: its URL, and the names of the pods that it was asked about. Not here:
vcuda's own server, which serves the same answers.
"""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deviceplugin.cluster.webhook.resources import KnownGpus
from deviceplugin.cluster.webhook.review import AdmissionWebhook
from sandbox.cluster.certificates import KeyPair


@dataclass(slots=True)
class WebhookServer:
    """`webhook` and `known` may be replaced while it serves."""

    webhook: AdmissionWebhook
    known: KnownGpus
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, body: bytes) -> bytes:
        metadata = json.loads(body)["request"]["object"]["metadata"]
        self.asked.append(metadata.get("name") or metadata.get("generateName"))
        return self.webhook.answer(body, self.known).body


@contextmanager
def serving(webhook: AdmissionWebhook, known: KnownGpus, pair: KeyPair) -> Iterator[WebhookServer]:
    """Ends with its thread and its connections."""
    state = WebhookServer(webhook, known)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = state.answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing on the test's output."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    state.url = f"https://127.0.0.1:{server.server_port}/webhook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
