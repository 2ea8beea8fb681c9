"""/v1/messages over HTTP: whole answers, events and their order, errors, token counts and the model list."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from harness import CODER, MODEL, Reply, Server, cli, open_stream, parse_metrics, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import show
from test_reasoning import OPEN

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
VERSION = {"anthropic-version": "2023-06-01"}
CITY = {"city": {"type": "string", "maxLength": 30}}
SCHEMA = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": SCHEMA}
# Refuses a system message after the first turn, as the templates of some families do.
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def body(content=QUESTION, **fields) -> dict:
    return {"model": MODEL, "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": content}], **fields}


def ask(server, content=QUESTION, **fields) -> dict:
    reply = server.post("/v1/messages", body(content, **fields), headers=VERSION)
    assert reply.status == 200, reply.body
    return reply.json()


def count(server, content=QUESTION, **fields) -> int:
    sent = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
    reply = server.post("/v1/messages/count_tokens", sent, headers=VERSION)
    assert reply.status == 200, reply.body
    assert set(reply.json()) == {"input_tokens"}
    return reply.json()["input_tokens"]


def error_of(reply: Reply) -> dict:
    """Returns the error of a response. Checks the envelope and the request id."""
    payload = reply.json()
    assert set(payload) == {"type", "error", "request_id"} and payload["type"] == "error", payload
    assert set(payload["error"]) == {"type", "message"} and payload["error"]["message"], payload
    assert payload["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    assert reply.headers["content-type"] == "application/json"
    return payload["error"]


def refused(server, sent, status=400, kind="invalid_request_error", **request) -> str:
    reply = server.post("/v1/messages", sent, headers={**VERSION, **request})
    error = error_of(reply)
    assert (reply.status, error["type"]) == (status, kind), reply.body
    return error["message"]


def events_of(data: bytes) -> list[dict]:
    """Parses the events of a stream. Each has one line with its type and one with its data. There is no [DONE]."""
    events = []
    for block in data.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, value = block.split("\n")
        assert name.startswith("event: ") and value.startswith("data: "), block
        events.append(json.loads(value[6:]))
        assert events[-1]["type"] == name[7:]
    return events


def stream(server, content=QUESTION, **fields) -> list[dict]:
    reply = server.post("/v1/messages", body(content, stream=True, **fields), headers=VERSION)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream") and reply.headers["request-id"]
    return events_of(reply.body)


def folded(events: list[dict]) -> dict:
    """Builds the message from a stream's events. Checks their order."""
    first, *rest, delta, stop = [event for event in events if event["type"] != "ping"]
    assert (first["type"], delta["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    message = first["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    is_open, inputs, signed = False, "", False
    for event in rest:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            is_open, inputs, signed = True, "", False
            continue
        assert is_open and event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if kind == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = json.loads(inputs or "{}")
            assert block["type"] != "thinking" or signed, "a thinking block has its signature before it stops"
            continue
        assert kind == "content_block_delta" and not signed
        change = event["delta"]
        if change["type"] == "input_json_delta":
            inputs += change["partial_json"]
        elif change["type"] == "signature_delta":
            block["signature"], signed = change["signature"], True
        else:
            field = change["type"].removesuffix("_delta")
            assert field == block["type"] and change[field]
            block[field] += change[field]
    assert not is_open
    return {**message, **delta["delta"], "usage": delta["usage"]}


def plain(message: dict) -> dict:
    """The message without the parts that differ between responses."""
    blocks = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    usage = message["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return {**message, "id": None, "content": blocks, "usage": (total, usage["output_tokens"])}


@pytest.fixture(scope="module")
def many():
    """Serves a model whose template opens reasoning, one with a strict template, one with tools, and a short context."""
    path = show(MODEL)["path"]
    with tempfile.TemporaryDirectory() as folder:
        config, entries = Path(folder, "models.toml"), []
        for name, template in [("thinker", OPEN), ("strict", STRICT)]:
            Path(folder, name).write_text(template)
            source = f"source = {{ type = 'file', path = '{path}' }}"
            entries.append(f"[[models]]\nid = '{name}'\nchat_template = '{folder}/{name}'\n{source}\n")
        config.write_text("".join(entries))
        settings = {"SERVER__DEFAULT_MODELS": f"{MODEL},{CODER},thinker,strict", "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "2048"}
        with Server(settings, args=("--config", str(config))) as running:
            yield running


def test_an_answer_has_every_field(server):
    message = ask(server)
    assert message["id"].startswith("msg_") and (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    assert message["content"] == [{"type": "text", "text": ANSWER}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 37 == count(server)
    assert (usage["output_tokens"], usage["cache_creation_input_tokens"]) == (7, 0)
    assert usage["output_tokens_details"] == {"thinking_tokens": 0}


def test_the_second_request_reads_the_cache(server):
    long = "Repeat after me. " * 60
    first, second = (ask(server, long, max_tokens=1)["usage"] for _ in range(2))
    total = count(server, long)
    assert first["input_tokens"] + first["cache_read_input_tokens"] == total
    assert second["input_tokens"] + second["cache_read_input_tokens"] == total
    assert second["cache_read_input_tokens"] > 0.9 * total


def test_a_stream_has_the_same_message(server):
    events = stream(server)
    assert [event["type"] for event in events][:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert sum(event["type"] == "content_block_delta" for event in events) > 3
    assert plain(folded(events)) == plain(ask(server))
    start = events[0]["message"]["usage"]
    assert start["input_tokens"] + start["cache_read_input_tokens"] == 37


def test_stop_reasons(server):
    assert ask(server, max_tokens=3)["stop_reason"] == "max_tokens"
    stopped = ask(server, stop_sequences=["zebra", " France"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " France")
    assert stopped["content"] == [{"type": "text", "text": "The capital of"}]
    assert plain(folded(stream(server, stop_sequences=["zebra", " France"]))) == plain(stopped)


def test_an_answer_that_fills_the_context_says_so():
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "64"}
    with Server(config) as server:
        schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2000}}, "required": ["a"]}
        fields = {"max_tokens": 500, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        message = ask(server, "Hi", **fields)
        assert message["stop_reason"] == "model_context_window_exceeded"
        usage = message["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 64
        assert folded(stream(server, "Hi", **fields))["stop_reason"] == "model_context_window_exceeded"
        message = refused(server, body("x " * 200))
        assert re.match(r"prompt is too long: \d{3} tokens > 64 maximum: ", message), message


def test_system_prompts_and_the_billing_header(server):
    def tokens(**fields):
        return count(server, **fields)

    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=1a2b3;"}
    brief = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert tokens(system="Be brief.") == tokens(system=[brief]) == tokens(system=[header, brief])
    assert tokens(system="Be brief.") != tokens(system="Be brief. Be brief.")


def test_a_system_message_stays_in_its_place(server, many):
    turns = [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two."},
        {"role": "system", "content": "Speak French."},
        {"role": "ctx", "content": "Three."},
        {"role": "msg", "content": "Four."},
    ]
    sent = lambda model: {"model": model, "messages": turns}
    # The same conversation in OpenAI's format shows where the template puts the message.
    shown = [{**turn, "role": "user"} if turn["role"] == "ctx" else turn for turn in turns[:-1]]
    shown[-1] = {"role": "user", "content": "Three.\nFour."}
    prompt = server.post("/apply-template", {"model": MODEL, "messages": shown}).json()["prompt"]
    assert prompt.index("Two.") < prompt.index("Speak French.") < prompt.index("Three.\nFour.")
    tokens = server.post("/tokenize", {"model": MODEL, "messages": shown}).json()["count"]
    assert server.post("/v1/messages/count_tokens", sent(MODEL)).json()["input_tokens"] == tokens
    # If the template refuses a system message there, it becomes part of the user's turn.
    prompt = many.post("/apply-template", {"model": "strict", "messages": shown}).json()["prompt"]
    assert "user\n<system>\nSpeak French.\n</system>\nThree.\nFour." in prompt
    reply = many.post("/v1/messages", {**sent("strict"), "max_tokens": 4})
    assert reply.status == 200, reply.body


def test_an_answer_is_continued(server):
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "The capital of France"}]
    assert ask(server, messages=turns)["content"] == [{"type": "text", "text": " is Paris."}]


def test_a_format_is_followed(server):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
    wanted = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        (block,) = ask(server, max_tokens=30, **fields)["content"]
        assert json.loads(block["text"])["city"] in ("Paris", "Oslo")
    assert "output_config.format" in refused(server, body(output_config={"format": {**wanted, "schema": {"type": "wrong"}}}))


@pytest.mark.real_models
def test_a_tool_is_called_and_its_result_answered(many):
    fields = {"model": CODER, "tools": [TOOL], "max_tokens": 60}
    question = "What is the weather in Paris? Use the tool."
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "any", "disable_parallel_tool_use": True}):
        message = ask(many, question, tool_choice=choice, **fields)
        assert message["stop_reason"] == "tool_use"
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        assert calls and all((call["name"], list(call["input"])) == ("get_weather", ["city"]) for call in calls)
        assert all(call["id"].startswith("toolu_") for call in calls)
        assert len(calls) == 1 or choice == {"type": "any"}
        assert plain(folded(stream(many, question, tool_choice=choice, **fields))) == plain(message)
    call = calls[0]
    for content in ("Sunny, 24 degrees.", [{"type": "text", "text": "Sunny, 24 degrees."}]):
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": content}
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": message["content"]}]
        turns.append({"role": "user", "content": [result]})
        answer = ask(many, messages=turns, **fields)
        assert answer["stop_reason"] == "end_turn" and "24" in answer["content"][0]["text"]
    failed = {"type": "tool_result", "tool_use_id": call["id"], "is_error": True, "content": "No such city."}
    assert ask(many, messages=[*turns[:2], {"role": "user", "content": [failed]}], **fields)["content"]
    free = ask(many, question, tool_choice={"type": "none"}, **fields)
    assert all(block["type"] == "text" for block in free["content"])


def test_tools_count_as_input(many):
    plain_count = count(many, model=CODER)
    assert count(many, model=CODER, tools=[TOOL]) > plain_count + 20
    example = {**TOOL, "input_examples": [{"city": "Oslo"}]}
    assert count(many, model=CODER, tools=[example]) > count(many, model=CODER, tools=[TOOL])
    assert count(many, model=CODER, tools=[TOOL], tool_choice={"type": "none"}) == plain_count


THINK = {"type": "enabled", "budget_tokens": 1024}


def test_thinking_is_shown_as_it_was_asked_for(many):
    fields = {"model": "thinker", "max_tokens": 1100}
    message = ask(many, thinking=THINK, **fields)
    thought = message["content"][0]
    assert thought["type"] == "thinking" and thought["thinking"] and thought["signature"]
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    assert plain(folded(stream(many, thinking=THINK, **fields))) == plain(message)
    omitted = ask(many, thinking={**THINK, "display": "omitted"}, **fields)
    assert omitted["content"][0]["thinking"] == "" and omitted["content"][0]["signature"] != thought["signature"]
    # Reasoning that was left out is restored by its signature.
    user = lambda content: {"role": "user", "content": content}
    again = lambda answer: [user(QUESTION), {"role": "assistant", "content": answer["content"]}, user("So?")]
    text = {"type": "text", "text": "Paris."}
    tokens = [count(many, model="thinker", messages=again({"content": [one["content"][0], text]})) for one in (message, omitted)]
    assert tokens[0] == tokens[1] > count(many, model="thinker", messages=again({"content": [text]}))


def test_without_thinking_there_is_none(many):
    for fields in ({}, {"thinking": {"type": "disabled"}}, {"thinking": None}):
        message = ask(many, model="thinker", **fields)
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["usage"]["output_tokens_details"]["thinking_tokens"] == 0
    assert ask(many, thinking={"type": "adaptive"}, output_config={"effort": "high"})["content"], "this model does not reason"
    adaptive = ask(many, model="thinker", thinking={"type": "adaptive"})
    assert adaptive["content"][0]["type"] == "thinking"


def test_a_budget_ends_the_reasoning(many):
    """The format makes the model continue after its reasoning. Without a budget, it reasons up to the limit."""
    wanted = {"type": "json_schema", "schema": {**SCHEMA, "properties": {"city": {"enum": ["Paris", "Oslo"]}}}}
    fields = {"model": "thinker", "max_tokens": 1200, "output_config": {"format": wanted}}
    message = ask(many, thinking=THINK, **fields)
    assert [block["type"] for block in message["content"]] == ["thinking", "text"] and message["stop_reason"] == "end_turn"
    assert json.loads(message["content"][1]["text"])["city"] in ("Paris", "Oslo")
    assert 1024 <= message["usage"]["output_tokens_details"]["thinking_tokens"] <= 1024 + 8
    assert ask(many, thinking={"type": "adaptive"}, **fields)["stop_reason"] == "max_tokens"


def test_fields_without_an_effect_here_are_accepted(server):
    message = ask(
        server,
        metadata={"user_id": "user_1"},
        service_tier="standard_only",
        inference_geo="eu",
        speed="standard",
        mcp_servers=[],
        container=None,
        cache_control={"type": "ephemeral"},
        thinking={"type": "disabled"},
        output_config={"effort": "low", "task_budget": {"type": "tokens", "total": 9000}},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "compact_20260112"}]},
        diagnostics={"previous_message_id": None},
        user_profile_id="u",
        workspace_id="w",
        fallbacks="default",
        fallback_credit_token="t",
        billing_policy={},
        stop_sequences=list("QWXYZ@#%^"),
    )
    assert message["content"][0]["text"] == ANSWER
    betas = {**VERSION, "anthropic-beta": "context-1m-2025-08-07,interleaved-thinking-2025-05-14", "x-api-key": "any"}
    assert server.post("/v1/messages?beta=true", body(), headers=betas).status == 200


