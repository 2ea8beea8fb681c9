"""Rows 67 to 69: how soon the server notices that a client has gone, and how soon the client's place and cache are free."""

import re
import socket
import statistics
import struct
import time
from pathlib import Path

import pytest
from harness import MODEL, Server, open_stream, wait_until

pytestmark = pytest.mark.timing

STEP = 128  # tokens of a prompt per step: few, so that the tests need not wait long for the steps' ends
CONFIG = {
    "SERVER__DEFAULT_MODELS": MODEL,
    "ENGINE__MAX_RUNNING": "1",
    "ENGINE__MAX_BATCH_TOKENS": str(STEP),
    "ENGINE__PREFIX_CACHE": "false",
}
TRIES = 5
# What the figures to aim for allow, beside a step. [s]
NOTICED = 0.05


@pytest.fixture(scope="module")
def narrow():
    """One sequence runs at a time, so that others wait."""
    with Server(CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def prefill(narrow) -> float:
    """About the time of one step of a long prompt: later steps take longer, and other programs may take the cores. [s]"""
    start = time.monotonic()
    tokens = narrow.complete("word " * 1500, max_tokens=1).json()["usage"]["prompt_tokens"]
    return (time.monotonic() - start) / -(-tokens // STEP)


@pytest.fixture
def decode(narrow) -> float:
    """The time of a step that generates, and of the two looks at the metrics that find its end, while the engine has all cores. [s]"""
    busy = ask(narrow, "busy", stream=True)
    wait_until(lambda: running(narrow) == 1, 20, "it runs")
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
    """Steps so far. On the CPU a step counts once it has ended."""
    return server.gauge("step_tokens_count")


def ask(server, name: str, **fields) -> socket.socket:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "ignore_eos": True, **fields}
    return open_stream(server, "/v1/completions", body, headers={"x-request-id": name})


def noticed(server, name: str, closed: float) -> float:
    """Seconds from the close to the line in the log that tells of it."""
    line = re.compile(rf"outcome=left .*id={name}\b")
    wait_until(lambda: line.search(Path(server.log.name).read_text(errors="replace")), 10, f"{name} is noticed")
    return time.monotonic() - closed


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("close", [fin, rst])
@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
def test_a_client_that_goes_away_is_noticed_and_frees_its_place_within_a_step(narrow, prefill, decode, where, close, stream):
    """Row 67."""
    found, freed, ended, late = [], [], [], []
    for number in range(TRIES):
        wait_until(lambda: at_rest(narrow), 10, "rest before")
        name = f"{where}-{close.__name__}-{stream}-{number}"
        other = None
        if where == "queue":
            other = ask(narrow, f"other-{name}", stream=True)
            wait_until(lambda: running(narrow) == 1, 10, "the other one runs")
            gone = ask(narrow, name, stream=stream)
            wait_until(lambda: narrow.gauge("num_requests_waiting") == 1, 10, "it waits")
        elif where == "prefill":
            gone = ask(narrow, name, stream=stream, prompt=f"{number} " + "word " * 6000)
            time.sleep(0.2 + 2.5 * prefill)
        else:
            gone = ask(narrow, name, stream=stream)
            wait_until(lambda: running(narrow) == 1, 10, "it runs")
            time.sleep(0.2)
        closed = time.monotonic()
        close(gone)
        found.append(noticed(narrow, name, closed))
        if where == "queue":
            wait_until(lambda: narrow.gauge("num_requests_waiting") == 0, 10, "its place is free")
        elif where == "prefill":
            before = steps(narrow)
            wait_until(lambda: steps(narrow) > before or at_rest(narrow), 10, "the step that runs has ended")
            late.append(wait_until(lambda: at_rest(narrow), 10, "its cache is free"))
            ended.append(steps(narrow) - before)
        else:
            wait_until(lambda: at_rest(narrow), 10, "its cache is free")
        freed.append(time.monotonic() - closed)
        if other:
            other.close()
    shown = lambda times: f"{statistics.median(times) * 1000:.0f} ms (at most {max(times) * 1000:.0f})"
    print(f"\n| {where} | {close.__name__.upper()} | {'stream' if stream else 'whole'} | {shown(found)} | {shown(freed)} |", end="")
    assert statistics.median(found) <= NOTICED, f"noticed after {found}"
    # Looks from outside add to these times, the more the busier the machine: the least of them is nearest to what the server takes.
    if where == "prefill":
        # How long a step of a long prompt takes depends on what else the machine does, so steps are counted: the one that runs may end.
        assert max(ended) <= 1, f"steps that ended after the server had noticed: {ended}"
        assert min(late) <= NOTICED, f"free so long after the step: {late}"
    else:
        assert min(freed) <= decode + NOTICED, f"free after {freed}, a step takes {decode}"


def test_others_are_served_after_an_abort_in_a_long_prompt(narrow):
    """Row 68."""
    expected = narrow.text("The capital of France is")
    gone = ask(narrow, "long", prompt="word " * 6000, stream=True)
    time.sleep(0.5)
    gone.close()
    assert narrow.text("The capital of France is") == expected
