"""HTTP itself: sizes, slow clients, framing, hosts and origins."""

import gzip
import json
import resource
import socket
import time
import zlib
from pathlib import Path

import pytest
from harness import MODEL, Server, raw, status_of, wait_until

pytestmark = pytest.mark.usefixtures("survives")

PAYLOAD = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 1}).encode()


def post(server, headers: str, body: bytes, seconds: float = 10, path: str = "/v1/completions") -> bytes:
    host = "" if "Host:" in headers else f"Host: 127.0.0.1:{server.port}\r\n"
    return raw(server, f"POST {path} HTTP/1.1\r\n{host}{headers}\r\n".encode() + body, seconds)


def json_post(server, extra: str = "", body: bytes = PAYLOAD, **kwargs) -> bytes:
    return post(server, f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}", body, **kwargs)


def refused(answer: bytes, *statuses: int) -> None:
    """The answer has one of the statuses. A connection that is closed without an answer fails."""
    assert status_of(answer) in statuses, answer[:200]


def memory(server) -> int:
    """Anonymous resident memory in bytes."""
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_a_plain_request_over_a_raw_socket_is_answered(server):
    assert status_of(json_post(server)) == 200


def error_of(answer: bytes) -> dict:
    """The error of an answer that the server closes the connection after. Its body is as long as its head says."""
    head, body = answer.split(b"\r\n\r\n", 1)
    headers = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
    assert int(headers[b"content-length"]) == len(body) and headers[b"content-type"] == b"application/json", answer
    assert headers[b"x-request-id"] and headers[b"connection"] == b"close", answer
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error", error
    return error


def test_too_many_headers_are_refused(server):
    answer = json_post(server, "".join(f"X-{i}: 1\r\n" for i in range(200)))
    refused(answer, 431)
    assert error_of(answer)["code"] == "request_head_too_large"


def test_a_head_that_is_too_long_is_refused(server):
    answer = json_post(server, "X-Long: " + "a" * 200_000 + "\r\n")
    refused(answer, 431)
    assert error_of(answer)["code"] == "request_head_too_large"


