"""Log-probabilities over HTTP agree with the float32 reference, also in streams, with stop strings, n, echo and batches."""

import math

import pytest
from harness import MODEL, chunks_of
from test_cli import reference

TEXT = "The capital of France is"
CAPITAL = [504, 3575, 282, 4649, 314]


def logprobs_of(reply) -> dict:
    assert reply.status == 200, reply.body
    (choice,) = reply.json()["choices"]
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(entries) for entries in logprobs.values()}) == 1, logprobs
    return logprobs


def check_offsets(choice: dict) -> None:
    """Checks that each token is in the text at its offset, and that the tokens add up to the text."""
    text, logprobs = choice["text"], choice["logprobs"]
    assert "".join(logprobs["tokens"]) == text
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
        assert text[offset : offset + len(token)] == token


@pytest.mark.real_models
@pytest.mark.parametrize("case", reference(MODEL), ids=lambda case: case["name"])
def test_log_probabilities_agree_with_the_reference(server, case):
    logprobs = logprobs_of(server.complete(case["ids"], max_tokens=1, logprobs=5, ignore_eos=True))
    expected = [logit - case["lse"] for _, logit in case["top"][:5]]
    got = sorted(logprobs["top_logprobs"][0].values(), reverse=True)
    # on a GPU, the inputs of matrix products are float16
    near = 2e-3 if server.backend == "cpu" else 5e-3
    assert all(abs(a - b) < near * case["std"] for a, b in zip(got, expected)), (got, expected)
    assert logprobs["token_logprobs"][0] == got[0], "a greedy request takes the likeliest token"


def test_sampling_parameters_do_not_change_log_probabilities(server):
    """Temperature, penalties, filters and biases change which token is sampled, but not its reported log-probability."""
    plain = logprobs_of(server.complete(logprobs=5, max_tokens=1))["top_logprobs"][0]
    for fields in (
        {"temperature": 2.0, "seed": 3},
        {"top_k": 1},
        {"repetition_penalty": 5.0},
        {"top_p": 0.01},
        {"logit_bias": {"100": -100}},
    ):
        again = logprobs_of(server.complete(logprobs=5, max_tokens=1, **fields))
        assert plain.items() <= again["top_logprobs"][0].items(), fields
        (token,) = again["tokens"]
        assert again["top_logprobs"][0][token] == again["token_logprobs"][0], "the sampled token is among the alternatives"
    forced = logprobs_of(server.complete(logprobs=2, max_tokens=1, logit_bias={"100": 100}))
    assert len(forced["top_logprobs"][0]) == 3 and forced["token_logprobs"][0] < min(list(plain.values())[:2])


@pytest.mark.real_models
def test_a_completion_has_log_probabilities_with_offsets(server):
    reply = server.complete(max_tokens=8, logprobs=2)
    logprobs = logprobs_of(reply)
    check_offsets(reply.json()["choices"][0])
    assert len(logprobs["tokens"]) == 8
    for logprob, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert len(top) == 2 and logprob == max(top.values()) <= 0 and list(top.values()) == sorted(top.values(), reverse=True)
    none = logprobs_of(server.complete(max_tokens=8, logprobs=0))
    assert none["token_logprobs"] == logprobs["token_logprobs"]
    assert [list(top) for top in none["top_logprobs"]] == [[token] for token in none["tokens"]], "0 alternatives: only the sampled token"
    assert server.complete(max_tokens=8, logprobs=None).json()["choices"][0]["logprobs"] is None


def test_a_chat_answer_has_log_probabilities_with_bytes(server):
    answer = server.chat("What is the capital of France?", max_tokens=12, logprobs=True, top_logprobs=3).json()["choices"][0]
    logprobs = answer["logprobs"]
    assert set(logprobs) == {"content", "refusal"} and logprobs["refusal"] is None
    for token in logprobs["content"]:
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"} and len(token["top_logprobs"]) == 3
        assert all(set(top) == {"token", "logprob", "bytes"} for top in token["top_logprobs"])
        assert token["logprob"] == token["top_logprobs"][0]["logprob"] and token["token"] == token["top_logprobs"][0]["token"], "greedy"
        assert bytes(token["bytes"]).decode() == token["token"]
    assert b"".join(bytes(token["bytes"]) for token in logprobs["content"]).decode() == answer["message"]["content"]
    for fields, count in (
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ):
        content = server.chat("What is the capital of France?", max_tokens=3, **fields).json()["choices"][0]["logprobs"]["content"]
        assert [token["logprob"] for token in content] == [token["logprob"] for token in logprobs["content"][:3]]
        assert all(len(token["top_logprobs"]) == count for token in content)
    assert server.chat(max_tokens=2, logprobs=False).json()["choices"][0]["logprobs"] is None


