"""Requests share a model: a request with many prompts hardly delays others and leaves room in the queue."""

import json
import threading
import time

import pytest
from harness import MODEL, Server, wait_until

pytestmark = pytest.mark.timing

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__MAX_RUNNING": "8", "LIMITS__MAX_QUEUE": "64", "ENGINE__KV_TOKENS": "8192"}


@pytest.fixture(scope="module")
def shared():
    with Server(CONFIG) as running:
        yield running


def in_background(ask):
    """Sends a request in a thread. Returns the thread and a list to which it adds the reply."""
    replies = []
    thread = threading.Thread(target=lambda: replies.append(ask()), daemon=True)
    thread.start()
    return thread, replies


def test_a_small_request_does_not_wait_for_one_with_many_choices(shared):
    prompts = [f"Item {i}:" for i in range(16)]
    large = lambda: shared.complete(prompts, timeout=170, n=4, max_tokens=24, temperature=0.5, seed=3, ignore_eos=True)
    alone = shared.text("Once upon a time", max_tokens=4)
    thread, replies = in_background(large)
    wait_until(lambda: shared.gauge("num_requests_waiting") >= 40, 20, "the prompts of the large request wait")
    waits = []
    for _ in range(3):
        start = time.monotonic()
        small = shared.complete("Once upon a time", max_tokens=4, temperature=0)
        waits.append(time.monotonic() - start)
        assert small.status == 200 and small.json()["choices"][0]["text"] == alone
    assert not replies and shared.gauge("num_requests_waiting") > 8, f"most of the large request still waits: {waits}"
    thread.join(170)
    assert replies and replies[0].status == 200
    choices = replies[0].json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(64))
    # An answer does not depend on the order in which requests run.
    assert choices[0]["text"] == shared.text("Item 0:", max_tokens=24, temperature=0.5, seed=3, ignore_eos=True)


def test_a_request_as_large_as_the_queue_leaves_room(shared):
    thread, replies = in_background(lambda: shared.complete(["a"] * 16, timeout=170, n=4, max_tokens=40, ignore_eos=True))
    wait_until(lambda: shared.gauge("num_requests_waiting") >= 40, 20, "the prompts of the large request wait")
    others = [in_background(lambda i=i: shared.complete(f"{i}", max_tokens=1)) for i in range(20)]
    for other, got in others:
        other.join(170)
        assert got and got[0].status == 200, got and got[0].body
    thread.join(170)
    assert replies and replies[0].status == 200


def test_embeddings_of_many_texts_leave_room_too(shared):
    texts = [f"text number {i} of a long list of texts" for i in range(300)]
    ask = lambda: shared.post("/v1/embeddings", {"model": MODEL, "input": texts})
    thread, replies = in_background(ask)
    wait_until(lambda: shared.gauge("num_requests_waiting") >= 200, 20, "the texts wait")
    assert shared.complete("Hi", max_tokens=2).status == 200
    assert not replies, "the short request was served first"
    thread.join(170)
    assert [entry["index"] for entry in json.loads(replies[0].body)["data"]] == list(range(300))
