"""Tests what clients see of drafts: `prediction`, llama.cpp's `speculative.*`, the counts, and that no answer depends on them."""

import pytest
from harness import MODEL, Server, chunks_of

COUNTED = "one two three four five six seven eight nine ten " * 6
COPY = {"messages": [{"role": "user", "content": f"Repeat this text, word by word: {COUNTED}"}], "max_tokens": 60, "seed": 5}
DRAFTED, RIGHT = "penstock_spec_decode_num_draft_tokens_total", "penstock_spec_decode_num_accepted_tokens_total"
WAYS = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1, "presence_penalty": 0.2},
    {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    {"temperature": 0, "n": 2},
    {"temperature": 0, "stop": [" seven"]},
    {"temperature": 0, "regex": "(one|two|three|four|five|six|seven|eight|nine|ten| ){60}"},
    {"temperature": 0, "min_tokens": 50},
]


@pytest.fixture(scope="module")
def plain():
    """A server without drafts."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "4096", "ENGINE__DRAFTS": "off"}) as running:
        yield running


@pytest.fixture(scope="module")
def drafted():
    """A server with drafts, on a GPU, too."""
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "4096", "ENGINE__DRAFTS": "ngram"}) as running:
        yield running


def answer(server: Server, **fields) -> dict:
    reply = server.post("/v1/chat/completions", {"model": MODEL, **COPY, **fields})
    assert reply.status == 200, reply.body
    return reply.json()


def tried(reply: dict) -> tuple[int, int]:
    details = reply["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way))
def test_answers_are_the_same_with_and_without_drafts(plain, drafted, way):
    expected = answer(plain, **way)
    texts = [choice["message"]["content"] for choice in expected["choices"]]
    wrong, right = "five apples and a pear " * 9, texts[0]
    for more in ({}, {"prediction": {"type": "content", "content": right}}, {"prediction": {"type": "content", "content": wrong}}):
        got = answer(drafted, **way, **more)
        assert got["choices"] == expected["choices"], more
        assert got["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


def test_a_file_without_a_draft_head_is_drafted_from_its_context(plain):
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "4096", "ENGINE__DRAFTS": "heads"}) as heads:
        assert answer(heads, temperature=0)["choices"] == answer(plain, temperature=0)["choices"]
        heads.wait_log("answers are drafted from their context alone")


@pytest.mark.real_models
def test_a_prediction_that_comes_true_is_counted(drafted, plain):
    text = answer(drafted, temperature=0)["choices"][0]["message"]["content"]
    prediction = {"type": "content", "content": [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}]}
    before = drafted.metrics()
    reply = answer(drafted, temperature=0, prediction=prediction)
    right, wrong = tried(reply)
    assert right >= 20 and wrong <= right, reply["usage"]
    after = drafted.metrics()
    gained = lambda name: sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name)
    assert gained(DRAFTED) >= right + wrong and gained(RIGHT) >= right
    for name in ("num_accepted_tokens_total", "num_accepted_tokens_per_pos_total"):
        assert gained(f"vllm:spec_decode_{name}") == gained(RIGHT)
    streamed = chunks_of(
        drafted.post("/v1/chat/completions", {
            "model": MODEL, **COPY, "temperature": 0, "prediction": prediction, "stream": True, "stream_options": {"include_usage": True},
        })
    )
    assert tried(streamed[-1])[0] >= 20
    deltas = (chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed[:-1])
    assert "".join(deltas) == reply["choices"][0]["message"]["content"]
    drafted.wait_log("accepted_tokens=")
    assert tried(answer(plain, temperature=0, prediction=prediction)) == (0, 0), "without drafts, nothing is tried"


@pytest.mark.real_models
def test_llama_cpps_parameters_bound_the_drafts(drafted):
    text = answer(drafted, temperature=0)["choices"][0]["message"]["content"]
    fields = {"temperature": 0, "prediction": {"type": "content", "content": text}}

    def used(**more) -> float:
        before = drafted.metrics()
        assert answer(drafted, **fields, **more)["choices"][0]["message"]["content"] == text
        after = drafted.metrics()
        return sum(value - before.get(key, 0) for key, value in after.items() if key[0] == DRAFTED)

    assert used() > 20
    assert used(**{"speculative.n_max": 0}) == 0
    assert used(**{"speculative.n_min": 17}) == 0
    assert used(**{"speculative.p_min": 1}) == 0


@pytest.mark.parametrize("fields, param", [
    ({"prediction": "x"}, "prediction"),
    ({"prediction": {"content": "x"}}, "prediction.type"),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction.type"),
    ({"prediction": {"type": "content", "content": 1}}, "prediction.content"),
    ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction.content[0].type"),
    ({"speculative.n_max": -1}, "speculative.n_max"),
    ({"speculative.n_max": 2, "speculative.n_min": 3}, "speculative.n_min"),
    ({"speculative.p_min": 2}, "speculative.p_min"),
])
def test_bad_values_are_refused_by_name(drafted, fields, param):
    reply = drafted.post("/v1/chat/completions", {"model": MODEL, **COPY, **fields})
    assert reply.status == 400 and reply.error["param"] == param, reply.body