def test_old_tool_results_are_cleared_on_request(many):
    use = {"type": "tool_use", "name": "get_weather", "input": {"city": "Oslo"}}
    call = lambda i: {"role": "assistant", "content": [{**use, "id": f"t{i}"}]}
    result = lambda i: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": "rain and wind " * 60}]}
    messages = [{"role": "user", "content": "Weather?"}] + [step(i) for i in range(5) for step in (call, result)]
    tokens = lambda *edits: count(many, messages=messages, model=CODER, tools=[TOOL], context_management={"edits": list(edits)})
    clear = lambda **more: {"type": "clear_tool_uses_20250919", **more}
    trigger = lambda value: {"type": "input_tokens", "value": value}
    whole = tokens()
    assert tokens(clear()) == whole, "the default trigger is 100,000 tokens"
    assert tokens(clear(trigger=trigger(whole))) == whole
    two = tokens(clear(trigger=trigger(whole - 1)))
    assert two < whole - 2 * 100
    four = tokens(clear(trigger={"type": "tool_uses", "value": 4}, keep={"type": "tool_uses", "value": 1}))
    assert four < two - 2 * 100
    assert tokens(clear(trigger=trigger(100), clear_at_least=trigger(whole))) == whole
    assert tokens(clear(trigger=trigger(100), exclude_tools=["get_weather"])) == whole
    assert tokens({"type": "compact_20260112", "trigger": trigger(whole)}) == whole
    edits = {"edits": [{"type": "compact_20260112", "trigger": trigger(100)}]}
    message = refused(many, body(messages=messages, model=CODER, tools=[TOOL], context_management=edits))
    assert "`context_management.edits[0].type`" in message and "summaries" in message


