"""HTTP itself: body sizes, slow clients, framing, and host names."""

import gzip
import json
import time
import zlib
from pathlib import Path

import pytest
import zstandard
from harness import MODEL, Server, raw, status_of, wait_until

pytestmark = pytest.mark.usefixtures("survives")

PAYLOAD = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 1}).encode()


def post(server, headers: str, body: bytes, seconds: float = 10, path: str = "/v1/completions") -> bytes:
    host = "" if "Host:" in headers else f"Host: 127.0.0.1:{server.port}\r\n"
    return raw(server, f"POST {path} HTTP/1.1\r\n{host}{headers}\r\n".encode() + body, seconds)


def json_post(server, extra: str = "", body: bytes = PAYLOAD, **kwargs) -> bytes:
    return post(server, f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}", body, **kwargs)


def refused(answer: bytes, *statuses: int) -> None:
    """Checks that the response has one of the statuses. A connection that is closed without a response fails."""
    assert status_of(answer) in statuses, answer[:200]


def test_a_plain_request_over_a_raw_socket_is_answered(server):
    assert status_of(json_post(server)) == 200


def error_of(answer: bytes) -> dict:
    """Returns the error of a response after which the server closes the connection. Checks that its body is as long as its head says."""
    head, body = answer.split(b"\r\n\r\n", 1)
    headers = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
    assert int(headers[b"content-length"]) == len(body) and headers[b"content-type"] == b"application/json", answer
    assert headers[b"x-request-id"] and headers[b"connection"] == b"close", answer
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error", error
    return error


def test_bytes_that_are_no_http_are_refused_with_an_error(server):
    for sent in (b"\x16\x03\x01\x00\xa5\x01", b"hello\r\n\r\n", b"GET / HTTP/3.7\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n"):
        answer = raw(server, sent, 3)
        refused(answer, 400)
        assert error_of(answer)["code"] == "invalid_http", sent


@pytest.mark.real_models
def test_an_idle_connection_and_a_long_answer_outlive_the_time_of_a_head(server):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for wait in (7, 6, 0):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        time.sleep(wait)
    fields = {"model": MODEL, "prompt": "Once upon a time", "ignore_eos": True, "temperature": 0, "stream": True}
    start = time.monotonic()
    assert server.post("/v1/completions", fields | {"max_tokens": 64}).status == 200
    # An answer that takes twice the time asserted below, if the context allows.
    fields["max_tokens"] = min(1500, int(64 * 12 / (time.monotonic() - start)))
    start = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(fields), {"content-type": "application/json"})
    connection.sock.sendall(b"GET /hea")  # the start of the next head, while the answer is still being sent
    assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - start > 6, "the answer took longer than the head timeout"
    connection.sock.sendall(b"lth HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"200 OK" in connection.sock.recv(4096)
    connection.close()


def test_a_body_that_is_too_long_is_refused(server):
    reply = server.post("/v1/completions", b" " * (33 * 1024 * 1024))
    assert reply.status == 413
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress)])
def test_a_compressed_body_is_read_and_a_cut_one_refused(server, encoding, pack):
    reply = server.post("/v1/completions", pack(PAYLOAD), headers={"content-encoding": encoding})
    assert reply.status == 200, reply.body
    reply = server.post("/v1/completions", pack(PAYLOAD)[:-6], headers={"content-encoding": encoding})
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error" and reply.error["code"] == "invalid_body"


@pytest.mark.parametrize("encoding", ["br", "compress", "gzip, gzip"])
def test_an_unknown_encoding_is_refused_by_name(server, encoding):
    reply = server.post("/v1/completions", PAYLOAD, headers={"content-encoding": encoding})
    assert reply.status == 415 and f"`{encoding}`" in reply.error["message"]


def test_a_server_that_listens_to_other_machines_warns_at_start():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__HOST": "0.0.0.0"}) as server:
        assert status_of(raw(server, b"GET /v1/models HTTP/1.1\r\nHost: any.example\r\n\r\n", 5)) == 200
        log = Path(server.log.name)  # The whole log: if the server starts slowly, probes fill the log's end.
        wait_until(lambda: "answers other machines, without a key and under any host name" in log.read_text(), 5, "the server warns")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:8080", "[::1]:8080"])
def test_loopback_hosts_are_accepted(server, host):
    assert status_of(raw(server, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), 5)) == 200


def test_json_with_a_charset_is_json(server):
    assert server.post("/v1/completions", PAYLOAD, headers={"content-type": "application/json; charset=utf-8"}).status == 200


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
