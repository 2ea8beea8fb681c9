"""Rows 83 and 85 to 87: downloads that are cut, corrupted, redirected, endless, or named so that they escape. A small local hub serves
them."""

import contextlib
import gzip
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gguf_bytes import small
from harness import BINARY, cli, environment, gzip_bomb, wait_until

MODEL_FILE = small().build() + bytes(300_000)
DIGEST = hashlib.sha256(MODEL_FILE).hexdigest()


class Hub(ThreadingHTTPServer):
    """A fake model hub. `answers`: by path, the bytes to send, or a function that writes the response."""

    daemon_threads = True

    def __init__(self, answers: dict):
        outer, self.answers, self.seen = self, answers, []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append((self.path, dict(self.headers)))
                answer = outer.answers.get(self.path.split("?")[0], 404)
                with contextlib.suppress(OSError):
                    if callable(answer):
                        return answer(self)
                    self.send_response(200 if isinstance(answer, bytes) else answer)
                    body = answer if isinstance(answer, bytes) else b""
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        pass


def listing(*files: dict) -> bytes:
    return json.dumps([{"type": "file", **file} for file in files]).encode()


def listed(path: str = "m.gguf", digest: str = DIGEST, size: int = len(MODEL_FILE)) -> dict:
    return {"path": path, "size": size, "lfs": {"oid": digest, "size": size}}


TREE, FILE = "/api/models/o/r/tree/main", "/o/r/resolve/main/m.gguf"


class Scene:
    """A hub, a store of its own, and a surrounding folder that must not change."""

    def __init__(self, folder):
        self.folder, self.store = folder, folder / "around" / "store"
        self.store.mkdir(parents=True)
        self.hub = Hub({TREE: listing(listed()), FILE: MODEL_FILE})
        self.env = {"SERVER__MODELS_DIR": str(self.store)}

    def command(self, *args):
        env = environment(self.env) | {"HF_ENDPOINT": self.hub.url, "HF_TOKEN": "secret-token", "HOME": str(self.folder)}
        return subprocess.Popen([str(BINARY), *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)

    def pull(self, name: str = "hf:o/r") -> tuple[int, str]:
        process = self.command("pull", name)
        out, err = process.communicate(timeout=60)
        assert "panicked" not in err and "secret-token" not in err, err
        return process.returncode, err

    def fails(self, words: str, name: str = "hf:o/r") -> None:
        """Checks that the pull fails with an error that matches the pattern."""
        code, said = self.pull(name)
        assert words and code == 1 and re.search(words, said), (code, words, said)
        self.has_nothing()

    def has_nothing(self) -> None:
        """Checks that no model counts as stored, and that nothing was written outside the store."""
        listed = subprocess.run([str(BINARY), "list"], env=environment(self.env), capture_output=True, text=True, cwd=self.folder)
        assert "hf:o/r" not in listed.stdout, listed.stdout
        assert [path.name for path in (self.folder / "around").iterdir()] == ["store"]

    def file(self, name: str = "model.gguf"):
        return self.store / "hf+o=r" / name


@pytest.fixture
def scene(tmp_path):
    scene = Scene(tmp_path)
    yield scene
    scene.hub.shutdown()
    scene.hub.server_close()


def slowly(seconds_per_piece: float):
    """Sends the file slowly in pieces, with a strong ETag, from the offset that the client requests."""

    def answer(request) -> None:
        start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        request.send_response(206 if start else 200)
        if start:
            request.send_header("content-range", f"bytes {start}-{len(MODEL_FILE) - 1}/{len(MODEL_FILE)}")
        request.send_header("content-length", str(len(MODEL_FILE) - start))
        request.send_header("etag", '"v1"')
        request.end_headers()
        for at in range(start, len(MODEL_FILE), 20_000):
            request.wfile.write(MODEL_FILE[at : at + 20_000])
            time.sleep(seconds_per_piece)

    return answer


def test_a_killed_pull_continues_where_it_was(scene):
    """Row 83."""
    scene.hub.answers[FILE] = slowly(0.3)
    process = scene.command("pull", "hf:o/r")
    partial = scene.file("model.gguf.partial")
    wait_until(lambda: partial.exists() and partial.stat().st_size > 40_000, 20, "a part of the file is stored")
    process.kill()
    process.communicate()
    kept = partial.stat().st_size
    assert 0 < kept < len(MODEL_FILE)
    scene.has_nothing()
    scene.hub.answers[FILE] = slowly(0)
    code, said = scene.pull()
    assert code == 0 and scene.file().read_bytes() == MODEL_FILE, said
    ranges = [headers.get("range") for path, headers in scene.hub.seen if path == FILE]
    assert ranges == [None, f"bytes={kept}-"]


def test_a_pull_onto_a_full_disk_fails_and_the_next_one_ends_it(scene):
    """Row 83. A limit on file size stands in for the full disk: a write in the middle of the file fails with a system error."""
    env = environment(scene.env) | {"HF_ENDPOINT": scene.hub.url}
    limit = lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    options = dict(env=env, capture_output=True, text=True, preexec_fn=limit, restore_signals=False, timeout=60)
    done = subprocess.run([str(BINARY), "pull", "hf:o/r"], **options)
    assert done.returncode == 1 and "panicked" not in done.stderr and "model.gguf" in done.stderr, done.stderr
    scene.has_nothing()
    assert scene.pull()[0] == 0 and scene.file().read_bytes() == MODEL_FILE, "with room on the disk, the next pull completes the file"


def test_a_flipped_bit_is_found_and_repaired(scene):
    """Row 83."""
    flipped = bytearray(MODEL_FILE)
    flipped[150_000] ^= 4
    scene.hub.answers[FILE] = bytes(flipped)
    scene.fails("sha256")
    assert not scene.file("model.gguf.partial").exists()
    scene.hub.answers[FILE] = MODEL_FILE
    assert scene.pull()[0] == 0
    scene.file().write_bytes(bytes(flipped))
    asked = len(scene.hub.seen)
    assert scene.pull()[0] == 0 and scene.file().read_bytes() == MODEL_FILE and len(scene.hub.seen) > asked, "the damage is repaired"
    scene.file().write_bytes(MODEL_FILE[:-1])
    scene.has_nothing()


@pytest.mark.parametrize("digest", ["../../x", "/etc/passwd", "f" * 63, "g" * 64, "", "f" * 65, f"sha256:{DIGEST}"])
def test_a_digest_that_is_none_is_refused_before_anything_is_asked(scene, digest):
    """Row 85."""
    scene.hub.answers[TREE] = listing(listed(digest=digest))
    scene.fails("digest")
    config = scene.folder / "c.toml"
    config.write_text(f'[[models]]\nid = "m"\nsha256 = "{digest}"\nsource = {{ type = "https", url = "{scene.hub.url}/m.gguf" }}\n')
    done = cli("--config", config, "pull", "m", env=scene.env)
    assert done.returncode == 1 and "64 hex" in done.stderr, done.stderr
    assert not any(path == "/m.gguf" for path, _ in scene.hub.seen), "refused before anything is requested"


def redirect(to: str):
    def answer(request) -> None:
        request.send_response(302)
        request.send_header("location", to)
        request.send_header("content-length", "0")
        request.end_headers()

    return answer


# The system's resolver decides whether these names mean this machine or do not exist.
NOWHERE = "has no public address|failed to lookup address"
ELSEWHERE = {
    "file:///etc/passwd": "not https",
    "http://169.254.169.254/latest/meta-data": "not https",
    "https://169.254.169.254/latest/meta-data": "not a public address",
    "https://[fe80::1]/x": "not a public address",
    "https://[::ffff:169.254.169.254]/x": "not a public address",
    "https://10.0.0.1/x": "not a public address",
    "https://127.0.0.1/x": "not a public address",
    "https://2130706433/x": NOWHERE,
    "https://0x7f.1/x": NOWHERE,
    "https://localhost/x": "not a public address",
    "https://localhost./x": NOWHERE,
    "gopher://example.com/x": "not https",
    "//192.168.0.1/x": "not https",
    "data:text/plain,x": "not https",
}


def test_a_redirect_to_a_file_or_a_private_address_is_refused(scene):
    """Row 86."""
    for target, words in ELSEWHERE.items():
        for path in (TREE, FILE):
            scene.hub.answers = {TREE: listing(listed()), FILE: MODEL_FILE, path: redirect(target)}
            scene.fails(words)


def test_the_token_goes_to_the_hub_alone(scene):
    """Row 86."""
    other = Hub({"/m": MODEL_FILE})
    try:
        for target in (
            f"{other.url}/m",
            f"http://localhost:{other.server_port}/m",
            f"http://127.0.0.1:{scene.hub.server_port}@{other.url[7:]}/m",
        ):
            scene.hub.answers[FILE] = redirect(target)
            scene.fails("is refused: it is not https")
        assert not other.seen, "neither the request nor the token was sent"
        assert all(headers.get("authorization") == "Bearer secret-token" for _, headers in scene.hub.seen)
    finally:
        other.shutdown()
        other.server_close()


def endless(request) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b"[" * 65536)


