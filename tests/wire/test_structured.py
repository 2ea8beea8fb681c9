"""Structured output: an answer follows the requested format, or an error says why it cannot."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from harness import chunks_of

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


@pytest.mark.real_models
def test_json_object_gives_an_object(server):
    text, reason = content(server.chat('Answer with the JSON object {"a": 1}.', response_format={"type": "json_object"}, max_tokens=100))
    assert reason == "stop" and json.loads(text) == {"a": 1}, text
    text, reason = content(server.chat("Describe a cat in JSON.", response_format={"type": "json_object"}, max_tokens=4))
    assert reason == "length" and text.startswith("{"), text


def test_a_stream_has_the_same_text(server):
    fields = dict(response_format=named(PERSON), max_tokens=200)
    whole, _ = content(server.chat("Describe Anna.", **fields))
    chunks = chunks_of(server.chat("Describe Anna.", stream=True, **fields))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole


def test_a_grammar_in_gbnf_is_followed(server):
    grammar = r"""
        root   ::= "{" ws pair ("," ws pair)* "}"
        pair   ::= "\"" key "\":" ws [0-9]{1,3} ws   # a comment
        key    ::= "apples" | "pears"
        ws     ::= [ \n]?
    """
    counted = json.loads(content(server.chat("How many apples and pears?", grammar=grammar, max_tokens=60, seed=3))[0])
    assert counted and set(counted) <= {"apples", "pears"}
    greeting = 'root ::= ("Hello" | "Bye") " " [A-Z] [a-z]{1,5}'
    assert re.fullmatch("(Hello|Bye) [A-Z][a-z]{1,5}", content(server.chat("Greet.", grammar=greeting, max_tokens=20))[0])
    nested = 'root ::= "(" (root | "x") ")"'
    text = content(server.chat("Go.", grammar=nested, max_tokens=40))[0]
    assert re.fullmatch(r"\(+x?\)*", text), text


def test_regex_grammar_and_choice_are_followed(server):
    assert content(server.chat("Is Paris in France?", choice=["yes", "no"]))[0] in ("yes", "no")
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}", content(server.chat("A date", regex=r"\d{4}-\d{2}", max_tokens=20))[0])
    grammar = 'start: greeting " " NAME\ngreeting: "Hello" | "Bye"\nNAME: /[A-Z][a-z]{1,5}/'
    assert re.fullmatch("(Hello|Bye) [A-Z][a-z]{1,5}", content(server.chat("Greet.", grammar=grammar, max_tokens=20))[0])
    assert server.text("Yes or no:", choice=["yes", "no"]) in ("yes", "no")
    assert content(server.chat("?", extra={}, guided_choice=["left"]))[0] == "left"
    assert content(server.chat("?", structured_outputs={"regex": "[ab]{3}"}))[0].strip("ab") == ""
    twice = server.chat("?", structured_outputs={"regex": "a", "choice": ["b"]}).error
    assert twice["param"] == "structured_outputs" and "says twice" in twice["message"] and "cannot be combined" not in twice["message"]


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
        ({"grammar": "root ::= nothing_here"}, "grammar", "nothing_here"),
        ({"grammar": "root ::= \"a"}, "grammar", "line 1"),
        ({"grammar": "start: nothing_here"}, "grammar", "nothing_here"),
        ({"grammar": 'begin: "a"'}, "grammar", "start"),
        ({"choice": []}, "choice", ""),
        ({"regex": "a", "choice": ["b"]}, "choice", "regex"),
        ({"regex": "a", "min_tokens": 4}, "min_tokens", "regex"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos", "regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ],
)
def test_a_format_that_cannot_be_followed_is_refused(server, fields, param, words):
    reply = server.chat("x", **fields)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param and words in reply.error["message"], reply.error


def test_many_schemas_at_once_are_followed(server):
    def one(i: int) -> str:
        return content(server.chat("x", response_format=named({"const": f"value {i}"}), max_tokens=30))[0]

    with ThreadPoolExecutor(8) as pool:
        assert [json.loads(text) for text in pool.map(one, range(40))] == [f"value {i}" for i in range(40)]
