"""The snippets of docs/proxies.md: Debian's nginx and Caddy in front of the real binary."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from harness import MODEL, ROOT, Server, free_port, wait_until

SITE = "llm.example.com"
PAGE = (ROOT / "docs" / "proxies.md").read_text()
CONFIG = {
    "SERVER__DEFAULT_MODELS": MODEL,
    "SERVER__ALLOWED_HOSTS": SITE,
    "ENGINE__MAX_RUNNING": "1",
    "LIMITS__MAX_QUEUE": "1",
    "SERVER__DRAIN_SECONDS": "2",
}


def snippet(language: str) -> str:
    """The page's only code block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return found


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} occurs once in the snippet"
    return text.replace(old, new)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Makes a self-signed certificate. Returns the paths of the certificate and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run([*command, "-subj", f"/CN={SITE}", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


class Proxy:
    """A proxy that runs the page's snippet with the addresses and files of the test."""

    def __init__(self, name: str, folder, upstream: int):
        if (program := shutil.which(name)) is None:
            pytest.skip(f"{name} is not installed (Debian package {name})")
        self.port, self.tls = free_port(), name == "nginx"
        text = replaced(snippet(name), "127.0.0.1:8080", f"127.0.0.1:{upstream}")
        config = folder / name
        if name == "nginx":
            cert, key = certificate(folder)
            text = replaced(replaced(text, "443 ssl", f"127.0.0.1:{self.port} ssl"), f"/etc/ssl/{SITE}.pem", str(cert))
            text = replaced(text, f"/etc/ssl/{SITE}.key", str(key))
            user = "user root;" if os.geteuid() == 0 else ""
            temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            config.write_text(
                f"{user} daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off; {temporary}\n{text}}}"
            )
            command = [program, "-p", str(folder), "-e", "stderr", "-c", str(config)]
        else:
            options = "{\n    admin off\n    auto_https off\n}\n"
            config.write_text(options + replaced(text, f"{SITE} {{", f"http://{SITE}:{self.port} {{"))
            command = [program, "run", "--adapter", "caddyfile", "--config", str(config)]
        self.log = (folder / "log").open("wb")
        env = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env)
        wait_until(self.listens, 20, f"{name} listens: {(folder / 'log').read_text()}")

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        # Caddy would wait for its clients. nginx, if killed, would leave its workers behind.
        (self.process.terminate if self.tls else self.process.kill)()
        self.process.wait(20)
        self.log.close()

    def send(self, path: str, body: bytes | dict | None = None) -> "Stream":
        payload = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: {SITE}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        stream = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            stream = context.wrap_socket(stream, server_hostname=SITE)
        try:
            stream.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        except OSError:
            pass  # the answer may arrive before the whole body is sent
        return Stream(stream)


class Stream:
    """A response, as it arrives."""

    def __init__(self, connection: socket.socket):
        self.connection, self.got, self.times = connection, b"", []

    def read(self) -> "Stream":
        """Reads to the end of the response."""
        while piece := self.connection.recv(65536):
            self.got += piece
            self.times.append(time.monotonic())
        self.connection.close()
        return self

    @property
    def status(self) -> int:
        return int(self.got[9:12])

    @property
    def head(self) -> str:
        return self.got.partition(b"\r\n\r\n")[0].decode().lower()

    @property
    def error(self) -> dict:
        return json.loads(re.search(rb"\{.*\}", self.got.partition(b"\r\n\r\n")[2], re.S)[0])["error"]


def story(**fields) -> dict:
    return {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": 2000,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        **fields,
    }


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def site(request, tmp_path_factory):
    with Server(CONFIG) as server:
        proxy = Proxy(request.param, tmp_path_factory.mktemp(request.param), server.port)
        yield server, proxy
        proxy.stop()


def at_rest(server) -> bool:
    return server.gauge("num_requests_running") == 0 and server.gauge("num_requests_waiting") == 0


@pytest.mark.real_models
def test_each_token_arrives_at_once(site):
    _, proxy = site
    answer = proxy.send("/v1/completions", story(max_tokens=40)).read()
    assert answer.status == 200 and b"data: [DONE]" in answer.got and answer.got.endswith(b"0\r\n\r\n")
    assert "content-type: text/event-stream" in answer.head and "x-request-id: " in answer.head
    # A proxy that buffers events would send them in a few pieces at the end.
    assert len(answer.times) > 20, f"{len(answer.times)} pieces"
    assert answer.times[20] - answer.times[1] > 0.2 * (answer.times[-1] - answer.times[0])


def test_a_client_that_leaves_ends_its_request(site):
    server, proxy = site
    stream = proxy.send("/v1/completions", story())
    stream.connection.recv(1000)
    wait_until(lambda: server.gauge("num_requests_running") == 1, 5, "the request runs")
    stream.connection.close()
    wait_until(lambda: at_rest(server), 2, "the sequence slot is free")


def test_a_client_that_leaves_before_its_answer_ends_its_request(site):
    server, proxy = site
    stream = proxy.send("/v1/completions", story(stream=False))
    wait_until(lambda: server.gauge("num_requests_running") == 1, 5, "the request runs")
    stream.connection.close()
    wait_until(lambda: at_rest(server), 2, "the sequence slot is free")


def test_large_bodies_pass_and_those_beyond_the_limit_get_our_error(site):
    _, proxy = site
    body = json.dumps(story(max_tokens=1, stream=False)).encode()
    assert proxy.send("/v1/completions", body + b" " * (31 << 20)).read().status == 200
    refused = proxy.send("/v1/completions", body + b" " * (33 << 20)).read()
    assert refused.status == 413 and set(refused.error) == {"message", "type", "param", "code"}


def test_errors_pass_unchanged(site):
    server, proxy = site
    unknown = proxy.send("/v1/completions", story(model="nobody")).read()
    assert unknown.status == 404 and unknown.error["code"] == "model_not_found"
    streams = []
    for state in ("running", "waiting"):
        streams.append(proxy.send("/v1/completions", story()))
        wait_until(lambda: server.gauge(f"num_requests_{state}") == 1, 5, f"one request is {state}")
    refused = proxy.send("/v1/completions", story()).read()
    assert refused.status == 429 and "retry-after: " in refused.head and refused.error["message"]
    for stream in streams:
        stream.connection.close()
    wait_until(lambda: at_rest(server), 2, "both requests have ended")


def test_connections_to_the_server_are_reused(site):
    server, proxy = site
    proxy.send("/health").read()
    before = connections(server)
    for _ in range(20):
        assert proxy.send("/health").read().status == 200
    assert connections(server) - before <= 2, "20 requests open at most two connections"


def connections(server) -> int:
    """The number of the server's connections that are open or were closed within the last minute."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}") if ":" in line]
    port = f":{server.port:04X}"
    return sum(1 for line in lines if len(line) > 3 and (line[1].endswith(port) or line[2].endswith(port)) and line[3] != "0A")


@pytest.mark.real_models
@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_a_drain_looks_the_same_behind_a_proxy(name, tmp_path):
    with Server(CONFIG) as server:
        proxy = Proxy(name, tmp_path, server.port)
        try:
            assert proxy.send("/ready").read().status == 200
            stream = proxy.send("/v1/completions", story())
            stream.got = stream.connection.recv(1000)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert proxy.send("/ready").read().status == 503
            refused = proxy.send("/v1/completions", story()).read()
            assert refused.status == 503 and refused.error["code"] == "shutting_down" and "retry-after: " in refused.head
            stream.read()
            assert b'"code":"shutting_down"' in stream.got and stream.got.endswith(b"0\r\n\r\n"), stream.got[-300:]
            server.process.wait(10)
        finally:
            proxy.stop()
