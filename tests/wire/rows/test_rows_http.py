"""Rows 53 to 66 and 71: HTTP itself, hosts, origins and keys."""

import contextlib
import json
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import MODEL, ROOT, Server, gzip_bomb, raw, resident, status_of, wait_until
from test_http import PAYLOAD, error_of, json_post, post, refused
from test_keys import bearer, key, keys, served  # noqa: F401
from test_metrics import families


def test_too_many_headers_are_refused(server):
    """Row 53."""
    answer = json_post(server, "".join(f"X-{i}: 1\r\n" for i in range(200)))
    refused(answer, 431)
    assert error_of(answer)["code"] == "request_head_too_large"


def test_a_head_that_is_too_long_is_refused(server):
    """Row 53."""
    answer = json_post(server, "X-Long: " + "a" * 200_000 + "\r\n")
    refused(answer, 431)
    assert error_of(answer)["code"] == "request_head_too_large"


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "], ids=["silent", "half a head"])
def test_a_slow_head_times_out(server, sent):
    """Row 54."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
        connection.sendall(sent)
        start = time.monotonic()
        answer = connection.recv(4096)
        waited = time.monotonic() - start
    assert 3 <= waited <= 9, waited
    assert status_of(answer) == 408 and error_of(answer)["code"] == "request_timeout", answer


LATER = {
    "trickled": [b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "] + [b"a"] * 40,
    "half a head": [b"POST /v1/completions HTTP/1.1\r\n"],
    "one byte": [b"G"],
    "an empty line": [b"\r\n"],
}


def late_head(server, first: bytes, pieces: list[bytes]) -> tuple[float, bytes]:
    """Keeps a connection alive, and sends another head in pieces. Returns the time until the connection closes [s], and the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
        head = "POST /v1/completions" if first else "GET /health"
        head = f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(first)}\r\n\r\n"
        connection.sendall(head.encode())
        time.sleep(0.1)
        connection.sendall(first)
        assert status_of(connection.recv(65536)) == 200
        time.sleep(3)  # an idle connection may stay open for longer than a head may take
        start, answer, left = time.monotonic(), b"", iter(pieces)
        connection.settimeout(0.3)
        while time.monotonic() - start < 12:
            with contextlib.suppress(ConnectionError):
                connection.sendall(next(left, b""))  # bytes that arrived before the close can still be read
            try:
                piece = connection.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            answer += piece
            if not piece:
                break
        return time.monotonic() - start, answer


def test_a_slow_head_on_a_connection_that_was_kept_alive_times_out():
    """Row 54."""
    cases = [(first, name) for first in (b"", PAYLOAD) for name in LATER]
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "LIMITS__HEAD_TIMEOUT_SECONDS": "2"}) as server, ThreadPoolExecutor(len(cases)) as pool:
        for case, (waited, answer) in zip(cases, pool.map(lambda case: late_head(server, case[0], LATER[case[1]]), cases)):
            assert 1 <= waited <= 6, (case, waited)
            assert status_of(answer) == 408 and error_of(answer)["code"] == "request_timeout", (case, answer)


def test_a_slow_body_times_out(server):
    """Row 55. One body arrives at a byte per second, the other not at all. Both run at the same time, because each takes half a minute."""

    def drip(piece: bytes) -> tuple[float, bytes]:
        with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 500\r\n\r\n".encode())
            start, answer = time.monotonic(), b""
            connection.settimeout(1)
            while not answer and time.monotonic() - start < 40:
                try:
                    connection.sendall(piece)
                    answer = connection.recv(4096)
                except TimeoutError:
                    pass
            return time.monotonic() - start, answer

    with ThreadPoolExecutor(2) as pool:
        for waited, answer in pool.map(drip, [b" ", b""]):
            assert status_of(answer) == 408 and 25 <= waited <= 32, (waited, answer[:100])


def test_a_declared_length_that_is_too_long_is_refused_at_once(server):
    """Row 56."""
    start = time.monotonic()
    refused(post(server, "Content-Type: application/json\r\nContent-Length: 9999999999\r\n", b"{", seconds=5), 413)
    assert time.monotonic() - start < 4, "refused at once, although the rest of the body never arrives"


def test_a_mebibyte_that_becomes_a_gibibyte_is_refused_in_flat_memory(server):
    """Row 57."""
    bomb = gzip_bomb(1024)
    refused(json_post(server, "Content-Encoding: gzip\r\n", bomb, seconds=30), 413)
    before = resident(server)
    for _ in range(3):
        refused(json_post(server, "Content-Encoding: gzip\r\n", bomb, seconds=30), 413)
    wait_until(lambda: resident(server) - before < 4 << 20, 15, "memory has not grown")


