"""A field that the server does not know is refused if it looks like a typing mistake. All other unknown fields are ignored and reported."""

import json
import re

import pytest
from harness import MODEL, Server, wait_until
from test_metrics import families
from test_request_log import Logged

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
# By path: a mistyped field, and the field that the error suggests.
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
def test_a_typo_is_refused_with_the_intended_name(server, path, typo, name):
    error = refused(server, path, typo, 1)
    assert error["param"] == typo and f"did you mean `{name}`?" in error["message"], error


# By name: a value that would change the answer, a value that would not, and the field that the error suggests.
PEERS = {
    "mirostat": (2, 0, "temperature"),
    "typical_p": (0.5, 1, "top_p"),
    "repeat_last_n": (64, -1, "repetition_penalty"),
    "dry_multiplier": (0.8, 0, "repetition_penalty"),
    "xtc_probability": (0.5, 0, "temperature"),
    "dynatemp_range": (0.5, 0, "temperature"),
    "top_n_sigma": (1, -1, "min_p"),
    "min_new_tokens": (5, 0, "min_tokens"),
    "stop_regex": ("x+", "", "stop"),
    "no_repeat_ngram_size": (3, 0, "repetition_penalty"),
    "num_beams": (4, 1, "temperature"),
    "do_sample": (False, True, "temperature"),
}
GENERATIONS = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]


@pytest.mark.parametrize("path", GENERATIONS)
def test_a_sampling_field_of_another_server_is_refused_if_it_would_change_the_answer(server, path):
    for field, (value, off, near) in PEERS.items():
        error = refused(server, path, field, value)
        assert error["param"] == field and f"`{near}`" in error["message"], error
        reply = server.post(path, {"model": MODEL, **BODIES[path], field: off})
        assert reply.status == 200 and "penstock-ignored-fields" not in reply.headers, (field, reply.body)


@pytest.mark.parametrize("path", BODIES)
def test_other_unknown_fields_are_ignored_and_reported(server, path):
    body = {"model": MODEL, **BODIES[path]}
    plain = server.post(path, body)
    reply = server.post(path, {**body, "chat_id": "c", "made_up": {"temperature": 5}, "nothing": None})
    assert reply.status == 200 and reply.headers["penstock-ignored-fields"] == "chat_id, made_up", reply.body
    assert "penstock-ignored-fields" not in plain.headers
    if path == "/v1/chat/completions":
        assert reply.json()["choices"] == plain.json()["choices"]


def test_a_sampling_field_is_ignored_by_embeddings(server):
    reply = server.post("/v1/embeddings", {"model": MODEL, "input": "Hi", "mirostat": 2})
    assert (reply.status, reply.headers["penstock-ignored-fields"]) == (200, "mirostat"), reply.body


def test_nested_fields_are_reported_without_indices(server):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "state": "done"}], "id": "1", "timestamp": 5},
        {"role": "assistant", "content": "Ho", "thinking": "hm", "model": "x", "phase": "final"},
        {"role": "user", "content": "Hi", "id": "2", "name": "ada"},
    ]
    reply = server.chat(messages=messages, tools=[{**TOOL, "source": "mcp"}])
    assert reply.status == 200, reply.body
    named = reply.headers["penstock-ignored-fields"].split(", ")
    message = ["messages.content.state", "messages.id", "messages.model", "messages.phase", "messages.thinking", "messages.timestamp"]
    assert named == [*message, "tools.source"]


def test_ignored_fields_do_not_reach_a_template(server):
    """Templates print tool declarations as they get them."""
    def prompt(*tools):
        reply = server.post("/apply-template", {"model": "qwen2.5-coder:0.5b", "messages": HELLO, "tools": list(tools)})
        return reply.json()["prompt"]

    with Server({"SERVER__DEFAULT_MODELS": "qwen2.5-coder:0.5b", "ENGINE__KV_TOKENS": "2048"}) as server:
        changed = {**TOOL, "zzz": 1, "function": {**TOOL["function"], "yyy": {"a": 1}}}
        assert prompt(changed) == prompt(TOOL) and "yyy" not in prompt(changed)


