"""A Hugging Face hub for tests: a search, the listing of one repository, and its files, which can be held back."""

import hashlib
import http.server
import json
import threading
from urllib.parse import parse_qs, urlsplit

REPOSITORY = "owner/tiny-GGUF"


class Hub:
    """Serves `files` (content by name) of one repository. While `gate` is not set, a file stops at half of its bytes."""

    def __init__(self, files: dict[str, bytes]):
        self.files, self.gate, self.asked = files, threading.Event(), []
        self.gate.set()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.asked.append(self.path)
                place, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
                name = place.path.rsplit("/", 1)[-1]
                if place.path == "/api/models":
                    word = query["search"][0].lower()
                    found = [{"id": REPOSITORY, "downloads": 1234}, {"id": "bad name/../x", "downloads": 1}]
                    self.json([one for one in found if word in one["id"].lower() or "bad" in one["id"]])
                elif place.path.startswith(f"/api/models/{REPOSITORY}/tree/"):
                    self.json([hub.listed(name) for name in hub.files])
                elif place.path.startswith(f"/{REPOSITORY}/resolve/") and name in hub.files:
                    self.file(hub.files[name])
                else:
                    self.send_error(404)

            def json(self, value):
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def file(self, data):
                given = self.headers.get("range")
                start = int(given.split("=")[1].rstrip("-")) if given else 0
                self.send_response(206 if given else 200)
                self.send_header("etag", '"one"')
                self.send_header("content-length", str(len(data) - start))
                if given:
                    self.send_header("content-range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.end_headers()
                half = max(start, len(data) // 2)
                self.wfile.write(data[start:half])
                self.wfile.flush()
                hub.gate.wait(60)
                self.wfile.write(data[half:])

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a client that leaves

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def listed(self, name: str) -> dict:
        data = self.files[name]
        return {"type": "file", "path": name, "size": len(data), "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}}

    def stop(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