def test_users_do_not_share_the_cache(server):
    long = "Users have their own. " * 40
    cached = lambda user: ask(server, long, max_tokens=1, metadata={"user_id": user})["usage"]["cache_read_input_tokens"]
    assert (cached("a"), cached("b")) == (0, 0) and cached("a") > 100
    assert cached("c_session_1") == 0 and cached("c_session_2") > 100, "sessions of one user share the cache"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, ["`max_tokens` is required"]),
        ({"max_tokens": 0}, ["`max_tokens`"]),
        ({"tempreature": 0.5}, ["`tempreature`", "did you mean `temperature`"]),
        ({"stop": ["x"]}, ["`stop`"]),
        ({"temperature": 1.5}, ["`temperature`", "1.5"]),
        ({"messages": []}, ["`messages`"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            ["`messages[0].content[0].source.type`", "takes no pictures"],
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, ["content[0].tool_use_id"]),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ["`tools[0].type`", "web_search_20250305"]),
        ({"tools": [{**TOOL, "strict": True, "input_schema": {"type": "nonsense"}}]}, ["tools[0].input_schema"]),
        ({"tool_choice": {"type": "any"}}, ["`tool_choice`"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, ["`thinking.budget_tokens`", "1024"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, ["`thinking.budget_tokens`", "`max_tokens`"]),
        ({"output_config": {"effort": "huge"}}, ["`output_config.effort`"]),
        ({"metadata": {"userid": "x"}}, ["`metadata.userid`", "`user_id`"]),
        ({"system": {"text": "x"}}, ["`system`"]),
        ({"service_tier": "flex"}, ["`service_tier`"]),
    ],
    ids=lambda value: None if isinstance(value, list) else json.dumps(value)[:50],
)
def test_a_wrong_field_is_named(server, fields, words):
    message = refused(server, body(**fields))
    assert all(word in message for word in words), message
    assert message[0] != message[0].upper() or message[0] == "`", "the message is in lower case"