def test_ignored_fields_are_in_a_streams_head_in_the_log_and_in_a_counter():
    with Logged() as logged:
        reply = logged.server.chat(stream=True, agent_name="a", messages=[{**HELLO[0], "message_id": 1}])
        assert reply.headers["penstock-ignored-fields"] == "agent_name, messages.message_id"
        logged.server.chat(agent_name="a")
        named = lambda: [line["ignored_fields"] for line in logged.all() if "ignored_fields" in line]
        wait_until(lambda: len(named()) == 2, 10, "both lines are written")
        assert named() == ["agent_name, messages.message_id", "agent_name"]
        family = families(logged.server)["penstock_http_ignored_fields"]
        counts = {sample.labels["field"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
        assert counts == {"agent_name": 2, "messages.message_id": 1}


def test_reported_names_are_plain_and_bounded_and_the_counter_is_bounded():
    with Server({"ENGINE__KV_TOKENS": "2048"}) as server:
        strange = ["x" * 5000, "a\n\u001b[31m", 'quo"te\\', "\u2028", "", "ü, ä", "a\r\nset-cookie: b=c"]
        reply = server.chat(**{name: 1 for name in strange})
        assert reply.status == 200 and "set-cookie" not in reply.headers, reply.body
        value = reply.headers["penstock-ignored-fields"]
        assert len(value) <= 1000 and all(re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) for name in value.split(", ")), value
        for i in range(3):
            reply = server.chat(**{f"{'y' * i * 40}wild_{i}_{j:04}": 1 for j in range(200)})
            assert reply.status == 200 and len(reply.headers["penstock-ignored-fields"]) <= 1000
            assert reply.headers["penstock-ignored-fields"].endswith(", ...")
        family = families(server)["penstock_http_ignored_fields"]
        fields = {sample.labels["field"] for sample in family.samples}
        assert len(fields) <= 201 and "other" in fields
        reply = server.chat(**{f"wild_{j:06}": 1 for j in range(20_000)})
        assert reply.status == 400 and "256 unknown fields" in reply.error["message"]


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
def test_nested_objects_are_checked_too(server, fields, param, name):
    error = refused(server, "/v1/chat/completions", None, None, **fields)
    assert error["param"] == param and f"did you mean `{name}`?" in error["message"], error


def test_a_stream_is_refused_before_it_starts(server):
    reply = server.chat(stream=True, tempreature=1)
    assert reply.status == 400 and reply.error["param"] == "tempreature"


def test_defaults_that_routers_send_are_accepted_and_other_values_are_refused(server):
    defaults = {"no_stop_trim": False, "return_hidden_states": False, "separate_reasoning": True, "stream_reasoning": True}
    assert server.chat(**defaults).status == 200
    for name, value in defaults.items():
        reply = server.chat(**{name: not value})
        assert reply.status == 400 and reply.error["param"] == name, reply.body


def test_fields_without_an_effect_here_are_accepted(server):
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


def test_a_message_of_an_answer_can_be_sent_back(server):
    answer = server.chat("Name a fruit.").json()["choices"][0]["message"]
    sdk = {"annotations": [], "audio": None, "function_call": None, "tool_calls": None, "refusal": None, "parsed": None}
    messages = [{"role": "user", "content": "Name a fruit."}, {**sdk, **answer}, {"role": "user", "content": "Another."}]
    reply = server.chat(messages=messages)
    assert reply.status == 200, reply.body


DIALECTS = {
    "/v1/messages": {"max_tokens": 2, "messages": HELLO},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/api/chat": {"messages": HELLO, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "stream": False, "options": {"num_predict": 2}},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
    "/v1/conversations": {"items": [{"type": "message", **HELLO[0]}]},
}
# By path: fields with a mistake, and the field that the error suggests.
MISTAKES = {
    "/v1/messages": [
        ({"max_token": 3}, "max_tokens"),
        ({"presence_penalty": 1}, "temperature"),
        ({"stop": ["x"]}, "stop_sequences"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "txet": "x"}]}]}, "text"),
        ({"tools": [{"name": "f", "input_shema": {"type": "object"}}]}, "input_schema"),
    ],
    "/api/chat": [
        ({"keepalive": "5m"}, "keep_alive"),
        ({"options": {"tempreature": 1}}, "temperature"),
        ({"options": {"repetition_penalty": 1.1}}, "repeat_penalty"),
        ({"options": {"dry_multiplier": 1}}, "repeat_penalty"),
        ({"options": {"max_tokens": 5}}, "num_predict"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "content"),
    ],
    "/v1/responses": [
        ({"input": [{"type": "message", "role": "user", "contnet": "x"}]}, "content"),
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "txt": "x"}]}]}, "text"),
        ({"tools": [{"type": "function", "name": "f", "paramters": {"type": "object"}}]}, "parameters"),
    ],
}


