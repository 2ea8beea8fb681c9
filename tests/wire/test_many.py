"""Several choices per prompt: n, best_of, seeds and usage."""

import pytest
from harness import chunks_of, wait_until

TEXT = "My favourite food is"
WARM = {"temperature": 1.0, "seed": 21, "max_tokens": 8}


def texts(reply) -> list[str]:
    assert reply.status == 200, reply.body
    return [choice["text"] for choice in reply.json()["choices"]]


@pytest.mark.real_models
def test_the_first_choice_does_not_depend_on_the_number_of_choices(server):
    """With one seed, the first choice is the same for any number of choices. The other choices have their own seeds."""
    many = texts(server.complete(TEXT, n=8, **WARM))
    assert many[0] == server.text(TEXT, **WARM)
    assert len(set(many)) > 4
    assert texts(server.complete(TEXT, n=8, **WARM)) == many, "a repeated request gives the same choices"
    assert texts(server.complete(TEXT, n=3, **WARM)) == many[:3]
    assert many[1] != server.text(TEXT, **{**WARM, "seed": 22}), "the second choice does not use the next seed"
    assert len(set(texts(server.complete(TEXT, n=4, temperature=0)))) == 1


def test_sixteen_choices_are_the_most(server):
    answer = server.complete(TEXT, n=16, **WARM).json()
    assert len(answer["choices"]) == 16 and [choice["index"] for choice in answer["choices"]] == list(range(16))
    chat = server.chat("Tell me a story.", n=16, max_tokens=3, temperature=1, seed=1).json()
    assert len(chat["choices"]) == 16
    assert server.chat(n=17).status == 400 and server.chat(n=17).error["param"] == "n"


def test_usage_counts_the_prompt_of_several_choices_once(server):
    one, many = (server.complete(TEXT, n=n, ignore_eos=True, **WARM).json()["usage"] for n in (1, 5))
    assert many["prompt_tokens"] == one["prompt_tokens"] and many["completion_tokens"] == 40
    assert many["total_tokens"] == many["prompt_tokens"] + 40
    two = server.complete([TEXT, TEXT], n=2, ignore_eos=True, **WARM).json()["usage"]
    assert two["prompt_tokens"] == 2 * one["prompt_tokens"] and two["completion_tokens"] == 32
    chunks = chunks_of(server.complete(TEXT, n=5, ignore_eos=True, stream=True, stream_options={"include_usage": True}, **WARM))
    assert chunks[-1]["usage"]["prompt_tokens"] == one["prompt_tokens"] and chunks[-1]["usage"]["completion_tokens"] == 40


def test_the_prompt_of_several_choices_is_computed_once(server):
    """The engine counts prompt tokens when it computes them. Choices share the prompt's blocks and free them."""
    prompt = (
        "A prompt that no other test has, of some length, so that it fills blocks and begins another: " + "one two three four five " * 9
    )
    before = server.gauge("prompt_tokens_total")
    prompt_tokens = server.complete(prompt, max_tokens=1).json()["usage"]["prompt_tokens"]
    wait_until(lambda: server.gauge("prompt_tokens_total") - before == prompt_tokens, 2, "the step has ended, and is counted")
    before = server.gauge("prompt_tokens_total")
    many = texts(server.complete(prompt, n=12, **WARM))
    assert server.gauge("prompt_tokens_total") - before == prompt_tokens
    assert many[0] == server.text(prompt, **WARM) and len(set(many)) > 4
    wait_until(lambda: server.gauge("kv_cache_usage_perc") == 0, 2, "all blocks are free")


def test_best_of_returns_the_likeliest(server):
    fields = {**WARM, "logprobs": 0, "ignore_eos": True}

    def mean(choice):
        return sum(choice["logprobs"]["token_logprobs"]) / len(choice["logprobs"]["token_logprobs"])

    all_of_them = server.complete(TEXT, n=6, **fields).json()["choices"]
    ranked = [choice["text"] for choice in sorted(all_of_them, key=mean, reverse=True)]
    best = server.complete(TEXT, n=2, best_of=6, **fields).json()
    assert [choice["text"] for choice in best["choices"]] == ranked[:2]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 48, "all generated tokens count, returned or not"
    plain = server.complete(TEXT, best_of=6, **{**fields, "logprobs": None}).json()["choices"]
    assert [choice["text"] for choice in plain] == ranked[:1] and plain[0]["logprobs"] is None
    assert texts(server.complete([TEXT, "Once upon a time"], best_of=6, **{**fields, "logprobs": None}))[0] == ranked[0]
    assert texts(server.complete(TEXT, n=6, best_of=6, **fields)) == [choice["text"] for choice in all_of_them]


