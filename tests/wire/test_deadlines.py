"""The limits on a request's total time, its time in the queue, and the tokens in the queue (docs/operations.md)."""

import json
import time

import pytest
from harness import MODEL, Server, open_stream, sse_events, wait_until

pytestmark = pytest.mark.timing

CONFIG = {
    "SERVER__DEFAULT_MODELS": MODEL,
    "ENGINE__MAX_RUNNING": "1",
    "LIMITS__MAX_QUEUE_SECONDS": "2",
    "LIMITS__REQUEST_TIMEOUT_SECONDS": "8",
}
ENDLESS = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 7000, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def strict():
    with Server(CONFIG) as running:
        yield running


def rest(server, seconds: float = 2) -> None:
    """Waits until nothing runs or waits. The gauges change at the end of a step, so a short request first makes sure that a step ends."""
    wait_until(lambda: server.complete("Hi", max_tokens=1).status == 200, seconds, "a small request is served")
    idle = lambda: server.gauge("num_requests_running") == 0 and server.gauge("num_requests_waiting") == 0
    wait_until(idle, 1, "nothing runs or waits")


def timed(server, path: str, body: dict, **headers) -> tuple:
    start = time.monotonic()
    reply = server.post(path, body, headers=headers)
    return reply, time.monotonic() - start


def occupied(server):
    stream = open_stream(server, "/v1/completions", ENDLESS | {"stream": True})
    wait_until(lambda: server.gauge("num_requests_running") == 1, 5, "the request runs")
    return stream


@pytest.mark.parametrize("seconds", ["1", "0.5"])
def test_a_whole_answer_that_is_late_is_an_error(strict, seconds):
    left = strict.metrics().get(("penstock_http_disconnects_total", ()), 0)
    reply, took = timed(strict, "/v1/completions", ENDLESS, **{"x-request-timeout": seconds})
    assert reply.status == 504 and reply.error["code"] == "deadline_exceeded" and reply.error["type"] == "server_error"
    assert reply.error["message"] == f"the request took longer than {seconds} s, which x-request-timeout allows"
    assert float(seconds) <= took < float(seconds) + 0.5
    rest(strict, 1)
    assert strict.metrics().get(("penstock_http_disconnects_total", ()), 0) == left, "the server does not count the client as disconnected"
    wait_until(lambda: "outcome=refused status=504" in strict.output(), 2, "the log line is written")
    assert "reason=deadline_exceeded" in strict.output()


def test_a_stream_that_is_late_ends_with_an_error(strict):
    reply, took = timed(strict, "/v1/completions", ENDLESS | {"stream": True}, **{"x-request-timeout": "1"})
    events = sse_events(reply.body)
    assert reply.status == 200 and 1 <= took < 1.5
    assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded" and "[DONE]" not in events
    assert len(events) > 2 and json.loads(events[0])["choices"], "tokens were sent before the deadline"
    rest(strict, 1)


def test_every_endpoint_keeps_to_the_deadline(strict):
    for path, fields in [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 2000}]}),
        ("/v1/completions", {"prompt": "word " * 2000}),
        ("/v1/responses", {"input": "word " * 2000}),
        ("/v1/embeddings", {"input": "word " * 2000}),
    ]:
        reply, took = timed(strict, path, {"model": MODEL, **fields}, **{"x-request-timeout": "0.3"})
        assert reply.status == 504 and reply.error["code"] == "deadline_exceeded", (path, reply.body)
        assert took < 1
        # The running step is the request's last one.
        rest(strict, 10)


def test_a_client_cannot_exceed_the_servers_own_limit(strict):
    for headers in ({}, {"x-request-timeout": "60"}):
        start = time.monotonic()
        reply = strict.post("/v1/completions", ENDLESS | {"max_tokens": 8000}, headers=headers)
        assert reply.status == 504 and "limits.request_timeout_seconds allows" in reply.error["message"]
        assert 8 <= time.monotonic() - start < 9


def test_a_deadline_that_is_no_number_is_refused(strict):
    for bad in ("0", "-1", "nan", "inf", "5s", "1e9", ""):
        reply = strict.post("/v1/completions", ENDLESS | {"max_tokens": 1}, headers={"x-request-timeout": bad})
        assert reply.status == 400 and reply.error["param"] == "x-request-timeout", (bad, reply.body)
    assert strict.post("/v1/completions", ENDLESS | {"max_tokens": 1}, headers={"x-request-timeout": " 2.5 "}).status == 200
    assert strict.get("/health", headers={"x-request-timeout": "bad"}).status == 200, "probes ignore the header"


def test_a_request_that_waits_too_long_is_refused(strict):
    stream = occupied(strict)
    reply, took = timed(strict, "/v1/completions", ENDLESS | {"max_tokens": 2})
    assert reply.status == 429 and reply.error["code"] == "queue_timeout", reply.body
    assert "limits.max_queue_seconds" in reply.error["message"] and reply.headers["retry-after"] == "1"
    assert 2 <= took < 2.5
    streamed, took = timed(strict, "/v1/completions", ENDLESS | {"max_tokens": 2, "stream": True})
    assert json.loads(sse_events(streamed.body)[-1])["error"]["code"] == "queue_timeout" and 2 <= took < 2.5
    wait_until(lambda: strict.gauge("num_requests_waiting") == 0, 1, "the queue is empty")
    # The client's own deadline also applies in the queue.
    reply, took = timed(strict, "/v1/completions", ENDLESS | {"max_tokens": 2}, **{"x-request-timeout": "0.5"})
    assert reply.status == 504 and 0.5 <= took < 1
    stream.close()
    rest(strict, 2)


def test_a_request_that_runs_does_not_wait(strict):
    reply, took = timed(strict, "/v1/completions", ENDLESS | {"max_tokens": 150})
    assert reply.status == 200
    stream, took = timed(strict, "/v1/completions", ENDLESS | {"stream": True}, **{"x-request-timeout": "3"})
    assert 3 <= took < 3.5 and json.loads(sse_events(stream.body)[-1])["error"]["code"] == "deadline_exceeded", "not queue_timeout"


def test_tokens_that_wait_are_bounded():
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__MAX_RUNNING": "1", "LIMITS__MAX_QUEUE_TOKENS": "300"}
    short = ENDLESS | {"max_tokens": 1}
    with Server(config) as server:
        waits = lambda number: wait_until(lambda: server.gauge("num_requests_waiting") == number, 5, f"{number} requests wait")
        stream = occupied(server)
        first = open_stream(server, "/v1/completions", short | {"prompt": [5] * 270})
        waits(1)
        reply, took = timed(server, "/v1/completions", short | {"prompt": [5] * 31})
        assert reply.status == 429 and reply.error["code"] == "rate_limit_exceeded" and took < 1
        assert "limits.max_queue_tokens" in reply.error["message"] and reply.headers["retry-after"] == "1"
        second = open_stream(server, "/v1/completions", short | {"prompt": [5] * 30})
        waits(2)
        assert timed(server, "/v1/completions", short)[0].status == 429, "not even one more token may wait"
        for gone in (stream, first, second):
            gone.close()
        rest(server, 5)
        # When the queue is empty, a prompt may be longer than the bound.
        assert server.post("/v1/completions", short | {"prompt": [5] * 400}).status == 200