def test_the_bytes_of_the_tokens_make_up_characters_of_several_tokens(server):
    """A token that is part of a character has its bytes, and the bytes of all tokens add up to the text."""
    emoji = server.post("/v1/completions", {"model": MODEL, "prompt": "🦙 東京 ", "max_tokens": 0, "echo": True, "logprobs": 1}).json()[
        "choices"
    ][0]
    tokens = emoji["logprobs"]["tokens"]
    assert any(token.startswith("bytes:\\x") for token in tokens), tokens
    whole = b"".join(eval(f"b'{token[6:]}'") if token.startswith("bytes:") else token.encode() for token in tokens)
    assert whole.decode() == emoji["text"] == "🦙 東京 "
    assert emoji["logprobs"]["text_offset"][0] == 0 and max(emoji["logprobs"]["text_offset"]) <= len(emoji["text"])
    biased = server.chat("Hi", max_tokens=4, logprobs=True, logit_bias={"176": 100}, temperature=0).json()["choices"][0]
    assert [token["bytes"] for token in biased["logprobs"]["content"]].count(biased["logprobs"]["content"][0]["bytes"]) == 4


def test_a_stream_has_the_same_log_probabilities(server):
    fields = {"max_tokens": 16, "stop": ["z!z", "Paris is"]}
    whole = server.chat("Where is Paris?", logprobs=True, top_logprobs=2, **fields).json()["choices"][0]
    chunks = chunks_of(server.chat("Where is Paris?", logprobs=True, top_logprobs=2, stream=True, **fields))
    parts = [chunk["choices"][0] for chunk in chunks]
    assert parts[0]["logprobs"] is None and parts[-1]["logprobs"] is None, "neither the chunk with the role nor the last one has tokens"
    assert [token for part in parts[1:-1] for token in part["logprobs"]["content"]] == whole["logprobs"]["content"]
    whole = server.complete(logprobs=2, max_tokens=10).json()["choices"][0]
    parts = [chunk["choices"][0] for chunk in chunks_of(server.complete(logprobs=2, max_tokens=10, stream=True))]
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for part in parts if part["logprobs"] for entry in part["logprobs"][key]] == whole["logprobs"][key]


@pytest.mark.real_models
def test_tokens_of_a_stop_text_are_left_out(server):
    whole = server.complete(max_tokens=8, logprobs=0).json()["choices"][0]
    tokens = whole["logprobs"]["tokens"]
    for stop in (tokens[3], tokens[2] + tokens[3], tokens[4].strip()):
        choice = server.complete(max_tokens=8, logprobs=0, stop=[stop]).json()["choices"][0]
        shown = len(choice["text"])
        assert choice["finish_reason"] == "stop" and choice["text"] == whole["text"][: whole["text"].index(stop)]
        kept = [token for token, offset in zip(tokens, whole["logprobs"]["text_offset"]) if offset < shown]
        assert choice["logprobs"]["tokens"] == kept, stop


