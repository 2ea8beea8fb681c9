"""Tests more of the official Python SDK: log-probabilities, choices, embeddings, and responses with the SDK's helpers."""

import asyncio
import json
import typing

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel
from test_openai import CAPITAL, CAPITAL_IDS, ask

ANSWER = "The capital of France is Paris."


def respond(client, model, **fields):
    return client.responses.create(**{"model": model, "input": CAPITAL[0]["content"], "temperature": 0, "max_output_tokens": 12, **fields})


def test_a_chat_answer_has_log_probabilities(client, model):
    choice = ask(client, model, logprobs=True, top_logprobs=4).choices[0]
    content = choice.logprobs.content
    assert choice.logprobs.refusal is None and "".join(token.token for token in content) == ANSWER
    for token in content:
        assert bytes(token.bytes).decode() == token.token and len(token.top_logprobs) == 4
        assert token.logprob == max(top.logprob for top in token.top_logprobs) <= 0
    chunks = [chunk.choices[0] for chunk in ask(client, model, logprobs=True, top_logprobs=4, stream=True)]
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert [token.logprob for token in streamed] == [token.logprob for token in content]


@pytest.mark.real_models
def test_a_completion_has_log_probabilities_and_echo(client, model):
    choice = client.completions.create(model=model, prompt=CAPITAL_IDS, max_tokens=0, echo=True, logprobs=2).choices[0]
    assert choice.text == "".join(choice.logprobs.tokens) == "The capital of France is"
    assert choice.logprobs.token_logprobs[0] is None and all(logprob < 0 for logprob in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.top_logprobs[0] is None and all(len(top) >= 2 for top in choice.logprobs.top_logprobs[1:])
    assert choice.logprobs.text_offset == [0, 3, 11, 14, 21]


def test_choices_are_the_same_streamed_and_whole(client, model):
    fields = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 1, "seed": 3, "n": 4}
    answer = ask(client, model, **fields)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3] and len(set(texts)) > 1
    streamed = ["", "", "", ""]
    for chunk in ask(client, model, stream=True, **fields):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts and answer.system_fingerprint.startswith("fp_")
    best = client.completions.create(model=model, prompt="Once", max_tokens=4, n=1, best_of=3, seed=1)
    assert len(best.choices) == 1 and best.usage.completion_tokens >= 4


@pytest.mark.real_models
def test_embeddings_are_floats(client, model):
    """The SDK requests base64 and returns floats."""
    answer = client.embeddings.create(model=model, input=["a river", "a mountain"])
    assert [item.index for item in answer.data] == [0, 1] and all(len(item.embedding) == 576 for item in answer.data)
    assert abs(sum(x * x for x in answer.data[0].embedding) - 1) < 1e-5 and answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    plain = client.embeddings.create(model=model, input="a river", encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(plain, answer.data[0].embedding)) < 1e-7
    assert len(client.embeddings.create(model=model, input="a river", dimensions=32).data[0].embedding) == 32
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=model, input="hello " * 9000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


