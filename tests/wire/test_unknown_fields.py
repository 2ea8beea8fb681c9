"""A field that the server does not know is refused with the nearest known name, unless the configuration says otherwise."""

import json

import pytest
from harness import MODEL, Server

HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2, "temperature": 0},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2, "temperature": 0},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2, "temperature": 0},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": HELLO},
}
# A field, and the name that stands in its error.
TYPOS = {
    "/v1/chat/completions": {
        "tempreature": "temperature",
        "repeat_penalty": "repetition_penalty",
        "ebnf": "grammar",
        "max_token": "max_tokens",
        "presence_penality": "presence_penalty",
        "response_fromat": "response_format",
        "tool_choices": "tool_choice",
        "messsages": "messages",
    },
    "/v1/completions": {"promt": "prompt", "n_predict": "max_tokens", "top_pp": "top_p"},
    "/v1/embeddings": {"encodingformat": "encoding_format", "inputs": "input"},
    "/v1/responses": {"instruction": "instructions", "max_output_token": "max_output_tokens"},
    "/v1/rerank": {"document": "documents", "topn": "top_n"},
    "/v1/score": {"text1": "text_1"},
    "/tokenize": {"add_special_token": "add_special_tokens"},
    "/detokenize": {"token": "tokens"},
    "/apply-template": {"chat_template_kwarg": "chat_template_kwargs"},
}
CASES = [(path, typo, name) for path, typos in TYPOS.items() for typo, name in typos.items()]


def refused(server, path, field, value, **fields):
    reply = server.post(path, {"model": MODEL, **BODIES[path], **fields, **({} if field is None else {field: value})})
    assert reply.status == 400, (path, field, reply.body)
    assert reply.error["type"] == "invalid_request_error" and reply.error["code"] == "unknown_parameter", reply.error
    return reply.error


@pytest.mark.parametrize("path, typo, name", CASES, ids=[f"{path}-{typo}" for path, typo, _ in CASES])
def test_a_typo_is_refused_with_the_name_that_was_meant(server, path, typo, name):
    error = refused(server, path, typo, 1)
    assert error["param"] == typo and f"did you mean `{name}`?" in error["message"], error


@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_is_like_no_other_is_refused_with_advice(server, path):
    error = refused(server, path, "mirostat", 2)
    assert error["param"] == "mirostat" and "unknown_fields" in error["message"], error
    assert server.post(path, {"model": MODEL, **BODIES[path], "mirostat": None}).status == 200, "null is absence"


@pytest.mark.parametrize(
    "fields, param, name",
    [
        ({"stream": True, "stream_options": {"include_usages": True}}, "stream_options.include_usages", "include_usage"),
        ({"response_format": {"type": "json_object", "shema": {"type": "object"}}}, "response_format.shema", "schema"),
        ({"tools": [{**TOOL, "functoin": 1}]}, "tools[0].functoin", "function"),
        (
            {"tools": [TOOL, {"type": "function", "function": {"name": "g", "paramters": {"type": "object"}}}]},
            "tools[1].function.paramters",
            "parameters",
        ),
        ({"messages": [{"role": "user", "contents": "x", "content": "y"}]}, "messages[0].contents", "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "txt": "x", "text": "y"}]}]}, "messages[0].content[0].txt", "text"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "regex"),
    ],
)
def test_objects_inside_are_checked_too(server, fields, param, name):
    error = refused(server, "/v1/chat/completions", None, None, **fields)
    assert error["param"] == param and f"did you mean `{name}`?" in error["message"], error


def test_a_stream_is_refused_before_it_begins(server):
    reply = server.chat(stream=True, tempreature=1)
    assert reply.status == 400 and reply.error["param"] == "tempreature"


def test_a_long_or_strange_name_stays_a_short_message(server):
    for name in ("x" * 5000, "a\n\u001b[31m", 'quo"te\\', "\u2028", ""):
        error = refused(server, "/v1/chat/completions", name, 1)
        assert len(error["message"]) < 500 and error["message"].isprintable(), error


def test_what_routers_fill_in_is_accepted_and_refused_if_it_asks_for_something(server):
    defaults = {"no_stop_trim": False, "return_hidden_states": False, "separate_reasoning": True, "stream_reasoning": True}
    assert server.chat(**defaults).status == 200
    for name, value in defaults.items():
        reply = server.chat(**{name: not value})
        assert reply.status == 400 and reply.error["param"] == name, reply.body


def test_fields_that_mean_nothing_here_are_accepted(server):
    plain = server.chat("Name a fruit.").json()["choices"]
    fields = {
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "prediction": {"type": "content", "content": "An apple."},
        "verbosity": "medium",
        "reasoning_effort": "medium",
        "metadata": {"a": "b"},
        "logprobs": False,
        "top_logprobs": 0,
        "modalities": ["text"],
        "store": False,
    }
    reply = server.chat("Name a fruit.", **fields)
    assert reply.status == 200 and reply.json()["choices"] == plain, reply.body


def test_what_an_answer_holds_can_be_sent_back(server):
    answer = server.chat("Name a fruit.").json()["choices"][0]["message"]
    sdk = {"annotations": [], "audio": None, "function_call": None, "tool_calls": None, "refusal": None, "parsed": None}
    messages = [{"role": "user", "content": "Name a fruit."}, {**sdk, **answer}, {"role": "user", "content": "Another."}]
    reply = server.chat(messages=messages)
    assert reply.status == 200, reply.body


def test_the_configuration_can_ignore_them():
    with Server({"LIMITS__UNKNOWN_FIELDS": "ignore", "ENGINE__KV_TOKENS": "2048"}) as server:
        plain = server.chat("Name a fruit.").json()["choices"]
        reply = server.chat("Name a fruit.", tempreature=1, stream_options=None, made_up={"a": [1]})
        assert reply.status == 200 and reply.json()["choices"] == plain
        assert server.chat(temperature=9).error["param"] == "temperature", "a known field is still checked"
        for path, body in BODIES.items():
            assert server.post(path, {"model": MODEL, **body, "made_up": json.dumps(body)}).status == 200, path
        message = {"role": "user", "content": "Hi", "made_up": 1}
        claude = {"model": MODEL, "max_tokens": 2, "messages": [message], "made_up": {"a": 1}, "metadata": {"made_up": 1}}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            assert server.post(path, claude).status == 200, path
        llama = {"model": MODEL, "messages": [message], "stream": False, "options": {"num_predict": 2, "made_up": 1}, "made_up": 2}
        assert server.post("/api/chat", llama).status == 200
        assert server.post("/api/show", {"model": MODEL, "made_up": 1}).status == 200
        assert server.post("/api/chat", {**llama, "options": {"temperature": "hot"}}).status == 400, "a known field is still checked"