def test_echo_gives_the_log_probabilities_of_the_prompt(server):
    reply = server.complete(TEXT, echo=True, max_tokens=0, logprobs=3)
    logprobs = logprobs_of(reply)
    answer = reply.json()
    check_offsets(answer["choices"][0])
    assert answer["choices"][0]["text"] == TEXT and answer["choices"][0]["finish_reason"] == "length"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 0)
    assert logprobs["tokens"] == ["The", " capital", " of", " France", " is"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None, "nothing precedes the first token"
    # Each equals the log-probability that a request with the prompt up to this point reports for the next token.
    for end in range(1, len(CAPITAL)):
        alone = logprobs_of(server.complete(CAPITAL[:end], max_tokens=1, logprobs=3, ignore_eos=True, logit_bias={str(CAPITAL[end]): 100}))
        assert alone["tokens"] == [logprobs["tokens"][end]]
        assert alone["token_logprobs"] == [logprobs["token_logprobs"][end]], "bit for bit"
        assert alone["top_logprobs"] == [logprobs["top_logprobs"][end]]


def test_echo_gives_the_log_probabilities_of_prompt_and_answer(server):
    choice = server.complete(TEXT, echo=True, max_tokens=6, logprobs=1).json()["choices"][0]
    check_offsets(choice)
    alone = server.complete(TEXT, max_tokens=6, logprobs=1).json()["choices"][0]["logprobs"]
    assert choice["logprobs"]["tokens"][5:] == alone["tokens"] and choice["logprobs"]["token_logprobs"][5:] == alone["token_logprobs"]
    chunks = [chunk["choices"][0] for chunk in chunks_of(server.complete(TEXT, echo=True, max_tokens=6, logprobs=1, stream=True))]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"] and chunks[0]["text"] == TEXT
    for key in choice["logprobs"]:
        assert [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"][key]] == choice["logprobs"][key]
    (single,) = server.complete([504], echo=True, max_tokens=1, logprobs=1).json()["choices"]
    assert single["logprobs"]["token_logprobs"][0] is None and len(single["logprobs"]["tokens"]) == 2


def test_echo_of_a_prompt_beyond_the_context_is_refused(server):
    reply = server.complete("hello " * 9000, echo=True, max_tokens=0, logprobs=1)
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded" and reply.error["param"] == "prompt"


@pytest.mark.real_models
def test_the_log_probabilities_of_a_prompt_do_not_depend_on_chunks_cache_or_neighbours(server):
    """The chunks in which the prompt runs, the prefix cache and other requests change no bit."""
    text = "The quick brown fox jumps over the lazy dog and runs away from the bear. " * 60
    fields = {"echo": True, "max_tokens": 0, "logprobs": 1}
    alone = logprobs_of(server.complete(text, **fields))
    assert len(alone["tokens"]) > 900 and sum(logprob for logprob in alone["token_logprobs"] if logprob) > -900, "it repeats itself"
    server.complete(text, max_tokens=1)
    batch = server.complete([text, TEXT, text[:200], text], **fields).json()["choices"]
    assert batch[0]["logprobs"] == alone and batch[3]["logprobs"] == alone
    assert batch[1]["logprobs"] == logprobs_of(server.complete(TEXT, **fields))
    assert not math.isnan(sum(logprob for logprob in batch[2]["logprobs"]["token_logprobs"][1:]))


@pytest.mark.real_models
def test_each_choice_has_its_own_log_probabilities(server):
    fields = {"n": 3, "logprobs": 1, "temperature": 1, "seed": 4, "max_tokens": 5}
    answer = server.complete([TEXT, "Once upon a time"], echo=True, **fields).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for choice in answer["choices"]:
        check_offsets(choice)
    assert len({tuple(choice["logprobs"]["tokens"]) for choice in answer["choices"][:3]}) > 1
    chunks = [chunk["choices"][0] for chunk in chunks_of(server.complete([TEXT, "Once upon a time"], echo=True, stream=True, **fields))]
    for choice in answer["choices"]:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        for key in choice["logprobs"]:
            assert [entry for chunk in own if chunk["logprobs"] for entry in chunk["logprobs"][key]] == choice["logprobs"][key]


def test_log_probabilities_of_a_prompt_are_given_by_id(server):
    """They equal those of `echo`."""
    echo = logprobs_of(server.complete(CAPITAL, max_tokens=1, logprobs=3, echo=True))
    reply = server.complete(CAPITAL, max_tokens=1, prompt_logprobs=3, n=2)
    assert reply.status == 200, reply.body
    for choice in reply.json()["choices"]:
        first, *rest = choice["prompt_logprobs"]
        assert first is None and len(rest) == len(CAPITAL) - 1 and choice["logprobs"] is None
        for id, at, token, logprob, top in zip(
            CAPITAL[1:], rest, echo["tokens"][1:], echo["token_logprobs"][1:], echo["top_logprobs"][1:]
        ):
            own = at[str(id)]
            assert own["decoded_token"] == token and own["logprob"] == logprob and set(own) == {"logprob", "rank", "decoded_token"}
            assert {entry["decoded_token"]: entry["logprob"] for entry in at.values()} == top
            ranks = sorted(entry["rank"] for entry in at.values() if entry["rank"])
            assert ranks == [1, 2, 3] and (len(at) == 3) == (own["rank"] is not None)
    plain = server.complete(CAPITAL, max_tokens=1).json()["choices"][0]
    assert plain["text"] == reply.json()["choices"][0]["text"] and "prompt_logprobs" not in plain


def test_the_prompt_of_a_chat_has_log_probabilities(server):
    answer = server.chat("Hi", max_tokens=2, prompt_logprobs=0, logprobs=True, return_token_ids=True).json()
    first, *rest = answer["prompt_logprobs"]
    assert first is None and [list(at) for at in rest] == [[str(id)] for id in answer["prompt_token_ids"][1:]]
    assert all(entry["rank"] is None and entry["logprob"] <= 0 for at in rest for entry in at.values())
    assert len(answer["choices"][0]["logprobs"]["content"]) == 2


@pytest.mark.parametrize("fields", [{"stream": True}, {"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"echo": True, "logprobs": 1}])
def test_prompt_log_probabilities_are_refused_where_they_are_not_available(server, fields):
    reply = server.complete(CAPITAL, **{"max_tokens": 1, "prompt_logprobs": 1, **fields})
    assert reply.status == 400 and reply.error["param"] == "prompt_logprobs", reply.body
