"""Rows 38 to 52: each wrong value gets an error that names the field."""

import json

import pytest
from harness import MODEL, resident
from test_bad_input import CHAT, COMPLETIONS, body_of, refused

BOTH = [CHAT, COMPLETIONS]
SIZES = [2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30]


def each(server, param: str, values, paths=BOTH) -> None:
    for path in paths:
        for value in values:
            refused(server, path, {param: value}, param)


def as_written(server, path: str, param: str, text: str) -> None:
    """A field whose value is sent as this text, which need not be JSON."""
    body = json.dumps(body_of(path, **{param: 12345})).replace("12345", text)
    reply = server.post(path, body.encode())
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error", (param, text, reply.body[:200])


def test_a_wrong_temperature_is_refused_and_a_tiny_one_is_greedy(server):
    """Row 38."""
    each(server, "temperature", [-1, -0.001, "0.5", 2.01, True, [1], {}, 1e300])
    for path in BOTH:
        for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x1", "+1", ".5", "01"):
            as_written(server, path, "temperature", text)
    assert server.chat("Hi", temperature=1e-4, max_tokens=2).status == 200
    assert server.chat("Hi", temperature=1e-4, seed=1).json()["choices"] == server.chat("Hi", temperature=0).json()["choices"]


def test_wrong_shapes_of_the_distribution_are_refused(server):
    """Row 39."""
    each(server, "top_p", [-0.1, 2, "1"])
    assert server.chat("Hi", top_p=0, seed=1).json()["choices"] == server.chat("Hi", temperature=0).json()["choices"]
    each(server, "top_k", [0.01, -2, "5", 2**63])
    each(server, "min_p", [-0.1, 1.1])
    for name in ("presence_penalty", "frequency_penalty"):
        each(server, name, [-10, 10, 2.1, -2.1, "0", 1e300])
    each(server, "repetition_penalty", [-1, 0, 1e300, "1"])


def test_wrong_numbers_of_choices_are_refused_before_memory_is_taken(server):
    """Row 40."""
    before = resident(server)
    each(server, "n", [0, -1, 17, 10**9, 1.5, "1", *SIZES])
    each(server, "best_of", [0, -1, 17, 10**9, *SIZES], [COMPLETIONS])
    assert resident(server) - before < 16 << 20


def test_wrong_numbers_of_log_probabilities_are_refused(server):
    """Row 41."""
    for number in (21, 10**6, -1, 1.5, "1", *SIZES):
        refused(server, CHAT, {"logprobs": True, "top_logprobs": number}, "top_logprobs")
    refused(server, CHAT, {"logprobs": 3}, "logprobs")
    refused(server, CHAT, {"top_logprobs": 3}, "top_logprobs")
    refused(server, CHAT, {"logprobs": False, "top_logprobs": 3}, "top_logprobs")
    each(server, "logprobs", [6, -1, "1", True, *SIZES], [COMPLETIONS])


def test_wrong_stop_strings_are_refused(server):
    """Row 42."""
    each(server, "stop", [["a", "b", "c", "d", "e"], ["a", ""], 5, [1], {}, "x" * 1_000_000, ["x" * 1_000_000]])


def test_wrong_biases_are_refused(server):
    """Row 43."""
    each(server, "logit_bias", [{"49152": 1}, {"-1": 1}, {"x": 1}, {"5": 101}, {"5": "1"}, [1], {str(2**32): 1}, {"5.0": 1}, {"": 1}])
    each(server, "logit_bias", [{str(i): 1 for i in range(1_000_000)}], [CHAT])
    for text in ('{"5": 1e999}', '{"5": NaN}', '{"5": 1, "5": 2}'):
        as_written(server, CHAT, "logit_bias", text)


def test_ids_of_a_prompt_outside_of_the_vocabulary_are_refused(server):
    """Row 44."""
    each(server, "prompt", [[-1], [49_152], [2**63], [2**32], [1, 2**64], [[1, -1]], [1.5], [1, "a"], ["a", 1]], [COMPLETIONS])


def test_wrong_ids_to_stop_at_and_wrong_least_lengths_are_refused(server):
    """Row 45."""
    each(server, "stop_token_ids", [[49_152], [-1], [2**32], 5, ["1"], [1.5]])
    each(server, "min_tokens", [-1, 1.5, "1", 2**63])
    for path in BOTH:
        refused(server, path, {"min_tokens": 2, "max_tokens": 4, "stop_token_ids": [49_152]}, "stop_token_ids")
        refused(server, path, {"min_tokens": 5, "max_tokens": 4}, "min_tokens")


def test_wrong_lengths_and_prompts_beyond_the_context_are_refused(server):
    """Row 46."""
    each(server, "max_tokens", [0, -2, "5", 1.5, 2**63, *[size for size in SIZES if size > 2**32 or size < 0]])
    refused(server, CHAT, {"max_completion_tokens": 0}, "max_completion_tokens")
    for path, fields in (
        (CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}),
        (COMPLETIONS, {"prompt": "word " * 20_000}),
    ):
        reply = server.post(path, body_of(path, **fields))
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded", reply.body
        assert reply.error["param"] == ("messages" if path == CHAT else "prompt")


def test_empty_prompts_and_too_many_are_refused(server):
    """Row 47."""
    wrong = ["", [], [[]], [""], ["a", ""], [[1], []], 5, {"a": 1}, True, ["x"] * 1025, [[[1]]], [None], None]
    each(server, "prompt", wrong, [COMPLETIONS])


