"""A server that answers chats at a set pace, for what a client does with an answer while it comes. Uses the standard library only."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Callable, Iterable


def event(data: dict | str) -> bytes:
    """A server-sent event in a chunk of its own."""
    text = data if isinstance(data, str) else json.dumps(data)
    body = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


def chunk(delta: dict, reason: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "paced", "choices": [choice]}


class PacedAnswers:
    """Answers each POST with the stream of the deltas that `deltas()` makes, so many per second [1/s]. A piece that is late does not delay
    those behind it. `sent` has the time of each piece of the last answer, as `time.time()` tells it."""

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
                    # the client has left
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
        """Sends the chats of a page of Playwright here."""
        page.route("**/v1/chat/completions", lambda route: route.continue_(url=self.url))
