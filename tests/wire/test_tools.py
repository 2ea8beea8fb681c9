"""Tools: calls are always valid and are streamed as clients expect them, for each family of templates."""

import json
import tempfile
from pathlib import Path

import jsonschema
import pydantic_core
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
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER, "strict": True},
    },
    {"type": "function", "function": {"name": "now", "description": "The time of day"}},
]
SCHEMAS = {"get_weather": WEATHER, "now": {"type": "object"}}
TEMPLATES = ROOT / "tests" / "golden" / "templates"


def message_of(reply) -> dict:
    assert reply.status == 200, reply.body
    (choice,) = reply.json()["choices"]
    return choice["message"] | {"finish_reason": choice["finish_reason"]}


def check_calls(calls: list[dict], names=tuple(SCHEMAS)) -> None:
    """Checks that there are calls, and that each is valid."""
    assert calls
    for call in calls:
        assert call["type"] == "function" and call["id"].startswith("call_"), call
        assert call["function"]["name"] in names, call
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    assert len({call["id"] for call in calls}) == len(calls)


def check_beginning(call: dict, names) -> None:
    """Checks that the call is the start of a valid one: the arguments so far follow the schema, except for required keys."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    assert name in names, call
    if arguments:
        schema = {key: value for key, value in SCHEMAS[name].items() if key != "required"}
        jsonschema.validate(pydantic_core.from_json(arguments, allow_partial=True), schema)


def check_answer(message: dict, names=tuple(SCHEMAS)) -> bool:
    """Checks that the answer consists of valid calls. If it was cut at the token limit, its last call may be incomplete, or its reasoning
    may not have ended. Returns whether the answer is complete."""
    calls = message.get("tool_calls", [])
    if message["finish_reason"] == "length" and not calls:
        assert message["reasoning_content"] and not message["content"], message
        return False
    assert message["content"] is None, message
    if message["finish_reason"] == "length":
        *whole, last = calls
        if whole:
            check_calls(whole, names)
        check_beginning(last, names)
        return False
    assert message["finish_reason"] == "tool_calls", message
    check_calls(calls, names)
    return True


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def test_required_always_makes_a_call(server):
    complete = 0
    for seed in range(5):
        fields = dict(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=300, temperature=1.2, seed=seed)
        message = message_of(server.chat("How are you?", **fields))
        complete += check_answer(message)
        assert len(message["tool_calls"]) == 1, message
    assert complete > 0, "at least one call is complete"


def test_a_named_function_is_called(server):
    message = message_of(
        server.chat("Weather in Paris?", tools=TOOLS, tool_choice=named("get_weather"), parallel_tool_calls=False, max_tokens=100)
    )
    assert check_answer(message, ["get_weather"])


def test_each_of_several_calls_is_valid_and_a_named_function_is_called_once(server):
    most = 0
    for seed in range(4):
        fields = dict(tools=TOOLS, max_tokens=400, temperature=0.7, seed=seed)
        message = message_of(server.chat("Weather in Paris and in Oslo?", tool_choice="required", **fields))
        check_answer(message)
        most = max(most, len(message["tool_calls"]))
        message = message_of(server.chat("Weather in Paris and in Oslo?", tool_choice=named("get_weather"), **fields))
        check_answer(message, ["get_weather"])
        assert len(message["tool_calls"]) == 1, message
    assert most > 1, "a small model repeats calls if it may"


def test_none_makes_no_call(server):
    plain = message_of(server.chat("What is the capital of France?", max_tokens=12))
    message = message_of(server.chat("What is the capital of France?", tools=TOOLS, tool_choice="none", max_tokens=12))
    assert message["content"] == plain["content"] and "tool_calls" not in message


def deltas_of(reply) -> tuple[str, list[dict], str]:
    """Builds the content, the calls and the finish reason from a stream, as OpenAI's clients do."""
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
    check_calls(calls)


@pytest.mark.parametrize("stop", ["}", "\n", '"name"', "o"])
def test_a_stop_text_does_not_cut_a_call(server, stop):
    fields = dict(tools=TOOLS, tool_choice=named("get_weather"), parallel_tool_calls=False, max_tokens=200)
    message = message_of(server.chat("Weather in Oslo?", stop=[stop], **fields))
    assert check_answer(message, ["get_weather"])
    plain = message_of(server.chat("Weather in Oslo?", **fields))
    assert [call["function"] for call in message["tool_calls"]] == [call["function"] for call in plain["tool_calls"]]


@pytest.mark.real_models
def test_log_probabilities_add_up_to_the_text(server):
    """Also holds for an answer with tools, in which white space is held back until it is clear whether a call follows."""
    fields = dict(tools=TOOLS, logprobs=True, max_tokens=100)
    for question in ("Write two short paragraphs about rivers.", "Describe a person as JSON with name and age."):
        choice = server.chat(question, **fields).json()["choices"][0]
        text = choice["message"]["content"]
        assert "\n" in text and b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"]).decode() == text
        chunks = [chunk["choices"][0] for chunk in chunks_of(server.chat(question, stream=True, **fields))]
        assert [token for chunk in chunks for token in (chunk.get("logprobs") or {}).get("content", [])] == choice["logprobs"]["content"]


