"""Completions over HTTP: prompt forms, defaults and streams."""

import json

import pytest
from harness import MODEL, Server, chunks_of

CAPITAL = [504, 3575, 282, 4649, 314]  # "The capital of France is" in SmolLM2's vocabulary


@pytest.mark.real_models
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


@pytest.mark.real_models
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


@pytest.mark.real_models
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


def test_a_wrong_token_id_is_shown_as_it_was_sent(server):
    error = server.complete([1, "a"]).error
    assert error["param"] == "prompt" and "\\" not in error["message"] and "`a`" in error["message"], error


def test_top_p_of_zero_is_greedy(server):
    greedy = server.text(temperature=0)
    assert server.text(temperature=1, top_p=0, seed=1) == server.text(temperature=1, top_p=0, seed=2) == greedy


def test_a_prompt_may_be_cut_to_its_end(server):
    text = "one two three four five six seven eight nine ten"
    ids = server.post("/tokenize", {"model": MODEL, "prompt": text}).json()["tokens"]
    cut = server.complete(text, truncate_prompt_tokens=4, return_token_ids=True).json()
    assert cut["choices"][0]["prompt_token_ids"] == ids[-4:] and cut["usage"]["prompt_tokens"] == 4
    assert cut["choices"][0]["text"] == server.text(ids[-4:])
    for wrong in (0, -2, "4"):
        assert server.complete(truncate_prompt_tokens=wrong).error["param"] == "truncate_prompt_tokens"
    assert server.complete(text, truncate_prompt_tokens=4, truncation_side="left").json()["usage"]["prompt_tokens"] == 4
    assert server.complete(text, truncate_prompt_tokens=4, truncation_side="right").error["param"] == "truncation_side"
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "1024"}) as short:
        long = short.complete("word " * 20_000, truncate_prompt_tokens=-1, max_tokens=4)
        assert long.status == 200 and long.json()["usage"]["completion_tokens"] == 4


@pytest.mark.real_models
def test_only_allowed_ids_and_no_bad_words_are_written(server):
    plain = server.complete(return_token_ids=True).json()["choices"][0]
    allowed = sorted(set(plain["token_ids"]))[:2]
    some = server.complete(allowed_token_ids=allowed, return_token_ids=True).json()["choices"][0]
    assert set(some["token_ids"]) <= set(allowed) and some["finish_reason"] == "length"
    for stream in (False, True):
        reply = server.complete(bad_words=["Paris"], stream=stream)
        choices = [chunk["choices"][0] for chunk in chunks_of(reply)] if stream else reply.json()["choices"]
        assert "Paris" in plain["text"] and "Paris" not in "".join(choice["text"] for choice in choices)
    assert server.complete(allowed_token_ids=[10**9]).error["param"] == "allowed_token_ids"
    assert server.complete(bad_words=[""]).error["param"] == "bad_words"


def test_control_tokens_can_be_shown(server):
    end = server.post("/tokenize", {"model": MODEL, "prompt": "<|im_end|>", "add_special_tokens": False}).json()["tokens"]
    fields = {"allowed_token_ids": end, "ignore_eos": True, "max_tokens": 2}
    assert (server.text(**fields), server.text(**fields, skip_special_tokens=False)) == ("", "<|im_end|><|im_end|>")


def test_json_schema_is_also_a_top_level_field(server):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    for fields in ({"json_schema": schema}, {"structured_outputs": {"json": schema}}, {"guided_json": schema}):
        answer = json.loads(server.text("A number:", max_tokens=60, **fields))
        assert isinstance(answer["n"], int), fields
    for name in ("structural_tag", "whitespace_pattern"):
        assert server.complete(structured_outputs={"regex": "a", name: "x"}).error["param"] == f"structured_outputs.{name}"