def test_bytes_that_are_no_http_are_refused_with_an_error(server):
    for sent in (b"\x16\x03\x01\x00\xa5\x01", b"hello\r\n\r\n", b"GET / HTTP/3.7\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n"):
        answer = raw(server, sent, 3)
        refused(answer, 400)
        assert error_of(answer)["code"] == "invalid_http", sent


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "], ids=["silent", "half a head"])
def test_a_slow_head_times_out(server, sent):
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
    """Keeps a connection alive and sends the pieces of another head slowly. Returns how long that went on [s], and the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
        head = "POST /v1/completions" if first else "GET /health"
        head = f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(first)}\r\n\r\n"
        connection.sendall(head.encode())
        time.sleep(0.1)
        connection.sendall(first)
        assert status_of(connection.recv(65536)) == 200
        time.sleep(3)  # an idle connection may stay longer than a head may take
        start, answer, left = time.monotonic(), b"", iter(pieces)
        connection.settimeout(0.3)
        while time.monotonic() - start < 12:
            try:
                connection.sendall(next(left, b""))
                piece = connection.recv(65536)
                answer += piece
                if not piece:
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
        return time.monotonic() - start, answer


def test_a_slow_head_on_a_connection_that_was_kept_alive_times_out():
    from concurrent.futures import ThreadPoolExecutor

    cases = [(first, name) for first in (b"", PAYLOAD) for name in LATER]
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "LIMITS__HEAD_TIMEOUT_SECONDS": "2"}) as server, ThreadPoolExecutor(len(cases)) as pool:
        for case, (waited, answer) in zip(cases, pool.map(lambda case: late_head(server, case[0], LATER[case[1]]), cases)):
            assert 1 <= waited <= 6, (case, waited)
            if answer:
                assert status_of(answer) == 408 and error_of(answer)["code"] == "request_timeout", (case, answer)


def test_an_idle_connection_and_a_long_answer_outlive_the_time_of_a_head(server):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for wait in (7, 6, 0):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        time.sleep(wait)
    fields = {"model": MODEL, "prompt": "Once upon a time", "ignore_eos": True, "temperature": 0, "stream": True, "max_tokens": 1500}
    start = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(fields), {"content-type": "application/json"})
    connection.sock.sendall(b"GET /hea")  # the beginning of the next head, while the answer is still being written
    assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - start > 6, "the answer took longer than a head may"
    connection.sock.sendall(b"lth HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"200 OK" in connection.sock.recv(4096)
    connection.close()


def test_a_slow_body_times_out():
    with Server({"LIMITS__BODY_TIMEOUT_SECONDS": "3", "SERVER__DEFAULT_MODELS": MODEL}) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            head += "Content-Type: application/json\r\nContent-Length: 500\r\n\r\n"
            connection.sendall(head.encode())
            start = time.monotonic()
            connection.settimeout(0.5)
            answer = None
            while answer is None and time.monotonic() - start < 10:
                try:
                    connection.sendall(b" ")
                    answer = connection.recv(4096)
                except TimeoutError:
                    pass
        assert answer is not None and status_of(answer) == 408, answer
        assert time.monotonic() - start < 8
        assert server.get("/health").status == 200


def test_a_declared_length_that_is_too_long_is_refused_at_once(server):
    start = time.monotonic()
    refused(post(server, "Content-Type: application/json\r\nContent-Length: 9999999999\r\n", b"{", seconds=5), 413)
    assert time.monotonic() - start < 4


def test_a_body_that_is_too_long_is_refused(server):
    reply = server.post("/v1/completions", b" " * (33 * 1024 * 1024))
    assert reply.status == 413
    assert reply.error["type"] == "invalid_request_error"


def test_a_compressed_bomb_is_refused_in_bounded_memory(server):
    import io

    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as packer:
        block = b" " * (1 << 20)
        for _ in range(1024):
            packer.write(block)
    before = memory(server)
    answer = json_post(server, "Content-Encoding: gzip\r\n", out.getvalue(), seconds=30)
    refused(answer, 413)
    assert memory(server) - before < 80 << 20


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_read_and_a_cut_one_refused(server, encoding, pack):
    reply = server.post("/v1/completions", pack(PAYLOAD), headers={"content-encoding": encoding})
    assert reply.status == 200, reply.body
    reply = server.post("/v1/completions", pack(PAYLOAD)[:-6], headers={"content-encoding": encoding})
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip"])
def test_an_unknown_encoding_is_refused_by_name(server, encoding):
    reply = server.post("/v1/completions", PAYLOAD, headers={"content-encoding": encoding})
    assert reply.status == 415 and f"`{encoding}`" in reply.error["message"]


def test_many_small_chunks_take_bounded_memory(server):
    before = memory(server)
    chunks = b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n"
    for _ in range(5):
        refused(post(server, "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n", chunks, seconds=20), 400, 413)
    assert memory(server) - before < 32 << 20


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
    refused(post(server, f"Content-Type: application/json\r\n{headers}", PAYLOAD, seconds=6), 400, 413)


def test_a_request_without_a_host_is_refused(server):
    refused(raw(server, b"GET /v1/models HTTP/1.1\r\n\r\n", 5), 400)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80"])
def test_a_foreign_host_is_refused_on_a_loopback_address(server, host):
    refused(raw(server, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), 5), 403)
    refused(json_post(server, f"Host: {host}\r\n"), 403)


@pytest.mark.parametrize("target", ["http://evil.example", "http://evil.example:80", "http://localhost@evil.example"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_target_with_a_foreign_host_is_refused_on_a_loopback_address(server, target, version):
    def status(target: str) -> int:
        answer = raw(server, f"GET {target}/v1/models HTTP/".encode() + version + b"\r\nHost: localhost\r\n\r\n", 5)
        return int(answer.removeprefix(b"HTTP/" + version + b" ")[:3])

    assert (status(target), status("http://localhost")) == (403, 200)


def test_a_server_for_other_machines_warns_at_its_start():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__HOST": "0.0.0.0"}) as server:
        assert status_of(raw(server, b"GET /v1/models HTTP/1.1\r\nHost: any.example\r\n\r\n", 5)) == 200
        log = Path(server.log.name)  # whole: while a server starts slowly, probes fill the end
        wait_until(lambda: "answers other machines, without a key and under any host name" in log.read_text(), 5, "it warns")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:8080", "[::1]:8080"])
def test_loopback_hosts_are_accepted(server, host):
    assert status_of(raw(server, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), 5)) == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_foreign_origins_get_no_cors_headers(server, origin):
    reply = server.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 1}, headers={"origin": origin})
    assert "access-control-allow-origin" not in reply.headers
    reply = server.request("OPTIONS", "/v1/completions", headers={"origin": origin, "access-control-request-method": "POST"})
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_that_is_not_declared_as_json_is_refused(server, kind):
    reply = server.post("/v1/completions", PAYLOAD, headers={"content-type": kind})
    assert reply.status == 415
    assert reply.error["type"] == "invalid_request_error"


def test_json_with_a_charset_is_json(server):
    assert server.post("/v1/completions", PAYLOAD, headers={"content-type": "application/json; charset=utf-8"}).status == 200


def test_control_characters_stay_out_of_the_log(server):
    mark = "logmark7"
    assert server.get(f"/v1/models/{mark}%1b%5b31mred%0d%0aforged%00").status == 404
    server.get("/v1/models", headers={"user-agent": f"{mark}-\x1b[31magent"})
    server.complete(model=f"{mark}\x1b[31m\r\nforged\x00")
    log = open(server.log.name, "rb").read()
    assert mark.encode() in log, "the requests were logged"
    assert b"\x00" not in log
    for line in log.split(b"\n"):
        assert not line.startswith(b"forged"), line
        if mark.encode() in line:
            assert b"\x1b[31mred" not in line and b"\x1b[31magent" not in line and b"\r" not in line, line


def test_the_server_recovers_from_more_connections_than_open_files():
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(400)]
        time.sleep(1)
        assert server.process.poll() is None
        for connection in connections:
            connection.close()
        wait_until(lambda: answers(server), 20, "it serves again")
        assert server.complete(max_tokens=1).status == 200


def answers(server) -> bool:
    try:
        return server.get("/health", timeout=2).status == 200
    except OSError:
        return False


def test_keep_alive_serves_many_requests(server):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for _ in range(5):
        connection.request("GET", "/v1/models")
        reply = connection.getresponse()
        assert reply.status == 200 and reply.read()
        connection.request("POST", "/v1/completions", b"not json", {"content-type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 400 and json.loads(reply.read())["error"]["message"]
    connection.close()