def settled(server, bound: int) -> int:
    """The server's memory once it is at most `bound`, or else its minimum over five seconds [bytes]. Freed memory is returned with a
    delay."""
    end, least = time.monotonic() + 5, resident(server)
    while least > bound and time.monotonic() < end:
        time.sleep(0.05)
        least = min(least, resident(server))
    return least


@pytest.mark.timing
def test_memory_does_not_grow_with_the_number_of_bodies_of_a_million_chunks(server):
    """Row 58. If bodies left memory behind, every fifty of them would. A thread's first large body allocates memory that the thread keeps,
    and which thread gets the body depends on the machine's load. So only one of several rounds must leave next to nothing."""
    chunks = b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n"
    head = "Content-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    ask = lambda _: post(server, head, chunks, seconds=60)
    first, left = resident(server), []
    with ThreadPoolExecutor(2) as pool:
        while len(left) < 2 or (left[-1] > MOST_LEFT and len(left) < 8):
            before = resident(server)
            for answer in pool.map(ask, range(50)):
                refused(answer, 400)
            left.append(settled(server, before + MOST_LEFT) - before)
    print(f"fifty bodies each time leave {', '.join(f'{one >> 10}' for one in left)} KiB")
    assert left[-1] <= MOST_LEFT, left
    assert resident(server) - first <= 64 << 20, "all threads together keep at most 64 MiB"


# The bound for fifty bodies: 10 KiB each [bytes].
MOST_LEFT = 512 << 10


@pytest.mark.parametrize(
    "headers",
    [
        f"Content-Length: {len(PAYLOAD)}\r\nTransfer-Encoding: chunked\r\n",
        f"Content-Length: {len(PAYLOAD)}\r\nContent-Length: {len(PAYLOAD) - 1}\r\n",
        f"Content-Length: +{len(PAYLOAD)}\r\n",
        "Content-Length: x\r\n",
        "Content-Length: -5\r\n",
        f"Content-Length: {2**64}\r\n",
    ],
    ids=["length and chunked", "two lengths", "plus", "no number", "negative", "2^64"],
)
def test_ambiguous_framing_is_refused(server, headers):
    """Row 59."""
    answer = post(server, f"Content-Type: application/json\r\n{headers}", PAYLOAD, seconds=6)
    refused(answer, 400)
    assert error_of(answer)["code"] == "invalid_http"


def test_a_request_without_a_host_is_refused(server):
    """Row 59."""
    refused(raw(server, b"GET /v1/models HTTP/1.1\r\n\r\n", 5), 400)


def test_a_host_or_a_target_that_holds_a_path_opens_nothing(served):  # noqa: F811
    """Row 60."""
    for host in ("localhost/v1/models?", "localhost#", "localhost/health", "localhost\\@evil.example", "localhost/../health"):
        assert status_of(raw(served, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(), 5)) == 403, host
    for target in (
        "http://localhost/health/../v1/models",
        "//health/v1/models",
        "/health/..%2fv1/models",
        "/v1/models?/health",
        "/health;/v1/models",
    ):
        answer = raw(served, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), 5)
        assert status_of(answer) == 401, (target, answer[:200])


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80"])
def test_a_foreign_host_on_a_loopback_address_is_refused(server, host):
    """Row 61."""
    refused(raw(server, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), 5), 403)
    refused(json_post(server, f"Host: {host}\r\n"), 403)


@pytest.mark.parametrize("target", ["http://evil.example", "http://evil.example:80", "http://localhost@evil.example"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_target_with_a_foreign_host_is_refused(server, target, version):
    """Row 61."""
    def status(target: str) -> int:
        answer = raw(server, f"GET {target}/v1/models HTTP/".encode() + version + b"\r\nHost: localhost\r\n\r\n", 5)
        return int(answer.removeprefix(b"HTTP/" + version + b" ")[:3])

    assert (status(target), status("http://localhost")) == (403, 200)


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_foreign_origin_gets_no_header_of_cors(server, origin):
    """Row 62."""
    reply = server.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 1}, headers={"origin": origin})
    assert "access-control-allow-origin" not in reply.headers
    reply = server.request("OPTIONS", "/v1/completions", headers={"origin": origin, "access-control-request-method": "POST"})
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_that_is_not_declared_as_json_is_refused(server, kind):
    """Row 62."""
    reply = server.post("/v1/completions", PAYLOAD, headers={"content-type": kind})
    assert reply.status == 415
    assert reply.error["type"] == "invalid_request_error"


