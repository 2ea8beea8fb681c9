"""Serves chat answers at a set pace, to test how a client handles an answer while it arrives. Uses only the standard library."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Callable, Iterable


def event(data: dict | str) -> bytes:
    """Encodes a server-sent event as its own HTTP chunk."""
    text = data if isinstance(data, str) else json.dumps(data)
    body = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


def chunk(delta: dict, reason: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "paced", "choices": [choice]}


class PacedAnswers:
    """Answers each POST with a stream of the deltas from `deltas()` at a set rate [1/s]. A late piece does not delay later ones. `sent`
    holds the time of each piece of the last answer, as `time.time()` returns it."""

    def __init__(self, deltas: Callable[[], Iterable[dict]], rate: float):
        self.deltas, self.rate = deltas, rate
        self.sent: list[float] = []

    def __enter__(self) -> "PacedAnswers":
        paced = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                try:
                    paced.answer(self.wfile)
                except OSError:
                    # The client has disconnected.
                    self.close_connection = True

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def answer(self, out) -> None:
        start = time.monotonic()
        self.sent = sent = []
        for at, delta in enumerate(self.deltas()):
            time.sleep(max(0.0, start + at / self.rate - time.monotonic()))
            sent.append(time.time())
            out.write(event(chunk(delta)))
        out.write(event(chunk({}, "stop")) + event("[DONE]") + b"0\r\n\r\n")

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()

    def route(self, page) -> None:
        """Routes the chat requests of a Playwright page to this server."""
        page.route("**/v1/chat/completions", lambda route: route.continue_(url=self.url))
