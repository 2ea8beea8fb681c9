"""Structured output: an answer follows what was asked for, or an error says why it cannot."""

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from harness import MODEL, chunks_of, open_stream

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def named(schema, **more) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def content(reply) -> tuple[str, str]:
    assert reply.status == 200, reply.body
    (choice,) = reply.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def test_a_schema_is_followed(server):
    for temperature in (0, 1.5):
        for seed in range(4):
            reply = server.chat(
                "Describe Anna, who is 31.", response_format=named(PERSON, strict=True), max_tokens=200, temperature=temperature, seed=seed
            )
            text, reason = content(reply)
            assert reason == "stop"
            jsonschema.validate(json.loads(text), PERSON)


def test_json_object_gives_an_object(server):
    text, reason = content(server.chat("Describe a cat in JSON.", response_format={"type": "json_object"}, max_tokens=300))
    assert reason == "length" or isinstance(json.loads(text), dict)
    assert text.startswith("{")


def test_max_tokens_cuts_an_answer(server):
    text, reason = content(server.chat("Describe Anna.", response_format=named(PERSON), max_tokens=5))
    assert reason == "length" and text.startswith("{")


def test_a_stream_has_the_same_text(server):
    fields = dict(response_format=named(PERSON), max_tokens=200)
    whole, _ = content(server.chat("Describe Anna.", **fields))
    chunks = chunks_of(server.chat("Describe Anna.", stream=True, **fields))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole


def test_regex_grammar_and_choice_are_followed(server):
    assert content(server.chat("Is Paris in France?", choice=["yes", "no"]))[0] in ("yes", "no")
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}", content(server.chat("A date", regex=r"\d{4}-\d{2}", max_tokens=20))[0])
    grammar = 'start: greeting " " NAME\ngreeting: "Hello" | "Bye"\nNAME: /[A-Z][a-z]{1,5}/'
    assert re.fullmatch("(Hello|Bye) [A-Z][a-z]{1,5}", content(server.chat("Greet.", grammar=grammar, max_tokens=20))[0])
    assert server.text("Yes or no:", choice=["yes", "no"]) in ("yes", "no")
    assert content(server.chat("?", extra={}, guided_choice=["left"]))[0] == "left"
    assert content(server.chat("?", structured_outputs={"regex": "[ab]{3}"}))[0].strip("ab") == ""


def test_each_choice_of_a_request_follows_the_schema(server):
    reply = server.chat("Pick", choice=["red", "green", "blue"], n=4, temperature=1.5, seed=3)
    assert reply.status == 200, reply.body
    assert all(choice["message"]["content"] in ("red", "green", "blue") for choice in reply.json()["choices"])


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize(
    "fields, param, words",
    [
        ({"response_format": named({"not": {}})}, "response_format", "#/not"),
        (
            {"response_format": named({"type": "object", "properties": {"a": {"items": {"not": {}}}}})},
            "response_format",
            "#/properties/a/items/not",
        ),
        ({"response_format": named({"$ref": "http://169.254.169.254/x"})}, "response_format", "#"),
        ({"response_format": named(False)}, "response_format", "false"),
        ({"response_format": named({"type": "integer", "minimum": 3, "maximum": 1})}, "response_format", "minimum"),
        ({"response_format": named({"pattern": "["})}, "response_format", "#"),
        ({"response_format": named({"$ref": "#"})}, "response_format", "nothing satisfies"),
        (
            {"response_format": named({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})},
            "response_format",
            "nothing satisfies",
        ),
        ({"response_format": named({"type": "string", "pattern": "(" * 5000 + ")" * 5000})}, "response_format", "#"),
        ({"response_format": named({"properties": {f"p{i}": {} for i in range(10_000)}})}, "response_format", "members"),
        ({"regex": "["}, "regex", "regex"),
        ({"regex": "(?<=x)*"}, "regex", ""),
        ({"regex": "(" * 5000 + ")" * 5000}, "regex", ""),
        ({"grammar": "start: nothing_here"}, "grammar", "nothing_here"),
        ({"grammar": 'begin: "a"'}, "grammar", "start"),
        ({"choice": []}, "choice", ""),
        ({"regex": "a", "choice": ["b"]}, "choice", "regex"),
        ({"regex": "a", "min_tokens": 4}, "min_tokens", "regex"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos", "regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ],
)
def test_what_cannot_be_honoured_is_refused(server, fields, param, words):
    reply = server.chat("x", **fields)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param and words in reply.error["message"], reply.error


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize("length", [250, 1000, 60_000])
def test_chains_of_references_are_followed_or_refused(server, length):
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)} | {f"d{length}": {"enum": ["x"]}}
    reply = server.chat("x", response_format=named({"$ref": "#/$defs/d0", "$defs": defs}))
    assert reply.status == 200 and json.loads(content(reply)[0]) == "x" or reply.error["param"] == "response_format", reply.body


def test_nothing_is_fetched(server):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        reply = server.chat("x", response_format=named({"$ref": f"http://127.0.0.1:{listener.getsockname()[1]}/schema"}))
        assert reply.status == 400 and reply.error["param"] == "response_format", reply.body
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.usefixtures("survives")
def test_a_million_repetitions_are_followed_or_refused(server):
    reply = server.chat("x", regex="(x{1,1000}){1,1000}", max_tokens=20, temperature=1)
    assert reply.status == 400 and reply.error["param"] == "regex" or set(content(reply)[0]) == {"x"}, reply.body


def gaps(server, num_tokens: int) -> list[float]:
    """The seconds between the tokens of a stream, sorted."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": num_tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    with open_stream(server, "/v1/completions", body) as stream, stream.makefile("rb") as lines:
        times = [time.monotonic() for line in iter(lines.readline, b"data: [DONE]\n") if line.startswith(b"data: {")]
    return sorted(later - earlier for earlier, later in zip(times, times[1:]))


@pytest.mark.usefixtures("survives")
def test_expensive_schemas_do_not_hold_up_others(server):
    """While they compile, a stream goes on, its tokens at most twice as far apart. Whatever else runs on the machine can only make that
    worse: the best of some tries counts."""
    ratios = []
    for i in range(5):
        product = {"allOf": [{"anyOf": [{"properties": {f"p{j}": {"const": k + i}}} for k in range(5)]} for j in range(8)]}
        wide = {"type": "object", "properties": {f"p{j}": {"type": "string", "maxLength": 100 + i} for j in range(500)}}
        alone = gaps(server, 48)
        with ThreadPoolExecutor(4) as pool:
            results = [pool.submit(server.chat, "x", response_format=named(schema)) for schema in (product, wide)]
            beside = gaps(server, 48)
            assert all(result.result().status in (200, 400) for result in results)
        ratios.append(beside[24] / alone[24])
        print(
            f"median gap {alone[24] * 1000:.1f} ms alone, {beside[24] * 1000:.1f} beside; "
            f"longest {alone[-1] * 1000:.0f} and {beside[-1] * 1000:.0f}"
        )
        if ratios[-1] <= 2:
            break
    assert min(ratios) <= 2, ratios


def test_many_schemas_at_once_are_followed(server):
    def one(i: int) -> str:
        return content(server.chat("x", response_format=named({"const": f"value {i}"}), max_tokens=30))[0]

    with ThreadPoolExecutor(8) as pool:
        assert [json.loads(text) for text in pool.map(one, range(40))] == [f"value {i}" for i in range(40)]