def test_a_response_is_stored_and_deleted(client, model):
    response = respond(client, model, metadata={"a": "b"})
    assert response.output_text == ANSWER and response.status == "completed" and response.object == "response"
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens and response.metadata == {"a": "b"}
    assert client.responses.retrieve(response.id).output_text == ANSWER
    going_on = respond(client, model, input="And of Italy?", previous_response_id=response.id)
    assert going_on.previous_response_id == response.id and going_on.usage.input_tokens > response.usage.input_tokens
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        respond(client, model, previous_response_id=response.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
    cut = respond(client, model, max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def test_a_response_is_streamed(client, model):
    events = list(respond(client, model, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    assert events[-1].type == "response.completed" and events[-1].response.output_text == ANSWER


def test_the_stream_helper_of_the_sdk_works(client, model):
    with client.responses.stream(model=model, input=CAPITAL[0]["content"], temperature=0, max_output_tokens=12) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == ANSWER and final.usage.output_tokens > 0


class City(BaseModel):
    name: str
    country: str


class GetWeather(BaseModel):
    city: str


@pytest.mark.real_models
def test_a_response_has_the_type_that_is_asked_for(client, coder):
    fields = {
        "model": coder,
        "input": "Paris is the capital of France. Give the city's name and country as JSON.",
        "temperature": 0,
        "max_output_tokens": 60,
    }
    assert client.responses.parse(text_format=City, **fields).output_parsed == City(name="Paris", country="France")
    with client.responses.stream(text_format=City, **fields) as stream:
        assert stream.get_final_response().output_parsed == City(name="Paris", country="France")


def weather_of(city: str) -> str:
    return f"In {city} it is sunny, 24 degrees."


@pytest.mark.real_models
def test_a_tool_works_over_responses(client, coder):
    """The model answers the result of a call, once with the items as input and once by the stored response's id."""
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather", description="The weather in a city.")
    fields = {"model": coder, "tools": [tool], "temperature": 0, "max_output_tokens": 80}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.responses.parse(input=question, **fields)
    (call,) = first.output
    assert call.type == "function_call" and call.name == "get_weather" and call.parsed_arguments == GetWeather(city="Paris")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": weather_of(**json.loads(call.arguments))}
    fields["tools"] = [{"type": "function", **tool["function"]}]
    by_items = client.responses.create(input=[*question, *first.output, result], **fields)
    by_id = client.responses.create(input=[result], previous_response_id=first.id, **fields)
    for last in (by_items, by_id):
        assert last.status == "completed" and "sunny" in last.output_text and "{" not in last.output_text, last
    assert by_items.usage.input_tokens == by_id.usage.input_tokens


@pytest.mark.real_models
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}], ids=["required", "named"])
def test_a_call_comes_in_the_stream_of_the_sdk(client, coder, choice):
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    pieces = []
    with client.responses.stream(
        model=coder,
        input="What is the weather in Paris?",
        tools=[tool],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=0,
        max_output_tokens=80,
    ) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                pieces.append(event.delta)
                assert "".join(pieces) == event.snapshot
        (call,) = stream.get_final_response().output
    assert len(pieces) > 1 and "".join(pieces) == call.arguments and call.parsed_arguments == GetWeather(city="Paris")


def event_types() -> dict:
    union = ResponseStreamEvent
    while typing.get_origin(union) is not typing.Union:
        union = typing.get_args(union)[0]
    return {typing.get_args(event.model_fields["type"].annotation)[0]: event for event in typing.get_args(union)}


TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}}},
}


@pytest.mark.parametrize(
    "fields",
    [
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "metadata": {"a": "b"}, "instructions": "Be kind."},
        {"max_output_tokens": 2},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": "any", "parallel_tool_calls": False},
        {"tools": [{"name": "now"}], "tool_choice": {"name": "now"}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": TOOL["parameters"]}}},
    ],
    ids=["text", "cut", "call", "any", "named", "format"],
)
def test_no_field_of_the_sdks_types_is_missing(server, model, fields):
    """The SDK does not validate an answer, so a missing field would fail only when it is read."""
    body = {"model": model, "input": "What is the weather in Paris?", "temperature": 0, "max_output_tokens": 60, **fields}
    Response.model_validate_json(server.post("/v1/responses", body).body, strict=True)
    types = event_types()
    lines = server.post("/v1/responses", {**body, "stream": True}).body.decode().splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert len(events) > 6
    for event in events:
        types[json.loads(event)["type"]].model_validate_json(event, strict=True)


def test_responses_at_once_are_answered(server, model):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=150) as client:

            async def helper():
                async with client.responses.stream(model=model, input=CAPITAL[0]["content"], temperature=0, max_output_tokens=12) as stream:
                    return (await stream.get_final_response()).output_text

            async def whole():
                return (await respond(client, model)).output_text

            return await asyncio.gather(*(helper() if number % 2 else whole() for number in range(12)))

    assert set(asyncio.run(all_of_them())) == {ANSWER}
