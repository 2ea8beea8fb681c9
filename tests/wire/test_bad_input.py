"""Wrong values get a 400 that names the field, and the server serves as before."""

import json
import time

import pytest
from harness import MODEL, chunks_of

pytestmark = pytest.mark.usefixtures("survives")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body_of(path: str, **fields) -> dict:
    base = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return {"model": MODEL, **base, "max_tokens": 2, **fields}


def refused(server, path: str, fields: dict, param: str | None) -> None:
    reply = server.post(path, body_of(path, **fields))
    assert reply.status == 400, (path, str(fields)[:120], reply.status, reply.body[:300])
    error = reply.error
    assert error["type"] == "invalid_request_error", error
    if param is not None:
        named = error["param"] or ""
        assert named == param or named.startswith(f"{param}.") or named.startswith(f"{param}["), (str(fields)[:120], error)


SAMPLING = [
    ("temperature", [-1, -0.001, "0.5", 2.01, True, [1]]),
    ("top_p", [-0.1, 2, "1"]),
    ("top_k", [0.01, -2, "5", 2**63]),
    ("min_p", [-0.1, 1.1]),
    ("presence_penalty", [-10, 10, 2.1, "0"]),
    ("frequency_penalty", [-10, 10, -2.1]),
    ("repetition_penalty", [-1, 0]),
    ("seed", ["1", 1.5]),
    ("n", [0, -1, 10**9, 17, 1.5, "1"]),
    ("stop", [["a", "b", "c", "d", "e"], "", ["a", ""], 5, [1]]),
    ("stream", ["yes", 1]),
    ("max_tokens", [-1, 2**63, "5", 1.5]),
    ("logit_bias", [{"49152": 1}, {"-1": 1}, {"x": 1}, {"5": 101}, {"5": "1"}, [1]]),
    ("stop_token_ids", [[49_152], [-1], 5]),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("param, values", SAMPLING, ids=[name for name, _ in SAMPLING])
def test_wrong_sampling_parameters_are_refused(server, path, param, values):
    for value in values:
        refused(server, path, {param: value}, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_outside_of_json_are_refused(server, path, text):
    body = json.dumps(body_of(path, temperature=12345)).replace("12345", text)
    reply = server.post(path, body.encode())
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error"


def test_a_stop_string_of_a_megabyte_is_refused(server):
    refused(server, CHAT, {"stop": "x" * 1_000_000}, "stop")


def test_max_tokens_of_zero_is_refused(server):
    refused(server, CHAT, {"max_tokens": 0}, "max_tokens")
    refused(server, CHAT, {"max_completion_tokens": 0}, "max_completion_tokens")
    refused(server, COMPLETIONS, {"max_tokens": 0}, "max_tokens")


def test_a_wrong_best_of_is_refused(server):
    for value in (0, -1, 10**9):
        refused(server, COMPLETIONS, {"best_of": value}, "best_of")


def test_logprobs_out_of_range_are_refused(server):
    refused(server, CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs")
    refused(server, CHAT, {"logprobs": True, "top_logprobs": 10**6}, "top_logprobs")
    refused(server, CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs")
    refused(server, CHAT, {"logprobs": 3}, "logprobs")
    refused(server, CHAT, {"top_logprobs": 3}, "top_logprobs")
    refused(server, COMPLETIONS, {"logprobs": 6}, "logprobs")
    refused(server, COMPLETIONS, {"logprobs": -1}, "logprobs")


def test_a_million_biases_are_refused(server):
    refused(server, CHAT, {"logit_bias": {str(i): 1 for i in range(1_000_000)}}, "logit_bias")


PROMPTS = ["", [], [[]], [""], ["a", ""], [-1], [49_152], [2**63], [[1], []], ["a", 1], [1, "a"], [1.5], 5, {"a": 1}, True, ["x"] * 1025]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: str(p)[:20])
def test_wrong_prompts_are_refused(server, prompt):
    refused(server, COMPLETIONS, {"prompt": prompt}, "prompt")


MESSAGES = [
    [],
    "Hi",
    [{"role": "wizard", "content": "Hi"}],
    [{"content": "Hi"}],
    [{"role": "user"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"text": "no type"}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    ["Hi"],
    [5],
    {},
]


@pytest.mark.parametrize("messages", MESSAGES, ids=lambda m: str(m)[:40])
def test_wrong_messages_are_refused(server, messages):
    refused(server, CHAT, {"messages": messages}, "messages")


def test_a_hundred_thousand_content_parts_are_refused(server):
    parts = [{"type": "text", "text": "word "}] * 100_000
    refused(server, CHAT, {"messages": [{"role": "user", "content": parts}]}, "messages")


@pytest.mark.parametrize("path, missing", [(CHAT, "messages"), (CHAT, "model"), (COMPLETIONS, "prompt"), (COMPLETIONS, "model")])
def test_a_missing_required_field_is_named(server, path, missing):
    for body in ({k: v for k, v in body_of(path).items() if k != missing}, body_of(path, **{missing: None})):
        reply = server.post(path, body)
        assert reply.status == 400 and reply.error["param"] == missing, reply.body


@pytest.mark.parametrize(
    "path, fields, param",
    [
        (CHAT, {"best_of": 3}, "best_of"),
        (CHAT, {"suffix": "the end"}, "suffix"),
        (COMPLETIONS, {"top_logprobs": 3}, "top_logprobs"),
        (COMPLETIONS, {"suffix": "the end"}, "suffix"),  # its vocabulary has no tokens for it
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_of_another_endpoint_is_refused_by_name(server, path, fields, param):
    refused(server, path, fields, param)


def test_a_wrong_response_format_is_refused(server):
    assert server.chat(response_format={"type": "text"}).status == 200
    refused(server, CHAT, {"response_format": {"type": "xml"}}, "response_format.type")
    refused(server, CHAT, {"response_format": "json"}, "response_format")


def test_no_tools_count_as_absent(server):
    plain = server.chat().json()["choices"]
    assert server.chat(tools=[]).json()["choices"] == server.chat(tool_choice="none").json()["choices"] == plain


BODIES = {
    "empty": b"",
    "not JSON": b"hello",
    "cut": b'{"model": "smollm2:135m", "messages": [',
    "bad UTF-8": b'{"model": "smollm2:135m", "prompt": "\xff\xfe"}',
    "lone surrogate": b'{"model": "smollm2:135m", "prompt": "\\ud800"}',
    "trailing bytes": b'{"model": "smollm2:135m", "prompt": "Hi"} x',
    "depth": b'{"model": "smollm2:135m", "prompt": "Hi", "user": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "array": b"[]",
    "null": b"null",
    "number": b"5",
    "duplicate keys": b'{"model": "smollm2:135m", "prompt": "Hi", "max_tokens": 2, "max_tokens": 3}',
    "duplicate messages": b'{"model": "smollm2:135m", "messages": [{"role":"user","content":"Hi"}], "messages": []}',
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", BODIES)
def test_broken_bodies_are_refused(server, path, name):
    reply = server.post(path, BODIES[name])
    assert reply.status == 400, (reply.status, reply.body)
    assert reply.error["type"] == "invalid_request_error"


def test_nul_and_every_kind_of_text_are_accepted(server):
    for text in ("\x00", "a\x00b", "\x1b[31m", "👩‍👩‍👧", "ﷺ" * 50, "\u202e", "\U0010ffff", "\r\n\r\n"):
        assert server.chat(text, max_tokens=1).status == 200, repr(text)


def test_values_at_the_limits_are_accepted(server):
    assert server.complete(n=1, best_of=1, max_tokens=1).status == 200
    assert server.chat(stop=["a!", "b!", "c!", "d!"], max_tokens=1).status == 200
    for fields in (
        {"temperature": 2},
        {"top_p": 0.01},
        {"top_k": -1},
        {"top_k": 0},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"min_p": 1},
    ):
        reply = server.chat(max_tokens=2, **fields)
        assert reply.status == 200, (fields, reply.body)


def test_a_bad_request_does_not_disturb_a_stream(server):
    expected = "".join(
        c["choices"][0]["delta"].get("content", "") for c in chunks_of(server.chat("Tell me a story.", stream=True, max_tokens=16))
    )
    refused(server, CHAT, {"temperature": -1}, "temperature")
    again = chunks_of(server.chat("Tell me a story.", stream=True, max_tokens=16))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in again) == expected


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_prompt_far_beyond_the_context_is_refused_before_it_is_encoded(server, path):
    text = "a" * 15_000_000 + " word" * 3_000_000
    fields = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    start = time.monotonic()
    reply = server.post(path, body_of(path, **fields))
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded", (reply.status, reply.body[:300])
    assert "more than" in reply.error["message"]
    assert time.monotonic() - start < 5, "it is told without encoding all of it"