def test_a_thread_is_refused_so_that_sdks_go_on_without_it(server):
    error = server.post("/v1/messages", body(thread={"type": "create"})).json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]} and "`thread`" in error["message"]


def test_the_model_must_exist(server):
    assert "nope" in refused(server, body(model="nope"), 404, "not_found_error")
    reply = server.post("/v1/messages/count_tokens", {"model": "nope", "messages": [{"role": "user", "content": "x"}]})
    assert (reply.status, error_of(reply)["type"]) == (404, "not_found_error")


def test_errors_of_the_server_itself_have_the_envelope(server):
    reply = server.get("/v1/messages")
    assert (reply.status, error_of(reply)["type"], reply.headers["allow"]) == (405, "invalid_request_error", "POST")
    reply = server.post("/v1/messages/batches", {}, headers=VERSION)
    assert (reply.status, error_of(reply)["type"]) == (404, "not_found_error")
    reply = server.post("/v1/messages", b"{", headers=VERSION)
    assert (reply.status, error_of(reply)["type"]) == (400, "invalid_request_error")
    reply = server.post("/v1/messages", b"{}", headers={"content-type": "text/plain"})
    assert (reply.status, error_of(reply)["type"]) == (415, "invalid_request_error")
    reply = server.post("/v1/messages", b" " * (33 << 20))
    assert (reply.status, error_of(reply)["type"]) == (413, "request_too_large")
    reply = server.post("/v1/messages", body(), headers={"x-request-id": "abc"})
    assert reply.headers["request-id"] == "abc"
    # Errors on other paths keep OpenAI's envelope.
    assert set(server.post("/v1/chat/completions", {}, headers=VERSION).json()["error"]) == {"message", "type", "param", "code"}