def test_missing_wrong_huge_and_duplicate_keys_are_refused(served, key):  # noqa: F811
    """Row 63. Keys are compared by their hashes, in constant time (`keys/` tests that)."""
    wrong = [
        {},
        bearer("wrong"),
        {"x-api-key": key[:-1]},
        {"x-api-key": key + "x"},
        bearer(key.upper()),
        bearer(f"{key} {key}"),
        bearer(""),
    ]
    for headers in (*wrong, {"authorization": "Basic " + key}, {**bearer(key), "x-api-key": "other"}):
        reply = served.get("/v1/models", headers=headers)
        assert reply.status == 401 and reply.error["code"] == "invalid_api_key", headers
        assert key not in reply.body.decode()
    ask = lambda lines: raw(served, f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n".encode(), 5)
    for name, value in (("Authorization", f"Bearer {key}"), ("x-api-key", key)):
        assert status_of(ask(f"{name}: {value}\r\n{name}: {value}\r\n")) == 401, name
        assert status_of(ask(f"{name}: {value}\r\n")) == 200, name
        assert status_of(ask(f"{name}: Bearer {'x' * 1_000_000}\r\n")) == 431, name


def test_every_route_needs_a_key_but_health_and_readiness(served, key):  # noqa: F811
    """Row 64."""
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]
    routes = [(method.upper(), path.replace("{id}", "x")) for path, methods in paths.items() for method in methods]
    routes += [("GET", path) for path in ("/", "/docs", "/docs/", "/openapi.json", "/nothing", "/v1/nothing", "/health/x", "/healthz")]
    routes += [("HEAD", "/v1/models"), ("OPTIONS", "/v1/models"), ("PATCH", "/v1/models"), ("GET", "/v1//models"), ("GET", "//health")]
    assert len(routes) > 20
    for method, path in routes:
        reply = served.request(method, path, body=b"{}" if method == "POST" else None)
        if path in ("/health", "/ready", "/v1/health", "//health"):
            assert reply.status == 200, (method, path)
            continue
        assert reply.status == 401, (method, path, reply.status)
        assert reply.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            body = reply.json()
            if path.startswith("/api/"):
                assert set(body) == {"error"} and "API key" in body["error"], (path, body)
            elif path.startswith("/v1/messages"):
                assert body["type"] == "error" and body["error"]["type"] == "authentication_error", (path, body)
            else:
                assert reply.error["code"] == "invalid_api_key" and reply.error["type"] == "invalid_request_error", (path, body)
    assert served.get("/v1/models", headers=bearer(key)).status == 200
    assert served.get("/metrics", headers=bearer(key)).status == 200


def test_control_characters_stay_out_of_the_log(server):
    """Row 65."""
    mark = "logmark7"
    assert server.get(f"/v1/models/{mark}%1b%5b31mred%0d%0aforged%00").status == 404
    server.get("/v1/models", headers={"user-agent": f"{mark}-\x1b[31magent"})
    server.complete(model=f"{mark}\x1b[31m\r\nforged\x00")
    server.get("/v1/models/logmark8")
    log = lambda: Path(server.log.name).read_bytes()
    wait_until(lambda: b"logmark8" in log(), 5, "the last of the requests is logged")
    log = log()
    assert mark.encode() in log, "the requests were logged"
    assert b"\x00" not in log
    for line in log.split(b"\n"):
        assert not line.startswith(b"forged"), line
        if mark.encode() in line:
            assert b"\x1b[31mred" not in line and b"\x1b[31magent" not in line and b"\r" not in line, line


def test_ten_thousand_unknown_names_add_no_series(server):
    """Row 66."""
    def series() -> int:
        return sum(len(family.samples) for family in families(server).values())

    def ask(numbers: range) -> None:
        connection = server.connection(60)
        for number in numbers:
            body = json.dumps({"model": f"nope-{number}", "prompt": "Hi"})
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            reply = connection.getresponse()
            assert reply.status == 404 and reply.read()
            if number % 10 == 0:
                for path in (f"/v1/models/nope-{number}", f"/nope-{number}"):
                    assert server.get(path).status == 404
                assert server.request(f"NOPE{number}", "/v1/models").status == 405
        connection.close()

    ask(range(1))
    series()  # the scrape itself adds a series
    before, memory = series(), resident(server)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, [range(start, 10_000, 4) for start in range(4)]))
    assert series() == before
    assert "nope-" not in server.get("/metrics").body.decode().lower()
    grown = resident(server) - memory
    print(f"10,000 unknown names: {grown >> 10} KiB")
    assert grown <= 16 << 20


def answers(server) -> bool:
    try:
        return server.get("/health", timeout=2).status == 200
    except OSError:
        return False


def test_a_server_recovers_from_more_connections_than_open_files():
    """Row 71."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(400)]
        time.sleep(1)
        assert server.process.poll() is None
        for connection in connections:
            connection.close()
        wait_until(lambda: answers(server), 20, "the server works again")
        assert server.complete(max_tokens=1).status == 200
