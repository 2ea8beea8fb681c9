"""Embeddings over HTTP: shapes, encodings, batches, and the values of vectors."""

import base64
import struct

import pytest
from harness import MODEL, wait_until

RIVER, CAT = "A river flows into the sea.", "The cat sleeps on the sofa."


def embed(server, text, **fields):
    return server.post("/v1/embeddings", {"model": MODEL, "input": text, **fields})


def vectors(server, text, **fields) -> list[list[float]]:
    reply = embed(server, text, **fields)
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert answer["object"] == "list" and answer["model"] == MODEL
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    return [item["embedding"] for item in answer["data"]]


def close(a, b, by=1e-6) -> bool:
    return len(a) == len(b) and all(abs(x - y) < by for x, y in zip(a, b))


def similarity(a, b) -> float:
    return sum(x * y for x, y in zip(a, b))


@pytest.mark.real_models
def test_one_text_becomes_one_vector(server):
    reply = embed(server, RIVER)
    answer = reply.json()
    assert set(answer) == {"object", "data", "model", "usage"}
    (vector,) = vectors(server, RIVER)
    assert len(vector) == 576 and abs(similarity(vector, vector) - 1) < 1e-5, "the vector has unit length"
    tokens = server.post("/tokenize", {"model": MODEL, "prompt": RIVER}).json()["count"]
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_every_form_of_input_gives_the_same_vector(server):
    (vector,) = vectors(server, RIVER)
    ids = server.post("/tokenize", {"model": MODEL, "prompt": RIVER}).json()["tokens"]
    assert vectors(server, [RIVER]) == vectors(server, ids) == vectors(server, [ids]) == [vector]
    assert vectors(server, [CAT, RIVER, CAT])[1] == vector, "a batch gives the same bits"


def test_base64_is_little_endian_float32(server):
    (as_float,), (as_text,) = vectors(server, RIVER), vectors(server, RIVER, encoding_format="base64")
    raw = base64.b64decode(as_text, validate=True)
    assert close(struct.unpack(f"<{len(raw) // 4}f", raw), as_float, 1e-7)
    assert vectors(server, RIVER, encoding_format="float") == vectors(server, RIVER, encoding_format=None) == [as_float]


def test_more_texts_than_the_queue_holds_are_embedded_in_order(server):
    """Clients send a thousand texts in one request."""
    many = vectors(server, [f"number {i % 7}" for i in range(700)])
    assert len(many) == 700 and many[:7] * 100 == many
    reply = embed(server, ["x"] * 2049)
    assert reply.status == 400 and reply.error["param"] == "input"


@pytest.mark.real_models
def test_dimensions_shorten_a_vector(server):
    (whole,), (part,) = vectors(server, RIVER), vectors(server, RIVER, dimensions=64)
    length = sum(x * x for x in whole[:64]) ** 0.5
    assert close(part, [x / length for x in whole[:64]]) and abs(similarity(part, part) - 1) < 1e-5
    assert vectors(server, RIVER, dimensions=576) == [whole]
    for dimensions in (0, -1, 577, 1.5, "64"):
        reply = embed(server, RIVER, dimensions=dimensions)
        assert reply.status == 400 and reply.error["param"] == "dimensions", dimensions


def test_vectors_do_not_depend_on_load_or_cache(server):
    texts = [f"{'word ' * n}{n}" for n in (1, 40, 200, 700, 5)]
    alone = [vectors(server, text)[0] for text in texts]
    server.complete(texts[3], max_tokens=1)
    assert vectors(server, texts) == alone and [vectors(server, text)[0] for text in texts] == alone
    wait_until(lambda: server.gauge("kv_cache_usage_perc") == 0, 2, "all blocks are free")


def test_more_similar_texts_have_closer_vectors(server):
    river, stream, cat = vectors(server, [RIVER, "A stream flows into the ocean.", CAT])
    assert similarity(river, stream) > similarity(river, cat)


def test_the_last_token_changes_the_vector(server):
    """A generative model's vector is the last row, from which the head computes the logits of the next token."""
    a, b = vectors(server, ["one two three", "one two four"])
    assert similarity(a, b) < 0.9999


@pytest.mark.parametrize("text", ["", [], [""], [[]], ["a", ""], 5, [5.5], ["a", 1], [-1], [49_152], None])
def test_wrong_inputs_are_refused(server, text):
    reply = embed(server, text)
    assert reply.status == 400 and reply.error["param"] == "input", reply.body


def test_other_wrong_values_are_refused(server):
    assert embed(server, RIVER, encoding_format="hex").error["param"] == "encoding_format"
    assert embed(server, RIVER, user=5).error["param"] == "user"
    assert embed(server, RIVER, model="nope").error["code"] == "model_not_found"
    overflow = embed(server, "hello " * 9000)
    assert overflow.status == 400 and overflow.error["code"] == "context_length_exceeded" and overflow.error["param"] == "input"
    assert "context_length_exceeded" in overflow.error["message"]
    assert server.get("/v1/embeddings").status == 405
    assert embed(server, RIVER, user="ada").status == 200