MESSAGES = [
    [],
    "Hi",
    [{"role": "usr", "content": "Hi"}],
    [{"role": "a" * 65, "content": "Hi"}],
    [{"role": "", "content": "Hi"}],
    [{"role": "User", "content": "Hi"}],
    [{"content": "Hi"}],
    [{"role": "user"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"text": "no type"}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "text", "text": "word "}] * 100_000}],
    ["Hi"],
    [5],
    [None],
    [[]],
    {},
]


def test_wrong_messages_are_refused(server):
    """Row 48."""
    for messages in MESSAGES:
        refused(server, CHAT, {"messages": messages}, "messages")


def test_an_extension_is_checked_and_an_unknown_field_changes_nothing(server):
    """Row 49. Fields that Penstock knows are validated. Unknown fields change nothing."""
    # -1 has no effect in two of these fields
    checked = {"truncate_prompt_tokens": [-1], "n_predict": [-1], "priority": []}
    for path in BOTH:
        plain = server.post(path, body_of(path, temperature=0)).json()["choices"]
        for name in (*checked, "kv_transfer_params", "num_ctx", "id_slot", "made_up", "a" * 10_000):
            for value in (-1, -(2**31), 2**63, {"a": [-1]}):
                if value not in checked.get(name, [value]):
                    refused(server, path, {"temperature": 0, name: value}, name)
                    continue
                reply = server.post(path, body_of(path, temperature=0, **{name: value}))
                assert reply.status == 200 and reply.json()["choices"] == plain, (name[:30], value, reply.body[:300])
        each(server, "seed", ["1", 1.5, [1]], [path])
        each(server, "stream", ["yes", 1], [path])
        each(server, "ignore_eos", ["yes", -1], [path])


def test_a_name_of_no_model_is_not_found(server):
    """Row 50."""
    wrong = ["../x", "..", "/etc/passwd", "a\x00b", "\x00", "x" * 10_000, "hf:o/r", "https://example.com/m.gguf", "C:\\m.gguf", "nope"]
    for name in (*wrong, f"{MODEL}/..", f"{MODEL}\x00", f" {MODEL}", "%2e%2e%2f", "\u202e" + MODEL):
        for path in (*BOTH, "/v1/embeddings", "/v1/responses", "/tokenize"):
            fields = {"input": "Hi"} if path in ("/v1/embeddings", "/v1/responses") else {"prompt": "Hi"}
            body = {**(body_of(path) if path in BOTH else fields), "model": name}
            reply = server.post(path, body)
            assert reply.status == 404 and reply.error["code"] == "model_not_found", (path, name[:40], reply.status, reply.body[:200])
            assert len(reply.body) < 2000
    for path in ("..%2f..%2fetc%2fpasswd", "%00", "x" * 10_000):
        assert server.get(f"/v1/models/{path}").status == 404


BODIES = {
    "empty": b"",
    "not JSON": b"hello",
    "cut": b'{"model": "smollm2:135m", "messages": [',
    "bad UTF-8": b'{"model": "smollm2:135m", "prompt": "\xff\xfe"}',
    "an overlong form": b'{"model": "smollm2:135m", "prompt": "\xc0\x80"}',
    "a lone surrogate": b'{"model": "smollm2:135m", "prompt": "\\ud800"}',
    "surrogates in the wrong order": b'{"model": "smollm2:135m", "prompt": "\\udc00\\ud800"}',
    "a raw line break": b'{"model": "smollm2:135m", "prompt": "a\nb"}',
    "trailing bytes": b'{"model": "smollm2:135m", "prompt": "Hi"} x',
    "two documents": b'{"model": "smollm2:135m", "prompt": "Hi"}{}',
    "a byte order mark": b'\xef\xbb\xbf{"model": "smollm2:135m", "prompt": "Hi"}',
    "UTF-16": '{"model": "smollm2:135m", "prompt": "Hi"}'.encode("utf-16"),
    "depth 129": b'{"model": "smollm2:135m", "prompt": "Hi", "user": ' + b"[" * 129 + b"]" * 129 + b"}",
    "depth 10,000": b'{"model": "smollm2:135m", "prompt": "Hi", "user": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "depth 10,000 of objects": b'{"model": "smollm2:135m", "x": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    "array": b"[]",
    "null": b"null",
    "number": b"5",
}


@pytest.mark.parametrize("path", BOTH)
def test_a_body_that_is_no_json_is_refused(server, path):
    """Row 51."""
    for name, body in BODIES.items():
        reply = server.post(path, body)
        assert reply.status == 400 and reply.error["type"] == "invalid_request_error", (name, reply.status, reply.body[:200])


DOUBLE = [
    b'{"model": "smollm2:135m", "prompt": "Hi", "max_tokens": 2, "max_tokens": 3}',
    b'{"model": "smollm2:135m", "prompt": "Hi", "max_tokens": 2, "max_tokens": 2}',
    b'{"model": "smollm2:135m", "prompt": "Hi", "unknown": 2, "unknown": 2}',
    b'{"model": "smollm2:135m", "prompt": "Hi", "max_tokens": 2, "max\\u005ftokens": 3}',
    b'{"model": "smollm2:135m", "messages": [{"role":"user","content":"Hi"}], "messages": []}',
    b'{"model": "smollm2:135m", "messages": [{"role":"user","content":"Hi","role":"system"}]}',
    b'{"model": "smollm2:135m", "prompt": "Hi", "messages": [{"role":"user","content":"Hi"}], "logit_bias": {"5": 1, "5": 2}}',
]


@pytest.mark.parametrize("path", BOTH)
def test_duplicate_keys_are_refused(server, path):
    """Row 52."""
    for body in DOUBLE:
        reply = server.post(path, body)
        assert reply.status == 400 and reply.error["type"] == "invalid_request_error", (body, reply.body[:200])
        assert "twice" in reply.error["message"], (body, reply.error)