def text_of(reply) -> str:
    """The message of an error in any dialect."""
    error = reply.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("path", DIALECTS)
def test_the_rule_is_the_same_in_all_dialects(server, path):
    body = {"model": MODEL, **DIALECTS[path]} if path != "/v1/conversations" else DIALECTS[path]
    reply = server.post(path, {**body, "session_id": "s", "made_up": [1]})
    assert (reply.status, reply.headers["penstock-ignored-fields"]) == (200, "made_up, session_id"), reply.body
    if "messages" in body:
        marked = {**body, "messages": [{**HELLO[0], "id": "m", "timestamp": 1}]}
        reply = server.post(path, marked)
        assert (reply.status, reply.headers["penstock-ignored-fields"]) == (200, "messages.id, messages.timestamp"), reply.body


@pytest.mark.parametrize("path", MISTAKES)
def test_mistakes_are_refused_in_all_dialects(server, path):
    for fields, near in MISTAKES[path]:
        reply = server.post(path, {"model": MODEL, **{**BODIES, **DIALECTS}[path], **fields})
        assert reply.status == 400 and f"`{near}`" in text_of(reply), (fields, reply.body)


def test_items_of_another_server_are_accepted_and_stored_unchanged(server):
    call = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}, "outputs": [1]}
    item = {"type": "message", "role": "user", "content": "Hi", "agent": "a"}
    reply = server.post("/v1/responses", {"model": MODEL, "input": [call, item], "max_output_tokens": 2})
    assert (reply.status, reply.headers["penstock-ignored-fields"]) == (200, "input.agent"), reply.body
    kept = server.get(f"/v1/responses/{reply.json()['id']}/input_items?order=asc").json()["data"]
    assert kept[0]["action"] == call["action"] and kept[1]["agent"] == "a"


def test_a_strict_server_refuses_all_unknown_fields():
    with Server({"LIMITS__UNKNOWN_FIELDS": "refuse", "ENGINE__KV_TOKENS": "2048"}) as server:
        for path, body in {**BODIES, **DIALECTS}.items():
            named = {} if path == "/v1/conversations" else {"model": MODEL}
            assert server.post(path, {**named, **body}).status == 200, path
            reply = server.post(path, {**named, **body, "wholly_unknown_zz": 2})
            assert reply.status == 400 and "unknown_fields" in text_of(reply), (path, reply.body)
            assert server.post(path, {**named, **body, "wholly_unknown_zz": None}).status == 200, "null counts as absent"
        error = refused(server, "/v1/chat/completions", None, None, messages=[{**HELLO[0], "id": "1"}])
        assert error["param"] == "messages[0].id"


def test_the_configuration_can_ignore_mistakes_too():
    with Server({"LIMITS__UNKNOWN_FIELDS": "ignore", "ENGINE__KV_TOKENS": "2048"}) as server:
        plain = server.chat("Name a fruit.").json()["choices"]
        reply = server.chat("Name a fruit.", tempreature=1, stream_options=None, mirostat=2)
        assert reply.status == 200 and reply.json()["choices"] == plain
        assert reply.headers["penstock-ignored-fields"] == "mirostat, tempreature"
        assert server.chat(temperature=9).error["param"] == "temperature", "a known field is still validated"
        for path, body in BODIES.items():
            assert server.post(path, {"model": MODEL, **body, "made_up": json.dumps(body)}).status == 200, path
        assert server.post("/api/chat", {"model": MODEL, "messages": HELLO, "options": {"temperature": "hot"}}).status == 400