def test_the_result_of_a_call_is_answered(server):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "unit": "C"}'}}
    messages = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]
    message = message_of(server.chat(messages=messages, max_tokens=30))
    assert message["content"]


def declared(parameters: dict, **more) -> dict:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def strict(parameters: dict) -> dict:
    return declared(parameters, strict=True)


UNFOLLOWABLE = [
    {"properties": {"a": {"type": "array", "uniqueItems": True}}},
    {"properties": {"a": {"type": "string", "not": {"const": "x"}}}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"properties": {"a": {"pattern": "["}}, "dependencies": {"a": ["b"]}},
    {"type": "object", "properties": {"a": {"type": "array", "contains": {"const": 1}}}, "anyOf": [{"required": ["a"]}, {}]},
    {"type": "strin"},
]


@pytest.mark.parametrize("schema", UNFOLLOWABLE)
def test_a_tool_that_is_not_strict_is_offered_with_any_schema(server, schema):
    """Agents declare dozens of tools. One unusual schema must not fail the whole request."""
    for choice in ("auto", "required"):
        reply = server.chat("x", tools=[declared(schema)], tool_choice=choice, max_tokens=60)
        assert reply.status == 200, reply.body
    message = message_of(reply)
    assert message["tool_calls"]
    if message["finish_reason"] == "tool_calls":
        assert isinstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": [strict({"type": "strin"})]}, "tools"),
        ({"tools": [strict({"properties": {"a": {"pattern": "["}}})]}, "tools"),
        ({"tools": [strict({"properties": {"a": {"type": "array", "uniqueItems": True}}})]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": named("other")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tools": TOOLS, "ignore_eos": True}, "ignore_eos"),
        ({"tools": TOOLS, "min_tokens": 5}, "min_tokens"),
    ],
)
def test_an_error_names_the_field(server, fields, param):
    reply = server.chat("x", **fields)
    assert reply.status == 400 and reply.error["param"] == param, reply.body


FAMILIES = [
    "Qwen-Qwen2.5-7B-Instruct",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "microsoft-Phi-3.5-mini-instruct",
    "openai-gpt-oss-120b",
    "Qwen-Qwen3-0.6B",
    "moonshotai-Kimi-K2",
    "google-gemma-2-2b-it",
    "GLM-4.7-Flash",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "deepseek-ai-DeepSeek-V3.2",
]


@pytest.fixture(scope="module")
def families():
    """Serves the small model with the templates of other models. It writes nonsense, but valid calls."""
    path = show(MODEL)["path"]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "models.toml")
        for name in FAMILIES:
            with config.open("a") as out:
                out.write(f"[[models]]\nid = '{name}'\nchat_template = '{TEMPLATES}/{name}.jinja'\n")
                out.write(f"source = {{ type = 'file', path = '{path}' }}\n")
        with Server(
            {"SERVER__DEFAULT_MODELS": ",".join(FAMILIES), "ENGINE__KV_TOKENS": "4096", "ENGINE__CONTEXT": "4096"},
            args=("--config", str(config)),
        ) as running:
            yield running


@pytest.mark.parametrize("model", FAMILIES)
def test_each_family_of_templates_makes_a_valid_call(families, model):
    fields = dict(
        model=model,
        tools=TOOLS,
        tool_choice=named("get_weather"),
        parallel_tool_calls=False,
        max_tokens=400,
        chat_template_kwargs={"enable_thinking": False},
    )
    message = message_of(families.chat("Weather in Oslo?", **fields))
    check_answer(message, ["get_weather"])
    content, calls, reason = deltas_of(families.chat("Weather in Oslo?", stream=True, **fields))
    assert content == "" and reason == message["finish_reason"]
    assert [call["function"] for call in calls] == [call["function"] for call in message.get("tool_calls", [])]
    assert families.chat("Hi", model=model, tools=TOOLS, max_tokens=8).status == 200


@pytest.mark.parametrize("model", ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"])
def test_a_template_that_requires_short_ids_works_with_any_id(families, model):
    """Mistral's templates refuse call ids other than nine letters and digits."""
    ids = ["call_0123456789abcdef", "toolu-1"]
    calls = [dict(id=id, type="function", function=dict(name="now", arguments="{}")) for id in ids]
    results = [dict(role="tool", tool_call_id=id, content="12:00") for id in ids]
    messages = [dict(role="user", content="The time?"), dict(role="assistant", content="", tool_calls=calls), *results]
    reply = families.post("/v1/chat/completions", dict(model=model, messages=messages, tools=TOOLS, max_tokens=4))
    assert reply.status == 200, reply.body


@pytest.mark.real_models
def test_several_calls_without_tags_are_recognised(families):
    """Llama writes calls without tags. The answer has all calls, and a stream has their arguments in pieces."""
    model = "meta-llama-Llama-3.1-8B-Instruct"
    fields = dict(model=model, tools=TOOLS, tool_choice="required", max_tokens=300, temperature=0.7)
    most = 0
    for seed in range(4):
        message = message_of(families.chat("Weather in Paris and in Oslo?", seed=seed, **fields))
        check_answer(message)
        most = max(most, len(message["tool_calls"]))
    assert most > 1
    chunks = chunks_of(families.chat("Weather in Oslo?", stream=True, seed=1, **{**fields, "tool_choice": named("get_weather")}))
    assert sum("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks) > 3
