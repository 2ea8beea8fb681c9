"""Integers that a double would round: exact in schemas, calls and histories in every API dialect, or refused by name."""

import json
from pathlib import Path

import pytest
from harness import CODER, MODEL, Server, cli
from test_structured import content, named

LARGE = [2**53 + 1, 1234567890123456789, 2**63 - 1, 2**64 - 1, 10**30, -(2**63), -(2**53) - 1]
VERSION = {"anthropic-version": "2023-06-01"}


def holding(schema) -> dict:
    return {"type": "object", "properties": {"id": schema}, "required": ["id"], "additionalProperties": False}


@pytest.fixture(scope="module")
def coder():
    """Serves a model whose template renders the arguments of a call as an object."""
    with Server({"SERVER__DEFAULT_MODELS": f"{MODEL},{CODER}", "ENGINE__KV_TOKENS": "8192", "ENGINE__CONTEXT": "2048"}) as running:
        yield running


@pytest.mark.parametrize("number", LARGE)
def test_a_schema_keeps_all_digits_of_a_number(server, number):
    for schema in ({"const": number}, {"enum": [number]}, {"type": "integer", "minimum": number, "maximum": number}):
        assert content(server.chat(response_format=named(schema), max_tokens=60)) == (str(number), "stop")
    text, reason = content(server.chat(response_format=named(holding({"const": number})), max_tokens=100))
    assert reason == "stop" and json.loads(text) == {"id": number}


def test_bounds_are_exact(server):
    few = {"type": "integer", "exclusiveMinimum": 2**53, "maximum": 2**53 + 1}
    assert content(server.chat(response_format=named(few), max_tokens=60))[0] == str(2**53 + 1)
    pair = [2**53 + 1, 2**53 + 3]
    wide = {"type": "integer", "minimum": pair[0], "maximum": pair[1]}
    for schema, permitted in (({"enum": pair}, pair), (wide, range(pair[0], pair[1] + 1))):
        for seed in range(4):
            text, reason = content(server.chat(response_format=named(schema), max_tokens=60, temperature=2, seed=seed))
            assert reason == "stop" and int(text) in permitted


@pytest.mark.parametrize("number", LARGE)
def test_every_dialect_accepts_a_schema_with_a_large_number(coder, number):
    schema = holding({"const": number})
    tool = {"type": "function", "function": {"name": "find", "parameters": schema}}
    fields = dict(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=150)
    for model in (MODEL, CODER):
        reply = coder.chat("Find it.", model=model, **fields)
        assert reply.status == 200, reply.body
        (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"id": number}
    asked = [{"role": "user", "content": "Find it."}]
    body = {"model": CODER, "max_tokens": 150, "messages": asked, "tool_choice": {"type": "any"}}
    reply = coder.post("/v1/messages", body | {"tools": [{"name": "find", "input_schema": schema}]}, headers=VERSION)
    assert reply.status == 200, reply.body
    assert [block["input"] for block in reply.json()["content"] if block["type"] == "tool_use"] == [{"id": number}]
    reply = coder.post("/api/chat", {"model": MODEL, "messages": asked, "format": schema, "stream": False})
    assert reply.status == 200, reply.body
    assert json.loads(reply.json()["message"]["content"]) == {"id": number}
    reply = coder.post(
        "/v1/responses",
        {"model": MODEL, "input": "x", "max_output_tokens": 99, "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}},
    )
    assert reply.status == 200, reply.body
    assert json.loads(reply.json()["output"][-1]["content"][0]["text"]) == {"id": number}


@pytest.mark.parametrize("model", [MODEL, CODER])
@pytest.mark.parametrize("number", [*LARGE, 10**30 + 1])
def test_the_arguments_of_earlier_calls_reach_the_prompt_digit_by_digit(coder, model, number):
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": json.dumps({"id": number, "of": [number]})}}
    messages = [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "found"},
    ]
    tool = {"type": "function", "function": {"name": "find", "parameters": holding({"type": "integer"})}}
    reply = coder.post("/apply-template", {"model": model, "messages": messages, "tools": [tool]})
    assert reply.status == 200, reply.body
    prompt = reply.json()["prompt"]
    assert prompt.count(str(number)) == 2, prompt
    assert f'"id":{number}' in prompt.replace(" ", ""), prompt


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30 + 1])
def test_a_number_that_would_be_rounded_is_refused_by_name(server, number):
    reply = server.chat(response_format=named(holding({"const": number})))
    assert reply.status == 400 and reply.error["param"] == "response_format.json_schema.schema.properties.id.const", reply.body
    assert str(number) in reply.error["message"] and "rounded" in reply.error["message"]
    reply = server.chat(guided_json=json.dumps({"const": number}))
    assert reply.status == 400 and reply.error["param"] == "guided_json" and str(number) in reply.error["message"], reply.body
    reply = server.chat(seed=number)
    assert reply.status == 400 and reply.error["param"] == "seed", reply.body
    reply = server.post("/v1/messages", {"model": MODEL, "max_tokens": 5, "messages": [], "metadata": {"n": [1, number]}}, headers=VERSION)
    assert reply.status == 400 and "metadata.n[1]" in reply.body.decode(), reply.body
    assert server.chat().status == 200


def test_inspect_says_that_a_vocabulary_cannot_be_used(tmp_path):
    path = Path(json.loads(cli("show", MODEL, "--json").stdout)["path"])
    bytes_of = path.read_bytes()
    key, name = b"tokenizer.ggml.pre", b"smollm"
    at = bytes_of.index(name, bytes_of.index(key))
    (tmp_path / "x-00001-of-00003.gguf").write_bytes(bytes_of[:at] + b"unheard"[: len(name)] + bytes_of[at + len(name) :])
    done = cli("inspect", tmp_path / "x-00001-of-00003.gguf")
    assert done.returncode == 0, done.stderr
    assert "the engines cannot run it: tokenizer: tokenizer.ggml.pre: `unhear` is not supported" in done.stdout
    (tmp_path / "x-00001-of-00003.gguf").write_bytes(bytes_of)
    assert "the engines can run it" in cli("inspect", tmp_path / "x-00001-of-00003.gguf").stdout
