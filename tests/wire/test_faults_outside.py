"""Faults outside the engine: a full disk, a download that is cut, and a wall clock that jumps."""

import json
import os
import resource
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from harness import BINARY, MODEL, Server, cli, environment, open_stream, wait_until
from tiny import Tiny

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


class Origin(ThreadingHTTPServer):
    """An HTTP server for one file, with ranges. After `budget` bytes it closes every connection."""

    daemon_threads = True

    def __init__(self, body: bytes):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.budget, self.sent, self.ranges = body, None, 0, []
        self.url = f"http://127.0.0.1:{self.server_port}/tiny.gguf"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """Ignores errors: clients disconnect on purpose."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        origin, body, asked = self.server, self.server.body, self.headers.get("range", "")
        origin.ranges.append(asked)
        start, _, end = asked.removeprefix("bytes=").partition("-")
        first, last = int(start or 0), min(int(end or len(body) - 1), len(body) - 1)
        self.send_response(206 if asked else 200)
        self.send_header("etag", '"one"')
        self.send_header("accept-ranges", "bytes")
        self.send_header("content-length", str(last + 1 - first))
        if asked:
            self.send_header("content-range", f"bytes {first}-{last}/{len(body)}")
        self.end_headers()
        for at in range(first, last + 1, 4096):
            piece = body[at : min(at + 4096, last + 1)]
            if origin.budget is not None and origin.sent + len(piece) > origin.budget:
                self.close_connection = True
                return
            origin.sent += len(piece)
            self.wfile.write(piece)


@pytest.fixture(scope="module")
def body(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    Tiny("llama").write(path)
    return path.read_bytes()


@pytest.fixture
def scene(tmp_path, body):
    """An origin, the arguments of a pull from it, and the pull's environment."""
    origin = Origin(body)
    config = tmp_path / "penstock.toml"
    config.write_text(f'[[models]]\nid = "tiny"\nsource = {{ type = "https", url = "{origin.url}" }}\n')
    yield origin, ["--config", str(config)], {"SERVER__MODELS_DIR": str(tmp_path / "store")}
    origin.shutdown()


def pull(args, env, most: int | None = None):
    """Runs a pull that may write files of at most `most` bytes, as if the disk were full."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [str(BINARY), "pull", "tiny", *args]
    preexec = limit if most is not None else None
    done = subprocess.run(command, env=environment(env), capture_output=True, timeout=60, preexec_fn=preexec, restore_signals=False)
    return done.returncode, done.stderr.decode()


def stored(env) -> list[Path]:
    return [path for path in Path(env["SERVER__MODELS_DIR"]).rglob("*") if path.is_file()]


def is_listed(args, env) -> bool:
    """Whether Penstock reports the model as present."""
    done = cli("show", "tiny", "--json", *args, env=env)
    return "path" in json.loads(done.stdout)


def test_a_pull_that_fills_the_disk_lists_no_model_and_the_next_one_ends_it(scene, body):
    """Row 83."""
    origin, args, env = scene
    code, said = pull(args, env, most=len(body) // 2)
    assert code == 1 and "File too large" in said and "panicked" not in said, said
    assert not is_listed(args, env), "half a file is not a model"
    start, before = time.monotonic(), origin.sent
    code, said = pull(args, env)
    assert code == 0, said
    assert is_listed(args, env) and any(path.read_bytes() == body for path in stored(env))
    took, fetched = time.monotonic() - start, origin.sent - before
    print(f"\n| full disk during a pull | exit 1, one line | pull again: {took:.2f} s, {fetched} of {len(body)} bytes |")


def test_a_download_that_is_cut_resumes_where_it_stopped(scene, body):
    """Row 83."""
    origin, args, env = scene
    origin.budget = len(body) // 2
    start = time.monotonic()
    code, said = pull(args, env)
    assert code == 1 and "panicked" not in said, said
    failed = time.monotonic() - start
    assert not is_listed(args, env), "half a file is not a model"
    origin.budget, before = None, origin.sent
    assert pull(args, env)[0] == 0
    assert any(path.read_bytes() == body for path in stored(env))
    assert origin.sent - before < len(body) * 3 // 4, "the download resumes where it stopped"
    print(f"\n| truncated download | exit 1 after {failed:.1f} s | pull again: {origin.sent - before} of {len(body)} bytes |")


def test_the_store_cannot_be_written(scene):
    """A read-only disk, or a folder of another user, causes the same error."""
    _, args, env = scene
    Path(env["SERVER__MODELS_DIR"]).write_text("a file in the place of the store")
    code, said = pull(args, env)
    assert code == 1 and "panicked" not in said and "store" in said, said


@pytest.mark.skipif(FAKETIME is None, reason="Debian's package libfaketime is not installed")
def test_a_jump_of_the_wall_clock_changes_nothing(tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("+0")
    env = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    config = {
        "SERVER__DEFAULT_MODELS": MODEL, "SERVER__KEEP_ALIVE_SECONDS": "60", "ENGINE__STEP_TIMEOUT_SECONDS": "2",
        "ENGINE__MAX_RUNNING": "1", "LIMITS__REQUEST_TIMEOUT_SECONDS": "60", "LIMITS__MAX_QUEUE_SECONDS": "60",
    }  # fmt: skip
    with Server(config, env=env) as server:
        expected = server.text()
        long = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 150, "temperature": 0, "ignore_eos": True, "stream": True}
        for jump in ("+86400", "-86400", "+0"):
            stream, idle = (open_stream(server, "/v1/completions", long) for _ in range(2))
            wait_until(lambda: server.gauge("num_requests_waiting") == 1, 10, "one request runs and one waits")
            moved = clock.with_suffix(".new")
            moved.write_text(jump)
            moved.rename(clock)
            days = round((server.chat(max_tokens=1).json()["created"] - time.time()) / 86400)
            assert days == int(jump) // 86400, "the server's wall clock has jumped"
            for waiting in (stream, idle):
                got = b""
                while piece := waiting.recv(65536):
                    got += piece
                    if got.endswith(b"0\r\n\r\n"):
                        break
                assert b"data: [DONE]" in got and b'"error"' not in got and b": ping" not in got, got[-300:]
            assert server.get("/health").status == 200 and server.text() == expected