def packed(body: bytes):
    def answer(request) -> None:
        request.send_response(200)
        request.send_header("content-encoding", "gzip")
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def test_a_body_without_an_end_is_cut_at_its_bound(scene):
    """Row 87."""
    scene.hub.answers[FILE] = endless
    scene.fails("more than")
    assert not scene.file("model.gguf.partial").exists()
    scene.hub.answers = {TREE: endless, FILE: MODEL_FILE}
    scene.fails("at most")


def test_a_listing_that_is_a_bomb_is_refused_in_bounded_memory(scene):
    """Row 87."""
    process_limit = 512 << 20
    scene.hub.answers[TREE] = packed(gzip_bomb(1024))
    env = environment(scene.env) | {"HF_ENDPOINT": scene.hub.url}
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (process_limit, process_limit))
    done = subprocess.run([str(BINARY), "pull", "hf:o/r"], env=env, capture_output=True, text=True, preexec_fn=limit, timeout=60)
    assert done.returncode == 1 and "panicked" not in done.stderr and "text of at most" in done.stderr, done.stderr
    scene.hub.answers = {TREE: listing(listed()), FILE: packed(gzip.compress(MODEL_FILE))}
    scene.fails("encoded body")


@pytest.mark.parametrize(
    "path", ["../m.gguf", "a/../../m.gguf", "/etc/m.gguf", "a\\..\\m.gguf", "m.gguf\u0000", "a//m.gguf", "%2e%2e/m.gguf"]
)
def test_a_name_that_leads_elsewhere_is_refused_and_not_requested(scene, path):
    """Row 87."""
    scene.hub.answers[TREE] = listing(listed(path))
    scene.fails("it holds no GGUF file")
    assert [seen for seen, _ in scene.hub.seen if not seen.startswith(TREE)] == [], "the file is not even requested"


def test_a_link_in_the_store_is_not_followed(scene):
    """Row 87."""
    precious = scene.folder / "precious"
    precious.write_text("mine")
    scene.file().parent.mkdir()
    scene.file("model.gguf.partial").symlink_to(precious)
    scene.fails("is a link")
    assert precious.read_text() == "mine"
    removed = scene.command("rm", "../around")
    removed.communicate()
    assert removed.returncode == 1 and os.path.isdir(scene.store)
