"""Completions on the wire: prompt forms, defaults, streams."""

import pytest
from harness import MODEL, chunks_of

CAPITAL = [504, 3575, 282, 4649, 314]  # "The capital of France is" in SmolLM2's vocabulary


def test_an_answer_has_every_field(server):
    reply = server.complete(max_tokens=4)
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-") and answer["model"] == MODEL
    assert isinstance(answer["created"], int)
    (choice,) = answer["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert "Paris" in server.text(max_tokens=8)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 4, 9)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_default_is_16_tokens(server):
    reply = server.post("/v1/completions", {"model": MODEL, "prompt": "Once upon a time", "temperature": 0})
    assert reply.json()["usage"]["completion_tokens"] == 16
    assert reply.json()["choices"][0]["finish_reason"] == "length"


def test_every_form_of_prompt_gives_the_same_text(server):
    text = server.text()
    forms = {"list of strings": ["The capital of France is"], "list of ids": CAPITAL, "list of lists of ids": [CAPITAL]}
    for name, form in forms.items():
        answer = server.complete(form).json()
        assert [c["text"] for c in answer["choices"]] == [text], name


def test_several_prompts_are_answered_in_order(server):
    prompts = ["The capital of France is", "Once upon a time", "1, 2, 3, 4,"]
    alone = [server.text(prompt) for prompt in prompts]
    answer = server.complete(prompts).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert [c["text"] for c in answer["choices"]] == alone
    assert answer["usage"]["completion_tokens"] == 24
    twice = server.complete(prompts, n=2).json()
    assert [c["index"] for c in twice["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [c["text"] for c in twice["choices"]] == [text for text in alone for _ in range(2)]


def test_a_stream_equals_the_whole_answer(server):
    chunks = chunks_of(
        server.complete(["The capital of France is", "Once upon a time"], stream=True, stream_options={"include_usage": True})
    )
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 16
    assert all(c["usage"] is None for c in chunks[:-1])
    for index, prompt in enumerate(["The capital of France is", "Once upon a time"]):
        of_choice = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in of_choice) == server.text(prompt)
        assert [c["finish_reason"] for c in of_choice if c["finish_reason"]] == ["length"]


def test_a_stop_string_ends_the_text(server):
    text = server.text("Count: 1, 2, 3,", max_tokens=12)
    stop = text[4:6]
    answer = server.complete("Count: 1, 2, 3,", max_tokens=12, stop=[stop]).json()["choices"][0]
    assert answer["text"] == text[: text.index(stop)] and answer["finish_reason"] == "stop"


def test_echo_repeats_the_prompt(server):
    text = server.text()
    assert server.text(echo=True) == "The capital of France is" + text
    alone = server.complete(echo=True, max_tokens=0).json()
    assert alone["choices"][0]["text"] == "The capital of France is" and alone["usage"]["completion_tokens"] == 0
    chunks = chunks_of(server.complete(echo=True, stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == "The capital of France is" + text


def test_a_prompt_beyond_the_context_is_refused_by_name(server):
    reply = server.complete("hello " * 9000)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded" and reply.error["param"] == "prompt"
    assert "context_length_exceeded" in reply.error["message"]


def test_seeded_text_is_the_same_alone_and_in_a_list(server):
    fields = {"temperature": 1.0, "seed": 11, "max_tokens": 10}
    alone = server.text("My favourite food is", **fields)
    assert server.complete(["My favourite food is", "Once upon a time"], **fields).json()["choices"][0]["text"] == alone


@pytest.mark.parametrize("bias, seen", [({"7042": 100}, True), ({"7042": -100}, False)])
def test_a_logit_bias_brings_or_forbids_a_token(server, bias, seen):
    reply = server.complete(logit_bias=bias, max_tokens=3)
    assert reply.status == 200, reply.body
    assert (reply.json()["choices"][0]["text"].count("Paris") > 0) is seen


def test_a_temperature_of_zero_is_greedy(server):
    assert len({server.text(temperature=0, seed=seed) for seed in (1, 2, 3)}) == 1
    assert server.text(temperature=1e-4, seed=5) == server.text(temperature=0)
    assert server.text(temperature=1.5, top_k=1, seed=5) == server.text(temperature=0)
