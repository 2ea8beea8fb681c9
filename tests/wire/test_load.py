"""Clients that disconnect, bursts, concurrent requests, and shutdown."""

import json
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import MODEL, Server, open_stream, sse_events, wait_until

pytestmark = pytest.mark.timing

CHAT = "/v1/chat/completions"


def long_stream(**fields) -> dict:
    return {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": 1500,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        **fields,
    }


def at_rest(server) -> bool:
    return (
        server.gauge("num_requests_running") == 0 and server.gauge("num_requests_waiting") == 0 and server.gauge("kv_cache_usage_perc") == 0
    )


def reset(stream: socket.socket) -> None:
    """Closes the connection with RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize("close", [socket.socket.close, reset], ids=["FIN", "RST"])
def test_a_client_that_goes_away_frees_its_cache(server, close):
    wait_until(lambda: at_rest(server), 5, "the server is idle before the test")
    stream = open_stream(server, "/v1/completions", long_stream())
    assert b"200 OK" in stream.recv(4096)
    wait_until(lambda: server.gauge("num_requests_running") == 1 and server.gauge("kv_cache_usage_perc") > 0, 5, "the request runs")
    close(stream)
    wait_until(lambda: at_rest(server), 1.0, "the request's blocks are free")


def test_a_client_that_goes_away_during_prefill_or_in_the_queue_frees_its_cache():
    """Steps are short, so the running one ends soon after a client disconnects."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__MAX_RUNNING": "1", "ENGINE__MAX_BATCH_TOKENS": "128"}) as server:
        expected, count = server.text("Once upon a time"), "penstock_request_success_total"
        reasons = [(count, (("finished_reason", reason), ("model_name", MODEL))) for reason in ("abort", "length", "stop", "error")]
        ended = lambda: [server.metrics()[reason] for reason in reasons]
        before = ended()
        long_prompt = lambda number: long_stream(prompt=f"{number} " + "word " * 3000, max_tokens=8)
        streams = [open_stream(server, "/v1/completions", long_prompt(number)) for number in range(6)]
        places = lambda: [server.gauge(f"num_requests_{state}") for state in ("running", "waiting")]
        wait_until(lambda: places() == [1, 5], 30, "one request runs and five wait")
        for stream in streams:
            stream.close()
        wait_until(lambda: at_rest(server), 30, "no request runs or waits")
        assert [now - then for now, then in zip(ended(), before)] == [6, 0, 0, 0], "each request was aborted, and none completed"
        assert server.text("Once upon a time") == expected


@pytest.mark.usefixtures("survives")
def test_a_disconnect_also_ends_a_request_without_streaming(server):
    stream = open_stream(server, "/v1/completions", long_stream(stream=False))
    wait_until(lambda: server.gauge("num_requests_running") == 1, 5, "the request runs")
    stream.close()
    wait_until(lambda: at_rest(server), 1.0, "the request's blocks are free")


def test_sigterm_lets_running_requests_finish():
    """Row 82. On a busy machine the stream takes longer than the default time to drain."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__DRAIN_SECONDS": "150"}) as server:
        messages = [{"role": "user", "content": "Count to ten."}]
        stream = open_stream(
            server, CHAT, {"model": MODEL, "messages": messages, "max_tokens": 300, "stream": True, "ignore_eos": True}
        )
        got = stream.recv(1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/ready", timeout=5).status == 503, 2, "the server drains and reports it")
        assert server.get("/health", timeout=5).status == 200, "a draining server is healthy"
        refused = server.complete("Hi")
        assert refused.status == 503 and refused.error["code"] == "shutting_down" and refused.headers["retry-after"] == "1"
        while piece := stream.recv(65536):
            got += piece
        stream.close()
        assert b"200 OK" in got and b"data: [DONE]" in got, "the running stream completed"
        start = time.monotonic()
        server.process.wait(10)
        assert server.process.returncode == 0, server.output()
        assert time.monotonic() - start < 5


def test_a_second_sigterm_ends_the_process_at_once():
    """Row 82."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL}) as server:
        stream = open_stream(server, "/v1/completions", long_stream(max_tokens=4000))
        stream.recv(1024)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None, "the server drains"
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(10)
        assert time.monotonic() - start < 3
        stream.close()
        assert server.process.returncode == 130, server.output()
        server.process.returncode = 0  # the exit status is asserted above


@pytest.mark.parametrize("delay", [0.01, 0.03, 0.06, 0.1, 0.2])
def test_sigterm_ends_a_server_that_is_still_starting(delay):
    """Row 82."""
    server = Server({"SERVER__DEFAULT_MODELS": MODEL})
    server.wait_ready = lambda: time.sleep(delay)
    server.__enter__()
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    # until the handler is installed, the signal itself ends the process
    assert server.process.wait(10) in (0, -signal.SIGTERM), server.output()
    assert time.monotonic() - start < 3 and "panicked" not in server.output()


def test_the_drain_has_a_deadline():
    """Row 82."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__DRAIN_SECONDS": "1"}) as server:
        stream = open_stream(server, "/v1/completions", long_stream(max_tokens=4000))
        got = stream.recv(1024)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        while piece := stream.recv(65536):
            got += piece
        server.process.wait(10)
        assert time.monotonic() - start < 6
        events = [line for line in got.decode().split("\n") if line.startswith("data: ")]
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == "shutting_down"
        assert b"[DONE]" not in got, "a cut stream has no [DONE]"
        assert got.endswith(b"\r\n0\r\n\r\n"), "the chunked response is complete"


def test_concurrent_streams_are_complete(server):
    def stream(number: int) -> list[str]:
        return sse_events(server.chat(f"Say the number {number}.", stream=True, max_tokens=6).body)

    with ThreadPoolExecutor(20) as pool:
        for events in pool.map(stream, range(20)):
            assert events[-1] == "[DONE]"
            chunks = [json.loads(event) for event in events[:-1]]
            assert len({chunk["id"] for chunk in chunks}) == 1
