"""Rows 67 to 69: the time until the server notices that a client has disconnected, and until its sequence slot and cache are free."""

import re
import socket
import statistics
import struct
import time
from pathlib import Path

import pytest
from harness import MODEL, Server, open_stream, wait_until

pytestmark = pytest.mark.timing

STEP = 128  # Prompt tokens per step. Few, so that steps end soon.
CONFIG = {
    "SERVER__DEFAULT_MODELS": MODEL,
    "ENGINE__MAX_RUNNING": "1",
    "ENGINE__MAX_BATCH_TOKENS": str(STEP),
    "ENGINE__PREFIX_CACHE": "false",
}
TRIES = 5
# The time that the server may take in addition to a step [s].
NOTICED = 0.05


@pytest.fixture(scope="module")
def narrow():
    """One sequence runs at a time, so further requests wait."""
    with Server(CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def prefill(narrow) -> float:
    """Estimates the time of one step of a long prompt [s]. Later steps take longer, and other programs may use the cores."""
    start = time.monotonic()
    tokens = narrow.complete("word " * 1500, max_tokens=1).json()["usage"]["prompt_tokens"]
    return (time.monotonic() - start) / -(-tokens // STEP)


@pytest.fixture
def decode(narrow) -> float:
    """Measures a decode step plus the two reads of the metrics that detect its end, while the engine has all cores [s]."""
    busy = ask(narrow, "busy", stream=True)
    wait_until(lambda: running(narrow) == 1, 20, "the request runs")
    generated = lambda: narrow.gauge("generation_tokens_total")
    first, start = generated(), time.monotonic()
    looks = []
    while generated() < first + 10:
        looked = time.monotonic()
        running(narrow)
        looks.append(time.monotonic() - looked)
    step = (time.monotonic() - start) / 10
    busy.close()
    return step + 2 * statistics.median(looks)


def fin(stream: socket.socket) -> None:
    stream.close()


def rst(stream: socket.socket) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def running(server) -> float:
    return server.gauge("num_requests_running")


def at_rest(server) -> bool:
    return running(server) == 0 and server.gauge("num_requests_waiting") == 0 and server.gauge("kv_cache_usage_perc") == 0


def steps(server) -> float:
    """The number of steps so far. On the CPU, a step counts when it has ended."""
    return server.gauge("step_tokens_count")


def ask(server, name: str, **fields) -> socket.socket:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "ignore_eos": True, **fields}
    return open_stream(server, "/v1/completions", body, headers={"x-request-id": name})


def noticed(server, name: str, closed: float) -> float:
    """Returns the time from closing the connection to the log line about it [s]."""
    line = re.compile(rf"outcome=left .*id={name}\b")
    wait_until(lambda: line.search(Path(server.log.name).read_text(errors="replace")), 10, f"the disconnect of {name} is noticed")
    return time.monotonic() - closed


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("close", [fin, rst])
@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
def test_a_client_that_goes_away_is_noticed_and_frees_its_place_within_a_step(narrow, prefill, decode, where, close, stream):
    """Row 67."""
    found, freed, ended, late = [], [], [], []
    for number in range(TRIES):
        wait_until(lambda: at_rest(narrow), 10, "the server is idle before the test")
        name = f"{where}-{close.__name__}-{stream}-{number}"
        other = None
        if where == "queue":
            other = ask(narrow, f"other-{name}", stream=True)
            wait_until(lambda: running(narrow) == 1, 10, "the other request runs")
            gone = ask(narrow, name, stream=stream)
            wait_until(lambda: narrow.gauge("num_requests_waiting") == 1, 10, "the request waits")
        elif where == "prefill":
            gone = ask(narrow, name, stream=stream, prompt=f"{number} " + "word " * 6000)
            time.sleep(0.2 + 2.5 * prefill)
        else:
            gone = ask(narrow, name, stream=stream)
            wait_until(lambda: running(narrow) == 1, 10, "the request runs")
            time.sleep(0.2)
        closed = time.monotonic()
        close(gone)
        found.append(noticed(narrow, name, closed))
        if where == "queue":
            wait_until(lambda: narrow.gauge("num_requests_waiting") == 0, 10, "the queue is empty")
        elif where == "prefill":
            before = steps(narrow)
            wait_until(lambda: steps(narrow) > before or at_rest(narrow), 10, "the running step has ended")
            late.append(wait_until(lambda: at_rest(narrow), 10, "the request's cache is free"))
            ended.append(steps(narrow) - before)
        else:
            wait_until(lambda: at_rest(narrow), 10, "the request's cache is free")
        freed.append(time.monotonic() - closed)
        if other:
            other.close()
    shown = lambda times: f"{statistics.median(times) * 1000:.0f} ms (at most {max(times) * 1000:.0f})"
    print(f"\n| {where} | {close.__name__.upper()} | {'stream' if stream else 'whole'} | {shown(found)} | {shown(freed)} |", end="")
    assert statistics.median(found) <= NOTICED, f"noticed after {found}"
    # Polling adds to these times, and adds more on a busy machine. The smallest one is closest to the server's own time.
    if where == "prefill":
        # The time of a step depends on the machine's load, so the test counts steps: only the running one may end.
        assert max(ended) <= 1, f"steps that ended after the server had noticed: {ended}"
        assert min(late) <= NOTICED, f"free this long after the step: {late}"
    else:
        assert min(freed) <= decode + NOTICED, f"free after {freed}, and a step takes {decode}"


def test_others_are_served_after_an_abort_in_a_long_prompt(narrow):
    """Row 68."""
    expected = narrow.text("The capital of France is")
    gone = ask(narrow, "long", prompt="word " * 6000, stream=True)
    time.sleep(0.5)
    gone.close()
    assert narrow.text("The capital of France is") == expected
