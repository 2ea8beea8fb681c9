"""Conversations whose turns do not alternate, in each API dialect, with templates that require alternation."""

import json
import tempfile
from pathlib import Path

import pytest
from harness import Server
from test_cli import show

CODER = "qwen2.5-coder:0.5b"
TEMPLATES = Path(__file__).parents[1] / "golden" / "templates"
STRICT = ["Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Mistral-Nemo-Instruct-2407", "google-gemma-2-2b-it"]
DIALECTS = ["chat", "responses", "messages", "ollama"]
SCHEMA = {"type": "object", "properties": {"query": {"type": "string", "description": "What"}}, "required": ["query"]}
FUNCTION = {"name": "look_up", "description": "Looks up.", "parameters": SCHEMA}

CALL = ("call", "call_1", "the-argument")
CONVERSATIONS = {
    "two users": [("user", "word-1"), ("user", "word-2")],
    "the first request of Codex": [("system", "word-1"), ("system", "word-2"), ("user", "word-3"), ("user", "word-4")],
    "a late system message": [("user", "word-1"), ("assistant", "word-2"), ("system", "word-3"), ("user", "word-4")],
    "a user behind a result": [("system", "word-1"), ("user", "word-2"), CALL, ("result", "call_1", "word-3"), ("user", "word-4")],
    "a call that was denied": [("user", "word-1"), CALL, ("user", "word-2")],
    "a text before a call": [("user", "word-1"), ("assistant", "word-2"), CALL, ("result", "call_1", "word-3")],
    "the assistant begins": [("assistant", "word-1"), ("user", "word-2")],
}


@pytest.fixture(scope="module")
def strict():
    path = show(CODER)["path"]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "models.toml")
        with config.open("w") as out:
            for name in STRICT:
                out.write(f"[[models]]\nid = '{name}'\nchat_template = '{TEMPLATES}/{name}.jinja'\n")
                out.write(f"source = {{ type = 'file', path = '{path}' }}\n")
        settings = {"SERVER__DEFAULT_MODELS": ",".join(STRICT), "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "4096"}
        with Server(settings, args=("--config", str(config))) as running:
            yield running


def compact(arguments: dict) -> str:
    """Serialises arguments as the dialects do that take them as objects."""
    return json.dumps(arguments, separators=(",", ":"))


def openai(turns) -> dict:
    messages = []
    for kind, *rest in turns:
        if kind == "call":
            function = {"name": "look_up", "arguments": compact({"query": rest[1]})}
            call = {"id": rest[0], "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "result":
            messages.append({"role": "tool", "tool_call_id": rest[0], "content": rest[1]})
        else:
            messages.append({"role": kind, "content": rest[0]})
    return {"messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}


def responses(turns) -> dict:
    items = []
    for kind, *rest in turns:
        if kind == "call":
            arguments = compact({"query": rest[1]})
            items.append({"type": "function_call", "call_id": rest[0], "name": "look_up", "arguments": arguments})
        elif kind == "result":
            items.append({"type": "function_call_output", "call_id": rest[0], "output": rest[1]})
        else:
            role = kind.replace("system", "developer")
            items.append({"type": "message", "role": role, "content": [{"type": "input_text", "text": rest[0]}]})
    return {"input": items, "tools": [{"type": "function", **FUNCTION}], "store": False}


def messages(turns) -> dict:
    """A tool's result and the user's text after it form one message."""
    out = []
    for kind, *rest in turns:
        role, block = kind, {"type": "text", "text": rest[-1]}
        if kind == "call":
            role, block = "assistant", {"type": "tool_use", "id": rest[0], "name": "look_up", "input": {"query": rest[1]}}
        elif kind == "result":
            role, block = "user", {"type": "tool_result", "tool_use_id": rest[0], "content": [{"type": "text", "text": rest[1]}]}
        if out and role == out[-1]["role"] == "user" and out[-1]["content"][0]["type"] == "tool_result":
            out[-1]["content"].append(block)
        else:
            out.append({"role": role, "content": [block]})
    return {"messages": out, "tools": [{"name": "look_up", "description": "Looks up.", "input_schema": SCHEMA}]}


def ollama(turns) -> dict:
    body = openai(turns)
    for message in body["messages"]:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        message["content"] = message["content"] or ""
    return body


def answer(server, model: str, dialect: str, turns, with_tools: bool = False) -> int:
    """Generates some tokens. Returns the number of prompt tokens."""
    path, body = {
        "chat": ("/v1/chat/completions", {"max_tokens": 2, **openai(turns)}),
        "responses": ("/v1/responses", {"max_output_tokens": 2, **responses(turns)}),
        "messages": ("/v1/messages", {"max_tokens": 2, **messages(turns)}),
        "ollama": ("/api/chat", {"stream": False, "options": {"num_predict": 2}, **ollama(turns)}),
    }[dialect]
    if not with_tools:
        body.pop("tools")
    reply = server.post(path, {"model": model, **body})
    assert reply.status == 200, reply.body
    told = reply.json()
    usage = told.get("usage", told)
    return sum(usage.get(name, 0) for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "prompt_eval_count"))


@pytest.mark.parametrize("model", STRICT)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_dialect_renders_turns_that_do_not_alternate(strict, model, name):
    turns = CONVERSATIONS[name]
    reply = strict.post("/apply-template", {"model": model, **openai(turns)})
    assert reply.status == 200, reply.body
    prompt = reply.json()["prompt"]
    texts = [turn[-1] for turn in turns]
    assert [prompt.count(text) for text in texts] == [1] * len(texts), prompt
    assert all(answer(strict, model, dialect, turns, with_tools=True) for dialect in DIALECTS)
    counts = {dialect: answer(strict, model, dialect, turns) for dialect in DIALECTS}
    assert len(set(counts.values())) == 1, counts


def test_text_before_a_call_stays_before_it(strict):
    prompt = strict.post("/apply-template", {"model": STRICT[0], **openai(CONVERSATIONS["a text before a call"])}).json()["prompt"]
    assert "word-2[TOOL_CALLS]look_up[CALL_ID]" in prompt


def test_instructions_and_developer_messages_are_one_system_message(strict):
    """The first request of Codex: instructions, a developer message and two user messages."""
    turns = CONVERSATIONS["the first request of Codex"]
    asked = {"model": STRICT[0], "instructions": turns[0][1], **responses(turns[1:]), "tools": []}
    counted = strict.post("/v1/responses/input_tokens", asked).json()["input_tokens"]
    assert counted == answer(strict, STRICT[0], "chat", turns)
    prompt = strict.post("/apply-template", {"model": STRICT[0], **openai(turns)}).json()["prompt"]
    assert "[SYSTEM_PROMPT]word-1\nword-2[/SYSTEM_PROMPT]" in prompt and "[INST]word-3\nword-4[/INST]" in prompt


def test_an_image_in_a_tool_result_becomes_text(strict):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    body = openai([("user", "word-1"), CALL, ("result", "call_1", [{"type": "text", "text": "word-2"}, picture])])
    prompt = strict.post("/apply-template", {"model": STRICT[0], **body}).json()["prompt"]
    assert "word-2\n[an image was left out: this model takes none]" in prompt
    refused = strict.post("/apply-template", {"model": STRICT[0], "messages": [{"role": "user", "content": [picture]}]})
    assert (refused.status, refused.error["param"]) == (400, "messages[0].content[0].image_url.url")
