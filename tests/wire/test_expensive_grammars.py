"""A grammar that costs more than is allowed fails its own request with an error that names the field, and disturbs no other."""

import json
import random
import threading
import time

import pytest
from harness import MODEL, sse_events

# The number of ways to read the text grows with each token.
AMBIGUOUS = "start: e\ne: e e | e e e | /[a-z ]/ | "
NESTED = "start: (((/[a-z]/{0,50}){0,50}){0,50}){0,50}"
# The automaton needs to remember the last 24 letters: 2^24 states.
BOMB = ".*[a-f].{24}x"
PROMPT = "Write something long."


def words(count: int) -> list[str]:
    letters = random.Random(1)
    return ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz ", k=12)) for _ in range(count)]


def schema(value) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def tool(parameters) -> dict:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "tool_choice": "required"}


EXPENSIVE = {
    "ambiguous": ({"grammar": AMBIGUOUS}, "grammar", "too long to follow"),
    "nested repetitions": ({"grammar": NESTED}, "grammar", "follow"),
    "an automaton's states": ({"regex": BOMB}, "regex", "lexer error: too many"),
    "a pattern": (
        schema({"type": "object", "properties": {"a": {"type": "string", "pattern": BOMB}}, "required": ["a"]}),
        "response_format",
        "lexer error: too many",
    ),
    "an enum of 50,000": (schema({"enum": words(50_000)}), "response_format", "lexer error: too many"),
    "a tool's argument": (
        tool({"type": "object", "properties": {"a": {"type": "string", "pattern": BOMB}}, "required": ["a"]}),
        "tools",
        "lexer error: too many",
    ),
}


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize("name", EXPENSIVE)
def test_the_request_gets_an_error_that_names_the_field(server, name):
    fields, param, text = EXPENSIVE[name]
    reply = server.chat(PROMPT, max_tokens=400, temperature=1, seed=1, **fields)
    assert reply.status == 400, reply.body
    error = reply.error
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_value", param), error
    assert text in error["message"] and f"`{param}`" in error["message"], error


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize("name", ["ambiguous", "an automaton's states"])
def test_a_stream_gets_the_error_as_its_last_event(server, name):
    fields, param, text = EXPENSIVE[name]
    reply = server.chat(PROMPT, max_tokens=400, temperature=1, seed=1, stream=True, **fields)
    assert reply.status == 200, reply.body
    *chunks, last = sse_events(reply.body)
    assert sum(bool(json.loads(chunk)["choices"][0]["delta"].get("content")) for chunk in chunks) > 1, "it began well"
    error = json.loads(last)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param) and text in error["message"], error


@pytest.mark.usefixtures("survives")
def test_other_requests_are_not_held_up(server):
    """Beside grammars that use up their time, a request gets the same text as alone, and gets it before they end."""
    fields = dict(max_tokens=48, seed=7, temperature=1)
    format = schema({"type": "array", "items": {"type": "string"}, "minItems": 40})
    alone = [server.text("Once upon a time", **fields), server.chat(PROMPT, **fields, **format).json()["choices"][0]["message"]["content"]]
    ended = []

    def expensive(seed):
        reply = server.chat(PROMPT, max_tokens=400, temperature=1, seed=seed, grammar=NESTED)
        ended.append((time.monotonic(), reply.status))

    threads = [threading.Thread(target=expensive, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    start = time.monotonic()
    beside = [server.text("Once upon a time", **fields), server.chat(PROMPT, **fields, **format).json()["choices"][0]["message"]["content"]]
    took = time.monotonic() - start
    for thread in threads:
        thread.join()
    print(f"96 tokens beside three expensive grammars: {took:.2f} s; these ended {[f'{at - start:.1f} s' for at, _ in ended]}")
    assert beside == alone
    assert [status for _, status in ended] == [400] * 3
    assert took < 20


@pytest.mark.usefixtures("survives")
def test_a_response_fails_with_the_error(server):
    format = {"type": "json_schema", "name": "x", "schema": {"type": "array", "items": {"type": "string", "pattern": BOMB}, "minItems": 1}}
    body = {"model": MODEL, "input": PROMPT, "max_output_tokens": 400, "text": {"format": format}}
    error = server.post("/v1/responses", body).error
    assert (error["type"], error["param"]) == ("invalid_request_error", "text") and "lexer error: too many" in error["message"], error
    reply = server.post("/v1/responses", body | {"stream": True})
    assert reply.status == 200, reply.body
    last = [json.loads(line[6:]) for line in reply.body.decode().split("\n") if line.startswith("data: ")][-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed", last
    assert last["response"]["error"]["code"] == "invalid_prompt" and "`text`" in last["response"]["error"]["message"], last
