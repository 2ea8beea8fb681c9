"""Tests structured output and tools through the helpers of the official Python SDK."""

import json

import openai
import pytest
from pydantic import BaseModel

ABOUT_PARIS = [{"role": "user", "content": "Paris is the capital of France. Give the city's name and country as JSON."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


class City(BaseModel):
    name: str
    country: str


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str
    unit: str = "celsius"


def weather_tool(**more):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
    return {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": schema, **more}}


@pytest.mark.real_models
def test_parse_gives_an_object(client, coder):
    answer = client.chat.completions.parse(model=coder, messages=ABOUT_PARIS, response_format=City, temperature=0, max_tokens=60)
    (choice,) = answer.choices
    assert choice.message.parsed == City(name="Paris", country="France") and choice.finish_reason == "stop"
    assert choice.message.refusal is None and json.loads(choice.message.content) == {"name": "Paris", "country": "France"}


@pytest.mark.real_models
def test_parse_works_in_a_stream(client, coder):
    kinds = []
    with client.chat.completions.stream(model=coder, messages=ABOUT_PARIS, response_format=City, temperature=0, max_tokens=60) as stream:
        for event in stream:
            kinds.append(event.type)
    assert kinds.count("content.delta") > 3 and kinds.count("content.done") == 1
    assert stream.get_final_completion().choices[0].message.parsed == City(name="Paris", country="France")


@pytest.mark.real_models
def test_json_object_gives_an_object(client, model):
    messages = [{"role": "user", "content": 'Answer with the JSON object {"a": 1}.'}]
    answer = client.chat.completions.create(
        model=model, messages=messages, response_format={"type": "json_object"}, temperature=0, max_tokens=80
    )
    assert answer.choices[0].finish_reason == "stop" and json.loads(answer.choices[0].message.content) == {"a": 1}


def test_a_cut_answer_raises_the_error_of_the_sdk(client, coder):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=coder, messages=ABOUT_PARIS, response_format=City, temperature=0, max_tokens=3)


@pytest.mark.parametrize(
    "schema",
    [{"type": "object", "properties": {"a": {"type": "nothing"}}}, {"$ref": "http://127.0.0.1:1/schema.json"}],
    ids=["type", "ref"],
)
def test_a_bad_schema_is_refused(client, model, schema):
    wanted = {"type": "json_schema", "json_schema": {"name": "bad", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=ABOUT_PARIS, response_format=wanted)
    assert caught.value.param.startswith("response_format")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["required", "named"])
@pytest.mark.parametrize("fixture", ["model", "coder"])
def test_a_required_call_comes(client, request, fixture, choice):
    answer = client.chat.completions.create(
        model=request.getfixturevalue(fixture),
        messages=WEATHER,
        tools=[weather_tool(strict=True)],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=120,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert call.type == "function" and call.id and call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city"} and isinstance(arguments["city"], str)


def test_none_makes_no_call(client, coder):
    answer = client.chat.completions.create(
        model=coder, messages=WEATHER, tools=[weather_tool()], tool_choice="none", temperature=0, max_tokens=30
    )
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.content


@pytest.mark.real_models
def test_tools_are_parsed_in_a_stream(client, coder):
    tool = openai.pydantic_function_tool(GetWeather)
    names, arguments = [], ""
    with client.chat.completions.stream(
        model=coder, messages=WEATHER, tools=[tool], tool_choice="required", temperature=0, max_tokens=120
    ) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                names.append(event.name)
                arguments += event.arguments_delta
    (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert set(names) == {"GetWeather"} and json.loads(arguments) == json.loads(call.function.arguments)
    assert isinstance(call.function.parsed_arguments, GetWeather) and call.function.parsed_arguments.city == "Paris"


@pytest.mark.real_models
def test_the_deltas_of_a_call_add_up(client, coder):
    stream = client.chat.completions.create(
        model=coder, messages=WEATHER, tools=[weather_tool()], tool_choice="required", temperature=0, max_tokens=120, stream=True
    )
    deltas = [delta for chunk in stream for choice in chunk.choices for delta in choice.delta.tool_calls or []]
    first, *rest = [delta for delta in deltas if delta.index == 0]
    assert first.id and first.type == "function" and first.function.name == "get_weather"
    assert all(delta.id is None and delta.type is None and delta.function.name is None for delta in rest)
    assert json.loads("".join(delta.function.arguments or "" for delta in [first, *rest]))["city"] == "Paris"


@pytest.mark.real_models
def test_the_result_of_a_call_is_answered(client, coder):
    ask = lambda messages, **more: client.chat.completions.create(
        model=coder, messages=messages, tools=[weather_tool()], temperature=0, max_tokens=60, **more
    )
    answer = ask(WEATHER).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    (call,) = answer.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "In Paris it is sunny, 24 degrees."}
    last = ask([*WEATHER, answer.message.to_dict(), result]).choices[0]
    assert last.finish_reason == "stop" and "sunny" in last.message.content and "{" not in last.message.content
    assert not last.message.tool_calls


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": [weather_tool(parameters={"type": "nothing"}, strict=True)]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "no good", "parameters": {}}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [weather_tool()], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ],
    ids=["schema", "name", "no tools", "unknown"],
)
def test_an_error_names_the_field(client, coder, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=coder, messages=WEATHER, max_tokens=5, **fields)
    assert caught.value.param.startswith(param)
