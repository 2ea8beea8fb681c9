"""Starts and stops the real binary for tests, with a small HTTP client that hides nothing. Uses only the standard library."""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, ClassVar

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("PENSTOCK_BINARY", ROOT / "target" / "release" / "penstock"))
MODEL = "smollm2:135m"
# A model whose template supports tools.
CODER = "qwen2.5-coder:0.5b"
START_SECONDS = 120


@functools.cache
def features() -> set[str]:
    """The features that the binary was built with. Empty if there is no binary."""
    if not BINARY.is_file():
        return set()
    told = subprocess.run([str(BINARY), "--version"], capture_output=True, text=True, check=True).stdout
    return set(re.search(r"^features: (.*)$", told, re.M)[1].split(", ")) - {"none"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(overrides: dict[str, str] | None = None) -> dict[str, str]:
    """The environment plus settings: `{"ENGINE__CONTEXT": "512"}` becomes PENSTOCK__ENGINE__CONTEXT=512."""
    env = dict(os.environ)
    if "PYTEST_XDIST_WORKER" in env:
        # pytest runs one process per core, so each engine gets one thread.
        env.setdefault("PENSTOCK__ENGINE__THREADS", "1")
    # No test asks the real hub.
    env.setdefault("HF_ENDPOINT", "http://127.0.0.1:9")
    env.update({f"PENSTOCK__{name}": str(value) for name, value in (overrides or {}).items()})
    return env


def cli(
    *args: str,
    stdin: str | bytes | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    cwd: Path | None = None,
    binary: Path = BINARY,
):
    """Runs one command to completion and returns its output as text."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [str(binary), *map(str, args)],
        input=data if data is not None else b"",
        capture_output=True,
        env=environment(env),
        timeout=timeout,
        cwd=cwd or ROOT,
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        """Returns the error object. Checks the envelope: only the key `error`, which holds exactly four keys of the right types."""
        payload = self.json()
        assert set(payload) == {"error"}, payload
        error = payload["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"], error
        assert isinstance(error["type"], str) and error["type"], error
        assert error["param"] is None or isinstance(error["param"], str), error
        assert error["code"] is None or isinstance(error["code"], str), error
        assert self.headers.get("content-type", "").startswith("application/json"), self.headers.items()
        return error


@dataclass
class Server:
    """One `penstock serve`. Use it as a context manager."""

    config: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    binary: Path = BINARY
    # The target of stderr: a file or a descriptor. None: the log, together with stdout.
    stderr: object = None
    # Additional environment variables.
    env: dict[str, str] = field(default_factory=dict)
    # Called with each server before it is stopped, unless its test has failed or the process has already ended.
    before_stop: ClassVar[Callable[[Server], None] | None] = None

    def __enter__(self) -> "Server":
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="penstock-", suffix=".log", delete=False)
        command = [str(self.binary), "serve", "--port", str(self.port), *self.args]
        stderr = self.log if self.stderr is None else self.stderr
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=stderr, env=environment(self.config) | self.env, cwd=ROOT
        )
        try:
            self.wait_ready()
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, kind, value, trace) -> None:
        try:
            if kind is None and Server.before_stop is not None and self.process.poll() is None:
                Server.before_stop(self)
        finally:
            code = self.stop()
        if kind is None:
            assert code == 0, f"serve ended with {code} on SIGTERM:\n{self.output()}"

    def wait_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, f"serve ended with {self.process.returncode} before it was ready:\n{self.output()}"
            try:
                if self.get("/ready", timeout=2).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise TimeoutError(f"not ready after {START_SECONDS} s:\n{self.output()}")

    @property
    def backend(self) -> str:
        """The backend of the server's models, as the server reports it: cpu or cuda."""
        found = lambda: re.search(r"  (cpu|cuda) backend", Path(self.log.name).read_text(errors="replace"))
        wait_until(found, 5, "the server names its backend")  # the server logs it shortly after it is ready
        return found()[1]

    def output(self) -> str:
        return Path(self.log.name).read_text(errors="replace")[-4000:]

    def wait_log(self, text: str, seconds: float = 5) -> None:
        """Waits until the log holds the text. A line can be written after the reply that it tells of: the log has a thread of its own."""
        wait_until(lambda: text in Path(self.log.name).read_text(errors="replace"), seconds, f"the log holds {text!r}")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method: str, path: str, body=None, headers: dict[str, str] | None = None, timeout: float = 90) -> Reply:
        """Sends a request. A bytes body is sent unchanged, anything else as JSON."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("content-type", "application/json")
        connection = self.connection(timeout)
        try:
            connection.request(method, path, body=body, headers=sent)
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **kwargs) -> Reply:
        return self.request("GET", path, **kwargs)

    def post(self, path: str, body, **kwargs) -> Reply:
        return self.request("POST", path, body, **kwargs)

    def chat(self, content: str = "Say hello.", **fields) -> Reply:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt="The capital of France is", timeout: float = 90, **fields) -> Reply:
        return self.post(
            "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}, timeout=timeout
        )

    def text(self, prompt="The capital of France is", **fields) -> str:
        """Returns the text of a completion. Fails unless the status is 200."""
        reply = self.complete(prompt, **fields)
        assert reply.status == 200, reply.body
        return reply.json()["choices"][0]["text"]

    def metrics(self) -> dict[tuple, float]:
        """The metrics' samples by (name, sorted labels)."""
        return parse_metrics(self.get("/metrics").body.decode())

    def gauge(self, name: str, model: str = MODEL) -> float:
        return self.metrics()[(f"penstock_{name}", (("model_name", model),))]


