"""The memory of requests is bounded, for each and for all together, and is returned to the system."""

import gzip
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import MODEL, Server, wait_until

MB = 1 << 20


def memory(server) -> int:
    """The anonymous resident memory of the server [bytes]."""
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc has no RssAnon")


class Peak:
    """Measures the peak of the server's memory during a block, relative to its start, and the slowest answer to a probe."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.base, self.peak, self.slowest, self.done = memory(self.server), 0, 0.0, False
        self.pool = ThreadPoolExecutor(2)
        self.tasks = [self.pool.submit(self.watch), self.pool.submit(self.probe)]
        return self

    def watch(self):
        while not self.done:
            self.peak = max(self.peak, memory(self.server) - self.base)
            time.sleep(0.01)

    def probe(self):
        while not self.done:
            start = time.monotonic()
            assert self.server.get("/health").status == 200
            self.slowest = max(self.slowest, time.monotonic() - start)
            time.sleep(0.02)

    def __exit__(self, *_):
        self.done = True
        for task in self.tasks:
            task.result()
        self.pool.shutdown()


@pytest.fixture(scope="module")
def own():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "LIMITS__MAX_BODIES_BYTES": str(512 * MB)}) as server:
        server.complete(max_tokens=1)
        yield server


@pytest.fixture(autouse=True)
def nothing_is_held(own):
    yield
    wait_until(lambda: own.metrics()[("penstock_http_body_bytes", ())] == 0, 10, "no request holds memory")
    assert own.complete(max_tokens=1).status == 200


def packed(fields: dict, field: str, items: str) -> bytes:
    return gzip.compress(json.dumps({**fields, field: "@"}).replace('"@"', f"[{items}]").encode())


def post(server, path: str, body: bytes):
    return server.post(path, body, headers={"content-encoding": "gzip", "content-type": "application/json"})


COMPLETION = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
RESPONSE = {"model": MODEL, "input": "Hi", "tool_choice": "none", "max_output_tokens": 1}


@pytest.mark.parametrize("item", ["[0]", "0", '{"a":{}}', '""'])
@pytest.mark.parametrize("count", [1, 4])
def test_a_small_body_does_not_become_a_large_tree(own, item, count):
    body = packed(COMPLETION, "x", ",".join([item] * (32 * MB // (len(item) + 1))))
    with Peak(own) as seen, ThreadPoolExecutor(count) as pool:
        replies = list(pool.map(lambda _: post(own, "/v1/completions", body), range(count)))
    for reply in replies:
        assert reply.status in (413, 429), reply.body[:200]
        assert reply.status == 413 or reply.headers["retry-after"]
    assert count > 1 or replies[0].status == 413, "a single request has the whole budget"
    assert seen.peak < 640 * MB, seen.peak >> 20
    assert seen.slowest < 2, seen.slowest


def test_tools_that_a_response_repeats_are_bounded(own):
    def body(items: int) -> bytes:
        tool = '{"type":"function","name":"%s","parameters":{"x":[' + ",".join(["[0]"] * items) + "]}}"
        return packed(RESPONSE, "tools", ",".join(tool % f"f{number}" for number in range(128)))

    with Peak(own) as seen:
        assert post(own, "/v1/responses", body(50_000)).status == 413
        tool = {"type": "function", "name": "f", "description": "x" * MB}
        for fields in ({"tools": [tool]}, {"instructions": ["x" * MB]}, {"user": "x" * MB}):
            reply = own.post("/v1/responses", {**RESPONSE, **fields})
            assert reply.status == 400 and reply.error["param"] in fields, reply.body[:200]
    assert seen.peak < 640 * MB, seen.peak >> 20
    with Peak(own) as seen, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: post(own, "/v1/responses", body(1_900)), range(4)))
    # Together they may exceed the budget, but one alone fits.
    assert {reply.status for reply in replies} <= {200, 429}
    assert all(reply.status == 200 or reply.headers["retry-after"] for reply in replies)
    assert post(own, "/v1/responses", body(1_900)).status == 200
    assert seen.peak < 640 * MB, seen.peak >> 20
    assert seen.slowest < 2, seen.slowest


def test_bodies_that_never_end_leave_room_for_others(own):
    """A few such bodies use up the budget. The others are refused, and a small request is served."""
    size, sent = 33_000_000, []
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    with Peak(own) as seen:
        for _ in range(40):
            connection = socket.create_connection(("127.0.0.1", own.port), timeout=30)
            try:
                connection.sendall(head.encode() + b" " * (size - 10))
            except OSError:
                pass  # refused before the body was sent
            sent.append(connection)
        assert own.complete(max_tokens=1).status == 200
        answers = []
        for connection in sent:
            connection.settimeout(0.05)
            try:
                answers.append(connection.recv(4096))
            except OSError:
                pass  # still waiting for the rest of the body, or cut
        for connection in sent:
            connection.close()
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429 ")]
    assert refused and all(b"retry-after: " in answer for answer in refused), answers[:1]
    assert seen.peak < 640 * MB, seen.peak >> 20


def test_memory_for_tokenizing_a_text_is_bounded(own):
    with Peak(own) as seen:
        for fields, param in (
            ({"prompt": "a" * 33_000_000}, "prompt"),
            ({"messages": [{"role": "user", "content": "a" * 33_000_000}]}, "messages"),
        ):
            reply = own.post("/tokenize", {"model": MODEL, **fields})
            assert reply.status == 400 and reply.error["param"] == param, reply.body[:200]
        reply = own.post("/detokenize", {"model": MODEL, "tokens": [5] * 300_000})
        assert reply.status == 400 and reply.error["param"] == "tokens", reply.body[:200]
        with ThreadPoolExecutor(3) as pool:
            fields = {"model": MODEL, "prompt": "a" * 4_000_000, "return_token_strs": True}
            replies = list(pool.map(lambda _: own.post("/tokenize", fields), range(3)))
    assert {reply.status for reply in replies} <= {200, 429} and 200 in {reply.status for reply in replies}
    assert seen.peak < 640 * MB, seen.peak >> 20


def test_freed_memory_returns_to_the_system(own):
    time.sleep(3)
    before = memory(own)
    text = "word " * 6_000_000
    assert own.complete(text).status == 400
    wait_until(lambda: memory(own) - before < 60 * MB, 15, "the idle server returns the memory")


def test_the_common_text_of_many_pairs_is_not_copied(own):
    long = "a" * 31_000_000
    with Peak(own) as seen:
        for path, fields, param in (
            ("/v1/rerank", {"query": long, "documents": ["b"] * 1024}, "query"),
            ("/v1/score", {"text_1": long, "text_2": ["b"] * 1024}, "text_1"),
            ("/v1/completions", {"prompt": ["b"] * 128, "suffix": long, "max_tokens": 1}, "suffix"),
        ):
            reply = own.post(path, {"model": MODEL, **fields})
            assert reply.status == 400 and reply.error["param"] == param, reply.body[:200]
    assert seen.peak < 640 * MB, seen.peak >> 20
