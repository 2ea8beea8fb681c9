"""Tools: calls that are always valid, streamed as clients expect; families by their templates."""

import json
import tempfile
from pathlib import Path

import jsonschema
import pytest
from harness import MODEL, ROOT, Server, chunks_of
from test_cli import show

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "now", "description": "The time of day"}},
]
SCHEMAS = {"get_weather": WEATHER, "now": {"type": "object"}}
TEMPLATES = ROOT.parent / "shared" / "data" / "templates"


def message_of(reply) -> dict:
    assert reply.status == 200, reply.body
    (choice,) = reply.json()["choices"]
    return choice["message"] | {"finish_reason": choice["finish_reason"]}


def check_calls(message: dict, names=tuple(SCHEMAS)) -> None:
    assert message["tool_calls"], message
    for call in message["tool_calls"]:
        assert call["type"] == "function" and call["id"].startswith("call_"), call
        assert call["function"]["name"] in names, call
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    assert len({call["id"] for call in message["tool_calls"]}) == len(message["tool_calls"])


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def test_required_always_calls(server):
    for seed in range(5):
        fields = dict(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=300, temperature=1.2, seed=seed)
        message = message_of(server.chat("How are you?", **fields))
        if message["finish_reason"] == "length":
            continue
        check_calls(message)
        assert message["finish_reason"] == "tool_calls" and message["content"] is None and len(message["tool_calls"]) == 1


def test_a_named_function_is_called(server):
    message = message_of(server.chat("Weather in Paris?", tools=TOOLS, tool_choice=named("get_weather"), parallel_tool_calls=False, max_tokens=100))
    check_calls(message, ["get_weather"])
    assert message["finish_reason"] == "tool_calls"


def test_several_calls(server):
    """Where several may come, each is valid; a function that is named is called once all the same."""
    most = 0
    for seed in range(4):
        fields = dict(tools=TOOLS, max_tokens=400, temperature=0.7, seed=seed)
        message = message_of(server.chat("Weather in Paris and in Oslo?", tool_choice="required", **fields))
        if message["finish_reason"] != "length":
            check_calls(message)
            most = max(most, len(message["tool_calls"]))
        message = message_of(server.chat("Weather in Paris and in Oslo?", tool_choice=named("get_weather"), **fields))
        if message["finish_reason"] != "length":
            check_calls(message, ["get_weather"])
            assert len(message["tool_calls"]) == 1
    assert most > 1, "so small a model repeats itself where it may"


def test_none_calls_nothing(server):
    plain = message_of(server.chat("What is the capital of France?", max_tokens=12))
    message = message_of(server.chat("What is the capital of France?", tools=TOOLS, tool_choice="none", max_tokens=12))
    assert message["content"] == plain["content"] and "tool_calls" not in message


def deltas_of(reply) -> tuple[str, list[dict], str]:
    """Content, calls and finish reason of a stream, by the rules of OpenAI's clients."""
    content, calls, reason = "", [], None
    for chunk in chunks_of(reply):
        (choice,) = chunk["choices"]
        content += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", []):
            if delta["index"] == len(calls):
                assert set(delta) == {"index", "id", "type", "function"} and delta["function"]["name"], delta
                calls.append({"id": delta["id"], "type": delta["type"], "function": {"name": delta["function"]["name"], "arguments": ""}})
            else:
                assert set(delta) == {"index", "function"} and set(delta["function"]) == {"arguments"}, delta
                assert delta["index"] == len(calls) - 1
            calls[-1]["function"]["arguments"] += delta["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return content, calls, reason


@pytest.mark.parametrize("choice", ["required", named("get_weather")])
def test_a_stream_has_the_same_calls(server, choice):
    fields = dict(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_tokens=200)
    whole = message_of(server.chat("Weather in Oslo?", **fields))
    content, calls, reason = deltas_of(server.chat("Weather in Oslo?", stream=True, **fields))
    assert content == "" and reason == whole["finish_reason"] == "tool_calls"
    assert [call["function"] for call in calls] == [call["function"] for call in whole["tool_calls"]]
    check_calls({"tool_calls": calls})


def test_a_result_is_answered(server):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "unit": "C"}'}}
    messages = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]
    message = message_of(server.chat(messages=messages, max_tokens=30))
    assert message["content"]


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"pattern": "["}}}}}]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": named("other")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tools": TOOLS, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_is_wrong_is_named(server, fields, param):
    reply = server.chat("x", **fields)
    assert reply.status == 400 and reply.error["param"] == param, reply.body


FAMILIES = [
    "Qwen-Qwen2.5-7B-Instruct", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "meta-llama-Llama-3.1-8B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407",
    "Mistral-Small-3.2-24B-Instruct-2506", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "microsoft-Phi-3.5-mini-instruct", "openai-gpt-oss-120b",
    "Qwen-Qwen3-0.6B", "moonshotai-Kimi-K2", "google-gemma-2-2b-it", "GLM-4.7-Flash",
]


@pytest.fixture(scope="module")
def families():
    """The small model under the templates of others: what it says is no sense, but calls it must."""
    if not TEMPLATES.is_dir():
        pytest.skip("there are no templates of other models")
    path = show(MODEL)["path"]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "models.toml")
        for name in FAMILIES:
            with config.open("a") as out:
                out.write(f"[[models]]\nid = '{name}'\nchat_template = '{TEMPLATES}/{name}.jinja'\nsource = {{ type = 'file', path = '{path}' }}\n")
        with Server({"SERVER__DEFAULT_MODELS": ",".join(FAMILIES), "ENGINE__KV_TOKENS": "4096", "ENGINE__CONTEXT": "4096"}, args=("--config", str(config))) as running:
            yield running


@pytest.mark.parametrize("model", FAMILIES)
def test_each_family_calls(families, model):
    fields = dict(model=model, tools=TOOLS, tool_choice=named("get_weather"), parallel_tool_calls=False, max_tokens=400, chat_template_kwargs={"enable_thinking": False})
    message = message_of(families.chat("Weather in Oslo?", **fields))
    if message["finish_reason"] != "length":
        check_calls(message, ["get_weather"])
        assert message["content"] is None
    content, calls, reason = deltas_of(families.chat("Weather in Oslo?", stream=True, **fields))
    assert reason == message["finish_reason"] and [call["function"] for call in calls] == [call["function"] for call in message.get("tool_calls", [])]
    assert families.chat("Hi", model=model, tools=TOOLS, max_tokens=8).status == 200
