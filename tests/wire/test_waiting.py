"""With one sequence at a time and a short queue, waiting streams get comments, and a full queue refuses requests."""

import json
import time

import pytest
from harness import MODEL, Server, open_stream, wait_until

pytestmark = pytest.mark.timing

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__MAX_RUNNING": "1", "SERVER__KEEP_ALIVE_SECONDS": "1", "LIMITS__MAX_QUEUE": "2"}


@pytest.fixture(scope="module")
def narrow():
    with Server(CONFIG) as running:
        yield running


def occupy(server):
    """Opens a stream that runs as the only sequence."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 3000, "temperature": 0, "stream": True, "ignore_eos": True}
    stream = open_stream(server, "/v1/completions", body)
    got = b""
    while b"data: " not in got:  # The gauge alone may still count the previous request.
        got += stream.recv(4096)
    wait_until(lambda: server.gauge("num_requests_running") == 1, 5, "the request runs")
    return stream


def waiting(server, number: int, path: str = "/v1/completions", **fields):
    """Sends a request, and waits until `number` requests are in the queue."""
    stream = open_stream(server, path, {"model": MODEL, "max_tokens": 2, "temperature": 0, "stream": True, **fields})
    wait_until(lambda: server.gauge("num_requests_waiting") == number, 5, "the request waits")
    return stream


def read_all(stream) -> bytes:
    got = b""
    while b"[DONE]" not in got and (piece := stream.recv(65536)):
        got += piece
    stream.close()
    return got


def test_silence_is_filled_with_comments(narrow):
    if narrow.backend == "cuda":
        pytest.skip("a GPU finishes the longest answer too early")
    occupied = occupy(narrow)
    start = time.monotonic()
    stream = waiting(narrow, 1, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}])
    got = b""
    while got.count(b": ping\n\n") < 2:
        piece = stream.recv(65536)
        assert piece, got
        got += piece
    assert 1.8 <= time.monotonic() - start < 6
    occupied.close()
    got += read_all(stream)
    body = got.split(b"\r\n\r\n", 1)[1]
    assert body.index(b": ping\n\n") < body.index(b'"finish_reason":"length"') < body.index(b"data: [DONE]\n\n")
    assert body.index(b'"role":"assistant"') < body.index(b": ping"), "the role is sent at once"


def test_a_full_queue_refuses_at_once(narrow):
    occupied = occupy(narrow)
    queued = [waiting(narrow, number, prompt=f"{number}") for number in (1, 2)]
    for stream in (False, True):
        for ask in (narrow.complete, narrow.chat):
            start = time.monotonic()
            reply = ask("Hi", stream=stream)
            assert time.monotonic() - start < 2
            assert reply.status == 429 and reply.headers["retry-after"] == "1", reply.body
            assert reply.error["type"] == "rate_limit_error" and reply.error["code"] == "rate_limit_exceeded"
    occupied.close()
    for stream in queued:
        assert b"data: [DONE]\n\n" in read_all(stream)
    wait_until(lambda: narrow.gauge("num_requests_running") == 0 and narrow.gauge("num_requests_waiting") == 0, 5, "the server is idle")
    assert narrow.complete("Hi").status == 200


def test_the_prompts_of_a_request_are_queued_together_or_not_at_all(narrow):
    occupied = occupy(narrow)
    queued = [waiting(narrow, number, prompt=f"{number}") for number in (1, 2)]
    reply = narrow.complete(["a", "b"])
    assert reply.status == 429, reply.body
    wait_until(lambda: narrow.gauge("num_requests_waiting") == 2, 5, "neither prompt waits")
    reply = narrow.complete(["a", "b", "c"])
    assert reply.status == 400 and reply.error["param"] == "prompt", "the queue can never hold these, so a retry would be useless"
    queued.pop().close()
    wait_until(lambda: narrow.gauge("num_requests_waiting") == 1, 5, "the second request has left the queue")
    # Together, the prompts of a request take one place in such a short queue.
    pair = waiting(narrow, 3, prompt=["c", "d"])
    occupied.close()
    for stream in (*queued, pair):
        assert b"data: [DONE]\n\n" in read_all(stream)
    wait_until(lambda: narrow.gauge("num_requests_running") == 0, 5, "the server is idle")
    assert json.loads(narrow.complete(["a", "b"]).body)["choices"][1]["index"] == 1
