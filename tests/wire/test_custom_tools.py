"""Custom tools: the input of a call is text that follows its grammar, in chats and in responses, whole and streamed."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from harness import CODER, ROOT, Server, chunks_of
from test_cli import show
from test_responses import events_of

DATE = {"syntax": "regex", "definition": r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]|\"never\"\\"}
SUM = {
    "syntax": "lark",
    "definition": 'start: "say \\"" term (WS "+" WS term)* "\\"" NL\nterm: INT | "(" term ")"\nWS: " "\nNL: /\\n/\n%import common.INT',
}
SUM_TEXT = r'say "\(*[0-9]+\)*( \+ \(*[0-9]+\)*)*"\n'
QUESTION = "Use the tool for the first day of the year 2024."


def custom(name: str, grammar: dict | None = None, flat: bool = False) -> dict:
    form = {"type": "text"}
    if grammar:
        form = {"type": "grammar", **grammar} if flat else {"type": "grammar", "grammar": grammar}
    tool = {"name": name, "description": "Takes a text.", "format": form}
    return {"type": "custom", **tool} if flat else {"type": "custom", "custom": tool}


def function(name: str, flat: bool = False) -> dict:
    schema = {"name": name, "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}}
    return {"type": "function", **schema} if flat else {"type": "function", "function": schema}


@pytest.fixture(scope="module")
def coder():
    # A model family whose calls have their arguments one by one, without JSON.
    templates = sorted(path for path in (ROOT / "tests" / "golden" / "templates").glob("*.jinja") if "<function=" in path.read_text())
    assert templates, "there is a template with tags"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "models.toml")
        source = f"source = {{ type = 'file', path = '{show(CODER)['path']}' }}"
        config.write_text(f"[[models]]\nid = 'tagged'\nchat_template = '{templates[0]}'\n{source}\n")
        with Server({"SERVER__DEFAULT_MODELS": f"{CODER},tagged", "ENGINE__KV_TOKENS": "8192"}, args=("--config", str(config))) as running:
            yield running


def ask(server, **fields):
    reply = server.chat(**{"content": QUESTION, "model": CODER, "max_tokens": 200, **fields})
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]


def respond(server, **fields):
    reply = server.post("/v1/responses", {"model": CODER, "input": QUESTION, "temperature": 0, "max_output_tokens": 200, **fields})
    assert reply.status == 200, reply.body
    return reply


def the_call(choice: dict) -> dict:
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None, choice
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "custom" and call["id"].startswith("call_") and set(call) == {"id", "type", "custom"}, call
    assert set(call["custom"]) == {"name", "input"}, call
    return call["custom"]


@pytest.mark.parametrize("model", [CODER, "tagged"])
@pytest.mark.parametrize("seed", range(3))
def test_a_text_matches_its_regular_expression(coder, model, seed):
    fields = dict(tools=[custom("day", DATE), custom("other")], temperature=1.5, seed=seed, model=model, thinking_token_budget=0)
    named = {"type": "custom", "custom": {"name": "day"}}
    call = the_call(ask(coder, tool_choice=named, **fields))
    assert call["name"] == "day" and re.fullmatch(DATE["definition"], call["input"]), call
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    choice = ask(coder, tool_choice=allowed, parallel_tool_calls=False, **fields)
    call = the_call(choice)
    assert call["name"] == "day" and re.fullmatch(DATE["definition"], call["input"]), call


@pytest.mark.parametrize("seed", range(3))
def test_a_text_follows_its_lark_grammar(coder, seed):
    fields = dict(tools=[custom("sum", SUM)], tool_choice="required", parallel_tool_calls=False, temperature=1.2, seed=seed, max_tokens=300)
    choice = ask(coder, content="Add 1 and 2.", **fields)
    if choice["finish_reason"] == "length":
        return
    assert re.fullmatch(SUM_TEXT, the_call(choice)["input"]), choice


def test_without_a_grammar_any_text_comes(coder):
    call = the_call(ask(coder, tools=[custom("note"), function("light")], tool_choice={"type": "custom", "custom": {"name": "note"}}))
    assert call["name"] == "note" and call["input"]


def test_a_streamed_call_is_the_same(coder):
    fields = dict(content=QUESTION, model=CODER, max_tokens=200, tools=[custom("day", DATE)])
    fields |= dict(tool_choice="required", parallel_tool_calls=False)
    whole = the_call(ask(coder, **fields))
    deltas = [d for c in chunks_of(coder.chat(stream=True, **fields)) for d in c["choices"][0]["delta"].get("tool_calls", [])]
    first, *rest = deltas
    assert first["index"] == 0 and first["id"].startswith("call_") and first["type"] == "custom"
    assert first["custom"] == {"name": "day", "input": ""} and "function" not in first
    assert all(set(delta) == {"index", "custom"} and set(delta["custom"]) == {"input"} and delta["custom"]["input"] for delta in rest)
    assert "".join(delta["custom"]["input"] for delta in deltas) == whole["input"] and len(rest) > 1


def test_a_conversation_with_a_call_continues(coder):
    calls = [{"id": "c1", "type": "custom", "custom": {"name": "day", "input": 'a "day"'}}]
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "Monday"},
    ]
    prompt = coder.post("/apply-template", {"model": CODER, "messages": messages, "tools": [custom("day")]}).json()["prompt"]
    assert json.dumps({"input": 'a "day"'}) in prompt and "Monday" in prompt and '"name": "day"' in prompt
    again = ask(coder, messages=messages, tools=[custom("day")], tool_choice="none")["message"]
    assert again["content"] and "tool_calls" not in again, again
    again = ask(coder, messages=messages, tools=[custom("day", DATE)], tool_choice={"type": "custom", "custom": {"name": "day"}})["message"]
    assert re.fullmatch(DATE["definition"], again["tool_calls"][0]["custom"]["input"]), again
    # Responses render the same prompt.
    items = [
        {"role": "user", "content": QUESTION},
        {"type": "custom_tool_call", "call_id": "c1", "name": "day", "input": 'a "day"'},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Monday"},
    ]
    usage = respond(coder, input=items, tools=[custom("day", flat=True)]).json()["usage"]
    fields = dict(messages=messages, tools=[custom("day")], model=CODER, max_tokens=1)
    assert usage["input_tokens"] == coder.chat(**fields).json()["usage"]["prompt_tokens"]


def test_a_response_has_an_item_and_its_events(coder):
    tools = [custom("day", DATE, flat=True), function("light", flat=True)]
    fields = dict(tools=tools, tool_choice={"type": "custom", "name": "day"})
    response = respond(coder, **fields).json()
    (item,) = response["output"]
    assert item["type"] == "custom_tool_call" and item["id"].startswith("ctc_") and item["call_id"].startswith("call_")
    assert item["status"] == "completed" and item["name"] == "day" and re.fullmatch(DATE["definition"], item["input"])
    assert set(item) == {"type", "id", "status", "call_id", "name", "input"}
    assert response["tools"][0] == tools[0] and response["tool_choice"] == fields["tool_choice"]
    events = events_of(respond(coder, stream=True, **fields))
    kinds = [event["type"].removeprefix("response.") for event in events if not event["type"].endswith(".delta")]
    due = ["created", "in_progress", "output_item.added", "custom_tool_call_input.done", "output_item.done", "completed"]
    assert kinds == due
    deltas = [event for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(event["delta"] for event in deltas) == item["input"] and len(deltas) > 1
    done = next(event for event in events if event["type"] == "response.custom_tool_call_input.done")
    assert done["input"] == item["input"] and done["item_id"] == deltas[0]["item_id"] and done["output_index"] == 0
    # The call and its result continue the stored response, and are stored as items.
    result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "Monday"}
    later = respond(coder, input=[result], previous_response_id=response["id"], tools=tools, max_output_tokens=1).json()
    assert later["status"] == "incomplete" and later["usage"]["input_tokens"] > response["usage"]["input_tokens"]
    (kept,) = coder.get(f"/v1/responses/{later['id']}/input_items").json()["data"]
    assert kept["type"] == "custom_tool_call_output" and kept["id"].startswith("ctco_")


def test_only_allowed_tools_are_called_in_responses(coder):
    tools = [custom("day", DATE, flat=True), function("light", flat=True), function("lamp", flat=True)]
    for name, kind in (("lamp", "function"), ("day", "custom")):
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind, "name": name}]}
        response = respond(coder, tools=tools, tool_choice=choice, parallel_tool_calls=False).json()
        assert [item["name"] for item in response["output"]] == [name] and response["tool_choice"] == choice
    other = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nobody"}]}
    reply = coder.post("/v1/responses", {"model": CODER, "input": "x", "tools": tools, "tool_choice": other})
    assert reply.status == 400 and reply.error["param"] == "tool_choice.tools[0].name", reply.body


@pytest.mark.parametrize(
    "grammar, model, words",
    [
        ({"syntax": "regex", "definition": "a("}, CODER, "tools[1].custom.format.grammar.definition"),
        ({"syntax": "lark", "definition": "start: missing"}, CODER, "tools[1].custom.format.grammar.definition"),
        ({"syntax": "lark", "definition": 'start: ~A\nA: "x"'}, CODER, "`~`"),
        ({"syntax": "lark", "definition": 'start: "x"'}, "tagged", "give a regular expression"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused(coder, grammar, model, words):
    reply = coder.chat("x", model=model, tools=[function("light"), custom("text", grammar)], tool_choice="required")
    assert reply.status == 400 and reply.error["param"] == "tools" and words in reply.error["message"], reply.body


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [custom("a") | {"custom": {"name": "a", "formats": "text"}}]}, "tools[0].custom.formats"),
        ({"tools": [custom("a", {"syntax": "gbnf", "definition": "x"})]}, "tools[0].custom.format.grammar.syntax"),
        ({"tools": [custom("a")], "tool_choice": {"type": "custom", "custom": {"name": "b"}}}, "tool_choice"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "a"}}]}]},
         "messages[0].tool_calls[0].custom.input"),
    ],
)  # fmt: skip
def test_the_error_names_the_field(coder, fields, param):
    reply = coder.chat(**{"content": "x", "model": CODER, **fields})
    assert reply.status == 400 and reply.error["param"] == param, reply.body
