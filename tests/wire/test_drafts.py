"""Tests what clients see of drafts: `prediction`, llama.cpp's `speculative.*`, the counts, and that no answer depends on them."""

import json

import pytest
from harness import CODER, MODEL, Server, chunks_of, cli

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


@pytest.fixture(scope="module")
def with_model():
    """A server whose model is its own draft model. Every guess is right, and each costs more than a step, so few are asked for."""
    with Server({"ENGINE__KV_TOKENS": "4096"}, ("--model", MODEL, "--draft", MODEL)) as running:
        yield running


NEW = {"messages": [{"role": "user", "content": "Tell me about the sea, a lighthouse and a dog."}], "max_tokens": 60}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way))
def test_answers_are_the_same_with_a_draft_model(plain, with_model, way):
    for more in ({}, NEW):
        assert answer(with_model, **way, **more)["choices"] == answer(plain, **way, **more)["choices"]


def test_a_draft_model_with_the_same_weights_is_always_right(with_model):
    # Answers that repeat nothing, so that no lookup guesses.
    for way in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
        before = with_model.metrics()
        answer(with_model, **way, **NEW)
        after = with_model.metrics()
        drafted, right = (sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name) for name in (DRAFTED, RIGHT))
        assert drafted == right >= 1, (way, drafted, right)
    with_model.wait_log("accepted_tokens=")


def test_a_draft_model_that_does_not_fit_is_refused_with_both_names(tmp_path):
    done = cli("serve", "--model", MODEL, "--draft", CODER, "--port", "0")
    assert done.returncode != 0
    for words in (f"draft of the model `{MODEL}`", "smollm2+135m", "qwen2.5-coder+0.5b", "has another vocabulary"):
        assert words in done.stderr, done.stderr
    done = cli("run", MODEL, "hi", "--draft", "smollm2:136m")
    assert done.returncode != 0 and "did you mean smollm2:135m?" in done.stderr, done.stderr
    done = cli("run", MODEL, "hi", "--draft", str(tmp_path / "gone.gguf"))
    assert done.returncode != 0 and "gone.gguf: no such file" in done.stderr, done.stderr


def test_the_memory_of_a_draft_model_counts(tmp_path):
    path = json.loads(cli("show", MODEL, "--json").stdout)["path"]
    needed = []
    for draft in ("", f'draft = "{MODEL}"'):
        (tmp_path / "c.toml").write_text(f'[[models]]\nid = "own"\nsource = {{ type = "file", path = "{path}" }}\n{draft}')
        done = cli("--config", tmp_path / "c.toml", "show", "own", "--json", "--context", "2048")
        shown = json.loads(done.stdout)
        assert shown["fault"] is None, shown
        needed.append(next(device["needed"] for device in shown["memory"]["devices"] if device["backend"] == "cpu"))
    assert needed[1] > 1.5 * needed[0], needed


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