@pytest.mark.parametrize(
    "fields, param", [({"n": 3, "best_of": 2}, "best_of"), ({"best_of": 2, "stream": True}, "best_of"), ({"best_of": 17}, "best_of")]
)
def test_a_contradictory_best_of_is_refused(server, fields, param):
    reply = server.complete(TEXT, **fields)
    assert reply.status == 400 and reply.error["param"] == param


def test_more_texts_than_the_queue_holds_are_refused(server):
    reply = server.complete(["x"] * 100, n=16)
    assert reply.status == 400 and reply.error["param"] == "n" and "1600" in reply.error["message"]


def test_a_stop_text_ends_one_choice_and_not_the_others(server):
    many = server.complete(TEXT, n=6, **WARM).json()["choices"]
    stop = many[1]["text"][3:7]
    stopped = server.complete(TEXT, n=6, stop=[stop], **WARM).json()["choices"]
    for before, after in zip(many, stopped):
        assert after["text"] == before["text"].partition(stop)[0]
        assert (after["finish_reason"] == "stop") == (stop in before["text"]) or before["finish_reason"] == "stop"


@pytest.mark.real_models
def test_min_tokens_and_ignore_eos_continue_past_the_end(server):
    question = "What is the capital of France?"
    plain = server.chat(question, max_tokens=30).json()
    assert plain["choices"][0]["finish_reason"] == "stop" and plain["usage"]["completion_tokens"] < 20
    longer = server.chat(question, max_tokens=30, min_tokens=25).json()
    assert longer["usage"]["completion_tokens"] >= 25
    endless = server.chat(question, max_tokens=30, ignore_eos=True).json()
    assert endless["choices"][0]["finish_reason"] == "length" and endless["usage"]["completion_tokens"] == 30
    stopped = server.complete(max_tokens=8, stop_token_ids=[7042]).json()["choices"][0]
    assert stopped["finish_reason"] == "stop" and "Paris" not in stopped["text"]


@pytest.mark.real_models
def test_penalties_change_the_text(server):
    prompt = "one two three one two three one two three"
    plain = server.text(prompt, max_tokens=12)
    for fields in ({"repetition_penalty": 3.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert server.text(prompt, max_tokens=12, **fields) != plain, fields


def test_users_do_not_share_a_prefix(server):
    text = "A story that is told to each user anew, and takes more than one block of the cache. " * 4

    def cached(**fields):
        return server.complete(text, max_tokens=1, **fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(user="ada") == 0 and cached(user="ada") > 32
    assert cached(user="bob") == 0 and cached() == 0 and cached() > 32
    assert cached(cache_salt="s") == 0 and cached(cache_salt="s") > 32
    assert cached(cache_salt="s", user="ada") == 0 and cached(cache_salt="t") == 0
    texts = {server.text(text, **fields) for fields in ({}, {"user": "ada"}, {"user": "bob"}, {"user": "ada", "cache_salt": "s"})}
    assert len(texts) == 1


def test_the_fingerprint_names_build_model_and_backend(server):
    version = server.get("/version").json()["version"]
    answers = [server.chat(max_tokens=1).json(), server.complete(max_tokens=1).json()]
    answers += chunks_of(server.chat(max_tokens=2, stream=True)) + chunks_of(server.complete(max_tokens=2, stream=True))
    (fingerprint,) = {answer["system_fingerprint"] for answer in answers}
    prefix, build, digest, backend = fingerprint.split("_")
    assert (prefix, build, backend) == ("fp", version, server.backend) and len(digest) == 12 and int(digest, 16) >= 0