def test_the_models_are_listed_in_this_form_too(many):
    listed = many.get("/v1/models", headers=VERSION).json()
    assert set(listed) == {"data", "has_more", "first_id", "last_id"} and not listed["has_more"]
    ids = [model["id"] for model in listed["data"]]
    assert {MODEL, CODER, "thinker", "strict"} <= set(ids) and (listed["first_id"], listed["last_id"]) == (ids[0], ids[-1])
    for model in listed["data"]:
        assert (model["type"], model["display_name"]) == ("model", model["id"]) and model["created_at"].endswith("Z")
    page = many.get("/v1/models?limit=2", headers=VERSION).json()
    assert (page["has_more"], [model["id"] for model in page["data"]]) == (True, ids[:2])
    rest = many.get(f"/v1/models?limit=1000&after_id={page['last_id']}", headers=VERSION).json()
    assert [model["id"] for model in rest["data"]] == ids[2:]
    back = many.get(f"/v1/models?limit=1&before_id={ids[2]}", headers=VERSION).json()
    assert (back["has_more"], [model["id"] for model in back["data"]]) == (True, ids[1:2])
    one = many.get(f"/v1/models/{MODEL.replace(':', '%3A')}", headers=VERSION).json()
    assert one == next(model for model in listed["data"] if model["id"] == MODEL)
    for path in ("/v1/models/nope", "/v1/models?limit=0", "/v1/models?after_id=nope"):
        reply = many.get(path, headers=VERSION)
        assert error_of(reply)["type"] == ("not_found_error" if "/nope" in path else "invalid_request_error")
    assert many.get("/v1/models?lifecycle=active&beta=true", headers=VERSION).json() == listed
    assert many.get("/v1/models?lifecycle[]=retired", headers=VERSION).json()["data"] == []
    assert many.get("/v1/models").json()["object"] == "list", "without the header, the list has OpenAI's format"


# Every answer that follows this schema is long.
LONG = {"type": "object", "properties": {"a": {"type": "string", "minLength": 20000}}, "required": ["a"], "additionalProperties": False}
ENDLESS = {"stream": True, "max_tokens": 6000, "output_config": {"format": {"type": "json_schema", "schema": LONG}}}


@pytest.mark.features("faults")
def test_a_silent_stream_is_pinged():
    config = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__KEEP_ALIVE_SECONDS": "1", "ENGINE__CONTEXT": "8192", "ENGINE__MAX_RUNNING": "1"}
    with Server(config, env={"PENSTOCK_STEP_MILLIS": "5"}) as server:
        # One sequence runs at a time, so the last stream stays silent while it waits.
        long = open_stream(server, "/v1/messages", body(**ENDLESS))
        long.recv(64)
        last = open_stream(server, "/v1/messages", body(stream=True, max_tokens=4))
        got = b""
        while b"event: ping" not in got:
            got += last.recv(65536)
        long.close()
        while b"message_stop" not in got:
            got += last.recv(65536)
        last.close()
    events = re.findall(r"^event: (\w+)$", got.decode(), re.M)
    assert events[:2] == ["message_start", "ping"] and events.count("message_start") == 1 and events[-1] == "message_stop"