def parse_metrics(text: str) -> dict[tuple, float]:
    """Parses Prometheus' exposition format. Labels must not hold quotes."""
    samples = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        series, value = line.rsplit(" ", 1)
        name, _, labels = series.partition("{")
        pairs = [pair.partition("=") for pair in labels.rstrip("}").split('",') if pair]
        samples[(name, tuple(sorted((key.strip(), quoted.strip('"')) for key, _, quoted in pairs)))] = float(value)
    return samples


def wait_until(condition, seconds: float, what: str) -> float:
    """Waits until `condition` holds and returns how long that took [s]."""
    start = time.monotonic()
    while True:
        if condition():
            return time.monotonic() - start
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def resident(server: Server, kind: str = "RssAnon") -> int:
    """The memory of the server's process [bytes]: `RssAnon` (without mapped files), `VmRSS` (all) or `VmHWM` (the peak)."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"^{kind}:\s+(\d+) kB", status, re.M)[1]) << 10


def gzip_bomb(mebibytes: int) -> bytes:
    """Gzip data of about a thousandth of this size. Its checksum is wrong, which only a reader who reaches the end notices."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + block * mebibytes + b"\x03\x00" + bytes(8)


CANARY = "Once upon a time"


def at_rest(server: Server, **request) -> bool:
    """Whether no sequence runs or waits, no cache block of any model is in use, and no request body is held."""
    text = server.get("/metrics", **request).body.decode()
    names = "num_requests_running|num_requests_waiting|kv_cache_usage_perc|http_body_bytes"
    values = re.findall(rf"^penstock_(?:{names})(?:{{[^}}]*}})? (\S+)$", text, re.M)
    return len(values) >= 4 and all(float(value) == 0 for value in values)


def serves_as_before(server: Server, canary: str) -> None:
    """Checks what must hold after every fault: the process is alive and healthy, a greedy request gets the same text, and nothing is left
    of earlier requests. Sends the server's `headers_of_checks` (a key) along."""
    request = {"headers": getattr(server, "headers_of_checks", None)}
    assert server.process.poll() is None, server.output()
    assert server.get("/health", **request).status == 200
    body = {"model": MODEL, "prompt": CANARY, "max_tokens": 8, "temperature": 0}
    reply = server.post("/v1/completions", body, **request)
    assert reply.status == 200 and reply.json()["choices"][0]["text"] == canary, reply.body
    wait_until(lambda: at_rest(server, **request), 10, "gauges are back at rest")


def sse_events(body: bytes) -> list[str]:
    """The data of each event of a complete stream. Every line must be a `data:` line, a comment or empty."""
    text = body.decode()
    assert text.endswith("\n\n"), f"the stream ends within an event: {text[-80:]!r}"
    events = []
    for block in text.split("\n\n"):
        for line in filter(None, block.split("\n")):
            assert line.startswith("data: ") or line.startswith(":"), f"neither data nor a comment: {line!r}"
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        assert len(data) <= 1, f"two data lines in one event: {block!r}"
        events += data
    return events


def chunks_of(reply: Reply) -> list[dict]:
    """The JSON events of a stream. Checks the content type and the final [DONE]."""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.headers["content-type"]
    events = sse_events(reply.body)
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1, events[-3:]
    return [json.loads(event) for event in events[:-1]]


def open_stream(server: Server, path: str, body: dict, headers: dict[str, str] | None = None) -> socket.socket:
    """Sends a request on a raw socket, which the caller reads and closes."""
    payload = json.dumps(body).encode()
    fields = {"Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json", "Content-Length": len(payload), **(headers or {})}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
    stream = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    stream.sendall(head.encode() + payload)
    return stream


def raw(server: Server, data: bytes, seconds: float = 10) -> bytes:
    """Sends raw bytes. Reads until the server closes, is silent for a second after an answer, or `seconds` have passed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        got = b""
        end = time.monotonic() + seconds
        try:
            connection.sendall(data)
        except OSError:
            pass  # the server may close before it has read everything
        while time.monotonic() < end:
            connection.settimeout(1.0 if got else max(0.05, end - time.monotonic()))
            try:
                piece = connection.recv(65536)
            except (TimeoutError, ConnectionError):
                break
            if not piece:
                break
            got += piece
        return got


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), f"no HTTP answer: {answer[:80]!r}"
    return int(answer[9:12])