def test_a_stream_that_fails_ends_with_an_error():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__DRAIN_SECONDS": "0", "ENGINE__CONTEXT": "8192"}) as server:
        running = open_stream(server, "/v1/messages", body(**ENDLESS))
        got = b""
        while b"content_block_delta" not in got:
            got += running.recv(65536)
        server.process.terminate()
        while piece := running.recv(65536):
            got += piece
        running.close()
        assert server.process.wait(30) == 0
    data = [line[6:] for line in got.decode().split("\n") if line.startswith("data: ")]
    last = json.loads(data[-1])
    assert b"event: error\n" in got and (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
    assert last["request_id"] and b"message_stop" not in got


def test_the_answers_to_keys_and_to_a_full_queue(tmp_path):
    config = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    add = lambda *args: cli("keys", "add", *args, env=config)
    done = [add("one", "--requests-per-minute", "2"), add("two", "--model", "other"), add("three")]
    assert all(one.returncode == 0 for one in done), [one.stderr for one in done]
    slow, other, free = (one.stdout.strip() for one in done)
    few = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__MAX_RUNNING": "1", "LIMITS__MAX_QUEUE": "1", "ENGINE__CONTEXT": "8192"}
    with Server({**config, **few}) as server:
        assert "x-api-key" in refused(server, body(), 401, "authentication_error")
        assert refused(server, body(), 401, "authentication_error", **{"x-api-key": "wrong"})
        assert refused(server, body(), 403, "permission_error", **{"x-api-key": other})
        assert server.post("/v1/messages", body(), headers={"x-api-key": slow}).status == 200
        assert server.post("/v1/messages", body(), headers={"authorization": f"Bearer {slow}"}).status == 200
        reply = server.post("/v1/messages", body(), headers={"x-api-key": slow})
        assert (reply.status, error_of(reply)["type"]) == (429, "rate_limit_error") and int(reply.headers["retry-after"]) >= 1
        assert error_of(server.get("/v1/models", headers=VERSION))["type"] == "authentication_error"
        key = {"x-api-key": free}
        metrics = lambda: parse_metrics(server.get("/metrics", headers=key).body.decode())
        gauge = lambda name: metrics()[(f"penstock_{name}", (("model_name", MODEL),))]
        streams = []
        for name in ("num_requests_running", "num_requests_waiting"):
            streams.append(open_stream(server, "/v1/messages", body(**ENDLESS), key))
            wait_until(lambda: gauge(name) == 1, 30, name)
        reply = server.post("/v1/messages", body(), headers=key)
        assert (reply.status, error_of(reply)["type"]) == (529, "overloaded_error") and reply.headers["retry-after"]
        for one in streams:
            one.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from("type text role content name id input source tool_use_id input_schema cache_control x".split()),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)
KINDS = ["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking", "document", "search_result", "tool_reference", "x"]
BLOCK = st.fixed_dictionaries({"type": st.sampled_from(KINDS)}).flatmap(
    lambda head: st.dictionaries(
        st.sampled_from("text id name input tool_use_id content thinking signature data source cache_control z".split()),
        VALUES,
        max_size=4,
    ).map(lambda rest: {**rest, **head})
)
FIELDS = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "metadata",
    "thinking",
    "output_config",
    "tools",
    "tool_choice",
    "service_tier",
    "cache_control",
    "context_management",
    "mcp_servers",
    "whatever",
]


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_malformed_bodies_get_the_envelope(server, data):
    """Sends a valid body with random values in some fields. The response is 200, 400 or 404, and errors are in the envelope."""
    role = st.sampled_from(["user", "assistant", "system", "ctx", "tool"])
    message = st.fixed_dictionaries({"role": role, "content": st.text(max_size=5) | st.lists(BLOCK | VALUES, max_size=3)})
    sent = body("Hi", max_tokens=1)
    for field in data.draw(st.lists(st.sampled_from(FIELDS), max_size=3)):
        sent[field] = data.draw(st.lists(message | VALUES, max_size=3) if field == "messages" else VALUES)
    path = data.draw(st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]))
    reply = server.post(path, sent)
    if reply.status != 200:
        assert (reply.status, error_of(reply)["type"]) in [(400, "invalid_request_error"), (404, "not_found_error")], reply.body
